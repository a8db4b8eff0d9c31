"""``stable-baselines3``: short runs of an algorithm on policies and of one on values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .compare import assert_on, without_fallbacks

stable_baselines3 = pytest.importorskip("stable_baselines3")
LIBRARY = "stable-baselines3"

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {"n_steps": 64, "batch_size": 32, "n_epochs": 2}),
    "A2C": ("CartPole-v1", {"n_steps": 16}),
    "DQN": ("CartPole-v1", {"learning_starts": 32, "batch_size": 16, "train_freq": 4, "target_update_interval": 32}),
    "SAC": ("Pendulum-v1", {"learning_starts": 32, "batch_size": 16, "train_freq": 8}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_learning(tmp_path: Path, name: str) -> None:
    environment, options = ALGORITHMS[name]
    algorithm = getattr(stable_baselines3, name)
    model = algorithm("MlpPolicy", environment, device=DEVICE, seed=0, policy_kwargs={"net_arch": [16]}, **options)
    assert model.device.type == DEVICE.type
    before = [p.detach().clone() for p in model.policy.parameters()]
    with without_fallbacks():
        model.learn(total_timesteps=128)
    assert_on(DEVICE, model.policy.parameters(), name)
    assert model.num_timesteps >= 128
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters()))
    assert all(p.isfinite().all() for p in model.policy.parameters())

    model.save(tmp_path / "kept")
    observation = model.get_env().reset()
    expected, _ = model.predict(observation, deterministic=True)
    for device in (DEVICE, "cpu"):
        loaded = algorithm.load(tmp_path / "kept", device=device)
        assert loaded.device.type == torch.device(device).type
        action, _ = loaded.predict(observation, deterministic=True)
        assert action == pytest.approx(expected, abs=1e-5)
