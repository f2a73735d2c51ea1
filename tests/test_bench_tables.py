"""Ours beside the paper's: the paper's numbers, rows of results, marks, tables, the command and the page."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from command_line import done, refused
from narl.bench import comparison, paper, protocols, verdicts
from narl.bench.cells import Cell, Task
from narl.bench.paper import Key, Number
from narl.bench.runs import Run
from narl.bench.tables import Table
from narl.errors import UnknownNameError

ROOT = Path(__file__).parent.parent
KEYS = ["dataset", "noise", "rate", "schedule", "method", "last5_mean", "last5_std", "best_mean", "seeds", "paper"]
CHOOSING = ["heldout_mean", "heldout_std"]
SYMMETRIC = Task("CIFAR-10", "symmetric", 0.4)
WORST = Task("CIFAR-10N", "worst")


def trained(method: str, *last5: float, task: Task = SYMMETRIC, schedule: str = "short", **about: Any) -> list[Run]:
    """A run a seed, with these accuracies in per cent; the best epoch is one point better."""
    cell = Cell(task, "resnet32", schedule, method, 0, **about)
    return [Run(replace(cell, seed=seed), one / 100, one / 100 + 0.01, {}) for seed, one in enumerate(last5)]


def row_of(rows: Sequence[dict[str, Any]], method: str, task: Task = SYMMETRIC) -> dict[str, Any]:
    wanted = (task.dataset, task.noise, task.rate, method)
    (row,) = [row for row in rows if (row["dataset"], row["noise"], row["rate"], row["method"]) == wanted]
    return row


def cell_of(table: Table, method: str, column: str) -> str:
    (line,) = [line for line in table.rows if line[0] == method]
    return line[table.columns.index(column)]


@pytest.mark.parametrize(
    ("table", "key", "number"),
    [
        ("table1", Key("CIFAR-10", "symmetric", 0.0, "top1", "CE"), Number(93.11, 0.11)),
        ("table1", Key("CIFAR-10", "asymmetric", 0.4, "top1", "A-GCE"), Number(88.08, 0.28)),
        ("table1", Key("CIFAR-100", "symmetric", 0.6, "top1", "A-PolySoft"), Number(56.82, 0.25)),
        ("table2", Key("CIFAR-10", "instance", 0.5, "top1", "MW-Net"), Number(44.81, 2.85)),
        ("table2", Key("CIFAR-100", "instance", 0.4, "top1", "A-PolySoft"), Number(46.57, 0.12)),
        ("table3", Key("CIFAR-100", "symmetric", 0.9, "top1", "A-SL"), Number(51.0, None)),
        ("table4", Key("ILSVRC12", "real", None, "top5", "A-JS"), Number(93.92, None)),
        ("table5", Key("TinyImageNet", "symmetric", 0.6, "top1", "T-JS"), Number(40.72, 0.15)),
        ("table6", Key("ANIMAL-10N", "real", None, "top1", "T-PolySoft"), Number(82.90, 0.21)),
    ],
)
def test_the_papers_numbers_are_those_printed(table: str, key: Key, number: Number) -> None:
    assert paper.numbers(table)[key] == number


def test_every_number_is_there_and_none_twice() -> None:
    sizes = {f"table{one}": len(paper.numbers(f"table{one}")) for one in range(1, 7)}
    assert sizes == {"table1": 132, "table2": 88, "table3": 60, "table4": 32, "table5": 66, "table6": 20}
    for table in sizes:
        assert all(0 < number.mean < 100 for number in paper.numbers(table).values())


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table5", "table6"])
def test_a_protocol_has_the_cells_that_the_paper_has(name: str) -> None:
    protocol = protocols.get(name)
    cells = [(task, method) for task in protocol.tasks for method in protocol.methods]
    assert all(paper.number(name, task, method) is not None for task, method in cells)
    assert len(cells) == len(paper.numbers(name))


def test_the_paper_s_table_3_is_about_boosted_losses() -> None:
    task = Task("CIFAR-10", "symmetric", 0.9)
    assert (
        paper.number("table3", task, "A-SL+")
        == paper.numbers("table3")[Key("CIFAR-10", "symmetric", 0.9, "top1", "A-SL")]
    )
    assert paper.number("table3", task, "ELR+") == Number(75.2, None)


def test_misprints_are_told_where_they_are() -> None:
    numbers = paper.numbers("table2")
    gain = [numbers[Key("CIFAR-10", "instance", 0.2, "top1", method)].mean for method in ("A-SL", "SL")]
    assert "the cells give 3.34" in paper.errata("table2", "CIFAR-10")[0]
    assert gain[0] - gain[1] == pytest.approx(3.34)
    assert len(paper.errata("table2", "CIFAR-100")) == 2
    assert "repeats the column before it" in paper.errata("table3", "CIFAR-100")[0]
    assert paper.errata("table5", "TinyImageNet") == ()


def test_published_numbers() -> None:
    found = {(one.method, one.labels, one.source, one.epoch): one.accuracy for one in paper.published("CIFAR-10N")}
    assert found["GCE", "worst", "published", "best"] == 80.66
    assert found["SOP+", "random1", "published", "best"] == 95.28
    assert found["CE", "worst", "rerun", "last"] == 68.26
    assert len(found) == 9 * 3 + 5 * 2
    assert {source for _, _, source, _ in found} == set(paper.SOURCES)


def test_rows_have_every_cell_run_or_not() -> None:
    rows = comparison.rows("table1", [])
    protocol = protocols.get("table1")
    assert len(rows) == len(protocol.tasks) * len(protocol.methods)
    for row in rows:
        assert list(row) == [*KEYS, "paper_std", "model", *CHOOSING]
        assert (row["last5_mean"], row["last5_std"], row["best_mean"], row["seeds"]) == (None, None, None, 0)
    row = row_of(rows, "A-GCE")
    assert (row["paper"], row["paper_std"], row["model"], row["schedule"]) == (88.19, 0.13, "resnet32", "paper")
    assert [row["method"] for row in rows[:6]] == ["CE", "Forward", "MW-Net", "GCE", "A-GCE", "SL"]


def test_rows_are_means_and_deviations_in_per_cent() -> None:
    runs = [*trained("GCE", 85.0, 86.0, 87.5), *trained("CE", 80.0)]
    rows = comparison.rows("table1", runs)
    gce, ce = row_of(rows, "GCE"), row_of(rows, "CE")
    assert gce["last5_mean"] == pytest.approx(np.mean([85.0, 86.0, 87.5]), abs=1e-4)
    assert gce["last5_std"] == pytest.approx(np.std([85.0, 86.0, 87.5], ddof=1), abs=1e-4)
    assert gce["best_mean"] == pytest.approx(gce["last5_mean"] + 1)
    assert gce["seeds"] == 3
    assert (ce["last5_mean"], ce["last5_std"], ce["seeds"]) == (80.0, None, 1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_a_mean_lies_between_its_runs(last5: list[float]) -> None:
    row = row_of(comparison.rows("table1", trained("SL", *last5)), "SL")
    assert min(last5) - 1e-3 <= row["last5_mean"] <= max(last5) + 1e-3
    assert (row["last5_std"] is None) == (len(last5) == 1)
    assert row["seeds"] == len(last5)


def test_schedules_that_have_runs_are_shown_unless_one_is_chosen() -> None:
    runs = [*trained("CE", 80.0), *trained("CE", 85.0, schedule="paper")]
    rows = comparison.rows("table1", runs)
    there = dict.fromkeys((row["dataset"], row["schedule"]) for row in rows)
    assert list(there) == [("CIFAR-10", "short"), ("CIFAR-10", "paper"), ("CIFAR-100", "paper")]
    assert row_of(comparison.rows("table1", runs, "short"), "CE")["last5_mean"] == 80.0
    assert row_of(comparison.rows("table1", runs, "paper"), "CE")["last5_mean"] == 85.0
    with pytest.raises(UnknownNameError, match="table1 has no schedule 'long'"):
        comparison.rows("table1", runs, "long")


def test_variants_have_rows_of_their_own_when_asked_for() -> None:
    options = (("margin", "latest"),)
    runs = [*trained("A-GCE", 86.0), *trained("A-GCE", 70.0, options=options), *trained("GCE", 85.0, tune=True)]
    runs += [*trained("T-GCE", 84.0), *trained("Mixup", 84.0), *trained("CE", 60.0, heldout=0.2)]
    plain = comparison.rows("table1", runs)
    assert row_of(plain, "A-GCE")["last5_mean"] == 86.0
    assert row_of(plain, "GCE")["seeds"] == 0
    assert not any("," in row["method"] for row in plain)
    rows = comparison.rows("table1", runs, variants=True)
    assert row_of(rows, "A-GCE, margin = latest")["last5_mean"] == 70.0
    assert row_of(rows, "A-GCE, margin = latest")["paper"] is None
    assert row_of(rows, "CE, 20% held out")["seeds"] == 1
    table = comparison.tables("table1", rows)[0]
    names = [line[0] for line in table.rows]
    assert names[:2] == ["CE", "CE, 20% held out"]
    assert names[4:8] == ["GCE", "GCE, tuned", "A-GCE", "A-GCE, margin = latest"]
    assert names[-2:] == ["Mixup", "paper's best"], "at the end; T-GCE is another table's"
    assert "T-GCE" not in names
    assert cell_of(table, "GCE, tuned", "symmetric 0.2") == "–"
    assert any("tuned on the clean set, 1 cell: 1 with one seed (1 ahead, 0 behind)" in note for note in table.notes)


def test_runs_of_another_table_or_model_are_left_out() -> None:
    other = [replace(run, cell=replace(run.cell, model="resnet34")) for run in trained("CE", 50.0)]
    rows = comparison.rows("table1", [*other, *trained("CE", 50.0, task=WORST)])
    assert not any(row["seeds"] for row in rows)


@pytest.mark.parametrize(
    ("adjusted", "fixed", "sign"),
    [
        ([88.0, 88.1, 87.9], [86.0, 86.1, 85.9], "▲"),
        ([88.0, 89.0, 87.0], [87.8, 88.6, 87.1], "△"),
        ([86.0, 86.1, 85.9], [88.0, 88.1, 87.9], "▼"),
        ([87.8, 88.6, 87.1], [88.0, 89.0, 87.0], "▽"),
        ([88.0, 89.0], [89.0, 88.0], "="),
        ([88.0, 88.0], [87.0, 87.0], "▲"),
        ([88.0, 88.0], [88.0, 88.0], "="),
        ([88.0], [80.0, 80.0, 80.0], "¹"),
        ([88.0, 88.1], [80.0], "¹"),
    ],
)
def test_marks(adjusted: list[float], fixed: list[float], sign: str) -> None:
    runs = [*trained("A-GCE", *adjusted), *trained("GCE", *fixed)]
    rows = comparison.rows("table1", runs)
    assert verdicts.mark(row_of(rows, "A-GCE"), row_of(rows, "GCE")) == sign
    table = comparison.tables("table1", rows)[0]
    assert sign in cell_of(table, "A-GCE", "symmetric 0.4")
    assert sign not in cell_of(table, "GCE", "symmetric 0.4")


seeds = st.lists(st.floats(10, 90).map(lambda value: round(value, 2)), min_size=2, max_size=7)


@given(seeds, seeds)
def test_marks_agree_with_a_t_test(adjusted: list[float], fixed: list[float]) -> None:
    rows = comparison.rows("table1", [*trained("A-JS", *adjusted), *trained("JS", *fixed)])
    sign = verdicts.mark(row_of(rows, "A-JS"), row_of(rows, "JS"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, where nothing varies
        p = stats.ttest_ind(adjusted, fixed).pvalue
    if abs(np.mean(adjusted) - np.mean(fixed)) > 1e-3 and abs(p - 0.05) > 1e-3:
        ahead = np.mean(adjusted) > np.mean(fixed)
        assert sign == (("▲" if ahead else "▼") if p < 0.05 else ("△" if ahead else "▽"))


def test_a_table_shows_ours_and_the_papers() -> None:
    runs = [*trained("CE", 80.0), *trained("GCE", 85.0, 85.4), *trained("A-GCE", 87.0, 87.2)]
    first, second = comparison.tables("table1", comparison.rows("table1", runs))
    assert (
        first.title == "Instance-independent noise: CIFAR-10, ResNet-32, short schedule (60 epochs, ÷10 at 40 and 50)"
    )
    assert first.columns[:3] == ("method", "symmetric 0", "symmetric 0.2")
    assert cell_of(first, "CE", "symmetric 0.4") == "80.0 (84.1)"
    assert cell_of(first, "GCE", "symmetric 0.4") == "85.2±0.3 (87.2)"
    assert cell_of(first, "A-GCE", "symmetric 0.4") == "87.1±0.1▲ (88.2)"
    assert cell_of(first, "MW-Net", "symmetric 0.4") == "– (87.3)"
    assert "best" not in [line[0] for line in first.rows], "who is the best of some says little"
    assert cell_of(first, "paper's best", "symmetric 0") == "CE"
    notes = " ".join(first.notes)
    assert "Seeds: 1 to 2. The paper trained for 120 epochs." in notes
    assert "Adjusted against fixed, untuned, 1 cell: 1 ahead and 0 behind beyond seed noise, 0 within it" in notes
    assert "Mean difference +1.90." in notes
    assert "Not run: 63 of 66 cells." in notes
    assert "Misprint in the paper: A-PolySoft" in notes
    assert "CIFAR-100" in second.title
    assert "best" not in [line[0] for line in second.rows]
    assert not any("▲" in note for note in second.notes)


def test_the_best_of_a_column_may_be_several() -> None:
    def best(**values: float) -> str:
        whole = dict.fromkeys(protocols.COMPARED, 70.0) | values
        rows = comparison.rows("table1", [run for name, value in whole.items() for run in trained(name, value)])
        return cell_of(comparison.tables("table1", rows)[0], "best", "symmetric 0.4")

    assert best(CE=80.0) == "CE"
    assert best(CE=80.0, SL=80.0) == "CE SL"
    assert best(CE=80.0, SL=80.0, JS=80.0) == "3 methods"


def test_options_are_chosen_by_samples_that_were_held_out() -> None:
    accuracies = [0.1, 0.2, 0.80, 0.81, 0.82, 0.83, 0.84]
    kept = [
        replace(run, curves={"heldout_accuracy": [value + 0.02 * run.cell.seed for value in accuracies]})
        for run in trained("A-GCE", 87.0, 88.0, heldout=0.5)
    ]
    fixed = [replace(run, curves={"heldout_accuracy": [0.5, 0.7]}) for run in trained("GCE", 86.0)]
    rows = comparison.rows("table1", [*kept, *fixed, *trained("A-GCE", 99.0)], variants=True)
    chosen = row_of(rows, "A-GCE, 50% held out")
    assert (chosen["heldout_mean"], chosen["heldout_std"]) == (83.0, pytest.approx(np.std([82, 84], ddof=1), abs=1e-4))
    assert row_of(rows, "A-GCE")["heldout_mean"] is None
    _, second, *_ = comparison.tables("table1", rows)
    assert second.title.endswith("to choose by")
    assert [line[0] for line in second.rows] == ["GCE", "A-GCE, 50% held out"]
    assert cell_of(second, "A-GCE, 50% held out", "symmetric 0.4") == "83.0±1.4"
    assert cell_of(second, "GCE", "symmetric 0.4") == "60.0"
    plain = comparison.tables("table1", comparison.rows("table1", [*fixed, *trained("A-GCE", 99.0)]))
    assert not any("to choose by" in table.title for table in plain)


def test_one_seed_is_counted_but_not_judged() -> None:
    runs = [*trained("A-GCE", 86.0), *trained("GCE", 85.0), *trained("A-SL", 80.0), *trained("SL", 82.0)]
    notes = " ".join(comparison.tables("table1", comparison.rows("table1", runs))[0].notes)
    assert "2 cells: 2 with one seed (1 ahead, 1 behind). Mean difference -0.50." in notes
    assert "¹ one seed: not judged" in notes
    assert "▲" not in notes


def test_whole_tables_fit_into_120_columns() -> None:
    runs = [
        run
        for cell in protocols.get("table1").cells()
        for run in trained(cell.method, 88.11, 88.2, 87.5, task=cell.task)
    ]
    for table in comparison.tables("table1", comparison.rows("table1", runs)):
        lines = table.text().splitlines()
        assert max(len(line) for line in lines[: len(table.rows) + 2]) <= 120


def test_what_was_published_stands_beside_ours_at_the_best_epoch() -> None:
    runs = [*trained("A-GCE", 83.0, 84.0, task=WORST), *trained("GCE", 82.0, task=WORST)]
    ours, published, lost = comparison.tables("cifar10n", comparison.rows("cifar10n", runs))
    assert cell_of(ours, "A-GCE", "worst") == "83.5±0.7¹"
    assert cell_of(published, "GCE", "worst") == "80.66"
    assert cell_of(published, "ours: A-GCE (short)", "worst") == "84.50"
    assert cell_of(published, "ours: A-GCE (short)", "aggregate") == "–"
    assert cell_of(lost, "CE", "difference") == "-15.65"
    assert cell_of(lost, "ours: GCE (short)", "difference") == "-1.00"
    assert "Ours: ResNet-32" in " ".join(published.notes)


def test_table4_has_the_papers_numbers_on_both_data_sets() -> None:
    rows = comparison.rows("table4", [])
    assert len(rows) == 32
    assert list(rows[0]) == [*KEYS, "paper_std", "model", *CHOOSING, "metric"]
    shown = {(row["dataset"], row["metric"], row["method"]): row["paper"] for row in rows}
    for key, number in paper.numbers("table4").items():
        assert (
            shown[key.dataset, key.metric, f"{key.method}+" if key.method.startswith("A-") else key.method]
            == number.mean
        )
    (table,) = comparison.tables("table4", rows)
    assert table.columns[1:] == (
        "mini-WebVision, top 1",
        "mini-WebVision, top 5",
        "ILSVRC12, top 1",
        "ILSVRC12, top 5",
    )
    assert cell_of(table, "A-SL+", "mini-WebVision, top 1") == "– (78.9)"
    assert cell_of(table, "paper's best", "ILSVRC12, top 5") == "A-JS+"


@pytest.mark.parametrize("name", comparison.NAMES)
def test_nothing_run_yet_is_no_error(name: str, tmp_path: Path) -> None:
    rows = comparison.rows(name, [])
    tables = comparison.tables(name, rows)
    answer = done("bench", "show", name, "--results", tmp_path / "none")
    assert answer.out == "\n\n".join(table.text() for table in tables) + "\n"
    assert f"nothing of {name} has been run yet" in answer.err
    assert json.loads(done("bench", "show", name, "--json", "--results", tmp_path).out) == rows


def test_the_command_prints_text_markdown_and_json(tmp_path: Path) -> None:
    for run in [*trained("GCE", 85.0, 85.4), *trained("A-GCE", 87.0, 87.2), *trained("GCE", 86.0, tune=True)]:
        run.write(tmp_path)
    shown = ("bench", "show", "table1", "--results", tmp_path)
    text = done(*shown)
    assert "85.2±0.3 (87.2)" in text.out
    assert "GCE, tuned" not in text.out
    assert text.err == ""
    assert "GCE, tuned" in done(*shown, "--variants").out
    markdown = done(*shown, "--markdown").out
    assert "| A-GCE | – (92.9) | – (90.7) | 87.1±0.1▲ (88.2) |" in markdown
    rows = json.loads(done(*shown, "--json").out)
    assert row_of(rows, "A-GCE")["last5_mean"] == 87.1
    paper_schedule = json.loads(done(*shown, "--json", "--schedule", "paper").out)
    assert {row["schedule"] for row in paper_schedule} == {"paper"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tabel1",), "no results are called 'tabel1': did you mean 'table1'?"),
        (("table1", "--schedule", "shrot"), "table1 has no schedule 'shrot': did you mean 'short'?"),
        (("table1", "--json", "--markdown"), "give one of them"),
        (("cost", "--variants"), "cost has neither"),
        (("table1", "--results", "{file}"), "is a file: give the folder"),
    ],
)
def test_mistakes_end_in_one_line(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert told in refused("bench", "show", *(one.format(file=tmp_path / "a") for one in arguments))


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "mine.json"
    task = {"dataset": "mine", "noise": "symmetric", "rate": 0.4}
    table = {"tasks": [task], "methods": ["GCE", "A-GCE"], "model": "mlp", "epochs": 5, "clean": 100}
    own.write_text(json.dumps(table))
    for run in trained("A-GCE", 87.0, 87.2, task=Task("mine", "symmetric", 0.4), schedule="mine"):
        replace(run, cell=replace(run.cell, model="mlp")).write(tmp_path)
    answer = done("bench", "show", own, "--results", tmp_path)
    assert answer.out.startswith("mine: mine, mlp, 5 epochs\n")
    assert "A-GCE        87.1±0.1" in answer.out
    assert "none.json cannot be read: No such file" in refused("bench", "show", tmp_path / "none.json")


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    path = trained("CE", 80.0)[0].write(tmp_path)
    path.write_text("{")
    assert str(path) in refused("bench", "show", "table1", "--results", tmp_path)


def test_help_names_all_that_can_be_shown() -> None:
    text = done("bench", "show", "--help").out
    assert all(name in text for name in ("cost", *comparison.NAMES))


def test_the_page_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    blocks = importlib.import_module("pages").BLOCKS["results.md"]
    assert {"table1", "table2", "cifar10n", "figure5"} <= set(blocks)
    page = (ROOT / "docs" / "results.md").read_text()
    for name, make in blocks.items():
        for table in make():
            assert table.markdown() in page, f"run: python benchmarks/pages.py, for {name}: {table.title}"
