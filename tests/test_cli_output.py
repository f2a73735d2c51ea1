"""Results in files: every format has what was given, and a failure leaves what was there."""

from __future__ import annotations

import csv
import errno
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from narl.cli.output import TABLES, check_new, print_json, write_predictions, write_table, writing
from narl.errors import MissingExtraError, OptionError

CLASSES = ["cat", 'a "dog", small', "line\nbreak", "=1+1", "été"]
IDS = ["1", "a,b", "=cmd", "x\ry"]
PROBABILITIES = np.array(
    [[0.2] * 5, [1e-9, 0.5, 0.25, 0.125, 0.125], [1, 0, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0, 0]], dtype=np.float32
)
LABELS = ["cat", 'a "dog", small', "cat", "line\nbreak"]


def predictions(path: Path) -> Path:
    write_predictions(path, IDS, LABELS, PROBABILITIES, CLASSES)
    return path


def table(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True))


@pytest.mark.parametrize("ending", TABLES)
def test_every_format_has_what_was_given(tmp_path: Path, ending: str) -> None:
    found = table(predictions(tmp_path / f"out{ending}"))
    assert [*found[0]] == ["id", "label", "probability", *(f"p:{name}" for name in CLASSES)]
    assert [row["id"] for row in found] == IDS  # verbatim, formulas for spreadsheets included
    assert [row["label"] for row in found] == LABELS
    chosen = [float(row["probability"]) for row in found]
    assert chosen == pytest.approx([0.2, 0.5, 1.0, 1 / 3], rel=1e-6)
    numbers = np.array([[float(row[f"p:{name}"]) for name in CLASSES] for row in found])
    assert numbers == pytest.approx(PROBABILITIES, rel=1e-6)
    assert numbers[1, 0] > 0  # small ones are not lost to rounding
    assert [*tmp_path.iterdir()] == [tmp_path / f"out{ending}"]


def test_text_formats_are_short_and_parquet_is_exact(tmp_path: Path) -> None:
    assert '"0.2' not in (text := predictions(tmp_path / "o.csv").read_text())
    assert "0.2,0.2,0.2" in text
    assert "0.3333333" in text
    column = parquet.read_table(predictions(tmp_path / "o.parquet")).column("p:cat")
    assert str(column.type) == "float"
    assert column.to_numpy().tolist() == PROBABILITIES[:, 0].tolist()


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)


@given(
    st.lists(st.tuples(texts, texts, st.integers()), min_size=1, max_size=8),
    st.sampled_from([".csv", ".tsv", ".jsonl"]),
)
@settings(max_examples=100, deadline=None)
def test_any_text_is_read_back(rows: list[tuple[str, str, int]], ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"o{ending}")
        first, second, third = map(list, zip(*rows, strict=True))
        write_table(path, {"a": first, "b,c": second, "n": third})
        found = [(row["a"], row["b,c"], int(row["n"])) for row in table(path)]
        assert found == rows


def test_file_names_that_are_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    write_table(tmp_path / "o.csv", {"id": [name], "label": ["x"]})
    assert (tmp_path / "o.csv").read_bytes() == b"id,label\ncaf\xe9.png,x\n"
    write_table(tmp_path / "o.jsonl", {"id": [name]})
    assert json.loads((tmp_path / "o.jsonl").read_text()) == {"id": name}
    with pytest.raises(OptionError, match="no UTF-8, which Parquet needs"):
        write_table(tmp_path / "o.parquet", {"id": [name]})
    assert not (tmp_path / "o.parquet").exists()


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'narl\[tables\]'"):
        predictions(tmp_path / "o.parquet")
    assert not [*tmp_path.iterdir()]


def test_unknown_endings(tmp_path: Path) -> None:
    for name in ("o.txt", "o", "o.xlsx"):
        with pytest.raises(OptionError, match=r"end in \.csv, \.tsv, \.jsonl, \.parquet"):
            predictions(tmp_path / name)
        with pytest.raises(OptionError, match=r"end in \.csv, \.tsv, \.jsonl, \.parquet"):
            check_new(tmp_path / name)
    check_new(tmp_path / "O.CSV")
    assert predictions(tmp_path / "O.CSV").exists()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError("x")]
)
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "o.csv"
    path.write_text("before")

    def fail() -> None:
        with writing(path) as file:
            file.write(b"half of it")
            raise error

    kind = OptionError if isinstance(error, OSError) else type(error)
    with pytest.raises(kind, match="could not be written: No space left" if isinstance(error, OSError) else None):
        fail()
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="could not be written: No such file or directory"):
        predictions(tmp_path / "no" / "o.csv")
    with pytest.raises(OptionError, match="File name too long"):
        check_new(tmp_path / ("x" * 300 + ".csv"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="does not exist"):
        check_new(tmp_path / "file" / "o.csv")


def test_a_folder_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # permissions mean nothing to root, who may run this
    with pytest.raises(OptionError, match="nothing can be written to the folder"):
        check_new(tmp_path / "o.csv")


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        {"a": np.float32(0.5), "b": [float("nan"), np.int64(3)], "c": (None, True, "ä"), "d": {"e": float("inf")}}
    )
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": 0.5, "b": [None, 3], "c": [None, True, "ä"], "d": {"e": None}}
    assert printed.isascii()
