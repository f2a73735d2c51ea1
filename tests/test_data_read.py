"""How a source is chosen, and paths that lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from narl.data import read as module
from narl.data.read import Columns, detect_columns, has_part, layouts, read, read_detected, read_inputs
from narl.errors import DataError, OptionError, UnknownNameError


def test_layouts() -> None:
    assert set(layouts()) == {
        *("folder", "csv", "tsv", "jsonl", "parquet", "arrays", "cifar10", "cifar100", "tiny-imagenet", "animal10n"),
        *("food101n", "mini-webvision", "ilsvrc12-val", "hub"),
    }
    assert set(module.__all__) <= set(dir(module))


def test_a_layout_decides_where_the_ending_does_not(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("x\tlabel\n1\ta\n2\tb\n")
    with pytest.raises(DataError, match=r"of no known kind: .*--layout"):
        read(path)
    assert read(path, layout="tsv").classes == ("a", "b")
    with pytest.raises(UnknownNameError, match="did you mean 'csv'"):
        read(path, layout="cvs")
    for given, meant in (("image", "'folder'"), ("TXT", "'csv' or 'jsonl'"), ("json", "'jsonl'"), (".npz", "'arrays'")):
        with pytest.raises(UnknownNameError, match=f"did you mean {meant}. Known: animal10n, "):
            read(path, layout=given)
    with pytest.raises(OptionError, match="did you mean 'test'"):
        read(path, part="tests")
    with pytest.raises(OptionError, match="part 'dev' is unknown"):
        has_part(path, "dev")


@pytest.mark.parametrize("path", ["", "a\0b", "nowhere/at/all.csv", "x" * 5000])
def test_paths_that_lead_nowhere(path: str) -> None:
    for function in (read, read_inputs, detect_columns):
        with pytest.raises(DataError) as caught:
            function(path)
        assert "\n" not in str(caught.value)


def test_the_nearest_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x,label\n")
    with pytest.raises(DataError, match=r"did you mean .*train\.csv\?"):
        read(tmp_path / "trian.csv")


def test_a_link_to_itself(tmp_path: Path) -> None:
    os.symlink("loop.csv", tmp_path / "loop.csv")
    with pytest.raises(DataError):
        read(tmp_path / "loop.csv")


def test_what_is_no_table_has_no_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.arange(2))
    assert detect_columns(tmp_path / "a.npz", Columns(label="y")) == Columns(label="y")
    assert read_detected(tmp_path / "a.npz", columns=Columns(label="y"))[1] == Columns(label="y")
    assert read_detected(tmp_path / "a.npz")[1] == Columns()
