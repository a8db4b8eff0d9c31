"""One operator, one sample, both devices: the ways in which they are compared.

Each check raises :class:`MismatchError` where the device differs from the CPU, and returns nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import samples
from .compare import MismatchError, Tolerance, assert_same, tolerance_of
from .samples import Sample
from .target import CPU, DEVICE, Replica, synchronize

# Their results are whatever the memory held.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
SEEDS = range(24)  # even one element of a fair dropout comes out the same for all of them only once in 10⁷


@dataclass(frozen=True)
class Case:
    """An OpInfo in one dtype."""

    op: Any
    dtype: torch.dtype
    tolerances: dict[torch.dtype, Tolerance] = field(repr=False)

    @staticmethod
    def of(op: Any, dtype: torch.dtype) -> Case:
        return Case(op, dtype, tolerance_of(op, dtype))


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or the exception it raised."""

    value: Any = None
    error: Exception | None = None


class Call:
    """A function and a sample's arguments, copied to one device."""

    def __init__(
        self, function: Callable[..., Any], sample: Sample, device: torch.device, *, widen: bool = False
    ) -> None:
        self.function = function
        self.replica = Replica(device, widen=widen)
        here = self.replica.tree
        self.tree = (here(sample.input), *sample.tree[1:]) if sample.host_args else here(sample.tree)

    def __call__(self) -> Any:
        input, args, kwargs = self.tree
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(self.tree)):
            return self.function(input, *args, **kwargs)
        with self.replica.device:  # a factory that is not told where to create its tensor
            return self.function(input, *args, **kwargs)

    def outcome(self, *, seed: int = 0) -> Outcome:
        """Run and wait, so that a late error of the device belongs to the call that caused it."""
        torch.manual_seed(seed)
        try:
            value = self()
            if self.replica.device.type != "cpu":
                synchronize()
        except Exception as error:
            return Outcome(error=error)
        return Outcome(value)


def same_outcome(device: Outcome, cpu: Outcome, *, exact_error: bool = True) -> bool:
    """True if both gave a value, False if both raised; ``exact_error`` asks for the same type of exception."""
    if device.error is None and cpu.error is None:
        return True
    if cpu.error is None:
        raise MismatchError(f"raised {summary(device.error)}") from device.error
    if device.error is None:
        raise MismatchError(f"gave a result where CPU raises {summary(cpu.error)}")
    if exact_error and not isinstance(device.error, type(cpu.error)):
        raise MismatchError(f"raised {summary(device.error)} where CPU raises {summary(cpu.error)}") from device.error
    return False


def summary(error: Exception | None) -> str:
    """The exception in one line."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"


class _SeededOps(TorchDispatchMode):
    """Notes whether an operator that may draw random numbers was called."""

    called = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def is_random(function: Callable[..., Any], sample: Sample) -> bool:
    """Whether the CPU's result depends on the seed."""

    def leaves(seed: int) -> list[Any]:
        return pytree.tree_leaves(Call(function, sample, CPU).outcome(seed=seed).value)

    with _SeededOps() as seeded:
        first = leaves(0)
    return seeded.called and any(not identical(first, leaves(seed)) for seed in SEEDS)


def identical(a: list[Any], b: list[Any]) -> bool:
    """Bit for bit, nan equal to nan."""
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def _topk_values(tree: tuple[Any, ...], result: Any) -> Any:
    """Which of several equal values ``topk`` picks is open: the values at its indices, in the place of the indices."""
    (input, args, kwargs), (values, indices) = tree, result
    dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    return values, torch.gather(input, dim, indices) if input.dim() else indices


def _eigh_product(tree: tuple[Any, ...], result: Any) -> Any:
    """Eigenvectors are open up to a phase, and within an eigenspace: what they give back, and that they are a basis."""
    values, vectors = result
    return values, vectors * values.unsqueeze(-2) @ vectors.mH, vectors.mH @ vectors


def _in_order(values: torch.Tensor) -> torch.Tensor:
    """Eigenvalues by real part and, where that is the same but for roundings, by imaginary part."""
    imaginary = values.imag.sort(dim=-1, stable=True).indices
    values = values.gather(-1, imaginary)
    digits = 4 if values.dtype == torch.complex64 else 10
    return values.gather(-1, values.real.round(decimals=digits).sort(dim=-1, stable=True).indices)


def _eigenvalues(tree: tuple[Any, ...], result: Any) -> Any:
    """Of general matrices: roundings decide which is found first."""
    return _in_order(result)


