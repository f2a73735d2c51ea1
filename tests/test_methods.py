"""What every method does, over the registry; the registry itself; fixed losses."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import narl
from methods_problem import BATCH, CLASSES, batches, built, data, interrupted, options_of, run, setting_of, shown
from narl import errors, losses
from narl.losses import Hyperparameter, RobustLoss
from narl.models.committee import Committee
from narl.train import methods
from narl.train.methods import LossMethod, Method, MethodSpec, Option, Setting, fixed

NAMES = methods.names()


@pytest.mark.parametrize("name", NAMES)
def test_trains(name: str) -> None:
    setting = setting_of(name)
    method = built(name, setting)
    before = [parameter.detach().clone() for parameter in setting.model.parameters()]
    logits: list[Tensor] = []
    plain = not isinstance(setting.model, Committee)
    setting.model.register_forward_hook(lambda module, args, output: logits.append(output.detach()))
    assert method.name == name
    for x, y, ids in batches(3):
        logits.clear()
        report = method.step(shown(method, x), y, ids)
        assert math.isfinite(report.loss)
        assert set(report.hyperparameters) == set(method.fields)
        assert report.margins is not None
        if plain:
            torch.testing.assert_close(report.margins, narl.margin(logits[0], y))
        for values in report.hyperparameters.values():
            assert values.shape == (BATCH,)
            assert values.isfinite().all()
        assert not any(v.requires_grad for v in (report.loss, report.margins, *report.hyperparameters.values()))
    assert all(not torch.equal(a, b) for a, b in zip(before, setting.model.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_learns_what_it_is_shown(name: str) -> None:
    x, noisy, _ = data()
    method, ids = built(name, setting_of(name, total=30)), torch.arange(len(x))
    margins = [method.step(shown(method, x), noisy, ids).margins for _ in range(30)]
    agreeing = [int((values > 0).sum()) for values in margins if values is not None]
    assert agreeing[-1] > agreeing[0] + 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [1, 3, 6])
def test_stopped_and_resumed_is_bitwise_the_uninterrupted_run(name: str, stop: int) -> None:
    def make() -> tuple[Setting, Method]:
        setting = setting_of(name)
        return setting, built(name, setting)

    interrupted(make, stop, 7)


@pytest.mark.parametrize("name", NAMES)
def test_takes_probabilities_for_labels(name: str) -> None:
    x, y, ids = batches(1)[0]
    by_index, by_probability = built(name), built(name)
    expected = by_index.step(shown(by_index, x), y, ids)
    found = by_probability.step(shown(by_probability, x), F.one_hot(y, CLASSES).float(), ids)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.margins, expected.margins)


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_batch_leaves_no_trace(name: str) -> None:
    setting = setting_of(name)
    method = built(name, setting)
    x, y, ids = batches(1)[0]
    before = {key: value.clone() for key, value in setting.model.state_dict().items()}
    with pytest.raises(errors.LogitsError, match="NaN or infinity"):
        method.step(shown(method, x * torch.inf), y, ids)
    with pytest.raises(errors.LabelError, match="labels run from"):
        method.step(shown(method, x), y + CLASSES, ids)
    with pytest.raises(errors.LabelError, match="empty"):
        method.step(shown(method, x[:0]), y[:0], ids[:0])
    for key, value in setting.model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not setting.optimizer.state


@pytest.mark.parametrize("name", NAMES)
def test_the_clean_set_is_needed_or_not(name: str) -> None:
    spec = methods.get(name)
    if spec.needs_clean:
        with pytest.raises(errors.CleanBatchError, match=re.escape(f"{name} learns from samples whose labels are")):
            built(name, setting_of(name, clean=False))
        assert spec.uses_clean
    else:
        run(built(name, setting_of(name, clean=False)), batches(4))


@pytest.mark.parametrize("name", NAMES)
def test_names_describe_themselves(name: str) -> None:
    spec = methods.get(name)
    assert spec.name == name
    assert methods.get(name.lower()).name == methods.get(f" {name.upper()} ").name == name
    assert spec.description
    assert "\n" not in spec.description
    assert all(
        option.description and option.checked(key, option.default) == option.default
        for key, option in spec.options.items()
    )
    for candidate in spec.grid():
        spec.build(setting_of(name), **{**options_of(spec), **candidate})


def test_the_words_about_values_that_are_not_finite_are_those_of_the_meta_step() -> None:
    """Plain and meta steps fail in the same words: loss and gradient."""

    class Odd(nn.Module):
        def __init__(self, power: float) -> None:
            super().__init__()
            self.scale, self.power = nn.Parameter(torch.ones(())), power

        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            values = losses.ce(logits, targets)
            return values.abs() ** self.power * self.scale if self.power > 1 else (values - values.detach()) ** 0.5

    x, y, _ = batches(1)[0]
    for power, words in ((200.0, "the training loss is inf"), (0.5, "the gradient of the training loss is not finite")):
        odd, plain, meta = Odd(power), setting_of(), setting_of()
        with pytest.raises(errors.NonFiniteError, match=words) as by_descent:
            methods.descend(plain.model, plain.optimizer, 1e3 * x, y, functools.partial(odd.loss, targets=y))
        step = narl.MetaStep(meta.model, meta.optimizer, odd)
        step.steps = 1  # between two meta steps
        with pytest.raises(errors.NonFiniteError, match=words) as by_meta_step:
            step.step(1e3 * x, y)
        assert str(by_descent.value) == str(by_meta_step.value)
        assert all(parameter.grad is None for parameter in plain.model.parameters())
        assert plain.model.state_dict()["1.num_batches_tracked"] == 0


def test_own_losses_of_the_wrong_kind_are_named() -> None:
    setting, (x, y, _) = setting_of(), batches(1)[0]
    with pytest.raises(errors.OptionError, match=r"shape \(16, 3\) for 16 samples"):
        methods.descend(setting.model, setting.optimizer, x, y, lambda logits: logits)
    with pytest.raises(errors.OptionError, match="does not depend on the logits"):
        methods.descend(setting.model, setting.optimizer, x, y, lambda logits: logits.detach().sum(1))
    with torch.inference_mode(), pytest.raises(errors.OptionError, match="inference_mode"):
        methods.descend(setting.model, setting.optimizer, x, y, lambda logits: logits.sum(1))


@pytest.mark.parametrize("name", losses.names())
def test_fixed_losses_are_plain_training(name: str) -> None:
    loss = losses.get(name)
    setting, reference = setting_of(), setting_of()
    method = built(name, setting)
    for x, y, ids in batches(4):
        report = method.step(x, y, ids)
        value = loss(reference.model(x), y).mean()
        reference.optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        reference.optimizer.step()
        torch.testing.assert_close(report.loss, value.detach())
    for ours, theirs in zip(setting.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 10_000), st.sampled_from(["index", "probability"]))
def test_fused_cross_entropy_is_the_registered_one(seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(7, 4, generator=generator) * 30).requires_grad_()
    targets = torch.randint(0, 4, (7,), generator=generator)
    if kind == "probability":
        targets = torch.rand(7, 4, generator=generator).softmax(1)
    for other in (logits, logits.bfloat16()):
        torch.testing.assert_close(fixed.cross_entropy(other, targets), losses.ce(other, targets))


def test_registry_knows_the_published_methods() -> None:
    assert " ".join(NAMES) == (
        "CE GCE JS MAE PolySoft SL Forward MW-Net Mixup MentorNet Co-teaching ELR ELR+ DivideMix "
        "A-GCE A-JS A-PolySoft A-SL T-GCE T-JS T-PolySoft T-SL "
        "A-GCE+ A-JS+ A-PolySoft+ A-SL+ T-GCE+ T-JS+ T-PolySoft+ T-SL+"
    )


@pytest.mark.parametrize(
    ("asked", "meant"), [("a-gec", "A-GCE"), ("MWNet", "MW-Net"), ("forwards", "Forward"), ("GCEE", "GCE")]
)
def test_an_unknown_name_gets_the_nearest(asked: str, meant: str) -> None:
    with pytest.raises(errors.UnknownNameError, match=f"no method is called '{asked}': did you mean '{meant}'"):
        methods.get(asked)
    with pytest.raises(errors.UnknownNameError, match="give a string"):
        methods.get(None)  # type: ignore[arg-type]


def test_losses_registered_later_are_methods_at_once() -> None:
    strength = Hyperparameter("strength", low=0.0, high=2.0, start=0.5, default=1.0)
    scale = Hyperparameter("scale", low=1e-4, high=10.0, start=0.5, default=1.0)

    def tempered(logits: Tensor, targets: Tensor, strength: Tensor, scale: Tensor) -> Tensor:
        return losses.mae(logits, targets) * strength + losses.ce(logits, targets) * scale

    losses.register(RobustLoss("tempered", tempered, (strength, scale), title="Tempered"))
    try:
        assert {"Tempered", "A-Tempered", "T-Tempered"} <= set(methods.names())
        assert methods.get("tempered").options["strength"].high == 2.0
        run(built("A-tempered"), batches(2))
        run(built("T-tempered"), batches(2))
        grid = methods.get("Tempered").grid()
        by_strength = [c["strength"] for c in grid if c["scale"] == 1.0]
        assert by_strength == pytest.approx([0.2, 0.6, 1.0, 1.4, 1.8])
        by_scale = [c["scale"] for c in grid if c["strength"] == 1.0 and c["scale"] != 1.0]
        ratios = [b / a for a, b in itertools.pairwise(by_scale)]
        assert ratios == pytest.approx([ratios[0]] * len(ratios))
        assert len(grid) == len({tuple(candidate.items()) for candidate in grid})
    finally:
        losses.unregister("tempered")
    assert methods.names() == NAMES


def test_losses_with_the_title_of_another_go_by_their_names() -> None:
    losses.register(RobustLoss("other", losses.mae, title="gce"))
    losses.register(RobustLoss("forward", losses.mae))
    try:
        assert methods.get("gce").loss == "gce"
        assert methods.get("other").loss == "other"
        assert methods.get("forward").loss is None
        assert all(methods.get(name).name == name for name in methods.names())
    finally:
        losses.unregister("other")
        losses.unregister("forward")


class Doubled(LossMethod):
    """Twice the cross entropy.

    More words.
    """

    def __init__(self, setting: Setting, *, factor: float = 2.0, note: str | None = None) -> None:
        super().__init__(setting)
        self.factor, self.note = factor, note

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        return self.factor * losses.ce(logits, y)


def test_own_methods_can_be_registered_and_forgotten() -> None:
    spec = methods.register(Doubled)
    try:
        assert spec.name in methods.names()
        assert spec.description == "Twice the cross entropy."
        method = methods.build("doubled", setting_of(), factor=3)
        assert isinstance(method, Doubled)
        assert method.factor == 3.0
        with pytest.raises(errors.DuplicateNameError, match="known already"):
            methods.register(Doubled)
        with pytest.raises(errors.OptionError, match="did you mean 'factor'"):
            methods.build("doubled", setting_of(), facter=3)
        with pytest.raises(errors.OptionError, match="factor = 'much' is not a number"):
            methods.build("doubled", setting_of(), factor="much")
    finally:
        methods.unregister("DOUBLED")
    assert methods.names() == NAMES
    with pytest.raises(errors.DuplicateNameError, match="'CE' is known already"):
        methods.register(MethodSpec("CE", Doubled))
    with pytest.raises(errors.OptionError, match="belongs to narl"):
        methods.unregister("A-GCE")
    with pytest.raises(errors.UnknownNameError):
        methods.unregister("doubled")


def test_a_method_without_state_refuses_some() -> None:
    class Nothing(Method):
        def step(self, x: Any, y: Tensor, ids: Tensor) -> narl.StepReport:
            return narl.StepReport(torch.zeros(()), None, {}, None)

    method = Nothing()
    method.load_state_dict(method.state_dict())
    with pytest.raises(errors.CheckpointError, match="Nothing keeps no state but is given steps"):
        method.load_state_dict({"steps": 3})


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_hyperparameters_are_in_range_or_refused(q: float) -> None:
    if 1e-12 <= q <= 1:
        assert methods.get("gce").checked({"q": q}) == {"q": q}
    else:
        with pytest.raises(errors.OptionError, match="q = "):
            methods.get("gce").checked({"q": q})


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(10**400),
        st.floats(),
        st.sampled_from(["auto", "x"]),
        st.just([1]),
    )
)
def test_options_come_back_as_their_kind_or_not_at_all(value: Any) -> None:
    options = {"f": Option(0.5), "i": Option(3), "b": Option(True), "s": Option("x"), "n": Option(None, kind=int)}
    for name, option in options.items():
        with contextlib.suppress(errors.OptionError):
            found = option.checked(name, value)
            assert (
                found is None
                if value is None or (option.default is None and value == "auto")
                else type(found) is option.kind
            )
            assert found is None or found == value or value != value or found == float(value)


@given(st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_options_can_be_written_and_read(value: Any) -> None:
    assert Option(type(value)(), kind=type(value)).read("o", f" {value} ") == value
    assert Option(None, kind=type(value)).read("o", "None") is None


@pytest.mark.parametrize(
    ("default", "text"),
    [(True, "maybe"), (3, "3.5"), (0.5, "half"), (0.5, ""), (0.5, "none"), (0.5, "nan"), (0.5, "inf")],
)
def test_options_that_cannot_be_read(default: Any, text: str) -> None:
    with pytest.raises(errors.OptionError, match="o = "):
        Option(default, low=0).read("o", text)
    assert Option(None).read("o", "a/file.npy") == "a/file.npy"


def test_choices_get_the_nearest() -> None:
    with pytest.raises(errors.OptionError, match="did you mean 'running'"):
        methods.get("a-gce").checked({"margin": "runing"})
    with pytest.raises(errors.OptionError, match="CE has no option 'q': it has none"):
        built("CE", q=0.5)


@pytest.mark.parametrize("name", ["total_steps", "num_samples"])
def test_settings_without_work_are_refused(name: str) -> None:
    with pytest.raises(errors.OptionError, match=f"{name} = 0"):
        setting_of(**{name: 0})  # type: ignore[arg-type]
