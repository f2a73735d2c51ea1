"""The registry of losses, and what losses say about input that cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import narl
from narl import losses
from narl.errors import (
    DuplicateNameError,
    HyperparameterError,
    LabelError,
    LogitsError,
    NarlError,
    UnknownNameError,
)
from narl.losses import Hyperparameter, RobustLoss

LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
LABELS = torch.tensor([0, 2])
every_loss = pytest.mark.parametrize("name", losses.names())
every_hyperparameter = pytest.mark.parametrize(
    ("loss", "spec"),
    [(losses.get(name), spec) for name in losses.names() for spec in losses.get(name).hyperparameters],
    ids=[f"{name}-{spec.name}" for name in losses.names() for spec in losses.get(name).hyperparameters],
)


def squared(logits: Tensor, targets: Tensor) -> Tensor:
    return losses.mae(logits, targets) ** 2


@pytest.fixture
def registered() -> Iterator[RobustLoss]:
    loss = losses.register(RobustLoss("squared", squared))
    yield loss
    if "squared" in losses.names():
        losses.unregister("squared")


# Registry


def test_names_are_the_built_in_losses_in_order() -> None:
    assert losses.names() == ("ce", "gce", "js", "mae", "polysoft", "sl")


@every_loss
def test_get_knows_a_loss_in_any_case(name: str) -> None:
    loss = losses.get(name)
    assert loss.name == name
    assert losses.get(name.upper()) is loss
    assert losses.get(name.title()) is loss
    assert loss.function is getattr(losses, name)


def test_registered_loss_is_known_until_unregistered(registered: RobustLoss) -> None:
    assert losses.get("Squared") is registered
    assert "squared" in losses.names()
    assert list(losses.names()) == sorted(losses.names())
    assert_close(registered(LOGITS, LABELS), losses.mae(LOGITS, LABELS) ** 2)
    losses.unregister("SQUARED")
    assert "squared" not in losses.names()
    with pytest.raises(UnknownNameError, match="no loss is called 'squared'"):
        losses.get("squared")


def test_a_taken_name_is_refused_and_keeps_its_loss(registered: RobustLoss) -> None:
    with pytest.raises(DuplicateNameError, match=r"'squared' is registered already.*unregister\('squared'\)"):
        losses.register(RobustLoss("squared", losses.ce))
    assert losses.get("squared") is registered
    losses.unregister("squared")
    replacement = losses.register(RobustLoss("squared", losses.ce))
    assert losses.get("squared") is replacement


def test_a_name_in_upper_case_is_refused() -> None:
    with pytest.raises(NarlError, match="'Mine' is not lower case: register it as 'mine'"):
        losses.register(RobustLoss("Mine", squared))
    assert "mine" not in losses.names()


@pytest.mark.parametrize(
    ("wrong", "meant"), [("gcee", "gce"), ("polysof", "polysoft"), ("POLY-SOFT", "polysoft"), ("jss", "js")]
)
def test_unknown_names_suggest_the_nearest(wrong: str, meant: str) -> None:
    for ask in (losses.get, losses.unregister):
        with pytest.raises(UnknownNameError, match=f"'{wrong}': did you mean '{meant}'.*Known: ce, gce, js") as caught:
            ask(wrong)
        assert isinstance(caught.value, LookupError)
        assert caught.value.__suppress_context__


def test_names_far_from_all_suggest_nothing() -> None:
    with pytest.raises(UnknownNameError, match=r"no loss is called 'xxxxxxxx'.*nown: ce, gce") as caught:
        losses.get("xxxxxxxx")
    assert "did you mean" not in str(caught.value)


@every_loss
def test_missing_hyperparameters_take_their_defaults(name: str) -> None:
    loss = losses.get(name)
    assert loss.defaults == {h.name: h.default for h in loss.hyperparameters}
    expected = loss.function(LOGITS, LABELS, *[h.default for h in loss.hyperparameters])
    assert torch.equal(loss(LOGITS, LABELS), expected)
    for h in loss.hyperparameters:
        changed = loss(LOGITS, LABELS, **{h.name: h.start})
        assert torch.equal(changed, loss.function(LOGITS, LABELS, **{**loss.defaults, h.name: h.start}))
        assert not torch.equal(changed, expected)


def test_published_defaults_and_learnable_starts() -> None:
    assert losses.get("gce").defaults == {"q": 0.7}
    assert losses.get("sl").defaults == {"gamma1": 0.1, "gamma2": 1.0}
    starts = {h.name: h.start for name in losses.names() for h in losses.get(name).hyperparameters}
    assert 0.2 <= starts["q"] <= 0.5
    assert 0.2 <= starts["pi1"] <= 0.5
    assert starts["gamma1"] >= starts["gamma2"]
    assert starts["lam"] > math.log(1000), "an untrained classifier of a thousand classes still gets a gradient"


def test_titles_are_in_capitals_unless_given() -> None:
    assert losses.get("gce").title == "GCE"
    assert losses.get("polysoft").title == "PolySoft"
    assert RobustLoss("squared", squared).title == "SQUARED"
    assert RobustLoss("squared", squared, title="Squared MAE").title == "Squared MAE"


def test_other_arguments_of_a_loss_pass_through() -> None:
    assert_close(losses.get("sl")(LOGITS, LABELS, a=-8.0, gamma1=0.0), 8 * losses.mae(LOGITS, LABELS))


def test_losses_are_reached_from_the_package() -> None:
    assert narl.losses is losses


# Hyperparameter


def test_a_hyperparameters_span_is_its_range_unless_given() -> None:
    assert Hyperparameter("q", low=0.1, high=0.9, start=0.3, default=0.9).span == (0.1, 0.9)
    assert Hyperparameter("q", low=0.1, high=0.9, start=0.3, default=0.9, span=(0.2, 0.4)).span == (0.2, 0.4)


@pytest.mark.parametrize(
    "change",
    [
        {"low": 0.95},
        {"high": 0.2},
        {"low": -math.inf},
        {"high": math.inf},
        {"low": math.nan},
        {"start": 0.05},
        {"start": 0.1},  # an end of the span: no finite bias of the sigmoid gives it
        {"start": 0.9},
        {"start": math.nan},
        {"default": 0.91},
        {"default": math.nan},
        {"span": (0.05, 0.9)},
        {"span": (0.1, 0.95)},
        {"span": (0.4, 0.2)},
        {"span": (0.5, 0.9)},
        {"span": (math.nan, 0.9)},
    ],
    ids=str,
)
def test_a_hyperparameter_that_contradicts_itself(change: dict[str, Any]) -> None:
    values: dict[str, Any] = {"low": 0.1, "high": 0.9, "start": 0.3, "default": 0.5}
    with pytest.raises(HyperparameterError, match=r"'q' contradicts itself: low ≤ span's low < start .* must hold"):
        Hyperparameter("q", **{**values, **change})


# Bad logits


@every_loss
@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (torch.zeros(3), r"shape \(N, c\).*got shape \(3,\).*raw output"),
        (torch.zeros(2, 3, 4), r"got shape \(2, 3, 4\).*one row a sample"),
        (torch.zeros(()), r"got shape \(\)"),
        (torch.zeros(2, 3, dtype=torch.int64), r"floating type, got shape \(2, 3\) of torch.int64"),
        (torch.zeros(2, 3, dtype=torch.bool), "of torch.bool"),
        (torch.zeros(2, 3, dtype=torch.complex64), "of torch.complex64"),
        (torch.zeros(2, 1), "one class only.*two outputs"),
        (torch.tensor([[math.nan, 0.0, 0.0], [0.0, 0.0, 0.0]]), "NaN or infinity in 1 of 2 rows.*learning rate"),
        (torch.tensor([[math.inf, 0.0, math.inf], [0.0, 0.0, -math.inf]]), "NaN or infinity in 2 of 2 rows"),
        (torch.tensor([[math.nan, 0.0, 0.0]] * 2, dtype=torch.bfloat16), "NaN or infinity in 2 of 2 rows"),
    ],
    ids=["1-D", "3-D", "0-D", "integer", "bool", "complex", "one class", "NaN", "infinity", "bfloat16 NaN"],
)
def test_bad_logits(name: str, logits: Tensor, words: str) -> None:
    with pytest.raises(LogitsError, match=words) as caught:
        losses.get(name)(logits, LABELS)
    assert isinstance(caught.value, ValueError)


# Bad targets


@every_loss
@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (torch.tensor([0, 3]), "labels run from 0 to 3 but the logits have 3 classes.*0 … 2.*4 outputs"),
        (torch.tensor([-1, 2]), "labels run from -1 to 2.*0 … 2; renumber"),
        (torch.tensor([-100, 0]), "labels run from -100"),
        (torch.tensor([255, 0], dtype=torch.uint8), "to 255"),
        (torch.tensor([0.0, 1.0]), r"type torch.float32.*integers \(labels.long\(\)\)"),
        (torch.tensor([True, False]), "type torch.bool"),
        (torch.tensor([0j, 1j]), "type torch.complex64"),
        (torch.tensor([0, 1, 2]), r"shape \(3,\) but there are 2 samples.*\(2,\).*\(2, 3\) of floating type"),
        (torch.tensor([[0], [1]]), r"shape \(2, 1\) but there are 2 samples"),
        (torch.tensor(0), r"shape \(\)"),
        (torch.tensor([[1, 0, 0], [0, 1, 0]]), r"shape \(2, 3\).*floating type"),
        (torch.zeros(0, dtype=torch.int64), r"shape \(0,\) but there are 2"),
        (torch.full((2, 4), 0.25), r"probabilities have shape \(2, 4\) but the logits \(2, 3\)"),
        (torch.full((3, 3), 1 / 3), r"probabilities have shape \(3, 3\)"),
        (torch.full((2, 3), 0.5), "at least 0 and sum to 1 in every row: normalise"),
        (torch.tensor([[1.0, 0.0, 0.0], [0.3, 0.3, 0.3]]), "sum to 1 in every row"),
        (torch.tensor([[1.0, 0.0, 0.0], [1.5, -0.5, 0.0]]), "at least 0"),
        (torch.tensor([[1.0, 0.0, 0.0], [math.nan, 0.5, 0.5]]), "sum to 1"),
        (torch.tensor([[1.0, 0.0, 0.0], [math.inf, 0.0, 0.0]]), "sum to 1"),
        (torch.zeros(2, 3), "sum to 1"),
    ],
    ids=[
        "too high",
        "too low",
        "ignore index",
        "uint8 too high",
        "float",
        "bool",
        "complex",
        "too many",
        "column",
        "scalar",
        "integer one-hot",
        "none",
        "too many classes",
        "too many rows",
        "sum above 1",
        "sum below 1",
        "negative",
        "NaN",
        "infinite",
        "all zero",
    ],
)
def test_bad_targets(name: str, targets: Tensor, words: str) -> None:
    with pytest.raises(LabelError, match=words) as caught:
        losses.get(name)(LOGITS, targets)
    assert isinstance(caught.value, ValueError)


@every_loss
def test_probabilities_that_half_precision_has_rounded_are_accepted(name: str) -> None:
    targets = torch.randn(2, 300, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    logits = torch.zeros(2, 300)
    for dtype in (torch.bfloat16, torch.float16):
        assert_close(
            losses.get(name)(logits, targets.to(dtype)), losses.get(name)(logits, targets), rtol=1e-2, atol=1e-2
        )


# Bad hyperparameters


@every_hyperparameter
@pytest.mark.parametrize(
    "form", [float, torch.tensor, lambda value: torch.tensor([value, value])], ids=["", "0-D", "N"]
)
def test_hyperparameters_outside_their_range(
    loss: RobustLoss, spec: Hyperparameter, form: Callable[[float], float | Tensor]
) -> None:
    for value in (spec.low - 1, spec.high + spec.high / 1e3, math.nan, math.inf, -math.inf):
        with pytest.raises(HyperparameterError, match=rf"{spec.name} = .* outside its range \[.*\].*is the default"):
            loss(LOGITS, LABELS, **{spec.name: form(value)})


@every_hyperparameter
def test_one_bad_hyperparameter_among_good_ones(loss: RobustLoss, spec: Hyperparameter) -> None:
    for value in (spec.low - 1, math.nan):
        with pytest.raises(HyperparameterError, match=f"{spec.name} = .* outside its range"):
            loss(LOGITS, LABELS, **{spec.name: torch.tensor([spec.start, value])})


@every_hyperparameter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_ends_of_the_range_are_inside_it(loss: RobustLoss, spec: Hyperparameter, dtype: torch.dtype) -> None:
    for value in (spec.low, spec.high):
        by_number = loss(LOGITS.to(dtype), LABELS, **{spec.name: value})
        by_sample = loss(LOGITS.to(dtype), LABELS, **{spec.name: torch.full((2,), value, dtype=dtype)})
        assert bool(by_number.isfinite().all())
        assert_close(by_sample, by_number)


@every_hyperparameter
@pytest.mark.parametrize("shape", [(3,), (1,), (0,), (2, 1), (1, 2), (2, 3)], ids=str)
def test_hyperparameters_of_the_wrong_length(loss: RobustLoss, spec: Hyperparameter, shape: tuple[int, ...]) -> None:
    with pytest.raises(HyperparameterError, match=rf"{spec.name} has shape .* 2 samples.*one a sample, shape \(2,\)"):
        loss(LOGITS, LABELS, **{spec.name: torch.full(shape, spec.start)})


@pytest.mark.parametrize("a", [0.0, 4.0, math.nan, -math.inf, math.inf])
def test_what_stands_for_log_0_must_be_negative(a: float) -> None:
    with pytest.raises(HyperparameterError, match=r"a = .* must be negative and finite: -4 is the default"):
        losses.sl(LOGITS, LABELS, 0.1, 1.0, a=a)


def test_a_learned_hyperparameter_outside_its_range_is_refused_without_a_warning() -> None:
    learned = torch.tensor([0.5, math.nan], requires_grad=True)
    torch.set_warn_always(True)  # otherwise torch warns once a process
    try:
        with pytest.raises(HyperparameterError, match=r"q = .* outside its range"):
            losses.gce(LOGITS, LABELS, learned)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("polysoft", {"d": torch.tensor([1.0, 1.0], dtype=torch.bfloat16)}),  # below 1.001, which bfloat16 calls 1
        ("polysoft", {"lam": torch.tensor([math.inf, 6.0], dtype=torch.float16)}),  # above 1e6, which float16 calls ∞
        ("sl", {"gamma1": torch.tensor([math.inf, 1.0], dtype=torch.float16)}),
    ],
    ids=["d", "lam", "gamma1"],
)
def test_half_precision_hyperparameters_outside_the_range_are_refused(name: str, values: dict[str, Tensor]) -> None:
    with pytest.raises(HyperparameterError, match="outside its range"):
        losses.get(name)(LOGITS, LABELS, **values)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_labels_of_wide_unsigned_types_work_or_are_refused_clearly(dtype: torch.dtype) -> None:
    try:
        values = losses.ce(LOGITS, LABELS.to(dtype))
    except LabelError as error:
        assert "long()" in str(error)  # noqa: PT017 (either outcome is fine, another exception is not)
    else:
        assert torch.equal(values, losses.ce(LOGITS, LABELS))


def test_what_is_no_tensor_is_refused_with_the_conversion() -> None:
    logits, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(LogitsError, match=r"logits are a ndarray: .*torch\.as_tensor"):
        losses.ce(logits.numpy(), labels)  # type: ignore[arg-type]
    with pytest.raises(LabelError, match=r"labels are a list: .*torch\.as_tensor"):
        losses.ce(logits, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(HyperparameterError, match=r"q = '0\.7' is no number"):
        losses.gce(logits, labels, "0.7")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="no loss's name: give a string"):
        losses.get(losses.gce)  # type: ignore[arg-type]
    with pytest.raises(LabelError, match="leave such samples out"):
        losses.ce(logits, torch.tensor([0, -100]))


# Devices


class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations between the device of the logits and the host, which a CUDA graph cannot hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        assert len({one.device for one in given}) < 2, f"{func} has tensors of two devices"
        return func(*args, **(kwargs or {}))


@every_loss
def test_numbers_are_made_on_the_device_of_the_logits(name: str) -> None:
    logits = torch.empty(4, 3, device="meta", requires_grad=True)
    targets = torch.empty(4, device="meta", dtype=torch.int64)
    with Elsewhere():  # type: ignore[no-untyped-call]
        found = losses.get(name)(logits, targets)
        torch.autograd.backward(found.sum())
    assert found.device.type == "meta"
    assert logits.grad is not None
