"""Adjusters learned from several tasks at once."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import narl
from command_line import done, refused
from command_line import narl as narl_command
from narl.adjuster import Adjuster, packs
from narl.bench import adjusters, grid, protocols, work
from narl.bench.asked import difference
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol, Schedule, from_json, to_json
from narl.bench.runs import read_file
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.train.engine.shared import Shared
from narl.train.methods.meta import MetaMethod
from narl.train.run_folder import RunFolder
from small_grid import TASK, Seen, StopsAfter, decided, place, points, table

TASKS = [TASK, {**TASK, "noise": "asymmetric"}, {**TASK, "rate": 0.1}]


@pytest.fixture
def small(tmp_path: Path) -> tuple[Protocol, Place]:
    own = table(tmp_path / "small.json", tasks=TASKS, methods=["CE", "A-GCE", "A-JS"])
    return adjusters.shared(own), place(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where the small table's A-GCE was learned without a stop, for all to compare with."""
    folder = tmp_path_factory.mktemp("whole")
    own = adjusters.shared(table(folder / "small.json", tasks=TASKS, methods=["CE", "A-GCE", "A-JS"]))
    where = place(folder)
    found = adjusters.learn(row(own), where, Asked())
    assert all(run is not None and run.environment["stacked"] == 3 for run in found)
    return where


def row(protocol: Protocol, method: str = "A-GCE") -> dict[Cell, Protocol]:
    return dict.fromkeys(protocol.cells(methods=[method]), protocol)


def learned(where: Place, cell: Cell) -> list[torch.Tensor]:
    """All numbers of the snapshots that a training has left."""
    files = sorted((where.work / cell.slug).glob("adjuster-[1-9].safetensors"))
    assert len(files) == 3
    return [p.detach() for file in files for p in Adjuster.load(file).parameters()]


def test_the_papers_nine_tasks() -> None:
    protocol = protocols.get("adjusters")
    assert len(protocol.tasks) == 9
    assert {task.noise for task in protocol.tasks} == {"symmetric", "asymmetric", "instance"}
    assert protocol.schedule("adjusters", "CIFAR-10") == Schedule(60, (40, 50))
    assert [len(one) for one in adjusters.rows(protocol.cells())] == [9] * 4


def test_all_tasks_learn_one_adjuster(small: tuple[Protocol, Place], whole: Place) -> None:
    protocol, alone = small
    cells = row(protocol)
    first, *others = (learned(whole, cell) for cell in cells)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert work.train(next(iter(cells)), replace(protocol, shared=False), alone) is not None
    assert not all(torch.equal(a, b) for a, b in zip(first, learned(alone, next(iter(cells))), strict=True))


def test_families_are_each_tasks_own(small: tuple[Protocol, Place], whole: Place) -> None:
    files = [whole.work / cell.slug / "adjuster-3.safetensors" for cell in row(small[0])]
    assert len({tuple(Adjuster.load(file).class_counts) for file in files}) > 1


def test_a_row_knows_its_tasks(small: tuple[Protocol, Place], whole: Place, tmp_path: Path) -> None:
    protocol, _ = small
    found = read_file(next(iter(row(protocol))).result(whole.results))
    assert difference(found, protocol) is None
    fewer = adjusters.shared(table(tmp_path / "small.json", tasks=TASKS[:2], methods=["A-GCE"]))
    assert "tasks was" in str(difference(found, fewer))
    assert len(grid.sort(fewer.cells(), fewer, whole).stale) == 2


def unlike(tmp_path: Path) -> tuple[Protocol, Place]:
    """Tasks of two tables and a file of texts, of 36, 78 and 21 steps and with other numbers of classes."""
    names = ("few", "many", "texts")
    tasks = [{**TASK, "dataset": name} for name in names]
    protocol = table(tmp_path / "small.json", tasks=tasks, methods=["A-GCE"], model="auto", clean=12)
    few, many = points(tmp_path / "few.csv"), points(tmp_path / "many.csv", 600)
    lines = [f"w{k} w{k} w{(7 * i) % 11},{'pq'[k]}\n" for i, k in ((i, i % 2) for i in range(160))]
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(lines))
    sources = tuple(zip(names, map(str, (few, many, tmp_path / "texts.csv")), strict=True))
    return adjusters.shared(protocol), place(tmp_path, sources=sources)


