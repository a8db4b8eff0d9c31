"""Models in web pages: draw a digit, generate text, train a network.

Trains the first two here, exports all of them, and serves the pages.

Nothing is downloaded. The digits are scikit-learn's; the text is what Python says of itself, docstrings and its
language reference, which a small GPT-2 learns in pieces of words. Both train in minutes on the CPU, or on any device.

    python examples/web.py                  # train, export to out/web, serve on http://localhost:8000
    python examples/web.py --pages digits   # one of digits, text, training
    python examples/web.py --device webgpu --text-steps 4000 --no-serve
"""

from __future__ import annotations

import argparse
import ast
import http.server
import math
import platform
import re
import shutil
import sysconfig
import time
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from digits import Digits, load, network
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

PAGES = Path(__file__).parent / "web"
SHARED = ("index.html", "style.css", "icon.svg", "load.js")
BATCH = 96
WIDTH, HEADS, LAYERS, CONTEXT, TEXT_BATCH, VOCABULARY, LEARNING_RATE = 128, 4, 4, 128, 16, 2048, 3e-3
MODULES = """argparse ast asyncio calendar collections configparser contextlib copy csv dataclasses datetime decimal
difflib dis doctest email enum fractions functools glob gzip heapq html http inspect io ipaddress itertools json logging
mailbox multiprocessing numbers operator optparse os pathlib pdb pickle platform pprint profile queue random re sched
selectors shelve shlex shutil smtplib socket sqlite3 ssl statistics string subprocess tarfile tempfile textwrap
threading timeit tokenize trace traceback types typing unittest urllib uuid warnings wave weakref xml zipfile""".split()


