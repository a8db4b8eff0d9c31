"""Sparse tensors on the device against the CPU: making and reading them, arithmetic, products, gradients, errors."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import outcome
from tests.device.processes import assert_ends_well
from torch import nn
from torch.utils._pytree import tree_leaves

from torch_webgpu.aten.dispatch.fallback import fallback_stats

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*runs on the CPU", "ignore:.*[Ii]nvariant")

INDICES = torch.tensor([[4, 0, 1, 4, 2, 3, 4, 0, 3, 1, 2, 2], [1, 1, 4, 1, 0, 3, 0, 1, 1, 4, 2, 0]])
VALUES = torch.randn(12)
DENSE, SQUARE = torch.randn(5, 6), torch.randn(5, 5)


@pytest.fixture
def no_fallback():
    before = fallback_stats()
    yield
    assert fallback_stats() == before


def coo(place: Any, values: torch.Tensor = VALUES) -> torch.Tensor:
    """A matrix with several elements in some places."""
    return torch.sparse_coo_tensor(INDICES.to(place), values.to(place), (5, 5), check_invariants=False)


LAYOUTS = [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr]


def plain(result: Any) -> list[Any]:
    """Every tensor dense and on the CPU, after its layout's number."""
    return [
        (LAYOUTS.index(t.layout), t.to_dense().detach().cpu()) if isinstance(t, torch.Tensor) else t
        for t in tree_leaves(result)
    ]


def same(device: torch.device, fn: Callable[..., Any], *makers: Callable[[Any], Any]) -> None:
    actual, expected = ([plain(fn(*(make(place) for make in makers)))] for place in (device, "cpu"))
    torch.testing.assert_close(actual, expected, equal_nan=True)


OF_COO: dict[str, Callable[..., Any]] = {
    "to_dense": lambda s, d, q: s.to_dense(),
    "coalesce": lambda s, d, q: (s.coalesce().indices(), s.coalesce().values(), s.coalesce().is_coalesced()),
    "metadata": lambda s, d, q: (s._nnz(), s.is_coalesced(), s.sparse_dim(), s.dense_dim(), s.shape, s.is_sparse),
    "empty": lambda s, d, q: torch.sparse_coo_tensor((3, 4), device=s.device).coalesce(),
    "empty product": lambda s, d, q: torch.sparse_coo_tensor((3, 5), device=s.device) @ d,
    "one element": lambda s, d, q: torch.sparse_coo_tensor([[1], [2]], [3.0], (5, 5), device=s.device) @ d,
    "size from indices": lambda s, d, q: torch.sparse_coo_tensor(s._indices(), s._values(), check_invariants=True),
    "integers": lambda s, d, q: torch.sparse_coo_tensor(s._indices(), (s._values() * 9).long(), (5, 5)).coalesce(),
    "booleans": lambda s, d, q: torch.sparse_coo_tensor(s._indices(), s._values() > 0, (5, 5)).coalesce(),
    "to_sparse": lambda s, d, q: q.relu().to_sparse(),
    "hybrid": lambda s, d, q: (q.to_sparse(1) + q.to_sparse(1) * 2, q + q.to_sparse(1)),
    "conversions": lambda s, d, q: (s.half(), s.to(torch.int32), s.cpu(), s.clone(), s.detach()),
    "copy_": lambda s, d, q: s.clone().copy_(s.t()),
    "zeros": lambda s, d, q: (torch.zeros_like(s), s.clone().zero_()),
    "transpose": lambda s, d, q: (s.t(), s.transpose(0, 1), s.permute(1, 0), s.unsqueeze(0)),
    "cat": lambda s, d, q: torch.cat([s, s.t()], 1),
    "select": lambda s, d, q: (s[1], s.narrow_copy(0, 1, 2)),
    "add": lambda s, d, q: (s + s.t(), torch.add(s, s, alpha=2), s - 2 * s.coalesce(), s.clone().add_(s)),
    "dense plus sparse": lambda s, d, q: (q + s, q.clone().add_(s, alpha=-0.5), q - s),
    "double dense plus sparse": lambda s, d, q: q.double() + s,
    "numbers": lambda s, d, q: (s * 2.5, 2 * s, s / 2, -s, s.clone().mul_(3)),
    "times dense": lambda s, d, q: (s * q, q * s, s * q[:1], s * torch.stack([q, q])),
    "times sparse": lambda s, d, q: s * s.t(),
    "dense times sparse in place": lambda s, d, q: q.clone().mul_(s),
    "functions": lambda s, d, q: (s.relu(), s.sin(), s.abs().sqrt(), s.pow(2), s.tanh(), s.isnan(), s.any(), s.sign()),
    "sums": lambda s, d, q: (s.sum(), torch.sparse.sum(s), torch.sparse.sum(s, 0), torch.sparse.sum(s, [1]), s.sum(1)),
    "norm": lambda s, d, q: (s.norm(), torch.norm(s)),
    "mask": lambda s, d, q: (q.sparse_mask(s.coalesce()), s.sparse_mask(s.t().coalesce())),
    "product": lambda s, d, q: (s @ d, torch.sparse.mm(s, d), torch.mm(s, d), s.t() @ d, q @ s, s @ d[:, 0]),
    "addmm": lambda s, d, q: (torch.addmm(d, s, d, beta=2, alpha=3), torch.sparse.addmm(d, s, d), torch.smm(s, d)),
    "bmm": lambda s, d, q: torch.bmm(torch.stack([q, q.t()]).relu().to_sparse(), torch.stack([d, d])),
    "sparse products": lambda s, d, q: (s @ s.t(), torch.sparse.mm(s, s)),
    "softmax": lambda s, d, q: (torch.sparse.softmax(s, 1), torch.sparse.softmax(s, 0), torch.sparse.log_softmax(s, 1)),
    "softmax of values": lambda s, d, q: torch.sparse.softmax(q.to_sparse(1), 1),
}  # fmt: skip


