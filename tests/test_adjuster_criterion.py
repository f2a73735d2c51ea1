"""Learned adjusters in place of a cross entropy criterion."""

from __future__ import annotations

import copy
import io
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from narl import AdjustedLoss, Adjuster, losses, margin
from narl.adjuster.last_batch import LastBatch
from narl.errors import ClassCountsError, LabelError, LogitsError, NarlWarning, OptionError, SampleIdsError
from narl.train.evaluate import separation

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
    criterion(*batch(), progress=0.6, ids=torch.arange(8))
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
    criterion(logits, labels, progress=0.0).backward()
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


def test_snapshots_of_different_inputs() -> None:
    with pytest.raises(OptionError, match=r"different input \(margin, scaled\): pass those of one adjuster"):
        AdjustedLoss([taught(input="scaled"), taught()], NEW)


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
    with pytest.raises(OptionError, match=r"progress has 8 numbers: .* sample ids go to ids="):
        criterion(*batch(), torch.arange(8))


def test_labels_that_cross_entropy_ignores() -> None:
    criterion = AdjustedLoss(taught(), NEW, total_steps=3)
    logits, labels = batch()
    with pytest.raises(LabelError, match=r"labels run from -100 to 2 .* or leave such samples out"):
        criterion(logits, torch.where(torch.arange(8) < 3, -100, labels))
    assert criterion.steps == 0


# Its own count


@pytest.mark.filterwarnings("ignore:call .* in training mode")  # beyond the last step, on purpose
@given(count=st.integers(1, 4), total=st.integers(1, 12), modes=st.lists(st.sampled_from("tep"), max_size=16))
@settings(max_examples=25, deadline=None)
def test_it_counts_calls_in_training_mode(count: int, total: int, modes: list[str]) -> None:
    """``t``: in training mode, ``e``: in evaluation mode, ``p``: in training mode with progress."""
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(count)], NEW, total_steps=total)
    logits, labels = batch()
    expected = [criterion.at(k / count).loss(logits, labels).mean() for k in range(count)]
    steps = 0
    for mode in modes:
        value = criterion.train(mode != "e")(logits, labels, **({"progress": 1.0} if mode == "p" else {}))
        serves = count - 1 if mode == "p" else min(count * steps // total, count - 1)
        assert torch.equal(value, expected[serves])
        steps += mode == "t"
        assert criterion.steps == steps
        assert criterion.progress == min(steps / total, 1)


@pytest.mark.parametrize("options", [{}, {"input": "scaled+progress"}])
def test_without_any_word_of_the_progress(options: dict[str, Any]) -> None:
    criterion = AdjustedLoss([taught(seed=seed, **options) for seed in range(3)], NEW)
    for mode in (True, False):
        with pytest.raises(
            OptionError, match=r"3 snapshots must know how .* give AdjustedLoss total_steps=.*progress="
        ):
            criterion.train(mode)(*batch())
    criterion(*batch(), progress=0.5)
    single = AdjustedLoss(taught(**options), NEW)
    if options:
        with pytest.raises(OptionError, match=r"an adjuster of 'scaled\+progress' must know"):
            single(*batch())
    else:
        single(*batch())
        assert single.progress == 0


@pytest.mark.filterwarnings("ignore:call .* in training mode")  # beyond the last step, on purpose
def test_an_adjuster_that_sees_the_progress_is_told() -> None:
    adjuster = taught(input="margin+progress")
    criterion, by_hand = AdjustedLoss(adjuster, NEW, total_steps=4), copy.deepcopy(adjuster).refit(NEW)
    for step in range(6):
        by_hand.progress.fill_(min(step / 4, 1))
        logits, labels = batch(seed=step)
        assert_close(criterion(logits, labels), by_hand.loss(logits, labels).mean())
    by_hand.progress.fill_(0.3)
    assert_close(criterion(logits, labels, progress=0.3), by_hand.loss(logits, labels).mean())


@pytest.mark.parametrize("total", [0, -3, 2.5, math.inf, "many"])
def test_totals_that_are_none(total: Any) -> None:
    with pytest.raises(OptionError, match=r"total_steps = .* is no number of batches: give that of the whole training"):
        AdjustedLoss(taught(), NEW, total_steps=total)


def test_a_resumed_training_goes_on_with_the_right_snapshot() -> None:
    adjusters = [taught(seed=seed) for seed in range(3)]
    whole, halted = (AdjustedLoss(adjusters, NEW, total_steps=6) for _ in range(2))
    batches = [batch(seed=seed) for seed in range(6)]
    expected = [whole(*each) for each in batches]
    found = [halted(*each) for each in batches[:3]]
    resumed = AdjustedLoss(adjusters, NEW, total_steps=6)
    resumed.load_state_dict(written(halted.state_dict()))
    assert resumed.steps == 3
    found += [resumed(*each) for each in batches[3:]]
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert "step 6 of 6" in repr(resumed)


def test_states_from_before_there_was_a_count() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(2)], NEW)
    old = {key: value for key, value in criterion.state_dict().items() if key != "_extra_state"}
    assert len(old) == len(criterion.state_dict()) - 1
    other = AdjustedLoss([taught(seed=seed) for seed in (5, 6)], NEW)
    other.load_state_dict(old)
    assert torch.equal(other.at(1).heads.bias, criterion.at(1).heads.bias)
    nn.Sequential(other).load_state_dict({f"0.{key}": value for key, value in old.items()})


