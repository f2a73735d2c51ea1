"""The adjuster's network: from margin and family to hyperparameters inside their spans."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import narl
from narl import Adjuster, Families, losses, margin
from narl.errors import (
    ClassCountsError,
    HyperparameterError,
    LabelError,
    LogitsError,
    NarlError,
    OptionError,
    SampleIdsError,
    UnknownNameError,
)

quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)
ADJUSTABLE = [name for name in losses.names() if losses.get(name).hyperparameters]
every_loss = pytest.mark.parametrize("name", ADJUSTABLE)
COUNTS = [500, 20, 510, 90]  # families 2, 0, 2, 1


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def taught(name: str = "gce", seed: int = 0, scale: float = 1.0, **options: Any) -> Adjuster:
    """An adjuster with random weights everywhere, as if it had learned something."""
    generator = seeded(seed)
    adjuster = Adjuster(name, **{"class_counts": COUNTS, "hidden": 7, "generator": generator, **options})
    with torch.no_grad():
        for parameter in adjuster.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return adjuster


def batch(n: int = 12, c: int = 4, seed: int = 5, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = seeded(seed)
    return scale * torch.randn(n, c, generator=generator), torch.randint(c, (n,), generator=generator)


def slow_shares(adjuster: Adjuster, m: float, family: int) -> list[float]:
    """σ(W_k relu(w m + b) + b_k) with plain numbers, one a hyperparameter."""
    weight, bias = adjuster.hidden.weight[:, 0].tolist(), adjuster.hidden.bias.tolist()
    features = [max(0.0, w * m + b) for w, b in zip(weight, bias, strict=True)]
    count = len(adjuster.spans)
    result = []
    for row in range(family * count, family * count + count):
        head = adjuster.heads.weight[row].tolist()
        value = sum(w * f for w, f in zip(head, features, strict=True)) + adjuster.heads.bias[row].item()
        result.append(1 / (1 + math.exp(-value)))
    return result


def slow_hyperparameters(adjuster: Adjuster, margins: list[float], families: list[int]) -> dict[str, Tensor]:
    rows = [slow_shares(adjuster, m, k) for m, k in zip(margins, families, strict=True)]
    return {
        name: torch.tensor([low + (high - low) * row[place] for row in rows])
        for place, (name, (low, high)) in enumerate(adjuster.spans.items())
    }


# Start


@every_loss
@pytest.mark.parametrize("options", [{}, {"families": 1}, {"families": 5, "hidden": 1}, {"margin": "running"}], ids=str)
def test_an_untrained_adjuster_gives_the_start_values(name: str, options: dict[str, Any]) -> None:
    adjuster = Adjuster(name, COUNTS, **options)
    z = torch.tensor([-1e4, -30.0, -1.0, 0.0, 0.5, 30.0, 1e4])
    logits = torch.stack([z, *[torch.zeros(7)] * 3], dim=1)
    for labels in (torch.zeros(7, dtype=torch.int64), torch.arange(7) % 4):
        values = adjuster(logits, labels, torch.arange(7))
        assert list(values) == [h.name for h in losses.get(name).hyperparameters]
        for h in losses.get(name).hyperparameters:
            assert_close(values[h.name], torch.full((7,), h.start), rtol=1e-5, atol=1e-6)


def test_hidden_units_have_their_kinks_along_the_margin() -> None:
    adjuster = Adjuster("gce", COUNTS, generator=seeded(0))
    assert adjuster.hidden.out_features == 100
    kinks = -adjuster.hidden.bias / adjuster.hidden.weight[:, 0]
    assert 20 < int((kinks > 0).sum()) < 80
    assert len(set(kinks.tolist())) == 100


def test_every_head_can_learn_from_the_start() -> None:
    adjuster = Adjuster("sl", COUNTS, generator=seeded(0))
    logits, labels = batch(40)
    torch.autograd.backward(adjuster.loss(logits, labels).sum())
    gradient = adjuster.heads.weight.grad
    assert gradient is not None
    assert bool((gradient.abs().sum(dim=1) > 0).all())


# Values


@every_loss
@pytest.mark.parametrize("families", [1, 2, 3, 6])
def test_agrees_with_a_loop_over_samples(name: str, families: int) -> None:
    adjuster = taught(name, families=families)
    logits, labels = batch()
    of_class = Families.from_counts(COUNTS, families).of_class
    expected = slow_hyperparameters(adjuster, margin(logits, labels).tolist(), of_class[labels].tolist())
    assert_close(adjuster(logits, labels), expected, rtol=1e-4, atol=1e-6)


@every_loss
def test_curves_are_what_every_family_gets_at_a_margin(name: str) -> None:
    adjuster = taught(name)
    margins = torch.linspace(-6, 6, 9)
    by_family = adjuster.curves(margins)
    assert list(by_family) == list(adjuster.spans)
    for family in range(3):
        expected = slow_hyperparameters(adjuster, margins.tolist(), [family] * 9)
        assert_close({key: values[:, family] for key, values in by_family.items()}, expected, rtol=1e-4, atol=1e-6)


@every_loss
def test_mixed_targets_mix_their_families_heads(name: str) -> None:
    adjuster = taught(name)
    logits, _ = batch()
    targets = torch.randn(12, 4, generator=seeded(9)).softmax(dim=1)
    expected: dict[str, list[float]] = {key: [] for key in adjuster.spans}
    for m, row in zip(margin(logits, targets).tolist(), targets.tolist(), strict=True):
        by_class = [slow_shares(adjuster, m, int(adjuster.of_class[j])) for j in range(4)]
        for place, (key, (low, high)) in enumerate(adjuster.spans.items()):
            share = sum(t * by_class[j][place] for j, t in enumerate(row))
            expected[key].append(low + (high - low) * share)
    for key, value in adjuster(logits, targets).items():
        assert_close(value, torch.tensor(expected[key]), rtol=1e-4, atol=1e-6)
        assert bool((value > adjuster.spans[key][0]).all())
        assert bool((value < adjuster.spans[key][1]).all())


@every_loss
def test_one_hot_targets_equal_labels(name: str) -> None:
    adjuster = taught(name)
    logits, labels = batch()
    one_hot = torch.nn.functional.one_hot(labels, 4).float()
    assert_close(adjuster(logits, one_hot), adjuster(logits, labels))
    assert_close(adjuster.loss(logits, one_hot), adjuster.loss(logits, labels))


@every_loss
def test_each_family_uses_its_own_head(name: str) -> None:
    adjuster = Adjuster(name, COUNTS)
    count = len(adjuster.spans)
    with torch.no_grad():
        adjuster.heads.bias.copy_(torch.arange(3.0 * count) - 2)
    logits, _ = batch(4)
    values = adjuster(logits, torch.arange(4))
    for place, (key, (low, high)) in enumerate(adjuster.spans.items()):
        biases = torch.tensor([float(family * count + place - 2) for family in (2, 0, 2, 1)])
        assert_close(values[key], low + (high - low) * biases.sigmoid())


@every_loss
@quick
@given(
    seed=st.integers(0, 2**31),
    exponent=st.floats(-3, 6),
    scale=st.sampled_from([0.0, 1.0, 1e3]),
    mixed=st.booleans(),
)
def test_hyperparameters_stay_inside_their_spans(
    name: str, seed: int, exponent: float, scale: float, mixed: bool
) -> None:
    adjuster = taught(name, seed=seed % 1000, scale=scale)
    logits, targets = batch(20, seed=seed, scale=10**exponent)
    if mixed:
        targets = (5 * torch.randn(20, 4, generator=seeded(seed))).softmax(dim=1)
    values = adjuster(logits, targets)
    for key, (low, high) in adjuster.spans.items():
        assert bool((values[key] >= torch.tensor(low)).all())
        assert bool((values[key] <= torch.tensor(high)).all())
    assert bool(adjuster.loss(logits, targets).isfinite().all())


@every_loss
def test_saturated_heads_reach_the_spans_ends_and_keep_finite_gradients(name: str) -> None:
    adjuster = Adjuster(name, COUNTS)
    logits, labels = batch()
    for sign, end in ((-1, 0), (1, 1)):
        with torch.no_grad():
            adjuster.heads.bias.fill_(sign * 1e3)
        values = adjuster(logits, labels)
        for key, span in adjuster.spans.items():
            assert_close(values[key], torch.full((12,), span[end]))
        loss = adjuster.loss(logits.requires_grad_(), labels).sum()
        for gradient in torch.autograd.grad(loss, [logits, *adjuster.parameters()]):
            assert bool(gradient.isfinite().all())


@every_loss
def test_loss_is_the_robust_loss_with_each_samples_hyperparameters(name: str) -> None:
    adjuster = taught(name)
    logits, labels = batch()
    values = adjuster(logits, labels)
    one_by_one = [
        losses.get(name)(
            logits[i : i + 1], labels[i : i + 1], **{key: value[i].item() for key, value in values.items()}
        )
        for i in range(12)
    ]
    assert_close(adjuster.loss(logits, labels), torch.cat(one_by_one))


def test_empty_batch() -> None:
    adjuster = taught("sl")
    for targets in (torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4)):
        assert {key: value.shape for key, value in adjuster(torch.zeros(0, 4), targets).items()} == {
            "gamma1": (0,),
            "gamma2": (0,),
        }
        assert adjuster.loss(torch.zeros(0, 4), targets).shape == (0,)


# Gradients


@every_loss
@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_no_gradient_reaches_the_logits_through_the_hyperparameters(name: str, kind: str) -> None:
    adjuster = taught(name)
    logits, labels = batch()
    targets = labels if kind == "labels" else logits.flip(0).softmax(dim=1)
    logits.requires_grad_()
    values = adjuster(logits, targets)
    constants = {key: value.detach() for key, value in values.items()}
    (gradient,) = torch.autograd.grad(adjuster.loss(logits, targets).sum(), logits)
    (expected,) = torch.autograd.grad(losses.get(name)(logits, targets, **constants).sum(), logits)
    assert_close(gradient, expected)
    totals = torch.stack([value.sum() for value in values.values()])
    (through,) = torch.autograd.grad(totals.sum(), logits, allow_unused=True)
    assert through is None


@every_loss
def test_gradients_reach_the_adjuster_and_agree_with_differences(name: str) -> None:
    adjuster = taught(name).double()
    logits, labels = batch(20)
    logits = logits.double()
    torch.autograd.backward(adjuster.loss(logits, labels).sum())
    generator = seeded(3)
    for parameter in adjuster.parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        step, totals = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                totals.append(adjuster.loss(logits, labels).sum())
                parameter.sub_(direction, alpha=sign * step)
        assert parameter.grad is not None
        slope = (parameter.grad * direction).sum()
        assert slope != 0
        assert_close(slope, (totals[0] - totals[1]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_only_the_heads_of_the_batchs_families_get_gradients() -> None:
    adjuster = taught("sl")
    logits, _ = batch(6)
    torch.autograd.backward(adjuster.loss(logits, torch.tensor([0, 2, 0, 2, 0, 2])).sum())
    gradient = adjuster.heads.weight.grad
    assert gradient is not None
    assert gradient[:4].abs().sum() == 0
    assert gradient[4:].abs().sum() > 0


# Refit


def test_refit_changes_the_families_and_keeps_what_was_learned() -> None:
    adjuster = taught("js")
    before = {key: value.clone() for key, value in adjuster.named_parameters()}
    identity = [id(parameter) for parameter in adjuster.parameters()]
    counts = [5, 5, 900, 40, 5, 39, 1000]
    assert adjuster.refit(counts) is adjuster
    families = Families.from_counts(counts)
    assert torch.equal(adjuster.of_class, families.of_class)
    assert adjuster.centres == families.centres.tolist()
    assert adjuster.class_counts == counts
    assert [id(parameter) for parameter in adjuster.parameters()] == identity
    assert all(torch.equal(value, before[key]) for key, value in adjuster.named_parameters())
    logits, labels = batch(c=7)
    expected = slow_hyperparameters(adjuster, margin(logits, labels).tolist(), families.of_class[labels].tolist())
    assert_close(adjuster(logits, labels), expected, rtol=1e-4, atol=1e-6)


def test_a_failed_refit_changes_nothing() -> None:
    adjuster = taught(margin="running")
    logits, labels = batch(4)
    adjuster.observe(logits, labels, torch.arange(4))
    with pytest.raises(ClassCountsError, match="class 1 has -5 samples"):
        adjuster.refit([3, -5])
    assert adjuster.of_class.tolist() == [2, 0, 2, 1]
    assert adjuster.class_counts == COUNTS
    assert adjuster.running is not None
    assert len(adjuster.running.table) == 4


# Randomness


def test_a_generator_decides_the_weights_and_the_global_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = (Adjuster("gce", COUNTS, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.hidden.weight, second.hidden.weight)
    assert torch.equal(first.hidden.bias, second.hidden.bias)
    assert not torch.equal(first.hidden.weight, other.hidden.weight)


def test_without_a_generator_the_global_seed_decides() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        first = Adjuster("gce", COUNTS)
        torch.manual_seed(4)
        second = Adjuster("gce", COUNTS)
    assert torch.equal(first.hidden.weight, second.hidden.weight)
    assert torch.equal(first.hidden.bias, second.hidden.bias)


# Types


@every_loss
@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_under_autocast_hyperparameters_stay_float32(name: str, kind: str) -> None:
    adjuster = taught(name)
    x, labels = batch()
    weight = torch.randn(4, 4, generator=seeded(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = x @ weight
        assert logits.dtype == torch.bfloat16
        targets = labels if kind == "labels" else logits.softmax(dim=1)
        values, loss = adjuster(logits, targets), adjuster.loss(logits, targets)
    assert loss.dtype == torch.float32
    assert {value.dtype for value in values.values()} == {torch.float32}
    assert_close(values, adjuster(logits.float(), targets), rtol=0, atol=0)
    assert_close(loss, adjuster.loss(logits.float(), targets))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_logits_of_other_types(dtype: torch.dtype) -> None:
    adjuster = taught("polysoft")
    logits, labels = batch()
    logits = logits.to(dtype)
    assert_close(adjuster(logits, labels), adjuster(logits.float(), labels))
    assert adjuster.loss(logits, labels).dtype == torch.promote_types(dtype, torch.float32)


# State


@every_loss
@pytest.mark.parametrize("kind", ["latest", "running"])
def test_state_dict_round_trip(name: str, kind: str) -> None:
    adjuster, fresh = taught(name, margin=kind), taught(name, seed=77, margin=kind)
    logits, labels = batch()
    ids = torch.arange(12) * 3
    adjuster.observe(logits, labels, ids)
    stored = io.BytesIO()
    torch.save(adjuster.state_dict(), stored)
    stored.seek(0)
    fresh.load_state_dict(torch.load(stored, weights_only=True))
    later = batch(seed=6)[0]
    expected, got = adjuster(later, labels, ids), fresh(later, labels, ids)
    assert all(torch.equal(expected[key], got[key]) for key in expected)
    assert set(fresh.state_dict()) == set(adjuster.state_dict())


def test_deep_copies_are_independent() -> None:
    adjuster = taught(margin="running")
    logits, labels = batch()
    ids = torch.arange(12)
    adjuster.observe(logits, labels, ids)
    twin = copy.deepcopy(adjuster)
    expected = adjuster(-logits, labels, ids)["q"]
    assert torch.equal(twin(-logits, labels, ids)["q"], expected)
    twin.observe(-logits, labels, ids)
    twin.refit([1, 2])
    with torch.no_grad():
        twin.heads.weight.add_(1)
    assert torch.equal(adjuster(-logits, labels, ids)["q"], expected)


# Running margin


def test_running_margin_over_epochs_agrees_with_a_dictionary() -> None:
    adjuster, remembered = taught("sl", margin="running"), dict[int, float]()
    generator = seeded(0)
    labels = torch.randint(4, (17,), generator=generator)
    for _ in range(4):
        for ids in torch.randperm(17, generator=generator).chunk(4):
            logits = 2 * torch.randn(len(ids), 4, generator=generator)
            latest = margin(logits, labels[ids])
            blended = [
                0.9 * remembered[i] + 0.1 * m if i in remembered else m
                for i, m in zip(ids.tolist(), latest.tolist(), strict=True)
            ]
            expected = slow_hyperparameters(adjuster, blended, adjuster.of_class[labels[ids]].tolist())
            assert_close(adjuster(logits, labels[ids], ids), expected, rtol=1e-4, atol=1e-5)
            seen, margins = adjuster.observe(logits, labels[ids], ids)
            assert_close(seen, expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(margins, latest)
            remembered.update(zip(ids.tolist(), blended, strict=True))


def test_only_observe_remembers_and_only_once() -> None:
    adjuster = taught(margin="running")
    assert adjuster.running is not None
    ids = torch.tensor([4, 1])
    labels = torch.tensor([0, 0])
    logits = torch.tensor([[3.0, 1.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0]])
    adjuster(logits, labels, ids)
    adjuster.loss(logits, labels, ids)
    assert len(adjuster.running.table) == 0
    adjuster.observe(logits, labels, ids)
    assert adjuster.running.table[ids].tolist() == [2, -5]
    adjuster(-logits, labels, ids)
    adjuster.loss(-logits, labels, ids)
    assert adjuster.running.table[ids].tolist() == [2, -5]
    adjuster.observe(torch.zeros(2, 4), labels, ids)
    assert_close(adjuster.running.table[ids], torch.tensor([1.8, -4.5]))


def test_observing_with_the_latest_margin_only_looks() -> None:
    adjuster = taught()
    logits, labels = batch()
    values, margins = adjuster.observe(logits.requires_grad_(), labels)
    assert torch.equal(values["q"], adjuster(logits, labels)["q"])
    assert torch.equal(margins, margin(logits, labels))
    assert not values["q"].requires_grad
    assert not margins.requires_grad


def test_refit_forgets_the_old_samples() -> None:
    adjuster = taught(margin="running")
    logits, labels = batch(4)
    ids = torch.arange(4)
    fresh = adjuster(logits, labels, ids)["q"]
    adjuster.observe(-50 * logits, labels, ids)
    assert not torch.equal(adjuster(logits, labels, ids)["q"], fresh)
    adjuster.refit(COUNTS)
    assert torch.equal(adjuster(logits, labels, ids)["q"], fresh)


def test_a_running_margin_needs_ids() -> None:
    adjuster = taught(margin="running")
    logits, labels = batch()
    for use in (adjuster, adjuster.loss, adjuster.observe):
        with pytest.raises(SampleIdsError, match=r'margin="running" needs to know the samples: pass ids=.*"latest"'):
            use(logits, labels)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([0, -1]), "negative"),
        (torch.tensor([0.0, 1.0]), "torch.float32"),
        (torch.tensor([0]), r"shape \(1,\)"),
        (torch.tensor([0, 2**40]), f"{2**40} is too large"),
    ],
)
def test_bad_ids_are_refused_and_nothing_is_remembered(ids: Tensor, words: str) -> None:
    adjuster = taught(margin="running")
    assert adjuster.running is not None
    with pytest.raises(SampleIdsError, match=words):
        adjuster.observe(*batch(2), ids)
    assert len(adjuster.running.table) == 0


# Errors


@pytest.mark.parametrize("name", ["ce", "mae"])
def test_losses_without_hyperparameters_are_refused(name: str) -> None:
    with pytest.raises(HyperparameterError, match=f"'{name}' has no hyperparameters.*one of gce, js, polysoft, sl"):
        Adjuster(name, COUNTS)


def test_an_unknown_loss_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'gcee': did you mean 'gce'"):
        Adjuster("gcee", COUNTS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"margin": "mean"}, "margin = 'mean' is unknown: use 'latest' .* or 'running'"),
        ({"hidden": 0}, "hidden = 0 units are too few: use 1 or more"),
        ({"families": 0}, "families.* too few: use 1 or more"),
        ({"families": -1}, "families.* too few: use 1 or more"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Adjuster("gce", COUNTS, **options)


@pytest.mark.parametrize("counts", [(), [5], [5, -1], [1, math.nan]], ids=str)
def test_bad_counts(counts: Any) -> None:
    with pytest.raises(ClassCountsError):
        Adjuster("gce", counts)


@pytest.mark.parametrize("c", [3, 5])
def test_another_number_of_classes_asks_for_a_refit(c: int) -> None:
    adjuster = taught()
    logits, labels = batch(c=c)
    for use in (adjuster, adjuster.loss, adjuster.observe):
        with pytest.raises(
            ClassCountsError, match=rf"fitted to 4 classes but the logits have {c}: give {c} class counts.*refit"
        ):
            use(logits, labels)


@pytest.mark.parametrize(
    ("logits", "targets", "error"),
    [
        (torch.zeros(4), torch.tensor([0]), LogitsError),
        (torch.full((1, 4), math.nan), torch.tensor([0]), LogitsError),
        (torch.zeros(1, 4), torch.tensor([4]), LabelError),
        (torch.zeros(1, 4), torch.tensor([-1]), LabelError),
        (torch.zeros(1, 4), torch.zeros(1, 4), LabelError),
    ],
)
def test_bad_batches(logits: Tensor, targets: Tensor, error: type[NarlError]) -> None:
    adjuster = taught()
    for use in (adjuster, adjuster.loss, adjuster.observe):
        with pytest.raises(error):
            use(logits, targets)


def test_a_newly_registered_loss_gets_an_adjuster_for_nothing() -> None:
    def power(logits: Tensor, targets: Tensor, exponent: float | Tensor) -> Tensor:
        return losses.mae(logits, targets) ** exponent

    spec = losses.Hyperparameter("exponent", low=0.5, high=4.0, start=1.0, default=2.0)
    losses.register(losses.RobustLoss("power-mae", power, (spec,)))
    try:
        adjuster = narl.Adjuster("power-mae", COUNTS)
        logits, labels = batch()
        assert_close(adjuster.loss(logits, labels), losses.mae(logits, labels), rtol=1e-5, atol=1e-6)
    finally:
        losses.unregister("power-mae")


# What it sees


def test_an_adjuster_that_sees_scaled_margins_does_not_care_for_the_logits_scale() -> None:
    adjuster = Adjuster("gce", [5, 5, 5], input="scaled", generator=torch.Generator().manual_seed(0))
    nn_init = torch.Generator().manual_seed(1)
    with torch.no_grad():
        adjuster.heads.weight.normal_(generator=nn_init)
    logits, targets = torch.randn(6, 3, generator=nn_init), torch.tensor([0, 1, 2, 0, 1, 2])
    assert_close(adjuster(7 * logits, targets)["q"], adjuster(logits, targets)["q"])


@pytest.mark.parametrize("own", [2, 10, 30])
@pytest.mark.parametrize("seen", ["margin", "margin+progress"])
def test_a_lifted_adjuster_is_the_same_on_its_own_classes_and_moves_with_their_number(own: int, seen: str) -> None:
    draws = torch.Generator().manual_seed(1)
    adjuster = Adjuster("sl", [5] * own, families=1, input=seen, margin="running", generator=draws)
    with torch.no_grad():
        adjuster.heads.weight.normal_(generator=draws)
    adjuster.progress.fill_(0.3)
    adjuster.taken = 0.5
    lifted = adjuster.lifted()
    assert lifted.input == f"{seen}+classes"
    assert (lifted.taken, lifted.remembers) == (0.5, True)
    logits, targets, ids = 4 * torch.randn(9, own, generator=draws), torch.arange(9) % own, torch.arange(9)
    expected = adjuster(logits, targets, ids)
    for name, found in lifted(logits, targets, ids).items():
        assert_close(found, expected[name])
    lifted.refit([5] * 200)
    logits, targets = 4 * torch.randn(9, 200, generator=draws), torch.arange(9)
    shifted = adjuster.curves(narl.margin(logits, targets) + math.log(200 / own))
    for name, found in lifted(logits, targets, ids).items():
        assert_close(found, shifted[name][:, 0])


@pytest.mark.parametrize("frozen", [True, False])
def test_a_lifted_adjuster_is_of_the_same_type(frozen: bool) -> None:
    adjuster = Adjuster("gce", [5, 5]).double().requires_grad_(not frozen)
    lifted = adjuster.lifted()
    assert {weight.dtype for weight in lifted.parameters()} == {torch.float64}
    assert {weight.requires_grad for weight in lifted.parameters()} == {not frozen}
    logits, targets = torch.randn(3, 2, dtype=torch.float64), torch.tensor([0, 1, 1])
    assert_close(lifted(logits, targets)["q"], adjuster(logits, targets)["q"])


@pytest.mark.parametrize("seen", ["rank", "scaled+progress", "margin+classes"])
def test_what_is_no_margin_is_not_lifted(seen: str) -> None:
    with pytest.raises(OptionError, match="cannot be lifted"):
        Adjuster("gce", [5, 5], input=seen).lifted()


def test_progress_is_seen_and_learned_from() -> None:
    adjuster = Adjuster("gce", [5, 5], input="margin+progress", generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        adjuster.heads.weight.normal_(generator=torch.Generator().manual_seed(1))
    logits, targets = torch.randn(4, 2, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 1, 0])
    early = adjuster(logits, targets)["q"]
    adjuster.progress.fill_(0.9)
    assert not torch.equal(adjuster(logits, targets)["q"], early)
    assert "progress" not in adjuster.state_dict()
    adjuster(logits, targets)["q"].sum().backward()
    assert adjuster.hidden.weight.grad is not None
    assert adjuster.hidden.weight.grad[:, 1].abs().sum() > 0


@pytest.mark.parametrize("seen", ["margin+classes", "rank+progress+classes"])
def test_the_number_of_classes_is_seen_and_learned_from(seen: str) -> None:
    adjuster = Adjuster("gce", [5] * 10, families=1, input=seen, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        adjuster.heads.weight.normal_(generator=torch.Generator().manual_seed(1))
    margins = torch.linspace(-3, 3, 7)
    weight, bias = adjuster.hidden.weight, adjuster.hidden.bias
    for classes in (2, 10, 200):
        found = adjuster.refit([5] * classes).curves(margins)["q"][:, 0]
        hidden = (margins.unsqueeze(1) * weight[:, 0] + math.log(classes / 10) * weight[:, -1] + bias).relu()
        expected = 0.01 + 0.99 * (hidden @ adjuster.heads.weight[0] + adjuster.heads.bias).sigmoid()
        assert_close(found, expected)
    torch.autograd.backward(adjuster.curves(margins)["q"].sum())
    assert weight.grad is not None
    assert weight.grad[:, -1].abs().sum() > 0


def test_what_is_measured_is_what_is_averaged() -> None:
    adjuster = Adjuster("gce", [5, 5], margin="running", input="rank")
    ids = torch.arange(2)
    _, margins = adjuster.observe(torch.tensor([[4.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0]), ids)
    assert margins.tolist() == [4.0, -9.0], "reported as they are"
    assert adjuster.running is not None
    score = torch.special.ndtri(torch.tensor(0.75))
    assert_close(adjuster.running.table, torch.stack([score, -score]))


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(OptionError, match=r"input = 'colour' is unknown: known: margin, margin\+classes, "):
        Adjuster("gce", [5, 5], input="colour")
