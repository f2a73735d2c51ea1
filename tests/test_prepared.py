"""Adjusters prepared for other data: the same on their own, and what they give where classes are many or unlike."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from narl import AdjustedLoss, Adjuster, losses
from narl.adjuster import packs
from narl.adjuster.packs import Pack

ROOT = Path(__file__).parent.parent
SIZES = (0.6, 1.0, 1.4)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module("prepared")
    del sys.modules["prepared"]


def learned(loss: str, **options: Any) -> Pack:
    """As if from a training with ten classes of three sizes: nothing before it, something after a half."""
    generator = torch.Generator().manual_seed(1)
    counts = [60, 60, 60, 100, 100, 100, 100, 140, 140, 140]
    made = [Adjuster(loss, counts, generator=generator, **options) for _ in range(2)]
    made[0].taken, made[1].taken = 0.0, 0.5
    nn.init.normal_(made[1].heads.weight, std=0.3, generator=generator)
    return Pack(tuple(made))


@pytest.mark.parametrize("loss", ["gce", "sl", "polysoft", "js"])
@pytest.mark.parametrize("seen", ["margin", "margin+progress"])
def test_nothing_changes_where_it_was_learned(study: ModuleType, loss: str, seen: str) -> None:
    pack = learned(loss, input=seen)
    made = study.prepared(pack, SIZES)
    logits, targets = 3 * torch.randn(20, 10, generator=torch.Generator().manual_seed(2)), torch.arange(20) % 10
    for before, after in zip(pack.snapshots, made.snapshots, strict=True):
        assert after.taken == before.taken
        for name, values in before(logits, targets).items():
            assert_close(after(logits, targets)[name], values)


@pytest.mark.parametrize(
    ("loss", "classes"), [(loss, c) for loss in ("gce", "sl") for c in (20, 80, 200, 1000)] + [("polysoft", 30)]
)
def test_it_begins_as_strongly_with_many_classes(study: ModuleType, loss: str, classes: int) -> None:
    first = study.prepared(learned(loss), SIZES).snapshots[0].refit([5] * classes)
    logits = torch.zeros(1, classes, requires_grad=True)

    def pull(values: torch.Tensor) -> float:
        (slope,) = torch.autograd.grad(values.sum(), logits)
        return float(slope[0, 0])

    ours, plain = pull(first.loss(logits, torch.tensor([0]))), pull(losses.ce(logits, torch.tensor([0])))
    start = {h.name: h.start for h in losses.get(loss).hyperparameters}
    assert ours / plain == pytest.approx(study.pull(losses.get(loss), 10, **start), rel=0.01)


@pytest.mark.parametrize(("loss", "name", "value"), [("js", "pi1", 0.02), ("polysoft", "lam", 19.8)])
def test_where_the_span_ends_it_begins_as_strongly_as_it_can(
    study: ModuleType, loss: str, name: str, value: float
) -> None:
    first = study.prepared(learned(loss), SIZES).snapshots[0].refit([5] * 200)
    found = first(torch.zeros(1, 200), torch.tensor([0]))[name]
    assert found.item() == pytest.approx(value, abs=0.01)


def test_heads_serve_classes_of_their_sizes(study: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "gce.safetensors"
    packs.write(path, study.prepared(learned("gce"), SIZES))
    criterion = AdjustedLoss(packs.read(path).snapshots, [470, 500, 530, 500, 500])
    assert criterion.at(0.5).of_class.tolist() == [1] * 5
    criterion = AdjustedLoss(packs.read(path).snapshots, [100, 900, 500, 480, 520])
    assert criterion.at(0.5).of_class.tolist() == [0, 2, 1, 1, 1]


def test_sizes_are_those_that_noise_made(study: ModuleType) -> None:
    """Of the nine tasks in the results: asymmetric noise of 0.2, 0.4 and 0.6 makes 0.8, 0.6 and 0.4 of a class."""
    cells = packs.read(ROOT / "results" / "adjusters" / "gce.safetensors").about["cells"]
    row = [run for run in study.runs.read(ROOT / "results") if run.cell.slug in cells]
    assert len(row) == 9
    assert study.sizes_of(row) == pytest.approx(SIZES, abs=0.01)


def test_a_first_snapshot_that_has_learned_is_refused(study: ModuleType) -> None:
    with pytest.raises(SystemExit, match="before the training"):
        study.prepared(Pack(learned("gce").snapshots[1:]), SIZES)


def test_margins_are_lifted_by_a_part_of_the_logarithm(study: ModuleType) -> None:
    """A quarter of log(1000 / 10), of which with ten classes nothing is left."""
    pack = learned("gce")
    plain, made = pack.snapshots[1], study.prepared(pack, None, lift=0.25).snapshots[1]
    margins = torch.linspace(-6, 6, 25)
    assert_close(made.curves(margins), plain.curves(margins))
    assert_close(made.refit([7] * 1000).curves(margins), plain.curves(margins + 0.25 * math.log(100)))


def test_how_much_classes_say_is_known_from_ten_of_them_alone(study: ModuleType) -> None:
    pack = Pack(tuple(snapshot.refit([5] * 12) for snapshot in learned("gce").snapshots))
    with pytest.raises(SystemExit, match="12 classes"):
        study.prepared(pack, None)


@pytest.mark.parametrize("sizes", [SIZES, None])
def test_it_may_say_that_the_noise_rate_has_a_say(study: ModuleType, sizes: tuple[float, ...] | None) -> None:
    pack, made = learned("gce"), study.prepared(learned("gce"), sizes, noise_rate="estimated")
    assert [snapshot.noise_rate for snapshot in made.snapshots] == ["estimated", "estimated"]
    assert [snapshot.least_steps for snapshot in made.snapshots] == [study.COUNTING] * 2
    assert "How many labels are wrong" in made.about["section"]
    assert AdjustedLoss(made.snapshots, [5] * 20).worth is not None
    for snapshot in made.snapshots:
        snapshot.noise_rate = None
    assert made.digest == study.prepared(pack, sizes).digest, "nothing else is changed"
