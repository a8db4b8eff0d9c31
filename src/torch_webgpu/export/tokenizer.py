"""Tokenizers beside a language model: the ``tokenizer.json`` that Hugging Face's libraries read and write."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from torch_webgpu.errors import ExportError

FILE = "tokenizer.json"


def tokenizer_json(tokenizer: Any, vocab_size: int) -> str:
    """The contents of ``tokenizer.json``. ExportError for what is no tokenizer, or one of more tokens than the model.

    ``tokenizer``: a tokenizer of Transformers with a fast implementation, one of the ``tokenizers`` library, the path
    of a ``tokenizer.json`` or of a folder that has one, or a text of the characters that are the tokens, in order.
    """
    if isinstance(tokenizer, str) and not Path(tokenizer).exists():
        text = json.dumps(of_characters(tokenizer), ensure_ascii=False)
    elif isinstance(tokenizer, (str, PathLike)):
        path = Path(tokenizer)
        path = path / FILE if path.is_dir() else path
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"the tokenizer {path} cannot be read: {error}") from None
    else:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "to_str"):
            raise ExportError(
                f"a {type(tokenizer).__name__} has no tokenizer.json: use one of the library tokenizers, a fast "
                "one of Transformers, or the characters that are the tokens"
            )
        text = backend.to_str()
    try:
        data = json.loads(text)
        largest = max([*_ids(data["model"]["vocab"]), *[int(t["id"]) for t in data.get("added_tokens") or ()]])
    except (ValueError, KeyError, TypeError):
        raise ExportError("the tokenizer is no tokenizer.json: it has no vocabulary") from None
    if largest >= vocab_size:
        raise ExportError(f"the tokenizer has a token {largest}, and the model tokens up to {vocab_size - 1}")
    return text


def _ids(vocabulary: Any) -> list[int]:
    return list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))


def of_characters(characters: str) -> dict[str, Any]:
    """A tokenizer whose tokens are characters. ExportError where one comes twice."""
    if not characters or len(set(characters)) < len(characters):
        raise ExportError("a tokenizer of characters takes each once")
    vocabulary = {character: number for number, character in enumerate(characters)}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "\x00"},
    }  # fmt: skip
