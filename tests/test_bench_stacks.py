"""Several cells as one."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from command_line import done, refused
from narl import losses
from narl.bench import grid, work
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.runs import read_file
from narl.bench.stacks import stacked
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.bilevel import StepReport
from narl.errors import NarlError
from narl.train.engine.stack import Stack
from narl.train.run_folder import RunFolder
from small_grid import Seen, StopsAfter, bench, cell, decided, place, points, table

METHODS = ["CE", "GCE", "A-GCE", "A-JS"]


@pytest.fixture
def small(tmp_path: Path) -> tuple[Protocol, Place]:
    return table(tmp_path / "small.json", methods=METHODS), place(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where CE and GCE of the small table were trained as one without a stop, for all to compare with."""
    folder = tmp_path_factory.mktemp("whole")
    protocol, where = table(folder / "small.json", methods=METHODS), place(folder)
    assert None not in work.train_as_one(cells_of(protocol, "CE", "GCE"), where, Asked())
    return where


def cells_of(protocol: Protocol, *methods: str, seeds: int = 1) -> dict[Cell, Protocol]:
    return {cell(protocol, method, seed=seed): protocol for seed in range(seeds) for method in methods or METHODS}


def labels(stacks: list[tuple[Cell, ...]]) -> list[list[str]]:
    return [[f"{one.method} {one.seed}" for one in stack] for stack in stacks]


