"""CIFAR in its published layout, and pickles that ask for more than arrays."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narl.data.array_pickles import read_pickle
from narl.data.read import has_part, read, read_inputs
from narl.data.samples import Images
from narl.errors import DataError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, size=(12, 32, 32, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]


def rows(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def dump(path: Path, value: object, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=protocol))


def cifar10(root: Path, protocol: int = 2) -> Path:
    folder = root / "cifar-10-batches-py"
    for index in range(5):
        part = slice(2 * index, 2 * index + 2)
        batch = {b"batch_label": b"x", b"labels": LABELS[part], b"data": rows(IMAGES[part]), b"filenames": [b"a", b"b"]}
        dump(folder / f"data_batch_{index + 1}", batch, protocol)
    dump(folder / "test_batch", {b"labels": LABELS[10:], b"data": rows(IMAGES[10:])}, protocol)
    dump(folder / "batches.meta", {b"label_names": [b"airplane", b"automobile", b"bird"]}, protocol)
    return folder


@pytest.mark.parametrize("protocol", range(6))
def test_cifar10(tmp_path: Path, protocol: int) -> None:
    folder = cifar10(tmp_path, protocol)
    for path in (folder, tmp_path):
        assert has_part(path, "test")
        train = read(path)
        assert train.classes == ("airplane", "automobile", "bird")
        assert train.labels.tolist() == LABELS[:10]
        assert train.ids.tolist() == [f"train/{row}" for row in range(10)]
        assert isinstance(train.inputs, Images)
        np.testing.assert_array_equal(train.inputs.pixels, IMAGES[:10])
        test = read(path, part="test", classes=train.classes, layout="cifar10")
        assert test.ids.tolist() == ["test/0", "test/1"]
        assert test.labels.tolist() == LABELS[10:]
    assert len(read_inputs(folder)) == 2


def cifar100(root: Path) -> Path:
    folder = root / "cifar-100-python"
    for name, part in (("train", slice(0, 9)), ("test", slice(9, 12))):
        values = {"fine_labels": LABELS[part], "coarse_labels": [0] * len(LABELS[part]), "data": rows(IMAGES[part])}
        dump(folder / name, values)
    dump(folder / "meta", {"fine_label_names": ["apple", "bear", "crab"], "coarse_label_names": ["x"]})
    return folder


def test_cifar100(tmp_path: Path) -> None:
    folder = cifar100(tmp_path)
    samples = read(tmp_path)
    assert samples.classes == ("apple", "bear", "crab")
    assert len(samples) == 9
    assert len(read(folder, part="test", layout="cifar100")) == 3


def test_a_pickle_of_python_2(tmp_path: Path) -> None:
    """The published batches: str is bytes, and the array's bytes are a str."""
    raw = bytes(range(250, 256))
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x06" + raw + b"tbU\x06labelsq\x08]q\x09(K\x01K\x02eu."
    )
    (tmp_path / "batch").write_bytes(content)
    read = read_pickle(tmp_path / "batch")
    assert read["labels"] == [1, 2]
    np.testing.assert_array_equal(read["data"], np.arange(250, 256, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<f8", "|u1", "|b1", "<i8"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_arrays_come_back_as_they_were(tmp_path: Path, dtype: str, protocol: int) -> None:
    for array in (
        np.arange(12).reshape(3, 4).astype(dtype),
        np.asfortranarray(np.arange(12).reshape(3, 4).astype(dtype)),
    ):
        dump(tmp_path / "a", {"x": array}, protocol)
        np.testing.assert_array_equal(read_pickle(tmp_path / "a")["x"], array)
        assert read_pickle(tmp_path / "a")["x"].dtype == array.dtype


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_but_arrays_is_made(tmp_path: Path, protocol: int) -> None:
    folder = cifar10(tmp_path)
    dump(folder / "data_batch_3", {b"labels": [0, 1], b"data": Evil(tmp_path / "owned")}, protocol)
    with pytest.raises(DataError, match=r"data_batch_3 asks for .*only arrays"):
        read(folder)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nsave\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"\x80\x02c_codecs\nlookup\n.",
    ],
)
def test_other_names_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match="only arrays"):
        read_pickle(tmp_path / "a")


def test_objects_in_arrays_are_refused(tmp_path: Path) -> None:
    dump(tmp_path / "a", {"x": np.array([None, 1], dtype=object)})
    with pytest.raises(DataError, match="damaged array"):
        read_pickle(tmp_path / "a")


def test_damaged_and_missing_batches(tmp_path: Path) -> None:
    folder = cifar10(tmp_path)
    content = (folder / "data_batch_2").read_bytes()
    random = np.random.default_rng(3)
    for _ in range(100):
        damaged = bytearray(content)
        for position in random.integers(0, 300, 3):
            damaged[position] = random.integers(256)
        (folder / "data_batch_2").write_bytes(bytes(damaged)[: random.integers(1, len(content) + 1)])
        with suppress(DataError):
            read(folder)
    (folder / "data_batch_2").unlink()
    with pytest.raises(DataError, match=r"no file .*data_batch_2: did you mean"):
        read(folder)
    dump(folder / "data_batch_2", {b"labels": [0], b"data": rows(IMAGES[:2])})
    with pytest.raises(DataError, match="9 labels for 10 images"):
        read(folder)
    dump(folder / "data_batch_2", {b"labels": [0, 3], b"data": rows(IMAGES[:2])})
    with pytest.raises(DataError, match="outside 0 … 2"):
        read(folder)
    dump(folder / "data_batch_2", {b"labels": [0, 1], b"data": rows(IMAGES[:2])[:, :100]})
    with pytest.raises(DataError, match="no array data of shape"):
        read(folder)
