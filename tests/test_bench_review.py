"""narl bench review: a simulated person's answers, and what the next run makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import done, refused
from narl.audit.review.choice import ORDERS
from narl.bench import review_table, reviewing
from narl.bench.cells import Cell, Task
from narl.bench.protocol import Schedule
from narl.bench.runs import Run
from narl.data.id_file import read_id_file
from narl.errors import OptionError, UnknownNameError
from narl.train.record import SampleRecord
from review_desk import made_up
from small_grid import points

FIRST = Cell(Task("letter", "symmetric", 0.4), "tabular", "review-tables", "GCE", 1)


def test_the_person_errs_now_and_then_and_always_on_the_same() -> None:
    true = np.arange(20_000) % 4
    said = reviewing.answers(true, 4, seed=1)
    assert (said != true).mean() == pytest.approx(0.02, abs=0.005)
    assert np.bincount((said - true)[said != true] % 4, minlength=4)[1:].min() > 80, "any other class"
    assert np.array_equal(said, reviewing.answers(true, 4, seed=1))
    assert not np.array_equal(said, reviewing.answers(true, 4, seed=2))


def test_asking_goes_on_until_every_class_has_an_answer() -> None:
    said = np.array([0, 0, 0, 1, 0, 2])
    order = np.array([0, 3, 1, 5, 2, 4])
    assert reviewing.enough(order, said, 2, 3).tolist() == [0, 3, 1, 5]
    assert reviewing.enough(order, said, 5, 3).tolist() == [0, 3, 1, 5, 2]
    assert reviewing.enough(order, said, 1, 4).tolist() == [0, 3, 1, 5], "a class that nobody has cannot be waited for"


def test_at_random_is_any_sample_whatever_its_class() -> None:
    verdicts = made_up(3000, ("often", "rare"), 0)
    first = reviewing.placed(verdicts, "random", 1)[:1000]
    assert len(set(first.tolist())) == 1000
    assert abs(verdicts.given[first].mean() - verdicts.given.mean()) < 0.06
    assert reviewing.placed(verdicts, "random", 1).tolist() != reviewing.placed(verdicts, "random", 2).tolist()
    assert set(reviewing.ORDERS) == set(ORDERS)
    with pytest.raises(UnknownNameError, match="informative"):
        reviewing.cells_after(FIRST, ["informativ"])


def test_without_the_first_run_there_is_nothing_to_answer(tmp_path: Path) -> None:
    one, _ = reviewing.cells_after(FIRST, ["random"], [10])
    with pytest.raises(OptionError, match="train it first"):
        reviewing.answered(one, tmp_path)


@pytest.mark.usefixtures("warm_workers")
def test_the_command_reviews_trains_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviewing, "ALL", (replace(reviewing.TABLES, own=Schedule(2, ())),))
    data = points(tmp_path / "points.csv", 300)
    where = ("--results", tmp_path / "results", "--work", tmp_path / "work", "--device", "cpu")
    asked = ("bench", "review", "--data", f"letter={data}", "--tasks", "symmetric", "--counts", "12", *where)
    answer = done(*asked)
    assert answer.out.splitlines() == [
        "5 trainings are missing",
        "  letter symmetric 0.4, GCE, seed 1",
        "  letter symmetric 0.4, A-GCE, 12 reviewed (informative), seed 1",
        "  letter symmetric 0.4, A-GCE, 12 reviewed (random), seed 1",
        "  letter symmetric 0.4, CE, 12 reviewed (informative), seed 1",
        "  letter symmetric 0.4, CE, 12 reviewed (random), seed 1",
    ]
    files = sorted((tmp_path / "work").rglob("*-answers.csv"))
    assert [path.name for path in files] == [
        f"{method}-{how}=12-seed1-answers.csv" for method in ("a-gce", "ce") for how in ("informative", "random")
    ]
    for path in files:
        ids, labels = read_id_file(path)
        assert len(set(ids)) >= 12
        assert set(labels or []) == {"a", "b", "c"}
        record = SampleRecord.open(Path(str(path).removesuffix("-answers.csv")))
        assert record.labels is not None
        named = dict(zip(record.ids.tolist(), record.labels.tolist(), strict=True))
        assert [("a", "b", "c")[named[name]] for name in ids] == labels, "answers are trained on"
        assert path.name.startswith("a-gce") == (len(named) > len(ids)), "alone, nothing else is"
    assert done(*asked).out.splitlines() == ["0 trainings are missing"]
    rows = json.loads(done("bench", "show", "review", "--results", tmp_path / "results", "--json").out)
    ways = [("GCE", None, 0), ("A-GCE", "informative", 12), ("A-GCE", "random", 12)]
    ways += [("CE", "informative", 12), ("CE", "random", 12)]
    assert [(row["method"], row["order"], row["reviewed"]) for row in rows] == ways
    assert [row["trained"] >= 270 for row in rows] == [True, True, True, False, False]
    assert [row["trained"] == row["answers"] for row in rows] == [False, False, False, True, True]
    assert rows[1]["gain"] == pytest.approx(rows[1]["accuracy"] - rows[2]["accuracy"], abs=0.011)
    shown = done("bench", "show", "review", "--results", tmp_path / "results").out
    assert "informative, alone − random" in shown
    before = done(*asked, "--apart", "--orders", "random", "--dry-run").out.splitlines()
    assert before[0] == "2 trainings are missing", "GCE and A-GCE, which is compared with nothing alone"
    monkeypatch.setattr(
        reviewing, "ALL", (replace(reviewing.TABLES, own=Schedule(2, ()), training={"clean_batch_size": 100}),)
    )
    stale = done(*asked, "--dry-run").out.splitlines()
    assert stale[0] == "0 trainings are missing"
    assert stale[1].startswith("4 results of before do not count (train_on_clean was True, is None now): remove")
    rows = json.loads(done("bench", "show", "review", "--results", tmp_path / "results", "--json").out)
    assert [row["method"] for row in rows] == ["GCE"], "what does not count is not shown"


def test_what_is_refused(tmp_path: Path) -> None:
    data = points(tmp_path / "points.csv", 30)
    asked = ("bench", "review", "--dry-run", "--data", f"letter={data}")
    assert "--counts 0 are no numbers of answers" in refused(*asked, "--counts", "0")
    assert "--counts many are no numbers" in refused(*asked, "--counts", "many")
    assert "no order is called 'best'" in refused(*asked, "--orders", "best")
    assert "which data set is it?" in refused("bench", "review", "--data", f"other={data}")
    nothing = done("bench", "show", "review", "--results", tmp_path)
    assert "nothing of reviews has been run yet" in nothing.err
    assert "nothing of audits has been run yet" in done("bench", "show", "audit", "--results", tmp_path).err
    assert "review has neither, leave them out" in refused("bench", "show", "review", "--schedule", "short")


def test_gains_are_between_runs_of_one_seed() -> None:
    found = []
    for seed, ours, chance in ((1, 0.7, 0.6), (2, 0.8, 0.7), (3, 0.9, 0.9)):
        first = Cell(FIRST.task, "tabular", "review-tables", "GCE", seed)
        informative, random, *_ = reviewing.cells_after(first, ["informative", "random"], [100])
        found += [Run(first, 0.5, 0.5, {}), Run(informative, ours, ours, {}), Run(random, chance, chance, {})]
    rows = review_table.rows(found)
    gain = next(row for row in rows if row["order"] == "informative")
    assert (gain["gain"], gain["seeds"]) == (pytest.approx(6.67, abs=0.01), 3)
    assert gain["gain_std"] == pytest.approx(5.77, abs=0.01)
    (table,) = review_table.tables(rows)
    assert table.rows == (
        ("informative", "50.0±0.0", "80.0±10.0"),
        ("random", "50.0±0.0", "73.3±15.3"),
        ("informative − random", "–", "+6.7±5.8"),
    )
