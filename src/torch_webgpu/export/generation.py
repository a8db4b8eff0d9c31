"""``export_generation``: a causal language model as programs that fill a cache and draw tokens, for ``model.generate``.

The cache, its length and the logits of the last position are state, written in place. A program ``prefill_N`` takes N
tokens; ``decode`` draws a token from the logits, runs the model on it, and leaves the next logits. So tokens need not
be read before the next step is encoded: a page reads the last few at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch

from torch_webgpu.errors import ExportError
from torch_webgpu.target import Target

from .export import export, quantized
from .report import ExportReport
from .tokenizer import FILE, tokenizer_json

RECENT_TOKENS = 8
"""How many of the last tokens a step can tell."""


def export_generation(
    model: torch.nn.Module,
    folder: str | PathLike[str],
    *,
    max_length: int = 1024,
    batch_size: int = 1,
    prefill: Sequence[int] = (1, 16, 64, 256),
    eos_token_id: int | Sequence[int] | None = None,
    tokenizer: Any = None,
    target: str | Target = "portable",
    quantize: str | None = None,
    weights: bool = True,
    page: bool | str | PathLike[str] = True,
    metadata: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Writes a causal language model of Transformers as a folder whose page generates text: ``model.generate`` there.

    * ``model``: what ``transformers.StaticCache`` serves, such as ``GPT2LMHeadModel``, in the dtype that it has.
    * ``max_length``: of prompt and generated tokens together.
    * ``batch_size``: how many prompts the page can continue at once. They may differ in length: the shorter ones are
      padded on the left, which the model's mask and positions leave out.
    * ``prefill``: how many tokens of a prompt the page takes at once, each a program of its own. A prompt is cut into
      the largest that fit; 1 is always among them.
    * ``eos_token_id``: what ends a text; that of ``model.generation_config`` if None.
    * ``quantize``: "int8" or "int4", of a copy of the model.
    * ``tokenizer``: is written beside as ``tokenizer.json``, for ``model.tokenizer()`` in the page: a tokenizer of
      Transformers or of ``tokenizers``, the path of such a file, or a text of the characters that are the tokens.
    * The rest: see :func:`export`.

    The page draws as Transformers does with ``temperature``, ``top_k`` and ``top_p``, by Gumbel noise from the random
    stream of :func:`torch.manual_seed`. Raises TraceError and ExportError as :func:`export` does.
    """
    sizes = sorted({1, *prefill})
    if batch_size < 1:
        raise ExportError(f"batch_size is a number of prompts from 1, not {batch_size}")
    if sizes[0] < 1 or max_length < sizes[-1]:
        raise ExportError(f"prefill takes numbers of tokens from 1 to max_length ({max_length}), not {list(prefill)}")
    if quantize is not None:
        model = quantized(model, quantize)
    generation = Generation(model, max_length, batch_size)
    padding = (torch.zeros(batch_size, dtype=torch.int64),) if batch_size > 1 else ()
    programs: dict[str, tuple[Callable[..., Any], Any]] = {
        f"prefill_{n}": (generation.prefill, (torch.zeros(batch_size, n, dtype=torch.int64), *padding)) for n in sizes
    }
    sampling = torch.tensor([1.0, 0.0, 1.0])
    programs |= {"decode": (generation.decode, sampling), "sample": (generation.sample, sampling)}
    described = {
        "prefill": sizes,
        "max_length": max_length,
        "batch_size": batch_size,
        "recent": RECENT_TOKENS,
        "vocab_size": generation.vocab_size,
        "eos_token_id": eos_tokens(model, eos_token_id),
    }
    files = {} if tokenizer is None else {FILE: tokenizer_json(tokenizer, generation.vocab_size)}
    with torch.no_grad():
        return export(
            model, None, folder, programs=programs, state=generation.state, target=target, weights=weights, page=page,
            files=files, metadata={**(metadata or {}), "generation": described},
        )  # fmt: skip


