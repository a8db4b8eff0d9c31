"""Data that the tests make: sentences with a rule in them, and scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import Dataset

from .architectures import LENGTH, VOCABULARY


class CountingSentences(Dataset):
    """Sentences whose tokens count upwards from a random one: what comes next can be learned."""

    def __init__(self, count: int) -> None:
        start = torch.randint(4, VOCABULARY, (count, 1), generator=torch.Generator().manual_seed(2))
        self.ids = 4 + (start + torch.arange(LENGTH)) % (VOCABULARY - 4)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def digits(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of handwritten digits, float32 (count, 1, 8, 8) from 0 to 1, and what they show, int64 (count,)."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = torch.tensor(loaded.images[:count], dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(loaded.target[:count], dtype=torch.int64)


def assert_learned(losses: Sequence[float]) -> None:
    """Asserts that the last losses are well below the first."""
    assert losses[-1] < 0.8 * losses[0], losses
