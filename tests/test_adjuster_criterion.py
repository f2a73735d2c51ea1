"""Learned adjusters in place of a cross entropy criterion."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from narl import AdjustedLoss, Adjuster, losses
from narl.errors import ClassCountsError, LabelError, OptionError, SampleIdsError

ADJUSTABLE = [name for name in losses.names() if losses.get(name).hyperparameters]
every_loss = pytest.mark.parametrize("name", ADJUSTABLE)
OLD, NEW = [500, 20, 510, 90], [30, 800, 40]


def taught(name: str = "gce", seed: int = 0, **options: Any) -> Adjuster:
    generator = torch.Generator().manual_seed(seed)
    adjuster = Adjuster(name, **{"class_counts": OLD, "hidden": 6, "generator": generator, **options})
    with torch.no_grad():
        for parameter in adjuster.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return adjuster


def batch(n: int = 8, c: int = 3, seed: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, c, generator=generator), torch.randint(c, (n,), generator=generator)


@every_loss
def test_is_the_mean_of_the_refitted_adjusters_loss(name: str) -> None:
    adjuster = taught(name)
    criterion = AdjustedLoss(adjuster, NEW)
    logits, labels = batch()
    expected = copy.deepcopy(adjuster).refit(NEW).loss(logits, labels)
    assert_close(criterion(logits, labels), expected.mean())
    targets = logits.flip(0).softmax(dim=1)
    assert_close(criterion(logits, targets), copy.deepcopy(adjuster).refit(NEW).loss(logits, targets).mean())


def test_reductions() -> None:
    adjuster = taught()
    logits, labels = batch()
    expected = copy.deepcopy(adjuster).refit(NEW).loss(logits, labels)
    results = {kind: AdjustedLoss(adjuster, NEW, reduction=kind)(logits, labels) for kind in ("none", "mean", "sum")}
    assert_close(results["none"], expected)
    assert_close(results["mean"], expected.mean())
    assert_close(results["sum"], expected.sum())


def test_the_original_adjuster_stays_as_it_is() -> None:
    adjuster = taught(margin="running")
    logits, labels = batch(c=4)
    adjuster.observe(logits, labels, torch.arange(8))
    before = copy.deepcopy(adjuster.state_dict())
    criterion = AdjustedLoss([adjuster, adjuster], NEW)
    criterion(*batch(), ids=torch.arange(8))
    after = adjuster.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert adjuster.class_counts == OLD
    assert all(parameter.requires_grad for parameter in adjuster.parameters())
    with torch.no_grad():
        adjuster.heads.bias.add_(1)
    assert not torch.equal(criterion.at(0).heads.bias, adjuster.heads.bias), "a copy, not the same tensors"


def test_the_adjuster_is_frozen_and_the_gradient_reaches_the_logits() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(3)], NEW)
    logits, labels = batch()
    logits.requires_grad_()
    criterion(logits, labels).backward()
    assert not any(parameter.requires_grad for parameter in criterion.parameters())
    assert all(parameter.grad is None for parameter in criterion.parameters())
    assert logits.grad is not None
    constants = criterion.at(0)(logits, labels)
    (expected,) = torch.autograd.grad(losses.get("gce")(logits, labels, **constants).mean(), logits)
    assert_close(logits.grad, expected)
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("count", "progress", "served"),
    [
        (3, 0, 0),
        (3, 0.0, 0),
        (3, 1 / 3 - 1e-9, 0),
        (3, 1 / 3, 1),
        (3, 0.5, 1),
        (3, 2 / 3 - 1e-9, 1),
        (3, 2 / 3, 2),
        (3, 0.99, 2),
        (3, 1.0, 2),
        (1, 0.0, 0),
        (1, 1.0, 0),
        (2, 0.49, 0),
        (2, 0.5, 1),
    ],
)
def test_each_snapshot_serves_its_share_of_the_training(count: int, progress: float, served: int) -> None:
    adjusters = [taught(seed=seed) for seed in range(count)]
    criterion = AdjustedLoss(adjusters, NEW)
    logits, labels = batch()
    expected = copy.deepcopy(adjusters[served]).refit(NEW).loss(logits, labels).mean()
    assert_close(criterion(logits, labels, progress=progress), expected)
    assert torch.equal(criterion.at(progress).heads.bias, adjusters[served].heads.bias)


@pytest.mark.parametrize("progress", [-0.01, 1.01, 50, math.nan, math.inf])
def test_progress_outside_the_training(progress: float) -> None:
    criterion = AdjustedLoss(taught(), NEW)
    with pytest.raises(OptionError, match=r"progress = .* outside \[0, 1\]: give the share"):
        criterion(*batch(), progress=progress)


def test_no_adjuster() -> None:
    with pytest.raises(OptionError, match="no adjuster given: pass one"):
        AdjustedLoss([], NEW)


def test_snapshots_of_different_losses() -> None:
    with pytest.raises(OptionError, match=r"different losses \(gce, js\): pass those of one adjuster"):
        AdjustedLoss([taught("js"), taught("gce")], NEW)


@pytest.mark.parametrize("kinds", [("latest", "running"), ("running", "latest")])
def test_snapshots_of_different_margins(kinds: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="margin"):
        AdjustedLoss([taught(margin=kind) for kind in kinds], NEW)


def test_an_unknown_reduction() -> None:
    with pytest.raises(OptionError, match="reduction = 'average' is unknown: use 'mean', 'sum' or 'none'"):
        AdjustedLoss(taught(), NEW, reduction="average")


def test_bad_counts_and_batches() -> None:
    with pytest.raises(ClassCountsError, match="class 1 has -1 samples"):
        AdjustedLoss(taught(), [3, -1])
    criterion = AdjustedLoss(taught(), NEW)
    with pytest.raises(ClassCountsError, match="fitted to 3 classes but the logits have 4"):
        criterion(*batch(c=4))
    with pytest.raises(LabelError, match="labels run from 3"):
        criterion(torch.zeros(1, 3), torch.tensor([3]))


# Running margin


def test_samples_are_remembered_in_training_mode_only() -> None:
    criterion = AdjustedLoss(taught(margin="running"), NEW)
    running = criterion.at(0).running
    assert running is not None
    ids = torch.tensor([2, 0])
    labels = torch.tensor([0, 0])
    first = torch.tensor([[4.0, 0.0, 0.0], [0.0, 6.0, 0.0]])
    criterion.eval()
    criterion(first, labels, ids=ids)
    assert len(running.table) == 0
    criterion.train()
    criterion(first, labels, ids=ids)
    assert running.table[ids].tolist() == [4, -6]
    criterion(torch.zeros(2, 3), labels, ids=ids)
    assert_close(running.table[ids], torch.tensor([3.6, -5.4]))


def test_each_steps_loss_sees_its_own_margin_once() -> None:
    adjuster = taught(margin="running")
    criterion = AdjustedLoss(adjuster, NEW)
    by_hand = copy.deepcopy(adjuster).refit(NEW)
    ids = torch.arange(8)
    for seed in range(3):
        logits, labels = batch(seed=seed)
        assert_close(criterion(logits, labels, ids=ids), by_hand.loss(logits, labels, ids).mean())
        by_hand.observe(logits, labels, ids)


def test_snapshots_share_one_memory() -> None:
    criterion = AdjustedLoss([taught(seed=seed, margin="running") for seed in range(3)], NEW)
    ids = torch.arange(8)
    logits, labels = batch()
    criterion(logits, labels, progress=0.0, ids=ids)
    running = criterion.at(1).running
    assert running is not None
    assert running is criterion.at(0).running
    assert len(running.table) == 8
    twin = copy.deepcopy(criterion)
    assert twin.at(1).running is twin.at(0).running is not running


def test_state_of_a_criterion_round_trips() -> None:
    adjusters = [taught(seed=seed, margin="running") for seed in range(3)]
    criterion, fresh = AdjustedLoss(adjusters, NEW), AdjustedLoss(adjusters[::-1], NEW)
    ids = torch.arange(8)
    logits, labels = batch()
    criterion(logits, labels, ids=ids)
    fresh.load_state_dict(copy.deepcopy(criterion.state_dict()))
    for progress in (0.0, 0.5, 1.0):
        expected = criterion.eval()(-logits, labels, progress=progress, ids=ids)
        assert torch.equal(fresh.eval()(-logits, labels, progress=progress, ids=ids), expected)


def test_a_running_margin_needs_ids() -> None:
    with pytest.raises(SampleIdsError, match="pass ids="):
        AdjustedLoss(taught(margin="running"), NEW)(*batch())


# In a training loop


@every_loss
def test_replaces_cross_entropy_in_a_plain_training_loop(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 5, generator=generator), torch.randint(3, (30,), generator=generator)
    model = nn.Linear(5, 3)
    with torch.no_grad():
        model.weight.copy_(0.1 * torch.randn(3, 5, generator=generator))
        model.bias.zero_()
    criterion: nn.Module = AdjustedLoss(Adjuster(name, OLD), torch.bincount(y, minlength=3))
    frozen = copy.deepcopy(criterion.state_dict())
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.5, weight_decay=0.1)
    values = []
    for step in range(3):
        optimizer.zero_grad()
        loss = criterion(model(x), y, progress=step / 3)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[0] > values[1] > values[2]
    assert all(torch.equal(value, frozen[key]) for key, value in criterion.state_dict().items())
