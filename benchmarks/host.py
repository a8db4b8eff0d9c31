"""What eager programs cost the host, counted: ``python benchmarks/host.py``, a table, or JSON lines with ``--json``.

Small models run on Dawn's null adapter, which validates everything and computes nothing, and on the CPU with one
thread. Of a step in steady state are counted: operations recorded, calls of Python functions and of C's from Python,
flushes, plans that were there and plans made anew, and dispatches. These are the same on every machine, however busy,
with the same versions of Python and libraries. Beside them are the times that a step takes the program's thread, on
either device in turns: of those only the ratio means anything, and on a quiet machine.

A step ends with ``flush_batch()``, where a program would read its loss or its token: values are never read, since the
null adapter has none. Counts are taken with the timer off that flushes idle threads (``--delay`` turns it on), and
without the garbage collector, so that nothing but the program decides what is flushed when. Each model has a process of
its own. Needs wgpudawn, and transformers for all but the MLP.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
from _harness import Device, environment, print_rows
from torch import nn

Step = Callable[[], Any]

STEADY = 6
"""So many steps in a row make no plan anew where a program is in steady state."""
MOST_WARM_UP = 60
COUNTED = 16
ROUNDS = 5
"""How often each device is timed, in turns, over so many steps as are counted."""
MAX_CACHE_LENGTH = 256


@dataclass(frozen=True)
class Model:
    """``step`` is counted and timed; ``restart``, before a few of them, is not."""

    forward: Step
    device: torch.device
    restart: Step = lambda: None

    def step(self) -> None:
        """To the end of the submission; the result lives until then."""
        result = self.forward()
        if self.device.type == "webgpu":
            torch.webgpu.flush_batch()  # type: ignore[attr-defined]
        del result


def trained(model: nn.Module, device: torch.device, loss: Callable[[], torch.Tensor]) -> Model:
    """A training step with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return Model(step, device)


def mlp(device: torch.device) -> Model:
    """Training of eight linear layers of 64 features, a batch of 32."""
    layers = [layer for _ in range(7) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 10)).to(device)
    x, labels = torch.randn(32, 64).to(device), torch.randint(0, 10, (32,)).to(device)
    return trained(model, device, lambda: nn.functional.cross_entropy(model(x), labels))


def gpt2(device: torch.device) -> Model:
    """Training of GPT-2 with twelve layers of 32 features, two sequences of 16 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=12, n_embd=32, n_head=2, vocab_size=128, n_positions=64, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device)
    model.loss_type = "ForCausalLM"
    tokens = torch.randint(0, 128, (2, 16)).to(device)
    return trained(model, device, lambda: model(input_ids=tokens, labels=tokens, return_dict=False)[0])


def bert(device: torch.device) -> Model:
    """Inference of BERT with twelve layers of 32 features, two sequences of 16 tokens."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 12, "num_attention_heads": 2}
    model = BertModel(BertConfig(**sizes, vocab_size=128)).to(device).eval()
    tokens = torch.randint(0, 128, (2, 16)).to(device)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=tokens, return_dict=False)[0]

    return Model(step, device)


def qwen2(device: torch.device) -> Model:
    """Decoding of a token by Qwen2 with 24 layers of 64 features and a static cache."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 24, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**sizes, **heads, max_position_embeddings=2 * MAX_CACHE_LENGTH, tie_word_embeddings=True)
    model = Qwen2ForCausalLM(config).to(device).eval()
    cache = StaticCache(config=config, max_cache_len=MAX_CACHE_LENGTH)
    token = torch.zeros(1, 1, dtype=torch.long).to(device)

    def restart() -> None:
        for layer in cache.layers:  # which count on the device what they hold
            if layer.is_initialized:
                layer.cumulative_length.zero_()

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=token, past_key_values=cache, use_cache=True, return_dict=False)[0]

    return Model(step, device, restart)


MODELS: dict[str, Callable[[torch.device], Model]] = {
    "mlp-training": mlp,
    "gpt2-training": gpt2,
    "bert": bert,
    "qwen2-decoding": qwen2,
}


@dataclass(frozen=True)
class Counts:
    """Of one step."""

    operations: int
    python_calls: int
    c_calls: int
    flushes: int
    plan_hits: int
    plan_misses: int
    dispatches: int


@dataclass(frozen=True)
class Figures:
    """Of one model: the counts of a step, and what it takes either device."""

    model: str
    counts: Counts
    webgpu_ms: float
    cpu_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float


def use_null_adapter() -> Device:
    """Makes Dawn's null adapter ``webgpu:0``, of this process."""
    from torch_webgpu.runtime import dawn, runtime

    runtime.adapters = lambda: [dawn.IMPLEMENTATION.null()]
    return Device.of("webgpu")


def begin(model: Model) -> None:
    """A few steps of the round that follows: what they leave in memory is where it will be after each step."""
    model.restart()
    for _ in range(STEADY):
        model.step()