def _eig_product(tree: tuple[Any, ...], result: Any) -> Any:
    """The same, the vectors' lengths, and that the matrix takes each to its multiple: there may be no basis of them."""
    (values, vectors), matrix = result, tree[0].to(result[0].dtype)
    return _in_order(values), vectors.norm(dim=-2), matrix + matrix @ vectors - vectors * values.unsqueeze(-2)


def _svd_product(tree: tuple[Any, ...], result: Any) -> Any:
    """The same of singular vectors."""
    u, values, vh = result
    k = values.shape[-1]
    return values, u[..., :k] * values.unsqueeze(-2) @ vh[..., :k, :], u.mH @ u, vh @ vh.mH


def _svd_product_of_v(tree: tuple[Any, ...], result: Any) -> Any:
    u, values, v = result
    return _svd_product(tree, (u, values, v.mH))


def _same(tree: tuple[Any, ...], result: Any) -> Any:
    return result


# What is compared of results that PyTorch leaves open in part.
SETTLED: dict[str, Callable[[tuple[Any, ...], Any], Any]] = {
    "topk": _topk_values,
    "linalg.eig": _eig_product,
    "linalg.eigvals": _eigenvalues,
    "linalg.eigh": _eigh_product,
    "linalg.svd": _svd_product,
    "svd": _svd_product_of_v,
}


def forward(case: Case, sample: Sample, runs: int = 1) -> None:
    """The function: its results, which of them are views of which inputs, and inputs it wrote (running statistics).

    ``runs``: how often, on fresh copies: a call that comes again is found in other ways than the first, and runs so.
    """
    _compare_call(case, case.op.op, sample, runs)


def inplace(case: Case, sample: Sample, runs: int = 1) -> None:
    """The in-place method: its result is its input, and every storage it was given ends up as on the CPU."""
    if not isinstance(sample.input, torch.Tensor):
        return
    # What a write to elements that share memory leaves there is not defined; refusing it is.
    overlaps = torch._debug_has_internal_overlap(sample.input) == 1
    if not overlaps or Call(case.op.inplace_variant, sample, CPU).outcome().error is not None:
        _compare_call(case, case.op.inplace_variant, sample, runs, all_storages=True)


def _compare_call(
    case: Case, function: Callable[..., Any], sample: Sample, runs: int, *, all_storages: bool = False
) -> None:
    random = is_random(function, sample)
    settled = SETTLED.get(case.op.full_name, _same)
    cpu = Call(function, sample, CPU)
    expected = cpu.outcome()

    @cache
    def truth() -> Any:
        wide = Call(function, sample, CPU, widen=True)
        return settled(wide.tree, wide()), wide.replica.storages

    for _ in range(runs):
        _compare_run(case, function, sample, cpu, expected, truth, random=random, all_storages=all_storages)


def _compare_run(
    case: Case,
    function: Callable[..., Any],
    sample: Sample,
    cpu: Call,
    expected: Outcome,
    truth: Callable[[], Any],
    *,
    random: bool,
    all_storages: bool,
) -> None:
    values = not random and case.op.name not in UNINITIALISED
    device = Call(function, sample, DEVICE)
    actual = device.outcome()
    if not same_outcome(actual, expected, exact_error=not sample.derived):
        return
    settled = SETTLED.get(case.op.full_name, _same)
    found, wanted = settled(device.tree, actual.value), settled(cpu.tree, expected.value)
    assert_same(found, wanted, case.tolerances, truth=lambda: truth()[0], values=values)
    _assert_same_views(device.replica, actual.value, cpu.replica, expected.value)
    if values:
        pairs = zip(device.replica.storages, cpu.replica.storages, strict=True)
        for index, (a, e) in enumerate(pairs):
            # Of an ``out=`` that is open in part, what counts has been compared.
            if settled is _same and (all_storages or e._version > 0):
                assert_same(a, e, case.tolerances, truth=lambda index=index: truth()[1][index])
    if random:
        again = Call(function, sample, DEVICE).outcome()
        if not identical(_on_cpu(actual.value), _on_cpu(again.value)):
            raise MismatchError("the same seed gave other numbers")


