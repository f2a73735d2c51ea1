"""Clean batches and how many samples are evaluated at once."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from narl.bilevel import Processes
from narl.data.pools import HeldPool
from narl.train.batches import CleanBatches, Part, evaluation_batch


def part(samples: int, *shape: int, device: str = "cpu") -> Part:
    """Sample i is full of the number i, and so is its label."""
    numbers = torch.arange(samples, device=device)
    encoded = numbers.view(-1, *[1] * len(shape)).expand(samples, *shape).to(torch.uint8)
    return Part(HeldPool(encoded), numbers)


def shifted(x: Tensor, generator: Generator, rows: slice | None = None, total: int = 0) -> Tensor:
    """An augmentation that draws."""
    return x + torch.randint(100, 101, (1,), generator=generator).to(x.dtype)


def unwanted(x: Tensor, generator: Generator, rows: slice | None = None, total: int = 0) -> Tensor:
    raise AssertionError("an example is not augmented")


def finish(x: Tensor) -> Tensor:
    return x.float() / 2


@pytest.mark.parametrize("samples", [3, 8, 20])
@pytest.mark.parametrize("processes", [Processes.alone(), Processes(0, 3), Processes(2, 3)], ids=str)
def test_an_example_is_a_clean_batch_for_which_nothing_is_drawn(samples: int, processes: Processes) -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    x, y = CleanBatches(part(samples, 2, 2), 8, unwanted, finish, generator, processes).example()
    assert torch.equal(generator.get_state(), before)
    drawn_x, drawn_y = CleanBatches(part(samples, 2, 2), 8, shifted, finish, generator, processes)()
    assert (x.shape, x.dtype, y.shape, y.dtype) == (drawn_x.shape, drawn_x.dtype, drawn_y.shape, drawn_y.dtype)
    assert torch.equal(x, (y / 2).view(-1, 1, 1).expand_as(x))  # inputs and labels belong together
    assert not torch.equal(generator.get_state(), before)


def test_examples_of_all_processes_make_one_batch() -> None:
    generator = torch.Generator()
    shares = [CleanBatches(part(20), 8, unwanted, finish, generator, Processes(rank, 3)).example() for rank in range(3)]
    assert torch.cat([y for _, y in shares]).tolist() == list(range(8))


@pytest.mark.parametrize("shape", [(), (3, 32, 32), (3, 224, 224)])
def test_on_the_host_evaluation_has_one_batch_size(shape: tuple[int, ...]) -> None:
    assert evaluation_batch(part(3, *shape)) == 500


@pytest.mark.parametrize(
    ("shape", "expected"), [((3, 32, 32), 2500), ((1, 28, 28), 9795), ((3, 64, 64), 625), ((3, 224, 224), 500)]
)
def test_on_a_device_small_images_are_evaluated_in_larger_batches(shape: tuple[int, ...], expected: int) -> None:
    assert evaluation_batch(part(3, *shape, device="meta")) == expected


@pytest.mark.parametrize("shape", [(), (7,), (40,), (4, 5)])
def test_on_a_device_texts_and_rows_are_evaluated_as_on_the_host(shape: tuple[int, ...]) -> None:
    assert evaluation_batch(part(3, *shape, device="meta")) == 500


def test_a_part_without_samples_has_a_batch_size_as_well() -> None:
    assert evaluation_batch(part(0, 3, 8, 8, device="meta")) == 500
