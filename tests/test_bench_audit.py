"""narl bench audit: one run, folds and cleanlab beside each other; what was stopped or made elsewhere goes on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from command_line import done, refused
from narl.bench import audit_table, audits, crossed, runs, stacks, work
from narl.bench.cells import Cell, Task
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.work import Place
from narl.errors import ConfigError, MissingExtraError
from narl.train.planning import plan
from small_grid import StopsAfter, points

TASK = Task("letter", "symmetric", 0.4)


def place(folder: Path) -> Place:
    data = points(folder / "points.csv", 500)
    return Place((("letter", str(data)),), folder / "work", folder / "results" / "audit", device="cpu")


def protocol(epochs: int = 2) -> Protocol:
    return audits.changed(audits.TABLES, ["CE"], epochs)


def cell(table: Protocol, fold: tuple[int, int] | None = None) -> Cell:
    return Cell(TASK, table.model, table.name, "CE", 1, fold=fold)


def test_folds_judge_every_label_once_by_who_was_trained_without_it(tmp_path: Path) -> None:
    table, where = protocol(), place(tmp_path)
    whole = cell(table, (0, 2))
    made = plan(work.settings_of(cell(table), table, where))
    ids = made.sets.train.ids
    parts = [crossed.without(made, one.fold) for one in audits.folds_of(whole)]
    assert sorted(id for part in parts for id in set(ids) - set(part.sets.train.ids)) == sorted(ids)
    assert all(part.sets.clean is None and part.sets.heldout is None for part in parts), "cross-validation has none"
    assert crossed.without(made, None) is made
    for one in audits.folds_of(whole):
        assert work.train(one, table, where) is not None
    run = crossed.combine(whole, where.results, where.work, where.results)
    with np.load(crossed.out_of_fold(whole, where.work)) as said:
        assert said["given"].tolist() == made.sets.train.labels.tolist()
        assert said["true"].tolist() == made.sets.train.true_labels.tolist()  # type: ignore[union-attr]
        assert said["log_probabilities"].dtype == np.float16
        assert np.exp(said["log_probabilities"].astype(float)).sum(axis=1) == pytest.approx(1, abs=2e-3)
    assert run.audit["narl"]["auroc"] > 0.7
    again = runs.read_file(whole.result(where.results))
    assert (again.cell, again.audit) == (whole, run.audit)


def test_a_fold_that_was_stopped_goes_on(tmp_path: Path) -> None:
    table = protocol(3)
    said = []
    for name, looks in (("whole", None), ("stopped", 3)):
        (tmp_path / name).mkdir()
        where = replace(place(tmp_path / name), work=tmp_path / name / "work")
        one = cell(table, (1, 2))
        if looks is not None:
            assert work.train(one, table, where, StopsAfter(looks)) is None
        assert work.train(one, table, where) is not None
        with np.load(one.result(where.results).with_suffix(".npz")) as arrays:
            said.append(arrays["log_probabilities"])
    assert np.array_equal(*said)


def test_folds_are_stacked_with_folds_only(tmp_path: Path) -> None:
    table, where = protocol(), place(tmp_path)
    cells = [cell(table), *audits.folds_of(cell(table, (0, 4))), cell(table, (1, 3))]
    assert [len(one) for one in stacks.stacked(dict.fromkeys(cells, table), where, 8)] == [1, 4, 1]


@pytest.mark.usefixtures("warm_workers")
def test_the_command_trains_what_is_missing_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = points(tmp_path / "points.csv", 500)
    where = ("--results", tmp_path / "results", "--work", tmp_path / "work", "--device", "cpu")
    trials = ("--tasks", "symmetric-0.4", "--epochs", 2, "--methods", "ce", "--folds", 2)
    asked = ("bench", "audit", "--data", f"letter={data}", *trials, *where)
    monkeypatch.setattr(crossed, "has_cleanlab", lambda: False)
    answer = done(*asked)
    assert answer.out.splitlines() == [
        "1 cell: 0 with a result, 1 missing",
        "  letter symmetric 0.4, CE, seed 1",
        "  letter symmetric 0.4, CE, 2 folds, seed 1",
    ]
    assert f"with narl bench cleanlab {tmp_path / 'work' / 'out-of-fold'}" in answer.err
    (kept,) = (tmp_path / "work" / "out-of-fold").iterdir()
    assert kept.name == "letter--symmetric-0.4--tabular-audit-tables-2--ce-2folds-seed1.npz"
    rows = json.loads(done("bench", "show", "audit", "--results", tmp_path / "results", "--json").out)
    found = {row["method"]: row for row in rows}
    assert [name for name in found if name[0] in "nA"] == ["narl, CE", "AUM, CE", "narl, 2 folds, CE"]
    needed = {"data", "method", "auroc", "ap", "f1", "suggested_accuracy", "training_runs"}
    assert needed <= found["narl, CE"].keys()
    assert found["narl, CE"]["training_runs"] == 1
    assert found["narl, 2 folds, CE"]["training_runs"] == 2
    assert done(*asked).out.splitlines() == ["1 cell: 1 with a result, 0 missing"]
    # Where cleanlab is, the second step scores what was kept.
    monkeypatch.setattr(crossed, "by_cleanlab", lambda chances, given, true: {"auroc": 0.5, "f1": float(len(given))})
    said = done("bench", "cleanlab", tmp_path / "work" / "out-of-fold", "--results", tmp_path / "results").out
    assert said == f"letter symmetric 0.4, CE, 2 folds, seed 1: AUROC 0.5, F1 {rows[0]['samples']:.1f}\n"
    shown = done("bench", "show", "audit", "--results", tmp_path / "results", "--markdown").out
    assert "| cleanlab, 2 folds, CE | 0.500 |" in shown


def test_what_is_refused(tmp_path: Path) -> None:
    data = points(tmp_path / "points.csv", 60)
    asked = ("bench", "audit", "--dry-run", "--data")
    assert "which data set is it? Write --data NAME=PATH; known are CIFAR-10, digits" in refused(*asked, data)
    assert "where is penbased? Say it with --data" in refused(*asked, f"letter={data}", "--tasks", "penbased")
    assert "no task 'pair'" in refused(*asked, f"letter={data}", "--tasks", "pair")
    assert "--folds 1 leaves nothing to train on" in refused(*asked, f"letter={data}", "--folds", 1)
    assert "--epochs 0 trains nothing" in refused(*asked, f"letter={data}", "--epochs", 0)
    assert "--seeds 0 trains nothing" in refused(*asked, f"letter={data}", "--seeds", 0)
    assert "--schedule is of the paper's images" in refused(*asked, f"letter={data}", "--schedule", "paper")
    assert "no method is called 'GEC'" in refused(*asked, f"letter={data}", "--methods", "GEC")
    assert "holds no .npz files" in refused("bench", "cleanlab", tmp_path)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    assert "is not what narl bench audit writes" in refused("bench", "cleanlab", tmp_path)
    with pytest.raises(ConfigError, match="out-of-fold"):
        crossed.score_with_cleanlab(tmp_path / "other.npz", tmp_path)


def test_images_are_audited_at_the_tables_own_lengths() -> None:
    assert [task.noise for task in audits.IMAGES.tasks] == [
        *("worst", "aggregate", "random1"),
        *("symmetric", "asymmetric", "instance"),
    ]
    assert audits.IMAGES.schedule("short", "CIFAR-10N").epochs == 60
    assert audits.IMAGES.schedule("paper", "CIFAR-10").milestones == (80, 100)
    assert audits.changed(audits.IMAGES, [], 3).own.milestones == ()  # type: ignore[union-attr]


def test_goals_are_marked_and_seeds_averaged() -> None:
    worst = Cell(Task("CIFAR-10N", "worst"), "resnet32", "short", "GCE", 1)
    numbers = {"auroc": 0.97, "ap": 0.93, "f1": 0.87, "suggested_accuracy": 0.85, "calibration_error": 0.02}
    more = numbers | {"auroc": 0.99}
    folded = replace(worst, method="CE", fold=(0, 4))
    rows = audit_table.rows(
        [
            Run(folded, 0.8, 0.8, {}, noise_rate=0.4, audit={"cleanlab": numbers}),
            Run(worst, 0.8, 0.8, {}, noise_rate=0.4, audit={"narl": numbers}),
            Run(replace(worst, seed=2), 0.8, 0.8, {}, noise_rate=0.4, audit={"narl": more}),
        ]
    )
    assert [(row["method"], row["seeds"], row["training_runs"]) for row in rows] == [
        ("narl, GCE", 2, 1),
        ("cleanlab, 4 folds, CE", 1, 4),
    ]
    assert rows[0]["auroc"] == pytest.approx(0.98)
    assert rows[0]["auroc_std"] == pytest.approx(0.0141, abs=1e-4)
    assert rows[0]["reached"] == {"auroc": True, "ap": False, "f1": True, "suggested_accuracy": True}
    assert rows[1]["reached"] == {}
    (table,) = audit_table.tables(rows)
    assert table.rows[0][1:4] == ("0.980±0.014 ✓", "0.930±0.000 ✗", "0.870±0.000 ✓")
    assert table.rows[-1][:4] == ("goal, one run", "0.965", "0.940", "0.860")
    assert "narl, GCE: not reached: AP." in table.notes
    assert "P@100: share of wrong labels" in table.notes[-1], "the columns are explained, once"


def test_cleanlab_gets_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    given, true = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
    chances = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.8, 0.2]])
    monkeypatch.setattr(crossed, "has_cleanlab", lambda: False)
    with pytest.raises(MissingExtraError, match="pip install cleanlab"):
        crossed.by_cleanlab(chances, given, true)
    fake, rank, filtered = ModuleType("cleanlab"), ModuleType("cleanlab.rank"), ModuleType("cleanlab.filter")
    fake.__version__ = "0"  # type: ignore[attr-defined]
    rank.get_label_quality_scores = lambda labels, p: p[np.arange(len(p)), labels]  # type: ignore[attr-defined]
    filtered.find_label_issues = lambda labels, p: p.argmax(1) != labels  # type: ignore[attr-defined]
    for module in (fake, rank, filtered):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(crossed, "has_cleanlab", lambda: True)
    found = crossed.by_cleanlab(chances, given, true)
    assert (found["auroc"], found["f1"], found["suggested_accuracy"], found["version"]) == (1, 1, 1, "0")
