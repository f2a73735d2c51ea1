"""Data sets of the hub, with a stand-in for the library that loads them."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PillowImage

from narl.data.image_files import probe
from narl.data.read import Columns, detect_columns, has_part, read, read_inputs
from narl.data.samples import ImageFiles, Images, Table, Texts
from narl.errors import DataError, MissingExtraError


@dataclass(frozen=True)
class ClassLabel:
    names: list[str]


@dataclass(frozen=True)
class Image:
    decode: bool = True


@dataclass(frozen=True)
class Value:
    dtype: str = "string"


@dataclass(frozen=True)
class Dataset:
    """As much of ``datasets.Dataset`` as is used."""

    rows: dict[str, list[Any]]
    features: dict[str, Any]
    arrow: bool = False
    _fingerprint: str = "f00"

    def with_format(self, kind: str) -> Dataset:
        return replace(self, arrow=kind == "arrow")

    def select_columns(self, names: list[str]) -> Dataset:
        return replace(self, rows={n: self.rows[n] for n in names}, features={n: self.features[n] for n in names})

    def remove_columns(self, names: list[str]) -> Dataset:
        return self.select_columns([name for name in self.rows if name not in names])

    def cast_column(self, name: str, feature: Image) -> Dataset:
        return replace(self, features={**self.features, name: feature})

    def iter(self, batch_size: int) -> Iterator[Any]:
        count = len(next(iter(self.rows.values())))
        for start in range(0, count, batch_size):
            batch = {name: cells[start : start + batch_size] for name, cells in self.rows.items()}
            yield pa.table(batch) if self.arrow else batch


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[tuple[str, str | None, str], Dataset]:
    """Data sets by name, configuration and split."""
    sets: dict[tuple[str, str | None, str], Dataset] = {}

    def splits(name: str, config: str | None) -> list[str]:
        found = [key[2] for key in sets if key[:2] == (name, config)]
        if not found:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist\non the Hub")
        return found

    def load(name: str, config: str | None, split: str) -> Dataset:
        return sets[name, config, split]

    library = SimpleNamespace(
        get_dataset_split_names=splits,
        load_dataset=load,
        Image=Image,
        config=SimpleNamespace(HF_DATASETS_CACHE=str(tmp_path / "cache")),
    )
    monkeypatch.setitem(sys.modules, "datasets", library)
    return sets


def png(size: int, value: int, mode: str = "RGB") -> dict[str, Any]:
    stream = io.BytesIO()
    PillowImage.new(mode, (size, size), value if mode == "L" else (value, 0, 0)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


NAMES = ClassLabel(["zebra", "ant", "bee"])


def test_class_names_keep_their_order(hub: dict[Any, Dataset]) -> None:
    features = {"text": Value(), "label": NAMES, "idx": Value("int64")}
    hub["me/set", "small", "train"] = Dataset(
        {"text": ["one", "two", "three"], "label": [2, 0, 1], "idx": [5, 6, 7]}, features
    )
    hub["me/set", "small", "validation"] = Dataset({"text": ["four"], "label": [0], "idx": [1]}, features)
    train = read("hub:me/set:small")
    assert train.classes == ("zebra", "ant", "bee")
    assert train.labels.tolist() == [2, 0, 1]
    assert isinstance(train.inputs, Texts)
    assert detect_columns("hub:me/set:small") == Columns(label="label", text="text", ignore=("idx",))
    assert has_part("hub:me/set:small", "test")
    assert read("hub:me/set:small", part="test", classes=train.classes).labels.tolist() == [0]
    assert len(read_inputs("me/set:small", layout="hub")) == 1


def test_hidden_test_labels_are_an_error(hub: dict[Any, Dataset]) -> None:
    hub["s", None, "test"] = Dataset({"text": ["a", "b"], "label": [0, -1]}, {"text": Value(), "label": NAMES})
    with pytest.raises(DataError, match="no label in row 1"):
        read("hub:s", part="test", classes=("zebra", "ant", "bee"))


def test_class_names_without_samples_are_left_out(hub: dict[Any, Dataset]) -> None:
    hub["s", None, "train"] = Dataset({"text": ["a", "b"], "label": [2, 0]}, {"text": Value(), "label": NAMES})
    samples = read("hub:s")
    assert samples.classes == ("zebra", "bee")
    assert samples.labels.tolist() == [1, 0]


def test_numbers(hub: dict[Any, Dataset]) -> None:
    hub["s", None, "train"] = Dataset(
        {"a": [1, 2], "b": [0.5, 1.5], "y": ["u", "v"]}, {"a": Value(), "b": Value(), "y": Value()}
    )
    samples = read("hub:s")
    assert isinstance(samples.inputs, Table)
    np.testing.assert_array_equal(samples.inputs.numbers, [[1, 0.5], [2, 1.5]])
    assert not has_part("hub:s", "test")
    with pytest.raises(DataError, match="no test part"):
        read("hub:s", part="test")


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_images_of_one_size_are_held(hub: dict[Any, Dataset], mode: str, channels: int) -> None:
    rows: dict[str, list[Any]] = {"img": [png(4, 9, mode), png(4, 8, mode), png(4, 7, mode)], "label": [1, 0, 2]}
    hub["s", None, "train"] = Dataset(rows, {"img": Image(), "label": NAMES})
    samples = read("hub:s")
    assert isinstance(samples.inputs, Images)
    assert samples.inputs.pixels.shape == (3, 4, 4, channels)
    assert samples.inputs.pixels[:, 0, 0, 0].tolist() == [9, 8, 7]
    assert samples.classes == tuple(NAMES.names)
    assert samples.ids.tolist() == ["0", "1", "2"]
    assert len(read_inputs("hub:s", part="train")) == 3


def test_other_images_become_files(hub: dict[Any, Dataset], tmp_path: Path) -> None:
    PillowImage.new("RGB", (6, 6)).save(tmp_path / "own.png")
    rows: dict[str, list[Any]] = {
        "image": [png(4, 9), png(5, 8), {"bytes": None, "path": str(tmp_path / "own.png")}],
        "label": [1, 0, 2],
    }
    hub["s", None, "train"] = Dataset(rows, {"image": Image(), "label": NAMES})
    for _ in range(2):  # the second time the files are there
        samples = read("hub:s")
        assert isinstance(samples.inputs, ImageFiles)
        assert samples.inputs.path(2) == tmp_path / "own.png"
        assert [probe(samples.inputs.path(row))[:2] for row in range(3)] == [(4, 4), (5, 5), (6, 6)]
    rows["image"][1] = {"bytes": b"broken", "path": None}
    with pytest.raises(DataError, match="image 1 of hub:s is empty or no image"):
        read("hub:s")
    hub["s", None, "train"] = Dataset(
        {**rows, "more": rows["image"]}, {"image": Image(), "more": Image(), "label": NAMES}
    )
    with pytest.raises(DataError, match=r"several image columns .*--image"):
        read("hub:s")


def test_names_that_are_not_there(hub: dict[Any, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"data set lost cannot be loaded \(Dataset 'lost' doesn't exist on the Hub\)"):
        read("hub:lost")
    with pytest.raises(DataError, match="names no data set"):
        read("hub:")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'narl\[hub\]'"):
        read("hub:lost")
