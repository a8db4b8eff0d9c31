"""Products in 16 bits that are padded to whole runs for tensor cores: against the CPU, and what programs see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.linalg.matrices_emulated import NVIDIA
from torch._dynamo.backends.common import aot_autograd

from torch_webgpu.compile import cross_entropy, padded_products
from torch_webgpu.compile.matching import aten

ROWS, WORDS, FEATURES = 16, 37, 24
NAME = "padded product"


@pytest.fixture(autouse=True)
def pads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an adapter with tensor cores; products of any size."""
    monkeypatch.setattr(padded_products, "MIN_WORK", 1)
    monkeypatch.setattr(padded_products, "config_for", lambda *_: NVIDIA)


def padded(fn: Callable[..., Any], *tensors: torch.Tensor) -> tuple[int, Any]:
    """How many products compiling pads, and what the compiled function gives."""
    torch._dynamo.reset()
    before = torch.webgpu.compile_stats().patterns.get(NAME, 0)
    found = torch.compile(fn)(*tensors)
    return torch.webgpu.compile_stats().patterns.get(NAME, 0) - before, found


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_training_step_of_a_language_model(dtype: torch.dtype) -> None:
    """All three products of the scores are padded: their own lines, the sum of one gradient, the rows of the other."""
    torch.manual_seed(0)
    x, w, t = torch.randn(2, ROWS // 2, FEATURES), torch.randn(WORDS, FEATURES), torch.randint(0, WORDS, (ROWS,))

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x.to(dtype), w.to(dtype))
        return F.cross_entropy(scores.float().view(-1, WORDS), t)

    gradients = []
    for device in ("webgpu", "cpu"):
        leaves = [v.detach().to(device).requires_grad_() for v in (x, w)]
        target = t.to(device)
        if device == "webgpu":
            count, value = padded(loss, *leaves, target)
            assert count == 3
        else:
            value = loss(*leaves, target)
        value.backward()
        gradients.append([value.detach(), *(leaf.grad for leaf in leaves)])
    for found, expected in zip(*gradients, strict=True):
        close(found, expected)
        assert found.stride() == expected.stride()


def test_batches_of_any_length() -> None:
    """How many rows is a symbol; the others are padded, and batches of other lengths are no new graphs."""

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x.half(), w.half())
        return F.cross_entropy(scores.float().view(-1, WORDS), t)

    torch._dynamo.reset()
    before = torch.webgpu.compile_stats().patterns.get(NAME, 0)
    run = torch.compile(loss, dynamic=True)
    torch.manual_seed(0)
    w = torch.randn(WORDS, FEATURES)
    for length in (8, 5, 11):
        x, t = torch.randn(2, length, FEATURES), torch.randint(0, WORDS, (2 * length,))
        gradients = []
        for device, fn in (("webgpu", run), ("cpu", loss)):
            leaves = [v.detach().to(device).requires_grad_() for v in (x, w)]
            value = fn(*leaves, t.to(device))
            value.backward()
            gradients.append([value.detach(), *(leaf.grad for leaf in leaves)])
        for found, expected in zip(*gradients, strict=True):
            close(found, expected)
            assert found.stride() == expected.stride()
    assert torch.webgpu.compile_stats().patterns.get(NAME, 0) - before == 3


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("sizes", [(16, 16, 13), (13, 16, 16), (16, 13, 16), (13, 11, 9)], ids=str)
def test_every_line(sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    m, n, k = sizes
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    a, b = (x.t().contiguous() if is_turned else x for x, is_turned in zip((a, b), turned, strict=True))

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a.t() if turned[0] else a) @ (b.t() if turned[1] else b)).relu()

    count, found = padded(product, a.to("webgpu"), b.to("webgpu"))
    inner = [m if turned[0] else k, k if turned[1] else n, n]
    assert count == any(size % 8 for size in inner)
    close(found, product(a, b))


