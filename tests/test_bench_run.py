"""narl bench run: what it says, what it refuses, what a person sees of many trainings."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command_line import done, narl, refused
from narl.bench import comparison, protocols, work
from narl.bench.asked import difference
from narl.bench.cells import Cell
from narl.bench.runs import Run, read
from narl.cli import grid_progress
from narl.cli.grid_progress import GridProgress
from narl.errors import ConfigError
from narl.train import methods
from small_grid import TASK, bench, cell, place, points, table

OTHER = {"dataset": "other", "noise": "symmetric", "rate": 0.3}


@pytest.mark.usefixtures("nothing_shipped")
def test_a_dry_run_says_what_is_missing(tmp_path: Path) -> None:
    protocol, where = table(tmp_path / "small.json", methods=["CE", "GCE", "T-GCE"]), place(tmp_path)
    work.train(cell(protocol), protocol, where)
    answer = done(*bench(tmp_path, "--dry-run", "--seeds", 2))
    assert answer.err == ""
    assert answer.out.splitlines() == [
        "6 cells: 1 with a result, 3 missing",
        "  points symmetric 0.3, GCE, seed 0",
        "  points symmetric 0.3, CE, seed 1",
        "  points symmetric 0.3, GCE, seed 1",
        "2 cannot be trained: no learned adjuster of GCE was named (--adjuster), and narl ships none for such data",
    ]
    answer = done(*bench(tmp_path, "--dry-run", "--methods", "gce", "-o", "q=0.5", "--tasks", "symmetric"))
    assert answer.out.splitlines()[1:] == ["  points symmetric 0.3, GCE, q = 0.5, seed 0"]
    ablation = ("--dry-run", "--methods", "gce", "--each", "q=0.5", "--each", "q=0.9")
    assert done(*bench(tmp_path, *ablation)).out.splitlines()[1:] == [
        "  points symmetric 0.3, GCE, seed 0",
        "  points symmetric 0.3, GCE, q = 0.5, seed 0",
        "  points symmetric 0.3, GCE, q = 0.9, seed 0",
    ]
    answer = done(*bench(tmp_path, "--dry-run", "--methods", "gce", "--tune", "--heldout", 0.5))
    assert answer.out.splitlines()[1:] == ["  points symmetric 0.3, GCE, tuned, seed 0"], "it holds all of them out"
    table1 = ("bench", "run", "table1", "--dry-run", "--results", where.results, "--data")
    answer = done(*table1, "CIFAR-10=.", "--methods", "A-GCE", "--heldout", 0.5)
    assert answer.out.splitlines()[1] == "  CIFAR-10 symmetric 0, A-GCE, 50% held out, seed 0"
    assert len(read(where.results)) == 1
    answer = done(*table1, f"CIFAR-10={tmp_path}", "--methods", "CE")
    assert answer.out.splitlines()[0] == "6 cells: 0 with a result, 6 missing", "those whose data is given"
    answer = done(*table1, f"CIFAR-10={tmp_path}", "--methods", "CE", "--methods", "GCE,JS")
    assert answer.out.splitlines()[0] == "18 cells: 0 with a result, 18 missing", "none of them is lost"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--methods", "GEC"), "no method is called 'GEC' here: did you mean"),
        (("--tasks", "asymmetric"), "small has no task 'asymmetric': it has points/symmetric-0.3"),
        (("--seeds", 0), "--seeds 0 trains nothing: give at least 1"),
        (("--seeds", "many"), "Invalid value for '--seeds'"),
        (("--schedule", "long"), "small has no schedule 'long'"),
        (("--methods", "GCE", "-o", "p=1"), "GCE has no option 'p'"),
        (("--methods", "GCE", "-o", "q=5"), "q = 5"),
        (("--methods", "GCE", "--each", "p=1"), "GCE has no option 'p'"),
        (("--methods", "GCE", "-o", "q"), "--option q is not NAME=VALUE"),
        (("--methods", "GCE", "--each", "q"), "--each q is not NAME=VALUE: write it like --each mixup=0"),
        (("--heldout", 2), "--heldout 2 is no share of the clean set"),
        (("--at-once", 0), "0 trainings at once are none"),
    ],
    ids=str,
)
def test_what_is_refused(tmp_path: Path, more: tuple[object, ...], words: str) -> None:
    table(tmp_path / "small.json", methods=["CE", "GCE"])
    points(tmp_path / "points.csv")
    assert words in refused(*bench(tmp_path, *more), plan_shown=True)
    assert not (tmp_path / "work").exists() or not any((tmp_path / "work").rglob("*.log"))


def test_tables_and_data_that_are_not_there(tmp_path: Path) -> None:
    table(tmp_path / "small.json", tasks=[TASK, OTHER], methods=["CE"])
    data = points(tmp_path / "points.csv")
    assert "no table is called 'table7': did you mean 'table" in refused("bench", "run", "table7", "--data", data)
    assert "Missing option '--data'" in refused("bench", "run", "table1")
    assert "which data set is which? Write --data NAME=PATH" in refused(
        *bench(tmp_path, "--data", "b.csv", data="a.csv")
    )
    assert "small is about other, points: say which the data is" in refused(*bench(tmp_path, data=data))
    assert "small is about points, other: give one of them with" in refused(*bench(tmp_path, data=f"x={data}"))
    assert "where is other? Say it with --data other=FOLDER" in refused(*bench(tmp_path, "--tasks", "other"))
    assert "give its path" in refused(*bench(tmp_path, data="points="))


# What a person sees

RUN = Run(cell(protocols.get("table1")), 0.8612, 0.9, {})


def _shown(**terminal: Any) -> tuple[GridProgress, io.StringIO, list[Cell]]:
    out = io.StringIO()
    cells = [replace(one, options=(("matrix", "[red]x[/red]"),)) for one in protocols.get("table1").cells()[:3]]
    return (
        GridProgress(dict.fromkeys(cells, protocols.get("table1")), Console(file=out, width=100, **terminal)),
        out,
        cells,
    )


def _work(progress: GridProgress, cells: list[Cell]) -> None:
    for one in cells:
        progress.began(one)
    progress.began(cells[0])  # once more, after a kill
    progress.moved(cells[0], 7)
    progress.ended(cells[0], RUN)
    progress.failed(cells[1], "[bold]no[/bold] data", Path("a.log"))


LINES = [
    "[1/3] CIFAR-10 symmetric 0, CE, matrix = [red]x[/red], seed 0: 86.12% (best epoch 90.00%), 5 s",
    "[2/3] CIFAR-10 symmetric 0, Forward, matrix = [red]x[/red], seed 0: failed: [bold]no[/bold] data (a.log), 5 s",
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 0.0, 5.0, 5.0])
    monkeypatch.setattr(grid_progress, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(times))}))


def test_without_a_terminal_there_are_plain_lines(clock: None) -> None:
    progress, out, cells = _shown()

    def stopped() -> None:
        with progress:
            _work(progress, cells)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert out.getvalue().splitlines() == [*LINES, "stopped and saved: the same command goes on"]


def test_a_terminal_shows_bars_and_keeps_lines(clock: None) -> None:
    progress, out, cells = _shown(force_terminal=True, color_system=None)
    with progress:
        _work(progress, cells)
        progress._bars.refresh()
        drawn = out.getvalue()
    assert "7/60" in drawn or "0/60" in drawn
    assert "━" in drawn
    assert "2/3" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", out.getvalue())
    for line in LINES:
        assert line in plain
    assert "stopped" not in plain


def test_a_result_of_a_table_that_has_changed_is_neither_shown_nor_trained_over(tmp_path: Path) -> None:
    before, where = table(tmp_path / "small.json", methods=["CE"], epochs=2), place(tmp_path)
    work.train(cell(before), before, where)
    written = cell(before).result(where.results)
    content = written.read_bytes()
    after = table(tmp_path / "small.json", methods=["CE"], epochs=3)
    assert comparison.rows(before, read(where.results))[0]["seeds"] == 1
    assert comparison.rows(after, read(where.results))[0]["seeds"] == 0
    answer = narl(*bench(tmp_path))
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "1 cell: 0 with a result, 0 missing",
        "1 result of a table that has changed (epochs was 2, is 3 now): remove what is to be trained anew, such as "
        f"{written}",
    ]
    shown = done("bench", "show", tmp_path / "small.json", "--results", where.results)
    assert "1 of the results are left out: the table has changed since (epochs was 2, is 3 now)" in shown.err
    assert written.read_bytes() == content


def test_a_file_under_another_name_is_no_second_seed(tmp_path: Path) -> None:
    protocol, where = table(tmp_path / "small.json", methods=["CE"]), place(tmp_path)
    work.train(cell(protocol), protocol, where)
    written = cell(protocol).result(where.results)
    copy = written.with_name("ce-seed1.json")
    copy.write_bytes(written.read_bytes())
    with pytest.raises(ConfigError, match=r"is the result of points/symmetric-0\.3/tabular-small/ce-seed0: give it"):
        read(where.results)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--data": "points=nowhere"}, "there is no nowhere: give the folder or file of the data"),
        ({"--labels": "nowhere.pt"}, "there is no nowhere.pt: give the folder or file of the data"),
        ({"--device": "cuda:77"}, "device 'cuda:77' cannot be used here"),
    ],
    ids=str,
)
def test_what_no_cell_could_use_is_refused_once(tmp_path: Path, change: dict[str, str], words: str) -> None:
    table(tmp_path / "small.json", methods=["CE", "GCE"])
    given = {"--data": f"points={points(tmp_path / 'points.csv')}", "--device": "cpu"} | change
    answer = refused("bench", "run", tmp_path / "small.json", *(word for pair in given.items() for word in pair))
    assert words in answer


def test_what_a_method_chose_by_itself_is_written_down(tmp_path: Path) -> None:
    protocol, where = table(tmp_path / "small.json"), place(tmp_path)
    run = work.train(cell(protocol, "A-GCE"), protocol, where)
    assert run is not None
    options = run.settings["options"]
    assert (options["every"], options["adjuster_lr"], options["margin"]) == (1, 0.01, "running")


@pytest.mark.usefixtures("warm_workers")
def test_several_tables_at_once(tmp_path: Path) -> None:
    points(tmp_path / "points.csv")
    table(tmp_path / "first.json", methods=["CE", "GCE"])
    table(tmp_path / "second.json", methods=["CE"], tasks=[{**TASK, "rate": 0.1}])
    command = ("bench", "run", tmp_path / "first.json", tmp_path / "second.json", "--data", tmp_path / "points.csv")
    there = ("--results", tmp_path / "results", "--work", tmp_path / "work", "--device", "cpu")
    answer = done(*command, *there, "--methods", "ce", "--seeds", 2)
    ended = [re.sub(r": .*", "", line) for line in answer.err.splitlines()]
    assert ended == [
        "[1/4] points symmetric 0.3, CE, seed 0",
        "[2/4] points symmetric 0.1, CE, seed 0",
        "[3/4] points symmetric 0.3, CE, seed 1",
        "[4/4] points symmetric 0.1, CE, seed 1",
    ], "seed by seed, so that all tables are there before they get more exact"
    answer = done(*command, *there, "--dry-run", "--tasks", "symmetric-0.1")
    assert answer.out == "1 cell: 1 with a result, 0 missing\n"
    assert "none of these tables has a task 'pair'" in refused(*command, *there, "--tasks", "pair")
    assert "none of these tables has a method 'SL'" in refused(*command, *there, "--methods", "SL")


def test_a_default_that_has_changed_makes_results_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, where = table(tmp_path / "small.json", methods=["CE", "GCE"]), place(tmp_path)
    run = work.train(cell(protocol, "GCE"), protocol, where)
    assert run is not None
    assert difference(run, protocol) is None
    given = replace(run, cell=replace(run.cell, options=(("q", 0.7),)))
    assert difference(given, protocol) is None, "the same value, given"
    spec = methods.get("GCE")
    other = replace(spec, options={"q": replace(spec.options["q"], default=0.6)})
    monkeypatch.setattr(methods, "get", lambda name: other)
    assert difference(run, protocol) == "q was 0.7, is 0.6 now"
    assert difference(replace(run, asked={}), protocol) is None, "nobody knows"
    more = replace(spec, options={**spec.options, "colour": replace(spec.options["q"], default=0.1)})
    monkeypatch.setattr(methods, "get", lambda name: more)
    assert difference(run, protocol) is None, "an option of later; its default is what was before"
    painted = replace(run, cell=replace(run.cell, options=(("colour", 0.2),)))
    assert difference(painted, protocol) == "colour was None, is 0.2 now"


def test_a_method_that_is_gone_is_said(tmp_path: Path) -> None:
    protocol = table(tmp_path / "small.json", methods=["CE"])
    run = Run(replace(cell(protocol), method="Gone"), 0.8, 0.8, {}, asked={"epochs": 3})
    assert difference(run, protocol) == "narl has no Gone any more"
    assert comparison.rows(protocol, [run], variants=True)[0]["seeds"] == 0