def written(value: Any, weights_only: bool = True) -> Any:
    """Through a file and back."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=weights_only)


@pytest.mark.parametrize(
    "through", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)), lambda c: written(c, weights_only=False)]
)
def test_copies_and_files(through: Callable[[AdjustedLoss], AdjustedLoss]) -> None:
    criterion = AdjustedLoss([taught(seed=seed, margin="running") for seed in range(3)], NEW, total_steps=6)
    logits, labels = batch()
    for _ in range(4):
        criterion(logits.requires_grad_(), labels, ids=torch.arange(8))
    _ = criterion.last.suspicion
    assert isinstance(criterion.__getstate__()["_steps"], int), "torch would share a tensor with another process"
    twin = through(criterion)
    assert twin.steps == 4
    assert torch.equal(twin(-logits, labels, ids=torch.arange(8)), criterion(-logits, labels, ids=torch.arange(8)))
    assert (twin.steps, criterion.steps) == (5, 5)
    twin(logits, labels, ids=torch.arange(8))
    assert criterion.steps == 5
    with pytest.raises(OptionError, match=r"no batch was seen yet: .*; call the criterion first"):
        _ = through(criterion).last


def test_other_types() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(2)], NEW, total_steps=4)
    logits, labels = batch()
    single = criterion(logits, labels)
    criterion.double().to("cpu")
    assert criterion.steps == 1
    double = criterion(logits.double(), labels)
    assert double.dtype == criterion.last.suspicion.dtype == torch.float64
    assert_close(double.float(), single)
    with torch.autocast("cpu", torch.bfloat16):
        scores = nn.Linear(3, 3, bias=False)(logits)
        assert scores.dtype == torch.bfloat16
        value = criterion(scores, labels)
        suspicion = criterion.last.suspicion
    value.backward()
    assert value.dtype == suspicion.dtype == criterion.last.margins.dtype == torch.float32
    again = criterion(scores.detach().float(), labels, progress=0.5)
    assert_close(value, again)
    assert_close(suspicion, criterion.last.suspicion)


# The last batch


@st.composite
def any_batch(draw: st.DrawFn) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    """A loss, logits of any size, targets of either kind and hyperparameters from an adjuster's spans."""
    name, n, c = draw(st.sampled_from(ADJUSTABLE)), draw(st.integers(0, 6)), draw(st.integers(2, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    logits = (draw(st.sampled_from([0.0, 1.0, 10.0, 1e4])) * torch.randn(n, c, generator=generator)).to(dtype)
    shares = torch.rand(n, len(losses.get(name).hyperparameters), generator=generator).round(decimals=1)
    values = {
        spec.name: spec.span[0] + (spec.span[1] - spec.span[0]) * share
        for spec, share in zip(losses.get(name).hyperparameters, shares.unbind(1), strict=True)
    }
    targets = torch.randint(c, (n,), generator=generator)
    if draw(st.booleans()):
        targets = (3 * torch.randn(n, c, generator=generator)).softmax(dim=1)
    return name, logits, targets, values


def strongest(name: str) -> float:
    """How much stronger than cross entropy a loss pulls a label that fits, at most: SL with both values 1."""
    return 1 + 4 * 0.99 if name == "sl" else 1.0


def pull(name: str, logits: Tensor, targets: Tensor, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Prediction, and the loss's gradient by the logits, row by row in double precision."""
    rows = []
    for i, row in enumerate(logits.double()):
        leaf = row.clone().requires_grad_()
        value = losses.get(name)(leaf[None], targets[i : i + 1], **{k: v[i : i + 1] for k, v in values.items()})
        rows.append(torch.autograd.grad(value.sum(), leaf)[0])
    return logits.double().softmax(dim=1), torch.stack(rows)


@given(any_batch())
@settings(max_examples=60, deadline=None)
def test_suspicion_is_what_the_gradients_target_takes_from_the_label(example: Any) -> None:
    name, logits, targets, values = example
    found = LastBatch(losses.get(name), logits, targets, values).suspicion
    assert found.shape == (len(logits),)
    assert not found.requires_grad
    assert ((found >= 0) & (found <= 1)).all()
    if not len(logits):
        return
    p, slope = pull(name, logits, targets, values)
    slope = slope / strongest(name)
    if targets.dim() == 1:
        implied = (p - slope).gather(1, targets[:, None])[:, 0]  # cross entropy with this target has that gradient
        expected = (1 - implied).clamp(min=0)
    else:
        away = p - targets.double()
        kept = torch.stack([a.dot(s) / a.dot(a) for a, s in zip(away, slope, strict=True)])
        expected = (1 - kept).clamp(0, 1) * away.abs().sum(1) / 2
    assert_close(found.double(), expected, atol=2e-5, rtol=1e-4)


def test_suspicion_by_the_formulas() -> None:
    p = torch.tensor([1e-6, 0.01, 0.2, 0.5, 0.9, 1 - 1e-6], dtype=torch.float64)
    logits, labels = torch.stack([p.log(), (1 - p).log()], dim=1), torch.zeros(6, dtype=torch.int64)
    values = torch.linspace(0.2, 0.7, 6, dtype=torch.float64)
    mixed = values + (1 - values) * p
    weights = {
        "gce": ({"q": values}, p**values),
        "sl": ({"gamma1": values, "gamma2": values / 5}, values + 4 * values / 5 * p),
        "polysoft": ({"lam": 9 * values, "d": 1 + values}, (1 + p.log() / (9 * values)).clamp(min=0) ** (1 / values)),
        "js": ({"pi1": values}, p * (1 - (mixed / p).log() / (1 - values).log())),
    }
    for name, (hyperparameters, w) in weights.items():
        found = LastBatch(losses.get(name), logits, labels, hyperparameters).suspicion
        assert_close(found, (1 - w / strongest(name)).clamp(min=0) * (1 - p))


def test_what_sl_learns_from_strongly_is_not_all_believed() -> None:
    """A label that hardly fits pulls as cross entropy does, a fitting one five times as strongly."""
    p = torch.tensor([0.01, 0.3, 0.9], dtype=torch.float64)
    logits, ones = torch.stack([p.log(), (1 - p).log()], dim=1), torch.ones(3, dtype=torch.float64)
    found = LastBatch(losses.get("sl"), logits, torch.zeros(3).long(), {"gamma1": ones, "gamma2": ones}).suspicion
    assert_close(found, (1 - (1 + 4 * p) / (1 + 4 * 0.99)) * (1 - p))
    assert found.tolist() == sorted(found.tolist(), reverse=True)


@every_loss
def test_suspicion_does_not_depend_on_the_batch(name: str) -> None:
    criterion = AdjustedLoss(taught(name), NEW).eval()
    logits, labels = batch()
    criterion(logits, labels)
    whole = criterion.last.suspicion
    for row in range(len(labels)):
        criterion(logits[row : row + 1], labels[row : row + 1])
        assert_close(criterion.last.suspicion, whole[row : row + 1])


ROBUST = {
    "gce": {"q": 1.0},
    "js": {"pi1": 0.99},
    "polysoft": {"lam": 0.5, "d": 1.1},
    "sl": {"gamma1": 0.0, "gamma2": 1.0},
}
LEARNABLE = {
    "gce": {"q": 0.01},
    "js": {"pi1": 0.01},
    "polysoft": {"lam": 20.0, "d": 2.0},
    "sl": {"gamma1": 1.0, "gamma2": 0.0},
}


@every_loss
def test_suspicion_falls_with_the_margin(name: str) -> None:
    margins = torch.linspace(-15, 15, 61)
    logits, labels = torch.stack([margins, torch.zeros(61)], dim=1), torch.zeros(61, dtype=torch.int64)

    def suspicion(values: dict[str, float]) -> Tensor:
        filled = {key: torch.full((61,), value) for key, value in values.items()}
        return LastBatch(losses.get(name), logits, labels, filled).suspicion

    starts = {spec.name: spec.start for spec in losses.get(name).hyperparameters}
    for values in (starts, ROBUST[name]):
        found = suspicion(values)
        assert (found.diff() <= 1e-6).all()
        assert found[0] > 0.25
        assert found[-1] < 1e-4
    assert suspicion(ROBUST[name])[0] > 0.999
    if name == "sl":  # cross entropy, too; but beside what SL can do, that is little
        assert_close(suspicion(LEARNABLE[name]), (1 - 1 / strongest(name)) * torch.sigmoid(-margins))
    else:
        assert suspicion(LEARNABLE[name])[margins > -1].max() < 0.05, "almost cross entropy, which believes the label"


def test_the_last_batch_of_a_criterion() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(3)], NEW, total_steps=3)
    with pytest.raises(OptionError, match="no batch was seen yet"):
        _ = criterion.last
    for step in range(3):
        logits, labels = batch(seed=step)
        logits.requires_grad_()
        criterion(logits, labels)
        last, adjuster = criterion.last, criterion.at(step / 3)
        with torch.no_grad():
            logits.zero_()  # what becomes of the logits afterwards does not matter
        logits, labels = batch(seed=step)
        assert_close(last.hyperparameters, adjuster(logits, labels))
        assert_close(last.margins, margin(logits, labels))
        expected = LastBatch(adjuster.robust_loss, logits, labels, adjuster(logits, labels)).suspicion
        assert_close(last.suspicion, expected)
        seen = [*last.hyperparameters.values(), last.margins, last.suspicion]
        assert not any(values.requires_grad for values in seen)
        assert last is criterion.last
    assert not any("seen" in key or "last" in key for key in criterion.state_dict())


def test_a_training_that_is_longer_than_was_said() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(3)], NEW, total_steps=2)
    for _ in range(2):
        criterion(*batch())
    criterion.eval()
    criterion(*batch())  # counts for nothing
    criterion.train()
    with pytest.warns(
        NarlWarning, match=r"call 3 in training mode, and total_steps = 2: .*epochs \* len\(loader\)"
    ) as told:
        criterion(*batch())
    assert told[0].filename == __file__
    criterion(*batch())  # said once
    single = AdjustedLoss(taught(), NEW, total_steps=1)
    for _ in range(2):
        single(*batch())  # which does not care


