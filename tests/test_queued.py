"""Parts of several tables in one queue."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from narl.bench import runs
from narl.errors import NarlError

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
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


def test_parts_follow_each_other_and_are_trained_once(
    queued: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    np.savez(tmp_path / "rings.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    (tmp_path / "rings.json").write_text(json.dumps(TABLE))
    parts = [
        {"table": "rings.json", "methods": ["A-GCE"], "options": {"every": 3}, "heldout": 0.5},
        {"table": "rings.json", "seeds": [0, 1], "methods": ["CE"]},
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


@pytest.mark.parametrize("plan", sorted((BENCHMARKS / "plans").glob("*.json")), ids=lambda path: path.stem)
def test_the_plans_that_are_kept_ask_for_something(queued: ModuleType, plan: Path) -> None:
    for part in json.loads(plan.read_text()):
        assert queued.wanted(part, plan.parent)


def test_a_part_that_means_nothing_is_refused(queued: ModuleType) -> None:
    with pytest.raises(SystemExit, match="a part of the plan has epochs"):
        queued.wanted({"table": "table1", "epochs": 3}, BENCHMARKS)
    with pytest.raises(NarlError, match="every"):
        queued.wanted({"table": "table1", "methods": ["CE"], "options": {"every": 3}}, BENCHMARKS)
