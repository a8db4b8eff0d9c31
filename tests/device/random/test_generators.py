"""Generators: seeds, states, copies, files, processes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch


def draw_some(device: torch.device, generator: Any = None) -> list[float]:
    return torch.rand(5, device=device, generator=generator).tolist()


def test_seeds_and_states(device: torch.device) -> None:
    torch.manual_seed(5)
    first, second = draw_some(device), draw_some(device)
    assert first != second
    torch.manual_seed(5)
    assert draw_some(device) == first
    module = getattr(torch, device.type)
    if device.type == "cpu":
        return
    state = module.get_rng_state(device)
    assert draw_some(device) == second
    module.set_rng_state(state, device)
    assert draw_some(device) == second
    module.manual_seed(5)
    assert draw_some(device) == first
    assert module.initial_seed() == 5
    with torch.random.fork_rng(device_type=device.type):
        torch.manual_seed(99)
        draw_some(device)
    assert draw_some(device) == second
    with pytest.raises(TypeError):
        module.set_rng_state(torch.zeros(16), device)
    with pytest.raises(RuntimeError, match="wrong size"):
        module.set_rng_state(torch.zeros(3, dtype=torch.uint8), device)


def test_generators(device: torch.device) -> None:
    generator = torch.Generator(device=device)
    assert isinstance(generator, torch.Generator)
    assert generator.device.type == device.type
    assert generator.manual_seed(3) is generator
    assert generator.initial_seed() == 3
    first = draw_some(device, generator)
    state = generator.get_state()
    second = draw_some(device, generator)
    generator.set_state(state)
    assert draw_some(device, generator) == second
    generator.set_state(state)
    for twin in (pickle.loads(pickle.dumps(generator)), generator.clone_state(), copy.deepcopy(generator)):
        assert twin.device == generator.device
        assert draw_some(device, twin) == second
    assert draw_some(device, generator.manual_seed(3)) == first
    default = torch.rand(3, device=device)
    assert draw_some(device, generator) == second
    assert default.shape == (3,)
    generator.seed()
    assert draw_some(device, generator) != first
    assert torch.randperm(5, device=device, generator=generator).shape == (5,)
    assert torch.randint(3, (5,), device=device, generator=generator).shape == (5,)
    assert torch.zeros(3, device=device).bernoulli_(0.5, generator=generator).shape == (3,)
    assert torch.normal(0.0, 1.0, (3,), device=device, generator=generator).shape == (3,)
    for parameters in ((default,), (default, 1.0), (1.0, default), (default, default)):
        made = torch.normal(*parameters, generator=generator.manual_seed(3))
        assert torch.equal(torch.normal(*parameters, generator=generator.manual_seed(3)), made)
        assert not torch.equal(torch.normal(*parameters, generator=generator), made)
    if device.type == "webgpu":
        with pytest.raises(RuntimeError, match="device type for generator"):
            torch.rand(3, device=device, generator=torch.Generator())
    assert torch.Generator().device.type == "cpu"
    assert isinstance(torch.default_generator, torch.Generator)


def test_unseeded_processes_differ_and_seeded_ones_agree(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about this backend's seeds")

    def run(prefix: str) -> str:
        program = f"import torch\nimport torch_webgpu\n{prefix}\nprint(torch.rand(3, device='webgpu').tolist())"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120, env=os.environ
        )
        return done.stdout.strip()

    torch.manual_seed(1)
    here = str(torch.rand(3, device=device).tolist())
    assert run("torch.manual_seed(1)") == here
    assert run("") != here


def test_like_variants(device: torch.device) -> None:
    x = torch.ones(4, 3, device=device).t()
    for like in (
        torch.rand_like(x),
        torch.randn_like(x, dtype=torch.float16),
        torch.randint_like(x, 5),
        torch.randint_like(x, 2, 5),
    ):
        assert like.stride() == x.stride()
        assert like.device == x.device
    assert torch.rand(0, device=device).shape == (0,)
    assert 0 <= torch.rand((), device=device).item() < 1


# Canary: fails when PyTorch gives Python backends a hook for generators (see torch_constructors.generator_constructor).


def test_generators_still_have_no_python_hook() -> None:
    assert not [name for name in dir(torch._C._acc.PrivateUse1Hooks) if "generator" in name.lower()]
