"""What the compared systems are made of, each part against a loop, a formula or another implementation."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from narl import errors
from narl.train.methods.co_teaching import forget_rate, small_losses
from narl.train.methods.divide_mix import confidence_penalty, divided, imbalance, refined
from narl.train.methods.elr import Memory, agreement, bounded, elr_regulariser
from narl.train.methods.loss_mixture import clean_probability, scaled_losses
from narl.train.methods.mentor import Mentor, exchanged
from narl.train.methods.mentornet import predefined_weights
from narl.train.methods.mixing import Mixer, beta_share, linear_ramp, mixed, one_hot, sharpened, sigmoid_ramp
from narl.train.methods.pair import mean_prediction


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def probabilities(seed: int, n: int = 6, c: int = 4) -> Tensor:
    return (3 * torch.randn(n, c, generator=drawn(seed), dtype=torch.float64)).softmax(1)


@given(st.integers(0, 10_000), st.floats(0.05, 1))
def test_sharpening_is_a_power(seed: int, temperature: float) -> None:
    p = probabilities(seed)
    expected = torch.stack([row ** (1 / temperature) / (row ** (1 / temperature)).sum() for row in p])
    torch.testing.assert_close(sharpened(p, temperature), expected)


def test_sharpening_at_its_ends() -> None:
    p = torch.tensor([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [1e-30, 3e-30, 1.0]])
    torch.testing.assert_close(sharpened(p, 1.0), p)
    assert torch.equal(sharpened(p, 0.0), torch.eye(3)[[0, 1, 2]])
    assert sharpened(p, 0.1).isfinite().all()


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.5, 1))
def test_mixtures_are_those_of_a_loop(seed: int, n: int, share: float) -> None:
    x = torch.randn(n, 2, 3, generator=drawn(seed), dtype=torch.float64)
    order = torch.randperm(n, generator=drawn(seed))
    expected = torch.stack([share * x[i] + (1 - share) * x[order[i]] for i in range(n)])
    torch.testing.assert_close(mixed(x, order, share), expected)
    torch.testing.assert_close(Mixer("image", {})(x, order, share), expected)
    rows = x.flatten(1)
    part = Mixer("table", {"numbers": 4})(rows, order, share)
    torch.testing.assert_close(part[:, :4], mixed(rows[:, :4], order, share))
    assert torch.equal(part[:, 4:], rows[:, 4:])


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(errors.OptionError, match="texts cannot be mixed"):
        Mixer("text", {})
    words = torch.tensor([[3, 1], [2, 0]])
    assert Mixer("text", {}, alpha=0)(words, torch.tensor([1, 0]), 1.0) is words
    with pytest.raises(errors.OptionError, match=r"a tensor of torch\.int64"):
        Mixer(None, {})(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([1, 0]), 0.7)


def test_shares_are_the_larger_ones_of_a_beta_distribution() -> None:
    generator = drawn(0)
    shares = np.array([beta_share(4.0, generator) for _ in range(2000)])
    assert shares.min() >= 0.5
    folded = np.random.default_rng(1).beta(4, 4, 200_000)
    np.testing.assert_allclose(shares.mean(), np.maximum(folded, 1 - folded).mean(), atol=0.01)
    assert beta_share(1.0, drawn(5)) == beta_share(1.0, drawn(5)) != beta_share(1.0, drawn(6))
    assert beta_share(0.0, drawn(5)) == 1.0


def test_ramps() -> None:
    assert [linear_ramp(done, 4) for done in (-1, 0, 1, 4, 9)] == [0, 0, 0.25, 1, 1]
    assert linear_ramp(0, 0) == 1
    for done in (0.0, 3.0, 10.0):
        assert sigmoid_ramp(done, 10) == pytest.approx(math.exp(-5 * (1 - done / 10) ** 2))
    assert sigmoid_ramp(0, 0) == 1


@given(st.integers(0, 10_000))
def test_the_mean_prediction_is_that_of_the_probabilities(seed: int) -> None:
    logits = [10 * torch.randn(5, 3, generator=drawn(seed + i), dtype=torch.float64) for i in range(2)]
    expected = (logits[0].softmax(1) + logits[1].softmax(1)) / 2
    torch.testing.assert_close(mean_prediction(logits).exp(), expected)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 1))
def test_small_losses_are_the_smallest(values: list[float], forget: float) -> None:
    chosen = small_losses(torch.tensor(values, dtype=torch.float64), forget).tolist()
    assert len(chosen) == len(set(chosen)) == max(1, math.floor((1 - forget) * len(values) + 1e-9))
    others = [values[i] for i in range(len(values)) if i not in chosen]
    assert all(values[i] <= other for i in chosen for other in others)


def test_the_forget_rate_rises_and_stays() -> None:
    assert [round(forget_rate(epoch, 0.45, 10), 6) for epoch in (0, 1, 9, 10, 100)] == [0, 0.045, 0.405, 0.45, 0.45]
    assert forget_rate(3, 0.4, 10, exponent=2) == pytest.approx(0.4 * 9 / 10)
    assert forget_rate(0, 0.4, 0) == 0.4
    assert forget_rate(12, 0.4, 10, exponent=1000) == 0.4  # 12 to the power of 1000 is no float


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_the_regulariser_and_its_gradient_are_the_paper_s(seed: int, c: int) -> None:
    logits = torch.randn(5, c, generator=drawn(seed), dtype=torch.float64, requires_grad=True)
    targets = 0.9 * probabilities(seed + 1, 5, c)
    values = elr_regulariser(logits, targets)
    values.sum().backward()  # type: ignore[no-untyped-call]
    for i in range(len(logits)):
        p, t = logits[i].detach().softmax(0), targets[i]
        inner = sum(float(p[k] * t[k]) for k in range(c))
        assert float(values[i].detach()) == pytest.approx(math.log(1 - inner))
        for k in range(c):
            slope = float(p[k]) / (1 - inner) * sum(float((t[j] - t[k]) * p[j]) for j in range(c))
            assert logits.grad is not None
            assert float(logits.grad[i, k]) == pytest.approx(slope, abs=1e-9)
    assert torch.autograd.gradcheck(lambda z: elr_regulariser(z, targets), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_regulariser_is_finite_for_any_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    memory = Memory(2, 3, 0.5, torch.device("cpu"))
    for _ in range(200):  # targets as sure as they can get
        memory.write(torch.arange(2), memory.moved(torch.arange(2), bounded(logits)))
    values = elr_regulariser(logits, memory.targets)
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert values.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    torch.testing.assert_close(memory.targets.sum(1), torch.ones(2))


def test_agreement_of_indices_and_of_probabilities() -> None:
    targets, y = probabilities(0), torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(agreement(targets, y), agreement(targets, F.one_hot(y, 4)))
    with pytest.raises(errors.SampleIdsError, match="the training set has 2 samples"):
        Memory(2, 4, 0.5, torch.device("cpu")).moved(torch.tensor([2]), targets[:1])


@settings(max_examples=15)
@given(st.integers(0, 500), st.floats(0.05, 0.95), st.floats(0.15, 0.6))
def test_the_mixture_is_scikit_learn_s(seed: int, share: float, apart: float) -> None:
    rng = np.random.default_rng(seed)
    wrong = rng.random(400) < share
    values = np.where(wrong, rng.normal(0.2 + apart, 0.1, 400), np.abs(rng.normal(0.1, 0.06, 400)))
    x = scaled_losses(torch.from_numpy(values))
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    # From the same two groups: scikit-learn would draw where its k-means begins.
    ours = clean_probability(x)
    cut = 0.5
    for _ in range(200):
        cut = float(x[x > cut].mean() + x[x <= cut].mean()) / 2
    groups = [x[x <= cut], x[x > cut]]
    theirs = GaussianMixture(
        2,
        max_iter=10,
        tol=1e-2,
        reg_covar=5e-4,
        weights_init=[len(group) / 400 for group in groups],
        means_init=[[float(group.mean())] for group in groups],
        precisions_init=[[[1 / (float(group.var(correction=0)) + 5e-4)]] for group in groups],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(x.numpy()[:, None])
    expected = theirs.predict_proba(x.numpy()[:, None])[:, int(theirs.means_.argmin())]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_mixture_finds_planted_labels(share: float) -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(5000) < share
    losses = np.where(wrong, rng.normal(3, 0.6, 5000), np.abs(rng.normal(0, 0.3, 5000)))
    judged = clean_probability(scaled_losses(torch.from_numpy(losses))) > 0.5
    assert ((~judged.numpy()) == wrong).mean() > 0.98


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.5, 3.0, 1e4]), min_size=1, max_size=12))
def test_any_losses_give_probabilities(values: list[float]) -> None:
    found = clean_probability(scaled_losses(torch.tensor(values)))
    assert ((found >= 0) & (found <= 1)).all()
    if len(set(values)) == 1:
        assert (found == 1).all()


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.floats(0.2, 1))
def test_co_refinement_is_that_of_a_loop(seed: int, temperature: float) -> None:
    p, y = probabilities(seed).float(), torch.randint(0, 4, (6,), generator=drawn(seed))
    w = torch.rand(6, generator=drawn(seed))
    found = refined(one_hot(y, 4), p, w, temperature)
    for i in range(6):
        between = w[i] * torch.eye(4)[y[i]] + (1 - w[i]) * p[i]
        powered = between ** (1 / temperature)
        torch.testing.assert_close(found[i], powered / powered.sum(), rtol=1e-4, atol=1e-5)


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_penalties_are_the_naive_formulas(seed: int) -> None:
    logits = torch.randn(6, 4, generator=drawn(seed), dtype=torch.float64, requires_grad=True)
    p = logits.softmax(1)
    torch.testing.assert_close(confidence_penalty(logits), (p * p.log()).sum(1).mean())
    mean = p.mean(0)
    torch.testing.assert_close(imbalance(logits), sum(0.25 * torch.log(0.25 / mean[k]) for k in range(4)))
    assert torch.autograd.gradcheck(imbalance, logits)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.integers(1, 6))
def test_samples_are_divided_into_two(values: list[float], threshold: float, least: int) -> None:
    clean = torch.tensor(values, dtype=torch.float64)
    labelled, others = divided(clean, threshold, min(least, len(values)))
    assert sorted([*labelled.tolist(), *others.tolist()]) == list(range(len(values)))
    above = [i for i, value in enumerate(values) if value > threshold]
    if len(above) >= min(least, len(values)):
        assert labelled.tolist() == above
    else:
        assert len(labelled) == min(least, len(values))
        assert all(values[i] >= values[j] for i in labelled.tolist() for j in others.tolist())


@given(st.lists(st.floats(0, 20), min_size=1, max_size=20), st.floats(0, 10), st.floats(0, 5))
def test_the_predefined_curriculum_is_that_of_a_loop(values: list[float], threshold: float, slope: float) -> None:
    found = predefined_weights(torch.tensor(values, dtype=torch.float64), threshold, slope).tolist()
    for value, weight in zip(values, found, strict=True):
        expected = min(max(1 - (value - threshold) / slope, 0), 1) if slope else float(value <= threshold)
        assert weight == pytest.approx(expected)


def test_exchanged_labels() -> None:
    y = torch.arange(3000) % 5
    often = torch.tensor([0.5, 0.3, 0.0, 0.1, 0.1])  # of the class itself, of the next one, …
    predictions = torch.stack([often.roll(int(label)) for label in y])
    labels, right = exchanged(y, predictions, drawn(0))
    assert torch.equal(labels == y, right)
    assert 0.45 < float(right.float().mean()) < 0.55
    counts = torch.bincount((labels - y)[~right] % 5, minlength=5) / int((~right).sum())
    np.testing.assert_allclose(counts, [0, 0.6, 0, 0.2, 0.2], atol=0.04)
    assert torch.equal(exchanged(F.one_hot(y, 5).float(), predictions, drawn(0))[0], labels)
    sure = F.one_hot(y, 5).float()  # of the right class: any other one
    labels, right = exchanged(y, sure, drawn(0))
    assert torch.equal(labels == y, right)
    assert torch.bincount((labels - y)[~right] % 5, minlength=5)[1:].min() > 250


def test_the_mentor_has_the_parts_of_the_paper_s_network() -> None:
    mentor, again = Mentor(4, generator=drawn(0)), Mentor(4, generator=drawn(0))
    assert all(torch.equal(a, b) for a, b in zip(mentor.parameters(), again.parameters(), strict=True))
    assert (mentor.history.hidden_size, mentor.history.bidirectional) == (1, True)
    assert mentor.label.weight.shape == (4, 2)
    assert mentor.progress.weight.shape == (100, 5)
    values, labels = torch.tensor([0.5, 2.0]), torch.tensor([3, 0])
    found = mentor(values, values - 1, labels, 1.0)
    # An LSTM of one unit and one step, by hand: both directions see the same.
    units = []
    for suffix in ("", "_reverse"):
        cell = mentor.history
        gates = torch.stack([values, values - 1], 1) @ getattr(cell, f"weight_ih_l0{suffix}").t()
        gates = gates + getattr(cell, f"bias_ih_l0{suffix}") + getattr(cell, f"bias_hh_l0{suffix}")
        enter, _, new, leave = gates.unbind(1)
        units.append(leave.sigmoid() * (enter.sigmoid() * new.tanh()).tanh())
    known = torch.cat([torch.stack(units, 1), mentor.label(labels), mentor.progress.weight[99].expand(2, -1)], 1)
    torch.testing.assert_close(found, mentor.output(mentor.hidden(known).tanh()).squeeze(1))
