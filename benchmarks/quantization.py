"""What packed weights cost in quality: the GPT-2 of ``examples/web.py``, on text that it did not learn.

python benchmarks/quantization.py --steps 1000
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import web

HELD_OUT = 64 * web.CONTEXT
WEIGHTS = {"int8": ("int8", 32), "int4, groups of 32": ("int4", 32), "int4, groups of 64": ("int4", 64)}


@torch.no_grad()
def logits_of(model: nn.Module, batches: Tensor) -> Tensor:
    """The logits [n, context, vocabulary] of batches of tokens [n, context]."""
    return torch.cat([model(input_ids=part).logits for part in batches.split(16)])


def perplexity(logits: Tensor, batches: Tensor) -> float:
    return math.exp(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batches[:, 1:].flatten()).item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cpu", help="what it is trained on; it is measured on the CPU")
    options = parser.parse_args()
    torch.manual_seed(0)
    text = web.prose()
    tokenizer = web.tokenizer_of(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    model, _ = web.trained_gpt2(ids[:-HELD_OUT], options.device, options.steps)
    batches = ids[-HELD_OUT:].view(-1, web.CONTEXT)
    exact = logits_of(model, batches)
    print(f"logits up to {exact.abs().max():.1f}, with a standard deviation of {exact.std():.2f}")
    print(f"float32: perplexity {perplexity(exact, batches):.2f}")
    for name, (dtype, group) in WEIGHTS.items():
        logits = logits_of(torch.webgpu.quantize_(copy.deepcopy(model), dtype, group_size=group), batches)
        agreement = (logits.argmax(-1) == exact.argmax(-1)).float().mean()
        error = (logits - exact).abs().max()
        print(f"{name}: perplexity {perplexity(logits, batches):.2f}, logit error {error:.2f}, {agreement:.1%} agree")


if __name__ == "__main__":
    main()
