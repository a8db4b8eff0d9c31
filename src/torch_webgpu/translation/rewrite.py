"""The user's modules, rewritten while they are imported: "cuda" in them is the name of the device that is here.

Two ways were open to make ``x.device.type == "cuda"`` true in a program's own code while PyTorch and libraries see
the real device: a property in place of ``Tensor.device``, which looks at who asks, or this. The property costs a
Python frame at every read of a device, in libraries as well; constants that were rewritten cost nothing.

What names a device becomes what it is called here: ``torch.device("cuda")``, ``f"cuda:{rank}"``, ``default="cuda"``.
Where a text is compared, both names count, since it may come from a file or a command line:

=============================  ============================================
``kind == "cuda"``             ``helper.equal(kind, "cuda")``
``"cuda" in text``             ``helper.within("cuda", text)``
``kind in ("cuda", "cpu")``    ``kind in ("cuda", "webgpu", "cpu")``
``text.startswith("cuda")``    ``text.startswith(("cuda", "webgpu"))``
``case "cuda":``               ``case "cuda" | "webgpu":``
``choices=["cpu", "cuda"]``    ``choices=["cpu", "cuda", "webgpu"]``
``x.is_cuda``                  ``helper.is_device(x, "is_cuda")``
``torch.device(name)``         ``torch.device(helper.local(name))``
``x.to(rank)``, on the CPU     ``x.to(helper.local(rank))``, likewise ``zeros(2, device=rank)``
``torch.Tensor([1.0])``        ``helper.tensor(torch.Tensor, [1.0])``
``table[x.device.type]``       ``helper.lookup(table, x.device.type)``
``getattr(x, "is_cuda")``      ``helper.is_device(x, "is_cuda")``
``exec(text, names)``          ``exec(helper.code(text), helper.marked(names))``
``eval(text)``                 ``eval(helper.expression(text))``, likewise
``table.get(device, default)`` ``helper.get(table, device, default)``
``empty(2, pin_memory=True)``  ``helper.pinned(empty, 2, pin_memory=True)``
=============================  ============================================

A text that is a key, an attribute's name or a piece of a path stays: ``config["cuda"]``, ``getattr(torch, "cuda")``.
"""

from __future__ import annotations

import ast
from typing import Any, TypeVar

from .callers import MARK
from .device_names import FOREIGN, Names

FLAGS = tuple(f"is_{name}" for name in FOREIGN)
PREFIX_TESTS = ("startswith", "endswith")
OF_KEYS = frozenset(
    "get pop setdefault getattr hasattr setattr delattr import_module __import__ find_spec add_argument getLogger "
    "join joinpath Path environ getenv get_logger field".split()
)
"""Functions whose texts are keys, names of attributes, modules or files."""

FACTORIES = frozenset(
    "arange as_tensor empty empty_like empty_strided eye full full_like linspace new_empty new_full new_ones "
    "new_tensor new_zeros normal ones ones_like rand rand_like randint randn randn_like randperm tensor zeros "
    "zeros_like".split()
)
"""Functions that make tensors; their ``pin_memory=True`` PyTorch refuses without hooks in C++."""

TEXTS = {"exec": "code", "eval": "expression"}
"""Functions that run a text → what makes of it what they are to run."""

Node = TypeVar("Node", bound=ast.AST)


SIGNS = (b"device", b".to(", b"pin_memory", b"Tensor(", *(name.encode() for name in FOREIGN))
"""What sources contain that handle devices, by name or by what others pass to them."""


def mentions_devices(source: bytes) -> bool:
    """Whether there can be anything to rewrite."""
    return any(word in source for word in SIGNS)


def rewritten(source: bytes | str, file: str, names: Names, mode: str = "exec") -> Any:
    """The tree of a module, or of an expression (``mode`` "eval"), with this device's names, at the original's places.

    SyntaxError as :func:`compile`.
    """
    tree: ast.AST = ast.parse(source, file, mode)
    return ast.fix_missing_locations(Rewriter(names).visit(tree))


