"""The change of source behind :mod:`.migrate`, on libcst's trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider

from .monitor import Answer
from .table import table

DEVICE = "DEVICE_TYPE"
"""What the device's name is called in a program that was migrated."""

FUNCTIONS = {
    f"torch.cuda.{cuda}": f"torch.accelerator.{everywhere or cuda}"
    for cuda, everywhere in {
        "is_available": "",
        "device_count": "",
        "synchronize": "",
        "current_device": "current_device_index",
        "set_device": "set_device_index",
        "current_stream": "",
        "set_stream": "",
        "get_device_capability": "",
        "empty_cache": "",
        "memory_allocated": "",
        "max_memory_allocated": "",
        "memory_reserved": "",
        "max_memory_reserved": "",
        "memory_stats": "",
        "reset_peak_memory_stats": "",
        "reset_accumulated_memory_stats": "",
        "mem_get_info": "get_memory_info",
        "device": "device_index",
    }.items()
} | {
    "torch.cuda.Stream": "torch.Stream",
    "torch.cuda.Event": "torch.Event",
    "torch.cuda.manual_seed": "torch.manual_seed",
    "torch.cuda.manual_seed_all": "torch.manual_seed",
}
"""CUDA's function → the one for all devices, with the same arguments."""

WITH_DEVICE = {"torch.cuda.amp.autocast": "torch.autocast", "torch.cuda.amp.GradScaler": "torch.amp.GradScaler"}
"""CUDA's class → the one that takes the device's name first."""

MODULES = ("torch.cuda.amp", "torch.cuda")


@dataclass(frozen=True)
class Left:
    """A name that stays, and the line where it is used first."""

    name: str
    line: int


