"""What labels are worth: Bayes' rule, the estimated noise rate, and losses that doubt no more labels than are wrong."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import narl
from command_line import done, refused
from methods_problem import adjusters_of, batches, built, interrupted, setting_of
from narl import AdjustedLoss, Adjuster, losses, noise, theory
from narl.adjuster import files, packs
from narl.adjuster.packs import Pack
from narl.adjuster.turns import meant_for
from narl.adjuster.worth import LabelWorth
from narl.errors import OptionError
from narl.integrations.learning import criterion_of, start
from narl.train import methods

ADJUSTABLE = [name for name in losses.names() if losses.get(name).hyperparameters]


def batch(n: int = 40, c: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, c, generator=generator), torch.randint(c, (n,), generator=generator)


def worth_of(classes: int, rate: float | str = "estimated", loss: str = "gce") -> LabelWorth:
    return LabelWorth(losses.get(loss), classes, rate)


def counted(worth: LabelWorth, logits: Tensor, labels: Tensor) -> None:
    worth.count(*worth.looked(logits, labels))


@given(
    st.floats(0.01, 0.6), st.integers(3, 300), st.lists(st.floats(-12, 12), min_size=3, max_size=3), st.integers(0, 2)
)
def test_it_is_what_bayes_rule_says(rate: float, classes: int, first: list[float], label: int) -> None:
    logits = torch.zeros(1, classes, dtype=torch.float64)
    logits[0, :3] = torch.tensor(first, dtype=torch.float64)
    found = worth_of(classes, rate).at(0.5).right(logits, torch.tensor([label]))
    expected = theory.right_label(logits.softmax(1)[:, label], rate, classes)
    assert_close(found, expected, rtol=1e-5, atol=1e-9)


def test_labels_drawn_from_a_noisy_channel_are_right_as_often_as_that() -> None:
    generator = torch.Generator().manual_seed(1)
    classes, rate, rows = 6, 0.5, 200_000
    logits = 2 * torch.randn(rows, classes, generator=generator)
    true = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    given_labels = noise.symmetric(true, rate, classes, seed=2)
    worth = worth_of(classes, rate).at(1.0).right(logits, given_labels)
    right = (given_labels == true).double()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        those = (worth >= low) & (worth < low + 0.2)
        assert float(worth[those].mean()) == pytest.approx(float(right[those].mean()), abs=0.01)


@pytest.mark.parametrize("name", ADJUSTABLE)
@given(st.floats(-30, -1e-4), st.data())
def test_what_a_loss_pulls_is_its_slope(name: str, log_p: float, data: Any) -> None:
    """By central differences, in float64, anywhere within the hyperparameters' spans."""
    robust = losses.get(name)
    chosen = {
        h.name: torch.tensor([data.draw(st.floats(*h.span))], dtype=torch.float64) for h in robust.hyperparameters
    }

    def value(at: float) -> Tensor:
        logits = torch.tensor([[at, math.log(-math.expm1(at))]], dtype=torch.float64)
        return robust(logits, torch.tensor([0]), **chosen)

    step = 1e-5 * min(1.0, -log_p)
    slope = (value(log_p - step) - value(log_p + step)) / (2 * step)
    assert robust.pull is not None
    found = robust.pull(torch.tensor([log_p], dtype=torch.float64), **chosen)
    assert_close(found, slope, rtol=2e-3, atol=2e-4)


def mostly_liked(n: int = 40, c: int = 5) -> tuple[Tensor, Tensor]:
    """As the classifier has it, but for a tenth: Bayes' rule doubts few of them, and leaves the learned loss some."""
    logits, labels = batch(n, c)
    return logits, torch.where(torch.arange(n) % 10 == 0, labels, logits.argmax(1))


def spread_over(name: str, n: int) -> dict[str, Tensor]:
    """Hyperparameters of each sample, anywhere within their spans."""
    generator = torch.Generator().manual_seed(5)
    return {
        h.name: h.span[0] + (h.span[1] - h.span[0]) * torch.rand(n, generator=generator)
        for h in losses.get(name).hyperparameters
    }


def counts_of(worth: LabelWorth, kappa: float, eta: float) -> LabelWorth:
    worth.counts.copy_(torch.tensor([kappa, 1.0, eta, 1.0]))
    return worth