def varied(images: Tensor) -> Tensor:
    """Images [n, 1, 8, 8], each turned, stretched and moved a little: people draw differently."""
    n = len(images)
    angle, shear = 0.2 * torch.randn(n), 0.15 * torch.randn(n)
    width, height = 1 + 0.15 * torch.randn(n), 1 + 0.1 * torch.randn(n)
    across, down = 0.1 * torch.randn(n), 0.05 * torch.randn(n)
    first = torch.stack([width * angle.cos(), shear - angle.sin(), across], dim=1)
    second = torch.stack([angle.sin(), height * angle.cos(), down], dim=1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    return (F.grid_sample(images, grid, align_corners=False) * (1 + 0.15 * torch.randn(n, 1, 1, 1))).clamp(0, 1)


def digits_page(folder: Path, device: str, epochs: int) -> str:
    """Trains the network of ``examples/digits.py`` on varied digits, and exports it with its softmax."""
    torch.manual_seed(0)
    data = load()
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    steps = epochs * -(-len(data.train_labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(epochs):
        for indices in torch.randperm(len(data.train_labels)).split(BATCH):
            images, labels = varied(data.train_images[indices]).to(device), data.train_labels[indices].to(device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model = model.cpu().eval()
    with torch.no_grad():
        accuracy = (model(data.test_images).argmax(1) == data.test_labels).float().mean().item()
    report = torch.webgpu.export(
        nn.Sequential(model, nn.Softmax(-1)).eval(), data.test_images[:1], folder, input_names=["image"],
        output_names=["probabilities"], page=PAGES / "digits", metadata={"title": "Draw a digit", "accuracy": accuracy},
    )  # fmt: skip
    return f"{accuracy:.1%} of held-out digits\n{report}"


def prose() -> str:
    """What Python says of itself, a paragraph a line: the docstrings of its standard library, its language reference
    as ``help()`` has it, and the docstrings of PyTorch's modules and functions.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    folders = [p for name in MODULES for p in (library / f"{name}.py", *sorted((library / name).glob("*.py")))]
    for path in [*folders, *sorted((Path(torch.__file__).parent / "nn" / "modules").glob("*.py"))]:
        if path.is_file():
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    texts += re.split(r"\n\s*\n", ast.get_docstring(node) or "")
    for text in [*topics.values(), *[str(f.__doc__ or "") for f in vars(torch).values() if callable(f)]]:
        texts += re.split(r"\n\s*\n", text)
    paragraphs = [" ".join(text.split()) for text in dict.fromkeys(texts)]
    return "\n".join([p for p in dict.fromkeys(paragraphs) if is_prose(p)]) + "\n"


def is_prose(text: str) -> bool:
    """Whether a paragraph is sentences, and neither code nor a table."""
    words = re.findall(r"[A-Za-z']+", text)
    return (
        len(text) > 60 and text.isascii() and text[0].isupper() and text[-1] in ".!?" and ">>>" not in text
        and sum(map(len, words)) + len(words) > 0.88 * len(text)
    )  # fmt: skip


def tokenizer_of(text: str) -> Tokenizer:
    """Pieces of words (byte-pair encoding of bytes) that are frequent in a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def trained_gpt2(ids: Tensor, device: str, steps: int) -> tuple[Any, float | None]:
    """A small GPT-2 that learned the tokens ``ids`` [n], on the CPU; and its loss, a mean of the last steps' if there
    were any.
    """
    sizes = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": CONTEXT, "vocab_size": VOCABULARY}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)  # there is more text than it can learn
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=None, eos_token_id=None)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    recent = torch.zeros((), device=device)
    for step in range(steps):
        rate = min(1, (step + 1) / 100) * (0.52 + 0.48 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        starts = torch.randint(0, len(ids) - CONTEXT, (TEXT_BATCH, 1))
        batch = ids[starts + torch.arange(CONTEXT)].to(device)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # In place: a new small tensor a step would lie between large freed ones, and the heap would grow to gigabytes.
        recent.lerp_(loss.detach(), max(1 / 50, 1 / (step + 1)))
        if step % 100 == 99:
            print(f"  text: step {step + 1} of {steps}, loss {recent.item():.2f}", flush=True)
    return model.cpu().eval(), recent.item() if steps else None


def text_page(folder: Path, device: str, steps: int) -> str:
    """Trains a small GPT-2 on pieces of words, and exports it for ``model.generate``, with its tokenizer."""
    torch.manual_seed(0)
    text = prose()
    tokenizer = tokenizer_of(text)
    start = time.perf_counter()
    model, final = trained_gpt2(torch.tensor(tokenizer.encode(text).ids), device, steps)
    seconds = time.perf_counter() - start
    trained = (
        f"{len(text) / 1e6:.1f} million characters: the docstrings of Python {platform.python_version()}'s standard "
        f"library, its language reference, and the docstrings of PyTorch {torch.__version__.partition('+')[0]}; "
        f"{steps:,} steps in {seconds:.0f} s on {'the CPU' if device == 'cpu' else device}"
    )
    numbers = sum(p.numel() for p in model.parameters())
    metadata = {"title": "A small GPT-2", "trained": trained, "loss": final, "parameters": numbers}
    report = torch.webgpu.export_generation(
        model, folder, max_length=CONTEXT, prefill=(1, 8), eos_token_id=[], tokenizer=tokenizer, page=PAGES / "text",
        metadata=metadata,
    )  # fmt: skip
    return f"trained on {trained}{'' if final is None else f', loss {final:.2f}'}\n{report}"


class Training:
    """The network of ``examples/digits.py`` with the digits beside it on the GPU, as programs of a page."""

    def __init__(self, data: Digits) -> None:
        torch.manual_seed(0)
        self.data = data
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, capturable=True)

    def train(self, indices: Tensor, learning_rate: Tensor) -> dict[str, Tensor]:
        """A step over the training digits ``indices`` [batch] in int64."""
        group = self.optimizer.param_groups[0]
        before, group["lr"] = group["lr"], learning_rate
        self.model.train()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.data.train_images[indices]), self.data.train_labels[indices])
        loss.backward()
        self.optimizer.step()
        group["lr"] = before
        return {"loss": loss}

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        """How many of the held-out digits are read right, and what each is read as."""
        self.model.eval()
        read = self.model(self.data.test_images).argmax(1)
        return {"accuracy": (read == self.data.test_labels).float().mean(), "read": read}

    def samples(self) -> dict[str, Tensor]:
        """The held-out digits, for people to look at."""
        return {"images": self.data.test_images.squeeze(1), "labels": self.data.test_labels}


def training_page(folder: Path) -> str:
    data = load()
    training = Training(data)
    count = len(data.train_labels)
    programs: dict[str, Any] = {
        "train": (training.train, (torch.arange(BATCH), torch.tensor(1e-2))),
        "evaluate": (training.evaluate, ()),
        "samples": (training.samples, ()),
    }
    report = torch.webgpu.export(
        None, None, folder, programs=programs, page=PAGES / "training",
        state={"model": training.model, "optimizer": training.optimizer, "data": vars(data)},
        metadata={"title": "Training in the page", "count": count, "batch": BATCH},
    )  # fmt: skip
    return f"{count} digits to learn from\n{report}"


def serve(folder: Path, port: int) -> None:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("localhost", port), handler) as server:
        print(f"http://localhost:{port}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/web"))
    parser.add_argument(
        "--pages", nargs="+", choices=("digits", "text", "training"), default=["digits", "training", "text"]
    )
    parser.add_argument("--device", default="cpu", help="what trains here (default: cpu)")
    parser.add_argument("--epochs", type=int, default=40, help="over the digits")
    parser.add_argument("--text-steps", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--no-serve", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        shutil.copyfile(PAGES / name, options.folder / name)
    make = {
        "digits": lambda folder: digits_page(folder, options.device, options.epochs),
        "text": lambda folder: text_page(folder, options.device, options.text_steps),
        "training": training_page,
    }
    for name in options.pages:
        print(f"{name}: {make[name](options.folder / name)}", flush=True)
    if not options.no_serve:
        serve(options.folder, options.port)


if __name__ == "__main__":
    main()
