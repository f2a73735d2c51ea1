"""Hyperparameters chosen by short trainings that are cells of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import done, refused
from narl.bench import comparison, grid, protocols, slurm, tuning, work
from narl.bench.asked import asked_of, difference
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol, Schedule, from_json, to_json
from narl.bench.runs import Run, read, read_file
from narl.bench.stacks import stacked
from narl.bench.work import Place
from narl.cli import bench_run
from narl.errors import ConfigError, OptionError
from narl.train import methods
from narl.train.tuning import best
from small_grid import Seen, bench, cell, decided, place, points, table

SHORT = {"epochs": 2}
GRID = methods.get("GCE").grid()


@pytest.fixture
def small(tmp_path: Path) -> tuple[Protocol, Place]:
    return table(tmp_path / "small.json", methods=["CE", "GCE"], tuning=SHORT), place(tmp_path)


def tuned(protocol: Protocol, method: str = "GCE") -> Cell:
    return replace(cell(protocol, method), tune=True)


def made_up(one: Cell, protocol: Protocol, accuracies: list[float], losses: list[float], **settings: Any) -> Run:
    curves: dict[str, list[float | None]] = {"heldout_accuracy": [*accuracies], "heldout_loss": [*losses]}
    return Run(one, 0.5, 0.6, curves, asked=asked_of(one, protocol), settings=settings)


def write_candidates(protocol: Protocol, where: Place, last: dict[float, tuple[float, float]]) -> None:
    """Results of the short trainings: accuracy and cross entropy on the clean samples, by q."""
    for one in tuning.candidates(tuned(protocol), protocol):
        accuracy, loss = last.get(dict(one.options)["q"], (0.1, 9.0))
        made_up(one, protocol, [0.99, accuracy, accuracy], [0.0, loss, loss]).write(where.results)


def test_candidates_are_short_cells_of_their_own(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    found = tuning.candidates(tuned(protocol), protocol)
    assert [dict(one.options) for one in found] == [dict(values) for values in GRID]
    assert (found[0].schedule, found[0].tune) == ("small-tuning", False), "apart from those of other tables"
    assert found[0].label == "GCE, q = 0.1, to choose by"
    assert protocol.schedule("small-tuning", "points") == Schedule(2, ())
    assert work.settings_of(found[0], protocol, where).epochs == 2
    assert tuning.candidates(cell(protocol, "GCE"), protocol) == [], "it is not tuned"
    whole = replace(protocol, tuning=None)
    assert tuning.candidates(tuned(whole), whole) == [], "they are trained within its run"
    twice = replace(tuned(protocol), options=(("q", 0.5),))
    with pytest.raises(OptionError, match="--tune chooses q, which is also given"):
        tuning.candidates(twice, protocol)


def test_what_the_papers_have_is_a_candidate_too() -> None:
    images = protocols.get("transfer-tinyimagenet")
    cells = {one.method: one for one in images.cells(tasks=["symmetric-0.4"], methods=["SL", "JS", "GCE"], tune=True)}
    values = {name: [dict(c.options) for c in tuning.candidates(one, images)] for name, one in cells.items()}
    assert values["SL"] == [*map(dict, methods.get("SL").grid()), {"gamma1": 6.0, "gamma2": 0.1}]
    assert values["JS"] == [*map(dict, methods.get("JS").grid())], "0.3 is one of them"
    assert values["GCE"] == [*map(dict, GRID)]


def test_the_best_on_clean_samples_is_chosen_and_nothing_else_counts(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    reason = tuning.lacking(tuned(protocol), protocol, where.results)
    first = "points/symmetric-0.3/tabular-small-tuning/gce-q=0.1-seed0"
    assert reason == f"it is chosen by short trainings, of which {first} has no result"
    assert tuning.lacking(cell(protocol, "GCE"), protocol, where.results) is None
    write_candidates(protocol, where, {0.3: (0.8, 0.7), 0.5: (0.8, 0.6), 0.9: (0.7, 0.1)})
    found = tuning.scores(tuned(protocol), protocol, where.results)
    assert best(found) == {"q": 0.5}, "between equals the cross entropy; the first epoch does not count"
    assert tuning.lacking(tuned(protocol), protocol, where.results) is None
    other = replace(protocol, tuning=Schedule(3, ()))
    assert "(epochs was 2, is 3 now): remove that file" in str(tuning.lacking(tuned(other), other, where.results))
    with pytest.raises(OptionError, match="gce-tuned-seed0 cannot be trained: it is chosen by short trainings"):
        tuning.scores(tuned(other), other, where.results)


def test_what_is_chosen_is_trained_once_at_full_length(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    write_candidates(protocol, where, {0.3: (0.8, 0.7)})
    found = work.train(tuned(protocol), protocol, where)
    assert found is not None
    assert found.settings["options"] == {"q": 0.3}
    assert found.settings["epochs"] == 3
    assert [row["options"] for row in found.settings["tuning"]] == [dict(values) for values in GRID]
    assert difference(found, protocol) is None
    assert "tuning_epochs was 2, is 4 now" in str(difference(found, replace(protocol, tuning=Schedule(4, ()))))
    plain = replace(cell(protocol, "GCE"), options=(("q", 0.3),))
    assert work.train(plain, protocol, where) is not None
    one, other = (decided(each.result(where.results)) for each in (tuned(protocol), plain))
    assert one["curves"] == other["curves"], "the same training"


def test_a_choice_that_has_been_trained_is_not_trained_again(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    write_candidates(protocol, where, {0.7: (0.8, 0.7)})
    untuned = made_up(cell(protocol, "GCE"), protocol, [0.5], [0.5], options={"q": 0.7})
    untuned.write(where.results)
    found = work.train(tuned(protocol), protocol, where)
    assert found is not None
    assert (found.last5, found.cell) == (untuned.last5, tuned(protocol))
    assert not where.work.exists(), "nothing was trained"
    assert read_file(tuned(protocol).result(where.results)).settings["tuning"]
    assert difference(found, protocol) is None
    write_candidates(protocol, where, {0.1: (0.8, 0.7)})
    scores = tuning.scores(tuned(protocol), protocol, where.results)
    assert tuning.trained_already(tuned(protocol), protocol, where.results, scores) is None, "q = 0.7 is not 0.1"


def test_without_its_candidates_a_cell_says_what_is_missing(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    with pytest.raises(OptionError, match=r"chosen by short trainings, of which .*q=0\.1-seed0 has no result"):
        work.train(tuned(protocol), protocol, where)


def test_short_trainings_are_stacked_and_so_is_what_is_chosen(small: tuple[Protocol, Place]) -> None:
    protocol, where = small
    both = [tuned(protocol), replace(tuned(protocol), seed=1)]
    short = [one for each in both for one in tuning.candidates(each, protocol)]
    jobs = stacked(dict.fromkeys([*short, *both], protocol), where, 10)
    assert [len(job) for job in jobs] == [10, 2]
    whole = replace(protocol, tuning=None)
    assert [len(job) for job in stacked(dict.fromkeys(both, whole), where, 10)] == [1, 1]


@pytest.mark.usefixtures("warm_workers")
def test_one_command_trains_what_is_needed_first(tmp_path: Path) -> None:
    table(tmp_path / "small.json", methods=["CE", "GCE"], tuning=SHORT)
    points(tmp_path / "points.csv")
    command = bench(tmp_path, "--tune", "--methods", "GCE", "--stack", 3)
    plan = done(*command, "--dry-run").out.splitlines()
    assert plan[0] == "6 cells: 0 with a result, 6 missing"
    assert plan[1] == "  points symmetric 0.3, GCE, q = 0.1, to choose by, seed 0"
    assert plan[-1] == "  points symmetric 0.3, GCE, tuned, seed 0"
    answer = done(*command)
    ended = [line for line in answer.err.splitlines() if line.startswith("[")]
    assert len(ended) == 6
    assert "tuned" in ended[-1], "last, since it waits for the others"
    found = {run.cell.label: run for run in read(tmp_path / "results")}
    highest = max(
        (run for run in found.values() if run.cell.schedule == "small-tuning"),
        key=lambda run: sum(value or 0 for value in run.curves["heldout_accuracy"]),
    )
    assert found["GCE, tuned"].settings["options"] in [dict(values) for values in GRID]
    scores = {row["options"]["q"]: row["clean_accuracy"] for row in found["GCE, tuned"].settings["tuning"]}
    assert scores[dict(highest.cell.options)["q"]] == pytest.approx(max(scores.values()), abs=1e-9)
    shown = done("bench", "show", tmp_path / "small.json", "--results", tmp_path / "results", "--variants").out
    assert "GCE, tuned" in shown
    assert "to choose by" not in shown
    assert "by trainings of 2 epochs each" in " ".join(shown.split())


@pytest.mark.usefixtures("warm_workers")
def test_what_waits_for_trainings_that_fail_is_given_up(
    small: tuple[Protocol, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "_LOOK", 0.02)
    protocol, where = small
    nowhere = replace(where, sources=(("points", str(where.work / "nowhere.csv")),))
    one, seen = tuned(protocol), Seen()
    short = tuning.candidates(one, protocol)
    assert not grid.train(dict.fromkeys([*short, one], protocol), nowhere, seen, 1, stack=5)
    assert [seen.of(each, "failed") != [] for each in short] == [True] * 5
    ((_, reason, _),) = seen.of(one, "failed")
    assert reason == f"it is chosen by short trainings, of which {short[0].slug} has no result"


@pytest.mark.usefixtures("warm_workers")
def test_of_a_stack_those_are_trained_that_can_be(
    small: tuple[Protocol, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "_LOOK", 0.02)
    protocol, where = small
    write_candidates(protocol, where, {})
    one, other, seen = tuned(protocol), replace(tuned(protocol), seed=1), Seen()
    assert not grid.train(dict.fromkeys([one, other], protocol), where, seen, 1, stack=2)
    assert [what for what, *_ in seen.of(one, "ended", "failed")] == ["ended"]
    assert [what for what, *_ in seen.of(other, "ended", "failed")] == ["failed"]


@pytest.mark.parametrize("change", [{"clean": 0}, {"training": {"train_on_clean": True}}], ids=str)
def test_without_clean_samples_to_validate_on_nothing_is_begun(tmp_path: Path, change: dict[str, Any]) -> None:
    table(tmp_path / "small.json", methods=["CE", "GCE"], tuning=SHORT, **change)
    points(tmp_path / "points.csv")
    assert "--tune needs clean samples to validate on" in refused(*bench(tmp_path, "--tune"))


def test_two_tables_are_chosen_for_apart(tmp_path: Path) -> None:
    one = table(tmp_path / "one.json", methods=["GCE"], tuning=SHORT)
    other = table(tmp_path / "other.json", methods=["GCE"], tuning=SHORT, clean=60)
    slugs = [{each.slug for each in tuning.candidates(tuned(protocol), protocol)} for protocol in (one, other)]
    assert not slugs[0] & slugs[1]


def test_nobody_asks_for_that_schedule(tmp_path: Path) -> None:
    table(tmp_path / "small.json", methods=["CE", "GCE"], tuning=SHORT)
    points(tmp_path / "points.csv")
    for name in ("tuning", "small-tuning"):
        assert f"small has no schedule '{name}'" in refused(*bench(tmp_path, "--schedule", name))
        shown = ("bench", "show", tmp_path / "small.json", "--results", tmp_path, "--schedule", name)
        assert f"small has no schedule '{name}'" in refused(*shown)


@pytest.mark.parametrize("stopped", [False, True])
def test_on_a_cluster_what_is_chosen_by_others_comes_after_them(
    small: tuple[Protocol, Place], monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    protocol, where = small
    one, waves = tuned(protocol), []
    both = dict.fromkeys([one, *tuning.candidates(one, protocol), cell(protocol, "CE")], protocol)

    def submit(cells: dict[Cell, Protocol], *_: object, **__: object) -> list[Cell]:
        waves.append(list(cells))
        return list(cells)

    def watch(submitted: list[Cell], *_: object) -> slurm.Standing:
        if stopped:
            return slurm.Standing((), (), tuple((each, "1_0") for each in submitted))
        write_candidates(protocol, where, {})
        return slurm.Standing(tuple(submitted), (), ())

    monkeypatch.setattr(slurm, "submit", submit)
    monkeypatch.setattr(slurm, "watch", watch)
    bench_run._submit(both, where, {})
    assert waves[0] == [each for each in both if each != one]
    assert waves[1:] == ([] if stopped else [[one]])


def test_stale_candidates_are_told(small: tuple[Protocol, Place], tmp_path: Path) -> None:
    protocol, where = small
    write_candidates(protocol, where, {})
    table(tmp_path / "small.json", methods=["CE", "GCE"], tuning={"epochs": 1})
    answer = done(*bench(tmp_path, "--tune", "--methods", "GCE", "--dry-run"))
    assert "5 results of a table that has changed (epochs was 2, is 1 now): remove" in answer.out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epochs": "2"}, "epochs = '2' is no whole number"),
        ({"epochs": 0}, "epochs"),
        ({"milestones": [1]}, "tuning has no 'epochs'"),
        ({"epochs": 2, "rate": 1}, "tuning has a 'rate'"),
        ({"epochs": 2, "milestones": [1]}, "tuning has milestones, and the table has none"),
        (5, "tuning is 5"),
    ],
    ids=str,
)
def test_a_table_that_is_tuned_otherwise_is_refused(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table(tmp_path / "small.json", tuning=given)
    points(tmp_path / "points.csv")
    assert "see docs/bench.md" in refused(*bench(tmp_path))


def test_no_table_of_ones_own_is_called_like_that_schedule(tmp_path: Path) -> None:
    for name in ("tuning", "my-tuning"):
        with pytest.raises(ConfigError, match="is what narl calls trainings that values are chosen by"):
            table(tmp_path / "small.json", name=name)


def test_a_warm_up_fits_short_trainings_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a warmup of 2 epochs is no beginning of 2"):
        table(tmp_path / "small.json", tuning=SHORT, training={"warmup": 2})
    with pytest.raises(ConfigError, match="--warmup = None makes no sense"):
        table(tmp_path / "small.json", tuning=SHORT, training={"warmup": None})


def test_a_worker_is_told_how_candidates_are_trained(small: tuple[Protocol, Place]) -> None:
    protocol, _ = small
    assert from_json(json.loads(json.dumps(to_json(protocol)))) == protocol


def test_people_s_labels_are_tuned_alike_in_both_tables() -> None:
    (one,) = protocols.get("cifar10n").cells(methods=["GCE"], tasks=["worst"], tune=True)
    asked = [asked_of(one, protocols.get(name)) for name in ("cifar10n", "transfer-cifar10n")]
    assert asked[0] == asked[1]
    shown = comparison.rows("transfer", [Run(one, 0.8, 0.8, {}, asked=asked[0])])
    (row,) = [row for row in shown if row["method"] == "GCE, tuned"]
    assert (row["last5_mean"], row["noise"]) == (80.0, "worst")


def test_other_candidates_are_noticed_also_where_they_are_trained_within_the_run(tmp_path: Path) -> None:
    protocol = table(tmp_path / "small.json", methods=["GCE"])
    asked = asked_of(tuned(protocol), protocol)
    assert asked["candidates"] == [dict(values) for values in GRID]
    run = Run(tuned(protocol), 0.5, 0.5, {}, asked=asked)
    assert difference(run, protocol) is None
    assert "candidates was" in str(difference(replace(run, asked={**asked, "candidates": []}), protocol))
    untold = {name: value for name, value in asked.items() if name != "candidates"}
    assert difference(replace(run, asked=untold), protocol) is None, "nobody wrote them down"
