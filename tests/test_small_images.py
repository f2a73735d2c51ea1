"""Small images to choose adjusters on: what is drawn, networks side by side, and that files are judged once."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from narl import AdjustedLoss, Adjuster
from narl.adjuster import packs

ROOT = Path(__file__).parent.parent
MODULES = ("small_images", "judges", "turned", "few_images")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("small_images")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "small-images.jsonl")
    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


@functools.cache
def images(rows: int = 600) -> tuple[Any, Any]:
    """What an image shows is how bright it is: ten shades, with some noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=rows)
    shades = 20 + 22 * labels[:, None, None, None] + rng.integers(0, 12, (rows, 16, 16, 3))
    return shades.astype(np.uint8), labels


@pytest.mark.parametrize("classes", [2, 7, 10, 80])
@pytest.mark.parametrize("kind", ["clean", "symmetric", "pair", "instance"])
def test_tasks_have_their_classes_and_wrong_labels(small: ModuleType, classes: int, kind: str) -> None:
    task = small.Task(classes, 4000, 3, kind, 0.0 if kind == "clean" else 0.4)
    made = small.draw(task, images(40_000))
    assert made.x.shape == (4000, 3, 16, 16)
    assert len(made.x_test) == small.TESTED
    assert sorted(made.y_test.unique().tolist()) == list(range(classes))
    assert float(made.wrong.double().mean()) == pytest.approx(task.rate, abs=0.04)
    if classes <= 10:  # an image's class is one of the ten shades
        shades = made.x_test.mean(dim=(1, 2, 3))
        spread = [float(shades[made.y_test == label].std()) for label in range(classes)]
        assert max(spread) < 0.01


def test_networks_side_by_side_are_what_each_is_alone(small: ModuleType) -> None:
    x = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    alone, both = (small.Networks(5, 8, count, torch.Generator().manual_seed(0), "cpu") for count in (1, 2))
    with torch.no_grad():
        both.weights[3][8:] += 0.1  # of the second one, the first convolution of a block
    own, found = alone(x), both(x)
    assert found.shape == (2, 6, 5)
    assert_close(found[0], own[0], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        alone.weights[3].add_(0.1)
    changed = alone(x)[0]
    assert_close(found[1], changed, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(changed, own[0], atol=1e-3)
    (slope,) = torch.autograd.grad(found[0].sum(), both.weights[3])
    assert float(slope[8:].abs().max()) == 0.0 < float(slope[:8].abs().max())


def test_trainings_do_not_change_each_other(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "TESTED", 400)
    task = small.Task(10, 300, 5, "symmetric", 0.4, width=8)
    made = small.draw(task, images(800))
    counts = torch.bincount(made.given, minlength=10)
    criteria = [AdjustedLoss(Adjuster("gce", [5, 5]).begin_at(q=q), counts) for q in (0.1, 0.5)]
    together = small.Trainings(task, made, {"gce": criteria, "js": []}).run()
    assert len(together) == 5
    alone = small.Trainings(task, made, {"gce": criteria[1:]}).run()
    assert [together[0], together[1], together[3]] == pytest.approx(alone, abs=0.02)
    assert max(together) > 0.2


def test_files_are_judged_once(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = small.Task(10, 200, 5, "symmetric", 0.4, width=4)
    monkeypatch.setattr(small, "TASKS", (task,))
    monkeypatch.setattr(small, "TESTED", 100)
    path = tmp_path / "gce-mine.safetensors"
    packs.write(path, packs.Pack((Adjuster("gce", [5, 5]),), trained_on="nothing"))
    for _ in range(2):
        small.run(images(), [path], [task])
    small.run(images(), [path], [task], margin="running")
    rows = [json.loads(line) for line in small.RESULTS.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["CE", "GCE", "gce-mine", "gce-mine, running margin"]
    (table,) = small.tables()
    assert [line[0] for line in table.rows] == ["CE", "GCE", "T-GCE: mine", "T-GCE: mine, running margin"]
    assert "10 classes, symmetric 0.4" in table.markdown()
    capsys.readouterr()


def test_losses_with_other_values_are_trained_beside(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = small.Task(10, 200, 5, "symmetric", 0.6, width=4)
    monkeypatch.setattr(small, "HEAVY", (task,))
    monkeypatch.setattr(small, "TESTED", 100)
    nearly_ce, js = ("gce", (("q", 1e-9),)), ("js", (("pi1", 0.3),))
    small.run(images(), [], [task], values=[nearly_ce, js])
    small.run(images(), [], [task], values=[js, nearly_ce])  # which has nothing left to do
    rows = {row["name"]: row["last5"] for row in map(json.loads, small.RESULTS.read_text().splitlines())}
    assert list(rows) == ["CE", "GCE, q = 1e-09", "JS, pi1 = 0.3"]
    assert rows["GCE, q = 1e-09"] == pytest.approx(rows["CE"], abs=0.02)
    made = small.draw(task, images())
    by_default, other = small.Trainings(task, made, {"gce": []}, values=[nearly_ce]).run()[1:]
    assert rows["GCE, q = 1e-09"] == pytest.approx(other, abs=0.02)
    assert abs(by_default - other) > 0.02
    usual, heavy = small.tables()
    assert [line[0] for line in usual.rows] == ["CE"]
    assert [line[0] for line in heavy.rows] == list(rows)
    capsys.readouterr()


def test_a_few_images_to_train_and_others_to_test_on(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = importlib.import_module("few_images")
    monkeypatch.setattr(few, "ROWS", 20)
    every = np.arange(50, dtype=np.uint8)  # one shade each, so that images can be told apart
    np.savez(tmp_path / "all.npz", x_train=np.tile(every[:, None, None, None], (1, 32, 32, 3)), y_train=every % 10)
    monkeypatch.setattr(sys, "argv", ["few_images.py", str(tmp_path / "all.npz"), str(tmp_path / "few.npz")])
    few.main()
    with np.load(tmp_path / "few.npz") as made:
        assert made["x_train"].shape == made["x_test"].shape == (20, 16, 16, 3)
        shades = [*made["x_train"][:, 0, 0, 0], *made["x_test"][:, 0, 0, 0]]
        assert len(set(shades)) == 40
        assert [*made["y_train"], *made["y_test"]] == [shade % 10 for shade in shades]
