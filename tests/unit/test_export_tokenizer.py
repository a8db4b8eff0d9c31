"""What becomes the ``tokenizer.json`` of an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torch_webgpu.errors import ExportError
from torch_webgpu.export.tokenizer import tokenizer_json

tokenizers = pytest.importorskip("tokenizers", reason="its tokenizers are exported")
transformers = pytest.importorskip("transformers", reason="its tokenizers are exported")


def words() -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer


def test_all_kinds_give_one_file(tmp_path: Path) -> None:
    expected = json.loads(words().to_str())
    (tmp_path / "tokenizer.json").write_text(words().to_str())
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words())  # adds a post-processor that does nothing
    for given in (words(), tmp_path, tmp_path / "tokenizer.json", str(tmp_path), fast):
        found = json.loads(tokenizer_json(given, 2))
        assert {**found, "post_processor": None} == expected


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (3, "a int has no tokenizer.json"),
        ("aba", "takes each once"),
        ("abc", "has a token 2, and the model tokens up to 1"),
        (Path("nowhere.json"), "cannot be read"),
        (Path(__file__), "is no tokenizer.json"),
    ],
)
def test_what_is_none(tokenizer: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        tokenizer_json(tokenizer, 2)
