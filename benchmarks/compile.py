"""What torch.compile is worth: ``python benchmarks/compile.py --device webgpu --device cuda``, as JSON lines.

Whole models with random weights, eager and compiled: one decoding step with a static cache, a prompt, training steps,
inference. Measured are microseconds a step, kernels a step and the host's time for each, and the peak of the memory in
use. A dtype after "training" is autocast's. On CUDA compiled means ``mode="reduce-overhead"`` for inference.

The first step is timed from ``torch.compile`` on, in a process that has imported the compiler and run an eager step: in
a first process, in a second one ("warm"), and with ``--packages`` in one that finds Dynamo's code, too ("packaged":
PyTorch's ``TORCH_CACHING_PRECOMPILE``). PyTorch's clocks say how much of it is Dynamo's, and AOTAutograd's with the
backend; the rest is plans, pipelines and the step.

Needs transformers, and torchvision for ResNet-50.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

import torch
from _harness import (
    QUICK,
    Device,
    Effort,
    Result,
    duration,
    implementations,
    kernels,
    measure,
    print_figures,
    print_table,
    run_in_processes,
)
from torch import nn

MIB = 1 << 20
ROUND = 32
"""Steps of decoding after which a cache is as it was after the prompt."""
AHEAD = 8
"""Steps that the host is ahead of the GPU at most where the host is timed: farther ahead it waits."""
Step = Callable[[], Any]


@dataclass
class Case:
    """A model's step, and what compiles it. The function that is compiled returns tensors alone: Dynamo's packages
    cannot hold others.
    """

    eager: Step
    compile: Callable[[], Step]


def qwen(device: Device, quick: bool, dtype: torch.dtype) -> tuple[Any, Any]:
    """The shape of Qwen2.5-0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}
    large = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936}
    heads = {"num_attention_heads": 4 if quick else 14, "num_key_value_heads": 2}
    config = Qwen2Config(**(small if quick else large), **heads, max_position_embeddings=2048, tie_word_embeddings=True)
    return Qwen2ForCausalLM(config).to(device.device, dtype).eval(), config


def inference(device: Device, run: Any, step: Callable[[Any], torch.Tensor]) -> Case:
    """A step of ``run``, compiled as a user would for inference."""
    mode = "reduce-overhead" if device.device.type == "cuda" else None
    return Case(partial(step, run), lambda: partial(step, torch.compile(run, mode=mode)))


def copied(run: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """What inference returns, in memory of its own."""
    with torch.no_grad():
        return run(*inputs).clone()


def decode(dtype: torch.dtype) -> Callable[[Device, bool], Case]:
    """One token after a prompt, batch 1, static cache."""

    def case(device: Device, quick: bool) -> Case:
        from transformers import StaticCache

        model, config = qwen(device, quick, dtype)
        cache = StaticCache(config=config, max_cache_len=64 if quick else 1024)
        token = torch.zeros(1, 1, dtype=torch.long, device=device.device)
        place = torch.full((1,), 16, dtype=torch.long, device=device.device)

        def logits() -> torch.Tensor:
            inputs = {"input_ids": token, "past_key_values": cache, "cache_position": place, "use_cache": True}
            return model(**inputs, return_dict=False)[0]

        steps = itertools.count()

        def step(run: Any) -> torch.Tensor:
            with torch.no_grad():
                if next(steps) % ROUND == 0:
                    for layer in cache.layers:  # which count on the device what they hold
                        if layer.is_initialized:
                            layer.cumulative_length.fill_(16)
                return run().clone()

        return inference(device, logits, step)

    return case


def prefill(device: Device, quick: bool) -> Case:
    """A prompt of 512 tokens, float32."""
    model, _ = qwen(device, quick, torch.float32)
    tokens = torch.zeros(1, 32 if quick else 512, dtype=torch.long, device=device.device)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, use_cache=False, return_dict=False)[0]

    return inference(device, logits, lambda run: copied(run, tokens))


