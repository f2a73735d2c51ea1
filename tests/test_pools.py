"""Pools: the same batches whether samples are held in memory or decoded ahead, and no work left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from narl.data.encoder import Encoder
from narl.data.encoding import fit
from narl.data.pools import FilePool, HeldPool, make_pool
from narl.data.samples import ImageFiles, Images, Inputs, Texts
from narl.errors import DataError, OptionError

COUNT = 90


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    folder = tmp_path_factory.mktemp("images")
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), dtype=np.uint8)):
        PIL.Image.fromarray(pixels).save(folder / f"{i}.png")
    return ImageFiles(folder, np.array([f"{i}.png" for i in range(COUNT)]))


@pytest.fixture(scope="module")
def encoder(files: ImageFiles) -> Encoder:
    return fit(files)


def batches(size: int = 7, epochs: int = 2) -> list[Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [rows for _ in range(epochs) for rows in torch.split(torch.randperm(COUNT, generator=rng), size)]


def decoding() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("narl-decode")]


@final
class Slow(Encoder):
    """Row numbers instead of pixels, slowly if asked; counts them."""

    kind: ClassVar[str] = "image"

    def __init__(self, seconds: float = 0.0, broken: int = -1) -> None:
        self.seconds, self.broken = seconds, broken
        self.encoded = 0
        self.counting = threading.Lock()

    @property
    def shape(self) -> dict[str, Any]:
        return {}

    def encode(self, inputs: Inputs) -> Tensor:
        assert isinstance(inputs, ImageFiles)
        time.sleep(self.seconds * len(inputs))
        with self.counting:
            self.encoded += len(inputs)
        rows = [int(Path(path).stem) for path in inputs.paths]
        if self.broken in rows:
            raise DataError(f"image {self.broken}.png cannot be read: made so")
        return torch.tensor(rows, dtype=torch.int64).view(-1, 1)

    def state(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("workers", [1, 3, 16])
@pytest.mark.parametrize("size", [1, 7, 64, COUNT])
def test_files_and_memory_give_the_same(files: ImageFiles, encoder: Encoder, workers: int, size: int) -> None:
    everything = encoder.encode(files)
    held = make_pool(files, encoder, workers=workers)
    streamed = make_pool(files, encoder, memory_limit=100, workers=workers)
    assert isinstance(held, HeldPool)
    assert isinstance(streamed, FilePool)
    assert len(held) == len(streamed) == COUNT
    assert streamed.nbytes == everything.nbytes
    wanted = [everything[rows] for rows in batches(size)]
    for pool in (held, streamed):
        found = list(pool.stream(batches(size)))
        assert len(found) == len(wanted)
        assert all(torch.equal(got, right) for got, right in zip(found, wanted, strict=True))
        assert torch.equal(pool.get(batches(size)[0]), wanted[0])
        assert found[0].dtype == torch.uint8
        assert pool.device == found[0].device == torch.device("cpu")


def test_everything_else_is_held(encoder: Encoder) -> None:
    texts = Texts(np.array(["a b", "c"], object))
    for inputs in (texts, Images(np.zeros((2, 8, 8, 3), np.uint8))):
        own = fit(inputs)
        for memory_limit in (0, 1 << 20):
            pool = make_pool(inputs, own, memory_limit=memory_limit)
            assert isinstance(pool, HeldPool)
            assert torch.equal(pool.get(torch.tensor([1, 1, 0])), own.encode(inputs)[[1, 1, 0]])
    with pytest.raises(DataError, match="these inputs are texts"):
        make_pool(texts, encoder)


def test_empty_batches_and_streams(files: ImageFiles, encoder: Encoder) -> None:
    pool = FilePool(files, encoder)
    assert list(pool.stream([])) == []
    assert pool.get(torch.arange(0)).shape == (0, 3, 8, 8)


def test_limit_is_met_exactly(files: ImageFiles, encoder: Encoder) -> None:
    size = COUNT * 3 * 8 * 8
    assert isinstance(make_pool(files, encoder, memory_limit=size), HeldPool)
    assert isinstance(make_pool(files, encoder, memory_limit=size - 1), FilePool)


def test_progress_counts_to_the_end(files: ImageFiles, encoder: Encoder) -> None:
    seen: list[int] = []
    make_pool(files, encoder, workers=1, on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == COUNT
    assert len(seen) > 1


def test_held_batches_are_made_one_at_a_time() -> None:
    asked: list[int] = []

    def rows() -> Iterator[Tensor]:
        for i in range(5):
            asked.append(i)
            yield torch.tensor([i])

    stream = HeldPool(torch.arange(5)).stream(rows())
    assert asked == []
    next(stream)
    assert asked == [0]


def test_streaming_works_ahead_but_not_far(files: ImageFiles) -> None:
    slow = Slow()
    pool = FilePool(files, slow, workers=2)
    before = slow.encoded
    stream = pool.stream(torch.arange(COUNT).view(-1, 1))
    for used in range(1, COUNT + 1):
        assert next(stream).item() == used - 1
        if used == 10:  # nobody asks for more, and yet the next three are made
            deadline = time.monotonic() + 10
            while slow.encoded - before < 13 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert slow.encoded - before == 13
        assert slow.encoded - before <= used + 3


@final
class Meeting(Encoder):
    """Encodes only once two threads are at it."""

    kind: ClassVar[str] = "image"

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    @property
    def shape(self) -> dict[str, Any]:
        return {}

    def encode(self, inputs: Inputs) -> Tensor:
        if threading.current_thread() in decoding():
            self.barrier.wait(timeout=10)
        return torch.zeros(len(inputs), 1)

    def state(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("size", [1, 8])
def test_workers_share_batches_and_single_images(files: ImageFiles, size: int) -> None:
    pool = FilePool(files, Meeting(), workers=2)
    assert len(list(pool.stream(torch.arange(64).view(-1, size)))) == 64 // size


def test_leaving_stops_the_workers(files: ImageFiles) -> None:
    slow = Slow(seconds=0.001)
    pool = FilePool(files, slow, workers=4)
    for _ in pool.stream(batches()):
        assert decoding()
        break
    gc.collect()
    assert not decoding()
    stream = pool.stream(batches())
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # an iterator for users, a generator here
    assert not decoding()

    def consume() -> None:
        for _ in pool.stream(batches()):
            raise RuntimeError("the consumer stops")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()
    assert not decoding()
    encoded = slow.encoded
    time.sleep(0.02)
    assert slow.encoded == encoded


def test_finished_streams_leave_no_threads(files: ImageFiles, encoder: Encoder) -> None:
    make_pool(files, encoder)
    list(FilePool(files, encoder).stream(batches()))
    FilePool(files, encoder).get(torch.tensor([1]))
    assert not decoding()


def test_an_unreadable_image_is_named(tmp_path: Path, files: ImageFiles, encoder: Encoder) -> None:
    for row in range(3):
        (tmp_path / f"{row}.png").write_bytes(files.path(row).read_bytes()[: 100 if row == 2 else None])
    broken = ImageFiles(tmp_path, np.array(["0.png", "1.png", "2.png", "gone.png"]))
    pool = FilePool(broken, encoder)
    assert len(pool.get(torch.tensor([0, 1]))) == 2
    for row, name in ((2, r"2\.png"), (3, r"gone\.png")):
        with pytest.raises(DataError, match=name):
            pool.get(torch.tensor([0, row]))
    with pytest.raises(DataError, match=r"2\.png"):
        make_pool(broken, encoder)
    assert not decoding()


def test_batches_before_the_broken_image_come_first(files: ImageFiles) -> None:
    pool = FilePool(files, Slow(broken=5))
    stream = pool.stream(torch.arange(10).view(-1, 1))
    assert [next(stream).item() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match=r"5\.png"):
        next(stream)
    assert not decoding()


def test_workers_are_counted(files: ImageFiles, encoder: Encoder) -> None:
    assert 1 <= FilePool(files, encoder).workers <= 8
    with pytest.raises(OptionError, match="workers"):
        FilePool(files, encoder, workers=0)
