"""``torch.optim``'s multi-tensor functions as they are, with cheaper lists.

Through the dispatcher each ``torch._foreach_*`` call converts and checks its lists tensor by tensor, and makes its
result's tensors, although a function such as ``_multi_tensor_adam`` passes the same few lists around and drops the new
ones again. So PyTorch's own function runs with another ``torch`` among its globals: its operators over lists
record straight away, look at a list once in a call, and return a :class:`ListResult`, whose tensors exist once somebody
looks at them. Anything else finds PyTorch's ``torch``, and tensors.

That is for speed alone (https://github.com/pytorch/pytorch/blob/main/torch/optim/adam.py: seven operators over twelve
lists a step). Whatever could see a difference gets the original: compilers, profilers, function and dispatch modes,
functorch, gradients of gradients, tensor subclasses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from operator import is_
from threading import local
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch.autograd import profiler
from torch.autograd.graph import increment_version
from torch.optim import optimizer

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE, is_modified
from torch_webgpu.engine.lists import forget_dropped, make_intermediate, make_seen
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.recorded_lists import Intermediate, ListGeometry, RecordedList

from .foreach import KERNELS, ListKernel, Lists
from .foreach_arguments import addresses_of, find, remember

PREFIX = "_multi_tensor_"
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
NUMBERS = (int, float, complex)


class ListResult(Sequence[torch.Tensor]):
    """A new list of tensors, which are made when somebody looks at them."""

    __slots__ = ("_tensors", "tensor_list")

    def __init__(self, tensor_list: Intermediate) -> None:
        self.tensor_list = tensor_list
        self._tensors: tuple[torch.Tensor, ...] | None = None

    @property
    def is_seen(self) -> bool:
        return self._tensors is not None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        if self._tensors is None:
            self._tensors = tuple(make_seen(engine(), self.tensor_list))
            remember(addresses_of(self.tensor_list), self.tensor_list)
        return self._tensors

    def __len__(self) -> int:
        return len(self.tensor_list.geometry.numels)

    def __getitem__(self, index: Any) -> Any:
        return self.tensors[index]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.tensors)

    def __del__(self) -> None:
        self.tensor_list.drop()


class Scope(Lists):
    """The lists of one call of a multi-tensor function, which leaves its tensors' shapes as they are."""

    def __init__(self) -> None:
        # By the identity of a list: the list, for its identity's sake, what it held, and its tensor list.
        self.known: dict[int, tuple[Sequence[Any], tuple[Any, ...], RecordedList | None]] = {}

    def find(self, tensors: Any) -> RecordedList | None:
        if tensors.__class__ is ListResult:
            return find(tensors.tensors) if tensors.is_seen else tensors.tensor_list
        known = self.known.get(id(tensors))
        if known is not None and len(known[1]) == len(tensors) and all(map(is_, tensors, known[1])):
            return known[2]
        first = tensors[0]
        plain = first.device.type == DEVICE_TYPE and PLAIN_TYPES.issuperset(map(type, tensors))
        tensor_list = find(tensors) if plain else None
        self.known[id(tensors)] = tensors, tuple(tensors), tensor_list
        return tensor_list

    def result(self, geometry: ListGeometry, dtype: torch.dtype, device: int) -> tuple[Any, RecordedList]:
        made = make_intermediate(engine(), geometry, dtype, device)
        return ListResult(made), made

    def tensors(self, value: Any) -> Any:
        return list(value.tensors) if value.__class__ is ListResult else value

    def written(self, tensors: Any) -> None:
        if tensors.__class__ is not ListResult:
            increment_version(tensors)
        elif tensors.is_seen:
            increment_version(tensors.tensors)


_current = local()


