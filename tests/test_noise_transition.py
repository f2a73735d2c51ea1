"""Noise by class: what was asked for against what came out, within five standard deviations of a binomial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narl import noise
from narl.noise.class_maps import CLASS_MAPS, SUPERCLASSES

RATES = [0.05, 0.2, 0.4, 0.6, 0.95]
LABELS = np.random.default_rng(7).permutation(np.arange(40_000) % 10)
FINE_LABELS = np.random.default_rng(8).permutation(np.arange(60_000) % 100)
GROUPS = ["a", "a", "a", "b", "b", "c", "d", "d", "d", "d"]

# name: the generator with everything but the rate, its labels, the matrix it is to follow, the share that changes
Generator = Callable[[float, int], NDArray[np.int64]]
Matrix = Callable[[float], NDArray[np.float64]]
CASES: dict[str, tuple[Generator, NDArray[np.int64], Matrix, float]] = {
    "symmetric": (
        lambda rate, seed: noise.symmetric(LABELS, rate, seed=seed),
        LABELS,
        lambda rate: noise.symmetric_matrix(10, rate),
        1.0,
    ),
    "symmetric over all classes": (
        lambda rate, seed: noise.symmetric(LABELS, rate, seed=seed, over_all_classes=True),
        LABELS,
        lambda rate: noise.symmetric_matrix(10, rate, over_all_classes=True),
        0.9,
    ),
    "asymmetric": (
        lambda rate, seed: noise.asymmetric(LABELS, rate, seed=seed),
        LABELS,
        lambda rate: noise.asymmetric_matrix(10, rate, "cifar10"),
        0.4,
    ),
    "pair": (
        lambda rate, seed: noise.pair(LABELS, rate, seed=seed),
        LABELS,
        lambda rate: noise.pair_matrix(10, rate),
        1.0,
    ),
    "hierarchical": (
        lambda rate, seed: noise.hierarchical(LABELS, rate, GROUPS, seed=seed),
        LABELS,
        lambda rate: noise.hierarchical_matrix(10, rate, GROUPS),
        0.9,
    ),
    "hierarchical cifar100": (
        lambda rate, seed: noise.hierarchical(FINE_LABELS, rate, seed=seed),
        FINE_LABELS,
        lambda rate: noise.hierarchical_matrix(100, rate, "cifar100"),
        1.0,
    ),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("case", CASES)
def test_share_of_changed_labels(case: str, rate: float) -> None:
    generate, labels, _, share = CASES[case]
    expected = rate * share
    changed = np.mean(generate(rate, 0) != labels)
    # Classes that never flip only lower the variance, so the plain binomial bound holds for all cases.
    assert abs(changed - expected) < 5 * np.sqrt(expected * (1 - expected) / len(labels))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("case", CASES)
def test_realised_matrix_follows_the_asked_one(case: str, rate: float) -> None:
    generate, labels, matrix, _ = CASES[case]
    asked = matrix(rate)
    found = noise.realised(labels, generate(rate, 1), len(asked))
    samples = found.counts.sum(axis=1, keepdims=True)
    bound = 5 * np.sqrt(asked * (1 - asked) / samples) + 1 / samples  # and one sample: rare cells are not normal
    assert (np.abs(found.matrix - asked) <= bound).all()
    assert not found.counts[asked == 0].any(), "a label moved where its probability is 0"


@pytest.mark.parametrize("rate", [0.0, *RATES, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_matrices_are_row_stochastic(case: str, rate: float) -> None:
    matrix = CASES[case][2](rate)
    assert matrix.dtype == np.float64
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_seed_decides(case: str) -> None:
    generate = CASES[case][0]
    np.testing.assert_array_equal(generate(0.4, 3), generate(0.4, 3))
    assert (generate(0.4, 3) != generate(0.4, 4)).any()


@pytest.mark.parametrize("case", CASES)
def test_rate_zero_is_identity(case: str) -> None:
    generate, labels, _, _ = CASES[case]
    np.testing.assert_array_equal(generate(0.0, 0), labels)


def test_samples_of_one_class_move_independently() -> None:
    """Bernoulli, not an exact count: over many seeds the number of flips has a binomial's variance."""
    labels = np.zeros(100, dtype=np.int64)
    flips = np.array([(noise.symmetric(labels, 0.3, 5, seed=seed) != 0).sum() for seed in range(2_000)])
    assert abs(flips.mean() - 30) < 5 * np.sqrt(21 / 2_000)
    assert flips.var() == pytest.approx(21, rel=5 * np.sqrt(2 / 2_000))


