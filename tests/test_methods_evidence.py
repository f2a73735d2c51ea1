"""What labels say besides a classifier: Bayes' rule against loops, and the noise that is found against the true one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from torch.testing import assert_close

from narl import Adjuster, noise
from narl.errors import LabelError, LogitsError
from narl.train.methods.evidence import Evidence, if_wrong
from narl.train.methods.guesses import DOUBTS, ByPosterior, guessed


def with_noise(transition: torch.Tensor, num_samples: int = 1000) -> Evidence:
    evidence = Evidence(len(transition), num_samples, memory=1.0)
    evidence.seen.copy_(1e7 * transition)
    return evidence


def drawn_noise(classes: int, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(classes, classes, generator=generator).softmax(1)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6), st.floats(0.1, 50))
def test_probabilities_are_those_of_bayes_rule(classes: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    transition = drawn_noise(classes, generator)
    logits = scale * torch.randn(7, classes, generator=generator)
    y = torch.randint(0, classes, (7,), generator=generator)
    found = with_noise(transition)(logits, y).exp()
    p, exact = logits.double().softmax(1), transition.double()
    for row in range(7):
        joint = [float(p[row, j] * exact[j, y[row]]) for j in range(classes)]
        assert found[row].tolist() == pytest.approx([value / sum(joint) for value in joint], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1.0, 150.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits_and_noise_stay_finite(scale: float, dtype: torch.dtype) -> None:
    """Where the label contradicts the classifier, and where nothing does."""
    evidence, y = with_noise(torch.eye(3)), torch.tensor([1, 0, 0])
    logits = scale * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=dtype)
    wrong, others = if_wrong(evidence(logits, y), y)
    told = guessed(logits, wrong, temperature=0.5, confidence=0.0, suspicion=0.0, chances=others)
    assert all(bool(part.isfinite().all()) for part in (wrong, others, told.targets, told.weights))
    assert_close(others.sum(1), torch.ones(3))
    assert wrong.dtype == torch.float32
    assert not others[torch.arange(3), y].any()


def test_the_odds_that_a_label_adds() -> None:
    """With ten classes and symmetric noise: (1 - η) (c - 1) / η."""
    for rate, odds in ((0.8, 2.25), (0.4, 13.5)):
        transition = torch.full((10, 10), rate / 9).fill_diagonal_(1 - rate)
        found = with_noise(transition)(torch.zeros(1, 10), torch.tensor([3])).exp()[0]
        assert float(found[3] / found[0]) == pytest.approx(odds, rel=1e-3)


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_the_noise_is_found_where_the_classifier_knows_its_chances(kind: str) -> None:
    """Ten thousand samples whose probabilities are what they say, ten epochs, no clean sample."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    classes, count = 4, 10_000
    p = torch.from_numpy(rng.dirichlet(np.full(classes, 0.3), count)).float().clamp_min(1e-6)
    true = np.array([rng.choice(classes, p=row / row.sum()) for row in p.double().numpy()])
    make = {"symmetric": noise.symmetric, "pair": noise.pair}[kind]
    y = torch.from_numpy(np.asarray(make(true, 0.4, classes, seed=0)))
    expected = torch.stack([y[true == j].bincount(minlength=classes) / (true == j).sum() for j in range(classes)])
    evidence = Evidence(classes, count, memory=0.5)
    for _ in range(10):
        for ids in torch.split(torch.randperm(count, generator=generator), 100):
            evidence.remember(p[ids].log(), y[ids])
    assert_close(evidence.transition, expected, rtol=0, atol=0.05)
    at_first = Evidence(classes, count)(p.log(), y)
    accuracy = [float((found.argmax(1).numpy() == true).mean()) for found in (at_first, evidence(p.log(), y))]
    assert accuracy[1] > accuracy[0] + 0.05  # labels help, although 40 % of them are wrong