@pytest.mark.parametrize("fn", OF_COO.values(), ids=OF_COO)
def test_coo(device, fn, no_fallback):
    same(device, fn, coo, DENSE.to, SQUARE.to)


OF_CSR: dict[str, Callable[..., Any]] = {
    "indices": lambda s, d, q: (s.crow_indices(), s.col_indices(), s.values(), s._nnz(), s.shape),
    "conversions": lambda s, d, q: (s.to_sparse(), s.to_sparse_csc(), s.to_sparse_csc().to_sparse_csr()),
    "double": lambda s, d, q: s.double(),
    "made": lambda s, d, q: torch.sparse_csr_tensor(s.crow_indices(), s.col_indices(), s.values(), (5, 5)),
    "of dense": lambda s, d, q: (q.relu().to_sparse_csr(), q.relu().to_sparse_csc(), d[:4].to_sparse_bsr((2, 2))),
    "int32 indices": lambda s, d, q: (
        torch.sparse_csr_tensor(s.crow_indices().int(), s.col_indices().int(), s.values(), (5, 5)) @ d
    ),
    "product": lambda s, d, q: (s @ d, torch.sparse.mm(s, d), torch.mm(s, d), s.t() @ d, q @ s, s @ d[:, 0]),
    "csc product": lambda s, d, q: s.to_sparse_csc() @ d,
    "bsr product": lambda s, d, q: torch.cat([q, q])[:4, :4].to_sparse_bsr((2, 2)) @ d[:4],
    "addmm": lambda s, d, q: (torch.addmm(d, s, d, beta=2, alpha=3), torch.addmv(d[:, 0], s, d[:, 1])),
    "sparse products": lambda s, d, q: s @ s,
    "add": lambda s, d, q: (s + s, q + s, torch.add(s, s, alpha=2)),
    "numbers": lambda s, d, q: (s * 2, -s, s.sin(), s.relu(), s.sum(), s * s),
    "mask": lambda s, d, q: q.sparse_mask(s),
    "sampled": lambda s, d, q: torch.sparse.sampled_addmm(s, q, q, beta=0.5, alpha=2),
    "row": lambda s, d, q: s[1],
    "clone": lambda s, d, q: (s.clone(), s.detach(), s.cpu()),
}