class _Operator:
    """A ``torch._foreach_*`` function among the globals of a multi-tensor function."""

    def __init__(self, name: str, kernels: Sequence[ListKernel]) -> None:
        self.name = name
        self.kernels = kernels
        self.found: dict[Any, ListKernel | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = getattr(_current, "scope", None)
        if scope is not None:
            key = tuple(map(_kind, args)), tuple(kwargs)
            if key not in self.found:
                self.found[key] = self.choose(*key)
            kernel = self.found[key]
            if kernel is not None:
                values = [list(v) if v.__class__ is tuple else v for v in args]
                rest = slice(len(args), None)
                values += [kwargs.get(n, d) for n, d in zip(kernel.names[rest], kernel.defaults[rest])]
                result = kernel.record(values, scope)
                if result is not NotImplemented:
                    return args[0] if kernel.inplace else result
        return _plain(getattr(torch, self.name), args, kwargs)

    def choose(self, kinds: tuple[str, ...], given: tuple[str, ...]) -> ListKernel | None:
        """The one overload for arguments of these kinds; None where only PyTorch's parser can tell."""
        fit = [k for k in self.kernels if _fits(k, kinds, given)]
        return fit[0] if len(fit) == 1 else None


_KINDS = {"List[Tensor]": "list", "Tensor": "tensor", "number": "number", "List[number]": "numbers"}


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, NUMBERS):
        return "number"
    if value.__class__ is ListResult:
        return "list"
    if isinstance(value, (list, tuple)) and value:
        return "list" if isinstance(value[0], torch.Tensor) else "numbers"
    return "unknown"


def _fits(kernel: ListKernel, kinds: tuple[str, ...], types: tuple[str, ...]) -> bool:
    arguments = kernel.overload._schema.arguments
    positional = [_KINDS.get(str(a.type), "other") for a in arguments if not a.kwarg_only]
    if len(kinds) > len(positional) or tuple(positional[: len(kinds)]) != kinds:
        return False
    rest = arguments[len(kinds) :]
    names = {a.name for a in rest}
    return names.issuperset(types) and all(a.name in types or a.has_default_value() for a in rest)


def _plain(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function of PyTorch's, which wants tensors."""
    return function(*map(_tensors, args), **{k: _tensors(v) for k, v in kwargs.items()})


def _tensors(value: Any) -> Any:
    return value.tensors if value.__class__ is ListResult else value


class _Torch(ModuleType):
    """Our operators over lists, and everything else as it is, but given tensors."""

    def __init__(self, operators: Mapping[str, _Operator]) -> None:
        super().__init__("torch")
        self.__dict__.update(operators)

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        if isinstance(value, (FunctionType, BuiltinFunctionType)):
            self.__dict__[name] = found = _on_tensors(name)
            return found
        return value


def _on_tensors(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return _plain(getattr(torch, name), args, kwargs)

    return function


def _is_usual(params: Any) -> bool:
    """Whether nothing looks on that could see a difference."""
    return (
        bool(params)
        and params[0].device.type == DEVICE_TYPE
        and not (torch.is_grad_enabled() or profiler._is_profiler_enabled or is_modified())
    )


def scoped(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if not _is_usual(args[0] if args else kwargs.get("params")) or kwargs.get("has_sparse_grad"):
            return original(*args, **kwargs)
        outer = getattr(_current, "scope", None)
        _current.scope = Scope()
        try:
            return ours(*args, **kwargs)
        finally:
            _current.scope = outer
            forget_dropped(engine())

    # Dynamo traces functions of PyTorch's files, and so the original; what is in this package's files it runs.
    wrapped: Any = function  # functools.wraps hides from type checkers that it is a function
    wrapped.__code__ = wrapped.__code__.replace(co_filename=original.__code__.co_filename)
    return wrapped


def facade() -> ModuleType:
    """``torch`` as a multi-tensor function sees it."""
    by_name: dict[str, list[ListKernel]] = {}
    for overload, kernel in KERNELS.items():
        by_name.setdefault(overload._schema.name.removeprefix("aten::"), []).append(kernel)
    return _Torch({name: _Operator(name, found) for name, found in by_name.items()})


def value_of(x: Any) -> Any:
    """``torch.optim.optimizer._get_value`` where nothing compiles: asking that 400 times a step takes 0.1 ms."""
    return x.item() if isinstance(x, torch.Tensor) else x


def replace_multi_tensor_functions(optim: ModuleType) -> None:
    """Replaces the multi-tensor functions of the optimizers in ``torch.optim``."""
    seen = facade()
    for module in [m for name, m in sys.modules.items() if name.startswith(f"{optim.__name__}.")]:
        for name, original in list(vars(module).items()):
            if (
                name.startswith(PREFIX)
                and isinstance(original, FunctionType)
                and original.__globals__ is vars(module)
                and vars(module).get("torch") is torch
                and not original.__closure__
            ):
                own = {**vars(module), "torch": seen}
                if own.get("_get_value") is optimizer._get_value:
                    own["_get_value"] = value_of
                ours = FunctionType(original.__code__, own, name, original.__defaults__)
                ours.__kwdefaults__ = original.__kwdefaults__
                setattr(module, name, scoped(original, ours))
