"""Measured costs: rows are checked, tables say what the rows say, and the committed files are whole."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import done, refused
from narl import losses
from narl.bench import cost
from narl.bench.tables import Table
from narl.errors import ResultsError

ROOT = Path(__file__).parent.parent
SHARED: dict[str, Any] = {"device": "cpu", "model": "resnet32", "batch": 100, "precision": "float32"}
WHERE = {"environment": {"device": "Some CPU", "cores": 2, "torch": "2.13.0", "narl": "0.1.0"}}
PLAIN = {**SHARED, **WHERE, "method": "CE", "every": None, "ratio": 1.0, "ms": 100.0, "peak_mb": 50.0, "rounds": 9}
META = {
    **PLAIN,
    "method": "A-GCE",
    "every": 1,
    "ratio": 3.456,
    "ms": 345.6,
    "peak_mb": 130.4,
    "ratio_range": [3.4, 3.6],
    "gradient_error": 0.00051,
    "gradient_cosine": 0.99999,
    "kind": "measured",
}
TENTH = {**META, "every": 10, "ratio": 1.2456, "ms": 124.56, "kind": "derived"}
CHECK = {**TENTH, "ratio": 1.25, "kind": "run", "rounds": 20}
ROWS = [PLAIN, META, TENTH, CHECK]


def written(folder: Path, rows: object = ROWS, name: str = "cost-cpu-resnet32.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(rows))
    return folder


def test_a_table_has_a_line_a_method_and_a_column_a_rhythm() -> None:
    (table,) = cost.tables(ROWS)
    assert table.title == "ResNet-32, batch 100, float32, Some CPU"
    cells = {line[0]: dict(zip(table.columns, line, strict=True)) for line in table.rows}
    assert list(cells) == ["CE", "A-GCE"]
    assert [cells["CE"][f"every = {every}"] for every in (1, 10)] == ["1.00", "1.00"]
    assert [cells["A-GCE"][f"every = {every}"] for every in (1, 10)] == ["3.46", "1.25"]
    assert cells["A-GCE"]["ms"] == "345.6"
    assert cells["A-GCE"]["peak MB"] == "130"
    assert cells["A-GCE"]["range at 1"] == "3.40 … 3.60"
    assert cells["A-GCE"]["gradient error"] == "5e-04"
    assert cells["CE"]["gradient error"] == "–"
    assert table.notes == (
        "Medians of 9 rounds.",
        "A-GCE at every = 10, measured as a run: 1.25.",
        "Cores 2, torch 2.13.0.",
    )


def test_machines_models_batches_precisions_and_engines_have_tables_of_their_own() -> None:
    others = [{**PLAIN, "model": "mine"}, {**PLAIN, "batch": 8}, {**PLAIN, "precision": "bfloat16"}]
    others += [{**PLAIN, "environment": {"device": "Another CPU"}}, {**PLAIN, "engine": "compiled"}]
    titles = [table.title for table in cost.tables([*ROWS, *others])]
    assert len(titles) == 6
    assert titles[1] == "mine, batch 100, float32, Some CPU"
    assert titles[4].endswith("Another CPU")
    assert titles[5].endswith("Some CPU, compiled steps")


def test_a_method_without_a_row_at_every_1_is_shown_all_the_same() -> None:
    (table,) = cost.tables([PLAIN, TENTH])
    assert dict(zip(table.columns, table.rows[1], strict=True))["every = 10"] == "1.25"
    assert table.rows[1][1] == "–"


def test_a_run_alone_is_told_in_the_notes() -> None:
    (table,) = cost.tables([CHECK])
    assert table.rows == ()
    assert "measured as a run: 1.25" in table.text()


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    written(tmp_path, [{**PLAIN, "model": "second"}], "cost-b.json")
    written(tmp_path, [{**PLAIN, "model": "first"}], "cost-a.json")
    written(tmp_path, {"not": "ours"}, "step-cpu.json")
    assert [row["model"] for row in cost.read(tmp_path)] == ["first", "second"]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in PLAIN.items() if name != key}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
        ("{}", "no list of rows"),
        ("[]", "no list of rows"),
        ("[1]", "row 0: a row is a int"),
        (json.dumps([PLAIN, without("ratio")]), "row 1: 'ratio' is missing"),
        (json.dumps([{**PLAIN, "every": "10"}]), "row 0: 'every' is '10', not int or NoneType"),
        (json.dumps([{**PLAIN, "every": 0}]), "row 0: 'every' is 0, below 1"),
        (json.dumps([{**PLAIN, "batch": True}]), "row 0: 'batch' is True"),
        (json.dumps([{**PLAIN, "environment": "here"}]), "row 0: 'environment' is 'here', not dict"),
        (json.dumps([{**META, "ratio_range": [1]}]), "row 0: 'ratio_range' is [1], not two numbers"),
        (json.dumps([{**META, "ratio_range": ["low", "high"]}]), "not two numbers"),
    ],
)
def test_a_file_that_is_something_else_is_one_line(tmp_path: Path, content: str | bytes, told: str) -> None:
    path = tmp_path / "cost-x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused("bench", "show", "cost", "--results", tmp_path)
    assert str(path) in line
    assert told in line


def test_every_number_a_row_needs_is_asked_for(tmp_path: Path) -> None:
    for key in (*SHARED, "method", "every", "ratio", "ms", "peak_mb"):
        with pytest.raises(ResultsError, match=f"'{key}' is missing"):
            cost.read(written(tmp_path, [without(key)]))


def test_the_command_prints_json_text_and_markdown(tmp_path: Path) -> None:
    folder = written(tmp_path / "measured")
    assert json.loads(done("bench", "show", "cost", "--json", "--results", folder).out) == ROWS
    (table,) = cost.tables(ROWS)
    assert done("bench", "show", "cost", "--results", folder).out == table.text() + "\n"
    assert done("bench", "show", "cost", "--markdown", "--results", folder).out == table.markdown() + "\n"


def test_results_are_looked_for_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no folder results" in refused("bench", "show", "cost")
    (tmp_path / "results").mkdir()
    assert "results has no cost-*.json" in refused("bench", "show", "cost")
    written(tmp_path / "results")
    assert "ResNet-32" in done("bench", "show", "cost").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("bench", "show", "cots"), "no results are called 'cots': did you mean 'cost'?"),
        (("bench", "shwo"), "(narl bench --help)"),
        (("bench", "show"), "(narl bench show --help)"),
        (("bench", "show", "cost", "--mardkown"), "(narl bench show --help)"),
        (("bench", "show", "cost", "--json", "--markdown"), "give one of them"),
    ],
)
def test_mistakes_end_in_one_line(arguments: tuple[str, ...], told: str) -> None:
    assert told in refused(*arguments)


def test_the_group_alone_shows_its_help() -> None:
    assert "show" in done("bench").out


@pytest.mark.slow
def test_the_benchmark_writes_what_can_be_shown(tmp_path: Path) -> None:
    out = tmp_path / "cost-cpu-transformer.json"
    small = ["--model", "transformer", "--batch", "4", "--rounds", "1"]
    command = [sys.executable, str(ROOT / "benchmarks" / "cost.py"), *small, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    (table,) = cost.tables(cost.read(tmp_path))
    assert [line[0] for line in table.rows] == ["CE", "A-GCE", "unrolled"]
    errors = {row["method"]: row["gradient_error"] for row in cost.read(tmp_path)}
    assert errors["CE"] is None
    assert errors["A-GCE"] < 1e-3
    assert errors["unrolled"] < 1e-3


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1))
def test_markdown_keeps_its_shape_whatever_the_cells(rows: list[tuple[str, str, str]]) -> None:
    table = Table("t", ("a", "b", "c"), tuple(rows))
    lines = table.markdown().split("\n\n")[1] if not any("\n" in cell for row in rows for cell in row) else ""
    for line in lines.split("\n")[2:]:
        assert line.replace("\\|", "").count("|") == 4


COMMITTED = sorted((ROOT / "results").glob(cost.FILES))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_rows_are_whole(path: Path) -> None:
    rows = json.loads(path.read_text())
    engines = dict.fromkeys(row.get("engine") for row in rows)
    assert len(cost.tables(rows)) == len(engines)  # one file, one machine and model
    for engine in engines:
        check_whole([row for row in rows if row.get("engine") == engine])


def check_whole(rows: list[dict[str, Any]]) -> None:
    assert [row["ratio"] for row in rows if row["method"] == "CE"] == [1]
    by_method: dict[str, list[Any]] = {}
    for row in rows:
        assert {"device", "torch", "python", "cores", "narl"} <= set(row["environment"])
        assert row["rounds"] >= 1
        assert row["ratio_range"][0] <= row["ratio_range"][1]
        if row["kind"] != "run" and row["every"]:
            by_method.setdefault(row["method"], []).append(row)
    assert "A-GCE" in by_method
    for found in by_method.values():
        assert [row["every"] for row in found] == [1, 2, 5, 10, 50]
        ratios = [row["ratio"] for row in found]
        assert ratios == sorted(ratios, reverse=True)


def test_the_folder_of_the_repository_can_be_shown() -> None:
    assert COMMITTED
    assert len(cost.tables(cost.read(ROOT / "results"))) >= len(COMMITTED)


def test_the_pages_show_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    known = set(losses.names())
    pages = importlib.import_module("pages")
    others = {"audit.md", "boost.md", "review.md", "transfer.md", "travel.md"}
    assert set(pages.BLOCKS) == {"cost.md", "engine.md", "scaling.md", "results.md", "findings.md", *others}
    try:
        for name, blocks in pages.BLOCKS.items():
            page = (ROOT / "docs" / name).read_text()
            for table in (table for make in blocks.values() for table in make()):
                assert table.markdown() in page, f"run: python benchmarks/pages.py, for {table.title}"
    finally:
        for name in set(losses.names()) - known:  # a study's own loss
            losses.unregister(name)
        sys.modules.pop("normalised", None)