class Generation:
    """The programs of a model, and the tensors that they share. Each prompt of a batch has a row of them."""

    def __init__(self, model: torch.nn.Module, max_length: int, batch_size: int = 1) -> None:
        try:
            from transformers import StaticCache
        except ImportError:
            raise ExportError("export_generation takes models of Transformers: pip install transformers") from None
        config: Any = model.config
        text = config.get_text_config(decoder=True)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        parameter = next(model.parameters())
        device = parameter.device
        self.model: Any = model
        self.vocab_size: int = text.vocab_size
        self.max_length = max_length
        self._accepted = inspect.signature(model.forward).parameters
        self._cache: Any = StaticCache(config=config, max_cache_len=max_length)
        self._cache.early_initialization(batch_size, heads, width, parameter.dtype, device)
        self._logits = torch.zeros(batch_size, self.vocab_size, device=device)
        self._recent = torch.zeros(RECENT_TOKENS, batch_size, dtype=torch.int64, device=device)
        self._padding = torch.zeros(batch_size, dtype=torch.int64, device=device) if batch_size > 1 else None

    @property
    def state(self) -> dict[str, Any]:
        """What the programs write, by name."""
        layers = [
            {"keys": layer.keys, "values": layer.values, "length": layer.cumulative_length}
            for layer in self._cache.layers
        ]
        padding = {} if self._padding is None else {"padding": self._padding}
        return {"cache": layers, "logits": self._logits, "recent": self._recent, **padding}

    def prefill(self, input_ids: torch.Tensor, padding: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Takes tokens [batch, n] into the cache; gives the logits [batch, vocabulary] of what follows.

        ``padding`` [batch] in int64: how many tokens at the beginning of each row stand for nothing.
        """
        options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in self._accepted else {}
        if self._padding is not None:
            if padding is not None:
                self._padding.copy_(padding)
            options |= self._without_padding(self._padding, input_ids.shape[1])
        for layer in self._cache.layers:
            layer.device = input_ids.device  # where it makes its positions
        output = self.model(input_ids=input_ids, past_key_values=self._cache, use_cache=True, **options)
        self._logits.copy_(output.logits[:, -1])
        return {"logits": self._logits}

    def _without_padding(self, padding: torch.Tensor, count: int) -> dict[str, torch.Tensor]:
        """The mask of the cache, and the positions of the next tokens, where a row begins after its padding."""
        places = torch.arange(self.max_length, device=padding.device)
        mask = (places >= padding[:, None]).to(torch.int64)
        if "position_ids" not in self._accepted:
            return {"attention_mask": mask}  # the model tells positions by the mask, as ALiBi does
        next_places = self._cache.layers[0].cumulative_length + torch.arange(count, device=padding.device)
        return {"attention_mask": mask, "position_ids": (next_places - padding[:, None]).clamp(min=0)}

    def decode(self, sampling: torch.Tensor) -> dict[str, torch.Tensor]:
        """Draws a token a row, and takes it. ``sampling``: temperature, top_k, top_p; the temperature counts."""
        return self._take((scaled(self._logits, sampling[0]) + noise(self._logits, sampling[0])).argmax(-1))

    def sample(self, sampling: torch.Tensor) -> dict[str, torch.Tensor]:
        """The same, from the ``top_k`` most probable tokens (0: all) that make up ``top_p``."""
        temperature, top_k, top_p = sampling.unbind()
        values, tokens = scaled(self._logits, temperature).sort(descending=True)
        ranks = torch.arange(self.vocab_size, device=values.device)
        values = values.masked_fill((ranks >= top_k) & (top_k > 0), float("-inf"))
        probabilities = values.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        values = values.masked_fill((before >= top_p) & (ranks > 0), float("-inf"))
        chosen = (values + noise(values, temperature)).argmax(-1, keepdim=True)
        return self._take(tokens.gather(-1, chosen).squeeze(-1))

    def _take(self, token: torch.Tensor) -> dict[str, torch.Tensor]:
        self._recent.copy_(torch.cat([self._recent[1:], token[None]]))
        self.prefill(token[:, None])
        return {"recent": self._recent}


def scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Logits by temperature; at 0, which is greedy, as they are."""
    return logits.float() / torch.where(temperature > 0, temperature, 1.0)


def noise(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Gumbel noise: the largest of logits and noise is a draw from their softmax. None at temperature 0."""
    gumbel = -torch.log(-torch.log(torch.rand(logits.shape, device=logits.device)))
    return torch.where(temperature > 0, gumbel, 0.0)


def eos_tokens(model: torch.nn.Module, chosen: int | Sequence[int] | None) -> list[int]:
    """The tokens that end a text."""
    if chosen is None:
        chosen = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if chosen is None:
        return []
    return [chosen] if isinstance(chosen, int) else list(chosen)