def test_what_a_program_sees_lies_as_it_did() -> None:
    """A product that is returned is not padded, nor one that is looked at through its strides."""
    a, b = torch.randn(16, 16).half().to("webgpu"), torch.randn(16, 13).half().t().contiguous().to("webgpu")
    for fn in (
        lambda a, b: a @ b.t(),
        lambda a, b: (a @ b.t()).view(4, 4, 13),
        lambda a, b: torch.as_strided(a @ b.t(), (13,), (16,)) * 2,
        lambda a, b: (a @ b.t()).view(-1) * 2,
    ):
        count, found = padded(fn, a, b)
        expected = fn(a.cpu(), b.cpu())
        assert count == 0
        assert found.stride() == expected.stride()
        close(found, expected)


def test_views_of_padded_scores() -> None:
    a, b = torch.randn(16, 16).half(), torch.randn(13, 16).half()

    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = (a @ b.t()).view(2, 8, 13)
        return scores.transpose(0, 1) + 1, scores[:, 2:5, 3:].sum(-1), scores[..., -1].exp(), scores.softmax(-1)

    count, found = padded(fn, a.to("webgpu"), b.to("webgpu"))
    assert count == 1
    for one, other in zip(found, fn(a, b), strict=True):
        assert one.stride() == other.stride()
        close(one, other)


def test_small_products_and_other_types_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(16, 13, device="webgpu"), torch.randn(13, 16, device="webgpu")
    assert padded(torch.mm, a, b)[0] == 0
    monkeypatch.setattr(padded_products, "MIN_WORK", 1 << 20)
    assert padded(torch.mm, a.half(), b.half())[0] == 0


def joint_graph(monkeypatch: pytest.MonkeyPatch, loss: Callable[..., Any], *leaves: torch.Tensor) -> Any:
    """The joint graph of a loss once its products are padded; its gradients are computed, too."""
    graphs = []
    apply = padded_products.apply

    def noted(gm: Any) -> dict[str, int]:
        changed = apply(gm)
        graphs.append(gm.graph)
        return changed

    monkeypatch.setattr(padded_products, "apply", noted)
    torch._dynamo.reset()
    torch.compile(loss)(*leaves).backward()
    (graph,) = graphs
    return graph


