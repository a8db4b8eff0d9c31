"""The tensors that programs hold: parameters and buffers of a model, optimizer state, caches. They have names, and
others can take their place while a function runs.

A module's tensors are replaced as its attributes, an optimizer's in its groups and its state, and any other tensor by
:func:`torch.utils.swap_tensors`, since whoever holds it holds the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_webgpu.errors import ExportError


@dataclass(frozen=True)
class Held:
    """A named tensor. ``of_model``: a parameter or a buffer of the exported model, which its state dict has."""

    name: str
    tensor: torch.Tensor
    of_model: bool


class HeldTensors:
    """The tensors of a model (None for none) and of ``state``: modules, optimizers, tensors in nested containers.

    A tensor that stands in several places is held once, by its first name. Raises ExportError for what is none of
    these, and for an optimizer whose step cannot be traced.
    """

    def __init__(self, model: torch.nn.Module | None, state: Mapping[str, Any]) -> None:
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._loose: list[torch.Tensor] = []
        self._initialised: list[torch.optim.Optimizer] = []
        self._by_id: dict[int, Held] = {}
        if model is not None:
            self._add_module("", model, of_model=True)
        modules = {k: v for k, v in state.items() if isinstance(v, torch.nn.Module)}
        for name, module in modules.items():  # first: an optimizer's state is named after the parameters
            self._add_module(f"{name}.", module, of_model=False)
        for name, value in state.items():
            if isinstance(value, torch.optim.Optimizer):
                self._add_optimizer(name, value)
            elif name not in modules:
                self._add_loose(name, value)
        self.all = list(self._by_id.values())

    def _add(self, name: str, tensor: torch.Tensor, of_model: bool = False) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            raise ExportError(f"{name} is a {type(tensor).__name__} ({tensor.layout}): only plain tensors are exported")
        if any(held.name == name for held in self._by_id.values()):
            raise ExportError(f"two tensors have the name {name!r}: choose another key in state")
        self._by_id.setdefault(id(tensor), Held(name, tensor, of_model))

    def _add_module(self, prefix: str, module: torch.nn.Module, of_model: bool) -> None:
        self._modules.append(module)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if id(tensor) not in self._by_id:
                self._add(prefix + name, tensor, of_model)

    def _add_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        if initialise(optimizer):
            self._initialised.append(optimizer)
        self._optimizers.append(optimizer)
        position = 0
        for group in optimizer.param_groups:
            for key, value in group.items():
                if isinstance(value, torch.Tensor) and id(value) not in self._by_id:  # a learning rate
                    self._add(f"{name}.{key}", value)
                    self._loose.append(value)
            for parameter in group["params"]:
                if id(parameter) not in self._by_id:
                    self._add(f"{name}.params.{position}", parameter)
                owner = self._by_id[id(parameter)].name
                position += 1
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        self._add(f"{name}.{owner}.{key}", value)

    def _add_loose(self, name: str, value: Any) -> None:
        leaves, _ = pytree.tree_flatten_with_path(value)
        for path, leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._by_id:
                self._add(".".join([name, *map(str, map(path_key, path))]), leaf)
                self._loose.append(leaf)
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
            raise ExportError(
                f"state[{name!r}] is a {type(value).__name__} without tensors: give a module, an optimizer, a tensor, "
                "or lists, tuples and dictionaries of tensors"
            )

    @contextmanager
    def initialised(self) -> Iterator[None]:
        """Afterwards the optimizers that had no state have none again."""
        try:
            yield
        finally:
            for optimizer in self._initialised:
                optimizer.state.clear()

    @contextmanager
    def replaced(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Meanwhile these tensors, by name, are in the places of the held ones.

        What is assigned to a module's attribute meanwhile is copied into the tensor that was there.
        """
        stands_for = {key: as_parameter(tensors[held.name], held.tensor) for key, held in self._by_id.items()}
        attributes = list(self._attributes())
        groups = [(group, group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        states = [(optimizer, optimizer.state) for optimizer in self._optimizers]
        swapped: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            for module, name, tensor in attributes:
                setattr(module, name, stands_for[id(tensor)])
            for group, parameters in groups:
                group["params"] = [stands_for[id(p)] for p in parameters]
            for optimizer, state in states:
                optimizer.state = state.copy()
                optimizer.state.clear()
                for parameter, entries in state.items():
                    optimizer.state[stands_for[id(parameter)]] = {
                        key: stands_for.get(id(value), value) for key, value in entries.items()
                    }
            for tensor in self._loose:
                other = stands_for[id(tensor)]
                torch.utils.swap_tensors(tensor, other)
                swapped.append((tensor, other))
            yield
            for module, name, tensor in attributes:
                now, then = getattr(module, name), stands_for[id(tensor)]
                if now is not then:
                    with torch.no_grad():
                        then.copy_(now)
        finally:
            for tensor, other in reversed(swapped):
                torch.utils.swap_tensors(tensor, other)
            for optimizer, state in states:
                optimizer.state = state
            for group, parameters in groups:
                group["params"] = parameters
            for module, name, tensor in attributes:
                setattr(module, name, tensor)

    @contextmanager
    def cloned(self) -> Iterator[None]:
        """Meanwhile CPU clones are in the places of the held tensors, which so stay as they are."""
        clones = {held.name: held.tensor.detach().cpu().clone() for held in self.all}
        with self.replaced(clones), on_the_host(self._optimizers):
            yield

    def _attributes(self) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
        """Every attribute of a module that is one of the tensors: tied ones come several times."""
        for root in self._modules:
            for module in root.modules():
                own = (*module.named_parameters(recurse=False, remove_duplicate=False),
                       *module.named_buffers(recurse=False, remove_duplicate=False))  # fmt: skip
                yield from ((module, name, tensor) for name, tensor in own)


def as_parameter(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the memory of ``tensor`` that is a parameter, and requires gradients, if ``like`` does."""
    alias = tensor.detach()
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(alias, requires_grad=like.requires_grad)
    return alias.requires_grad_(like.requires_grad and like.is_leaf)


def path_key(entry: Any) -> Any:
    """The key, the index or the attribute that an entry of a path in a tree is."""
    return getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry)))


@contextmanager
def on_the_host(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Meanwhile optimizers step over CPU tensors as well: capturable ones refuse that."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups if group.get("capturable")]
    for group in groups:
        group["capturable"] = False
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = True


def initialise(optimizer: torch.optim.Optimizer) -> bool:
    """Makes the state that an optimizer otherwise makes at its first step, all zero. False for one that has some, which
    is left alone.

    It is the state of a step over other parameters, of zeros: the optimizer's own and their gradients are not touched.
    """
    groups = [(group, group["params"]) for group in optimizer.param_groups]
    if optimizer.state or not groups:
        return False
    others = {p: torch.nn.Parameter(torch.zeros_like(p)) for _, own in groups for p in own if p.requires_grad}
    try:
        for group, own in groups:
            group["params"] = [others[p] for p in own if p in others]
        for other in others.values():
            other.grad = torch.zeros_like(other)
        with on_the_host([optimizer]):
            optimizer.step()
    finally:
        for group, own in groups:
            group["params"] = own
    made = {p: optimizer.state.get(other, {}) for p, other in others.items()}
    optimizer.state.clear()
    for p, entries in made.items():
        optimizer.state[p] = entries
        for value in entries.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    return True