def test_a_criterion_that_was_pickled_by_narl_before_it_warned() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(3)], NEW, total_steps=2)
    state = criterion.__getstate__()
    del state["_longer"]
    old = AdjustedLoss.__new__(AdjustedLoss)
    old.__setstate__(state)
    assert_close(old(*batch()), criterion(*batch()))


@pytest.mark.parametrize(
    ("logits", "message"),
    [(np.zeros((4, 3)), "logits are a ndarray"), (torch.zeros(4, 1), "give a binary classifier two outputs")],
)
def test_logits_that_cannot_be_meant(logits: Any, message: str) -> None:
    with pytest.raises(LogitsError, match=message):
        AdjustedLoss(taught(), NEW)(logits, torch.tensor([0, 1, 2, 0]))


def test_the_last_batch_of_a_running_margin() -> None:
    criterion = AdjustedLoss(taught(margin="running", input="scaled"), NEW)
    ids = torch.arange(8)
    criterion(*batch(seed=0), ids=ids)
    logits, labels = batch(seed=1)
    expected = criterion.at(0)(logits, labels, ids)
    criterion(logits, labels, ids=ids)
    assert_close(criterion.last.hyperparameters, expected)
    assert_close(criterion.last.margins, margin(logits, labels))


def test_the_last_batch_in_inference_mode() -> None:
    criterion = AdjustedLoss(taught(), NEW).eval()
    logits, labels = batch()
    criterion(logits, labels)
    expected = criterion.last.suspicion
    with torch.inference_mode():
        criterion(logits.clone(), labels.clone())
        assert_close(criterion.last.suspicion, expected)
        criterion(logits.clone(), labels.clone())
    assert_close(criterion.last.suspicion, expected)