@pytest.mark.parametrize("fn", OF_CSR.values(), ids=OF_CSR)
def test_csr(device, fn, no_fallback):
    same(device, fn, lambda place: coo("cpu").to_sparse_csr().to(place), DENSE.to, SQUARE.to)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64], ids=str)
def test_product_of_other_dtypes(device, dtype, no_fallback):
    values, dense = (VALUES * 8).round(), (DENSE * 8).round()  # whole numbers: any order of additions is exact
    actual = coo(device, values.to(dtype)) @ dense.to(device, dtype)
    if dtype.is_floating_point:  # the CPU has no such product
        expected = (coo("cpu", values) @ dense).to(dtype)
    else:
        expected = coo("cpu", values.to(dtype)) @ dense.to(dtype)
    torch.testing.assert_close(actual.cpu(), expected)


def test_on_cpu_what_has_no_kernel(device):
    same(
        device, lambda s: (s.index_select(0, torch.tensor([1, 2], device=s.device)), torch.hspmm(s, s.to_dense())), coo
    )


WITH_GRADIENTS: dict[str, Callable[..., torch.Tensor]] = {
    "product": lambda s, d: s @ d,
    "sparse.mm": lambda s, d: torch.sparse.mm(s, d),
    "addmm": lambda s, d: torch.sparse.addmm(d, s, d, alpha=2),
    "transposed": lambda s, d: s.t() @ d,
    "to_dense": lambda s, d: s.to_dense() @ d,
    "coalesce": lambda s, d: s.coalesce() * 2,
    "sums": lambda s, d: torch.sparse.sum(s, 0).to_dense() + torch.sparse.sum(s, 1).to_dense() * torch.sparse.sum(s),
    "dense plus sparse": lambda s, d: d[:, :5] + s,
    "sparse product": lambda s, d: torch.sparse.mm(s, s),
    "softmax": lambda s, d: torch.sparse.mm(torch.sparse.softmax(s, 1), d),
    "log_softmax": lambda s, d: torch.sparse.mm(torch.sparse.log_softmax(s, 0), d),
    "to_sparse": lambda s, d: d.to_sparse() * 2,
    "to_sparse_csr": lambda s, d: d.to_sparse_csr() @ d.detach().t(),
}


@pytest.mark.parametrize("fn", WITH_GRADIENTS.values(), ids=WITH_GRADIENTS)
def test_gradients(device, fn):
    def run(place):
        values, dense = (t.to(place, copy=True).requires_grad_() for t in (VALUES, DENSE))
        out = fn(coo(place, values), dense)
        out = out.to_dense() if out.layout != torch.strided else out
        out.sin().sum().backward()
        return plain([out, values.grad, dense.grad])

    torch.testing.assert_close(run(device), run("cpu"))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_gradients_of_sparse_leaves(device, layout):
    def run(place):
        sparse = coo(place).coalesce()
        sparse = (sparse.to_sparse_csr() if layout == torch.sparse_csr else sparse).detach().requires_grad_()
        dense = DENSE.to(place, copy=True).requires_grad_()
        torch.sparse.mm(sparse, dense).sin().sum().backward()
        return plain([sparse.grad, dense.grad])

    torch.testing.assert_close(run(device), run("cpu"))


