"""The margin of a sample, and its running average by sample id."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata
from torch import Tensor
from torch.testing import assert_close

from narl import margin
from narl.adjuster.margins import RunningMargin, measured
from narl.errors import LabelError, LogitsError, SampleIdsError

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def slow_margin(z: list[float], y: int) -> float:
    return z[y] - max(value for j, value in enumerate(z) if j != y)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[int]]:
    """Logits with many ties, and labels."""
    n, c = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    number = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([-1.0, 0.0, 2.0]))
    logits = draw(st.lists(st.lists(number, min_size=c, max_size=c), min_size=n, max_size=n))
    return logits, draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))


# Margin


@quick
@given(batch=batches())
def test_margin_agrees_with_a_loop(batch: tuple[list[list[float]], list[int]]) -> None:
    logits, labels = batch
    expected = torch.tensor([slow_margin(z, y) for z, y in zip(logits, labels, strict=True)], dtype=torch.float64)
    got = margin(torch.tensor(logits, dtype=torch.float64), torch.tensor(labels))
    assert torch.equal(got, expected)


@quick
@given(batch=batches(), seed=st.integers(0, 2**31))
def test_margin_of_probabilities_is_the_expected_one(batch: tuple[list[list[float]], list[int]], seed: int) -> None:
    logits = torch.tensor(batch[0], dtype=torch.float64)
    targets = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)).double().softmax(dim=1)
    expected = [
        sum(t * slow_margin(z, j) for j, t in enumerate(row)) for z, row in zip(batch[0], targets.tolist(), strict=True)
    ]
    assert_close(margin(logits, targets), torch.tensor(expected, dtype=torch.float64))


@quick
@given(batch=batches())
def test_margin_of_one_hot_targets_equals_that_of_labels(batch: tuple[list[list[float]], list[int]]) -> None:
    logits, labels = torch.tensor(batch[0]), torch.tensor(batch[1])
    one_hot = torch.nn.functional.one_hot(labels, logits.shape[1]).float()
    assert_close(margin(logits, one_hot), margin(logits, labels))


@quick
@given(batch=batches())
def test_at_most_one_label_has_a_positive_margin(batch: tuple[list[list[float]], list[int]]) -> None:
    """Proposition 1: exactly one where the largest logit is unique, none where it is tied."""
    logits = torch.tensor(batch[0], dtype=torch.float64)
    n, c = logits.shape
    every_label = torch.stack([margin(logits, torch.full((n,), j)) for j in range(c)], dim=1)
    unique = (logits == logits.max(dim=1, keepdim=True).values).sum(dim=1) == 1
    assert torch.equal((every_label > 0).sum(dim=1), unique.long())
    assert torch.equal(every_label.argmax(dim=1)[unique], logits.argmax(dim=1)[unique])


def test_tied_logits() -> None:
    logits = torch.tensor([[2.0, 2.0, 0.0]] * 3 + [[1.0, 1.0, 1.0]])
    assert margin(logits, torch.tensor([0, 1, 2, 1])).tolist() == [0, 0, -2, 0]


def test_margin_is_cut_off_from_the_classifier() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.full((3, 4), 0.25, requires_grad=True)
    assert not margin(logits, torch.tensor([0, 1, 2])).requires_grad
    assert not margin(logits, targets).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_margin_of_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits = 30 * torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.arange(20) % 5
    targets = logits.float().softmax(dim=1).to(dtype)
    for kind in (labels, targets):
        result = margin(logits, kind)
        assert result.dtype == torch.float32
        assert torch.equal(result, margin(logits.float(), kind))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_margin_takes_labels_of_every_integer_type(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0]])
    assert margin(logits, torch.tensor([1, 0], dtype=dtype)).tolist() == [2, -3]


def test_margin_of_an_empty_batch() -> None:
    assert margin(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert margin(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0,)


@pytest.mark.parametrize(
    ("logits", "targets", "error", "words"),
    [
        (torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), LogitsError, "one class only"),
        (torch.full((2, 3), math.nan), torch.tensor([0, 1]), LogitsError, "NaN or infinity in 2 of 2 rows"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), LabelError, "0 to 3 but the logits have 3 classes"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), LabelError, "from -1"),
        (torch.zeros(2, 3), torch.zeros(2, 3), LabelError, "sum to 1"),
    ],
)
def test_bad_input_to_margin(logits: Tensor, targets: Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        margin(logits, targets)


# Running margin


def test_running_margin_agrees_with_a_dictionary_over_epochs() -> None:
    running, remembered = RunningMargin(), dict[int, float]()
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for ids in torch.randperm(23, generator=generator).chunk(5):
            margins = 4 * torch.randn(len(ids), generator=generator)
            expected = [
                0.9 * remembered[i] + 0.1 * m if i in remembered else m
                for i, m in zip(ids.tolist(), margins.tolist(), strict=True)
            ]
            assert_close(running.blend(margins, ids), torch.tensor(expected), rtol=1e-5, atol=1e-6)
            running.store(margins, ids)
            remembered.update(zip(ids.tolist(), expected, strict=True))
            assert_close(running.table[ids], torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_decay_is_the_weight_of_the_past(decay: float) -> None:
    running, ids = RunningMargin(decay=decay), torch.tensor([3])
    running.store(torch.tensor([-4.0]), ids)
    assert_close(running.blend(torch.tensor([2.0]), ids), torch.tensor([-4 * decay + 2 * (1 - decay)]))


@quick
@given(decay=st.floats(0.0, 0.99), visits=st.integers(1, 80), slope=st.floats(-5, 5))
def test_what_is_guessed_is_the_average_of_margins_that_grow_evenly(decay: float, visits: int, slope: float) -> None:
    average = slope
    for visit in range(2, visits + 1):
        average = decay * average + (1 - decay) * visit * slope
    running = RunningMargin(decay)
    running.count_from(7 * (visits - 1))
    guessed = running.guess(torch.tensor([visits * slope], dtype=torch.float64), 7)
    assert float(guessed) == pytest.approx(average, abs=1e-9)


def test_blend_stores_nothing() -> None:
    running, ids = RunningMargin(), torch.tensor([0, 1])
    running.store(torch.tensor([1.0, 2.0]), ids)
    before = running.table.clone()
    running.blend(torch.tensor([9.0, 9.0]), ids)
    running.blend(torch.tensor([9.0]), torch.tensor([50]))
    assert torch.equal(running.table, before)


def test_the_table_grows_and_keeps_what_it_knows() -> None:
    running = RunningMargin()
    running.store(torch.tensor([1.0, 2.0]), torch.tensor([0, 3]))
    running.store(torch.tensor([5.0]), torch.tensor([1000]))
    running.store(torch.tensor([6.0]), torch.tensor([1001]))
    known = torch.tensor([0, 3, 1000, 1001])
    assert running.table[known].tolist() == [1, 2, 5, 6]
    unknown = torch.tensor([1, 2, 4, 999, 10_000])
    latest = torch.arange(5.0)
    assert torch.equal(running.blend(latest, unknown), latest)
    assert len(running.table) < 3000


def test_forgetting_starts_anew() -> None:
    running, ids = RunningMargin(), torch.tensor([0, 1])
    running.store(torch.tensor([5.0, 5.0]), ids)
    running.forget()
    assert running.blend(torch.tensor([1.0, 2.0]), ids).tolist() == [1, 2]


def test_an_empty_batch_changes_nothing() -> None:
    running = RunningMargin()
    running.store(torch.tensor([5.0]), torch.tensor([0]))
    running.store(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert running.table.tolist() == [5]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([0.0, 1.0]), "type torch.float32 don't name 2 samples.*one integer a sample"),
        (torch.tensor([True, False]), "type torch.bool"),
        (torch.tensor([0, 1, 2]), r"shape \(3,\).*don't name 2 samples"),
        (torch.tensor([[0, 1]]), r"shape \(1, 2\)"),
        (torch.tensor(0), r"shape \(\)"),
        (torch.tensor([-1, 1]), "negative numbers.*position in the data set"),
    ],
)
def test_ids_that_name_no_samples(ids: Tensor, words: str) -> None:
    running = RunningMargin()
    running.store(torch.tensor([1.0, 2.0, 3.0]), torch.arange(3))
    for use in (running.blend, running.store):
        with pytest.raises(SampleIdsError, match=words) as caught:
            use(torch.tensor([7.0, 7.0]), ids)
        assert isinstance(caught.value, ValueError)
    assert running.table.tolist() == [1, 2, 3]


@pytest.mark.parametrize("huge", [100_000_000, 2**62])
def test_hashes_as_ids_are_refused_before_memory_is_taken(huge: int) -> None:
    running = RunningMargin()
    with pytest.raises(SampleIdsError, match=f"sample id {huge} is too large.*positions 0 … N - 1, not hashes"):
        running.store(torch.tensor([1.0, 1.0]), torch.tensor([0, huge]))
    assert len(running.table) == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_ids_of_every_integer_type(dtype: torch.dtype) -> None:
    running, ids = RunningMargin(decay=0.5), torch.tensor([3, 1], dtype=dtype)
    running.store(torch.tensor([-4.0, 8.0]), ids)
    assert running.blend(torch.tensor([2.0, 0.0]), ids).tolist() == [-1, 4]


def small(values: Tensor) -> Tensor:
    return values.to(torch.bfloat16)


@pytest.mark.parametrize("convert", [Tensor.double, small])
def test_margins_keep_their_type(convert: Callable[[Tensor], Tensor]) -> None:
    running, ids = RunningMargin(), torch.tensor([0])
    margins = convert(torch.tensor([4.0]))
    running.store(margins, ids)
    assert running.blend(margins, ids).dtype == margins.dtype
    assert running.table.dtype == torch.float32


def test_state_of_the_running_margin_is_a_copy() -> None:
    """Loading must not tie two modules to one memory."""
    first, second, ids = RunningMargin(), RunningMargin(), torch.tensor([0])
    first.store(torch.tensor([1.0]), ids)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.table, first.table)
    second.store(torch.tensor([11.0]), ids)
    assert_close(second.table, torch.tensor([2.0]))
    assert first.table.tolist() == [1.0]


# Room in advance


def test_reserved_room_changes_no_average() -> None:
    plain, reserved = RunningMargin(), RunningMargin()
    reserved.reserve(23)
    assert len(reserved.table) == 23
    assert reserved.table.isnan().all()
    table = reserved.table
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for ids in torch.randperm(23, generator=generator).chunk(5):
            margins = 4 * torch.randn(len(ids), generator=generator)
            assert torch.equal(reserved.blend(margins, ids), plain.blend(margins, ids))
            plain.store(margins, ids)
            reserved.store(margins, ids)
    assert reserved.table is table  # written in place
    assert torch.equal(table, plain.table[:23])


@quick
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4), known=st.integers(1, 6))
def test_reserving_keeps_what_is_known(counts: list[int], known: int) -> None:
    running = RunningMargin()
    running.store(torch.arange(1.0, known + 1), torch.arange(known))
    for count in counts:
        running.reserve(count)
    assert len(running.table) == max(known, *counts)
    assert running.table[:known].tolist() == list(range(1, known + 1))
    assert running.table[known:].isnan().all()


def test_on_the_host_ids_beyond_the_reserved_room_still_make_room() -> None:
    running = RunningMargin()
    running.reserve(2)
    running.store(torch.tensor([1.0, 2.0]), torch.tensor([1, 7]))
    assert running.table[torch.tensor([1, 7])].tolist() == [1, 2]
    with pytest.raises(SampleIdsError, match="too large"):
        running.store(torch.tensor([1.0]), torch.tensor([2**40]))


def test_reserved_room_can_be_written_without_reading_ids() -> None:
    """As on a GPU: there the table must not grow, which the host would have to wait for."""
    running = RunningMargin(decay=0.5)
    running.reserve(4)
    running.to("meta")
    running.store(torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta"))
    assert running.table.shape == (4,)


def test_a_loaded_table_gets_the_reserved_room_again() -> None:
    saved, running = RunningMargin(), RunningMargin()
    saved.store(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    running.reserve(5)
    running.load_state_dict(saved.state_dict())
    assert running.table[:2].tolist() == [1, 2]
    assert running.table[2:].isnan().tolist() == [True] * 3
    assert len(saved.table) == 2


def test_forgetting_gives_the_reserved_room_back() -> None:
    running = RunningMargin()
    running.reserve(5)
    running.forget()
    assert len(running.table) == 0
    running.store(torch.tensor([3.0]), torch.tensor([1]))
    assert running.table[1] == 3


# What an adjuster sees of margins

some_margins = st.lists(st.integers(-40, 40).map(lambda number: number / 4), min_size=1, max_size=30)


def test_the_margin_itself() -> None:
    margins = torch.randn(5)
    assert measured("margin", margins, torch.randn(5, 3)) is margins


@given(st.integers(1, 8), st.integers(2, 6), st.floats(0.01, 100), st.integers(0, 10**6))
def test_scaled_margins_do_not_depend_on_the_scale(rows: int, classes: int, scale: float, seed: int) -> None:
    logits = torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    margins = margin(logits, torch.zeros(rows, dtype=torch.int64))
    spread = np.sqrt(np.mean([np.var(row) for row in logits.numpy()]))
    found = measured("scaled", margins, logits)
    assert_close(found, margins / spread)
    assert_close(measured("scaled", scale * margins, scale * logits), found)
    assert_close(measured("scaled", margins, logits + 3), found)


def test_logits_that_are_all_the_same_have_no_scale() -> None:
    assert measured("scaled", torch.zeros(2), torch.ones(2, 3)).tolist() == [0.0, 0.0]


@given(some_margins)
def test_ranks_as_normal_scores(values: list[float]) -> None:
    margins = torch.tensor(values, dtype=torch.float64)
    found = measured("rank", margins, torch.zeros(len(values), 2))
    assert_close(found, torch.from_numpy(norm.ppf((rankdata(values) - 0.5) / len(values))))
    assert_close(measured("rank", margins**3 - 7, torch.zeros(len(values), 2)), found)
    assert found.isfinite().all()
