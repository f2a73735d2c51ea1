"""What labels say besides a classifier: Bayes' rule against loops, and the noise that is found against the true one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from torch.testing import assert_close

from narl import noise
from narl.errors import OptionError
from narl.train.methods.evidence import Evidence, elsewhere
from narl.train.methods.guesses import Doubts, guessed


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
    found = with_noise(transition)(logits, y)
    p, exact = logits.double().softmax(1), transition.double()
    for row in range(7):
        joint = [float(p[row, j] * exact[j, y[row]]) for j in range(classes)]
        assert found[row].tolist() == pytest.approx([value / sum(joint) for value in joint], rel=1e-3, abs=1e-6)
    assert_close(with_noise(transition)(logits, one_hot(y, classes).float()), found)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_extreme_logits_and_noise_stay_finite(scale: float) -> None:
    evidence = with_noise(torch.eye(3))
    logits, y = scale * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]]), torch.tensor([1, 0])
    found = evidence(logits, y)
    wrong, others = elsewhere(found, y)
    assert all(bool(part.isfinite().all()) for part in (found, wrong, others))
    assert_close(found.sum(1), torch.ones(2))


def test_the_odds_that_a_label_adds() -> None:
    """With ten classes and symmetric noise: (1 - η) (c - 1) / η."""
    for rate, odds in ((0.8, 2.25), (0.4, 13.5)):
        transition = torch.full((10, 10), rate / 9).fill_diagonal_(1 - rate)
        found = with_noise(transition)(torch.zeros(1, 10), torch.tensor([3]))[0]
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
        for ids in torch.randperm(count, generator=generator).split(100):
            evidence.remember(p[ids].log(), y[ids])
    assert_close(evidence.transition, expected, rtol=0, atol=0.05)
    at_first = Evidence(classes, count)(p.log(), y)
    accuracy = [float((found.argmax(1).numpy() == true).mean()) for found in (at_first, evidence(p.log(), y))]
    assert accuracy[1] > accuracy[0] + 0.05  # labels help, although 40 % of them are wrong


def test_an_epoch_ago_counts_as_much_as_memory_says() -> None:
    evidence, y = Evidence(3, num_samples=40, memory=0.25), torch.arange(40) % 3
    logits = 50 * one_hot(y, 3).float()
    evidence.seen.copy_(torch.full((3, 3), 100.0))
    for ids in torch.arange(40).split(10):
        evidence.remember(logits[ids], y[ids], torch.zeros(10))
    assert_close(evidence.seen, torch.full((3, 3), 25.0))
    evidence.remember(logits[:10], y[:10], torch.tensor([1.0] + [0.0] * 9))
    assert float(evidence.seen.sum()) == pytest.approx(9 * 25.0 * 0.25**0.25 + 1)


def test_label_and_guess_together_are_the_posterior() -> None:
    doubts = Doubts("posterior", 50, num_classes=3)
    generator = torch.Generator().manual_seed(2)
    logits, y, ids = 2 * torch.randn(50, 3, generator=generator), torch.arange(50) % 3, torch.arange(50)
    assert doubts.evidence is not None
    doubts.evidence.seen.copy_(1e6 * drawn_noise(3, generator))
    suspicion = doubts(None, logits, y, ids)  # type: ignore[arg-type]
    told = guessed(logits, suspicion, temperature=1.0, confidence=0.0, suspicion=0.0, chances=doubts.chances(logits, y))
    together = (1 - told.taken).unsqueeze(1) * one_hot(y, 3) + told.weights.unsqueeze(1) * told.targets
    assert_close(together, doubts.evidence(logits, y), rtol=1e-4, atol=1e-5)


def test_what_is_known_to_be_right_says_nothing_of_the_noise() -> None:
    trusted = torch.tensor([True, False])
    doubts = Doubts("posterior", 2, trusted=trusted, num_classes=2)
    logits, y, ids = torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([1, 1]), torch.arange(2)
    doubts.remember(logits, y, ids)
    assert doubts.evidence is not None
    assert_close(doubts.evidence.seen, torch.tensor([[0.0, 0.0], [0.0, 1.0]]), atol=1e-3, rtol=0)
    assert doubts(None, logits, y, ids)[0] == 0  # type: ignore[arg-type]
    assert "evidence.seen" in doubts.state_dict()
    assert "evidence.seen" not in Doubts("margin", 2).state_dict()


@pytest.mark.parametrize(("kind", "classes"), [("posterior", None), ("losses", 3)])
def test_what_cannot_be_doubted_by_is_said(kind: str, classes: int | None) -> None:
    with pytest.raises(OptionError, match="margin, loss, posterior"):
        Doubts(kind, 5, num_classes=classes)
