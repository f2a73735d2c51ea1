"""Task families: exact K-means on class sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from narl import Families
from narl.errors import ClassCountsError, OptionError

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)
counts_of_classes = st.lists(
    st.one_of(st.integers(0, 12), st.integers(0, 1000), st.integers(0, 10**6)), min_size=2, max_size=8
)


def scatter(groups: Iterable[Sequence[int]]) -> Fraction:
    """Sum of squared distances from each group's mean, without rounding."""
    return sum(
        (Fraction(value) - Fraction(sum(group), len(group))) ** 2 for group in groups for value in group
    ) + Fraction(0)


def groups_of(counts: Sequence[int], families: Families) -> list[list[int]]:
    family = families.of_class.tolist()
    return [[n for n, k in zip(counts, family, strict=True) if k == which] for which in sorted(set(family))]


def best_scatter(counts: Sequence[int], k: int) -> Fraction:
    """The least over all ways to cut the sorted counts into at most k intervals."""
    ordered = sorted(counts)
    ways = (
        [ordered[a:b] for a, b in itertools.pairwise((0, *cuts, len(ordered)))]
        for pieces in range(1, min(k, len(ordered)) + 1)
        for cuts in itertools.combinations(range(1, len(ordered)), pieces - 1)
    )
    return min(scatter(way) for way in ways)


@quick
@given(counts=counts_of_classes, k=st.integers(1, 5))
def test_as_good_as_the_best_of_all_partitions(counts: list[int], k: int) -> None:
    families = Families.from_counts(counts, k)
    best = best_scatter(counts, k)
    slack = Fraction(1, 10**9) * (best + Fraction(max(counts)) ** 2 / 10**4)
    assert scatter(groups_of(counts, families)) <= best + slack


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("c", "k"), [(30, 3), (100, 4), (200, 7)])
def test_as_good_as_scikit_learn(c: int, k: int, seed: int) -> None:
    from sklearn.cluster import KMeans

    counts = np.random.default_rng(seed).lognormal(5, 1.5, size=c).astype(np.int64)
    families = Families.from_counts(counts, k)
    ours = float(scatter(groups_of(counts.tolist(), families)))
    theirs = KMeans(k, n_init=20, random_state=seed).fit(counts.reshape(-1, 1).astype(float)).inertia_
    assert ours <= theirs * (1 + 1e-9)


@quick
@given(counts=counts_of_classes, k=st.integers(1, 5))
def test_families_are_intervals_in_ascending_order(counts: list[int], k: int) -> None:
    families = Families.from_counts(counts, k)
    used = sorted(set(families.of_class.tolist()))
    assert used == list(range(len(used)))
    assert len(families.centres) == len(used) == min(k, len(set(counts)))
    assert bool((families.centres.diff() > 0).all())
    groups = groups_of(counts, families)
    assert_close(families.centres, torch.tensor([sum(group) / len(group) for group in groups], dtype=torch.float64))
    assert all(max(low) < min(high) for low, high in itertools.pairwise(groups)), "equal counts share a family"


