"""Groups of PyTorch's ``FakeProcessGroup``: a rank of a thousand, of which no other is there."""

from __future__ import annotations

import pytest
from tests.device.processes import assert_ends_well

PRELUDE = """
import warnings
warnings.simplefilter("ignore")  # of names that PyTorch gives up
from torch import distributed as dist, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch_webgpu.distributed.timeline import watching
ranks = 1024
dist.init_process_group("fake", rank=3, world_size=ranks, store=FakeStore())
def collectives(seen):
    assert {t.transport for t in seen} == {"fake"}
    assert {(t.rank, t.size) for t in seen} == {(3, ranks)}
    return [t.collective for t in seen]
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to("webgpu")
x = torch.randn(2, 8).to("webgpu")
"""
COLLECTIVES = """
x = torch.full((3,), 2.0, device="webgpu")
with watching() as seen:
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() and work.is_completed()
    whole = torch.empty(3 * ranks, device="webgpu")
    dist.all_gather_into_tensor(whole, x)
    dist.broadcast(x, 0)
assert collectives(seen) == ["all_reduce", "all_reduce", "all_gather_into_tensor", "broadcast"]
assert x.tolist() == [2, 2, 2]
assert (whole == 2).all().item()  # as the fake backend has it: every rank's part is this one's
"""
DDP = """
from torch.nn.parallel import DistributedDataParallel
expected = [g.cpu() for g in torch.autograd.grad(layers(x).sum(), layers.parameters())]
model = DistributedDataParallel(layers, bucket_cap_mb=0.0002)
for _ in range(2):  # the first orders the buckets
    model(x).sum().backward()
    model.zero_grad()
with watching() as seen:
    model(x).sum().backward()
assert len(seen) >= 2 and set(collectives(seen)) == {"all_reduce"}, collectives(seen)
for p, gradient in zip(layers.parameters(), expected, strict=True):
    torch.testing.assert_close(p.grad.cpu() * ranks, gradient)
"""
FSDP = """
from torch.distributed.fsdp import fully_shard
for layer in layers[0], layers[2]:
    fully_shard(layer)
fully_shard(layers)
optimizer = torch.optim.SGD(layers.parameters(), 0.1)
before = layers[0].weight.to_local().cpu()
with watching() as seen:
    layers(x).sum().backward()
    optimizer.step()
assert collectives(seen).count("all_gather_into_tensor") >= 2, collectives(seen)
assert collectives(seen).count("reduce_scatter_tensor") == 2, collectives(seen)
assert layers[0].weight.to_local().shape == (1, 8)  # the third row: 16 rows are on as many ranks
assert layers[2].bias.to_local().numel() == 1
"""


@pytest.mark.parametrize("body", [COLLECTIVES, DDP, FSDP], ids=["collectives", "DDP", "FSDP2"])
def test_a_rank_of_1024(body: str) -> None:
    assert_ends_well(PRELUDE + body, TORCH_CPP_LOG_LEVEL="ERROR")
