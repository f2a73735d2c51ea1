"""What short runs on tables do otherwise: another clean loss, a robust start, one family for even classes."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor, nn
from torch.testing import assert_close

import narl
from methods_problem import built, interrupted, setting_of
from narl import errors, losses
from narl.adjuster.families import uneven
from narl.bilevel.clean_losses import CLEAN_LOSSES, absolute_error, cross_entropy
from narl.train import methods
from narl.train.methods.meta import auto_beginning, by_heart

ADJUSTABLE = [name for name in losses.names() if losses.get(name).hyperparameters]
SHORT, LONG = 600, 30_000
ROOT = Path(__file__).parent.parent


# What was measured


def test_the_page_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    study = importlib.import_module("small_tables")
    page = (ROOT / "docs" / "findings.md").read_text()
    for table in study.shown().values():
        assert table in page, "run: python benchmarks/small_tables.py page"
    rows = study.results()
    assert len({tuple(row[key] for key in ("table", "noise", "seed", "variant")) for row in rows}) == len(rows)
    assert {row["variant"] for row in rows} <= set(study.EVERY)


# The clean loss


def batch(rows: int = 9, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (rows,), generator=generator)


def test_the_absolute_error_is_that_of_the_registered_loss_and_cross_entropy_is_torchs() -> None:
    logits, y = batch()
    assert_close(absolute_error(logits, y), losses.mae(logits, y))
    assert_close(absolute_error(logits, F.one_hot(y, 4).double()), losses.mae(logits, y))
    assert torch.equal(cross_entropy(logits, y.int()), F.cross_entropy(logits, y, reduction="none"))


def test_no_clean_sample_counts_for_more_than_one_by_the_absolute_error() -> None:
    hopeless = torch.tensor([[0.0, 1e4], [1e4, 0.0]], requires_grad=True)
    value = absolute_error(hopeless, torch.tensor([0, 0])).mean()
    torch.autograd.backward(value)
    assert value.item() == 0.5
    assert hopeless.grad is not None
    assert bool(torch.isfinite(hopeless.grad).all())


@pytest.mark.parametrize("clean_loss", sorted(CLEAN_LOSSES))
@pytest.mark.parametrize("tangent", ["forward", "reverse"])
def test_the_hypergradient_is_that_of_finite_differences_for_every_clean_loss(clean_loss: str, tangent: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    adjuster = narl.Adjuster("gce", [10, 20, 30, 40], families=1, hidden=4).double()
    nn.init.normal_(adjuster.heads.weight)
    noisy = torch.randn(20, 5, dtype=torch.float64), torch.randint(0, 4, (20,))
    clean = torch.randn(7, 5, dtype=torch.float64), torch.randint(0, 4, (7,))
    found = narl.hypergradient(model, optimizer, adjuster, noisy, clean, clean_loss=clean_loss, tangent=tangent)

    def after_step() -> float:
        """The clean loss after a step, written out."""
        values = adjuster.loss(model(noisy[0]), noisy[1]).mean()
        gradients = torch.autograd.grad(values, list(model.parameters()))
        names = [name for name, _ in model.named_parameters()]
        moved = {n: p - 0.5 * g for n, p, g in zip(names, model.parameters(), gradients, strict=True)}
        logits = torch.func.functional_call(model, moved, (clean[0],))
        of_label = logits.log_softmax(1)[torch.arange(7), clean[1]]
        return float((-of_label if clean_loss == "ce" else 1 - of_label.exp()).detach().mean())

    for parameter, gradient in zip(adjuster.parameters(), found, strict=True):
        flat, place = parameter.detach().view(-1), 0
        step = 1e-5
        flat[place] += step
        above = after_step()
        flat[place] -= 2 * step
        below = after_step()
        flat[place] += step
        assert gradient.view(-1)[place].item() == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-9)


def test_a_step_reports_the_clean_loss_that_it_was_judged_by() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    meta = narl.MetaStep(model, optimizer, narl.Adjuster("gce", [5, 5, 5]), clean_loss="mae")
    meta_loss = meta.step(x, y, (x, y)).meta_loss
    assert meta_loss is not None
    assert_close(meta_loss, losses.mae(model(x), y).mean().detach())
    with pytest.raises(errors.OptionError, match="clean_loss = 'mse' is unknown"):
        narl.MetaStep(model, optimizer, narl.Adjuster("gce", [5, 5, 5]), clean_loss="mse")


# The start


@pytest.mark.parametrize("name", ADJUSTABLE)
def test_an_adjuster_begins_where_it_is_told_to_and_can_learn_from_there(name: str) -> None:
    adjuster = narl.Adjuster(name, [10, 20, 30])
    nn.init.normal_(adjuster.heads.weight)  # as if it had learned something
    logits, y = torch.randn(8, 3), torch.arange(8) % 3
    values = adjuster.begin_at()(logits, y)
    for h in losses.get(name).hyperparameters:
        low, high = h.span
        inside = min(max(h.default, low + 0.01 * (high - low)), high - 0.01 * (high - low))
        assert_close(values[h.name], torch.full((8,), inside), rtol=1e-4, atol=1e-5)
    torch.autograd.backward(adjuster.loss(logits, y).sum())
    assert adjuster.heads.weight.grad is not None
    assert bool((adjuster.heads.weight.grad.abs().sum(dim=1) > 0).all())


def test_an_adjuster_refuses_to_begin_at_what_the_loss_does_not_have() -> None:
    assert narl.Adjuster("gce", [1, 2]).begin_at(q=0.9)(torch.zeros(1, 2), torch.tensor([0]))["q"].item() == (
        pytest.approx(0.9)
    )
    with pytest.raises(errors.HyperparameterError, match="'gce' has no 'pi1'"):
        narl.Adjuster("gce", [1, 2]).begin_at(pi1=0.5)


# Families


@given(st.lists(st.integers(0, 3000), min_size=2, max_size=30))
def test_classes_are_uneven_where_pearsons_statistic_says_so(counts: list[int]) -> None:
    if not sum(counts):
        assert not uneven(counts)
        return
    freedom = len(counts) - 1
    assert uneven(counts) == (chisquare(counts).statistic > freedom + 3 * math.sqrt(2 * freedom))


def test_chance_does_not_make_classes_uneven() -> None:
    rng = np.random.default_rng(0)
    drawn = [uneven(np.bincount(rng.integers(0, 10, 1200), minlength=10)) for _ in range(500)]
    assert np.mean(drawn) < 0.03
    pulled = [uneven(np.bincount(rng.choice(3, 1200, p=[0.2, 0.4, 0.4]))) for _ in range(50)]
    assert all(pulled)


# The rule


@given(
    st.integers(1, 100_000),
    st.sampled_from([None, "image", "text", "table"]),
    st.integers(1, 50_000),
    st.none() | st.integers(1, 300),
)
def test_only_small_tables_in_short_runs_are_trained_otherwise(
    steps: int, kind: str | None, rows: int, epochs: int | None
) -> None:
    small = kind == "table" and steps <= 2000 and epochs is not None and epochs >= 8 and 800 * epochs >= rows
    paper = {"clean_loss": "ce", "robust_start": 0.0, "merge_even": False}
    assert (auto_beginning(kind, steps, rows, epochs) == paper) == (not small)


def method_of(name: str = "A-GCE", *, total_steps: int, kind: str | None, **options: Any) -> Any:
    return built(name, setting_of(total_steps=total_steps, kind=kind, epochs=30), **options)


@pytest.mark.parametrize("kind", [None, "image", "text"])
def test_elsewhere_nothing_has_changed(kind: str | None) -> None:
    method = method_of(total_steps=SHORT, kind=kind)
    plain = method_of(
        total_steps=SHORT, kind=kind, clean_loss="ce", robust_start=0.0, merge_even=False, families=3, warmup=0.0
    )
    assert method.warmup_steps == 0
    assert method.adjuster.num_families == 3
    assert method.move() is not None
    for ours, theirs in zip(method.adjuster.parameters(), plain.adjuster.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert method_of(total_steps=LONG, kind="table").warmup_steps == 0


def test_a_short_run_on_a_table_begins_robust_and_engines_judge_as_it_does() -> None:
    method = method_of(total_steps=SHORT, kind="table")
    logits, y = torch.randn(5, 3), torch.arange(5) % 3
    assert_close(method.adjuster(logits, y, torch.arange(5))["q"], torch.full((5,), 0.7))
    assert method.warmup_steps == SHORT // 5
    move = method.move()
    assert move is not None
    assert move.meta is None, "the adjuster waits until the robust start is over"
    method.steps = method.warmup_steps
    later = method.move()
    assert later is not None
    assert later.meta is not None
    assert later.meta.clean_loss is absolute_error
    assert method_of(total_steps=SHORT, kind="table", warmup=0.5).warmup_steps == SHORT // 2
    assert method_of(total_steps=SHORT, kind="table", robust_start=0.0, clean_loss="ce").move() is not None


# Losses that were learned elsewhere


@given(st.sampled_from([None, "image", "text", "table"]), st.integers(1, 50_000), st.none() | st.integers(1, 300))
def test_tables_are_known_by_heart_however_many_steps_there_are(
    kind: str | None, rows: int, epochs: int | None
) -> None:
    often = kind == "table" and epochs is not None and epochs >= 8 and 800 * epochs >= rows
    assert by_heart(kind, rows, epochs) == often
    if auto_beginning(kind, 1, rows, epochs)["robust_start"]:
        assert often


@pytest.mark.parametrize("total_steps", [9, LONG])
def test_a_transferred_loss_begins_with_fixed_hyperparameters_on_such_tables(total_steps: int) -> None:
    def q_of(step: int, kind: str | None = "table", **options: Any) -> float:
        setting = setting_of(total_steps=total_steps, kind=kind, epochs=30)
        method: Any = built("T-GCE", setting, **options)
        method.steps = step
        method.before_step()
        logits, y, ids = torch.tensor([[3.0, 0, 0], [3.0, 0, 0]]), torch.tensor([0, 1]), torch.arange(2)
        return float(method.observe(logits, y, ids)[0]["q"][1])

    third, default = total_steps // 3, pytest.approx(0.7)
    assert [q_of(step) == default for step in (0, third - 1, third)] == [True, True, False]
    assert q_of(third) == q_of(third, robust_start=0.0) == q_of(third, kind="image")
    assert q_of(0, robust_start=0.0) == q_of(0, kind="image") == q_of(0, kind=None) != default
    assert q_of(total_steps - 1, robust_start=1.0) == default


def test_an_adjuster_for_tables_begins_as_it_was_learned() -> None:
    def q_of(adjuster: narl.Adjuster) -> float:
        method: Any = methods.build("T-GCE", setting_of(kind="table", epochs=30), adjusters=[adjuster])
        return float(method.observe(torch.eye(3), torch.tensor([0, 1, 1]), torch.arange(3))[0]["q"][2])

    adjuster = narl.Adjuster("gce", [5, 5, 5])
    assert q_of(adjuster) == pytest.approx(0.7)
    adjuster.data = "table"
    assert q_of(adjuster) == pytest.approx(0.3)


def test_such_a_run_is_resumed_in_its_beginning_and_after() -> None:
    def make() -> tuple[Any, Any]:
        setting = setting_of(kind="table", epochs=30)
        return setting, built("T-GCE", setting)

    for stop in (2, 5):
        interrupted(make, stop, 8)


def test_the_options_are_those_of_adjusted_losses_alone() -> None:
    new = {"clean_loss", "robust_start", "merge_even"}
    assert new & set(methods.get("T-SL").options) == {"robust_start"}
    assert new <= set(methods.get("A-SL").options)
    assert not new & set(methods.get("MW-Net").options)
    with pytest.raises(errors.OptionError, match="clean_loss"):
        method_of(total_steps=SHORT, kind="table", clean_loss="mse")
