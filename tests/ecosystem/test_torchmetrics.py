"""``torchmetrics``: metrics whose state lies on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE

from .compare import assert_on, to, without_fallbacks

torchmetrics = pytest.importorskip("torchmetrics")
LIBRARY = "torchmetrics"

CLASSES = 4
MANY = {"num_classes": CLASSES}


def classification() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, CLASSES).softmax(-1), torch.randint(CLASSES, (32,))


def binary() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(32), torch.randint(2, (32,))


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32), torch.randn(32)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(2, 3, 24, 24), torch.rand(2, 3, 24, 24)


def predicted_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 8, CLASSES), torch.randint(CLASSES, (2, 8))


def ranked() -> tuple[torch.Tensor, ...]:
    return torch.rand(32), torch.randint(2, (32,)), torch.arange(32) // 8


METRICS: dict[str, tuple[dict[str, Any], Any]] = {
    "classification.MulticlassAccuracy": (MANY, classification),
    "classification.MulticlassF1Score": ({**MANY, "average": "macro"}, classification),
    "classification.MulticlassConfusionMatrix": (MANY, classification),
    "classification.MulticlassAUROC": (MANY, classification),
    "classification.MulticlassAveragePrecision": ({**MANY, "thresholds": 20}, classification),
    "classification.MulticlassCalibrationError": (MANY, classification),
    "classification.MulticlassCohenKappa": (MANY, classification),
    "classification.MulticlassMatthewsCorrCoef": (MANY, classification),
    "classification.BinaryAUROC": ({}, binary),
    "classification.BinaryPrecisionRecallCurve": ({"thresholds": 10}, binary),
    "regression.MeanSquaredError": ({}, numbers),
    "regression.MeanAbsoluteError": ({}, numbers),
    "regression.PearsonCorrCoef": ({}, numbers),
    "regression.SpearmanCorrCoef": ({}, numbers),
    "regression.R2Score": ({}, numbers),
    "image.PeakSignalNoiseRatio": ({"data_range": 1.0}, images),
    "image.StructuralSimilarityIndexMeasure": ({"data_range": 1.0}, images),
    "text.Perplexity": ({}, predicted_tokens),
    "retrieval.RetrievalMRR": ({}, ranked),
    "retrieval.RetrievalNormalizedDCG": ({}, ranked),
}


def measured(name: str, device: torch.device | str) -> Any:
    """The metric over two batches."""
    options, make = METRICS[name]
    group, cls = name.split(".")
    metric = getattr(getattr(torchmetrics, group), cls)(**options).to(device)
    torch.manual_seed(0)
    for _ in range(2):
        metric.update(*to(make(), device))
    result = metric.compute()
    assert_on(device, result if isinstance(result, tuple) else [result], name)
    assert metric.device.type == torch.device(device).type
    return to(result, "cpu")


@pytest.mark.parametrize("name", METRICS)
def test_metric(name: str) -> None:
    with without_fallbacks():
        actual = measured(name, DEVICE)
    torch.testing.assert_close(actual, measured(name, "cpu"), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_collection_and_means() -> None:
    collection = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(**MANY),
            "recall": torchmetrics.classification.MulticlassRecall(**MANY),
        }
    )
    on_device = collection.clone().to(DEVICE)
    mean = torchmetrics.MeanMetric().to(DEVICE)
    for _ in range(3):
        batch = classification()
        expected = collection(*batch)
        actual = on_device(*to(batch, DEVICE))
        mean.update(actual["accuracy"])
        torch.testing.assert_close(to(actual, "cpu"), expected)
    assert_on(DEVICE, on_device.compute().values(), "MetricCollection")
    torch.testing.assert_close(to(on_device.compute(), "cpu"), collection.compute())
    assert mean.compute().device.type == DEVICE.type
