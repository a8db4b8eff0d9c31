"""The page's tokens are those of the ``tokenizers`` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from torch_webgpu.export.tokenizer import tokenizer_json

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = [
    "", " ", "Hello, world!  It's 2026; they'LL see.\n\n  don't\tstop ", "naïve café, 北京 and Ελλάδα 😀😀 e\u0301",
    "x = a[0] + 17*b  # comment\r\n\r\n    return", "<|end|>stop<|end|><|user|> now", "Return the string.",
    "\x00\x7f\xad",
]  # fmt: skip
TOKENS = """([json, texts]) => import('/runtime/tokenizer.js').then(({Tokenizer}) => {
  const tokenizer = new Tokenizer(JSON.parse(json));
  return texts.map(text => {
    const ids = tokenizer.encode(text);
    const whole = tokenizer.decode(ids, {skip_special_tokens: false});
    return [ids, tokenizer.decode(ids), whole, tokenizer.decode(ids.slice(0, -1))];
  });
})"""


def trained(kind: str) -> Tokenizer:
    """A small tokenizer as GPT-2's or as Qwen2's is."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind == "qwen":
        split = pre_tokenizers.Split(Regex(QWEN), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=390, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([__doc__ or "", *TEXTS * 3, Path(__file__).read_text()], trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<|user|>", special=False)])
    return tokenizer


@pytest.mark.parametrize("kind", ["gpt2", "qwen"])
def test_the_tokens_and_the_text(page: Any, kind: str) -> None:
    tokenizer = trained(kind)
    found = page.evaluate(TOKENS, [tokenizer_json(tokenizer, 1000), TEXTS])
    for text, (ids, decoded, whole, cut) in zip(TEXTS, found):
        expected = tokenizer.encode(text).ids
        assert ids == expected, text
        assert decoded == tokenizer.decode(expected)
        assert whole == tokenizer.decode(expected, skip_special_tokens=False)
        assert cut == tokenizer.decode(expected[:-1])


def test_characters(page: Any) -> None:
    alphabet = "\n abcdé😀."
    data = tokenizer_json(alphabet, 9)
    ((ids, text, *_),) = page.evaluate(TOKENS, [data, ["bad😀 é.\na"]])
    assert ids == [alphabet.index(c) for c in "bad😀 é.\na"] == Tokenizer.from_str(data).encode("bad😀 é.\na").ids
    assert text == "bad😀 é.\na" == Tokenizer.from_str(data).decode(ids)


def test_what_is_not_known_is_said(page: Any) -> None:
    data = Tokenizer(models.Unigram([("a", 0.0)])).to_str()
    error = page.evaluate(f"args => failure(() => ({TOKENS})(args))", [data, [""]])
    assert error["kind"] == "unsupported"
    assert "Unigram" in error["message"]
    assert "transformers.js" in error["message"]