def test_an_epoch_ago_counts_as_much_as_memory_says() -> None:
    evidence, y = Evidence(3, num_samples=40, memory=0.25), torch.arange(40) % 3
    logits = 50 * one_hot(y, 3).float()
    evidence.seen.copy_(torch.full((3, 3), 100.0))
    for ids in torch.split(torch.arange(40), 10):
        evidence.remember(logits[ids], y[ids], torch.zeros(10))
    assert_close(evidence.seen, torch.full((3, 3), 25.0))
    evidence.remember(logits[:10], y[:10], torch.tensor([1.0] + [0.0] * 9))
    assert float(evidence.seen.sum()) == pytest.approx(9 * 25.0 * 0.25**0.25 + 1)


@pytest.mark.parametrize("classes", [10, 100])
def test_without_memory_an_epoch_still_counts(classes: int) -> None:
    """Of one batch the noise of a hundred classes could not be told."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(5000) % classes
    y = torch.from_numpy(np.asarray(noise.symmetric(true.numpy(), 0.2, classes, seed=0)))
    evidence = Evidence(classes, 5000, memory=0.0)
    for ids in torch.split(torch.randperm(5000, generator=generator), 100):
        evidence.remember(9.0 * one_hot(true[ids], classes), y[ids])
    assert_close(evidence.transition.diagonal(), torch.full((classes,), 0.8), rtol=0, atol=0.25)


def test_label_and_guess_together_are_the_posterior() -> None:
    doubts = ByPosterior(None, num_classes=3, num_samples=50)
    generator = torch.Generator().manual_seed(2)
    logits, y, ids = 2 * torch.randn(50, 3, generator=generator), torch.arange(50) % 3, torch.arange(50)
    doubts.evidence.seen.copy_(1e6 * drawn_noise(3, generator))
    suspicion, chances = doubts(Adjuster("gce", [5, 5, 5]), logits, y, ids)
    told = guessed(logits, suspicion, temperature=1.0, confidence=0.0, suspicion=0.0, chances=chances)
    together = (1 - told.taken).unsqueeze(1) * one_hot(y, 3) + told.weights.unsqueeze(1) * told.targets
    assert_close(together, doubts.evidence(logits, y).exp(), rtol=1e-4, atol=1e-5)


def test_what_is_known_to_be_right_says_nothing_of_the_noise() -> None:
    trusted = torch.tensor([True, False])
    doubts = ByPosterior(trusted, num_classes=2, num_samples=2)
    logits, y, ids = torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([1, 1]), torch.arange(2)
    doubts.remember(logits, y, ids)
    assert_close(doubts.evidence.seen, torch.tensor([[0.0, 0.0], [0.0, 1.0]]), atol=1e-3, rtol=0)
    of_all = ByPosterior(torch.ones(2, dtype=torch.bool), num_classes=2, num_samples=2)
    of_all.remember(logits, y, ids)
    assert not of_all.evidence.seen.any()
    suspicion, _ = doubts(Adjuster("gce", [5, 5]), logits, y, ids)
    assert suspicion[0] == 0 < suspicion[1]
    by_evidence = [kind for kind, make in DOUBTS.items() if "evidence.seen" in make(None, 2, 2, 0.9).state_dict()]
    assert by_evidence == ["posterior"]


@pytest.mark.parametrize("y", [torch.tensor([3]), torch.tensor([-1]), torch.tensor([[0.2, 0.5, 0.3]])], ids=str)
def test_labels_that_are_none_are_refused(y: torch.Tensor) -> None:
    with pytest.raises(LabelError):
        Evidence(3, 5)(torch.zeros(1, 3), y)
    with pytest.raises(LogitsError):
        Evidence(3, 5)(torch.full((1, 3), torch.nan), torch.tensor([0]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_may_be_of_any_integer_type(dtype: torch.dtype) -> None:
    evidence, logits, y = Evidence(3, 5), torch.eye(3), torch.tensor([0, 2, 1])
    evidence.remember(logits, y.to(dtype))
    again = Evidence(3, 5)
    again.remember(logits, y)
    assert_close(evidence.seen, again.seen)
    assert_close(evidence(logits, y.to(dtype)), again(logits, y))
