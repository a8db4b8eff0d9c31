"""Checkpoints in other files, of objects with states of their own, and whole ones."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.test_ddp import batch, network, own, reference, train
from tests.distributed.test_sharding import assert_same, mesh, sharded, whole
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.nn.functional import mse_loss

DEVICE = "webgpu"
pytestmark = pytest.mark.slow


def folder() -> str:
    """One for all ranks."""
    made: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made, 0)
    return str(made[0])


@on_ranks
def test_files_of_hugging_face() -> None:
    pytest.importorskip("safetensors")
    where, model = folder(), sharded(network().to(DEVICE), mesh=mesh())
    train(model, *map(own, batch()))
    writer = dcp.HuggingFaceStorageWriter(where, save_distributed=True)
    dcp.save(get_model_state_dict(model), storage_writer=writer)
    other = sharded(network().to(DEVICE), mesh=mesh())
    state = get_model_state_dict(other)
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(where))
    set_model_state_dict(other, state)
    assert_same(other, reference())


@on_ranks
def test_one_file_of_a_checkpoint() -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    where, model = folder(), sharded(network().to(DEVICE), mesh=mesh())
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{where}/parts")
    if dist.get_rank() == 0:
        dcp_to_torch_save(f"{where}/parts", f"{where}/whole")
        assert torch.equal(torch.load(f"{where}/whole")["0.weight"].cpu(), network()[0].weight.detach())


@on_ranks
def test_objects_with_states() -> None:
    class Training:
        def __init__(self) -> None:
            self.model = sharded(network().to(DEVICE), mesh=mesh())
            self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)

        def state_dict(self) -> dict[str, Any]:
            model, optimizer = get_state_dict(self.model, self.optimizer)
            return {"model": model, "optimizer": optimizer}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            set_state_dict(
                self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )

    def step(training: Training) -> None:
        x, y = map(own, batch())
        training.optimizer.zero_grad()
        mse_loss(training.model(x), y).backward()
        training.optimizer.step()

    where, first, second = folder(), Training(), Training()
    step(first)
    dcp.save({"training": first}, checkpoint_id=where)
    dcp.load({"training": second}, checkpoint_id=where)
    step(first)
    step(second)
    for p, q in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(whole(p), whole(q))
