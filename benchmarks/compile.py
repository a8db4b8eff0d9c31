"""What torch.compile is worth: ``python benchmarks/compile.py --device webgpu --device cuda``, as JSON lines.

Whole models with random weights, eager and compiled: one decoding step with a static cache, a prompt, training steps,
inference. Measured are microseconds a step, kernels a step and the host's time for each, seconds until the first
compiled step is done, and until it is in a second process ("warm"), and the peak of the memory in use. A dtype after
"training" is autocast's. On CUDA compiled means ``mode="reduce-overhead"`` for inference. Needs transformers, and
torchvision for ResNet-50.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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


@dataclass
class Case:
    """A model's step, and how the same is compiled."""

    eager: Callable[[], Any]
    compiled: Callable[[], Any]


def qwen(device: Device, quick: bool, dtype: torch.dtype) -> tuple[Any, Any]:
    """The shape of Qwen2.5-0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}
    large = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936}
    heads = {"num_attention_heads": 4 if quick else 14, "num_key_value_heads": 2}
    config = Qwen2Config(**(small if quick else large), **heads, max_position_embeddings=2048, tie_word_embeddings=True)
    return Qwen2ForCausalLM(config).to(device.device, dtype).eval(), config


def compiled_for(device: Device, model: Any) -> Any:
    """As a user would compile it for inference."""
    return torch.compile(model, mode="reduce-overhead" if device.device.type == "cuda" else None)


def decode(dtype: torch.dtype) -> Callable[[Device, bool], Case]:
    """One token after a prompt, batch 1, static cache."""

    def case(device: Device, quick: bool) -> Case:
        from transformers import StaticCache

        model, config = qwen(device, quick, dtype)
        cache = StaticCache(config=config, max_cache_len=64 if quick else 1024)
        token = torch.zeros(1, 1, dtype=torch.long, device=device.device)
        place = torch.full((1,), 16, dtype=torch.long, device=device.device)

        steps = itertools.count()

        def step(run: Any) -> torch.Tensor:
            with torch.no_grad():
                if next(steps) % ROUND == 0:
                    for layer in cache.layers:  # which count on the device what they hold
                        if layer.is_initialized:
                            layer.cumulative_length.fill_(16)
                logits = run(input_ids=token, past_key_values=cache, cache_position=place, use_cache=True).logits
            return logits.clone()

        compiled = compiled_for(device, model)
        return Case(lambda: step(model), lambda: step(compiled))

    return case


def prefill(device: Device, quick: bool) -> Case:
    """A prompt of 512 tokens, float32."""
    model, _ = qwen(device, quick, torch.float32)
    tokens = torch.zeros(1, 32 if quick else 512, dtype=torch.long, device=device.device)
    compiled = compiled_for(device, model)

    def step(run: Any) -> torch.Tensor:
        with torch.no_grad():
            return run(input_ids=tokens, use_cache=False).logits.clone()

    return Case(lambda: step(model), lambda: step(compiled))


def training(
    device: Device,
    model: nn.Module,
    loss: Callable[[Any], torch.Tensor],
    around: Callable[[], AbstractContextManager[Any]],
) -> Case:
    """A step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)

    def step(run: Any) -> torch.Tensor:
        with around():
            value = loss(run)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return Case(lambda: step(model), lambda: step(compiled))


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
        loss = lambda run: run(input_ids=tokens, labels=tokens).loss
        return training(device, model, loss, autocasting(device, autocast))

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
            return training(device, model.train(), lambda run: loss(run(images), labels), autocasting(device, autocast))
        model.eval()
        compiled = compiled_for(device, model)

        def step(run: Any) -> torch.Tensor:
            with torch.no_grad():
                return run(images).clone()

        return Case(lambda: step(model), lambda: step(compiled))

    return case


def bert(device: Device, quick: bool) -> Case:
    """BERT-base on 8 × 128 tokens."""
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertModel(BertConfig(**(small if quick else {}))).to(device.device).eval()
    tokens = torch.zeros(2 if quick else 8, 128, dtype=torch.long, device=device.device)
    compiled = compiled_for(device, model)

    def step(run: Any) -> torch.Tensor:
        with torch.no_grad():
            return run(input_ids=tokens).last_hidden_state.clone()

    return Case(lambda: step(model), lambda: step(compiled))


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


def figures(name: str, device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Everything about one model."""
    torch.manual_seed(0)
    case = CASES[name](device, quick)
    for mode, step in (("eager", case.eager), ("compiled", case.compiled)):
        start = time.perf_counter()
        step()
        device.synchronize()
        first_s = time.perf_counter() - start
        if mode == "compiled":
            yield Result("first step", first_s, "s", first_s, first_s, 1, {"model": name, "mode": mode})
        reset = getattr(getattr(torch, device.device.type), "reset_peak_memory_stats", None)
        if reset is not None:
            reset()
        timing = measure(step, device, effort)
        yield duration("step", timing, model=name, mode=mode)
        host = measure(step, device, effort, host_only=True)
        found = kernels(step, device)
        if found is not None:
            count = float(found.count)
            yield Result("kernels", count, "", count, count, 1, {"model": name, "mode": mode})
            yield Result("on the GPU", found.gpu_us, "us", found.gpu_us, found.gpu_us, 1, {"model": name, "mode": mode})
            yield duration("host per kernel", host, per=max(1, found.count), model=name, mode=mode)
        if reset is not None:
            peak = getattr(torch, device.device.type).max_memory_allocated() / MIB
            yield Result("peak memory", peak, "MiB", peak, peak, 1, {"model": name, "mode": mode})


def warm(name: str, device: Device, quick: bool) -> Iterator[Result]:
    """The first compiled step where another process has compiled it before."""
    case = CASES[name](device, quick)
    start = time.perf_counter()
    case.compiled()
    device.synchronize()
    took_s = time.perf_counter() - start
    yield Result("first step, warm", took_s, "s", took_s, took_s, 1, {"model": name, "mode": "compiled"})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="small models, few repeats: does it run")
    parser.add_argument("--table", action="store_true", help="a table for people, on standard error")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_device(options: argparse.Namespace) -> int:
    """Everything about one device, as JSON lines."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = Device.of(options.device[0])
    effort = QUICK if options.quick else Effort(repeats=5)

    def measured(name: str) -> Iterator[Result]:
        torch._dynamo.reset()
        return warm(name, device, options.quick) if options.warm else figures(name, device, effort, options.quick)

    return int(print_figures(device, options.only.split(",") if options.only else list(CASES), measured))


def main() -> int:
    options = arguments()
    if options.in_process:
        return run_device(options)
    flags = ["--quick"] * options.quick + (["--only", options.only] if options.only else [])
    devices = implementations(options.device, options.implementation)
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCH_WEBGPU_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        rows, failed = run_in_processes(__file__, devices, flags, caches)
        again, failed_again = run_in_processes(__file__, devices, [*flags, "--warm"], caches)
    if options.table:
        print_table(rows + again)
    return int(failed or failed_again)


if __name__ == "__main__":
    sys.exit(main())
