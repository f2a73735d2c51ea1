"""The record of every sample by epoch: what numpy reads, what a resumed run writes again, and damaged files."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from full_disk import file_size_limit
from narl.errors import NarlError, OptionError, RunFolderError, UnknownNameError
from narl.train.record import SampleRecord

FIELDS = ("margin", "q")
IDS = [f"image {i}" for i in range(5)]


def values_of(epoch: int) -> dict[str, NDArray[Any]]:
    return {"margin": np.arange(5.0) - epoch, "q": np.full(5, 0.25 * epoch)}


@pytest.fixture
def record(tmp_path: Path) -> SampleRecord:
    found = SampleRecord.create(tmp_path, FIELDS, IDS, epochs=4)
    for epoch in range(3):
        found.write(epoch, values_of(epoch))
    return found


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=True)


# Round trips


def test_what_was_written_is_read(record: SampleRecord) -> None:
    for found in (record, SampleRecord.open(str(record.folder))):
        assert found.fields == FIELDS
        assert found.ids.tolist() == IDS
        assert found.epochs == 4
        assert found.written == 3
        for field in FIELDS:
            for epoch in range(3):
                assert same(found.read(field, epoch), values_of(epoch)[field])
            assert np.isnan(found.read(field, 3)).all()
            everything = found.read(field)
            assert everything.dtype == np.float32
            assert same(everything, np.stack([found.read(field, epoch) for epoch in range(4)]))


@pytest.mark.parametrize("mode", [None, "r", "c"])
def test_numpy_reads_it_at_any_time(tmp_path: Path, mode: Any) -> None:
    record = SampleRecord.create(tmp_path, FIELDS, IDS, epochs=12)
    for epoch in range(12):
        seen = np.load(tmp_path / "samples.npy", mmap_mode=mode, allow_pickle=False)
        assert seen.dtype == np.float16
        assert seen.shape == (epoch, 2, 5)
        record.write(epoch, values_of(epoch))
    expected = [[values_of(epoch)[field] for field in FIELDS] for epoch in range(12)]
    assert same(np.load(tmp_path / "samples.npy", mmap_mode=mode), np.array(expected, dtype=np.float16))


def test_epochs_left_out_are_nan(tmp_path: Path) -> None:
    record = SampleRecord.create(tmp_path, FIELDS, IDS, epochs=6)
    record.write(3, values_of(3))
    seen = np.load(tmp_path / "samples.npy")
    assert seen.shape == (4, 2, 5)
    assert np.isnan(seen[:3]).all()
    assert same(record.read("margin", 3), values_of(3)["margin"])
    record.write(1, values_of(1))
    assert np.isnan(record.read("margin")).all(axis=1).tolist() == [True, False, True, False, True, True]


def test_a_resumed_run_writes_the_same_file(record: SampleRecord) -> None:
    before = record.path.read_bytes()
    again = SampleRecord.create(record.folder, list(FIELDS), np.array(IDS), epochs=4)
    assert record.path.read_bytes() == before
    for epoch in (1, 2):
        again.write(epoch, values_of(epoch))
    assert record.path.read_bytes() == before
    again.write(1, values_of(7))
    assert same(record.read("q", 1), values_of(7)["q"])
    assert same(record.read("q", 2), values_of(2)["q"])


def test_a_longer_run(record: SampleRecord) -> None:
    SampleRecord.create(record.folder, FIELDS, IDS, epochs=9).write(8, values_of(8))
    assert SampleRecord.open(record.folder).read("margin").shape == (9, 5)


def test_names_are_beside_it(record: SampleRecord) -> None:
    about = json.loads((record.folder / "samples.json").read_text())
    assert about == {"kind": "narl samples", "format": 1, "fields": list(FIELDS), "epochs": 4, "ids": IDS}
    assert sorted(os.listdir(record.folder)) == ["samples.json", "samples.npy"]


def test_what_float16_cannot_hold(tmp_path: Path) -> None:
    record = SampleRecord.create(tmp_path, ["x"], list("abcdef"), epochs=1)
    record.write(0, {"x": [np.inf, -np.inf, 1e30, -70000, np.nan, 1e-30]})
    assert same(record.read("x", 0), np.array([65504, -65504, 65504, -65504, np.nan, 0]))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    values=arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.tuples(st.integers(1, 4), st.just(2), st.integers(1, 7)),
    ),
    order=st.randoms(use_true_random=False),
)
def test_any_values(tmp_path_factory: pytest.TempPathFactory, values: NDArray[Any], order: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    epochs, _, count = values.shape
    record = SampleRecord.create(folder, FIELDS, [str(i) for i in range(count)], epochs)
    for epoch in order.sample(range(epochs), epochs):
        record.write(epoch, dict(zip(FIELDS, values[epoch], strict=True)))
    expected = values.astype(np.float64).clip(-65504, 65504).astype(np.float16)
    assert same(np.load(record.path), expected)
    assert same(SampleRecord.open(folder).read("q"), expected[:, 1])


def test_many_samples_take_no_time(tmp_path: Path) -> None:
    ids = np.arange(200_000).astype(str)
    begin = time.perf_counter()
    record = SampleRecord.create(tmp_path, ["margin", "lam", "d"], ids, epochs=120)
    assert record.path.stat().st_size < 1000
    values = np.linspace(-1, 1, 200_000)
    record.write(0, dict.fromkeys(record.fields, values))
    assert time.perf_counter() - begin < 3
    assert record.path.stat().st_size < 1_300_000
    assert np.allclose(record.read("d", 0), values, atol=1e-3)


# Arguments


@pytest.mark.parametrize(
    ("fields", "ids", "epochs"), [([], IDS, 1), (FIELDS, [], 1), (FIELDS, IDS, 0), (["q", "q"], IDS, 1)], ids=range(4)
)
def test_records_of_nothing(tmp_path: Path, fields: Any, ids: Any, epochs: int) -> None:
    with pytest.raises(OptionError, match="no record of"):
        SampleRecord.create(tmp_path, fields, ids, epochs)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("epoch", [-1, 4])
def test_epochs_outside_the_run(record: SampleRecord, epoch: int) -> None:
    before = record.path.read_bytes()
    with pytest.raises(OptionError, match=rf"no epoch {epoch} .*0 … 3"):
        record.write(epoch, values_of(0))
    with pytest.raises(OptionError, match=rf"no epoch {epoch} .*0 … 3"):
        record.read("q", epoch)
    assert record.path.read_bytes() == before


@pytest.mark.parametrize(
    "values",
    [{"margin": np.ones(5)}, {**values_of(0), "p": np.ones(5)}, {**values_of(0), "q": 1.0}, {**values_of(0), "q": [1]}],
    ids=range(4),
)
def test_values_that_do_not_fit(record: SampleRecord, values: Any) -> None:
    before = record.path.read_bytes()
    with pytest.raises(OptionError, match=r"fields|shape"):
        record.write(3, values)
    assert record.path.read_bytes() == before


def test_an_unknown_field(record: SampleRecord) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'margin'"):
        record.read("margins")


# Other files


def test_no_record(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no record of its samples: there is no samples\.json"):
        SampleRecord.open(tmp_path)


def test_a_creation_that_was_stopped_is_done_again(record: SampleRecord) -> None:
    record.path.unlink()
    with pytest.raises(RunFolderError, match=r"there is no samples\.npy"):
        SampleRecord.open(record.folder)
    assert SampleRecord.create(record.folder, FIELDS, IDS, epochs=4).written == 0


@pytest.mark.parametrize(("fields", "ids"), [(("margin", "p"), IDS), (FIELDS, IDS[:4]), (FIELDS, IDS[::-1])])
def test_a_record_of_others(record: SampleRecord, fields: Any, ids: Any) -> None:
    before = record.path.read_bytes()
    with pytest.raises(RunFolderError, match="records other samples or other values: remove it"):
        SampleRecord.create(record.folder, fields, ids, epochs=4)
    assert record.path.read_bytes() == before


def test_cut_off_anywhere(record: SampleRecord) -> None:
    content = record.path.read_bytes()
    for length in range(len(content)):
        record.path.write_bytes(content[:length])
        if length < 192:
            with pytest.raises(RunFolderError, match=r"samples\.npy is damaged"):
                SampleRecord.open(record.folder)
            continue
        whole = (length - 192) // 20
        found = SampleRecord.open(record.folder)
        assert found.written == whole
        for epoch in range(3):
            expected = values_of(epoch)["margin"] if epoch < whole else np.full(5, np.nan)
            assert same(found.read("margin", epoch), expected)
    SampleRecord.open(record.folder).write(3, values_of(3))  # the file is whole again
    assert np.isnan(np.load(record.path)).all(axis=(1, 2)).tolist() == [False, False, True, False]


def test_every_byte_of_the_header_counts(record: SampleRecord) -> None:
    content = record.path.read_bytes()
    for place, mask in zip(range(192), itertools.cycle((1, 32, 128)), strict=False):
        changed = bytearray(content)
        changed[place] ^= mask
        record.path.write_bytes(changed)
        try:
            assert SampleRecord.open(record.folder).written <= 3  # another number of epochs, at most what is there
        except RunFolderError as error:
            assert "is damaged" in str(error)  # noqa: PT017 (either is right)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"format": 2},
        {"fields": []},
        {"fields": "q"},
        {"fields": ["q", "q"]},
        {"fields": [1, 2]},
        {"fields": ["margin"]},
        {"ids": None},
        {"ids": IDS[:3]},
        {"ids": [1, 2, 3, 4, 5]},
        {"epochs": 0},
        {"epochs": True},
        {"epochs": "4"},
    ],
    ids=str,
)
def test_names_that_make_no_sense(record: SampleRecord, change: dict[str, Any]) -> None:
    names = record.folder / "samples.json"
    names.write_text(json.dumps({**json.loads(names.read_text()), **change}))
    with pytest.raises(RunFolderError, match=r"samples\.(json|npy)"):
        SampleRecord.open(record.folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_names_that_are_none(record: SampleRecord, content: bytes) -> None:
    (record.folder / "samples.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"samples\.json"):
        SampleRecord.open(record.folder)


# Full disks


def test_a_full_disk_loses_nothing(record: SampleRecord) -> None:
    size = record.path.stat().st_size
    for room in (0, 7, 19):
        with file_size_limit(size + room):
            with pytest.raises(
                RunFolderError, match=r"cannot write .*samples\.npy: File too large; .*nothing of the run"
            ):
                record.write(3, values_of(3))
            record.write(2, values_of(2))  # needs no room
        assert record.written == 3
        assert np.load(record.path, mmap_mode="r").shape == (3, 2, 5)
        assert same(record.read("q"), np.stack([*(values_of(epoch)["q"] for epoch in range(3)), np.full(5, np.nan)]))
    record.write(3, values_of(3))
    assert record.written == 4


def test_a_full_disk_at_the_beginning(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(RunFolderError, match="File too large"):
        SampleRecord.create(tmp_path, FIELDS, IDS, epochs=4)
    assert SampleRecord.create(tmp_path, FIELDS, IDS, epochs=4).written == 0


def test_a_failing_disk(record: SampleRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(RunFolderError, match="No space left on device; free some space"):
            record.write(3, values_of(3))
    assert record.written == 3
    assert issubclass(RunFolderError, NarlError)