@every_loss
def test_suspicion_finds_the_wrong_labels(name: str) -> None:
    """A small network, trained with the criterion on three clouds of which a third has wrong labels."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(300) % 3
    x = 3 * torch.eye(3)[true] + torch.randn(300, 3, generator=generator)
    wrong = torch.rand(300, generator=generator) < 1 / 3
    labels = torch.where(wrong, (true + 1 + torch.randint(2, (300,), generator=generator)) % 3, true)
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    criterion = AdjustedLoss([Adjuster(name, OLD)] * 3, torch.bincount(labels), total_steps=60)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(60):
        optimizer.zero_grad()
        criterion(model(x), labels).backward()
        optimizer.step()
    suspicion = criterion.last.suspicion
    area = separation(-suspicion.numpy(), wrong.numpy())
    assert area is not None
    assert area > 0.9
    assert suspicion[wrong].mean() > (2 if name == "sl" else 3) * suspicion[~wrong].mean()


# Compiled


def compiled_alike(criterion: AdjustedLoss, backend: str, **how: Any) -> int:
    """A few steps, compiled and not: losses, gradients, last batch. How many graphs it took."""
    graphs = []

    def counting(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, example)

    torch._dynamo.reset()
    twin, compiled = copy.deepcopy(criterion), torch.compile(criterion, backend=counting, fullgraph=True)
    for step in range(5):
        logits, labels = batch(seed=step)
        arguments = {key: value(step) for key, value in how.items()}
        found, expected = (
            (call(leaf, labels, **arguments), leaf)
            for call, leaf in ((compiled, logits.clone().requires_grad_()), (twin, logits.clone().requires_grad_()))
        )
        for value, _ in (found, expected):
            value.backward()
        assert_close(found[0], expected[0])
        assert_close(found[1].grad, expected[1].grad)
        assert_close(criterion.last.suspicion, twin.last.suspicion)
        assert criterion.steps == twin.steps
    return len(graphs)


@pytest.mark.filterwarnings("ignore:call .* in training mode")  # beyond the last step, on purpose
def test_compiled_with_its_own_count() -> None:
    criterion = AdjustedLoss([taught(seed=seed) for seed in range(3)], NEW, total_steps=4)
    assert compiled_alike(criterion, "aot_eager") == 1
    assert criterion.steps == 5


@pytest.mark.parametrize("seen", ["margin+progress", "margin+progress+classes"])
def test_compiled_with_progress_and_running_margins(seen: str) -> None:
    adjusters = [taught(seed=seed, margin="running", input=seen) for seed in range(2)]
    criterion = AdjustedLoss(adjusters, NEW)
    running = criterion.at(0).running
    assert running is not None
    running.reserve(8)
    graphs = compiled_alike(criterion, "eager", progress=lambda step: step / 5, ids=lambda step: torch.arange(8))
    assert graphs <= 3, "the first number, any number of the first half, any of the second"


# Adjusters for several kinds of data


@pytest.mark.parametrize(("data", "serves"), [("table", 1), ("image", 0), (None, 0)])
def test_those_for_the_data_serve(data: str | None, serves: int) -> None:
    adjusters = [taught(seed=0), taught(seed=1, margin="running", input="margin+progress+classes")]
    adjusters[1].data = "table"
    criterion = AdjustedLoss(adjusters, NEW, data=data)
    assert len(criterion.snapshots) == 1
    assert torch.equal(criterion.at(0.5).heads.weight, adjusters[serves].heads.weight)


@pytest.mark.parametrize(("steps", "serves"), [(1, 0), (599, 0), (600, 1), (None, 1)])
def test_those_for_the_data_serve_in_trainings_that_are_long_enough(steps: int | None, serves: int) -> None:
    adjusters = [taught(seed=0), taught(seed=1)]
    adjusters[1].data, adjusters[1].least_steps = "text", 600
    criterion = AdjustedLoss(adjusters, NEW, total_steps=steps, data="text")
    assert torch.equal(criterion.at(0.5).heads.weight, adjusters[serves].heads.weight)
    alone = AdjustedLoss(adjusters[1], NEW, total_steps=steps, data="text")
    assert torch.equal(alone.at(0.5).heads.weight, adjusters[1].heads.weight), "there is nothing else"


def test_data_that_nobody_knows() -> None:
    with pytest.raises(OptionError, match="data = 'tables' is no kind of data: did you mean 'table'"):
        AdjustedLoss(taught(), NEW, data="tables")
    adjusters = [taught(), taught()]
    adjusters[0].data, adjusters[1].data = "table", "text"
    with pytest.raises(OptionError, match="for data of kind table or text: say which it is"):
        AdjustedLoss(adjusters, NEW)
    with pytest.raises(OptionError, match="for data of kind table or text: for images give one for any data"):
        AdjustedLoss(adjusters, NEW, data="image")


def test_copies_of_before_there_were_kinds() -> None:
    adjuster = taught(input="margin+progress")
    state = adjuster.__dict__.copy()
    for name in ("data", "least_steps", "noise_rate", "_measure", "_besides"):
        state.pop(name)
    old = Adjuster.__new__(Adjuster)
    old.__setstate__(state)
    assert_close(AdjustedLoss(old, NEW)(*batch(), progress=0.5), AdjustedLoss(adjuster, NEW)(*batch(), progress=0.5))


def test_those_for_other_data_serve_where_there_is_nothing_else() -> None:
    adjuster = taught()
    adjuster.data = "table"
    assert_close(AdjustedLoss(adjuster, NEW, data="image")(*batch()), AdjustedLoss(taught(), NEW)(*batch()))


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
    criterion(logits, labels, progress=0.0, ids=ids)
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


def steps_of(model: nn.Module, criterion: nn.Module, x: Tensor, y: Tensor, rows: list[Tensor]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    values = []
    for own in rows:
        optimizer.zero_grad()
        loss = criterion(model(x[own]), y[own], ids=own)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def one_of_two(rank: int, folder: str) -> None:
    """A process that trains with its half of every batch."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about itself
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
        )
    x, y, rows, inner, criterion = torch.load(Path(folder, "problem"), weights_only=False)
    model = DistributedDataParallel(inner)
    values = steps_of(model, criterion, x, y, [each.chunk(2)[rank] for each in rows])
    running = criterion.at(0).running
    assert running is not None
    found = {"model": inner.state_dict(), "values": values, "running": running.table, "steps": criterion.steps}
    torch.save(found, Path(folder, str(rank)))
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """The criterion has nothing to exchange: each process counts its steps and remembers its own samples."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 5, generator=generator), torch.randint(3, (16,), generator=generator)
    rows = [torch.arange(8) + 8 * (step % 2) for step in range(6)]
    model = nn.Linear(5, 3)
    nn.init.normal_(model.weight, generator=generator)
    nn.init.zeros_(model.bias)
    criterion = AdjustedLoss([taught(seed=seed, margin="running") for seed in range(3)], NEW, total_steps=6)
    torch.save((x, y, rows, model, criterion), tmp_path / "problem")
    subprocess.run([sys.executable, "-W", "error", __file__, tmp_path], check=True, timeout=120)
    expected = steps_of(model, criterion, x, y, rows)
    found = [torch.load(tmp_path / str(rank), weights_only=True) for rank in range(2)]
    assert [sum(pair) / 2 for pair in zip(*(each["values"] for each in found), strict=True)] == pytest.approx(expected)
    assert [each["steps"] for each in found] == [6, 6]
    running = criterion.at(0).running
    assert running is not None
    for rank, each in enumerate(found):
        assert_close(each["model"], dict(model.state_dict()))
        own = torch.cat([each.chunk(2)[rank] for each in rows[:2]])
        assert_close(each["running"][own], running.table[own])
        assert int(each["running"].isfinite().sum()) == len(own)


if __name__ == "__main__":  # one process imports torch, which takes seconds, and forks the two
    start_processes(one_of_two, (sys.argv[1],), nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
