"""One cell: what it trains, how it goes on, and what is kept of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from command_line import done, result
from narl.adjuster import Adjuster
from narl.bench import grid, protocols, work
from narl.bench.cells import Cell, Task
from narl.bench.noise_labels import labels_of
from narl.bench.protocol import Protocol, to_json
from narl.bench.runs import Run, read, read_file
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.bilevel import StepReport
from narl.errors import NarlError, OptionError, RunFolderError
from narl.train import session
from narl.train.planning import plan
from narl.train.record import SampleRecord
from small_grid import cell, decided, place, points, table

EPOCHS = 60


class Trained:
    """A cell that was trained without a break, and all that belongs to it."""

    def __init__(self, folder: Path) -> None:
        training = {"batch_size": 120, "learning_rate": 0.2}
        about: dict[str, Any] = {"epochs": EPOCHS, "milestones": [40, 50], "training": training}
        self.protocol = table(folder / "whole.json", **about, methods=["CE", "A-SL"])
        self.place = place(folder)
        self.cell = cell(self.protocol, "A-SL")
        self.plan = plan(work.settings_of(self.cell, self.protocol, self.place))
        run = work.train(self.cell, self.protocol, self.place)
        assert run is not None
        self.run, self.folder = run, self.place.work / self.cell.slug
        assert self.plan.sets.mislabelled is not None
        self.wrong = self.plan.sets.mislabelled


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def small(tmp_path: Path) -> tuple[Protocol, Place]:
    return table(tmp_path / "small.json"), place(tmp_path)


# Training


def test_it_is_what_narl_train_gives(trained: Trained, tmp_path: Path) -> None:
    data = trained.place.source(Task("points", "real"))
    labels = labels_of(trained.cell.task, 0, data, tmp_path / "labels.txt")
    asked = ("--labels", labels, "--method", "A-SL", "--model", "tabular", "--clean", 30, "--drop-overlap")
    flags = ("--epochs", EPOCHS, "--milestones", "40,50", "--schedule", "step", "--learning-rate", 0.2, "--seed", 0)
    more = ("--batch-size", 120, "--device", "cpu", "--no-tensorboard", "--out", tmp_path / "run")
    done("train", data, *asked, *flags, *more)
    assert result(tmp_path / "run") == result(trained.folder)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert trained.run.last5 == summary["last5"]["test_accuracy"]
    assert trained.run.best == summary["best"]["test_accuracy"]
    written = trained.cell.result(trained.place.results)
    assert vars(read_file(written)) == vars(trained.run)
    assert [one.cell for one in read(trained.place.results)] == [trained.cell]


def test_a_second_call_trains_nothing(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("starting", "resuming"):
        monkeypatch.setattr(session, name, lambda *_, **__: pytest.fail("it trains again"))
    written = trained.cell.result(trained.place.results)
    before = written.stat().st_mtime_ns
    again = work.train(trained.cell, trained.protocol, trained.place)
    assert again is not None
    assert vars(again) == vars(trained.run)
    assert written.stat().st_mtime_ns == before


class StopAfter(Asked):
    """Asks to stop after so many steps, or after an epoch."""

    def __init__(self, steps: int = 0, epoch: int = 0) -> None:
        super().__init__()
        self._steps, self._epoch = steps, epoch

    def after_step(self, report: StepReport) -> None:
        self._steps -= 1
        self.stop |= self._steps == 0

    def after_epoch(self, record: dict[str, Any]) -> None:
        self.stop |= record["epoch"] == self._epoch


@pytest.mark.parametrize("method", ["CE", "A-GCE"])
def test_an_interrupted_one_gives_the_same_result(small: tuple[Protocol, Place], tmp_path: Path, method: str) -> None:
    protocol, where = small
    one = cell(protocol, method)
    whole = replace(where, work=tmp_path / "whole", results=tmp_path / "whole-results")
    assert work.train(one, protocol, whole) is not None
    assert work.train(one, protocol, where, StopAfter(epoch=1)) is None
    assert work.epochs_done(one, where) == 1
    assert work.train(one, protocol, where, StopAfter(steps=3)) is None
    assert not one.result(where.results).exists()
    assert work.train(one, protocol, where) is not None
    assert decided(one.result(where.results)) == decided(one.result(whole.results))
    assert result(where.work / one.slug) == result(whole.work / one.slug)
    kept = [path.relative_to(where.work).as_posix() for path in where.work.rglob("*labels.txt")]
    assert kept == [f"{one.slug}-labels.txt"], "of the run that is kept: an audit reads them"


def test_discarded_runs_leave_the_result_only(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    kept = work.train(cell(protocol, seed=1), protocol, where)
    where = replace(where, discard=True)
    thrown = work.train(cell(protocol), protocol, where)
    assert kept is not None
    assert thrown is not None
    left = sorted(path.name for path in (where.work / cell(protocol).slug).parent.iterdir())
    assert left == ["ce-seed1", "ce-seed1-labels.txt"]
    assert {one.cell.seed for one in read(where.results)} == {0, 1}


def test_a_run_that_began_as_something_else_is_not_gone_on_with(small: tuple[Protocol, Place], tmp_path: Path) -> None:
    protocol, where = small
    assert work.train(cell(protocol), protocol, where, StopAfter(epoch=1)) is None
    longer = table(tmp_path / "small.json", epochs=5)
    with pytest.raises(RunFolderError, match="was begun with epochs = 3, now it is 5: remove that folder"):
        work.train(cell(longer), longer, where)
    assert work.train(cell(protocol), protocol, where) is not None


def test_all_methods_learn_from_the_same_samples(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    sets = {
        (method, seed): plan(work.settings_of(cell(protocol, method, seed=seed), protocol, where)).sets
        for method in ("CE", "GCE", "Forward", "MW-Net", "A-GCE")
        for seed in (0, 1)
    }
    for seed in (0, 1):
        first = sets["CE", seed]
        assert first.heldout is not None
        for method in ("GCE", "Forward", "MW-Net", "A-GCE"):
            other = sets[method, seed]
            clean = [*(other.clean.ids if other.clean else ()), *(other.heldout.ids if other.heldout else ())]
            assert sorted(clean) == sorted(first.heldout.ids)
            assert len(clean) == 30
            assert not set(clean) & set(other.train.ids)
            np.testing.assert_array_equal(other.train.ids, first.train.ids)
            np.testing.assert_array_equal(other.train.labels, first.train.labels)
    one, other = sets["CE", 0], sets["CE", 1]
    assert one.heldout is not None
    assert other.heldout is not None
    assert set(one.heldout.ids) != set(other.heldout.ids)


@pytest.mark.usefixtures("nothing_shipped")
def test_what_cannot_be_trained_says_why(small: tuple[Protocol, Place], trained: Trained) -> None:
    protocol, where = small
    table3 = protocols.get("table3")
    assert work.reason_against(cell(protocol), protocol, where) is None
    assert work.reason_against(table3.cells(methods=["DivideMix"])[0], table3, where) is None
    assert work.reason_against(cell(protocol, "SOP+"), protocol, where) == "narl has no SOP+"
    transferred = cell(protocol, "T-SL")
    assert "no learned adjuster of SL was named" in str(work.reason_against(transferred, protocol, where))
    named = replace(where, adjusters=(str(trained.folder),))
    assert work.reason_against(transferred, protocol, named) is None
    assert "no learned adjuster of GCE" in str(work.reason_against(cell(protocol, "T-GCE"), protocol, named))
    run = work.train(transferred, protocol, named)
    assert run is not None
    assert run.samples.keys() == {"margin", "gamma1", "gamma2"}
    assert grid.sort([transferred], protocol, named).done == (transferred,)
    assert grid.sort([transferred], protocol, where).done == (transferred,), "nobody names others"
    other = where.work.parent / "other.safetensors"
    Adjuster("sl", [5, 5, 5], generator=torch.Generator().manual_seed(9)).save(other)
    ((stale, change),) = grid.sort([transferred], protocol, replace(where, adjusters=(str(other),))).stale
    assert stale == transferred
    assert change.startswith("its adjusters were ")


def test_what_files_say_of_the_noise_rate_counts_only_where_they_are_asked(
    small: tuple[Protocol, Place], trained: Trained
) -> None:
    protocol, where = small
    files = []
    for number, rate in enumerate((None, "estimated")):
        adjuster = Adjuster("sl", [5, 5, 5], generator=torch.Generator().manual_seed(9))
        adjuster.noise_rate = rate
        files.append(where.work.parent / f"{number}.safetensors")
        adjuster.save(files[-1])
    silent, speaking = (replace(where, adjusters=(str(file),)) for file in files)
    asked = cell(protocol, "T-SL")
    unasked = replace(asked, options=(("noise_rate", "ignored"),))
    as_made = replace(asked, options=(("noise_rate", None),))
    runs = [work.train(one, protocol, speaking) for one in (asked, unasked)]
    assert [run is not None and "kept" in run.samples for run in runs] == [True, False]
    for found in (grid.sort([asked, unasked], protocol, named) for named in (silent, speaking)):
        assert unasked in found.done
    assert grid.sort([asked], protocol, speaking).done == (asked,)
    ((stale, _),) = grid.sort([asked], protocol, silent).stale
    assert stale == asked
    assert work.train(as_made, protocol, speaking) is not None
    assert [len(grid.sort([as_made], protocol, named).stale) for named in (silent, speaking)] == [1, 0]


def test_where_data_is() -> None:
    several = Place((("CIFAR-10", "a"), ("letters", "b")), Path("w"), Path("r"))
    assert [several.source(Task(name, "real")) for name in ("cifar-10", "CIFAR-10N", "LETTERS")] == ["a", "a", "b"]
    with pytest.raises(OptionError, match="where is CIFAR-100"):
        several.source(Task("CIFAR-100", "real"))
    assert Place((("", "a"),), Path("w"), Path("r")).source(Task("anything", "real")) == "a"
    assert Place.from_json(json.loads(json.dumps(several.to_json()))) == several


RACE = """
import json, os, sys
from narl.bench import work
from narl.bench.cells import Cell
from narl.bench.protocol import from_json
from narl.errors import NarlError