def test_tasks_of_several_data_sets(tmp_path: Path) -> None:
    protocol, where = unlike(tmp_path)
    cells = row(protocol)
    found = adjusters.learn(cells, where, Asked())
    assert all(run is not None and len(run.curves["test_accuracy"]) == 3 for run in found)
    ends = [learned(where, cell)[-4:] for cell in cells]
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(ends[0], end, strict=True)), "they end together"
    out = adjusters.collect(list(cells), where, tmp_path / "out")
    assert packs.read(out).trained_on == "few symmetric 0.3; many symmetric 0.3; texts symmetric 0.3"


def test_the_longest_leads_and_the_others_keep_up() -> None:
    steps, made = [30, 78, 7], [0, 0, 0]
    seats: Any = [SimpleNamespace(steps=count, method=None) for count in steps]
    shared = Shared()
    for tick in range(1, 79):
        for seat, count in zip(seats, made, strict=True):
            seat.method = MagicMock(MetaMethod, steps=count)
        made = [count + turn for count, turn in zip(made, shared.turn(seats), strict=True)]
        assert made == [tick * count // 78 for count in steps]
    assert made == steps


def test_tasks_of_other_lengths_stopped_and_gone_on_with(tmp_path: Path) -> None:
    protocol, where = unlike(tmp_path)
    whole = replace(where, work=tmp_path / "whole", results=tmp_path / "whole-results")
    cells = row(protocol)
    assert None not in adjusters.learn(cells, whole, Asked())
    assert adjusters.learn(cells, where, StopsAfter(3)) == [None] * 3
    assert None not in adjusters.learn(cells, where, Asked())
    for cell in cells:
        assert decided(cell.result(where.results)) == decided(cell.result(whole.results))
        assert all(torch.equal(a, b) for a, b in zip(learned(where, cell), learned(whole, cell), strict=True))


@pytest.mark.parametrize("looks", [4, 17, 30])
def test_stopped_and_gone_on_with_it_is_the_same(small: tuple[Protocol, Place], whole: Place, looks: int) -> None:
    protocol, where = small
    cells = row(protocol)
    assert adjusters.learn(cells, where, StopsAfter(looks)) == [None] * 3
    assert None not in adjusters.learn(cells, where, Asked())
    for cell in cells:
        assert decided(cell.result(where.results)) == decided(cell.result(whole.results))
        assert all(torch.equal(a, b) for a, b in zip(learned(where, cell), learned(whole, cell), strict=True))


def test_after_a_kill_all_go_on_from_where_all_have_been(small: tuple[Protocol, Place], whole: Place) -> None:
    """As if it had come while the second task's end of an epoch was being written."""
    protocol, where = small
    cells = row(protocol)
    assert adjusters.learn(cells, where, StopsAfter(30)) == [None] * 3
    first, second, _ = (RunFolder.open(where.work / cell.slug).checkpoints for cell in cells)
    assert len(set(second.positions())) == 2
    second.paths()[0].unlink()
    assert first.positions()[0] > second.positions()[0]
    adjusters.learn(cells, where, Asked())
    for cell in cells:
        assert decided(cell.result(where.results)) == decided(cell.result(whole.results))


def test_a_damaged_checkpoint_takes_all_back(small: tuple[Protocol, Place], whole: Place) -> None:
    protocol, where = small
    cells = row(protocol)
    for damaged in (1, 2):
        assert adjusters.learn(cells, where, StopsAfter(30 if damaged == 1 else 5)) == [None] * 3
        for path in RunFolder.open(where.work / next(iter(cells)).slug).checkpoints.paths()[:damaged]:
            path.write_bytes(path.read_bytes()[:-9])
    adjusters.learn(cells, where, Asked())
    for cell in cells:
        assert decided(cell.result(where.results)) == decided(cell.result(whole.results))


def test_after_a_kill_at_the_very_end(small: tuple[Protocol, Place], whole: Place) -> None:
    protocol, where = small
    cells = row(protocol)
    adjusters.learn(cells, where, Asked())
    first, *others = cells
    for cell in others:  # the first had ended
        cell.result(where.results).unlink()
        (where.work / cell.slug / "summary.json").unlink()
        RunFolder.open(where.work / cell.slug).checkpoints.paths()[0].unlink()
    assert first.result(where.results).exists()
    adjusters.learn(cells, where, Asked())
    for cell in cells:
        assert decided(cell.result(where.results)) == decided(cell.result(whole.results))


@pytest.mark.usefixtures("warm_workers")
def test_a_killed_worker_goes_on(tmp_path: Path) -> None:
    protocol = adjusters.shared(table(tmp_path / "small.json", tasks=TASKS, methods=["A-GCE"], epochs=8))
    where, cells = place(tmp_path), row(protocol)
    killed: list[int] = []

    def kill(cell: Cell, epoch: int) -> None:
        if not killed:
            killed.append(epoch)
            (worker,) = workers._busy.values()
            worker.process.send_signal(signal.SIGKILL)

    seen = Seen(kill)
    workers = grid._Workers([{}], cells, where, seen)
    assert workers.train(adjusters.rows(cells)) is True
    assert killed
    assert [len(seen.of(cell, "ended")) for cell in cells] == [1, 1, 1]


@pytest.mark.usefixtures("warm_workers")
def test_what_fails_is_told_of_all_tasks_and_not_trained_apart(tmp_path: Path) -> None:
    protocol = adjusters.shared(table(tmp_path / "small.json", tasks=TASKS, methods=["A-GCE"]))
    where, seen = place(tmp_path, sources=(("points", str(tmp_path / "nowhere.csv")),)), Seen()
    cells = row(protocol)
    assert grid.train(cells, where, seen) is False
    assert [len(seen.of(cell, "failed")) for cell in cells] == [1, 1, 1]


@pytest.mark.usefixtures("warm_workers")
def test_on_the_command_line(tmp_path: Path) -> None:
    table(tmp_path / "small.json", tasks=TASKS, methods=["CE", "A-GCE", "A-JS"])
    points(tmp_path / "points.csv")
    where = (
        "--work",
        tmp_path / "work",
        "--results",
        tmp_path / "results",
        "--device",
        "cpu",
        "--out",
        tmp_path / "out",
    )
    asked = ("bench", "adjusters", tmp_path / "small.json", "--data", f"points={tmp_path / 'points.csv'}", *where)
    assert "6 missing" in done(*asked, "--dry-run").out
    assert not (tmp_path / "work").exists()
    said = done(*asked).out
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["gce.safetensors", "js.safetensors"]
    assert str(tmp_path / "out" / "gce.safetensors") in said
    pack = packs.read(tmp_path / "out" / "gce.safetensors")
    assert [snapshot.taken for snapshot in pack.snapshots] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert pack.about["cells"][0].startswith("points/symmetric-0.3/tabular-small-adjusters/a-gce")
    criterion = narl.AdjustedLoss.pretrained(tmp_path / "out" / "gce.safetensors", class_counts=[5, 5, 5, 5])
    assert float(criterion(torch.eye(4)[:2], torch.tensor([0, 1]), progress=0.9)) > 0
    before = [path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*.json")]
    done(*asked)  # nothing is left to learn
    done(*asked, "--methods", "A-GCE", "--snapshots", 6)
    more = packs.read(tmp_path / "out" / "gce-snapshots=6.safetensors")  # beside the others
    assert [snapshot.taken for snapshot in more.snapshots] == pytest.approx([number / 6 for number in range(7)])
    after = [path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*.json")]
    assert set(before) <= set(after)


def test_mistakes_on_the_command_line(tmp_path: Path) -> None:
    table(tmp_path / "small.json", tasks=TASKS, methods=["CE"])
    asked: tuple[Any, ...] = ("bench", "adjusters", tmp_path / "small.json", "--data", points(tmp_path / "points.csv"))
    assert "has no A-* method" in refused(*asked)
    assert "CE learns no adjuster: give A-* methods" in refused(*asked, "--methods", "CE")
    assert "--seeds 0 learns nothing" in refused(*asked, "--seeds", 0)
    answer = narl_command("bench", "run", "adjusters", "--data", tmp_path / "points.csv", "--device", "cpu")
    assert answer.code == 2
    assert "use narl bench adjusters" in answer.err


def test_one_adjuster_takes_one_kind_of_loss(tmp_path: Path) -> None:
    protocol = adjusters.shared(table(tmp_path / "small.json", tasks=TASKS, methods=["A-GCE", "A-JS"]))
    one, other = protocol.cells(methods=["A-GCE"])[0], protocol.cells(methods=["A-JS"])[1]
    with pytest.raises(narl.errors.OptionError, match="do not learn the same kind of loss"):
        adjusters.learn({one: protocol, other: protocol}, place(tmp_path), Asked())


def test_a_table_of_the_paper_can_be_shared_too() -> None:
    protocol = adjusters.shared(protocols.get("cifar10n"))
    assert protocol.shared
    assert {cell.schedule for cell in protocol.cells()} == {"cifar10n-adjusters"}
    assert from_json(to_json(protocol)) == protocol
    assert np.all([cell.slug.split("/")[2] == "resnet32-cifar10n-adjusters" for cell in protocol.cells()])