INF, NAN = float("inf"), float("nan")
REDUCED: dict[str, list[list[float]]] = {
    "rows without elements": [[0, 1, -2, 3], [0, 0, 0, 0], [5, 0, 0, -6], [0, 0, 0, 0]],
    "ties": [[1, 1, 1, 1], [2, 2, 0, 0]],
    "infinities": [[INF, 1, -INF, 2], [-INF, 0, 0, 0]],
    "NaN": [[NAN, 1, NAN, 2], [0, 3, 0, 1]],
    "nothing": [[0, 0, 0, 0]],
}


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin", "max"])
@pytest.mark.parametrize("rows", REDUCED.values(), ids=REDUCED)
def test_products_reduced_otherwise(device, rows, reduce, no_fallback):
    """``torch.sparse.mm(a, b, reduce)``: the backward pass of maxima on the CPU's copies ended the process."""
    dense = torch.tensor([[1.0, -1.0, 2.0], [1.0, 1.0, -3.0], [1.0, 2.0, 0.5], [1.0, -2.0, 4.0]])
    seeds = torch.arange(1.0, 3 * len(rows) + 1).view(-1, 3)

    def run(place: Any, index: torch.dtype) -> Any:
        made = torch.tensor(rows, dtype=torch.float32).to_sparse_csr()
        made = torch.sparse_csr_tensor(
            made.crow_indices().to(index), made.col_indices().to(index), made.values(), made.shape
        )
        sparse, other = (t.to(place, copy=True).requires_grad_() for t in (made, dense))
        out = torch.sparse.mm(sparse, other, reduce)
        gradients = torch.autograd.grad(out, [sparse, other], seeds.to(place))
        assert gradients[0].crow_indices().dtype == index
        return plain([out, gradients[0].values(), gradients[1]])

    for index in (torch.int64, torch.int32):
        torch.testing.assert_close(run(device, index), run("cpu", index), equal_nan=True)


def test_products_reduced_otherwise_in_half_types(device, no_fallback):
    def run(place: Any) -> Any:
        sparse, other = coo("cpu").coalesce().to_sparse_csr().bfloat16().to(place), DENSE.bfloat16().to(place)
        return plain([torch.sparse.mm(sparse, other, reduce) for reduce in ("sum", "mean", "amax")])

    torch.testing.assert_close(run(device), run("cpu"), rtol=1e-2, atol=1e-2)


def test_a_maximum_that_kept_nothing_has_no_backward(device):
    sparse, other = coo("cpu").coalesce().to_sparse_csr().to(device), DENSE.to(device)
    out, kept = torch.ops.aten._sparse_mm_reduce_impl(sparse, other, "amax")
    with pytest.raises(RuntimeError, match="kept nothing for its backward pass"):
        torch.ops.aten._sparse_mm_reduce_impl_backward(sparse, out, other, "amax", kept, [True, True])


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_graph_network_trains_as_on_cpu(device, layout, no_fallback):
    edges, features, labels = torch.randint(0, 30, (2, 120)), torch.randn(30, 8), torch.randint(0, 3, (30,))
    state = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)).state_dict()

    def run(place):
        adjacency = torch.sparse_coo_tensor(edges.to(place), torch.ones(120, device=place), (30, 30)).coalesce()
        degree = torch.sparse.sum(adjacency, 1).to_dense().clamp(min=1)
        adjacency = adjacency * degree.reciprocal()[:, None]
        adjacency = adjacency.to_sparse_csr() if layout == torch.sparse_csr else adjacency
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3))
        model.load_state_dict(state)
        model.to(place)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            hidden = F.relu(model[0](adjacency @ features.to(place)))
            loss = F.cross_entropy(model[1](torch.sparse.mm(adjacency, hidden)), labels.to(place))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert run(device) == pytest.approx(run("cpu"), rel=1e-4)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_with_sparse_gradients(device, optimizer, layer, no_fallback):
    weight = torch.randn(10, 4)

    def run(place):
        embedding = layer.from_pretrained(weight.clone(), freeze=False, sparse=True).to(place)
        steps = optimizer(list(embedding.parameters()))
        for k in range(3):
            steps.zero_grad()
            embedding(torch.tensor([[1, 2, 2], [3, 1, k]], device=place)).sin().sum().backward()
            steps.step()
        assert embedding.weight.grad.layout == torch.sparse_coo
        return plain([embedding.weight, embedding.weight.grad])

    torch.testing.assert_close(run(device), run("cpu"))


def test_gradients_accumulate(device, no_fallback):
    def run(place):
        embedding = nn.Embedding.from_pretrained(DENSE.clone(), freeze=False, sparse=True).to(place)
        for rows in ([1, 2], [2, 2]):
            embedding(torch.tensor(rows, device=place)).sin().sum().backward()
        return plain(embedding.weight.grad)

    torch.testing.assert_close(run(device), run("cpu"))


