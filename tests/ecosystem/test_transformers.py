"""``transformers``: a forward and a backward pass of each architecture."""

from __future__ import annotations

import pytest

from .architectures import ARCHITECTURES, parameters
from .compare import assert_same_step

pytest.importorskip("transformers")
LIBRARY = "transformers"


@pytest.mark.parametrize("name", parameters(ARCHITECTURES))
def test_forward_and_backward(name: str) -> None:
    architecture = ARCHITECTURES[name]
    assert_same_step(architecture.model(), architecture.batch())