def by_loops(
    worth: LabelWorth, name: str, logits: Tensor, labels: Tensor, given: dict[str, Tensor], most: float = 1.0
) -> Any:
    """The formulas, sample by sample, with the pull by autograd; of κ the learned loss goes by so much at most."""
    pulls, doubts = [], []
    classes, rate = logits.shape[1], float(worth.at_random)
    rate = min(max(rate, 0.01), 0.95 * (1 - 1 / classes))
    for row, label in enumerate(labels.tolist()):
        own = logits[row : row + 1].double().requires_grad_()
        hyperparameters = {key: values[row : row + 1].double() for key, values in given.items()}
        slopes = [
            torch.autograd.grad(part.sum(), own)[0][0, label]
            for part in (losses.get(name)(own, torch.tensor([label]), **hyperparameters), losses.ce(own, labels[[row]]))
        ]
        pulls.append(float(slopes[0] / slopes[1]))
        p = float(own.detach().softmax(1)[0, label])
        doubts.append(1 - (1 - rate) * p / ((1 - rate) * p + rate / (classes - 1) * (1 - p)))
    relative = [pull / np.mean(pulls) for pull in pulls]
    lacking = np.mean([max(0.0, 1 - one) for one in relative])
    scale = min(1.0, float(worth.rate) / np.mean(doubts))
    share = min(1.0, max(0.0, min(most, float(worth.rate)) - np.mean(doubts)) / lacking)
    left = [(1 - scale * doubt) * (1 - share + share * one) for doubt, one in zip(doubts, relative, strict=True)]
    weights = [min(one / np.mean(left), 10.0) for one in left]
    values = [-one * float(z.log_softmax(0)[y]) for one, z, y in zip(weights, logits.double(), labels, strict=True)]
    return values, [min(one, 1.0) for one in left]


@pytest.mark.parametrize("name", ADJUSTABLE)
@pytest.mark.parametrize("labelled", [batch, mostly_liked])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7])
def test_the_loss_is_what_the_formulas_say(
    name: str, labelled: Callable[[], tuple[Tensor, Tensor]], rate: float
) -> None:
    logits, labels = labelled()
    given_values = spread_over(name, 40)
    worth = worth_of(5, rate, name).at(0.6)
    values, kept = worth(logits, labels, given_values)
    expected_values, expected = by_loops(worth, name, logits, labels, given_values)
    assert_close(kept.double(), torch.tensor(expected), rtol=1e-3, atol=1e-4)
    assert_close(values.double(), torch.tensor(expected_values), rtol=1e-3, atol=1e-4)
    assert float(1 - kept.mean()) <= rate + 1e-5, "doubts are no more than there are wrong labels"


@pytest.mark.parametrize("name", ADJUSTABLE)
@pytest.mark.parametrize("progress", [0.05, 0.1, 0.3, 0.5])
def test_the_learned_loss_doubts_what_bayes_rule_has_left(name: str, progress: float) -> None:
    """In all no more than three times the share of the training that is done, until that is a third."""
    logits, labels = mostly_liked(200)
    given_values = spread_over(name, 200)
    worth = counts_of(worth_of(5, loss=name), 0.6, 0.1).at(progress)
    values, kept = worth(logits, labels, given_values)
    expected_values, expected = by_loops(worth, name, logits, labels, given_values, 3 * progress)
    assert_close(kept.double(), torch.tensor(expected), rtol=1e-3, atol=1e-4)
    assert_close(values.double(), torch.tensor(expected_values), rtol=1e-3, atol=1e-4)
    by_rule = 1 - float(worth.right(logits, labels).mean())
    assert by_rule - 1e-4 < float(1 - kept.mean()) < min(0.6, 3 * progress) + 1e-5
    early = float(worth.at(0.04)(logits, labels, given_values)[1].mean())
    assert float(worth.at(0.6)(logits, labels, given_values)[1].mean()) < early, "more of it later"