def training(
    model: nn.Module,
    run: Any,
    loss: Callable[[Any], torch.Tensor],
    around: Callable[[], AbstractContextManager[Any]],
) -> Case:
    """A step of AdamW, of which ``run`` is compiled: ``loss(run)``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(run: Any) -> torch.Tensor:
        with around():
            value = loss(run)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return Case(partial(step, run), lambda: partial(step, torch.compile(run)))


def autocasting(device: Device, dtype: torch.dtype | None) -> Callable[[], AbstractContextManager[Any]]:
    """What surrounds the forward pass."""
    return (lambda: torch.autocast(device.device.type, dtype=dtype)) if dtype else nullcontext


def gpt2(autocast: torch.dtype | None) -> Callable[[Device, bool], Case]:
    """A training step of GPT-2 124M, 8 × 512 tokens."""

    def case(device: Device, quick: bool) -> Case:
        from transformers import GPT2Config, GPT2LMHeadModel

        small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000} if quick else {}
        model = GPT2LMHeadModel(GPT2Config(**small)).to(device.device)
        model.loss_type = "ForCausalLM"  # unnamed, it is warned of, which breaks the graph on any device
        shape = (2, 32) if quick else (8, 512)
        tokens = torch.randint(0, 1000, shape, device=device.device)

        def loss(tokens: torch.Tensor) -> torch.Tensor:
            return model(input_ids=tokens, labels=tokens, return_dict=False)[0]

        return training(model, loss, lambda run: run(tokens), autocasting(device, autocast))

    return case


def resnet(train: bool, autocast: torch.dtype | None = None) -> Callable[[Device, bool], Case]:
    """ResNet-50 on 32 images of 224 × 224."""

    def case(device: Device, quick: bool) -> Case:
        from torchvision.models import resnet18, resnet50

        model = (resnet18 if quick else resnet50)().to(device.device)
        images = torch.randn(*((2, 3, 32, 32) if quick else (32, 3, 224, 224)), device=device.device)
        labels = torch.randint(0, 1000, (len(images),), device=device.device)
        if train:
            loss = nn.functional.cross_entropy
            model.train()
            return training(model, model, lambda run: loss(run(images), labels), autocasting(device, autocast))
        return inference(device, model.eval(), lambda run: copied(run, images))

    return case


def bert(device: Device, quick: bool) -> Case:
    """BERT-base on 8 × 128 tokens."""
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertModel(BertConfig(**(small if quick else {}))).to(device.device).eval()
    tokens = torch.zeros(2 if quick else 8, 128, dtype=torch.long, device=device.device)

    def hidden(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, return_dict=False)[0]

    return inference(device, hidden, lambda run: copied(run, tokens))


MODES = ("eager", "compiled")
AUTO = "auto"
"""The eager step under ``torch.webgpu.auto_compile()``: on webgpu alone, with ``--auto``."""
BEFORE_AUTO = 6
"""Steps after which all that repeats is compiled."""
CASES: dict[str, Callable[[Device, bool], Case]] = {
    "decode float32": decode(torch.float32),
    "decode float16": decode(torch.float16),
    "prefill 512": prefill,
    "GPT-2 training": gpt2(None),
    "GPT-2 training bfloat16": gpt2(torch.bfloat16),
    "GPT-2 training float16": gpt2(torch.float16),
    "ResNet-50 inference": resnet(False),
    "ResNet-50 training": resnet(True),
    "ResNet-50 training float16": resnet(True, torch.float16),
    "BERT-base inference": bert,
}


def figures(name: str, device: Device, effort: Effort, quick: bool, modes: Sequence[str] = MODES) -> Iterator[Result]:
    """Everything about one model."""
    torch.manual_seed(0)
    case = CASES[name](device, quick)
    case.eager()
    steps = {"eager": case.eager}
    if "compiled" in modes:
        steps["compiled"], results = first_step(case, device, "first step", name)
        yield from results
    for mode in modes:
        step = steps.get(mode, case.eager)
        if mode == AUTO:
            torch.webgpu.auto_compile()  # type: ignore[attr-defined]
            for _ in range(BEFORE_AUTO):
                step()
        reset = getattr(getattr(torch, device.device.type), "reset_peak_memory_stats", None)
        if reset is not None:
            reset()
        timing = measure(step, device, effort)
        yield duration("step", timing, model=name, mode=mode)
        host = measure(step, device, effort, host_only=True, ahead=AHEAD)
        found = kernels(step, device)
        if found is not None:
            count = float(found.count)
            yield Result("kernels", count, "", count, count, 1, {"model": name, "mode": mode})
            yield Result("on the GPU", found.gpu_us, "us", found.gpu_us, found.gpu_us, 1, {"model": name, "mode": mode})
            yield duration("host per kernel", host, per=max(1, found.count), model=name, mode=mode)
        if reset is not None:
            peak = getattr(torch, device.device.type).max_memory_allocated() / MIB
            yield Result("peak memory", peak, "MiB", peak, peak, 1, {"model": name, "mode": mode})
        if mode == AUTO:
            for row in torch.webgpu.auto_compile_stats().modules:  # type: ignore[attr-defined]
                print(f"{name}: {dict(row)}", file=sys.stderr)
            torch.webgpu.auto_compile(False)  # type: ignore[attr-defined]


def first_step(case: Case, device: Device, benchmark: str, name: str) -> tuple[Step, list[Result]]:
    """The compiled step; how long it takes from ``torch.compile`` until it is done once, and PyTorch's parts of it."""
    device.synchronize()
    before, start = compile_seconds(), time.perf_counter()
    compiled = case.compile()
    compiled()
    device.synchronize()
    took = {benchmark: time.perf_counter() - start}
    took |= {f"{benchmark}: {part}": after - before[part] for part, after in compile_seconds().items()}
    about = {"model": name, "mode": "compiled"}
    return compiled, [Result(figure, s, "s", s, s, 1, about) for figure, s in took.items()]