def warm_up(model: Model) -> None:
    """Runs until no plan is made anew. RuntimeError where that does not come to pass."""
    from torch_webgpu.engine.record import engine

    plans, calm, misses = engine().plans, 0, -1
    begin(model)
    for _ in range(MOST_WARM_UP):
        model.step()
        calm = calm + 1 if plans.misses == misses else 0
        misses = plans.misses
        if calm == STEADY:
            return
    raise RuntimeError(f"plans are still made anew after {MOST_WARM_UP} steps")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, whose moments depend on all that the process has done, and without the looks for
    new signal handlers, which come by the clock.
    """
    from torch_webgpu.engine import interrupt

    gc.collect()
    gc.disable()
    seconds, interrupt.LOOK_S = interrupt.LOOK_S, 3600.0
    try:
        yield
    finally:
        interrupt.LOOK_S = seconds
        gc.enable()


def calls(step: Step) -> dict[str, int]:
    """How often Python functions are called in this thread, generators resumed included, and C's from Python."""
    events: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        events[event] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    # Without the step's own call, and the one that ends the counting.
    return {"python_calls": events["call"] - 1, "c_calls": events["c_call"] - 1}


def recorded(step: Step) -> dict[str, int]:
    """What the engine does in a step."""
    from torch_webgpu.engine.record import engine

    plans, look_up = engine().plans, engine().plans.look_up
    flushed: list[tuple[int, Any]] = []

    def noted(recording: Any, *arguments: Any) -> Any:
        cached = look_up(recording, *arguments)
        flushed.append((len(recording.ops), cached))
        return cached

    hits, misses = plans.hits, plans.misses
    plans.look_up = noted  # type: ignore[method-assign]
    try:
        step()
    finally:
        del plans.look_up
    return {
        "operations": sum(size for size, _ in flushed),
        "flushes": len(flushed),
        "plan_hits": plans.hits - hits,
        "plan_misses": plans.misses - misses,
        "dispatches": sum(len(cached.executable.plan.steps) for _, cached in flushed if cached.executable),
    }


def counts(model: Model) -> Counts:
    """The medians of some steps: now and then one also asks how far the GPU is."""
    with undisturbed():
        steps: list[dict[str, int]] = []
        for count in (calls, recorded):
            begin(model)
            steps = [{**step, **count(model.step)} for step in steps or [{}] * COUNTED]
    return Counts(**{name: statistics.median_low(step[name] for step in steps) for name in steps[0]})


def thread_ms(model: Model) -> float:
    """Milliseconds of this thread a step."""
    begin(model)
    start = time.thread_time()
    for _ in range(COUNTED):
        model.step()
    return 1e3 * (time.thread_time() - start) / COUNTED


def figures(name: str) -> Figures:
    torch.manual_seed(0)
    on_webgpu, on_cpu = (MODELS[name](torch.device(device)) for device in ("webgpu", "cpu"))
    warm_up(on_webgpu)
    found = counts(on_webgpu)
    times = [(thread_ms(on_webgpu), thread_ms(on_cpu)) for _ in range(ROUNDS)]
    ratios = [ours / theirs for ours, theirs in times]
    ours, theirs = (statistics.median(column) for column in zip(*times))
    return Figures(name, found, ours, theirs, statistics.median(ratios), min(ratios), max(ratios))


def measured(name: str, delay_ms: float, auto: bool) -> dict[str, Any]:
    """One model's row, in this process."""
    torch.set_num_threads(1)
    device = use_null_adapter()
    torch.webgpu.auto_compile(auto)  # type: ignore[attr-defined]
    torch.webgpu.set_batch_delay(delay_ms)  # type: ignore[attr-defined]
    result = asdict(figures(name))
    row = {**environment(device), **result.pop("counts"), **result, "fallbacks": device.fallbacks()}
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


HEADER = {
    "model": "model",
    "operations": "operations",
    "python_calls": "Python calls",
    "c_calls": "C calls",
    "flushes": "flushes",
    "plan_hits": "plans found",
    "plan_misses": "plans made",
    "dispatches": "dispatches",
    "webgpu_ms": "webgpu, ms",
    "cpu_ms": "CPU, ms",
    "ratio": "ratio",
}


def cells(row: dict[str, Any]) -> list[str]:
    """A table's row."""
    texts = []
    for key in HEADER:
        value = row[key]
        texts.append(f"{value:.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value)
    texts[-1] += f" ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", metavar="MODELS", help=f"comma-separated, of {','.join(MODELS)}")
    parser.add_argument("--json", action="store_true", help="JSON lines on standard output instead of a table")
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS", help="of the timer (see set_batch_delay)")
    parser.add_argument("--auto", action="store_true", help="with torch.webgpu.auto_compile()")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(MODELS)
    unknown = set(names) - set(MODELS)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if options.in_process:
        print(json.dumps(measured(names[0], options.delay, options.auto)), flush=True)
        return 0
    rows = []
    for name in names:
        command = [sys.executable, __file__, "--in-process", "--only", name, "--delay", str(options.delay)]
        command += ["--auto"] * options.auto
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return done.returncode
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        if options.json:
            print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        print_rows(list(HEADER.values()), [cells(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
