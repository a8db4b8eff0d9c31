"""Wrong calls of einsum, einops, indexing and shaping: the device says at least what the CPU says.

That is an error of the CPU's type, in its words; or in more: an index out of range is found when a kernel runs, so that
its error names the operator, too, and how to find the line.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, einsum

einops = pytest.importorskip("einops", reason="einops is an extra of the tests")
pack, rearrange, reduce, repeat, unpack = (
    getattr(einops, name) for name in ("pack", "rearrange", "reduce", "repeat", "unpack")
)


def t(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def i(device: torch.device, *values: int) -> Tensor:
    return torch.tensor(values, device=device)


CALLS: dict[str, Callable[[torch.device], object]] = {
    # einsum
    "einsum dims": lambda d: einsum("ij,jk->ik", t(d, 2, 3), t(d, 4, 5)),
    "einsum count": lambda d: einsum("ij,jk->ik", t(d, 2, 3)),
    "einsum too many operands": lambda d: einsum("ij->i", t(d, 2, 3), t(d, 2, 3)),
    "einsum rank low": lambda d: einsum("ijk->i", t(d, 2, 3)),
    "einsum rank high": lambda d: einsum("i->i", t(d, 2, 3)),
    "einsum unknown output": lambda d: einsum("ij->k", t(d, 2, 3)),
    "einsum repeated output": lambda d: einsum("ij->ii", t(d, 2, 3)),
    "einsum bad char": lambda d: einsum("i!->i", t(d, 2, 3)),
    "einsum repeated dims": lambda d: einsum("ii->i", t(d, 2, 3)),
    "einsum no operands": lambda d: einsum("ij->i"),
    "einsum ellipsis": lambda d: einsum("i..j->ij", t(d, 2, 3)),
    "einsum two ellipses": lambda d: einsum("...i...->i", t(d, 2, 3)),
    "einsum ellipsis broadcast": lambda d: einsum("...i,...i->...", t(d, 2, 3), t(d, 5, 3)),
    "einsum sublist range": lambda d: einsum(t(d, 2, 3), [0, 60], [0]),
    "einsum sublist rank": lambda d: einsum(t(d, 2, 3), [0], [0]),
    "einsum sublist type": lambda d: einsum(t(d, 2, 3), ["a"], [0]),
    "einsum dtypes": lambda d: einsum("ij,jk->ik", t(d, 2, 3), t(d, 3, 4, dtype=torch.int64)),
    "einsum arrow": lambda d: einsum("ij->i->j", t(d, 2, 3)),
    # einops
    "rearrange mismatch": lambda d: rearrange(t(d, 2, 3), "a b c -> a b c"),
    "rearrange split": lambda d: rearrange(t(d, 2, 5), "a (b c) -> a b c", b=2),
    "rearrange ambiguous": lambda d: rearrange(t(d, 2, 6), "a (b c) -> a b c"),
    "rearrange unknown axis": lambda d: rearrange(t(d, 2, 3), "a b -> a c"),
    "rearrange missing axis": lambda d: rearrange(t(d, 2, 3), "a b -> a"),
    "rearrange pattern": lambda d: rearrange(t(d, 2, 3), "a b"),
    "rearrange anonymous": lambda d: rearrange(t(d, 2, 3), "a b -> a b 3"),
    "rearrange length": lambda d: rearrange(t(d, 2, 3), "a b -> b a", b=4),
    "reduce undefined": lambda d: reduce(t(d, 2, 3), "a b -> a c", "sum"),
    "reduce unknown": lambda d: reduce(t(d, 2, 3), "a b -> a", "summ"),
    "reduce mean int": lambda d: reduce(t(d, 2, 3, dtype=torch.int64), "a b -> a", "mean"),
    "repeat missing size": lambda d: repeat(t(d, 2, 3), "a b -> a b c"),
    "repeat dropped": lambda d: repeat(t(d, 2, 3), "a b -> a c", c=2),
    "einops einsum dims": lambda d: einops.einsum(t(d, 2, 3), t(d, 4, 5), "a b, b c -> a c"),
    "einops einsum count": lambda d: einops.einsum(t(d, 2, 3), "a b, b c -> a c"),
    "einops einsum output": lambda d: einops.einsum(t(d, 2, 3), "a b -> c"),
    "pack shapes": lambda d: pack([t(d, 2, 3), t(d, 4, 5)], "a *"),
    "pack rank": lambda d: pack([t(d, 2)], "a b *"),
    "unpack size": lambda d: unpack(t(d, 2, 5), [(3,), (3,)], "a *"),
    "unpack unknown": lambda d: unpack(t(d, 2, 5), [(-1,), (-1,)], "a *"),
    # indexing and shaping
    "index int": lambda d: t(d, 2, 3)[2],
    "index negative": lambda d: t(d, 2, 3)[-3],
    "index second": lambda d: t(d, 2, 3)[:, 3],
    "index too many": lambda d: t(d, 2, 3)[0, 0, 0],
    "index 0-dim": lambda d: t(d)[0],
    "index float": lambda d: t(d, 2, 3)[1.5],
    "index float tensor": lambda d: t(d, 2, 3)[t(d, 2)],
    "index step": lambda d: t(d, 2, 3)[::-1],
    "index step zero": lambda d: t(d, 2, 3)[::0],
    "index mask shape": lambda d: t(d, 2, 3)[t(d, 3, dtype=torch.bool)],
    "index mask second": lambda d: t(d, 2, 3)[:, t(d, 2, dtype=torch.bool)],
    "index broadcast": lambda d: t(d, 4, 5)[i(d, 0, 1), i(d, 0, 1, 2)],
    "index tensor too many": lambda d: t(d, 4)[i(d, 0), i(d, 0)],
    "index out of range": lambda d: t(d, 4, 5)[i(d, 0, 4)].cpu(),
    "index second out of range": lambda d: t(d, 4, 5)[:, i(d, 0, -6)].cpu(),
    "index put out of range": lambda d: t(d, 4, 5).index_put_((i(d, 7),), t(d)).cpu(),
    "index assign shape": lambda d: t(d, 4, 5).__setitem__(slice(0, 2), t(d, 3)),
    "index assign range": lambda d: t(d, 4, 5).__setitem__(4, 0),
    "index assign tensor shape": lambda d: t(d, 4, 5).__setitem__(i(d, 0, 1), t(d, 3, 5)),
    "mask assign count": lambda d: t(d, 4).__setitem__(t(d, 4).bool().logical_not(), t(d, 3)),
    "index_select dim": lambda d: t(d, 2, 3).index_select(2, i(d, 0)),
    "index_select rank": lambda d: t(d, 2, 3).index_select(0, i(d, 0)[None]),
    "index_select dtype": lambda d: t(d, 2, 3).index_select(0, t(d, 1)),
    "index_select range": lambda d: t(d, 2, 3).index_select(1, i(d, 3)).cpu(),
    "index_add range": lambda d: t(d, 2, 3).index_add(0, i(d, 2), t(d, 1, 3)).cpu(),
    "index_add shape": lambda d: t(d, 2, 3).index_add(0, i(d, 0, 1), t(d, 3, 3)),
    "index_copy range": lambda d: t(d, 2, 3).index_copy(0, i(d, 5), t(d, 1, 3)).cpu(),
    "index_copy shape": lambda d: t(d, 2, 3).index_copy(0, i(d, 0), t(d, 1, 4)),
    "index_fill range": lambda d: t(d, 2, 3).index_fill(0, i(d, 5), 1.0).cpu(),
    "gather dim": lambda d: t(d, 2, 3).gather(2, i(d, 0)[None]),
    "gather rank": lambda d: t(d, 2, 3).gather(0, i(d, 0)),
    "gather size": lambda d: t(d, 2, 3).gather(1, t(d, 3, 1, dtype=torch.int64)),
    "gather dtype": lambda d: t(d, 2, 3).gather(1, t(d, 2, 1)),
    "gather range": lambda d: t(d, 2, 3).gather(1, i(d, 3)[None]).cpu(),
    "scatter range": lambda d: t(d, 2, 3).scatter(1, i(d, 3)[None], 1.0).cpu(),
    "scatter rank": lambda d: t(d, 2, 3).scatter(1, i(d, 0), t(d, 2, 3)),
    "scatter size": lambda d: t(d, 2, 3).scatter(1, t(d, 2, 4, dtype=torch.int64), t(d, 2, 3)),
    "scatter dtype": lambda d: t(d, 2, 3).scatter(1, i(d, 0)[None], t(d, 2, 3, dtype=torch.int32)),
    "scatter_add range": lambda d: t(d, 2, 3).scatter_add(1, i(d, -1)[None], t(d, 2, 3)).cpu(),
    "scatter_reduce reduce": lambda d: t(d, 2, 3).scatter_reduce(1, i(d, 0)[None], t(d, 2, 3), "summ"),
    "take range": lambda d: t(d, 2, 3).take(i(d, 6)).cpu(),
    "take dtype": lambda d: t(d, 2, 3).take(t(d, 1)),
    "put range": lambda d: t(d, 2, 3).put_(i(d, 6), t(d, 1)).cpu(),
    "take_along_dim": lambda d: torch.take_along_dim(t(d, 2, 3), i(d, 0), 1),
    "narrow start": lambda d: t(d, 2, 3).narrow(1, 4, 1),
    "narrow length": lambda d: t(d, 2, 3).narrow(1, 1, 3),
    "narrow negative": lambda d: t(d, 2, 3).narrow(1, 1, -1),
    "select range": lambda d: t(d, 2, 3).select(1, 3),
    "select dim": lambda d: t(d, 2, 3).select(2, 0),
    "split sizes": lambda d: t(d, 2, 3).split([1, 1], 1),
    "split negative": lambda d: t(d, 2, 3).split(-1, 1),
    "split dim": lambda d: t(d, 2, 3).split(1, 2),
    "chunk zero": lambda d: t(d, 2, 3).chunk(0),
    "chunk 0-dim": lambda d: t(d).chunk(2),
    "tensor_split": lambda d: t(d, 2, 3).tensor_split(0),
    "hsplit": lambda d: t(d, 2, 3).hsplit(2),
    "unbind dim": lambda d: t(d, 2, 3).unbind(2),
    "expand": lambda d: t(d, 2, 3).expand(2, 4),
    "expand fewer": lambda d: t(d, 2, 3).expand(3),
    "view": lambda d: t(d, 2, 3).view(4),
    "view strides": lambda d: t(d, 2, 3).t().view(6),
    "reshape two": lambda d: t(d, 2, 3).reshape(-1, -1),
    "permute": lambda d: t(d, 2, 3).permute(0, 0),
    "permute rank": lambda d: t(d, 2, 3).permute(0),
    "transpose": lambda d: t(d, 2, 3).transpose(0, 2),
    "t": lambda d: t(d, 2, 3, 4).t(),
    "squeeze dim": lambda d: t(d, 2, 3).squeeze(2),
    "unsqueeze dim": lambda d: t(d, 2, 3).unsqueeze(4),
    "unflatten": lambda d: t(d, 2, 6).unflatten(1, (4, 2)),
    "flip dim": lambda d: t(d, 2, 3).flip(2),
    "roll": lambda d: t(d, 2, 3).roll((1, 2), 0),
    "repeat": lambda d: t(d, 2, 3).repeat(2),
    "movedim": lambda d: t(d, 2, 3).movedim(0, 2),
    "diagonal": lambda d: t(d, 2, 3).diagonal(0, 1, 1),
    "unfold": lambda d: t(d, 2, 3).unfold(1, 4, 1),
    "matmul": lambda d: t(d, 2, 3) @ t(d, 4, 5),
    "matmul vector": lambda d: t(d, 2, 3) @ t(d, 4),
    "matmul batch": lambda d: t(d, 2, 3, 4) @ t(d, 3, 4, 5),
    "matmul 0-dim": lambda d: t(d) @ t(d, 3),
    "matmul dtype": lambda d: t(d, 2, 3) @ t(d, 3, 2, dtype=torch.int64),
    "mm": lambda d: torch.mm(t(d, 2, 3), t(d, 2, 3)),
    "mm rank": lambda d: torch.mm(t(d, 2, 3, 1), t(d, 2, 3)),
    "bmm": lambda d: torch.bmm(t(d, 2, 3, 4), t(d, 3, 4, 5)),
    "bmm rank": lambda d: torch.bmm(t(d, 3, 4), t(d, 3, 4, 5)),
    "mv": lambda d: torch.mv(t(d, 2, 3), t(d, 2)),
    "dot": lambda d: torch.dot(t(d, 2), t(d, 3)),
    "dot rank": lambda d: torch.dot(t(d, 2, 2), t(d, 3)),
    "addmm": lambda d: torch.addmm(t(d, 5), t(d, 2, 3), t(d, 3, 4)),
    "linear": lambda d: torch.nn.functional.linear(t(d, 2, 3), t(d, 4, 5)),
    "linear bias": lambda d: torch.nn.functional.linear(t(d, 2, 3), t(d, 4, 3), t(d, 5)),
    "add shapes": lambda d: t(d, 2, 3) + t(d, 2, 4),
    "where shapes": lambda d: torch.where(t(d, 2, 3).bool(), t(d, 4), t(d, 1)),
    "cat shapes": lambda d: torch.cat([t(d, 2, 3), t(d, 2, 4)]),
    "cat ranks": lambda d: torch.cat([t(d, 2, 3), t(d, 2)]),
    "cat dim": lambda d: torch.cat([t(d, 2, 3)], 2),
    "cat none": lambda d: torch.cat([]),
    "cat 0-dim": lambda d: torch.cat([t(d), t(d)]),
    "stack shapes": lambda d: torch.stack([t(d, 2, 3), t(d, 2, 4)]),
    "stack none": lambda d: torch.stack([]),
    "stack dim": lambda d: torch.stack([t(d, 2)], 3),
    "hstack": lambda d: torch.hstack([t(d, 2, 3), t(d, 3, 3)]),
    "embedding range": lambda d: torch.nn.functional.embedding(i(d, 5), t(d, 4, 3)).cpu(),
    "embedding dtype": lambda d: torch.nn.functional.embedding(t(d, 2), t(d, 4, 3)),
    "one_hot": lambda d: torch.nn.functional.one_hot(i(d, 5), 3).cpu(),
    "one_hot negative": lambda d: torch.nn.functional.one_hot(i(d, -1), 3).cpu(),
    "cross_entropy range": lambda d: torch.nn.functional.cross_entropy(t(d, 2, 3), i(d, 0, 3)).cpu(),
    "cross_entropy batch": lambda d: torch.nn.functional.cross_entropy(t(d, 2, 3), i(d, 0)),
    "masked_select shape": lambda d: t(d, 2, 3).masked_select(t(d, 4).bool()),
    "masked_fill shape": lambda d: t(d, 2, 3).masked_fill(t(d, 4).bool(), 0.0),
    "masked_scatter few": lambda d: t(d, 4).masked_scatter(t(d, 4).bool().logical_not(), t(d, 2)).cpu(),
    "sum dim": lambda d: t(d, 2, 3).sum(2),
    "sum dims": lambda d: t(d, 2, 3).sum((0, 0)),
    "amax empty": lambda d: t(d, 0, 3).amax(0),
    "argmax empty": lambda d: t(d, 0).argmax(),
    "sort dim": lambda d: t(d, 2, 3).sort(2),
    "topk": lambda d: t(d, 2, 3).topk(4),
    "kthvalue": lambda d: t(d, 2, 3).kthvalue(4),
    "cumsum dim": lambda d: t(d, 2, 3).cumsum(2),
    "softmax dim": lambda d: t(d, 2, 3).softmax(2),
    "bincount": lambda d: torch.bincount(i(d, -1, 2)).cpu(),
    "searchsorted": lambda d: torch.searchsorted(t(d, 2, 3), t(d, 3, 3)),
    "repeat_interleave": lambda d: torch.repeat_interleave(t(d, 3), i(d, 1, 2)),
}

IN_OTHER_WORDS = {
    "index second out of range": "index: index -6 is out of bounds for dimension 1 with size 5",
    "index_select range": "index_select: index 3 is out of bounds for dimension 1 with size 3",
    "embedding range": "embedding: index 5 is out of bounds for dimension 0 with size 4",
}
"""Where the CPU does not say which index is out of range, or of which dimension, or names the wrong one."""


def error_of(call: Callable[[torch.device], object], device: torch.device) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever the CPU raises
        call(device)
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call(device: torch.device, name: str) -> None:
    on_cpu, on_device = (error_of(CALLS[name], place) for place in (torch.device("cpu"), device))
    assert isinstance(on_device, type(on_cpu)), on_device
    words = IN_OTHER_WORDS.get(name, str(on_cpu))
    said = str(on_device).replace(f"{device.type}FloatType", "torch.FloatTensor")
    if words != said:
        assert words.removeprefix("index_copy_(): ") in said
        hint = "kernels run after the line that asked for them: with TORCH_WEBGPU_DEBUG=where that line raises this"
        assert hint in said
        assert name.split(" ")[0].removesuffix("_dim").replace("cross_entropy", "nll_loss") in said
