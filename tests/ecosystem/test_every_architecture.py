"""``transformers``: every architecture, eager and compiled: forward, backward, training in bfloat16, generation.

One is in every run, and all of them with ``--full``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE
from torch.utils._pytree import tree_leaves

from .compare import assert_on, to
from .every_architecture import accepted, batch_of, decoders, model_of, names

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
LIBRARY = "transformers"
QUICK = ["gpt2"]
TOKENS = 8
REFUSED = {
    "fnet": "torch.fft knows no bfloat16, and autocast leaves it as it is, as on CUDA",
    "inkling_text": "fills a bfloat16 mask with float32's least number, as it would on CUDA",
}
"""What does not run under autocast in bfloat16 on any GPU."""
DRAWING = ("vit_mae", "vits")
"""What draws random numbers in evaluation, too: other ones on each device."""
UNUSED_DROPOUT = ("pegasus_x",)
"""What draws random numbers for a result that nobody reads: AOTAutograd removes it, so that later numbers differ."""
Results = tuple[list[torch.Tensor], dict[str, torch.Tensor]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """They are many: without ``--full`` not even collected, and skipped."""
    found = decoders() if metafunc.function is test_generated_tokens else names()
    metafunc.parametrize("name", found if metafunc.config.getoption("full") else QUICK)


def floats(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def step(model: torch.nn.Module, run: Any, batch: dict[str, torch.Tensor]) -> Results:
    """The first results, and the gradients of the first one's mean square."""
    outputs = floats(run(**batch))[:3]
    if outputs[0].requires_grad:
        outputs[0].float().square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return [t.detach() for t in outputs], gradients


def assert_close(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], tolerance: float) -> None:
    """Within ``tolerance`` of the largest number among all of them."""
    pairs = [(a.detach().cpu().double(), b.detach().cpu().double()) for a, b in zip(found, expected, strict=True)]
    largest = max([b.nan_to_num(0, 0, 0).abs().max().item() for _, b in pairs if b.numel()], default=0.0)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * max(largest, 1e-6), equal_nan=True)


def assert_same(found: Results, expected: Results, tolerance: float) -> None:
    """Gradients of what has none but in one of them are nothing: compiled graphs return zeros for unused results."""
    assert_close(found[0], expected[0], tolerance)
    alike = found[1].keys() & expected[1].keys()
    assert alike == expected[1].keys()
    assert_close([found[1][n] for n in alike], [expected[1][n] for n in alike], 10 * tolerance)


def test_forward_and_backward(name: str) -> None:
    """On the device as on the CPU, eager and compiled."""
    if name in DRAWING:
        pytest.skip("draws random numbers in evaluation, too")
    model = model_of(name, "AutoModel").eval()
    batch = batch_of(model)
    expected = accepted(lambda: step(model, model, batch))
    there = copy.deepcopy(model).to(DEVICE)
    assert_on(DEVICE, there.parameters(), name)
    torch._dynamo.reset()
    for run in (there, torch.compile(there)):
        assert_same(step(there, run, to(batch, DEVICE)), expected, 2e-3)


def test_training_in_half_precision(name: str) -> None:
    """Compiled as eager, with dropout, in bfloat16, for sentences of several lengths."""
    model = model_of(name, "AutoModel").train()
    batch = batch_of(model)
    if name in REFUSED:
        pytest.skip(REFUSED[name])
    with torch.autocast("cpu", torch.bfloat16):
        accepted(lambda: step(model, model, batch))
    if name in UNUSED_DROPOUT:
        without_dropout(model)
    model.to(DEVICE)
    assert_on(DEVICE, model.parameters(), name)
    state, results = copy.deepcopy(model.state_dict()), []
    torch._dynamo.reset()
    for run in (model, torch.compile(model)):
        model.load_state_dict(state)
        torch.manual_seed(0)
        with torch.autocast("webgpu", torch.bfloat16):
            results.append([step(model, run, to(shortened(batch, n), DEVICE)) for n in (12, 9, 11)])
    for eager, compiled in zip(*results, strict=True):
        assert_same(compiled, eager, 2e-2)


def without_dropout(model: torch.nn.Module) -> None:
    """The probabilities of the model and its modules become zero."""
    for module in model.modules():
        for attribute in [a for a in vars(module) if a == "p" or "dropout" in a]:
            if isinstance(getattr(module, attribute), float):
                setattr(module, attribute, 0.0)


def shortened(batch: dict[str, torch.Tensor], n: int) -> dict[str, torch.Tensor]:
    return {k: v[:, :n] if k in ("input_ids", "attention_mask") else v for k, v in batch.items()}


def test_generated_tokens(name: str) -> None:
    """Token for token as on the CPU, from a cache that grows, and from one that does not, which compiles by itself."""
    model = model_of(name, "AutoModelForCausalLM").eval()
    torch.manual_seed(3)
    ids = torch.randint(3, 100, (2, 10))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    static = {**options, "cache_implementation": "static"}
    there = copy.deepcopy(model).to(DEVICE)
    assert_on(DEVICE, there.parameters(), name)
    torch._dynamo.reset()
    for ways in (options, static):
        expected = accepted(lambda ways=ways: model.generate(**batch, **ways, disable_compile=True))
        assert torch.equal(there.generate(**to(batch, DEVICE), **ways).cpu(), expected)