def targets(graph: Any, *operators: Any) -> list[Any]:
    return [node for node in graph.nodes if node.target in operators]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_scores_are_computed_in_whole_lines(
    monkeypatch: pytest.MonkeyPatch, reduction: str, weighted: bool
) -> None:
    """The loss sums whole lines, and nothing but the weight is copied to be padded."""
    torch.manual_seed(0)
    x, w = torch.randn(ROWS, FEATURES), torch.randn(WORDS, FEATURES)
    t, classes = torch.randint(0, WORDS, (ROWS,)), torch.rand(WORDS)
    t[3] = -100

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x.half(), w.half()).float()
        weight = classes.to(x.device) if weighted else None
        return F.cross_entropy(scores, t.to(x.device), weight, reduction=reduction)

    gradients = []
    for device in ("webgpu", "cpu"):
        leaves = [v.detach().to(device).requires_grad_() for v in (x, w)]
        if device == "webgpu":
            graph = joint_graph(monkeypatch, loss, *leaves)
        else:
            loss(*leaves).backward()
        gradients.append([leaf.grad for leaf in leaves])
    (total,) = targets(graph, cross_entropy.LOG_SUM_EXP)
    whole = -(-WORDS // 8) * 8
    assert total.args[0].meta["val"].shape == (ROWS, whole)
    assert [node.meta["val"].shape for node in targets(graph, aten.cat.default)] == [(whole, FEATURES)]
    for one, other in zip(*gradients, strict=True):
        close(one, other)


def test_what_further_columns_do_not_hold_zeros_for_is_masked() -> None:
    x, w, u = (torch.randn(n, FEATURES).half() for n in (ROWS, WORDS, WORDS))

    def chain(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return ((x @ w.t()).float().sub(1).exp().half() @ u).relu()

    count, found = padded(chain, *(v.to("webgpu") for v in (x, w, u)))
    assert count == 2
    close(found / 100, chain(x, w, u) / 100)


@pytest.mark.parametrize("rows", [(1,), (8, 1), (2, 8, 1), (2, 1, 1), (1, WORDS)], ids=str)
def test_operands_of_other_rows(rows: tuple[int, ...]) -> None:
    """Scores as a batch of matrices, with what is broadcast along one of their dimensions."""
    torch.manual_seed(0)
    x, w, u, scale = (torch.randn(*n).half() for n in ((ROWS, FEATURES), (WORDS, FEATURES), (WORDS, FEATURES), rows))

    def chain(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        scores = (x @ w.t()).view(2, ROWS // 2, WORDS).float() * scale
        return (scores.half().view(ROWS, WORDS) @ u).relu()

    count, found = padded(chain, *(v.to("webgpu") for v in (x, w, u, scale)))
    assert count == 2
    close(found / 10, chain(x, w, u, scale) / 10)


def test_operands_that_are_symbols() -> None:
    torch.manual_seed(0)
    w, u = torch.randn(WORDS, FEATURES).half(), torch.randn(WORDS, FEATURES).half()

    def chain(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (((x @ w.t()).float() * x.shape[0]).half() @ u).relu()

    torch._dynamo.reset()
    before = torch.webgpu.compile_stats().patterns.get(NAME, 0)
    run = torch.compile(chain)
    for rows in (16, 11):
        x = torch.randn(rows, FEATURES).half()
        on_gpu = x.to("webgpu")
        torch._dynamo.mark_dynamic(on_gpu, 0)
        close(run(on_gpu, w.to("webgpu"), u.to("webgpu")) / 100, chain(x, w, u) / 100)
    assert torch.webgpu.compile_stats().patterns.get(NAME, 0) - before == 2


def test_losses_of_parts_of_rows() -> None:
    """Two losses a row of the product: it has no lines of theirs."""
    torch.manual_seed(0)
    x, w, t = torch.randn(8, FEATURES), torch.randn(2 * WORDS, FEATURES), torch.randint(0, WORDS, (16,))

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x.half(), w.half()).view(16, WORDS).float(), t)

    gradients = []
    for device in ("webgpu", "cpu"):
        leaves = [v.detach().to(device).requires_grad_() for v in (x, w)]
        torch._dynamo.reset()
        run = torch.compile(loss) if device == "webgpu" else loss
        run(*leaves, t.to(device)).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for one, other in zip(*gradients, strict=True):
        close(one, other)


def test_rows_that_are_not_finite_leave_others_alone() -> None:
    torch.manual_seed(0)
    x, w, t = torch.randn(ROWS, FEATURES), torch.randn(WORDS, FEATURES), torch.randint(0, WORDS, (ROWS,))
    x[2], x[5, 0] = torch.inf, torch.nan

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x.half(), w.half()).float(), t, reduction="sum")

    gradients = []
    for device in ("webgpu", "cpu"):
        leaf = x.detach().to(device).requires_grad_()
        run = torch.compile(loss) if device == "webgpu" else loss
        run(leaf, w.to(device), t.to(device)).backward()
        gradients.append(leaf.grad.cpu())
    found, expected = gradients
    assert torch.equal(found.isnan(), expected.isnan())
    close(found.nan_to_num(), expected.nan_to_num())


def test_products_share_the_copy_of_a_weight() -> None:
    """Of a weight and of its transpose's transpose."""
    x, w = torch.randn(ROWS, FEATURES).half().to("webgpu"), torch.randn(WORDS, FEATURES).half().to("webgpu")
    graphs = []

    def noted(gm: Any, *_: Any) -> Any:
        padded_products.apply(gm)
        graphs.append(gm.graph)
        return gm.forward

    def both(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        turned = w.t()
        return (x @ turned).relu() @ turned.t()

    torch._dynamo.reset()
    torch.compile(both, backend=aot_autograd(fw_compiler=noted))(x, w)
    (graph,) = graphs
    assert len([node for node in targets(graph, aten.cat.default) if node.args[0][0].op == "placeholder"]) == 1