def _assert_same_views(device: Replica, actual: Any, cpu: Replica, expected: Any) -> None:
    def views(replica: Replica, value: Any) -> list[int | None]:
        return [replica.index_of(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]

    if views(device, actual) != views(cpu, expected):
        raise MismatchError(
            f"results lie in the storages of inputs {views(device, actual)}, on CPU {views(cpu, expected)}"
        )


def _on_cpu(value: Any) -> list[Any]:
    return [leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(value)]


def _other_dtype(result: torch.Tensor) -> torch.Tensor:
    """A dtype that structured operators refuse for a floating result and cast into for any other."""
    return torch.zeros(result.shape, dtype=torch.int64 if result.is_floating_point() else torch.float32)


OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fresh": lambda result: torch.full_like(result, 1),
    "empty": lambda result: result.new_empty(0),
    "wrong shape": lambda result: result.new_full((*result.shape, 2), 1),
    "transposed": lambda result: samples.transposed(torch.full_like(result, 1)),
    "sliced": lambda result: samples.sliced(torch.full_like(result, 1)),
    "other dtype": _other_dtype,
}


def out(case: Case, sample: Sample, runs: int = 1) -> None:
    """``out=``: fresh, to be resized, of the wrong shape, strided, and of another dtype."""
    function = case.op.op
    expected = Call(function, sample, CPU).outcome().value
    results = pytree.tree_leaves(expected)
    if not results or not all(isinstance(leaf, torch.Tensor) for leaf in results):
        return
    for name, make in OUTS.items():
        if name in samples.NO_REFERENCE.get(case.op.full_name, ()):
            continue
        made = [make(leaf) for leaf in results]
        buffers = made[0] if isinstance(expected, torch.Tensor) else tuple(made)
        variant = replace(sample, label=f"{sample.label}, out {name}", kwargs={**sample.kwargs, "out": buffers})
        if name == "other dtype":
            # PyTorch's devices refuse with different exceptions, and its CPU kernels some of what the rules allow.
            variant = replace(variant, derived=True)
            castable = all(torch.can_cast(r.dtype, m.dtype) for r, m in zip(results, made, strict=True))
            if castable and Call(function, variant, CPU).outcome().error is not None:
                continue
        try:
            _compare_call(case, function, variant, runs, all_storages=True)
        except MismatchError as mismatch:
            raise MismatchError(f"out={name}: {mismatch}") from mismatch


class _Gradients:
    """The function ``sample → gradients``, with the cotangents of its first call, which is the CPU's."""

    def __init__(self, case: Case, sample: Sample) -> None:
        self.function, self.sample = case.op.op, sample
        self.cotangents: list[torch.Tensor] | None = None

    def __call__(self, input: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
        inputs = [leaf for leaf in pytree.tree_leaves((input, args, kwargs)) if _wants_grad(leaf)]
        result = self.sample.process_output(self.function(input, *args, **kwargs))
        outputs = [leaf for leaf in pytree.tree_leaves(result) if _wants_grad(leaf)]
        if self.cotangents is None:
            self.cotangents = [self._cotangent(output) for output in outputs]
        if not (inputs and outputs):
            return []
        cotangents = [
            Replica(output.device).tensor(cotangent).to(output.dtype)
            for output, cotangent in zip(outputs, self.cotangents, strict=True)
        ]
        return list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))

    def _cotangent(self, output: torch.Tensor) -> torch.Tensor:
        """Random, in the layout the sample's label speaks of: backward kernels must take every layout too."""
        random = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(0))
        layout = samples.LAYOUTS.get(self.sample.label.rpartition(" ")[2])
        changed = layout(random) if layout else random
        return changed if changed.shape == output.shape else random


def _wants_grad(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def backward(case: Case, sample: Sample, runs: int = 1) -> None:
    """Gradients of every differentiable input for random cotangents."""
    gradients = _Gradients(case, sample)
    expected = Call(gradients, sample, CPU).outcome()
    values = case.op.name not in UNINITIALISED and not is_random(case.op.op, sample)

    @cache
    def truth() -> Any:
        return Call(gradients, sample, CPU, widen=True)()

    for _ in range(runs):
        actual = Call(gradients, sample, DEVICE).outcome()
        if same_outcome(actual, expected, exact_error=not sample.derived):
            # Autograd leaves a gradient's strides to the kernel.
            assert_same(actual.value, expected.value, case.tolerances, truth=truth, values=values, strides=False)


def error(case: Case, sample: Sample, error_type: type[Exception] | tuple[type[Exception], ...]) -> None:
    """Bad arguments that CPU PyTorch refuses are refused with the same kind of exception."""
    function = case.op.op
    expected = Call(function, sample, CPU).outcome()
    if not isinstance(expected.error, error_type):
        return
    same_outcome(Call(function, sample, DEVICE).outcome(), expected)