def test_cifar10_map_by_name() -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    moved = {names[y]: names[t] for y, t in enumerate(CLASS_MAPS["cifar10"]) if y != t}
    assert moved == {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog"}


def test_untouched_classes_keep_their_labels() -> None:
    noisy = noise.asymmetric(LABELS, 1.0)
    expected = np.array(CLASS_MAPS["cifar10"])[LABELS]
    np.testing.assert_array_equal(noisy, expected)
    untouched = ~np.isin(LABELS, [2, 3, 4, 9])
    np.testing.assert_array_equal(noisy[untouched], LABELS[untouched])
    alone = np.array(GROUPS)[LABELS] == "c"
    np.testing.assert_array_equal(noise.hierarchical(LABELS, 1.0, GROUPS)[alone], LABELS[alone])


def test_class_map_forms_agree() -> None:
    forms: list[Any] = [{0: 3, 2: 1}, [3, 1, 1, 3], (3, 1, 1, 3), np.array([3, 1, 1, 3]), {0: 3, 2: 1, 1: 1}]
    labels = LABELS % 4
    results = [noise.asymmetric(labels, 0.5, form, seed=2) for form in forms]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_superclass_forms_agree() -> None:
    import torch

    forms: list[Any] = [[0, 0, 1, 1], ["x", "x", "y", "y"], np.array([5, 5, 2, 2]), torch.tensor([1, 1, 0, 0])]
    for form in forms:
        np.testing.assert_array_equal(
            noise.hierarchical_matrix(4, 0.25, form),
            [[0.75, 0.25, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 0.75, 0.25], [0, 0, 0.25, 0.75]],
        )


def test_cifar100_superclasses() -> None:
    superclass = np.array(SUPERCLASSES["cifar100"])
    assert len(superclass) == 100
    np.testing.assert_array_equal(np.bincount(superclass), np.full(20, 5))
    known = {
        "aquatic mammals: beaver, dolphin, otter, seal, whale": [4, 30, 55, 72, 95],
        "fish: aquarium fish, flatfish, ray, shark, trout": [1, 32, 67, 73, 91],
        "flowers: orchid, poppy, rose, sunflower, tulip": [54, 62, 70, 82, 92],
        "fruit and vegetables: apple, mushroom, orange, pear, sweet pepper": [0, 51, 53, 57, 83],
        "people: baby, boy, girl, man, woman": [2, 11, 35, 46, 98],
        "trees: maple, oak, palm, pine, willow": [47, 52, 56, 59, 96],
        "vehicles 1: bicycle, bus, motorcycle, pickup truck, train": [8, 13, 48, 58, 90],
        "vehicles 2: lawn mower, rocket, streetcar, tank, tractor": [41, 69, 81, 85, 89],
    }
    for name, members in known.items():
        np.testing.assert_array_equal(np.flatnonzero(superclass == superclass[members[0]]), members, err_msg=name)
    # The coarse classes are in alphabetical order too.
    assert [superclass[members[0]] for members in known.values()] == [0, 1, 2, 4, 14, 17, 18, 19]


def test_identity_leaves_labels_alone() -> None:
    np.testing.assert_array_equal(noise.transition(LABELS, np.eye(10)), LABELS)


def test_permutation_is_deterministic() -> None:
    order = np.random.default_rng(0).permutation(10)
    np.testing.assert_array_equal(noise.transition(LABELS, np.eye(10)[order], seed=5), order[LABELS])


def test_any_matrix_is_followed() -> None:
    matrix = np.random.default_rng(0).dirichlet(np.full(10, 0.3), size=10)
    found = noise.realised(LABELS, noise.transition(LABELS, matrix), 10)
    assert (np.abs(found.matrix - matrix) <= 5 * np.sqrt(matrix * (1 - matrix) / 4_000) + 1 / 4_000).all()


def test_float32_rows_of_many_classes_are_accepted() -> None:
    import torch

    matrix = torch.softmax(torch.randn(1_000, 1_000, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = np.arange(1_000)
    assert (noise.transition(labels, matrix) != labels).mean() > 0.9


class ExtremeDraws(np.random.Generator):
    """Draws the smallest and the largest number that ``random`` can give."""

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.resize([0.0, 1 - 2.0**-53], size)


def test_classes_of_probability_zero_are_never_drawn() -> None:
    """Not at a draw of 0 before the first possible class, nor beyond the last when a row sums to just below 1."""
    row = [0.0, 0.1, 0.2, 0.3, 0.4 - 1e-7, 0.0]
    labels = np.zeros(4, dtype=np.int64)
    noisy = noise.transition(labels, [row, *np.eye(6)[1:]], seed=ExtremeDraws(np.random.PCG64(0)))
    np.testing.assert_array_equal(noisy, [1, 4, 1, 4])


def test_realised_counts() -> None:
    found = noise.realised([0, 0, 0, 0, 2], [0, 1, 1, 2, 2], 4)
    np.testing.assert_array_equal(found.counts, [[1, 2, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(found.matrix, [[0.25, 0.5, 0.25, 0], [0] * 4, [0, 0, 1, 0], [0] * 4])
    assert found.rate == 0.6
    assert noise.realised([0, 1], [0, 3]).matrix.shape == (4, 4), "the noisy labels count as classes too"


class_labels = st.lists(st.integers(0, 6), min_size=1, max_size=60)
rates = st.floats(0, 1)
seeds = st.integers(0, 2**32)


@given(class_labels, rates, seeds, st.sampled_from(["symmetric", "all", "pair", "map", "groups"]))
@settings(max_examples=150, deadline=None)
def test_labels_stay_in_range(labels: list[int], rate: float, seed: int, kind: str) -> None:
    made = {
        "symmetric": lambda: noise.symmetric(labels, rate, 7, seed=seed),
        "all": lambda: noise.symmetric(labels, rate, 7, seed=seed, over_all_classes=True),
        "pair": lambda: noise.pair(labels, rate, 7, seed=seed),
        "map": lambda: noise.asymmetric(labels, rate, {0: 6, 6: 0, 3: 2}, 7, seed=seed),
        "groups": lambda: noise.hierarchical(labels, rate, [0, 0, 1, 1, 1, 2, 0], seed=seed),
    }[kind]()
    assert len(made) == len(labels)
    assert set(made) <= set(range(7))


@given(class_labels, seeds)
@settings(max_examples=50, deadline=None)
def test_symmetric_at_rate_one_keeps_no_label(labels: list[int], seed: int) -> None:
    assert all(a != b for a, b in zip(labels, noise.symmetric(labels, 1.0, 7, seed=seed), strict=True))


@given(class_labels, rates, rates, seeds)
@settings(max_examples=50, deadline=None)
def test_pair_noise_grows_with_the_rate(labels: list[int], one: float, other: float, seed: int) -> None:
    """Under one seed the labels that flip at a low rate flip at a higher one too, but for the class that wraps."""
    low, high = sorted([one, other])
    inner = [y for y in labels if y < 6]
    few, many = noise.pair(inner, low, 7, seed=seed), noise.pair(inner, high, 7, seed=seed)
    assert all(a == y or b != y for y, a, b in zip(inner, few, many, strict=True))