def test_no_label_has_more_than_ten_times_its_weight() -> None:
    """Where the loss pulls at one of forty alone."""
    logits = torch.zeros(40, 5)
    logits[0, 0] = 6.0
    labels, q = torch.zeros(40, dtype=torch.int64), torch.full((40,), 4.0)
    values, kept = counts_of(worth_of(5), 0.95, 0.0).at(0.6)(logits, labels, {"q": q})
    weights = values / losses.ce(logits, labels)
    assert float(weights[0]) == pytest.approx(10)
    assert float(kept[0]) == 1
    assert 0 < float(weights[1:].max()) < 1


@pytest.mark.parametrize("name", ["polysoft", "sl"])
def test_a_loss_that_pulls_at_no_label_leaves_them_to_bayes_rule(name: str) -> None:
    """And at its usual size, for what is given up alike is not given up."""
    logits, labels = -batch(40, 5)[0].abs(), torch.zeros(40, dtype=torch.int64)
    nothing = {"polysoft": {"lam": 1e-3, "d": 2.0}, "sl": {"gamma1": 0.0, "gamma2": 0.0}}[name]
    worth = worth_of(5, 0.4, name).at(0.5)
    values, _ = worth(logits, labels, {key: torch.full((40,), value) for key, value in nothing.items()})
    right = worth.right(logits, labels)
    left = 1 - (1 - right) * min(1.0, 0.4 / float((1 - right).mean()))
    assert_close(values, left / left.mean() * losses.ce(logits, labels), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_weighed_cross_entropy() -> None:
    logits, labels = batch()
    logits = logits.requires_grad_()
    values, kept = worth_of(5, 0.3).at(0.6)(logits, labels, {"q": torch.full((40,), 0.5)})
    (found,) = torch.autograd.grad(values.sum(), logits)
    weights = (values / losses.ce(logits, labels)).detach()
    (expected,) = torch.autograd.grad((weights * losses.ce(logits, labels)).sum(), logits)
    assert_close(found, expected)
    assert float(weights.mean()) == pytest.approx(1), "of its usual size"
    assert not kept.requires_grad


@pytest.mark.parametrize("name", ADJUSTABLE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logits_of_any_size(name: str, dtype: torch.dtype) -> None:
    worth = worth_of(3, 0.4, name).at(1.0)
    logits = torch.tensor([[1e4, -1e4, 0], [1e4, -1e4, 0], [0, 0, 0]]).to(dtype).requires_grad_()
    for end in (0, 1):
        chosen = {h.name: torch.full((3,), h.span[end]) for h in losses.get(name).hyperparameters}
        values, kept = worth(logits, torch.tensor([0, 1, 2]), chosen)
        (slopes,) = torch.autograd.grad(values.sum(), logits)
        assert all(bool(torch.isfinite(part).all()) for part in (values, kept, slopes))
        assert 0 <= float(kept.min()) <= float(kept.max()) <= 1
    right = worth.right(logits, torch.tensor([0, 1, 2]))
    assert_close(right[:2].double(), torch.tensor([1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("name", ADJUSTABLE)
def test_targets_of_both_kinds(name: str) -> None:
    logits, labels = batch()
    worth = worth_of(5, 0.3, name).at(1.0)
    chosen = {h.name: torch.full((40,), h.start) for h in losses.get(name).hyperparameters}
    of_index, of_rows = (worth(logits, y, chosen) for y in (labels, nn.functional.one_hot(labels, 5).float()))
    for ours, theirs in zip(of_index, of_rows, strict=True):
        assert_close(ours, theirs)
    shares = torch.rand(40, 5, generator=torch.Generator().manual_seed(1))
    shares /= shares.sum(1, keepdim=True)
    right = torch.stack([worth.right(logits, labels * 0 + j) for j in range(5)], dim=1)
    robust = losses.get(name)
    assert robust.pull is not None
    log_p = logits.log_softmax(1)
    pulls = robust.pull(log_p, **{key: value.unsqueeze(1) for key, value in chosen.items()})
    by_rule, relative = (shares * (1 - right)).sum() / 40, 40 * pulls / (shares * pulls).sum()
    share = ((0.3 - by_rule) / (shares * (1 - relative).clamp(min=0)).sum() * 40).clamp(0, 1)
    kept = (1 - (1 - right) * (0.3 / by_rule).clamp(max=1)) * (1 - share + share * relative)
    values, left = worth(logits, shares, chosen)
    assert_close(left, (shares * kept.clamp(max=1)).sum(1))
    weights = (kept * 40 / (shares * kept).sum()).clamp(max=10)
    assert_close(values, -(shares * weights * log_p).sum(1))
    assert_close(worth.right(logits, shares), sum(shares[:, j] * worth.right(logits, labels * 0 + j) for j in range(5)))
    of_labels = [worth.looked(logits, labels * 0 + j) for j in range(5)]
    sure, against, unlikely = worth.looked(logits, shares)
    assert_close(sure, logits.softmax(1).amax(1))
    assert_close(against, sum(shares[:, j] * one[1] for j, one in enumerate(of_labels)))
    assert_close(unlikely, sum(shares[:, j] * one[2] for j, one in enumerate(of_labels)))


@pytest.mark.parametrize("classes", [2, 5, 6])
def test_the_estimates_are_fading_counts(classes: int) -> None:
    """Against a loop over all batches so far; after the first third nothing is counted."""
    worth, steps, seen = worth_of(classes), 30, []
    for step in range(steps):
        logits, labels = batch(300, classes, seed=step)
        progress = step / steps
        counted(worth.at(progress), logits, labels)
        if progress < worth.END:
            order = sorted(range(300), key=lambda row: -float(logits[row].softmax(0).max()))
            against = sum(int(logits[row].argmax() != labels[row]) for row in order[:6])
            ranks = [int((logits[row] > logits[row, labels[row]]).sum()) for row in order[:60]]
            unlikely = sum(rank >= classes - classes // 2 for rank in ranks)
            seen.append((progress, against / 6, unlikely / 60 * (classes - 1) / (classes // 2)))
        weights = [math.exp((at - seen[-1][0]) / 0.05) for at, _, _ in seen]
        for found, number in ((worth.rate, 1), (worth.at_random, 2)):
            expected = sum(w * one[number] for w, one in zip(weights, seen, strict=True)) / sum(weights)
            assert float(found) == pytest.approx(expected, abs=1e-4)
    assert len(seen) == 10


@pytest.mark.parametrize(
    ("kind", "rate"), [("clean", 0.0), ("symmetric", 0.2), ("symmetric", 0.4), ("pair", 0.2), ("pair", 0.4)]
)
def test_the_noise_rate_is_found_while_training(kind: str, rate: float) -> None:
    """Ten overlapping clusters, 8,000 rows, an MLP: the loss itself is not told."""
    generator = torch.Generator().manual_seed(0)
    centres = 1.5 * torch.randn(10, 8, generator=generator)
    true = torch.randint(10, (8000,), generator=generator)
    x = centres[true] + torch.randn(8000, 8, generator=generator)
    labels = true if kind == "clean" else getattr(noise, kind)(true, rate, num_classes=10, seed=0)
    model = narl.models.mlp(8, 10, hidden=(64,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = AdjustedLoss.pretrained("gce", [800] * 10, total_steps=1200, noise_rate="estimated")
    for _ in range(15):
        for ids in torch.split(torch.randperm(8000, generator=generator), 100):
            optimizer.zero_grad()
            criterion(model(x[ids]), labels[ids]).backward()
            optimizer.step()
    assert criterion.noise_rate == pytest.approx(rate, abs=0.08)
    assert criterion.worth is not None
    assert float(criterion.worth.at_random) == pytest.approx(rate if kind == "symmetric" else 0, abs=0.08)


def test_no_label_is_doubted_before_anything_is_known() -> None:
    logits, labels = batch()
    worth, q = worth_of(5, 0.1), torch.full((40,), 0.5)
    values, kept = worth.at(0.02)(logits, labels, {"q": q})
    assert_close(values, losses.ce(logits, labels))
    assert torch.equal(kept, torch.ones(40))
    later = worth.at(worth.BEGIN + 1e-6)(logits, labels, {"q": q})[1]
    assert 0.05 < float(1 - later.mean()) < 0.1 + 1e-6


def test_labels_that_are_wrong_at_random_are_doubted_at_once() -> None:
    logits, labels = batch(400)
    worth = worth_of(5)
    counted(worth.at(0.04), logits, labels)
    assert float(worth.at_random) > 0.5
    kept = worth(logits, labels, {"q": torch.ones(400)})[1]
    assert float(1 - kept.mean()) > 0.3, "more than three times the 0.04 of the training that is done"


def accuracy(rate: str | None, loss: str) -> float:
    """Of a slow learner, after ten epochs of 4,000 rows with 200 classes and 60 % wrong labels."""
    generator = torch.Generator().manual_seed(0)
    true = torch.randint(200, (4000,), generator=generator)
    x = torch.randn(200, 12, generator=generator)[true] + torch.randn(4000, 12, generator=generator)
    labels = noise.symmetric(true, 0.6, 200, seed=0)
    model = narl.models.mlp(12, 200, hidden=(64,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    counts = torch.bincount(labels, minlength=200)
    told = AdjustedLoss.pretrained(loss, counts, total_steps=400, noise_rate="estimated")
    criterion: nn.Module = nn.CrossEntropyLoss() if rate is None else told
    for _ in range(10):
        for ids in torch.split(torch.randperm(4000, generator=generator), 100):
            optimizer.zero_grad()
            criterion(model(x[ids]), labels[ids]).backward()
            optimizer.step()
    return float((model(x).argmax(1) == true).float().mean())


def test_who_learns_slowly_does_not_end_with_what_it_says_at_first() -> None:
    """Cross entropy has 0.07 here, JS and SL 0.14."""
    plain = accuracy(None, "js")
    assert min(accuracy("estimated", loss) for loss in ("js", "sl")) > plain + 0.04


def test_a_given_rate_is_believed_at_once() -> None:
    logits, labels = batch()
    kept = worth_of(5, 0.7).at(0.05)(logits.scatter(1, labels.unsqueeze(1), -20.0), labels, {"q": torch.ones(40)})[1]
    assert float(1 - kept.mean()) == pytest.approx(0.7, abs=1e-4)


def test_a_given_rate_stays() -> None:
    worth = worth_of(5, 0.25).at(0.2)
    counted(worth, *batch())
    assert float(worth.rate) == 0.25


def test_a_training_that_is_joined_too_late_to_count_keeps_its_doubts() -> None:
    logits, labels = batch()
    worth, q = worth_of(5).at(0.5), torch.full((40,), 0.5)
    counted(worth, logits, labels)
    assert float(worth.rate) == 0
    assert float(worth(logits, labels, {"q": q})[1].mean()) < 0.9


def test_counts_keep_their_precision() -> None:
    whole, half = worth_of(5), worth_of(5).to(torch.bfloat16)
    for step in range(300):
        for worth in (whole, half):
            counted(worth.at(step / 1000), *batch(100, seed=step))
    assert torch.equal(whole.counts, half.counts)


def test_no_noise_is_cross_entropy() -> None:
    logits, labels = batch()
    values, kept = worth_of(5, 0.0).at(0.5)(logits, labels, {"q": torch.full((40,), 0.9)})
    assert_close(values, losses.ce(logits, labels))
    assert torch.equal(kept, torch.ones(40))


def test_a_loss_of_which_nobody_knows_how_it_pulls() -> None:
    with pytest.raises(OptionError, match="noise_rate is not for 'mae': narl does not know how strongly it pulls"):
        LabelWorth(losses.get("mae"), 5)


@pytest.mark.parametrize("rate", [-0.1, 0.8, 1.5, math.nan, True, "guessed", None, [0.1]])
def test_rates_that_are_none(rate: Any) -> None:
    with pytest.raises(OptionError, match="noise_rate = "):
        worth_of(5, rate)


def along(name: str = "gce", classes: int = 5) -> list[Adjuster]:
    generator = torch.Generator().manual_seed(3)
    made = [Adjuster(name, [10] * classes, generator=generator) for _ in range(3)]
    for number, adjuster in enumerate(made):
        adjuster.taken = number / 3
        if number:
            nn.init.normal_(adjuster.heads.weight, generator=generator)
    return made


@pytest.mark.parametrize("name", ADJUSTABLE)
@pytest.mark.parametrize("progress", [0.02, 0.2, 0.5])
def test_a_criterion_doubts_by_its_adjuster_and_the_noise_rate(name: str, progress: float) -> None:
    logits, labels = batch()
    criterion = AdjustedLoss(along(name), [10] * 5, reduction="none", noise_rate=0.4).eval()
    plain = AdjustedLoss(along(name), [10] * 5, reduction="none").eval()
    plain(logits, labels, progress)
    values, kept = worth_of(5, 0.4, name).at(progress)(logits, labels, plain.last.hyperparameters)
    assert_close(criterion(logits, labels, progress), values)
    assert criterion.last.kept is not None
    assert_close(criterion.last.kept, kept)


def test_suspicion_is_what_is_taken_from_the_label() -> None:
    """As the gradient has it, before it is brought to its usual size."""
    logits, labels = batch()
    logits = logits.requires_grad_()
    criterion = AdjustedLoss(along("gce"), [10] * 5, reduction="none", noise_rate=0.4)
    values = criterion(logits, labels, progress=0.8)
    (slopes,) = torch.autograd.grad(values.sum(), logits)
    assert criterion.last.kept is not None
    target = (logits.softmax(1) - criterion.last.kept.mean() * slopes).detach()
    expected = 1 - target[torch.arange(40), labels]
    assert_close(criterion.last.suspicion, expected, rtol=1e-4, atol=1e-5)


def test_only_training_counts() -> None:
    criterion = AdjustedLoss(along(), [10] * 5, total_steps=100, noise_rate="estimated")
    criterion.eval()(*batch())
    assert criterion.noise_rate == 0
    criterion.train()(*batch())
    assert criterion.noise_rate > 0
    assert AdjustedLoss(along(), [10] * 5, total_steps=100).noise_rate is None


def through_pickle(criterion: AdjustedLoss) -> AdjustedLoss:
    made: AdjustedLoss = pickle.loads(pickle.dumps(criterion))
    return made


def through_a_state(criterion: AdjustedLoss) -> AdjustedLoss:
    file = io.BytesIO()
    torch.save(criterion.state_dict(), file)
    file.seek(0)
    made = AdjustedLoss(along(), [10] * 5, total_steps=40, noise_rate="estimated")
    made.load_state_dict(torch.load(file, weights_only=True))
    return made


@pytest.mark.parametrize("through", [copy.deepcopy, through_pickle, through_a_state])
def test_a_count_goes_on_in_copies_and_files(through: Callable[[AdjustedLoss], AdjustedLoss]) -> None:
    whole, first = (AdjustedLoss(along(), [10] * 5, total_steps=40, noise_rate="estimated") for _ in range(2))
    for step in range(30):
        whole(*batch(seed=step))
    for step in range(8):
        first(*batch(seed=step))
    second = through(first)
    for step in range(8, 30):
        second(*batch(seed=step))
    assert second.noise_rate == whole.noise_rate
    assert torch.equal(second(*batch(seed=99)), whole(*batch(seed=99)))


def test_states_of_criteria_with_and_without_a_noise_rate() -> None:
    plain, knows = (AdjustedLoss(along(), [10] * 5, total_steps=9, noise_rate=rate) for rate in (None, 0.4))
    with pytest.raises(OptionError, match="of a criterion without noise_rate: give noise_rate, 'ignored'"):
        knows.load_state_dict(plain.state_dict())
    with pytest.raises(OptionError, match="of a criterion with noise_rate: give noise_rate, the one"):
        plain.load_state_dict(knows.state_dict())


@pytest.mark.parametrize(
    ("made", "given", "found"),
    [
        (None, None, None),
        (None, "ignored", None),
        (None, 0.3, 0.3),
        ("estimated", None, "estimated"),
        ("estimated", "ignored", None),
        ("estimated", 0.3, 0.3),
    ],
)
def test_adjusters_bring_along_whether_the_noise_rate_has_a_say(made: Any, given: Any, found: Any) -> None:
    snapshots = along()
    for snapshot in snapshots:
        snapshot.noise_rate = made
    method: Any = methods.build("T-GCE", setting_of("T-GCE"), adjusters=snapshots, noise_rate=given)
    alone = AdjustedLoss(snapshots, [10] * 5, total_steps=30, robust_start=0.2, noise_rate=given)
    for criterion in (alone, method.criterion):
        says = None if criterion.worth is None else criterion.worth.given or "estimated"
        assert says == found


@pytest.mark.parametrize(("steps", "rate"), [(None, "estimated"), (400, "estimated"), (399, None)])
def test_what_is_said_of_the_noise_rate_counts_in_trainings_that_are_long_enough(steps: Any, rate: Any) -> None:
    snapshots = along()
    for snapshot in snapshots:
        snapshot.noise_rate, snapshot.least_steps = "estimated", 400
    criterion = AdjustedLoss(snapshots, [10] * 5, total_steps=steps)
    setting = dataclasses.replace(setting_of("T-GCE"), total_steps=steps or 10**6)
    method: Any = methods.build("T-GCE", setting, adjusters=snapshots)
    for made in (criterion, method.criterion):
        assert (made.worth is not None) == (rate is not None)
    asked = AdjustedLoss(snapshots, [10] * 5, total_steps=steps, noise_rate="estimated")
    assert asked.worth is not None, "who asks for it has it"
    assert {snapshot.noise_rate for snapshot in snapshots} == {"estimated"}, "nothing given is changed"
    assert packs.digest(meant_for(snapshots, None, 399)) == packs.digest(snapshots, noise_rate=False)


def test_snapshots_that_disagree_are_not_of_one_adjuster() -> None:
    snapshots = along()
    snapshots[1].noise_rate = "estimated"
    with pytest.raises(OptionError, match="snapshots with and without a noise rate"):
        AdjustedLoss(snapshots, [10] * 5, total_steps=30)
    assert AdjustedLoss(snapshots, [10] * 5, total_steps=30, noise_rate="ignored").worth is None


def test_what_no_file_could_say_is_not_saved(tmp_path: Path) -> None:
    (one, *_) = along()
    one.noise_rate = "0.3"
    with pytest.raises(OptionError, match=r"noise_rate = '0\.3' is nothing that adjusters say"):
        one.save(tmp_path / "one.safetensors")
    assert not list(tmp_path.iterdir())


def test_integrations_leave_it_out() -> None:
    snapshots = along()
    for snapshot in snapshots:
        snapshot.noise_rate = "estimated"
    assert criterion_of(snapshots, torch.tensor([10] * 5), "auto", None).worth is None


def test_boosted_losses_have_their_own_doubts() -> None:
    snapshots = along()
    for snapshot in snapshots:
        snapshot.noise_rate = "estimated"
    method: Any = methods.build("T-GCE+", setting_of("T-GCE+"), adjusters=snapshots)
    assert method.plain.criterion.worth is None


def test_what_is_learned_on_trusts_its_own_margins() -> None:
    (one,) = along()[:1]
    one.noise_rate = "estimated"
    assert start("gce", torch.tensor([5, 5]), one, "latest", 0).noise_rate is None
    assert Pack((one,)).input == "margin, latest, noise rate estimated"


def test_adjusters_with_and_without_a_noise_rate_are_told_apart(tmp_path: Path) -> None:
    plain, told = along(), along()
    for snapshot in told:
        snapshot.noise_rate = "estimated"
    assert packs.digest(plain) != packs.digest(told), "they compute something else"
    formats = {}
    for name, snapshots in (("plain", plain), ("told", told)):
        path = tmp_path / f"{name}.safetensors"
        packs.write(path, Pack(tuple(snapshots)))
        assert packs.digest(packs.read(path).snapshots) == packs.digest(snapshots)
        formats[name] = files.read_tensors(path)[0]["format"]
    assert formats["told"] == packs.FORMAT > formats["plain"]


def test_a_single_adjuster_must_know_the_progress() -> None:
    criterion = AdjustedLoss(Adjuster("gce", [10] * 5), [10] * 5, noise_rate=0.4)
    with pytest.raises(
        OptionError, match=r"noise_rate \(which 'ignored' leaves out\) must know how much of the training is done"
    ):
        criterion(*batch())
    assert torch.isfinite(criterion(*batch(), progress=0.5))


@pytest.mark.parametrize("options", [{"total_steps": 30}, {}])
def test_compiled_it_computes_the_same(options: dict[str, Any]) -> None:
    written, compiled = (AdjustedLoss(along(), [10] * 5, noise_rate="estimated", **options) for _ in range(2))
    fast = torch.compile(compiled, fullgraph=True, backend="eager")
    for step in range(25):
        more = {} if options else {"progress": step / 30}
        assert_close(fast(*batch(seed=step), **more), written(*batch(seed=step), **more))
    assert compiled.noise_rate == pytest.approx(written.noise_rate)


@pytest.mark.parametrize("rate", ["estimated", 0.4])
def test_a_method_trains_as_the_criterion_does(rate: float | str) -> None:
    setting, adjusters = setting_of("T-GCE"), adjusters_of("gce")
    for number, adjuster in enumerate(adjusters):
        adjuster.taken = number / 3
    method: Any = methods.build("T-GCE", setting, adjusters=adjusters, noise_rate=rate)
    model = copy.deepcopy(setting.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = AdjustedLoss(adjusters, setting.class_counts, noise_rate=rate)
    assert method.fields == ("q", "kept")
    for step, (x, y, ids) in enumerate(batches(setting.total_steps)):
        optimizer.zero_grad()
        criterion(model(x), y, step / setting.total_steps, ids).backward()
        optimizer.step()
        report = method.step(x, y, ids)
        assert_close(report.hyperparameters["kept"], criterion.last.kept)
    for ours, theirs in zip(setting.model.parameters(), model.parameters(), strict=True):
        assert_close(ours, theirs)
    assert float(method.criterion.noise_rate) == pytest.approx(criterion.noise_rate)


def test_a_method_that_is_resumed_counts_on() -> None:
    def make() -> tuple[methods.Setting, methods.Method]:
        setting = setting_of("T-SL")
        return setting, built("T-SL", setting, noise_rate="estimated")

    interrupted(make, stop=3, total=setting_of("T-SL").total_steps)


def test_options_on_the_command_line(tmp_path: Any) -> None:
    option = methods.get("T-JS").options["noise_rate"]
    assert [option.read("noise_rate", text) for text in ("0.3", "Estimated", "ignored", "none")] == [
        *(0.3, "estimated", "ignored", None)
    ]
    assert option.range == "[0, 1] or estimated or ignored"
    assert "noise_rate" not in methods.get("T-JS+").options
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (240,), generator=rng)
    x = torch.eye(3)[y] * 3 + torch.randn(240, 3, generator=rng)
    np.savez(tmp_path / "some.npz", x=x.numpy(), y=y.numpy())
    usual = ["train", tmp_path / "some.npz", "--epochs", "3", "--device", "cpu"]
    words = refused(*usual, "--option", "noise_rate=often", "--out", tmp_path / "a")
    assert "noise_rate = 'often' is not a number or estimated or ignored" in words
    words = refused(*usual, "--option", "noise_rate=0.9", "--out", tmp_path / "a")
    assert "noise_rate = 0.9 is no share of wrong labels with which 3 classes can be learned" in words
    done(*usual, "--option", "noise_rate=estimated", "--out", tmp_path / "b")


def test_two_parts_of_a_batch_are_the_whole() -> None:
    """Each process sees its part, and sums and counts of all."""
    logits, labels = mostly_liked(400)
    whole, parted = (counts_of(worth_of(5), 0.6, 0.1).at(0.1) for _ in range(2))
    q, parts = spread_over("gce", 400)["q"], (slice(100), slice(100, 400))
    expected = whole(logits, labels, {"q": q})
    known: list[Tensor] = []

    def sums_of(part: slice) -> list[Tensor]:
        """What this process adds, if those sums are known that both have added before."""
        added, ready = [], iter(known)

        def total(own: Tensor) -> Tensor:
            added.append(own)
            return next(ready, own)

        parted(logits[part], labels[part], {"q": q[part]}, total)
        return added

    for number in range(2):
        known.append(sum(sums_of(part)[number] for part in parts))  # type: ignore[arg-type]
    assert [len(sums) for sums in known] == [len(sums) for sums in sums_of(parts[0])] == [4, 1]
    for part in parts:
        ready = iter(known)
        found = parted(logits[part], labels[part], {"q": q[part]}, lambda _, ready=ready: next(ready))
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs[part])
    halves = [parted.looked(logits[part], labels[part]) for part in parts]
    counted(whole, logits, labels)
    parted.count(*(torch.cat(some) for some in zip(*halves, strict=True)))
    assert float(parted.rate) == float(whole.rate)