asked = json.load(sys.stdin)
protocol, place = from_json(asked["protocol"]), work.Place.from_json(asked["place"])
for cell in map(Cell.from_json, asked["cells"]):
    children = []
    for _ in range(3):
        number = os.fork()
        if number == 0:
            code = 1
            try:
                work.train(cell, protocol, place)
                code = 0
            except NarlError as error:
                print(error, file=sys.stderr)
                code = 2
            finally:
                os._exit(code)
        children.append(number)
    codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in children]
    print(json.dumps(sorted(codes)))
"""


def test_several_processes_on_one_cell(tmp_path: Path) -> None:
    """They are started at the same moment: one trains, the others give way or find its result; no file is damaged."""
    protocol, where = table(tmp_path / "race.json", epochs=1), place(tmp_path)
    cells = [cell(protocol)]
    asked = {"protocol": to_json(protocol), "place": where.to_json()}
    ran = subprocess.run(
        [sys.executable, "-c", RACE],
        input=json.dumps({**asked, "cells": [one.to_json() for one in cells]}),
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    codes = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(codes) == len(cells), ran.stderr
    assert all(code[0] == 0 and set(code) <= {0, 2} for code in codes), (codes, ran.stderr)
    assert "cannot write" not in ran.stderr
    whole = replace(where, work=tmp_path / "whole", results=tmp_path / "whole-results")
    for one in cells:
        work.train(one, protocol, whole)
        assert decided(one.result(where.results)) == decided(one.result(whole.results))
    assert not [path for path in where.results.rglob("*") if path.is_file() and path.suffix != ".json"]


def test_a_cell_whose_data_is_bad(tmp_path: Path) -> None:
    protocol = table(tmp_path / "small.json")
    where = place(tmp_path, sources=(("points", str(tmp_path / "nowhere.csv")),))
    with pytest.raises(NarlError, match=r"nowhere\.csv"):
        work.train(cell(protocol), protocol, where)
    assert not where.results.exists()


# What is kept


def test_histograms_count_every_sample(trained: Trained) -> None:
    record = SampleRecord.open(trained.folder)
    assert trained.run.samples.keys() == {"margin", "gamma1", "gamma2"} == set(record.fields) - {"rival"}
    values = np.load(trained.folder / "samples.npy")[-1].astype(np.float64)  # (fields, N)
    for name, own in zip(record.fields[:-1], values[:-1], strict=True):
        about = trained.run.samples[name]
        assert len(about["edges"]) == len(about["right"]) + 1 == len(about["wrong"]) + 1
        assert about["edges"] == sorted(about["edges"])
        assert (sum(about["right"]), sum(about["wrong"])) == ((~trained.wrong).sum(), trained.wrong.sum())
        assert about["right_mean"] == pytest.approx(own[~trained.wrong].mean(), rel=1e-4)
        assert about["wrong_mean"] == pytest.approx(own[trained.wrong].mean(), rel=1e-4)
        inner = about["edges"][1:-1]
        below = [int((own[~trained.wrong] < edge).sum()) for edge in inner]
        assert np.abs(np.cumsum(about["right"])[:-1] - below).max() <= 2  # edges are rounded to five digits
    assert trained.run.noise_rate == pytest.approx(trained.wrong.mean(), rel=1e-4)
    assert trained.run.noise_rate == pytest.approx(0.3, abs=0.1)


def test_auroc_in_three_ways(trained: Trained) -> None:
    margins = np.load(trained.folder / "samples.npy")[:, 0].astype(np.float64)
    running = margins[0]
    for later in margins[1:]:
        running = 0.9 * running + 0.1 * later
    ways = {"last": margins[-1], "running": running, "all": margins.mean(axis=0)}
    assert trained.run.auroc.keys() == ways.keys()
    for name, scores in ways.items():
        assert trained.run.auroc[name] == pytest.approx(roc_auc_score(trained.wrong, -scores), abs=1e-4)
    assert trained.run.auroc["running"] > 0.8


def test_adjusters_curves(trained: Trained) -> None:
    about = trained.run.adjuster
    margins = torch.tensor(about["margins"])
    assert len(about["curves"]) == 3
    for number, curves in enumerate(about["curves"], start=1):
        snapshot = Adjuster.load(trained.folder / f"adjuster-{number}.safetensors")
        assert list(about["centres"]) == pytest.approx(list(snapshot.centres))
        for name, values in snapshot.curves(margins).items():
            assert values.shape == (len(margins), len(about["centres"]))
            torch.testing.assert_close(torch.tensor(curves[name]).T, values.float(), rtol=1e-4, atol=1e-6)
    assert about["curves"][0] != about["curves"][2]


def test_curves_over_epochs_and_settings(trained: Trained) -> None:
    metrics = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    wanted = {"test_accuracy", "test_loss", "loss", "meta_loss", "train_agreement", "margin_auroc"}
    assert trained.run.curves.keys() >= wanted
    for name in wanted:
        values = [epoch[name] for epoch in metrics]
        assert trained.run.curves[name] == [None if one is None else pytest.approx(one, rel=1e-4) for one in values]
    assert trained.run.last5 == pytest.approx(np.mean([epoch["test_accuracy"] for epoch in metrics[-5:]]))
    settings = trained.run.settings
    assert (settings["epochs"], settings["milestones"], settings["batch_size"]) == (EPOCHS, [40, 50], 120)
    assert (settings["clean_samples"], settings["test_samples"]) == (30, 30)
    assert settings["train_samples"] == len(trained.wrong) == sum(settings["class_counts"]) == 240
    assert trained.run.environment["torch"] == torch.__version__


def test_a_result_is_small(trained: Trained) -> None:
    assert trained.cell.result(trained.place.results).stat().st_size < 20_000


def test_where_nobody_knows_the_truth(tmp_path: Path) -> None:
    real = {"dataset": "points", "noise": "real"}
    protocol = table(tmp_path / "real.json", tasks=[real], clean=0, methods=["CE"], epochs=1)
    run = work.train(Cell(Task("points", "real"), "tabular", "real", "CE", 0), protocol, place(tmp_path))
    assert isinstance(run, Run)
    assert (run.noise_rate, run.auroc, run.adjuster) == (None, {}, {})
    assert sum(run.samples["margin"]["right"]) == run.settings["train_samples"] == 270
    assert (sum(run.samples["margin"]["wrong"]), run.samples["margin"]["wrong_mean"]) == (0, None)
    assert run.curves["loss"][0] is not None


def test_no_wrong_label_among_known_ones(tmp_path: Path) -> None:
    """At rate 0 the labels are the data's own, with or without a column of true labels."""
    data = points(tmp_path / "points.csv", 100)
    lines = data.read_text().splitlines()
    data.write_text("\n".join([lines[0] + ",true_label", *(f"{line},{line[-1]}" for line in lines[1:])]) + "\n")
    protocol = table(
        tmp_path / "none.json", tasks=[{**{"dataset": "points", "noise": "symmetric"}, "rate": 0}], epochs=1
    )
    where = Place((("points", str(data)),), tmp_path / "work", tmp_path / "results", device="cpu")
    run = work.train(protocol.cells(methods=["CE"])[0], protocol, where)
    assert run is not None
    assert (run.noise_rate, run.auroc) == (0, {})
