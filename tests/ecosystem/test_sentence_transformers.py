"""``sentence-transformers``: embeddings, and a short training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .architectures import ARCHITECTURES
from .compare import assert_on, without_fallbacks
from .data import assert_learned

sentence_transformers = pytest.importorskip("sentence_transformers")
LIBRARY = "sentence-transformers"

WORDS = "the a cat dog bird sleeps runs sings eats fish on under near red green house tree".split()
SENTENCES = [
    "the cat sleeps",
    "a dog runs near the house",
    "the red bird sings on the green tree",
    "a fish",
    "the dog eats a fish under the tree",
    "a bird eats",
]


def encoder(folder: Path, device: torch.device | str) -> Any:
    """BERT with random weights and a vocabulary of a few words, saved and loaded as a published model is."""
    import transformers
    from sentence_transformers import models

    folder.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    model = ARCHITECTURES["bert"].model()
    model.bert.save_pretrained(folder)
    word_embeddings = models.Transformer(str(folder), max_seq_length=16)
    pooling = models.Pooling(word_embeddings.get_word_embedding_dimension(), pooling_mode="mean")
    return sentence_transformers.SentenceTransformer(modules=[word_embeddings, pooling], device=str(device))


def test_encoding(tmp_path: Path) -> None:
    on_cpu, on_device = encoder(tmp_path, "cpu"), encoder(tmp_path, DEVICE)
    assert_on(DEVICE, on_device.parameters(), "SentenceTransformer")
    expected = on_cpu.encode(SENTENCES, convert_to_tensor=True, batch_size=4)
    with without_fallbacks():
        actual = on_device.encode(SENTENCES, convert_to_tensor=True, batch_size=4)
        similar = on_device.similarity(actual, actual)
    assert_on(DEVICE, [actual, similar], "encode")
    assert expected.std() > 0.1
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(similar.cpu(), on_cpu.similarity(expected, expected), rtol=1e-4, atol=1e-5)
    numbers = on_device.encode(SENTENCES, normalize_embeddings=True)
    assert numbers.shape == (6, 32)
    assert abs((numbers**2).sum(-1) - 1).max() < 1e-5


def test_search(tmp_path: Path) -> None:
    embeddings = encoder(tmp_path, DEVICE).encode(SENTENCES, convert_to_tensor=True)
    assert_on(DEVICE, [embeddings], "semantic_search")
    hits = sentence_transformers.util.semantic_search(embeddings, embeddings, top_k=2)
    assert [h[0]["corpus_id"] for h in hits] == list(range(6))


def trained(folder: Path, device: torch.device | str) -> list[float]:
    from datasets import Dataset
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = encoder(folder, device)
    pairs = Dataset.from_dict({"anchor": SENTENCES * 8, "positive": [" ".join(s.split()[::-1]) for s in SENTENCES] * 8})
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=torch.device(device).type == "cpu",
        max_steps=8,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=pairs,
        loss=MultipleNegativesRankingLoss(model),
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.train()
    assert trainer.args.device.type == torch.device(device).type
    assert_on(device, model.parameters(), "SentenceTransformerTrainer")
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_training(tmp_path: Path) -> None:
    pytest.importorskip("datasets")  # what its trainer takes
    on_device = trained(tmp_path / "device", DEVICE)
    assert_learned(on_device)
    assert on_device == pytest.approx(trained(tmp_path / "cpu", "cpu"), rel=1e-3)
