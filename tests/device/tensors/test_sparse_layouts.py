"""Compressed sparse layouts into each other, and COO tensors of unlike sparse dimensions, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.device.against_cpu import outcome

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*[Ii]nvariant")

GENERATOR = torch.Generator().manual_seed(0)
MATRIX = torch.randn(4, 6, generator=GENERATOR).relu()
OTHER = torch.randn(4, 6, generator=GENERATOR).relu()
HYBRID = torch.randn(4, 6, 2, generator=GENERATOR) * (MATRIX > 0).unsqueeze(2)
BLOCKS = (2, 3)
COMPRESSED: dict[str, tuple[torch.layout, Callable[[torch.Tensor], torch.Tensor]]] = {
    "CSR": (torch.sparse_csr, lambda t: t.to_sparse_csr()),
    "CSC": (torch.sparse_csc, lambda t: t.to_sparse_csc()),
    "BSR": (torch.sparse_bsr, lambda t: t.to_sparse_bsr(BLOCKS)),
    "BSC": (torch.sparse_bsc, lambda t: t.to_sparse_bsc(BLOCKS)),
}


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    return [t.ccol_indices(), t.row_indices(), t.values()]


def made(source: str, kind: str, index: torch.dtype, place: Any) -> torch.Tensor:
    """A compressed tensor: one matrix, a batch of them, or one with a dense dimension."""
    layout, convert = COMPRESSED[source]
    dense = {"matrix": MATRIX, "batch": torch.stack([MATRIX, MATRIX * 2]), "hybrid": HYBRID}[kind]
    if kind == "hybrid":
        blocks = (BLOCKS,) if source in ("BSR", "BSC") else ()
        t = getattr(dense, f"to_sparse_{source.lower()}")(*blocks, dense_dim=1)
    else:
        t = convert(dense)
    starts, plain, values = parts(t)
    tensors = starts.to(place, index), plain.to(place, index), values.to(place)
    return torch.sparse_compressed_tensor(*tensors, t.shape, layout=layout)


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("kind", ["matrix", "batch", "hybrid"])
@pytest.mark.parametrize("target", COMPRESSED)
@pytest.mark.parametrize("source", COMPRESSED)
def test_conversions(device, source, target, kind, index):
    """The same indices, of the same dtype, and values as on the CPU; or its refusal."""

    def convert(place: Any) -> list[torch.Tensor] | torch.layout:
        t = COMPRESSED[target][1](made(source, kind, index, place))
        return [t.layout, t.shape, *(part.cpu() for part in parts(t))]

    expected, actual = outcome(convert, "cpu"), outcome(convert, device)
    assert expected[:2] == actual[:2]
    if isinstance(expected, list):
        for a, e in zip(actual[2:], expected[2:], strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=0)


def test_conversions_to_other_blocks_are_refused_as_on_the_cpu(device):
    for source, method in (("BSC", "to_sparse_bsr"), ("BSR", "to_sparse_bsc")):
        words = [
            outcome(getattr(made(source, "matrix", torch.int64, place), method), (2, 2)) for place in ("cpu", device)
        ]
        assert words[0] == words[1]
        assert isinstance(words[0][0], type)


def nothing(place: Any, sparse_dim: int) -> torch.Tensor:
    return torch.zeros(4, 6, device=place).to_sparse(sparse_dim)


OF_UNLIKE: dict[str, Callable[[Any, int, int], torch.Tensor]] = {
    "add zeros": lambda d, a, b: MATRIX.to(d).to_sparse(a) + nothing(d, b),
    "zeros add": lambda d, a, b: nothing(d, a) + MATRIX.to(d).to_sparse(b),
    "zeros add zeros": lambda d, a, b: nothing(d, a) + nothing(d, b),
    "sub": lambda d, a, b: torch.sub(nothing(d, a), MATRIX.to(d).to_sparse(b), alpha=2),
    "add of another dtype": lambda d, a, b: nothing(d, a).half() + MATRIX.to(d).to_sparse(b),
    "add_": lambda d, a, b: MATRIX.to(d).to_sparse(a).add_(nothing(d, b)),
    "mul": lambda d, a, b: MATRIX.to(d).to_sparse(a) * nothing(d, b),
    "zeros mul": lambda d, a, b: nothing(d, a) * MATRIX.to(d).to_sparse(b),
    "mul_": lambda d, a, b: MATRIX.to(d).to_sparse(a).mul_(nothing(d, b)),
    "mul by a 0-dim one": lambda d, a, b: MATRIX.to(d).to_sparse(a) * torch.tensor(2.0, device=d).to_sparse(),
    "0-dim mul": lambda d, a, b: torch.tensor(2.0, device=d).to_sparse() * MATRIX.to(d).to_sparse(b),
}


@pytest.mark.parametrize("dims", [(1, 1), (1, 2), (2, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("call", OF_UNLIKE.values(), ids=OF_UNLIKE)
def test_sparse_dimensions_that_differ(device, call, dims):
    actual, expected = (call(place, *dims) for place in (device, "cpu"))
    assert actual.sparse_dim() == expected.sparse_dim()
    assert actual.is_coalesced() == expected.is_coalesced()
    for a, e in ((actual._indices(), expected._indices()), (actual._values(), expected._values())):
        torch.testing.assert_close(a.cpu(), e)


def test_elements_of_unlike_sparse_dimensions_are_not_added(device):
    words = [
        outcome(lambda d: MATRIX.to(d).to_sparse(1) + MATRIX.to(d).to_sparse(2), place) for place in ("cpu", device)
    ]
    assert words[0] == words[1]


def test_the_sum_of_coalesced_tensors_is_coalesced(device):
    for other in (OTHER, OTHER * 0):
        sums = [MATRIX.to(place).to_sparse() + other.to(place).to_sparse() for place in ("cpu", device)]
        assert sums[0].is_coalesced()
        assert sums[1].is_coalesced()
        for part in ("indices", "values"):
            torch.testing.assert_close(getattr(sums[1], part)().cpu(), getattr(sums[0], part)())
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,))
    assert not (twice.to(device) + twice.to(device)).is_coalesced()
