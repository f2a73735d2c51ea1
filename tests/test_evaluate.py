"""What an evaluation says of logits, against counting by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import top_k_accuracy_score
from torch import Tensor

from narl.train.evaluate import Evaluation

CLASSES = 13


def by_counting(logits: Tensor, labels: Tensor, places: int) -> float:
    """Sample by sample: the classes in order, the larger logit first, of equal ones the earlier class."""
    hits = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda place: (-row[place], place))
        hits += label in order[:places]
    return hits / len(labels)


@given(
    # Whole numbers, so that many are equal.
    arrays.arrays(np.float32, (7, CLASSES), elements=st.integers(-3, 3).map(float)),
    arrays.arrays(np.int64, 7, elements=st.integers(0, CLASSES - 1)),
)
def test_top_5_is_what_counting_says(values: np.ndarray, given_labels: np.ndarray) -> None:
    logits, labels = torch.from_numpy(values), torch.from_numpy(given_labels)
    found = Evaluation.of(logits, labels)
    assert found.top5_accuracy == pytest.approx(by_counting(logits, labels, 5))
    assert found.accuracy == pytest.approx(by_counting(logits, labels, 1))
    assert found.top5_accuracy is not None
    assert found.top5_accuracy >= found.accuracy


def test_top_5_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, labels = torch.randn(500, 50, generator=generator), torch.arange(500) % 50
    assert Evaluation.of(logits, labels).top5_accuracy == pytest.approx(
        top_k_accuracy_score(labels.numpy(), logits.numpy(), k=5)
    )


def test_top_5_is_for_more_than_ten_classes() -> None:
    assert Evaluation.of(torch.eye(10), torch.arange(10)).top5_accuracy is None
    assert Evaluation.of(torch.eye(11), torch.arange(11)).top5_accuracy == 1


def test_what_is_no_number_is_no_hit() -> None:
    logits = torch.zeros(2, 12)
    logits[0] = torch.nan
    logits[1, 3:9] = torch.nan
    assert Evaluation.of(logits, torch.tensor([0, 0])).top5_accuracy == 0
