"""Checkpoints that two ranks save and four load, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.ranks import Ranks, on_ranks
from tests.distributed.test_ddp import batch, network, own, train
from tests.distributed.test_sharding import sharded
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

DEVICE = "webgpu"
WIDTH = 30
"""Its layers are not of as many rows as can be divided by four."""


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    """Four processes in a group, with an adapter each."""
    four = Ranks(4, TORCH_WEBGPU_COPIES="4")
    yield four
    four.stop()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def made(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A sharded model and its optimizer, after a few steps."""
    optimizers = []

    def noted(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(adam(parameters))
        return optimizers[0]

    model = network(WIDTH)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(seed)
    model = sharded(model.to(DEVICE), mesh=init_device_mesh(DEVICE, (dist.get_world_size(),)))
    train(model, *map(own, batch()), noted)
    return model, optimizers[0]


def whole(value: Any) -> Any:
    """A state on the CPU, with tensors that are not sharded."""
    if isinstance(value, dict):
        return {name: whole(v) for name, v in value.items()}
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


@on_ranks
def saved(folder: str, is_async: bool) -> None:
    """Trains and saves; rank 0 writes down what was to be saved. Training goes on while an asynchronous save runs."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = made()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    if dist.get_rank() == 0:
        Path(folder).mkdir()
    expected = whole(state)
    if is_async:
        saving = dcp.async_save(state, checkpoint_id=Path(folder) / "state")
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
        saving.result()
    else:
        dcp.save(state, checkpoint_id=Path(folder) / "state")
    if dist.get_rank() == 0:
        torch.save(expected, Path(folder) / "expected")


@on_ranks
def loaded(folder: str) -> None:
    """Loads into another model on other ranks: its state is what was saved, bit for bit."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = made(seed=1)
    ours = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(ours, checkpoint_id=Path(folder) / "state")
    set_state_dict(model, optimizer, model_state_dict=ours["model"], optim_state_dict=ours["optimizer"])
    ours = whole(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)))
    expected = torch.load(Path(folder) / "expected")
    assert ours["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert ours["model"].keys() == expected["model"].keys()
    for name, t in expected["model"].items():
        assert torch.equal(ours["model"][name], t), name
        for key, of_optimizer in expected["optimizer"]["state"][name].items():
            assert torch.equal(ours["optimizer"]["state"][name][key], of_optimizer), (name, key)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("saving", [2, 4])
def test_other_numbers_of_ranks(ranks: Ranks, four_ranks: Ranks, tmp_path: Path, saving: int, is_async: bool) -> None:
    of = {2: ranks, 4: four_ranks}
    folder = str(tmp_path / "checkpoint")
    of[saving].run(__name__, "saved", {"folder": folder, "is_async": is_async})
    of[6 - saving].run(__name__, "loaded", {"folder": folder})
