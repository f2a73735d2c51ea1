"""Steps of several trainings as one, against each training's own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine_problem import CLASSES, ROWS, SIDE, Batch, Twin, apart, replay_on_cpu, twin
from narl import Adjuster, models
from narl.bilevel import StepReport, hypergradient
from narl.bilevel.clean_losses import absolute_error, cross_entropy
from narl.errors import NonFiniteError, OptionError
from narl.models import building, resnet
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.culprits import OfOne
from narl.train.engine.joint import Joint
from narl.train.engine.seats import Seat
from narl.train.engine.stack import Stack


def _taught(name: str, taken: float) -> Adjuster:
    generator = torch.Generator().manual_seed(1)
    made = Adjuster(name, [5, 5, 9], margin="running", input="margin+progress", generator=generator)
    nn.init.normal_(made.heads.weight, std=taken, generator=generator)
    made.taken = taken
    return made


MIXES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "fixed": [("CE", {}), ("GCE", {}), ("JS", {}), ("Forward", {}), ("ELR", {})],
    "learned": [(name, {"every": 2}) for name in ("A-GCE", "A-SL", "A-PolySoft", "A-JS", "MW-Net", "A-GCE")],
    "always": [("A-GCE", {"every": 1, "margin": "latest"}), ("A-JS", {"every": 1, "virtual": "optimizer"})],
    "plain look-ahead": [("A-GCE", {"every": 3, "virtual": "sgd"}), ("A-SL", {"every": 3, "virtual": "sgd"})],
    "late": [("A-GCE", {"every": 2, "warmup": 0.5}), ("A-SL", {"every": 2, "warmup": 0.5})],
    "judged by 1 - p": [(name, {"every": 2, "clean_loss": "mae"}) for name in ("A-GCE", "A-SL")],
    "one": [("A-GCE", {"every": 2})],
    "transferred": [
        (f"T-{name}", {"adjusters": [_taught(name.lower(), taken) for taken in (0.0, 0.5)], "noise_rate": rate})
        for name, rate in (("GCE", None), ("SL", "estimated"), ("JS", 0.3))
    ],
}


def some(mix: list[tuple[str, dict[str, Any]]], **about: Any) -> list[Twin]:
    """Trainings with weights and batches of their own, the same at each call."""
    made = [twin(name, **{"dtype": torch.float64, **about}, **options) for name, options in mix]
    for number, one in enumerate(made):
        draws = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weights in one.model.parameters():
                weights.mul_(0.8 + 0.4 * torch.rand(weights.shape, generator=draws, dtype=weights.dtype))
        one.batches = one.batches[number:] + one.batches[:number]
    return made


def seats_of(stack: Stack, trainings: list[Twin]) -> list[Seat]:
    """Their places, as if they were on a GPU."""
    seats = [
        stack.seat("auto", one.method, one.model, one.optimizer, one.clean, rows=ROWS, steps=12) for one in trainings
    ]
    for seat in seats:
        seat.captured = True
    return seats


def set_rates(trainings: list[Twin], rate: float) -> None:
    for one in trainings:
        one.optimizer.param_groups[0]["lr"] = rate


def check_same(found: StepReport, expected: StepReport) -> None:
    assert abs(float(found.loss - expected.loss)) < 1e-5  # the adjusters' numbers are float32
    assert (found.meta_loss is None) == (expected.meta_loss is None)
    if found.meta_loss is not None and expected.meta_loss is not None:
        assert abs(float(found.meta_loss - expected.meta_loss)) < 1e-5
    assert list(found.hyperparameters) == list(expected.hyperparameters)
    assert found.margins is not None
    assert expected.margins is not None
    assert found.rivals is not None
    assert expected.rivals is not None
    assert torch.equal(found.rivals, expected.rivals)
    pairs = [(found.margins, expected.margins)]
    pairs += [(found.hyperparameters[name], expected.hyperparameters[name]) for name in expected.hyperparameters]
    for one, other in pairs:
        assert one.shape == (len(expected.margins),)
        assert apart([one], [other]) < 1e-5


def check_same_steps(own: list[Twin], stacked: list[Twin], stack: Stack) -> None:
    seats = seats_of(stack, stacked)
    for number in range(12):
        set_rates([*own, *stacked], 0.05 * (1 - number / 24))
        found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            check_same(report, one.method.step(*one.batches[number]))


def check_same_state(found: list[Twin], expected: list[Twin]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert apart(one.model.state_dict().values(), other.model.state_dict().values()) < 1e-6
        assert apart(one.learned, other.learned) < 1e-4
        assert apart(_remembered(one), _remembered(other)) < 1e-6


def _remembered(one: Twin) -> list[Tensor]:
    return [one.optimizer.state[p]["momentum_buffer"] for p in one.model.parameters()]


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("mix", MIXES)
def test_each_goes_on_as_if_it_were_alone(mix: str) -> None:
    own, stacked = some(MIXES[mix]), some(MIXES[mix])
    stack = Stack()
    check_same_steps(own, stacked, stack)
    stack.check()
    assert isinstance(stack._engine, CapturedEngine)
    assert stack._engine._graphs, "no step was done as one"
    check_same_state(stacked, own)
    assert all(a.clean()[0].equal(b.clean()[0]) for a, b in zip(own, stacked, strict=True))  # as many were drawn


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("mix", ["fixed", "transferred", "learned"])
def test_the_same_with_their_losses_compiled_as_one(mix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def compile(graph: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr("narl.train.engine.STEPS_WORTH_COMPILING", 0)
    monkeypatch.setattr("narl.train.engine.captured._compile", compile)
    trainings = [one for one in MIXES[mix] if one[0] not in ("Forward", "ELR")]
    own, stacked = some(trainings), some(trainings)
    stack = Stack()
    check_same_steps(own, stacked, stack)
    check_same_state(stacked, own)
    if mix == "learned":  # tangents as well, and what a look ahead needs
        assert len(graphs) > 3
    else:
        assert len(graphs) == 3, "the passes forward and backward, and one graph for what all losses say and ask"


@pytest.mark.usefixtures("replaying")
def test_judged_by_another_loss_once_the_learning_rate_has_fallen() -> None:
    mix = [(name, {"every": 2, "clean_loss": "late"}) for name in ("A-GCE", "A-SL")]
    own, stacked = some(mix), some(mix)
    stack = Stack()
    seats = seats_of(stack, stacked)
    judged = []
    for number in range(12):
        set_rates([*own, *stacked], 0.05 if number < 6 else 0.005)
        found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            check_same(report, one.method.step(*one.batches[number]))
        judged.append({one.method._meta.clean_loss for one in (*own, *stacked)})  # type: ignore[attr-defined]
    assert judged == [{cross_entropy}] * 6 + [{absolute_error}] * 6
    assert isinstance(stack._engine, CapturedEngine)
    assert len(stack._engine._graphs) == 3, "plain steps, and meta iterations judged by two losses"
    check_same_state(stacked, own)


def _shallow() -> nn.Module:
    """ResNet-32 with one block a stage instead of five."""
    made = building.build(
        lambda: resnet._network((16, 32, 64), (1, 1, 1), resnet.ZeroPaddedShortcut, CLASSES, 3),
        torch.Generator().manual_seed(0),
    )
    assert {type(layer) for layer in made.modules()} == {type(layer) for layer in models.resnet32(CLASSES).modules()}
    return made


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("model", [pytest.param("resnet32", marks=pytest.mark.slow), _shallow, "convnet"])
def test_networks_of_the_tables(model: Any) -> None:
    mix = MIXES["learned"][:2]
    own, stacked = (some(mix, model=model, steps=3, rate=0.01) for _ in range(2))
    stack = Stack()
    seats = seats_of(stack, stacked)
    for number in range(3):
        found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            check_same(report, one.method.step(*one.batches[number]))
    check_same_state(stacked, own)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("mix", ["fixed", "learned"])
def test_batches_of_other_sizes_in_between(mix: str) -> None:
    own, stacked = some(MIXES[mix]), some(MIXES[mix])
    stack = Stack()
    seats = seats_of(stack, stacked)

    def batch(one: Twin, number: int, place: int) -> Batch:
        rows = {3: 7, 6: 8 + place % 2}.get(number, ROWS)  # a smaller one for all; one that differs
        x, y, ids = one.batches[number]
        return x[:rows], y[:rows], ids[:rows]

    for number in range(12):
        found = stack.step(seats, [batch(one, number, place) for place, one in enumerate(stacked)])
        for place, (one, report) in enumerate(zip(own, found, strict=True)):
            check_same(report, one.method.step(*batch(one, number, place)))
    check_same_state(stacked, own)


@pytest.mark.usefixtures("replaying")
def test_one_may_leave_and_the_others_go_on() -> None:
    own, stacked = (some(MIXES["learned"][:3]) for _ in range(2))
    stack = Stack()
    seats = seats_of(stack, stacked)
    for number in range(12):
        if number == 5:
            own, stacked, seats = own[1:], stacked[1:], seats[1:]
        stack.step(seats, [one.batches[number] for one in stacked])
        for one in own:
            one.method.step(*one.batches[number])
    check_same_state(stacked, own)


@pytest.mark.usefixtures("replaying")
def test_a_training_that_is_given_another_state() -> None:
    own, stacked, further = (some(MIXES["learned"][:2]) for _ in range(3))
    stack = Stack()
    seats = seats_of(stack, stacked)
    for number in range(3):
        stack.step(seats, [one.batches[number] for one in reversed(stacked)])  # they have gone another way
    for one in further:
        for batch in one.batches[:4]:
            one.method.step(*batch)
    for one, other, seat in zip(stacked, further, seats, strict=True):
        one.model.load_state_dict(other.model.state_dict())
        one.optimizer.load_state_dict(other.optimizer.state_dict())
        one.method.load_state_dict(other.method.state_dict())
        seat.reset()
        one.clean._next = other.clean._next
    for one in own:
        for batch in one.batches[:4]:
            one.method.step(*batch)
    for number in range(4, 12):
        stack.step(seats, [one.batches[number] for one in stacked])
        for one in own:
            one.method.step(*one.batches[number])
    check_same_state(stacked, own)


@pytest.mark.usefixtures("replaying")
def test_steps_that_do_not_go_together_are_done_one_by_one() -> None:
    apart_in_step = [("A-GCE", {"every": 2}), ("A-SL", {"every": 3}), ("GCE", {})]
    own, stacked = some(apart_in_step), some(apart_in_step)
    stack = Stack()
    seats = seats_of(stack, stacked)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [stack.step(seats, [one.batches[number] for one in stacked]) for number in range(6)]
    said = "A-GCE, A-SL, GCE trains without CUDA graphs (their steps do not go together)"
    assert [said in str(one.message) for one in told] == [True]
    for number, reports in enumerate(found):
        for one, report in zip(own, reports, strict=True):
            check_same(report, one.method.step(*one.batches[number]))
    check_same_state(stacked, own)


@pytest.mark.usefixtures("replaying")
def test_other_learning_rates_are_honoured() -> None:
    own, stacked = some(MIXES["fixed"]), some(MIXES["fixed"])
    stack = Stack()
    seats = seats_of(stack, stacked)
    for number in range(4):
        for many in (own, stacked):
            set_rates(many, 0.05)
            if number == 2:
                set_rates(many[:1], 0.01)
        stack.step(seats, [one.batches[number] for one in stacked])
        for one in own:
            one.method.step(*one.batches[number])
    check_same_state(stacked, own)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # of which the second is laid out channels last
def test_without_a_gpu_each_makes_its_own_step(dtype: torch.dtype) -> None:
    own, stacked = (some(MIXES["fixed"], model="convnet", steps=12, dtype=dtype) for _ in range(2))
    stack = Stack()
    seats = [stack.seat("auto", s.method, s.model, s.optimizer, s.clean, rows=ROWS, steps=12) for s in stacked]
    for number in range(12):
        found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            check_same(report, one.method.step(*one.batches[number]))
    assert all(apart(a.model.parameters(), b.model.parameters()) == 0 for a, b in zip(own, stacked, strict=True))


@pytest.mark.usefixtures("replaying")
def test_what_is_not_finite_is_said_to_be_whose() -> None:
    trainings = some(MIXES["always"])
    stack = Stack()
    seats = seats_of(stack, trainings)
    stack.step(seats, [one.batches[0] for one in trainings])
    x, y, ids = trainings[1].batches[1]
    stack.step(seats, [trainings[0].batches[1], (torch.full_like(x, torch.inf), y, ids)])
    for number in (2, 3):  # nobody looks at every step
        stack.step(seats, [one.batches[number] for one in trainings])
    for seat in seats:
        with pytest.raises(OfOne, match="training diverged") as found:
            seat.check()
        assert type(found.value.error) is NonFiniteError
        assert found.value.steps == {seats[1]: 2}
    with pytest.raises(OfOne) as found:  # a smaller batch would be a step as written
        stack.step(seats, [(x[:5], y[:5], ids[:5])] * 2)
    assert found.value.steps == {seats[1]: 2}
    stack.reset()
    stack.check()


def _linear() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    for weights in model.parameters():
        nn.init.normal_(weights, std=0.01, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("known", [True, False])
def test_a_gradient_that_overflows_though_the_loss_does_not(known: bool) -> None:
    trainings = [twin(name, model=_linear()) for name in ("CE", "GCE", "CE")]
    stack = Stack()
    seats = seats_of(stack, trainings)
    stack.step(seats, [one.batches[0] for one in trainings])
    batches = [one.batches[1] for one in trainings]
    x, y, ids = batches[2]
    stack.step(seats, [*batches[:2], (x * 1e22, y, ids)])
    if not known:  # what was seen since was harmless
        stack.step(seats, [one.batches[2] for one in trainings])
    with pytest.raises(OfOne) as found:
        stack.check()
    assert found.value.steps == ({seats[2]: 2} if known else dict.fromkeys(seats, 2))


def test_without_a_gpu_the_one_whose_step_it_is() -> None:
    trainings = some(MIXES["fixed"], model="convnet")
    stack = Stack()
    seats = [stack.seat("auto", s.method, s.model, s.optimizer, s.clean, rows=ROWS, steps=12) for s in trainings]
    stack.step(seats, [one.batches[0] for one in trainings])
    batches = [one.batches[1] for one in trainings]
    x, y, ids = batches[3]
    with pytest.raises(OfOne, match="NaN or infinity") as found:
        stack.step(seats, [*batches[:3], (x * torch.inf, y, ids), *batches[4:]])
    assert found.value.steps == {seats[3]: 2}


def test_of_those_that_learn_together() -> None:
    trainings = some(MIXES["always"][:1] * 2)
    stack = Stack(shared=True)
    seats = [stack.seat("auto", s.method, s.model, s.optimizer, s.clean, rows=ROWS, steps=12) for s in trainings]
    x, y, ids = trainings[1].batches[0]
    with pytest.raises(OfOne) as found:
        stack.step(seats, [trainings[0].batches[0], (x * torch.inf, y, ids)])
    assert found.value.steps == {seats[1]: 1}
    assert str(found.value.named("second")).startswith("second: ")


def test_what_cannot_be_stacked_is_said() -> None:
    stack = Stack()
    one, other = some(MIXES["fixed"][:2])
    for optimizer, reason in (
        (torch.optim.AdamW(other.model.parameters(), lr=0.1), "only trainings by SGD"),
        (torch.optim.SGD(other.model.parameters(), lr=0.1), "other momentum or weight decay"),
    ):
        seats = seats_of(stack, [one, other])
        seats[1].optimizer = optimizer
        with pytest.raises(OptionError, match=reason):
            Joint(seats)
    seats = seats_of(stack, [one, other])
    seats[1].rows = 5
    with pytest.raises(OptionError, match="other batch sizes"):
        stack.step(seats, [one.batches[0], other.batches[0]])
    x, y, ids = other.batches[0]
    seats = seats_of(stack, [one, other])
    with pytest.raises(OptionError, match="inputs of several sizes"):
        stack.step(seats, [one.batches[0], (x[:, :, 1:], y, ids)])
    with pytest.raises(OptionError, match="2 processes cannot train as one stack"):
        stack.seat("auto", one.method, one.model, one.optimizer, None, rows=3, steps=3, processes=2)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize(
    ("option", "values", "reason"),
    [
        ("virtual", ("sgd", "optimizer"), "look ahead by different steps"),
        ("clean_loss", ("ce", "mae"), "judged by different clean losses"),
    ],
)
def test_adjusters_that_cannot_be_learned_together(option: str, values: tuple[str, str], reason: str) -> None:
    mixed = some([("A-GCE", {option: value, "every": 1}) for value in values])
    stack = Stack()
    with pytest.raises(OptionError, match=reason):
        stack.step(seats_of(stack, mixed), [one.batches[0] for one in mixed])


# One adjuster for all


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("options", [{"every": 2}, {"every": 1, "margin": "latest", "virtual": "sgd"}], ids=str)
def test_a_shared_adjuster_moves_by_the_mean_hypergradient(captured: bool, options: dict[str, Any]) -> None:
    mix = [("A-GCE", options)] * 3
    own, stacked = some(mix), some(mix)
    stack = Stack(shared=True)
    seats = seats_of(stack, stacked)
    for seat in seats:
        seat.captured = captured
    theta, adam = own[0].learned, own[0].method.adjuster_optimizer  # type: ignore[attr-defined]
    for number in range(12):
        set_rates([*own, *stacked], 0.05 * (1 - number / 24))
        stack.step(seats, [one.batches[number] for one in stacked])
        _shared_step(own, theta, adam, number, options)
    assert all(one.learned[0] is stacked[0].learned[0] for one in stacked)
    assert apart(stacked[0].learned, theta) < 1e-5
    for one, other in zip(stacked, own, strict=True):
        assert apart(one.model.state_dict().values(), other.model.state_dict().values()) < 1e-6


def _shared_step(
    trainings: list[Twin], theta: list[Any], adam: torch.optim.Optimizer, number: int, options: dict[str, Any]
) -> None:
    """The same written out: hypergradients at one θ, their mean, then the classifiers."""
    adjusters: list[Any] = [one.method.adjuster for one in trainings]
    for adjuster in adjusters[1:]:
        for mine, first in zip(adjuster.parameters(), theta, strict=True):
            mine.data.copy_(first.data)
    rate = float(trainings[0].optimizer.param_groups[0]["lr"])
    for group in adam.param_groups:  # they follow the classifier's
        group["lr"] = trainings[0].method.adjuster_lr * rate / 0.05  # type: ignore[attr-defined]
        group["weight_decay"] = trainings[0].method.adjuster_weight_decay * rate / 0.05  # type: ignore[attr-defined]
    if number % options["every"] == 0:
        virtual = options.get("virtual", "optimizer")
        each = [
            hypergradient(one.model, one.optimizer, adjuster, one.batches[number], one.clean(), virtual=virtual)
            for one, adjuster in zip(trainings, adjusters, strict=True)
        ]
        for parameter, gradients in zip(theta, zip(*each, strict=True), strict=True):
            parameter.grad = sum(gradients) / len(each)
        adam.step()
        for adjuster in adjusters[1:]:
            for mine, first in zip(adjuster.parameters(), theta, strict=True):
                mine.data.copy_(first.data)
    for one, adjuster in zip(trainings, adjusters, strict=True):
        x, y, ids = one.batches[number]
        logits = one.model(x)
        one.optimizer.zero_grad()
        adjuster.loss(logits, y, ids).mean().backward()
        one.optimizer.step()
        adjuster.observe(logits.detach(), y, ids)


@pytest.mark.usefixtures("replaying")
def test_a_shared_adjuster_needs_one_kind_of_loss() -> None:
    for mix, reason in (
        ([("A-GCE", {}), ("A-JS", {})], "do not learn the same kind of loss"),
        ([("A-GCE", {}), ("A-GCE", {"families": 2})], "do not learn the same kind of loss"),
        ([("A-GCE", {}), ("A-GCE", {"margin": "latest"})], "do not learn the same kind of loss"),
        ([("A-GCE", {}), ("GCE", {})], "GCE learns no adjuster"),
    ):
        stack, trainings = Stack(shared=True), some(mix)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=reason):
            stack.step(seats_of(stack, trainings), [one.batches[0] for one in trainings])