def may_be_device(node: ast.AST) -> bool:
    """Whether an index or key looks like a device's name: ``x.device.type``, ``device_type``, ``str(x.device)``."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") == "str" and len(node.args) == 1 and may_be_device(node.args[0])
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "device" in name.lower() or (name == "type" and isinstance(node, ast.Attribute))


class Rewriter(ast.NodeTransformer):
    """See the module. Visits every statement, so it also serves a notebook's cells (IPython's ``ast_transformers``)."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.makers = {"torch.device"}
        """How the module calls :class:`torch.device`,"""
        self.tensors = {"torch.Tensor"}
        """and :class:`torch.Tensor`."""

    # ---- texts

    def local(self, node: ast.AST | None) -> str | None:
        """The local name of the device that a constant names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.names.local(node.value)
        return None

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        local = self.local(node)
        return node if local is None else ast.copy_location(ast.Constant(local), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Only the beginning can name a device: ``f"cuda:{rank}"``."""
        first, *others = node.values
        local = self.local(first)
        if local is not None and local.endswith(":"):
            if self.names.target == "cpu" and others and isinstance(others[0], ast.FormattedValue):
                local, others[0].conversion = "cpu", ord("s")
                others[0].format_spec = ast.JoinedStr([ast.Constant(".0")])  # shows nothing of the number
            node.values[0] = ast.copy_location(ast.Constant(local), first)
        node.values[1:] = [self.visit(value) if isinstance(value, ast.FormattedValue) else value for value in others]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):  # a docstring
            return node
        return self.generic_visit(node)

    def both(self, nodes: list[ast.expr]) -> list[ast.expr]:
        """Each, and after those that name a device the local name."""
        expressions: list[ast.expr] = []
        for node in nodes:
            local = self.local(node)
            expressions += [self.visit(node)] if local is None else [node, ast.copy_location(ast.Constant(local), node)]
        return expressions

    # ---- comparisons

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) == 1:
            operator, left, right = node.ops[0], node.left, node.comparators[0]
            if isinstance(operator, ast.Eq | ast.NotEq) and self.local(left) is not None:
                left, right = right, left
            if isinstance(operator, ast.Eq | ast.NotEq) and self.local(right) is not None:
                call = self.helper("equal", [self.visit(left), right], node)
                return self.unless(isinstance(operator, ast.NotEq), call, node)
            if isinstance(operator, ast.In | ast.NotIn):
                if isinstance(right, ast.Tuple | ast.List | ast.Set):
                    node.left, right.elts = self.key(left), self.both(right.elts)
                    return node
                if self.local(left) is not None:
                    call = self.helper("within", [left, self.visit(right)], node)
                    return self.unless(isinstance(operator, ast.NotIn), call, node)
        return self.generic_visit(node)

    def visit_MatchValue(self, node: Any) -> ast.AST:
        local = self.local(node.value)
        if local is None:
            return node
        other = ast.MatchValue(ast.copy_location(ast.Constant(local), node.value))
        return ast.copy_location(ast.MatchOr([node, ast.copy_location(other, node)]), node)

    # ---- texts that are no devices

    def key(self, node: ast.expr) -> ast.expr:
        """``node`` with its own text as it is."""
        if isinstance(node, ast.Constant):
            return node
        visited: ast.expr = self.visit(node)
        return visited

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        node.keys = [key if key is None else self.key(key) for key in node.keys]
        node.values = [self.visit(value) for value in node.values]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.Div):  # folder / "cuda"
            node.left, node.right = self.key(node.left), self.key(node.right)
            return node
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value, index = self.visit(node.value), node.slice
        node.slice = self.key(index)
        if isinstance(node.ctx, ast.Load) and may_be_device(index):
            return self.helper("lookup", [node.value, node.slice], node)
        return node

    # ---- calls and attributes

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in PREFIX_TESTS and node.args and self.local(node.args[0]) is not None:
            node.func, tests = self.visit(node.func), ast.Tuple(self.both(node.args[:1]), ast.Load())
            node.args[0] = ast.copy_location(tests, node.args[0])
            return node
        called = ast.unparse(node.func)
        if called == "getattr" and self.is_flag(node.args[1:2]):
            return self.helper("is_device", [self.visit(argument) for argument in node.args], node)
        makes_device = called in self.makers
        if called in self.tensors:
            node.func, node.args = self.helper_function("tensor", node), [node.func, *node.args]
        node.func = self.visit(node.func)
        keep = self.key if name in OF_KEYS else self.visit
        node.args = [keep(argument) for argument in node.args]
        for keyword in node.keywords:
            if keyword.arg == "choices" and isinstance(keyword.value, ast.Tuple | ast.List | ast.Set):
                keyword.value.elts = self.both(keyword.value.elts)
            else:
                keyword.value = self.visit(keyword.value)
            if keyword.arg == "device" and name in FACTORIES and self.names.target == "cpu":
                keyword.value = self.made_local(keyword.value)  # PyTorch takes a number for the accelerator's
        if name == "get" and isinstance(node.func, ast.Attribute) and node.args and may_be_device(node.args[0]):
            return self.helper("get", [node.func.value, *node.args], node)
        if name in FACTORIES and any(keyword.arg == "pin_memory" for keyword in node.keywords):
            call = self.helper("pinned", [node.func, *node.args], node)
            call.keywords = node.keywords
            return call
        if node.args and (makes_device or (name == "to" and self.names.target == "cpu")):
            node.args[0] = self.made_local(node.args[0])
        elif node.args and called in TEXTS:
            node.args[0] = self.helper(TEXTS[called], [node.args[0]], node.args[0])
            node.args[1:2] = [self.helper("marked", [names], names) for names in node.args[1:2]]
        return node

    def made_local(self, node: ast.expr) -> ast.expr:
        """``node``, which gives a device, as the one that is here. PyTorch knows no numbers of CPUs."""
        known = isinstance(node, ast.Constant) and not (self.names.target == "cpu" and type(node.value) is int)
        return node if known or isinstance(node, ast.JoinedStr | ast.Starred) else self.helper("local", [node], node)

    def is_flag(self, nodes: list[Any]) -> bool:
        """Whether the first is the name of another device's attribute of tensors: "is_cuda"."""
        flag = getattr(nodes[0], "value", None) if nodes else None
        return flag in FLAGS and flag != f"is_{self.names.target}"

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.value = self.visit(node.value)
        flag = ast.copy_location(ast.Constant(node.attr), node)
        if isinstance(node.ctx, ast.Load) and self.is_flag([flag]):
            return self.helper("is_device", [node.value, flag], node)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for alias in node.names:
            if alias.name == "torch" and alias.asname:
                self.makers.add(f"{alias.asname}.device")
                self.tensors.add(f"{alias.asname}.Tensor")
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module == "torch":
            self.makers |= {alias.asname or alias.name for alias in node.names if alias.name == "device"}
            self.tensors |= {alias.asname or alias.name for alias in node.names if alias.name == "Tensor"}
        return node

    # ---- what is put in

    def helper(self, method: str, arguments: list[ast.expr], at: ast.AST) -> ast.Call:
        call = ast.copy_location(ast.Call(self.helper_function(method, at), arguments, []), at)
        return ast.fix_missing_locations(call)

    @staticmethod
    def helper_function(method: str, at: ast.AST) -> ast.Attribute:
        function = ast.Attribute(ast.Name(MARK, ast.Load()), method, ast.Load())
        return ast.fix_missing_locations(ast.copy_location(function, at))

    @staticmethod
    def unless(negated: bool, node: ast.expr, at: ast.AST) -> ast.expr:
        return ast.copy_location(ast.UnaryOp(ast.Not(), node), at) if negated else node
