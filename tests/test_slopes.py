"""A learned loss's side of a step against what autograd makes of the loss itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import narl
from narl import losses
from narl.bilevel.clean_losses import absolute_error
from narl.bilevel.slopes import CleanSlope, Slopes
from oracles import finite_differences

CLASSES, ROWS, SAMPLES = 4, 9, 30

ADJUSTABLE = [name for name in losses.names() if losses.get(name).hyperparameters]
close: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-11}


def adjuster(loss: str, margin: str = "latest", hidden: int = 5) -> narl.Adjuster:
    """One that is past its start: with zero head weights half of the response would be zero."""
    generator = torch.Generator().manual_seed(0)
    made = narl.Adjuster(loss, [40, 9, 40, 10], families=2, hidden=hidden, margin=margin, generator=generator).double()
    nn.init.normal_(made.heads.weight, 0, 0.5, generator=generator)
    if made.running is not None:
        made.running.reserve(SAMPLES)
        known = torch.arange(0, SAMPLES, 2)
        made.running.store(torch.randn(len(known), generator=generator, dtype=torch.float64), known)
    return made


def batch(seed: int = 0, *, soft: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets, ids."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    if soft:
        targets = torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64).softmax(1)
    return logits, targets, torch.randperm(SAMPLES, generator=generator)[:ROWS]


def unrolled(objective: Any, logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """The clean loss after a step on the logits themselves, by every parameter; and what the step's response needs."""
    leaf = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective.loss(leaf, targets, ids=ids).mean(), leaf, create_graph=True)
    moved = leaf.detach() - 3 * slope
    clean_loss = F.cross_entropy(moved, (torch.arange(ROWS) + 1) % CLASSES)
    shift = 3 * torch.autograd.grad(clean_loss, moved, retain_graph=True)[0]
    learned = [p for p in objective.parameters() if p.requires_grad]
    return list(torch.autograd.grad(clean_loss, learned)), shift


@pytest.mark.parametrize("loss", ADJUSTABLE)
@pytest.mark.parametrize("margin", ["latest", "running"])
def test_slope_response_and_observation_of_every_loss(loss: str, margin: str) -> None:
    objective, example = adjuster(loss, margin), batch()
    before = copy.deepcopy(objective.state_dict())
    slopes = Slopes(objective, *example)
    assert_close(objective.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    for seed in (0, 1):  # other numbers than those it was traced with
        logits, targets, ids = batch(seed)
        leaf = logits.clone().requires_grad_()
        mean = objective.loss(leaf, targets, ids).mean()
        (expected,) = torch.autograd.grad(mean, leaf)
        assert_close(slopes.slope(logits, targets, ids), expected, **close)

        gradients, shift = unrolled(objective, logits, targets, ids)
        assert min(float(gradient.abs().max()) for gradient in gradients) > 1e-9
        assert_close(slopes.response(logits, targets, ids, shift), gradients, **close)

        other = copy.deepcopy(objective)
        fields, margins = other.observe(logits, targets, ids)
        found = slopes.observed(logits, targets, ids)
        assert_close(found, (expected, mean.detach(), fields, margins), **close)
        assert_close(objective.state_dict(), other.state_dict(), equal_nan=True, **close)
        with torch.no_grad():  # what has been learned in between counts
            objective.heads.bias.add_(0.3)


def test_response_by_finite_differences() -> None:
    objective, (logits, targets, ids) = adjuster("gce", hidden=2), batch()
    slopes = Slopes(objective, logits, targets, ids)
    shift = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits).sin()
    expected = finite_differences(
        lambda: -float((slopes.slope(logits, targets, ids) * shift).sum()), list(objective.parameters())
    )
    assert_close(slopes.response(logits, targets, ids, shift), expected, rtol=1e-5, atol=1e-9)


def test_probabilities_as_targets() -> None:
    objective, (logits, targets, ids) = adjuster("gce"), batch(soft=True)
    slopes = Slopes(objective, logits, targets, ids)
    leaf = logits.clone().requires_grad_()
    expected = torch.autograd.grad(objective.loss(leaf, targets).mean(), leaf)[0]
    assert_close(slopes.slope(logits, targets, ids), expected, **close)
    gradients, shift = unrolled(objective, logits, targets, ids)
    assert_close(slopes.response(logits, targets, ids, shift), gradients, **close)