def test_printing(device):
    for make in (coo, lambda place: coo("cpu").to_sparse_csr().to(place)):
        assert repr(make(device)).split() == repr(make("cpu")).replace("size=", "device='webgpu:0', size=").split()


def test_saving_and_loading(device):
    file = io.BytesIO()
    torch.save([coo(device), coo(device).to_sparse_csr()], file)
    for place in (device, "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        assert {t.device.type for t in loaded} == {torch.device(place).type}
        torch.testing.assert_close(plain(loaded), plain([coo("cpu"), coo("cpu").to_sparse_csr()]))


REFUSED: dict[str, Callable[..., Any]] = {
    "indices out of bounds": lambda s, d, q: torch.sparse_coo_tensor(
        s._indices(), s._values(), (2, 2), check_invariants=True
    ),
    "rows that do not start": lambda s, d, q: torch.sparse_csr_tensor(
        torch.tensor([1, 1, 2], device=s.device), torch.tensor([0, 1], device=s.device), d[0, :2], (2, 2),
        check_invariants=True,
    ),
    "indices of uncoalesced": lambda s, d, q: s.indices(),
    "inner sizes": lambda s, d, q: s @ d[:3],
    "inner sizes of sparse": lambda s, d, q: s @ torch.eye(4, device=s.device).to_sparse(),
    "times double": lambda s, d, q: s @ d.double(),
    "booleans": lambda s, d, q: s.bool() @ d.bool(),
    "sum of shapes": lambda s, d, q: s + torch.eye(4, device=s.device).to_sparse(),
    "dense plus sparse of another shape": lambda s, d, q: q[0] + s,
    "sparse plus dense": lambda s, d, q: s + q,
    "sparse plus a number": lambda s, d, q: s + 1,
    "a number subtracted in place": lambda s, d, q: s.sub_(1),
    "in-place cast": lambda s, d, q: q.long().add_(s),
    "product of shapes": lambda s, d, q: s * torch.eye(4, device=s.device).to_sparse(),
    "reduced by a product": lambda s, d, q: torch.sparse.mm(s.to_sparse_csr(), d, "prod"),
    "reduced product of sizes": lambda s, d, q: torch.sparse.mm(s.to_sparse_csr(), d[:3], "sum"),
    "reduced product of dtypes": lambda s, d, q: torch.sparse.mm(s.to_sparse_csr(), d.half(), "sum"),
    "reduced product of CSC": lambda s, d, q: torch.sparse.mm(s.to_sparse_csc(), d, "amax"),
    "reduced by nothing known": lambda s, d, q: torch.sparse.mm(s.to_sparse_csr(), d, "median"),
    "bmm of sizes": lambda s, d, q: torch.bmm(torch.stack([q, q]).to_sparse(), torch.stack([d, d])[:, :3]),
    "dense optimizer": lambda s, d, q: sparse_adam_refused(s.device),
}  # fmt: skip


def sparse_adam_refused(place: Any) -> None:
    embedding = nn.Embedding(3, 2, sparse=True).to(place)
    embedding(torch.tensor([1], device=place)).sum().backward()
    torch.optim.Adam(embedding.parameters()).step()


@pytest.mark.parametrize("fn", REFUSED.values(), ids=REFUSED)
def test_errors(device, fn):
    expected = outcome(fn, coo("cpu"), DENSE, SQUARE)
    assert isinstance(expected[0], type)
    assert outcome(fn, coo(device), DENSE.to(device), SQUARE.to(device)) == expected


def test_products_across_devices_are_refused(device):
    with pytest.raises(RuntimeError, match="same device"):
        coo(device) @ DENSE


def test_operators_that_no_sparse_tensor_has(device):
    with pytest.raises(NotImplementedError):
        coo(device).cumsum(0)


def test_kernels_are_loaded_with_the_first_sparse_tensor():
    assert_ends_well(
        """
        name = "torch_webgpu.aten.sparse.sparse_kernels"
        torch.ones(2, device="webgpu") + 1
        assert name not in sys.modules
        assert (torch.eye(2, device="webgpu").to_sparse() @ torch.ones(2, device="webgpu")).tolist() == [1, 1]
        assert name in sys.modules
        """
    )
