"""A small GPT learns a text by heart and recites it, in eager mode and compiled, side by side.

The text is the Zen of Python. The model is trained for a minute or less, then generates character by character with a
cache of keys and values: once in eager mode and once through ``torch.compile``, which makes one plan of a step.

    python examples/generate.py                     # device="webgpu"
    python examples/generate.py --device cuda       # any other PyTorch device
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 2, 96, 8
LEARNED_LOSS = 0.5


def zen() -> str:
    """The Zen of Python, as its module spells it."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


class Attention(nn.Module):
    """Causal attention; with a cache, of one new character to all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Tensor | None, place: Tensor | None) -> Tensor:
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=2))
        if cache is None or place is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            cache[0].index_copy_(2, place, k)
            cache[1].index_copy_(2, place, v)
            known = torch.arange(CONTEXT, device=x.device) <= place
            y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=known)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, cache: Tensor | None, place: Tensor | None) -> Tensor:
        x = x + self.attention(self.norms[0](x), cache, place)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, tokens: Tensor, caches: Tensor | None = None, place: Tensor | None = None) -> Tensor:
        """Logits of the next characters. ``caches``: (layer, key or value, batch, head, place, channel), written."""
        places = torch.arange(tokens.shape[1], device=tokens.device) if place is None else place
        x = self.tokens(tokens) + self.places(places)
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number], place)
        return self.head(self.norm(x))


@dataclass
class Recital:
    """What was generated, and how fast."""

    text: str
    per_second: float
    first_s: float


def learn(model: GPT, text: Tensor, steps: int, progress: Progress) -> float:
    """Trains the model on random stretches of the text; the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    task = progress.add_task("learning", total=steps)
    loss = torch.zeros(())
    for _ in range(steps):
        starts = torch.randint(0, len(text) - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(task)
    return loss.item()


@torch.no_grad()
def recite(step: Callable[..., Tensor], text: Tensor, alphabet: str, name: str, progress: Progress) -> Recital:
    """Goes on from the text's first characters, always with the likeliest next one."""
    device = text.device
    caches = torch.zeros(LAYERS, 2, 1, HEADS, CONTEXT, WIDTH // HEADS, device=device)
    places = torch.arange(CONTEXT, device=device)
    given = 16
    task = progress.add_task(name, total=CONTEXT - 1)
    found = [text[:1].view(1, 1)]
    start, first_s = time.perf_counter(), 0.0
    for n in range(CONTEXT - 1):
        logits = step(found[-1], caches, places[n : n + 1])
        found.append(text[n + 1].view(1, 1) if n + 1 < given else logits[:, -1:].argmax(2))
        if n == given:  # what came before compiled
            found[-1].cpu()
            first_s, start = time.perf_counter() - start, time.perf_counter()
        progress.advance(task)
    tokens = torch.cat(found, 1)[0].tolist()
    seconds = time.perf_counter() - start
    return Recital("".join(alphabet[t] for t in tokens), (CONTEXT - 2 - given) / seconds, first_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="webgpu", help="any PyTorch device (webgpu)")
    parser.add_argument("--steps", type=int, default=400, help="of training (400)")
    options = parser.parse_args()
    if options.device.startswith("webgpu"):
        import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own it does not load by itself
    torch.manual_seed(0)
    console = Console()
    source = zen()
    alphabet = "".join(sorted(set(source)))
    text = torch.tensor([alphabet.index(c) for c in source], device=options.device)
    model = GPT(len(alphabet)).to(options.device)
    columns = TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        loss = learn(model, text, options.steps, progress)
        model.eval()
        eager = recite(model, text, alphabet, "eager", progress)
        compiled = recite(torch.compile(model), text, alphabet, "compiled", progress)
    console.print(compiled.text, style="italic", highlight=False)
    table = Table("", "characters a second", "until the 17th character")
    for name, found in (("eager", eager), ("compiled", compiled)):
        table.add_row(name, f"{found.per_second:.0f}", f"{found.first_s:.1f} s")
    console.print(table)
    same = eager.text == compiled.text
    console.print(f"loss {loss:.3f}; eager and compiled recite {'the same' if same else 'DIFFERENT TEXTS'}")
    return int(not same or (options.steps >= 400 and loss > LEARNED_LOSS))


if __name__ == "__main__":
    sys.exit(main())
