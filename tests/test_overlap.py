"""Samples shared by two sets, against comparing every pair."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narl.data import content
from narl.data.overlap import check_disjoint, overlaps, shared, without_shared
from narl.data.samples import ImageFiles, Images, Inputs, Samples, Table, Texts
from narl.errors import DataError, OverlapError

RNG = np.random.default_rng(11)


def texts(*lines: str) -> Texts:
    return Texts(np.array(lines, dtype=object))


def samples(inputs: Inputs, prefix: str = "") -> Samples:
    ids = np.array([f"{prefix}{i}" for i in range(len(inputs))], dtype=np.str_)
    return Samples(inputs, np.zeros(len(inputs), np.int64), ("any",), ids)


def by_pairs(first: list[bytes], second: list[bytes]) -> list[tuple[int, int]]:
    return [(i, second.index(digest)) for i, digest in enumerate(first) if digest in second]


def files(folder: Path, contents: list[bytes]) -> ImageFiles:
    folder.mkdir(exist_ok=True)
    names = [f"{i}.png" for i in range(len(contents))]
    for name, data in zip(names, contents, strict=True):
        (folder / name).write_bytes(data)
    return ImageFiles(folder, np.array(names, dtype=np.str_))


def png(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels.squeeze()).save(buffer, "png")
    return buffer.getvalue()


ROWS = st.lists(st.tuples(st.sampled_from([0.0, -0.0, 1.0]), st.sampled_from(["", "a", "b"])), max_size=8)


@given(ROWS, ROWS)
def test_tables_against_every_pair(first: list[tuple[float, str]], second: list[tuple[float, str]]) -> None:
    def table(rows: list[tuple[float, str]]) -> Table:
        numbers = np.array([[number] for number, _ in rows], np.float32).reshape(len(rows), 1)
        words = np.array([[word] for _, word in rows], object).reshape(len(rows), 1)
        return Table(numbers, words, ("n",), ("c",))

    one, two = table(first), table(second)
    assert shared(one, two) == by_pairs(one.digests(), two.digests())
    numbers, digests = content.groups(one), one.digests()
    assert [[a == b for a in numbers] for b in numbers] == [[a == b for a in digests] for b in digests]


@given(st.lists(st.text("ab ", max_size=3), max_size=8), st.lists(st.text("ab ", max_size=3), max_size=8))
def test_texts_against_every_pair(first: list[str], second: list[str]) -> None:
    one, two = texts(*first), texts(*second)
    assert shared(one, two) == by_pairs(one.digests(), two.digests())


CONTENTS = st.lists(st.sampled_from([b"", b"a", b"b", b"aa", b"x" * 20_000 + b"a", b"x" * 20_000 + b"b"]), max_size=6)


@settings(max_examples=40, deadline=None)
@given(CONTENTS, CONTENTS)
def test_files_against_every_pair(
    tmp_path_factory: pytest.TempPathFactory, first: list[bytes], second: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    one, two = files(folder / "one", first), files(folder / "two", second)
    assert shared(one, two) == by_pairs(first, second)
    numbers = content.groups(one)
    assert [[a == b for a in numbers] for b in numbers] == [[a == b for a in first] for b in first]


def test_images_in_memory() -> None:
    pixels = RNG.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    first, second = Images(pixels), Images(pixels[[5, 5, 2]])
    assert shared(first, second) == [(2, 2), (5, 0)]
    assert shared(second, first) == [(0, 5), (1, 5), (2, 2)]
    assert shared(first, Images(pixels.reshape(6, 2, 8, 3))) == []
    assert shared(first, Images(pixels.astype(np.float32))) == []


def test_memory_against_files(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    other = RNG.integers(0, 256, (7, 7, 3), dtype=np.uint8)
    on_disk = files(tmp_path, [png(pixels[3]), png(other), png(pixels[1]), png(pixels[1, :5])])
    assert shared(Images(pixels), on_disk) == [(1, 2), (3, 0)]
    assert shared(on_disk, Images(pixels)) == [(0, 3), (2, 1)]
    grey = RNG.integers(0, 256, (2, 5, 5, 1), dtype=np.uint8)
    assert shared(Images(grey), files(tmp_path / "grey", [png(grey[1])])) == [(1, 0)]


def test_different_kinds_share_nothing() -> None:
    empty = np.empty((1, 0), object)
    assert shared(texts("1.0"), Table(np.ones((1, 1), np.float32), empty, ("a",))) == []
    assert shared(Images(np.zeros((1, 1, 1, 1), np.uint8)), texts("")) == []


def test_tables_are_compared_by_columns() -> None:
    numbers = np.array([[1, 2], [3, 4]], np.float32)
    none = np.empty((2, 0), object)
    first = Table(numbers, none, ("a", "b"))
    assert shared(first, Table(numbers[:, ::-1], none, ("b", "a"))) == [(0, 0), (1, 1)]
    assert shared(first, Table(numbers, none, ("b", "a"))) == []
    more = Table(np.column_stack([[9, 9], numbers]).astype(np.float32), none, ("more", "a", "b"))
    assert shared(first, more) == shared(more, first) == [(0, 0), (1, 1)]
    assert shared(first, Table(numbers, none, ("a", "c"))) == []


def test_equal_hashes_are_compared_in_full() -> None:
    keys = RNG.integers(0, 3, (200, 2)).astype(np.uint64)
    wanted = keys[:, 0] * 3 + keys[:, 1]
    exact = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    real: Any = np.unique

    def one_hash(values: NDArray[np.uint64], axis: int | None = None, **options: bool) -> object:
        return real(values if axis == 0 else np.zeros_like(values), axis=axis, **options)

    with patch.object(np, "unique", one_hash):
        numbers = content._row_numbers(keys)
    assert np.array_equal(numbers, exact)
    for result in (numbers, content._row_numbers(keys)):
        assert np.array_equal(result[:, None] == result, wanted[:, None] == wanted)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    gone = ImageFiles(tmp_path, np.array(["gone.png"]))
    with pytest.raises(DataError, match=r"gone\.png.*No such file"):
        shared(gone, gone)


def test_only_files_that_could_be_equal_are_opened(tmp_path: Path) -> None:
    first, second = files(tmp_path / "a", [b"1", b"22", b"333"]), files(tmp_path / "b", [b"55555", b"22"])
    opened: list[str] = []

    def counted(path: str, mode: str) -> object:
        opened.append(Path(path).parent.name + Path(path).name)
        return io.open(path, mode)  # noqa: UP020  # content's own open is replaced

    with patch.object(content, "open", counted, create=True):
        assert shared(first, second) == [(1, 1)]
    assert sorted(opened) == ["a1.png", "b1.png"]


def test_overlapping_sets_are_refused() -> None:
    train, clean = samples(texts("a", "b", "c", "d", "e", "c"), "train-"), samples(texts("x", "a"), "clean-")
    test = samples(texts("c", "d", "e", "x"), "test-")
    check_disjoint({"train": train, "clean": samples(texts("y", "y"))})
    with pytest.raises(OverlapError) as error:
        check_disjoint({"train": train, "clean": clean})
    assert str(error.value) == (
        "1 sample of train is also in clean ('train-0' is 'clean-1' there): "
        "--drop-overlap leaves them out of train, --allow-overlap keeps them"
    )
    found = overlaps({"train": train, "clean": clean, "test": test})
    assert [(overlap.first, overlap.second, len(overlap)) for overlap in found] == [
        ("train", "clean", 1),
        ("train", "test", 4),
        ("clean", "test", 1),
    ]
    assert found[1].ids[0] == ("train-2", "test-0")
    with pytest.raises(OverlapError, match=r"4 samples of train are also in test.*…\).*take them out of clean or test"):
        check_disjoint({"train": train, "clean": clean, "test": test})


def test_shared_samples_leave_the_training_set() -> None:
    train, test = samples(texts("a", "b", "c", "b")), samples(texts("b"))
    rest = without_shared(train, [test, samples(texts("z"))])
    assert rest.ids.tolist() == ["0", "2"]
    check_disjoint({"train": rest, "test": test})
    assert without_shared(train, [samples(texts("z"))]) is train
    with pytest.raises(OverlapError, match="all 4 training samples"):
        without_shared(train, [train])


def test_fingerprints_of_images_that_are_taken_from_others_are_their_own() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    images, rows = Images(pixels), np.array([3, 0, 3])
    before = images.take(rows)
    assert images.digests() == [Images(pixels[i : i + 1]).digests()[0] for i in range(5)]
    for taken in (before, images.take(rows), images.take(rows).take(np.array([0, 1, 2]))):
        assert taken.digests() == Images(pixels[rows]).digests()
    assert images.take(np.array([], dtype=np.int64)).digests() == []