def compile_seconds() -> dict[str, float]:
    """What PyTorch's compiler has taken in this process, by its own clocks."""
    spent = torch._dynamo.utils.calculate_time_spent()
    whole, backend = (spent.get(f"{part}_compile", 0.0) for part in ("entire_frame", "backend"))
    return {"Dynamo": whole - backend, "AOTAutograd and backend": backend}


def again(name: str, device: Device, quick: bool) -> Iterator[Result]:
    """The first compiled step where another process has compiled it before; what it compiled is left to the next."""
    packages = getattr(torch._dynamo.config, "caching_precompile", False)
    case = CASES[name](device, quick)
    case.eager()
    yield from first_step(case, device, "first step, packaged" if packages else "first step, warm", name)[1]
    if packages:
        torch.compiler.save_cache_artifacts()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(CASES)}")
    parser.add_argument("--mode", choices=MODES, help="only that one, and nothing of a second process")
    parser.add_argument("--auto", action="store_true", help="on webgpu also eager steps that auto_compile() compiles")
    parser.add_argument("--quick", action="store_true", help="small models, few repeats: does it run")
    parser.add_argument("--packages", action="store_true", help="also the first step where Dynamo's packages are found")
    parser.add_argument("--table", action="store_true", help="a table for people, on standard error")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_device(options: argparse.Namespace) -> int:
    """Everything about one device, as JSON lines."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = Device.of(options.device[0])
    torch.compile(lambda: None)  # imports the compiler, which takes a second or two whatever is compiled
    effort = QUICK if options.quick else Effort(repeats=5)

    def measured(name: str) -> Iterator[Result]:
        torch._dynamo.reset()
        if options.warm:
            return again(name, device, options.quick)
        modes = (options.mode,) if options.mode else MODES
        if options.auto and device.device.type == "webgpu":
            modes = (*modes, AUTO)
        return figures(name, device, effort, options.quick, modes)

    return int(print_figures(device, options.only.split(",") if options.only else list(CASES), measured))


def main() -> int:
    options = arguments()
    if options.in_process:
        return run_device(options)
    quick = ["--quick"] * options.quick
    flags = [*quick, *(["--only", options.only] if options.only else [])]
    mode = ["--mode", options.mode] if options.mode else []
    auto = ["--auto"] * options.auto
    devices = implementations(options.device, options.implementation)
    with caches() as variables:
        runs = [run_in_processes(__file__, devices, [*flags, *mode, *auto], variables)]
        if not mode:
            runs.append(run_in_processes(__file__, devices, [*flags, "--warm"], variables))
    for name in (options.only.split(",") if options.only else CASES) if options.packages else ():
        with caches() as variables:  # packages are found by the function's name: one model, one folder
            packages = {**variables, "TORCH_CACHING_PRECOMPILE": "1", "TORCH_LOGS": "-dynamo"}
            one = [*quick, "--only", name, "--warm"]
            with redirect_stdout(StringIO()):
                run_in_processes(__file__, devices, one, packages)
            runs.append(run_in_processes(__file__, devices, one, packages))
    if options.table:
        print_table([row for rows, _ in runs for row in rows])
    return int(any(failed for _, failed in runs))


@contextmanager
def caches() -> Iterator[dict[str, str]]:
    """Variables that keep what is compiled in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"TORCH_WEBGPU_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}


if __name__ == "__main__":
    sys.exit(main())
