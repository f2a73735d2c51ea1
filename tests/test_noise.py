"""What all generators share: the kinds of labels, seeds, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import narl.noise
from narl.errors import LabelError, NarlError, NoiseError, OptionError, UnknownNameError
from narl.noise import asymmetric, hierarchical, instance, pair, realised, symmetric, transition

LABELS = np.random.default_rng(3).integers(0, 10, size=500)
FEATURES = np.random.default_rng(4).normal(size=(500, 8))
MATRIX = narl.noise.symmetric_matrix(10, 0.5)


def features_of(labels: Any) -> Any:
    """As many features as labels, where these can be counted at all."""
    try:
        return FEATURES[: len(labels)]
    except TypeError:
        return FEATURES


GENERATORS: dict[str, Callable[..., Any]] = {
    "symmetric": lambda labels, **more: symmetric(labels, 0.5, 10, **more),
    "asymmetric": lambda labels, **more: asymmetric(labels, 0.5, **more),
    "pair": lambda labels, **more: pair(labels, 0.5, 10, **more),
    "hierarchical": lambda labels, **more: hierarchical(labels, 0.5, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1], **more),
    "instance": lambda labels, **more: instance(labels, 0.5, features_of(labels), 10, **more),
    "transition": lambda labels, **more: transition(labels, MATRIX, **more),
}
every_generator = pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)


def test_no_file_hides_a_function() -> None:
    assert all(callable(getattr(narl.noise, name)) for name in narl.noise.__all__), "a file hides a function"


@every_generator
def test_same_labels_for_every_kind_of_input(generate: Callable[..., Any]) -> None:
    expected = generate(LABELS, seed=11)
    assert (expected != LABELS).any()
    from_tensor, from_list = generate(torch.from_numpy(LABELS), seed=11), generate(LABELS.tolist(), seed=11)
    assert isinstance(from_tensor, torch.Tensor)
    np.testing.assert_array_equal(from_tensor.numpy(), expected)
    assert isinstance(from_list, list)
    assert from_list == expected.tolist()


@every_generator
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", ">i4"])
def test_numpy_types_are_kept(generate: Callable[..., Any], dtype: str) -> None:
    noisy = generate(LABELS.astype(dtype))
    assert isinstance(noisy, np.ndarray)
    assert noisy.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(noisy, generate(LABELS))


@every_generator
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_tensor_types_are_kept(generate: Callable[..., Any], dtype: torch.dtype) -> None:
    noisy = generate(torch.from_numpy(LABELS).to(dtype))
    assert noisy.dtype == dtype
    assert noisy.device.type == "cpu"
    np.testing.assert_array_equal(noisy.numpy(), generate(LABELS))


@pytest.mark.gpu
@every_generator
def test_tensors_stay_on_their_device(generate: Callable[..., Any]) -> None:
    noisy = generate(torch.from_numpy(LABELS).cuda())
    assert noisy.is_cuda
    np.testing.assert_array_equal(noisy.cpu().numpy(), generate(LABELS))


@every_generator
def test_input_is_not_modified(generate: Callable[..., Any]) -> None:
    array, tensor, listed = LABELS.copy(), torch.from_numpy(LABELS.copy()), LABELS.tolist()
    array.setflags(write=False)
    results = [generate(kind) for kind in (array, tensor, listed)]
    for kind in (array, tensor.numpy(), listed):
        np.testing.assert_array_equal(kind, LABELS)
    results[1].fill_(-1)
    np.testing.assert_array_equal(tensor.numpy(), LABELS)


def test_unchanged_labels_are_a_copy() -> None:
    labels = LABELS.copy()
    for noisy in (symmetric(labels, 0), instance(labels, 0, FEATURES)):
        np.testing.assert_array_equal(noisy, labels)
        assert not np.shares_memory(noisy, labels)
    tensor = torch.from_numpy(labels)
    for same in (symmetric(tensor, 0), instance(tensor, 0, FEATURES)):
        assert torch.equal(same, tensor)
        assert same.data_ptr() != tensor.data_ptr()


@every_generator
def test_strided_labels(generate: Callable[..., Any]) -> None:
    np.testing.assert_array_equal(generate(np.repeat(LABELS, 2)[::2]), generate(LABELS))
    strided = torch.from_numpy(np.repeat(LABELS, 2))[::2]
    np.testing.assert_array_equal(generate(strided).numpy(), generate(LABELS))


@every_generator
def test_a_generator_moves_on_and_an_int_does_not(generate: Callable[..., Any]) -> None:
    rng = np.random.default_rng(5)
    first, second = generate(LABELS, seed=rng), generate(LABELS, seed=rng)
    np.testing.assert_array_equal(first, generate(LABELS, seed=5))
    np.testing.assert_array_equal(first, generate(LABELS, seed=np.int64(5)))
    assert (first != second).any()


@every_generator
def test_global_random_state_is_left_alone(generate: Callable[..., Any]) -> None:
    before = np.random.get_state(legacy=False)  # noqa: NPY002  # the state that must not move
    torch_before = torch.get_rng_state()
    generate(LABELS)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    np.testing.assert_equal(after, before)
    assert torch.equal(torch.get_rng_state(), torch_before)


@every_generator
def test_no_samples(generate: Callable[..., Any]) -> None:
    assert generate([]) == []
    assert generate(torch.empty(0, dtype=torch.int32)).dtype == torch.int32


def test_number_of_classes_comes_from_the_labels() -> None:
    labels = np.array([0, 2] * 500)
    assert set(symmetric(labels, 0.9).tolist()) == {0, 1, 2}
    assert set(symmetric(labels, 0.9, 5).tolist()) == {0, 1, 2, 3, 4}
    assert pair([0, 2], 1) == [1, 0]
    assert pair([0, 2], 1, 4) == [1, 3]
    assert asymmetric([0, 2], 1) == [0, 0], "a named map has its own number of classes"
    assert set(hierarchical([4] * 200, 1.0)) == {30, 55, 72, 95}
    assert len(set(instance(labels, 0.9, np.arange(1000), 4).tolist())) == 4


def test_one_class_has_no_other() -> None:
    assert symmetric([0, 0], 0) == [0, 0]
    assert symmetric([0, 0], 0.5, over_all_classes=True) == [0, 0]
    made: list[Callable[[], Any]] = [
        lambda: symmetric([0, 0], 0.5),
        lambda: pair([0, 0], 0.5),
        lambda: instance([0, 0], 0.5, [1, 2]),
    ]
    for make in made:
        with pytest.raises(NoiseError, match=r"rate is 0\.5, but there is only one class.*give num_classes"):
            make()


@every_generator
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.0, 1.0]), r"labels are float64, but class indices are integers: convert .*int64"),
        (torch.tensor([0.0, 1.0]), r"labels are float32.*labels\.long\(\)"),
        (torch.tensor([0.0, 1.0], dtype=torch.bfloat16), r"labels are float32.*integers"),
        (torch.tensor([True, False]), r"labels are bool.*integers"),
        (["cat", "dog"], r"labels are <U3.*number class names with numpy\.unique"),
        ([0, None], r"labels are object.*integers"),
        ([[0, 1], [2]], r"list of unequal parts.*flat list"),
        (np.array([[0, 1]]), r"labels have shape \(1, 2\).*\(N,\).*argmax"),
        (torch.tensor(3), r"labels have shape \(\).*one class index a sample"),
        ([0, 1, -1], r"labels contain -1 \(sample 2\).*start at 0: leave unlabelled samples out"),
        ([0, 2**40], r"labels contain 1099511627776 \(sample 1\), but at most 32768.*numpy\.unique"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), r"labels contain 18446744073709551615 \(sample 1\)"),
        ((0, 1), r"labels are a tuple.*numpy\.asarray\(labels\)"),
        (None, r"labels are a NoneType.*a list, a numpy array or a torch tensor"),
    ],
)
def test_labels_that_are_none(generate: Callable[..., Any], labels: Any, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        generate(labels)


@pytest.mark.parametrize("name", [name for name in GENERATORS if name != "transition"])
def test_labels_out_of_range(name: str) -> None:
    with pytest.raises(
        LabelError, match=r"labels contain 12 \(sample 1\), which is outside 0 … 9: there are 10 classes"
    ):
        GENERATORS[name]([0, 12, 3])


def test_labels_beyond_the_matrix() -> None:
    with pytest.raises(
        NoiseError, match=r"matrix has no row 12, but sample 1 .*\(10, 10\).* 0 … 9; give one row a class"
    ):
        transition([0, 12, 3], MATRIX)


def test_labels_of_a_type_too_small() -> None:
    labels = np.zeros(5, dtype=np.uint8)
    assert symmetric(labels, 1.0, 256).dtype == np.uint8
    with pytest.raises(LabelError, match=r"labels are uint8, which cannot hold class 256.*int64"):
        symmetric(labels, 0.1, 257)
    with pytest.raises(LabelError, match=r"labels are int8, which cannot hold class 199"):
        instance(torch.zeros(5, dtype=torch.int8), 0.1, FEATURES[:5], 200)


def test_empty_labels_do_not_tell_the_classes() -> None:
    with pytest.raises(LabelError, match=r"labels are empty.*give num_classes"):
        symmetric([], 0.1)


RATED: dict[str, Callable[[Any], Any]] = {
    "symmetric": lambda rate: symmetric(LABELS, rate),
    "asymmetric": lambda rate: asymmetric(LABELS, rate),
    "pair": lambda rate: pair(LABELS, rate),
    "hierarchical": lambda rate: hierarchical(LABELS, rate),
    "instance": lambda rate: instance(LABELS, rate, FEATURES),
    "symmetric_matrix": lambda rate: narl.noise.symmetric_matrix(3, rate),
    "symmetric_matrix over all": lambda rate: narl.noise.symmetric_matrix(3, rate, True),
    "asymmetric_matrix": lambda rate: narl.noise.asymmetric_matrix(3, rate, {0: 1}),
    "pair_matrix": lambda rate: narl.noise.pair_matrix(3, rate),
    "hierarchical_matrix": lambda rate: narl.noise.hierarchical_matrix(3, rate, [0, 0, 1]),
}


@pytest.mark.parametrize("rated", RATED.values(), ids=RATED)
@pytest.mark.parametrize("rate", [-0.1, 1.01, 40, float("nan"), float("inf"), "0.4", None])
def test_rates_that_are_none(rated: Callable[[Any], Any], rate: Any) -> None:
    with pytest.raises(NoiseError, match=r"rate is .*, but a noise rate is a share from 0 to 1: write 0\.4 for 40 %"):
        rated(rate)


@pytest.mark.parametrize("rated", RATED.values(), ids=RATED)
def test_numpy_rates(rated: Callable[[Any], Any]) -> None:
    np.testing.assert_array_equal(rated(np.float32(0.5)), rated(0.5))


@pytest.mark.parametrize("num_classes", [0, -3, 2.0, "ten", 10**6])
def test_num_classes_that_are_none(num_classes: Any) -> None:
    for make in (lambda: symmetric(LABELS, 0.1, num_classes), lambda: narl.noise.pair_matrix(num_classes, 0.1)):
        with pytest.raises(OptionError, match=r"num_classes is .*, but it counts the classes: give an int from 1 to"):
            make()


@every_generator
@pytest.mark.parametrize("seed", [-1, 0.5, None, torch.Generator()])
def test_seeds_that_are_none(generate: Callable[..., Any], seed: Any) -> None:
    with pytest.raises(
        OptionError, match=r"seed is .*, but noise needs an int from 0 on or a numpy\.random\.Generator"
    ):
        generate(LABELS, seed=seed)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5]], r"matrix has shape \(1, 2\), but a transition matrix is square: give one row"),
        ([0.5, 0.5], r"matrix has shape \(2,\)"),
        (np.empty((0, 0)), r"matrix has shape \(0, 0\)"),
        ([[1, 0], [1.5, -0.5]], r"matrix row 1 has -0\.5 in column 1.*probabilities: give finite numbers from 0"),
        ([[1, 0], [float("nan"), 1]], r"matrix row 1 has nan in column 0"),
        ([[1, 0], [0.4, 0.4]], r"matrix row 1 sums to 0\.8, but each row must sum to 1: divide each row by its sum"),
        (torch.tensor([[0.5, 0.0], [0.5, 1.0]]), r"matrix row [01] sums to .*transpose the matrix"),
        ([[1, 0], [1]], r"matrix is not a table of numbers .*give c rows of c probabilities"),
        ([["a", "b"], ["c", "d"]], r"matrix is not a table of numbers"),
    ],
)
def test_matrices_that_are_none(matrix: Any, message: str) -> None:
    with pytest.raises(NoiseError, match=message):
        transition([0, 1], matrix)


def test_an_unrealised_row_is_refused() -> None:
    with pytest.raises(NoiseError, match="matrix row 1 sums to 0, but"):
        transition([0], realised([0, 2], [0, 2]).matrix)


@pytest.mark.parametrize(
    ("class_map", "num_classes", "message"),
    [
        ({0: 10}, 10, r"class map names class 10, but there are 10 classes, 0 … 9: correct the map, or give num_cl"),
        ({-1: 0}, 10, r"class map names class -1"),
        ({"cat": "dog"}, 10, r"class map names class 'dog'"),
        ([0.0, 1.0], 2, r"class map names class 0\.0"),
        ([1, 0, 2], 10, r"class map has 3 entries, but there are 10 classes: give one entry a class, or num_classes=3"),
        ("cifar10", 100, r"class map 'cifar10' has 10 entries, but there are 100 classes"),
        ({1, 2}, 10, r"class map cannot be given as set: give a list with one entry a class.*cifar10"),
    ],
)
def test_class_maps_that_are_none(class_map: Any, num_classes: int, message: str) -> None:
    with pytest.raises(NoiseError, match=message):
        asymmetric([0, 1], 0.5, class_map, num_classes)


@pytest.mark.parametrize(
    ("superclasses", "message"),
    [
        ([0, 0, 1], r"superclasses has 3 entries, but there are 10 classes: give one entry a class"),
        ([[0], [1]] * 5, r"superclasses hold an unhashable type.*give one number or name a class"),
        ({0: 0}, r"superclasses cannot be given as dict: give a list with one entry a class.*cifar100"),
        (np.array(3), r"superclasses cannot be given as ndarray"),
    ],
)
def test_superclasses_that_are_none(superclasses: Any, message: str) -> None:
    with pytest.raises(NoiseError, match=message):
        hierarchical([0, 1], 0.5, superclasses, 10)


def test_a_mapping_beyond_the_labels_wants_num_classes() -> None:
    with pytest.raises(NoiseError, match=r"class map names class 5, but there are 2 classes.*give num_classes"):
        asymmetric([0, 1], 1.0, {0: 5})
    assert asymmetric([0, 1], 1.0, {0: 5}, 6) == [5, 1]


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match=r"no class map is called 'cifar-10': did you mean 'cifar10'\? Known"):
        asymmetric([0, 1], 0.5, "cifar-10")
    with pytest.raises(UnknownNameError, match=r"no superclasses is called 'CIFAR10': did you mean 'cifar100'\?"):
        hierarchical([0, 1], 0.5, "CIFAR10")
    with pytest.raises(
        OptionError, match=r"projection is 'per-clas', which does not exist: did you mean 'per-class'\?"
    ):
        instance([0, 1], 0.5, [1, 2], projection="per-clas")


@pytest.mark.parametrize("std", [-0.1, float("nan"), float("inf"), "0.1"])
def test_spreads_that_are_none(std: Any) -> None:
    with pytest.raises(NoiseError, match=r"std is .*, but the spread of the flip rates is a finite number from 0 on"):
        instance([0, 1], 0.5, [1, 2], std=std)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((3, 2)), r"features have shape \(3, 2\), but there are 2 labels: give one row of features a label"),
        (np.float64(3), r"features have shape \(\), but there are 2 labels"),
        (np.ones((2, 0)), r"features have shape \(2, 0\), which holds no number a sample: give at least one"),
        ([[1.0, 2.0], [3.0, np.nan]], r"features: number 1 of sample 1 is nan, but features must be finite: fill it"),
        ([[-np.inf, 2.0], [3.0, 4.0]], r"features: number 0 of sample 0 is -inf, but .*numpy\.isfinite\(features\)"),
        (torch.tensor([[1.0], [float("inf")]]), r"features: number 0 of sample 1 is inf"),
        ([[-1.5e308], [1.5e308]], r"features: number 0 of a sample runs from .*too far for float64: scale it down"),
        ([["a"], ["b"]], r"features are <U1, but real numbers are needed: convert them to float32"),
        ([[1, 2], [3]], r"features do not form one array .*: bring all samples to one shape"),
    ],
)
def test_features_that_are_none(features: Any, message: str, rate: float) -> None:
    with pytest.raises(NoiseError, match=message):
        instance([0, 1], rate, features)


@pytest.mark.parametrize(
    ("labels", "noisy", "num_classes", "message"),
    [
        ([0, 1], [0], None, r"labels have 2 samples and noisy have 1: give both for the same samples, in one order"),
        ([], [], 3, r"labels are empty, so there is no rate to count: give at least one sample"),
        ([0, 1], [0, 4], 3, r"noisy contain 4 \(sample 1\), which is outside 0 … 2"),
        ([5, 1], [0, 1], 3, r"labels contain 5 \(sample 0\), which is outside 0 … 2"),
        ([0, 1], [0.0, 1.0], None, r"noisy are float64"),
    ],
)
def test_realised_of_unfit_labels(labels: Any, noisy: Any, num_classes: int | None, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        realised(labels, noisy, num_classes)


def test_realised_mixes_kinds() -> None:
    found = realised(torch.tensor([0, 0, 1, 1]), np.array([0, 1, 1, 1], dtype=np.uint8))
    assert found.rate == 0.25
    assert isinstance(found.rate, float)
    np.testing.assert_array_equal(found.counts, [[1, 1], [0, 2]])


def test_errors_are_narl_errors() -> None:
    with pytest.raises(NarlError):
        symmetric([0, 1], 2.0)
    with pytest.raises(ValueError, match="rate"):
        symmetric([0, 1], 2.0)