def test_a_look_without_remembering() -> None:
    objective, (logits, targets, ids) = adjuster("gce", "running"), batch()
    slopes = Slopes(objective, logits, targets, ids)
    assert objective.running is not None
    table = objective.running.table
    before = table.clone()
    first = slopes.observed(logits, targets, ids, remember=False)
    assert torch.equal(table.nan_to_num(), before.nan_to_num())
    assert_close(slopes.observed(logits, targets, ids), first)
    assert objective.running.table is table  # in place: a captured graph knows no other
    assert not torch.equal(table.nan_to_num(), before.nan_to_num())


def test_frozen_parameters_have_no_response() -> None:
    objective, (logits, targets, ids) = adjuster("sl"), batch()
    objective.hidden.requires_grad_(False)
    slopes = Slopes(objective, logits, targets, ids)
    assert slopes.learned == ["heads.weight", "heads.bias"]
    gradients, shift = unrolled(objective, logits, targets, ids)
    assert_close(slopes.response(logits, targets, ids, shift), gradients, **close)


class Tempered(nn.Module):
    """A learned loss that gives its mean only, knows no ids and has a parameter without effect."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.idle = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.ones(2))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.rate * logits, targets)

    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {}, narl.margin(logits, targets)


def test_a_loss_of_ones_own() -> None:
    objective, (logits, targets, ids) = Tempered().double(), batch()
    slopes = Slopes(objective, logits, targets, ids)
    shift = logits.cos()
    by_rate, by_idle = slopes.response(logits, targets, ids, shift)
    assert torch.equal(by_idle, torch.zeros_like(by_idle))
    (expected,) = finite_differences(
        lambda: -float((slopes.slope(logits, targets, ids) * shift).sum()), [objective.rate.view(1)]
    )
    assert_close(by_rate.view(1), expected, rtol=1e-6, atol=1e-9)
    slope, loss, fields, margins = slopes.observed(logits, targets, ids)
    assert fields == {}
    assert_close(loss, objective.loss(logits, targets).detach())
    assert_close(margins, narl.margin(logits, targets))
    assert_close(slope, slopes.slope(logits, targets, ids))


def test_what_compiles_gets_every_graph() -> None:
    graphs = []

    def compile(graph: Any) -> Any:
        graphs.append(graph)
        return lambda *arguments: graph(*arguments)

    objective, (logits, targets, ids) = Tempered().double(), batch()
    slopes = Slopes(objective, logits, targets, ids, compile=compile)
    assert len(graphs) == 3
    assert slopes.slope(logits, targets, ids).shape == logits.shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "probabilities"])
def test_clean_slope_is_cross_entropys(dtype: torch.dtype, kind: str) -> None:
    logits, targets, _ = batch(soft=kind == "probabilities")
    given = logits.to(dtype)
    if kind != "probabilities":
        targets = targets.to(getattr(torch, kind))
    else:
        targets = targets.to(torch.promote_types(dtype, torch.float32))
    leaf = given.to(targets.dtype if targets.is_floating_point() else torch.float64).requires_grad_()
    mean = F.cross_entropy(leaf, targets if targets.is_floating_point() else targets.long())
    expected = torch.autograd.grad(mean, leaf)[0]
    slope, loss = CleanSlope(torch.zeros_like(given), targets)(given, targets)
    assert slope.dtype == dtype
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert_close(slope, expected.to(dtype), rtol=tolerance, atol=1e-6)
    assert_close(loss, mean.detach().to(loss.dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trainings", [None, 3])
@pytest.mark.parametrize("soft", [False, True])
def test_clean_slope_of_the_bounded_loss(trainings: int | None, soft: bool) -> None:
    """Against p (e_y - p) by hand: the gradient of 1 - p_y is -p_y (e_y - p)."""
    count, classes, draws = 5, 4, torch.Generator().manual_seed(0)
    of_all = torch.randn(count, trainings or 1, classes, generator=draws, dtype=torch.float64)
    targets = torch.randint(0, classes, (count, trainings or 1), generator=draws)
    wanted = F.one_hot(targets, classes).double()
    p = of_all.softmax(dim=2)
    right = (p * wanted).sum(dim=2, keepdim=True)
    expected = -right * (wanted - p) / count
    given = wanted if soft else targets
    logits, given = of_all.flatten(1), (given if trainings else given.squeeze(1))
    slope, loss = CleanSlope(torch.zeros_like(logits), given, loss=absolute_error, trainings=trainings)(logits, given)
    assert_close(slope, expected.flatten(1))
    means = 1 - right.squeeze(2).mean(dim=0)
    assert_close(loss, means if trainings else means.squeeze(0))
