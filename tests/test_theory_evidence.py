"""What labels are worth under symmetric noise, by Bayes' rule over all classes, and the JS that weighs them so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from narl import losses
from narl.errors import LogitsError, NoiseError
from narl.noise.matrices import symmetric_matrix
from narl.theory import even_probability, js_weight, right_label


def pulls(pi1: float, probabilities: Tensor, num_classes: int) -> Tensor:
    """What JS's gradient by the label's logit is of cross entropy's."""
    others = ((1 - probabilities) / (num_classes - 1)).unsqueeze(1).expand(-1, num_classes - 1)
    logits = torch.cat([probabilities.unsqueeze(1), others], dim=1).log().requires_grad_()
    values = losses.js(logits, torch.zeros(len(probabilities), dtype=torch.long), pi1)
    (slope,) = torch.autograd.grad(values.sum(), logits)
    return -slope[:, 0] / (1 - probabilities)


@given(st.integers(2, 30), st.floats(0, 0.95), st.integers(0, 10**6))
def test_bayes_rule_over_all_classes(num_classes: int, share: float, seed: int) -> None:
    rate = share * (1 - 1 / num_classes)
    matrix = torch.as_tensor(symmetric_matrix(num_classes, rate), dtype=torch.float64)
    beforehand = torch.rand(num_classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1e-6
    beforehand /= beforehand.sum()
    given_label = beforehand.unsqueeze(1) * matrix  # (true, given)
    expected = given_label.diagonal() / given_label.sum(dim=0)
    assert torch.allclose(right_label(beforehand, rate, num_classes), expected, rtol=1e-9)


@given(st.integers(2, 1000), st.floats(1e-6, 0.9))
def test_js_weighs_by_half_where_a_label_is_as_likely_wrong(num_classes: int, share: float) -> None:
    rate = share * (1 - 1 / num_classes)
    even = torch.tensor([even_probability(rate, num_classes)], dtype=torch.float64)
    assert right_label(even, rate, num_classes).item() == pytest.approx(0.5)
    assert pulls(js_weight(rate, num_classes), even, num_classes).item() == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("num_classes", [100, 200, 1000])
@pytest.mark.parametrize("rate", [0.1, 0.2, 0.4, 0.6])
def test_with_many_classes_js_weighs_nearly_as_bayes_rule(num_classes: int, rate: float) -> None:
    p = torch.logspace(-5, -1e-3, 50, dtype=torch.float64)
    apart = pulls(js_weight(rate, num_classes), p, num_classes) - right_label(p, rate, num_classes)
    assert apart.abs().max() < 0.07


def test_without_noise_it_is_cross_entropy() -> None:
    assert even_probability(0.0, 10) == 0
    p = torch.tensor([1e-3, 0.3, 0.9], dtype=torch.float64)
    assert pulls(js_weight(0.0, 10), p, 10).numpy() == pytest.approx(1, abs=1e-6)
    assert right_label(torch.tensor([0.0, 0.3]), 0.0, 10).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (torch.tensor([0.3, 1.5]), "outside 0 to 1"),
        (torch.tensor(-0.1), "outside 0 to 1"),
        (torch.tensor([torch.nan]), "or NaN"),
        (torch.tensor([0, 1]), "is torch.int64"),
        (0.3, "is a float: give a tensor"),
    ],
)
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_what_is_no_probability_is_refused(probability: Any, words: str, rate: float) -> None:
    with pytest.raises(LogitsError, match=words):
        right_label(probability, rate, 10)


def test_half_precision_is_lifted() -> None:
    found = right_label(torch.tensor([[0.5]], dtype=torch.bfloat16), 0.8, 10)
    assert found.shape == (1, 1)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(9 / 13)


def test_noise_that_hides_the_truth_is_refused() -> None:
    with pytest.raises(NoiseError, match="give a smaller rate"):
        js_weight(0.9, 10)


@pytest.mark.parametrize("rate", [0.0, 1e-13, 1e-9, 0.4999])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_js_takes_it(rate: float, num_classes: int) -> None:
    pi1 = js_weight(rate, num_classes)
    assert losses.js(torch.zeros(1, num_classes), torch.tensor([0]), pi1).isfinite().all()


def test_it_ends_where_js_ends() -> None:
    (pi1,) = losses.get("js").hyperparameters
    assert js_weight(0.4999, 2) == pi1.high
    assert js_weight(0.0, 10) == js_weight(1e-13, 10) == pi1.low