def migrated(source: str, locations: Mapping[tuple[int, int], str]) -> tuple[str, tuple[Left, ...]]:
    """The new source, and what stays. ``locations``: the texts that name a device, by line and column."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    change = Change(locations)
    module = wrapper.visit(change)
    if change.names_device:
        module = with_device(module)
    return module.code, tuple(sorted(change.left.values(), key=lambda left: left.line))


class Change(cst.CSTTransformer):
    """See the module. Names are resolved, so ``import torch as th`` and ``from torch.cuda import amp`` are seen."""

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, locations: Mapping[tuple[int, int], str]) -> None:
        super().__init__()
        self.locations = locations
        self.names_device = False
        self.left: dict[str, Left] = {}

    def location(self, node: cst.CSTNode) -> tuple[int, int]:
        start = self.get_metadata(PositionProvider, node).start
        return start.line, start.column

    def name_of(self, node: cst.CSTNode) -> str:
        """The full name of what an expression refers to; "" if it is no import."""
        names = self.get_metadata(QualifiedNameProvider, node, set())
        return next((name.name for name in names if name.source.name == "IMPORT"), "")

    def device(self) -> cst.Name:
        self.names_device = True
        return cst.Name(DEVICE)

    # ---- texts

    def leave_SimpleString(self, node: cst.SimpleString, updated: cst.SimpleString) -> cst.BaseExpression:
        text = self.locations.get(self.location(node))
        if text is None:
            return updated
        index = text.partition(":")[2]
        if text == "cuda":
            return self.device()
        self.names_device = True
        # "cuda:%d" and "cuda:{}" are filled in later.
        index = index.replace("{", "{{").replace("}", "}}")
        return cst.parse_expression(f'f"{{{DEVICE}}}:{index}"')

    def leave_FormattedString(self, node: cst.FormattedString, updated: cst.FormattedString) -> cst.FormattedString:
        if self.location(node) not in self.locations:
            return updated
        first = cst.ensure_type(updated.parts[0], cst.FormattedStringText)
        device = cst.FormattedStringExpression(self.device())
        return updated.with_changes(parts=[device, first.with_changes(value=":"), *updated.parts[1:]])

    # ---- functions

    def leave_Attribute(self, node: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        if node.attr.value == "is_cuda":
            return cst.parse_expression(f"({self.code(updated.value)}.device.type == {self.device().value})")
        return self.replaced(node, updated)

    def leave_Name(self, node: cst.Name, updated: cst.Name) -> cst.BaseExpression:
        return self.replaced(node, updated)

    def replaced(self, node: cst.Attribute | cst.Name, updated: cst.BaseExpression) -> cst.BaseExpression:
        name = self.name_of(node)
        if name in FUNCTIONS:
            return cst.parse_expression(FUNCTIONS[name])
        if name in WITH_DEVICE:
            return cst.parse_expression(WITH_DEVICE[name])
        row = table().get(name) if name.startswith("torch.cuda.") and name != "torch.cuda.stream" else None
        if row is not None and row.replies["webgpu"].answer is not Answer.SAME:
            self.left.setdefault(name, Left(name, self.location(node)[0]))
        return updated

    def leave_Call(self, node: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        name = self.name_of(node.func)
        if name in WITH_DEVICE:
            return updated.with_changes(args=[cst.Arg(self.device()), *updated.args])
        if name == "torch.distributed.init_process_group":
            return self.with_backend(updated)
        if name == "torch.cuda.stream" and len(updated.args) == 1:  # a stream is its own context
            return updated.args[0].value
        if m.matches(updated.func, m.Attribute(attr=m.Name("cuda"))):
            return self.moved(updated)
        return updated

    def moved(self, call: cst.Call) -> cst.Call:
        """``x.cuda(…)`` as ``x.to(DEVICE_TYPE, …)``."""
        func = cst.ensure_type(call.func, cst.Attribute).with_changes(attr=cst.Name("to"))
        first, others = call.args[:1], call.args[1:]
        if first and first[0].keyword is not None and first[0].keyword.value != "device":
            first, others = call.args[:0], call.args
        if not first:
            return call.with_changes(func=func, args=[cst.Arg(self.device()), *others])
        value = first[0].value
        if m.matches(value, m.Name(DEVICE) | m.FormattedString()):
            return call.with_changes(func=func, args=[cst.Arg(value), *others])
        made = cst.parse_expression(f"torch.device({self.device().value}, {self.code(value)})")
        return call.with_changes(func=func, args=[cst.Arg(made), *others])

    def with_backend(self, call: cst.Call) -> cst.Call:
        """A process group whose backend is the device's, not ``"nccl"``."""
        backend = cst.parse_expression(f"torch.distributed.get_default_backend_for_device({self.device().value})")
        nccl = m.SimpleString(value=m.MatchIfTrue(lambda text: text.strip("\"'") == "nccl"))
        arguments = [a.with_changes(value=backend) if m.matches(a.value, nccl) else a for a in call.args]
        return call.with_changes(args=arguments)

    def leave_ImportFrom(
        self, node: cst.ImportFrom, updated: cst.ImportFrom
    ) -> cst.BaseSmallStatement | cst.RemovalSentinel:
        """Names that are not used any more need not be imported."""
        module = self.code(node.module) if node.module is not None else ""
        if module not in MODULES or isinstance(updated.names, cst.ImportStar):
            return updated
        kept = [a for a in updated.names if f"{module}.{self.code(a.name)}" not in FUNCTIONS | WITH_DEVICE]
        if not kept:
            return cst.RemoveFromParent()
        return updated.with_changes(names=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])

    @staticmethod
    def code(node: cst.CSTNode) -> str:
        return cst.Module([]).code_for_node(node)


def with_device(module: cst.Module) -> cst.Module:
    """The module with the device's name, which comes after the imports it begins with."""
    body = list(module.body)
    end = 1 if body and m.matches(body[0], m.SimpleStatementLine([m.Expr(m.SimpleString())])) else 0
    while end < len(body) and is_import(body[end]):
        end += 1
    added = f'{DEVICE} = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"'
    lines = [cast(cst.BaseCompoundStatement, cst.parse_statement(f"\n{added}\n"))]
    if not any(name == "torch" for statement in body[:end] for name in imported(statement)):
        lines.insert(0, cast(cst.BaseCompoundStatement, cst.parse_statement("import torch\n")))
    return module.with_changes(body=[*body[:end], *lines, *body[end:]])


def is_import(statement: cst.CSTNode) -> bool:
    return m.matches(statement, m.SimpleStatementLine([m.AtLeastN(m.Import() | m.ImportFrom(), n=1)]))


def imported(statement: cst.CSTNode) -> list[str]:
    """The names that ``import a, b.c`` binds."""
    return [
        Change.code(alias.name)
        for line in m.findall(statement, m.Import())
        for alias in cst.ensure_type(line, cst.Import).names
        if alias.asname is None
    ]
