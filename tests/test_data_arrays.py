"""Arrays in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narl.data.read import Columns, has_part, read, read_inputs
from narl.data.samples import Images, Table, Texts
from narl.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, size=(6, 5, 4, 3), dtype=np.uint8)
Y = np.array([0, 1, 2, 2, 1, 0])


def save(folder: Path, **arrays: Any) -> Path:
    named: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    np.savez(folder / "data.npz", **named)
    return folder / "data.npz"


def pixels(inputs: object) -> Any:
    assert isinstance(inputs, Images)
    return inputs.pixels


@pytest.mark.parametrize(
    ("x", "y"), [("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target"), ("features", "label")]
)
def test_usual_names(tmp_path: Path, x: str, y: str) -> None:
    samples = read(save(tmp_path, **{x: PIXELS, y: Y}))
    np.testing.assert_array_equal(pixels(samples.inputs), PIXELS)
    assert samples.labels.tolist() == Y.tolist()
    assert samples.classes == ("0", "1", "2")
    assert samples.ids.tolist() == list("012345")


def test_of_a_file_with_two_parts_one_is_read_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, x_train=PIXELS, y_train=Y, x_test=PIXELS[:3], y_test=Y[:3])
    opened: list[str] = []
    inside = np.lib.npyio.NpzFile.__getitem__

    def noting(file: Any, name: str) -> Any:
        opened.append(name)
        return inside(file, name)

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", noting)
    assert has_part(path, "test")
    assert len(read(path)) == 6
    assert opened.count("x_train") == 1
    assert "x_test" not in opened


def test_parts_classes_and_true_labels(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        x_train=PIXELS,
        y_train=Y,
        x_test=PIXELS[:2],
        y_test=[2, 0],
        y_true_train=Y[::-1],
        weak_train=[1, 1, 2, 2, 1, 0],
        weak_test=[0, 0],
        classes=["cat", "dog", "eel", "fox"],
    )
    assert has_part(path, "train")
    assert has_part(path, "test")
    train = read(path)
    assert train.classes == ("cat", "dog", "eel", "fox")
    assert train.ids[0] == "train/0"
    assert train.true_labels is not None
    assert train.true_labels.tolist() == Y[::-1].tolist()
    test = read(path, part="test", classes=train.classes)
    assert test.labels.tolist() == [2, 0]
    assert test.ids.tolist() == ["test/0", "test/1"]
    weak = Columns(label="weak_train", true_label="y_train")
    chosen = read(path, columns=weak)
    assert chosen.labels.tolist() == [1, 1, 2, 2, 1, 0]
    assert chosen.true_labels is not None
    assert chosen.true_labels.tolist() == Y.tolist()
    assert read(path, part="test", columns=weak, classes=train.classes).labels.tolist() == [0, 0]
    assert len(read_inputs(path)) == 2


def test_empty_classes_are_refused_without_true_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sample of 'fox'"):
        read(save(tmp_path, x=PIXELS, y=Y, classes=["cat", "dog", "eel", "fox"]))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (PIXELS.transpose(0, 3, 1, 2), PIXELS),
        (PIXELS[..., 0], PIXELS[..., :1]),
        (PIXELS.astype(np.int64), PIXELS),
        (PIXELS.astype(np.float64) / 255, (PIXELS / 255).astype(np.float32)),
        (PIXELS.astype(np.int64) - 1, (PIXELS.astype(np.float32) - 1)),
    ],
    ids=["channels first", "grey", "int64", "float64", "negative"],
)
def test_images_of_every_kind(tmp_path: Path, array: Any, expected: Any) -> None:
    found = pixels(read(save(tmp_path, x=array, y=Y)).inputs)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_texts_and_numbers(tmp_path: Path) -> None:
    texts = read(save(tmp_path, x=["one two", "three", "é"], y=["b", "a", "b"]))
    assert isinstance(texts.inputs, Texts)
    assert texts.inputs.texts.tolist() == ["one two", "three", "é"]
    assert texts.classes == ("a", "b")
    numbers = read(save(tmp_path, x=np.eye(3), y=[True, False, True]))
    assert isinstance(numbers.inputs, Table)
    assert numbers.inputs.number_names == ("x0", "x1", "x2")
    assert numbers.inputs.numbers.dtype == np.float64
    assert numbers.classes == ("false", "true")
    assert read(save(tmp_path, x=np.eye(2), y=[[1.0], [2.0]])).classes == ("1", "2")
    assert read(save(tmp_path, x=np.eye(2), y=np.array([b"u", b"v"]))).classes == ("u", "v")
    assert read(save(tmp_path, x=np.eye(2), y=["3", "A"])).classes == ("3", "A"), "words that are known to be words"


def test_numbers_stand_for_the_names_of_training(tmp_path: Path) -> None:
    assert read(save(tmp_path, x=np.eye(2), y=[1, 0]), part="test", classes=("cat", "dog")).labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="has the class '2'"):
        read(save(tmp_path, x=np.eye(2), y=[1, 2]), part="test", classes=("cat", "dog"))


@pytest.mark.parametrize("labels", ["faces-labels.npy", "faces_labels.npy"])
def test_npy_with_labels_beside_it(tmp_path: Path, labels: str) -> None:
    np.save(tmp_path / "faces.npy", PIXELS)
    assert len(read_inputs(tmp_path / "faces.npy")) == 6
    with pytest.raises(DataError, match="no array of labels"):
        read(tmp_path / "faces.npy")
    np.save(tmp_path / labels, Y)
    assert read(tmp_path / "faces.npy").labels.tolist() == Y.tolist()
    np.save(tmp_path / "x_a.npy", PIXELS)
    np.save(tmp_path / "y_a.npy", Y)
    assert read(tmp_path / "x_a.npy").labels.tolist() == Y.tolist()
    np.save(tmp_path / "alone.npy", PIXELS)
    given = read(tmp_path / "alone.npy", labels=str(tmp_path / "y_a.npy"))
    assert given.labels.tolist() == Y.tolist()
    assert given.true_labels is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": PIXELS}, "no array of labels .*--label"),
        ({"y": Y}, "no array of inputs"),
        ({"x": PIXELS, "y": Y[:3]}, "array 'y' has 3 labels for 6 samples"),
        ({"x": PIXELS, "y": np.eye(6)}, "shape .6, 6.: give one label a sample"),
        ({"x": PIXELS[..., :2], "y": Y}, "one or three channels"),
        ({"x": np.array([[1.0], [np.nan]]), "y": [0, 1]}, "row 1, column 0"),
        ({"x": np.array([[1.0], [1e300]]), "y": [0, 1]}, "row 1, column 0"),
        ({"x": np.array([[1.0], [2]]), "y": [0.5, 1]}, "not classes"),
        ({"x": np.array([[1.0], [2]]), "y": [np.nan, 1]}, "no label in row 0"),
        ({"x": np.array([[1.0], [2]]), "y": [1, 1]}, "one class only"),
        ({"x": np.array([[1.0], [2]]), "y": [0, 5], "classes": ["a", "b"]}, "label '5', but there are 2 class names"),
        ({"x": np.array([[1.0], [2]]), "y": [0, 1], "classes": ["a", "a"]}, "same name"),
        ({"x": np.zeros((0, 3)), "y": []}, "is empty"),
        ({"x": np.array([1.0, 2]), "y": [0, 1]}, "give images"),
        ({"x": np.array([[1j], [2]]), "y": [0, 1]}, "give images"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(save(tmp_path, **arrays))


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([{"a": 1}, None], dtype=object), y=np.array([0, 1]))
    with pytest.raises(DataError, match="never unpickled"):
        read(tmp_path / "data.npz")
    np.save(tmp_path / "data.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="never unpickled"):
        read(tmp_path / "data.npy")


@pytest.mark.parametrize("name", ["data.npz", "data.npy"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    np.savez_compressed(tmp_path / "data.npz", x=PIXELS, y=Y)
    np.save(tmp_path / "data.npy", PIXELS)
    np.save(tmp_path / "data-labels.npy", Y)
    content = (tmp_path / name).read_bytes()
    random = np.random.default_rng(2)
    refused = 0
    for damaged in [b"", b"PK", content[:100], content[:-30], *(flip(content, random) for _ in range(60))]:
        (tmp_path / name).write_bytes(damaged)
        try:
            assert len(read(tmp_path / name)) == len(Y)
        except DataError:
            refused += 1
    assert refused >= 4


def flip(content: bytes, random: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    for position in random.integers(0, len(content), 3):
        damaged[position] = random.integers(256)
    return bytes(damaged)
