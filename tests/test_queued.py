"""Parts of several tables in one queue."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from narl.bench import runs
from narl.bench.cells import Cell
from narl.bench.grid import Sorted
from narl.bench.protocol import Protocol
from narl.bench.work import Place
from narl.errors import NarlError

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
NAMES = ("CIFAR-10", "TinyImageNet-32", "Turned-CIFAR-10", "Few-CIFAR-10")
SOURCES = tuple((name, f"{name}.npz") for name in NAMES)
SOMEWHERE = Place(SOURCES, Path("runs"), Path("results"))
TABLE = {
    "tasks": [{"dataset": "rings", "noise": "symmetric", "rate": 0.2}],
    "methods": ["CE", "A-GCE"],
    "model": "tabular",
    "epochs": 1,
    "clean": 20,
    "training": {"test": "0.2"},
}


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("queued")
    del sys.modules["queued"]


@pytest.mark.usefixtures("warm_workers")
def test_parts_follow_each_other_and_are_trained_once(
    queued: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    np.savez(tmp_path / "rings.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    (tmp_path / "rings.json").write_text(json.dumps(TABLE))
    parts = [
        {"table": "rings.json", "methods": ["A-GCE"], "options": {"every": 3}, "heldout": 0.5},
        {"table": "rings.json", "seeds": 2, "methods": ["CE"]},
    ]
    (tmp_path / "plan.json").write_text(json.dumps(parts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("sys.argv", ["queued.py", "plan.json", "--data", "rings.npz", "--discard"])
    queued.main()
    found = {run.cell.label: run.cell for run in runs.read(tmp_path / "results")}
    assert sorted(found) == ["A-GCE, every = 3, 50% held out", "CE"]
    assert sorted(run.cell.seed for run in runs.read(tmp_path / "results") if run.cell.method == "CE") == [0, 1]
    capsys.readouterr()
    queued.main()
    assert capsys.readouterr().out.splitlines() == ["rings.json: 1 cells, 0 missing", "rings.json: 2 cells, 0 missing"]


def test_tuned_cells_come_after_what_they_are_chosen_by(
    queued: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rings.json").write_text(json.dumps({**TABLE, "methods": ["GCE"], "tuning": {"epochs": 1}}))
    (tmp_path / "plan.json").write_text(json.dumps([{"table": "rings.json", "tune": True}]))
    monkeypatch.chdir(tmp_path)
    asked: list[list[str]] = []

    def train(cells: dict[Cell, Protocol], *_: object, **__: object) -> bool:
        asked.append([one.label for one in cells])
        return True

    monkeypatch.setattr(queued.grid, "train", train)
    command = ["queued.py", "plan.json", "--data", "rings=rings.npz"]
    for more in (["--short-only"], []):
        monkeypatch.setattr("sys.argv", [*command, *more])
        queued.main()
    short = [f"GCE, q = {q}, to choose by" for q in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert asked == [short, [*short, "GCE, tuned"]]
    assert capsys.readouterr().out.splitlines() == ["rings.json: 1 cells, 5 missing", "rings.json: 1 cells, 6 missing"]


def test_one_that_is_stopped_says_so_once(
    queued: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rings.json").write_text(json.dumps(TABLE))
    (tmp_path / "plan.json").write_text(json.dumps([{"table": "rings.json"}]))
    monkeypatch.chdir(tmp_path)

    def train(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(queued.grid, "train", train)
    monkeypatch.setattr("sys.argv", ["queued.py", "plan.json", "--data", "rings=rings.npz"])
    with pytest.raises(SystemExit) as stopped:
        queued.main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err.splitlines() == ["stopped and saved: the same command goes on"]


@pytest.mark.parametrize("plan", sorted((BENCHMARKS / "plans").glob("*.json")), ids=lambda path: path.stem)
def test_the_plans_that_are_kept_ask_for_something(queued: ModuleType, plan: Path) -> None:
    for part in json.loads(plan.read_text()):
        assert queued.wanted(part, plan.parent, SOMEWHERE)


def test_a_part_that_means_nothing_is_refused(queued: ModuleType) -> None:
    with pytest.raises(SystemExit, match="a part of the plan has epochs"):
        queued.wanted({"table": "table1", "epochs": 3}, BENCHMARKS, SOMEWHERE)
    with pytest.raises(NarlError, match="every"):
        queued.wanted({"table": "table1", "methods": ["CE"], "options": {"every": 3}}, BENCHMARKS, SOMEWHERE)


def test_what_learns_one_adjuster_is_trained_whole(queued: ModuleType, tmp_path: Path) -> None:
    place = replace(SOMEWHERE, results=tmp_path)
    cells = queued.wanted({"table": "adjusters", "methods": ["A-GCE", "A-SL"]}, BENCHMARKS, place)
    assert queued.lacking(cells, place) == cells
    first, *rest = cells
    settled = {*rest} - {cell for cell in rest if cell.method == first.method}
    with pytest.MonkeyPatch.context() as patch:  # all have a result, but one of a row of nine
        patch.setattr(queued.grid, "sort", lambda asked, *_: Sorted((), tuple(c for c in asked if c == first), ()))
        assert queued.lacking(cells, place).keys() == cells.keys() - settled