@quick
@given(counts=counts_of_classes, k=st.integers(1, 5), data=st.data())
def test_a_permutation_of_the_classes_permutes_their_families(counts: list[int], k: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    plain, moved = Families.from_counts(counts, k), Families.from_counts([counts[i] for i in order], k)
    assert moved.of_class.tolist() == plain.of_class[torch.tensor(order)].tolist()
    assert torch.equal(moved.centres, plain.centres)


@pytest.mark.parametrize(
    ("counts", "k", "families", "centres"),
    [
        ([7, 7, 7, 7], 3, [0, 0, 0, 0], [7]),
        ([90, 10, 90], 3, [1, 0, 1], [10, 90]),
        ([0, 0, 0], 3, [0, 0, 0], [0]),
        ([0, 5, 0], 2, [0, 1, 0], [0, 5]),
        ([3, 1, 2], 3, [2, 0, 1], [1, 2, 3]),
        ([4, 1, 100], 1, [0, 0, 0], [35]),
        ([500, 20, 510, 90], 3, [2, 0, 2, 1], [20, 90, 505]),
        ([1, 1, 1, 1, 1, 1, 1, 1, 10, 12], 2, [0] * 8 + [1, 1], [1, 11]),
        ([0.5, 2.5, 2.5], 3, [0, 1, 1], [0.5, 2.5]),
    ],
)
def test_cases_by_hand(counts: list[float], k: int, families: list[int], centres: list[float]) -> None:
    result = Families.from_counts(counts, k)
    assert result.of_class.tolist() == families
    assert result.centres.tolist() == centres
    assert result.of_class.dtype == torch.int64


def test_repeated_sizes_weigh_as_often_as_they_occur() -> None:
    assert Families.from_counts([0, 9, 20], 2).of_class.tolist() == [0, 0, 1]
    assert Families.from_counts([0] * 50 + [9, 20], 2).of_class.tolist() == [0] * 50 + [1, 1]


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        np.array,
        lambda counts: np.array(counts, dtype=np.uint16),
        lambda counts: np.array(counts, dtype=np.float32),
        lambda counts: np.array(np.repeat(counts, 2))[::2],
        torch.tensor,
        lambda counts: torch.tensor(counts, dtype=torch.int32),
        lambda counts: torch.tensor(counts, dtype=torch.float64, requires_grad=True),
    ],
)
def test_every_kind_of_counts(form: Any) -> None:
    counts = [5000, 4990, 12, 700, 690]
    expected, got = Families.from_counts(counts), Families.from_counts(form(counts))
    assert torch.equal(got.of_class, expected.of_class)
    assert torch.equal(got.centres, expected.centres)


def test_a_thousand_classes() -> None:
    counts = np.random.default_rng(0).integers(1, 5000, size=1000)
    families = Families.from_counts(counts)
    assert families.of_class.bincount().min() > 200


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([], r"two classes or more, got shape \(0,\)"),
        ([5], r"two classes or more, got shape \(1,\).*numpy.bincount"),
        ([[1, 2], [3, 4]], r"got shape \(2, 2\)"),
        (["1", "2"], "one number a class"),
        ([True, False], "of bool"),
        ([1, None], "of object"),
        (7, r"got shape \(\)"),
        ([1j, 2], "of complex128"),
        ([3, -1], "class 1 has -1 samples: counts must be finite and 0 or more"),
        ([3, 1, math.nan], "class 2 has nan samples"),
        (torch.tensor([math.inf, 1.0]), "class 0 has inf samples"),
    ],
)
def test_counts_that_are_none(counts: Any, words: str) -> None:
    with pytest.raises(ClassCountsError, match=words) as caught:
        Families.from_counts(counts)
    assert isinstance(caught.value, ValueError)


def test_a_series_is_taken_by_its_index_or_not_at_all() -> None:
    pandas = pytest.importorskip("pandas")
    by_frequency = pandas.Series([0] * 5 + [1] * 50 + [2] * 20).value_counts()
    with pytest.raises(ClassCountsError, match=r"index that is not 0, 1, 2, … in this order, as value_counts\(\)"):
        Families.from_counts(by_frequency)
    sorted_ones = Families.from_counts(by_frequency.sort_index())
    assert torch.equal(sorted_ones.of_class, Families.from_counts([5, 50, 20]).of_class)


@pytest.mark.parametrize("k", [0, -3])
def test_too_few_families(k: int) -> None:
    with pytest.raises(OptionError, match=f"k = {k} families are too few: use 1 or more"):
        Families.from_counts([1, 2], k)


@quick
@given(
    counts=counts_of_classes,
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4, unique=True).map(
        lambda own: [n / 100 for n in sorted(own)]
    ),
)
def test_the_nearest_family_by_a_loop(counts: list[int], sizes: list[float]) -> None:
    families = Families.nearest(counts, sizes)
    mean = sum(counts) / len(counts) or 1.0
    for count, found in zip(counts, families.of_class.tolist(), strict=True):
        apart = [abs(math.log(max(count / mean, 1e-9)) - math.log(size)) for size in sizes]
        assert apart[found] <= min(apart) + 1e-9
    assert_close(families.centres, mean * torch.tensor(sizes, dtype=torch.float64))


def test_classes_that_differ_by_accident_are_one_family() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount(rng.integers(200, size=100_000))
    assert set(Families.from_counts(counts).of_class.tolist()) == {0, 1, 2}
    assert set(Families.nearest(counts, [0.6, 1.0, 1.4]).of_class.tolist()) == {1}