def test_which_cells_go_together(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    cells = cells_of(protocol, "CE", "A-GCE", "GCE", seeds=2)
    assert labels(stacked(cells, where, 3)) == [["CE 0", "GCE 0", "CE 1"], ["A-GCE 0", "A-GCE 1"], ["GCE 1"]]
    assert labels(stacked(cells, where, 1)) == [[f"{c.method} {c.seed}"] for c in cells]
    several = cells_of(protocol, "A-GCE+", "A-GCE", seeds=2)  # committees are trained by themselves
    assert labels(stacked(several, where, 3)) == [["A-GCE+ 0"], ["A-GCE 0", "A-GCE 1"], ["A-GCE+ 1"]]


def test_what_keeps_them_apart(small: tuple[Protocol, Place], tmp_path: Path) -> None:
    protocol, where = small
    one = cell(protocol, "A-GCE")
    longer = table(tmp_path / "longer.json", methods=METHODS, epochs=4)
    wider = table(tmp_path / "wider.json", methods=METHODS, training={"batch_size": 40})
    others = {
        replace(one, options=(("every", 3),)): protocol,
        cell(longer, "A-GCE"): longer,
        cell(wider, "A-GCE"): wider,
        replace(one, model="mlp"): protocol,
    }
    for other, own in others.items():
        assert len(stacked({one: protocol, other: own}, where, 2)) == 2
    assert len(stacked({one: protocol, replace(one, options=(("hidden", 7),)): protocol}, where, 2)) == 1
    tuned = {replace(cell(protocol, method), tune=True): protocol for method in ("GCE", "CE")}
    assert len(stacked(tuned, where, 2)) == 2
    assert work.train(cell(protocol, "CE"), protocol, where, _StopAfter(1)) is None
    assert len(stacked(cells_of(protocol, "CE", "GCE"), where, 2)) == 1  # none of its epochs is done


class _StopAfter(Asked):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def after_step(self, report: StepReport) -> None:
        self._steps -= 1
        self.stop |= self._steps == 0


def test_each_is_what_it_would_be_alone(small: tuple[Protocol, Place], tmp_path: Path) -> None:
    protocol, where = small
    alone = replace(where, work=tmp_path / "alone", results=tmp_path / "alone-results")
    cells = cells_of(protocol, "A-GCE", "A-JS")
    found = work.train_as_one(cells, where, Asked())
    for one, run in zip(cells, found, strict=True):
        assert work.train(one, protocol, alone) is not None
        assert run is not None
        assert run.environment["stacked"] == 2
        alone_run = read_file(one.result(alone.results))
        assert "stacked" not in alone_run.environment
        assert decided(one.result(where.results)) == decided(one.result(alone.results))


@pytest.mark.parametrize("looks", [5, 15, 20])
def test_all_stop_at_one_step_and_go_on(small: tuple[Protocol, Place], whole: Place, looks: int) -> None:
    protocol, where = small
    cells = cells_of(protocol, "CE", "GCE")
    assert work.train_as_one(cells, where, StopsAfter(looks)) == [None, None]
    folders = [where.work / one.slug for one in cells]
    saved = [sorted(path.name for path in (folder / "checkpoints").iterdir())[-1] for folder in folders]
    assert saved[0] == saved[1]
    assert None not in work.train_as_one(cells, where, Asked())
    for one in cells:
        assert decided(one.result(where.results)) == decided(one.result(whole.results))


def test_one_that_is_done_is_left_out(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    first = work.train(cell(protocol, "CE"), protocol, where)
    found = work.train_as_one(cells_of(protocol, "CE", "GCE"), where, Asked())
    assert first is not None
    assert found[0] is not None
    assert vars(found[0]) == vars(first)
    assert found[1] is not None


@pytest.mark.usefixtures("warm_workers")
def test_the_grid_trains_them_in_one_process(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    seen, cells = Seen(), cells_of(protocol)
    assert grid.train(cells, where, seen, at_once=1, stack=4) is True
    assert all(one.result(where.results).exists() for one in cells)
    assert [what[0] for what in seen.told[:2]] == ["began", "began"]
    assert {str(path.name) for path in where.work.rglob("*.log")} == {"ce-seed0.log", "a-gce-seed0.log"}
    assert all(seen.of(one, "ended") for one in cells)


CRACKS = """
import itertools, torch
from narl.losses import RobustLoss, ce, register
from narl.train import methods

calls = itertools.count(1)

def cracks(logits, targets):
    return ce(logits, targets) * (torch.nan if next(calls) > 20 else 1.0)

register(RobustLoss("cracks", cracks, (), title="Cracks"))
methods.get("Cracks")
"""


@pytest.fixture
def cracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Protocol]:
    """A table with a loss that is no number from its 21st batch on."""
    (tmp_path / "cracks_of_mine.py").write_text(CRACKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    methods = ["CE", "GCE", "JS", "SL", "Cracks"]
    yield table(tmp_path / "small.json", methods=methods, modules=["cracks_of_mine"])
    del sys.modules["cracks_of_mine"]
    losses.unregister("cracks")


@pytest.mark.usefixtures("warm_workers")
def test_one_of_eight_that_diverges_costs_the_others_nothing(cracking: Protocol, tmp_path: Path) -> None:
    where, seen = place(tmp_path), Seen()
    healthy = [*cells_of(cracking, "CE", "GCE", "JS", seeds=2), cell(cracking, "SL")]
    ill = cell(cracking, "Cracks")
    cells = dict.fromkeys([*healthy, ill], cracking)
    assert grid.train(cells, where, seen, at_once=1, stack=8) is False
    (log,) = {path for path in where.work.rglob("*.log") if ill.slug in path.read_text()}
    assert log == where.work / f"{healthy[0].slug}.log", "the stack's"
    assert f"narl: {ill.slug}, epoch 2, step 9 of 12: the training loss is nan" in log.read_text()
    ((_, reason, _),) = seen.of(ill, "failed")
    assert reason.startswith("the training loss is nan")
    for one in healthy:
        assert seen.of(one, "ended")
        assert read_file(one.result(where.results)).environment["stacked"] == 8, "the epoch before is kept"
    alone = replace(where, work=tmp_path / "alone", results=tmp_path / "alone-results")
    work.train(one, cracking, alone)
    assert decided(one.result(where.results)) == decided(one.result(alone.results))


@pytest.mark.parametrize("model", ["text_cnn", "tabular"])
def test_dropout_draws_as_it_would_alone(tmp_path: Path, model: str) -> None:
    words = tmp_path / "words.csv"
    rows = [f"{'a good day' if i % 2 else 'the bad night'} {i % 7} of {i},{'ab'[i % 2]}\n" for i in range(200)]
    words.write_text("text,label\n" + "".join(rows))
    data = {"text_cnn": str(words), "tabular": str(points(tmp_path / "points.csv"))}[model]
    task = {"dataset": "some", "noise": "symmetric", "rate": 0.2}
    protocol = table(tmp_path / "some.json", tasks=[task], methods=["CE", "GCE"], model=model, epochs=2)
    where = place(tmp_path, sources=(("some", data),))
    alone = replace(where, work=tmp_path / "alone", results=tmp_path / "alone-results")
    cells = dict.fromkeys(protocol.cells(), protocol)
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert work.train_as_one(cells, where, StopsAfter(7)) == [None, None]
    work.train_as_one(cells, where, Asked())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    for one in cells:
        work.train(one, protocol, alone)
        assert decided(one.result(where.results)) == decided(one.result(alone.results))


def test_after_a_kill_they_go_in_step_again(small: tuple[Protocol, Place], whole: Place) -> None:
    protocol, where = small
    cells = cells_of(protocol, "CE", "GCE")
    assert work.train_as_one(cells, where, StopsAfter(30)) == [None, None]
    first, second = (RunFolder.open(where.work / one.slug).checkpoints for one in cells)
    second.paths()[0].unlink()
    assert work.common_checkpoint([where.work / one.slug for one in cells]) == second.positions()[0]
    assert first.positions()[0] > second.positions()[0]
    work.train_as_one(cells, where, Asked())
    for one in cells:
        assert decided(one.result(where.results)) == decided(one.result(whole.results))


@pytest.mark.usefixtures("warm_workers")
def test_a_killed_stack_goes_on_as_one(small: tuple[Protocol, Place], tmp_path: Path) -> None:
    longer = table(tmp_path / "small.json", methods=METHODS, epochs=30)
    where = small[1]
    cells = {cell(longer, method): longer for method in ("CE", "GCE")}
    killed: list[int] = []

    def kill(one: Cell, epoch: int) -> None:
        if not killed:
            killed.append(epoch)
            (worker,) = workers._busy.values()
            worker.process.send_signal(signal.SIGKILL)

    seen = Seen(kill)
    workers = grid._Workers([{}], cells, where, seen)
    assert workers.train([tuple(cells)]) is True
    assert killed
    assert all(seen.of(one, "ended") for one in cells)


@pytest.mark.usefixtures("warm_workers")
def test_on_the_command_line(small: tuple[Protocol, Place], tmp_path: Path) -> None:
    assert "4 cells" in done(*bench(tmp_path, "--stack", 4, "--at-once", 1)).out
    asked = ("bench", "show", tmp_path / "small.json", "--results", tmp_path / "results", "--json")
    assert [row["method"] for row in json.loads(done(*asked).out) if row["last5_mean"] is not None] == METHODS
    assert "give at least 1" in refused(*bench(tmp_path, "--stack", 0))
    assert "leave out one of them" in refused(*bench(tmp_path, "--stack", 2, "--slurm"))


def test_an_error_of_one_ends_all_and_loses_nothing(
    small: tuple[Protocol, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol, where = small
    cells = cells_of(protocol, "CE", "GCE")
    original, steps = Stack.step, 0

    def step(self: Stack, *given: object) -> object:
        nonlocal steps
        steps += 1
        if steps > 20:
            raise NarlError("something went wrong")
        return original(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Stack, "step", step)
    with pytest.raises(NarlError, match="something went wrong"):
        work.train_as_one(cells, where, Asked())
    monkeypatch.undo()
    assert all(work.epochs_done(one, where) == 1 for one in cells)
    assert all(work.train(one, own, where) is not None for one, own in cells.items())
