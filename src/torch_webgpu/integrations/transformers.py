"""Hugging Face Transformers: ``TrainingArguments``, ``Trainer``, ``pipeline``, ``from_pretrained``, ``generate``.

The rest (mixed precision, ``device_map``) it does through Accelerate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

import torch

from torch_webgpu.api.device import is_bf16_supported
from torch_webgpu.patching import Patches

from . import random_states
from .answering import Answering
from .choice import webgpu_device

LIKE_TPU = "https://github.com/huggingface/transformers/pull/45918"
"""How another device of a package of its own was added: a branch in each of these places."""

PATCHES = Patches()


@PATCHES.add("transformers.training_args", "TrainingArguments._setup_devices", upstream=LIKE_TPU)
def training_device(plain: cached_property[torch.device]) -> cached_property[torch.device]:
    """``TrainingArguments().device`` is not Accelerate's: it asks a list of names again."""

    def _setup_devices(self: Any) -> torch.device:
        device: torch.device = plain.func(self)
        ours: torch.device = getattr(self.distributed_state, "device", device)
        if device.type != "cpu" or self.use_cpu or ours.type != "webgpu":
            return device
        self._n_gpu = 1
        return ours

    replaced = cached_property(_setup_devices)
    replaced.__set_name__(None, "_setup_devices")  # type: ignore[arg-type]
    return replaced


@PATCHES.add("transformers.utils.import_utils", "is_torch_bf16_gpu_available", upstream=LIKE_TPU)
def bfloat16(plain: Callable[[], bool]) -> Callable[[], bool]:
    """``bf16=True`` is refused on a device that it does not know."""

    @wraps(plain)
    def is_torch_bf16_gpu_available() -> bool:
        return plain() or (webgpu_device() is not None and is_bf16_supported())

    return is_torch_bf16_gpu_available


@PATCHES.add("transformers.trainer", "Trainer._save_rng_state", upstream=LIKE_TPU)
def save_random_state(plain: Callable[..., None]) -> Callable[..., None]:
    """Checkpoints hold the random states of the backends it knows: dropout would go on differently after a resume."""

    @wraps(plain)
    def _save_rng_state(self: Any, output_dir: str) -> None:
        plain(self, output_dir)
        if self.args.device.type == "webgpu":
            random_states.save(output_dir, self.args.process_index)

    return _save_rng_state


@PATCHES.add("transformers.trainer", "Trainer._load_rng_state", upstream=LIKE_TPU)
def load_random_state(plain: Callable[..., None]) -> Callable[..., None]:
    """The other half of :func:`save_random_state`."""

    @wraps(plain)
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        plain(self, checkpoint)
        if checkpoint is not None and self.args.device.type == "webgpu":
            random_states.load(checkpoint, self.args.process_index)

    return _load_rng_state


@PATCHES.add("transformers.pipelines.base", "Pipeline.__init__", upstream=LIKE_TPU)
def pipeline_device(plain: Callable[..., None]) -> Callable[..., None]:
    """``pipeline(…)`` and ``pipeline(…, device=0)`` take the first backend of a list of names, else the CPU.

    So does a model that ``device_map`` has placed on device 0, whose inputs would then stay on the CPU.
    """

    @wraps(plain)
    def __init__(self: Any, model: Any, *args: Any, device: Any = None, **options: Any) -> None:  # noqa: N807
        placed = getattr(model, "hf_device_map", None)
        plain(self, model, *args, device=_numbered(device) if placed is None else device, **options)
        if placed is not None and device is None:
            self.device = _numbered(next(iter(placed.values()))) or self.device

    return __init__


def _numbered(device: Any) -> Any:
    """Device 0, or none in particular, as an adapter where webgpu is the accelerator; else as it is."""
    ours = webgpu_device()
    if ours is None or not (device is None or (isinstance(device, int) and device >= 0)):
        return device
    return ours if device is None else torch.device("webgpu", device)


@PATCHES.add("transformers.modeling_utils", "caching_allocator_warmup", upstream=LIKE_TPU)
def no_warmup(plain: Callable[..., None]) -> Callable[..., None]:
    """Loading begins with one tensor as large as the model, which no adapter's limits allow for a large model.

    It fills CUDA's cache; buffers here are kept by size, and this one would serve no tensor.
    """

    @wraps(plain)
    def caching_allocator_warmup(model: Any, expanded_device_map: dict[str, Any], hf_quantizer: Any) -> None:
        elsewhere = {name: device for name, device in expanded_device_map.items() if not _is_webgpu(device)}
        plain(model, elsewhere, hf_quantizer)

    return caching_allocator_warmup


def _is_webgpu(device: Any) -> bool:
    return device != "disk" and torch.device(device).type == "webgpu"


@PATCHES.add("transformers.generation.utils", "GenerationMixin._valid_auto_compile_criteria", upstream=LIKE_TPU)
def compiled_decoding(plain: Callable[..., bool]) -> Callable[..., bool]:
    """``generate(cache_implementation="static")`` compiles the decoding step on the devices of a list of names."""

    @wraps(plain)
    def _valid_auto_compile_criteria(self: Any, *args: Any, **kwargs: Any) -> bool:
        is_ours = self.device.type == "webgpu"
        return plain(Answering(self, device=torch.device("cuda")) if is_ours else self, *args, **kwargs)

    return _valid_auto_compile_criteria
