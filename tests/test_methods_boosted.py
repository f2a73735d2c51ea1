"""Boosted methods: the objective against loops, the exact hypergradient, what each part does and that it can go."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from command_line import done, refused
from methods_problem import (
    BATCH,
    CLASSES,
    SAMPLES,
    adjusters_of,
    assert_same,
    batches,
    built,
    interrupted,
    run,
    setting_of,
    shown,
)
from narl import Adjuster, losses, margin
from narl.adjuster.last_batch import LastBatch
from narl.bilevel.refusals import Noted
from narl.errors import NonFiniteError, OptionError, SampleIdsError
from narl.models.committee import Committee
from narl.train import Settings, Trained, methods, plan, resume, start
from narl.train.adjusters import load_adjusters
from narl.train.methods import Method, Setting
from narl.train.methods.adjusted import Adjusted
from narl.train.methods.boosted import Boosted
from narl.train.methods.boosted_loss import divergence
from narl.train.methods.boosted_parts import OPTIONS, Parts
from narl.train.methods.guesses import DOUBTS, guessed
from oracles import unrolled
from test_train_session import StopAt, files

OFF: dict[str, Any] = {"mixup": 0, "consistency": 0, "balance": 0, "ema": 0}
NOW: dict[str, Any] = {"boost_from": 0}
TRUSTING: dict[str, Any] = {"suspicion": 0.0, "confidence": 0.0}  # guesses for all, whatever they are worth
CHECKED = torch.arange(SAMPLES) % 3 == 0  # samples whose labels are known to be right, where some are


def boosted(
    name: str, *, images: bool = True, double: bool = False, trusted: Tensor | None = None, **options: Any
) -> Boosted:
    """The method on the small problem; its rows count as images, so that there are strong views."""
    setting = setting_of(name, options=options, kind="image" if images else "table", trusted=trusted)
    if double:
        model = setting.model.double()
        weights = [p for p in model.parameters() if p.requires_grad]
        clean = setting.clean
        assert clean is not None
        setting = replace(
            setting,
            optimizer=torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-3),
            clean=lambda: (clean()[0].double(), clean()[1]),
        )
    method = built(name, setting, **options)
    assert isinstance(method, Boosted)
    return method


def bent(adjuster: Adjuster) -> None:
    """Give an untrained adjuster curves of its own."""
    nn.init.normal_(adjuster.heads.weight, std=0.5, generator=torch.Generator().manual_seed(2))


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(8), dtype=x.dtype)


def prepared(method: Boosted, x: Tensor, y: Tensor, ids: Tensor) -> tuple[Any, Tensor, Tensor]:
    """A batch as the plain method is given it, and the objective told of it."""
    rows, told = method._boosted(views(x) if method.views else (x,), y, ids)
    method.objective.shown = told
    times = sum(map(len, rows)) // len(y)
    return rows[0] if len(rows) == 1 else rows, y.repeat(times, *([1] * (y.dim() - 1))), ids.repeat(times)


@pytest.mark.parametrize("loss", ["GCE", "SL"])
@pytest.mark.parametrize(
    "options",
    [
        {"networks": 1},
        {"networks": 1, "trusted": CHECKED},
        {"networks": 2},
        {"networks": 1, "doubt": "posterior", "temperature": 1.0},
        {"networks": 2, "ema": 0, "judge": "own"},
        {"networks": 1, "judge": "own", "ema": 0, "margin": "latest"},
        {"networks": 1, "mixup": 0, "balance": 0},
        {"networks": 1, "consistency": 0, "strong": 0},
    ],
    ids=str,
)
def test_the_hypergradient_is_that_of_the_unrolled_step(loss: str, options: dict[str, Any]) -> None:
    method = boosted(f"A-{loss}+", double=True, **NOW, **TRUSTING, **options)
    adjuster = method.adjuster
    assert adjuster is not None
    adjuster.double()
    bent(adjuster)
    for x, y, ids in batches(2):
        method.step(views(x.double()), y, ids) if method.views else method.step(x.double(), y, ids)
    x, y, ids = batches(3)[2]
    batch = prepared(method, x.double(), y, ids)
    assert isinstance(method.plain, Adjusted)
    method.plain._meta.steps = 0
    found = method.plain.look_ahead(*batch)
    assert found is not None
    model, clean = method.plain.setting.model, method.plain.setting.clean
    assert clean is not None
    expected = unrolled(model, method.setting.optimizer, method.objective, batch, clean())
    assert sum(float(gradient.abs().sum()) for gradient in expected) > 1e-6
    for ours, theirs in zip(found.gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", [None, "table"])
@pytest.mark.parametrize("name", ["A-GCE", "A-SL", "T-JS", "T-GCE"])
@pytest.mark.parametrize("trusted", [None, CHECKED], ids=["none checked", "some checked"])
def test_with_every_part_off_it_is_the_plain_method(name: str, kind: str | None, trusted: Tensor | None) -> None:
    settings = (
        setting_of(kind=kind, trusted=trusted),
        setting_of(f"{name}+", options=OFF, kind=kind, trusted=trusted),
    )
    plain, with_plus = built(name, settings[0]), built(f"{name}+", settings[1], **OFF)
    for ours, theirs in zip(run(with_plus, batches(7)), run(plain, batches(7)), strict=True):
        values = {**vars(ours), "hyperparameters": {n: ours.hyperparameters[n] for n in plain.fields}}
        assert_same(values, vars(theirs))
    assert_same(settings[1].model.state_dict(), settings[0].model.state_dict())


def test_before_its_beginning_it_is_the_plain_method() -> None:
    settings = setting_of(), setting_of("A-GCE+")
    plain, with_plus = built("A-GCE", settings[0]), built("A-GCE+", settings[1], boost_from=6 / 9)
    assert isinstance(settings[1].model, Committee)
    run(plain, batches(6))
    run(with_plus, batches(6))
    assert_same(settings[1].model.members[0].state_dict(), settings[0].model.state_dict())
    run(plain, batches(1))
    run(with_plus, batches(1))
    assert not torch.equal(settings[1].model.members[0][0].weight, settings[0].model[0].weight)  # type: ignore[index]


def robust(adjuster: Adjuster, z: Tensor, label: Tensor, hyperparameters: dict[str, Tensor]) -> Tensor:
    return adjuster.robust_loss(z.unsqueeze(0), label.unsqueeze(0), **hyperparameters)[0]


@pytest.mark.parametrize("loss", ["GCE", "JS", "PolySoft", "SL"])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("trusted", [None, CHECKED], ids=["none checked", "some checked"])
def test_the_objective_is_a_loop_over_rows(loss: str, probabilities: bool, trusted: Tensor | None) -> None:
    options: dict[str, Any] = {
        "consistency": 0.7,
        "takeover": 0.6,
        "strong": 0.4,
        "balance": 0.3,
        "networks": 2,
        "confidence": 0.4,
        "unsure": "drop",
        "ramp": 1.0,
    }
    method = boosted(f"T-{loss}+", trusted=trusted, **NOW, **options)
    run_in = batches(4)
    for x, y, ids in run_in:
        method.step(views(x), y, ids)
    x, y, ids = run_in[0]
    y = F.one_hot(y, CLASSES).float().mul(0.8).add(0.2 / CLASSES) if probabilities else y
    inputs, *rest = prepared(method, x, y, ids)
    shown = method.objective.shown
    assert shown is not None
    with torch.no_grad():
        logits = method.plain.setting.model(*inputs)
        found = method.objective.loss(logits, *rest)
    adjuster = method.objective.serving
    expected = torch.zeros((), dtype=torch.float64)
    for network, part in enumerate(logits.chunk(2)):
        mixture, guess = shown.mixtures[network], shown.guesses[network]
        assert mixture is not None
        assert guess is not None
        given = adjuster(guess.logits, y, ids)
        for row in range(BATCH):
            values = []
            for z in (part[row], part[BATCH + row]):
                per_sample = []
                for sample in (row, int(mixture.partners[row])):
                    own = {name: h[sample : sample + 1] for name, h in given.items()}
                    value = (1 - 0.6 * guess.taken[sample]) * robust(adjuster, z, y[sample], own)
                    value = value + 0.7 * guess.weights[sample] * F.cross_entropy(z, guess.targets[sample])
                    if trusted is not None and trusted[ids[sample]]:
                        value = F.cross_entropy(z, y[sample])
                    per_sample.append(value.double())
                values.append(per_sample)
            (first, second), (strong, _) = values
            expected += (mixture.share * first + (1 - mixture.share) * second + 0.4 * strong) / BATCH
        mean = part.softmax(1).mean(0).double()
        expected += 0.3 * F.kl_div(mean.log(), torch.full((CLASSES,), 1 / CLASSES).double(), reduction="sum")
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_mixed_rows_are_mixed_and_strong_rows_are_not() -> None:
    method = boosted("T-GCE+", **NOW, networks=2)
    x, y, ids = batches(1)[0]
    rows, shown = method._boosted(views(x), y, ids)
    assert len(rows) == 2
    for part, mixture in zip(rows, shown.mixtures, strict=True):
        assert mixture is not None
        assert 0.5 <= mixture.share <= 1
        for row in range(BATCH):
            partner = int(mixture.partners[row])
            torch.testing.assert_close(part[row], mixture.share * x[row] + (1 - mixture.share) * x[partner])
        assert torch.equal(part[BATCH:], views(x)[1])
    assert not torch.equal(rows[0], rows[1])  # each network has mixtures of its own


def test_by_its_own_margins_a_mixture_has_the_expected_one() -> None:
    """The paper's form: the margin of a mixture's logits under its mixed target."""
    method = boosted("A-GCE+", **NOW, judge="own", consistency=0, strong=0, balance=0, ema=0, margin="latest")
    assert method.adjuster is not None
    bent(method.adjuster)
    x, y, ids = batches(1)[0]
    inputs, *rest = prepared(method, x, y, ids)
    shown = method.objective.shown
    assert shown is not None
    mixture = shown.mixtures[0]
    assert mixture is not None
    logits = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(4))
    found = method.objective.loss(logits, *rest)
    onehot = F.one_hot(y, CLASSES).float()
    targets = mixture.share * onehot + (1 - mixture.share) * onehot[mixture.partners]
    expected = method.adjuster.loss(logits, targets).mean()
    torch.testing.assert_close(found, expected)
    fields, margins = method.objective.observe(logits, *rest)
    torch.testing.assert_close(margins, margin(logits, targets))
    assert inputs.shape == x.shape
    assert set(fields) == {"q", "suspicion"}


@pytest.mark.parametrize("kind", ["margin", "loss"])
@pytest.mark.parametrize("temperature", [0.0, 0.25, 0.5, 1.0])
def test_guesses_are_sharpened_and_only_for_doubted_labels(temperature: float, kind: str) -> None:
    adjuster = adjusters_of("gce", "latest", 1)[0].refit([5, 5, 5])
    generator = torch.Generator().manual_seed(3)
    logits, y = 4 * torch.randn(200, CLASSES, generator=generator), torch.randint(0, 3, (200,), generator=generator)
    doubts, _ = DOUBTS[kind](None, CLASSES, 200, 0.9)(adjuster, logits, y, torch.arange(200))
    found = guessed(logits, doubts, temperature=temperature, confidence=0.6, suspicion=0.3)
    counted = 0
    for row in range(200):
        p = logits[row].double().softmax(0)
        power = p ** (1 / temperature) if temperature else (p == p.max()).double()
        torch.testing.assert_close(found.targets[row].double(), power / power.sum(), rtol=1e-4, atol=1e-6)
        weighs = doubts[row] >= 0.3 and p.max() >= 0.6
        assert float(found.weights[row]) == (float(doubts[row]) if weighs else 0.0)
        counted += bool(weighs)
        if logits[row].argmax() == y[row] and p.max() > 0.9:
            assert found.weights[row] == 0  # what fits its label is not told anything else
    assert 20 < counted < 180


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("unsure", ["keep", "drop"])
def test_what_a_guess_weighs_and_what_it_takes(certain: bool, unsure: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits, doubts = 2 * torch.randn(100, CLASSES, generator=generator), torch.rand(100, generator=generator)
    common: dict[str, Any] = {"temperature": 0.5, "confidence": 0.7, "suspicion": 0.4}
    found = guessed(logits, doubts, certain=certain, unsure=unsure, ramp=0.25, **common)
    kinds = set()
    for row in range(100):
        is_doubted, is_sure = float(doubts[row]) >= 0.4, float(logits[row].softmax(0).max()) >= 0.7
        strength = (1.0 if certain else float(doubts[row])) if is_doubted else 0.0
        assert float(found.weights[row]) == pytest.approx(0.25 * strength if is_sure else 0.0)
        assert float(found.taken[row]) == pytest.approx(strength if is_sure or unsure == "drop" else 0.0)
        kinds.add((is_doubted, is_sure))
    assert len(kinds) == 4
    assert torch.equal(found.of(torch.arange(99, -1, -1)).taken, found.taken.flip(0))


def test_a_label_half_doubted_pulls_its_sample_back_unless_that_is_certain() -> None:
    """Two classes compete, the wrong one is the label: where the objective's gradient vanishes, by cross entropy."""
    for p in (0.55, 0.7, 0.9):
        logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
        doubts = torch.tensor([p], dtype=torch.float64)  # the sigmoid of minus the margin
        wanted = {}
        for certain in (False, True):
            guess = guessed(logits, doubts, temperature=0.5, confidence=0.0, suspicion=0.5, certain=certain)
            label = (1 - guess.taken) * torch.tensor([0.0, 1.0], dtype=torch.float64)
            wanted[certain] = float((label + guess.weights * guess.targets[0])[0])
        assert wanted[False] == pytest.approx(p * p**2 / (p**2 + (1 - p) ** 2))
        assert wanted[False] < p < wanted[True]


def test_guesses_rise_over_the_ramp_and_labels_are_left_at_once() -> None:
    method = boosted("T-GCE+", boost_from=2 / 9, ramp=4 / 9, certain=True, unsure="drop", suspicion=0.0)
    shares = []
    for x, y, ids in batches(8):
        told = method._guesses(x, y, ids)[0]
        assert told is not None
        assert bool((told.taken == 1).all())
        shares.append(float(told.weights.max()))
        method.step(views(x), y, ids)
    assert shares == [0.0, 0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("memory", [0.9, 0.5, 0.0])
def test_doubts_go_by_averaged_margins_or_by_the_loss(memory: float) -> None:
    adjuster = adjusters_of("gce", "latest", 1)[0].refit([5, 5, 5])
    generator = torch.Generator().manual_seed(3)
    y, ids = torch.tensor([0, 1, 2, 0]), torch.tensor([7, 1, 3, 0])
    doubts, by_loss = DOUBTS["margin"](None, 3, 9, memory), DOUBTS["loss"](None, 3, 9, memory)
    average: list[float] = []
    for _ in range(4):
        logits = 3 * torch.randn(4, 3, generator=generator)
        p = logits.double().softmax(1)
        now = [math.log(p[i, y[i]]) - math.log(max(p[i, j] for j in range(3) if j != y[i])) for i in range(4)]
        average = [memory * old + (1 - memory) * new for old, new in zip(average or now, now, strict=True)]
        found, chances = doubts(adjuster, logits, y, ids)
        torch.testing.assert_close(chances, logits.softmax(1))
        expected = torch.tensor([1 / (1 + math.exp(m)) for m in average])
        torch.testing.assert_close(found, expected)
        doubts.remember(logits, y, ids)
        torch.testing.assert_close(
            by_loss(adjuster, logits, y, ids)[0], LastBatch(losses.get("gce"), logits, y, adjuster(logits, y)).suspicion
        )


@pytest.mark.parametrize("doubt", ["margin", "loss", "posterior"])
@pytest.mark.parametrize("boost_from", [0.0, 1.0])
def test_labels_that_are_known_to_be_right_are_not_doubted(doubt: str, boost_from: float) -> None:
    method = boosted("A-GCE+", trusted=CHECKED, doubt=doubt, boost_from=boost_from, networks=2)
    for x, y, ids in batches(3):
        suspicion = method.step(views(x), y, ids).hyperparameters["suspicion"]
        assert (suspicion[CHECKED[ids]] == 0).all()
        assert (suspicion[~CHECKED[ids]] > 0).all()
    assert "trusted" not in str(method.state_dict()["doubts"].keys()), "that is the data's"


def test_a_label_that_is_known_to_be_right_keeps_its_weight_whatever_the_options() -> None:
    logits, doubts = torch.randn(3, CLASSES), torch.tensor([0.0, 0.2, 0.9])
    found = guessed(logits, doubts, temperature=0.5, confidence=0.0, suspicion=0.0, certain=True, unsure="drop")
    assert found.weights.tolist() == found.taken.tolist() == [0.0, 1.0, 1.0]


def test_the_average_guesses_and_follows() -> None:
    method = boosted("T-GCE+", **NOW, ema=0.5)
    committee = method.setting.model
    assert isinstance(committee, Committee)
    assert committee.averages is not None
    expected = copy.deepcopy(committee.members[0].state_dict())
    for number, (x, y, ids) in enumerate(batches(5), start=1):
        told = method._guesses(x, y, ids)[0]
        assert told is not None
        torch.testing.assert_close(told.logits, committee.averages[0](x))
        method.step(views(x), y, ids)
        decay = min(0.5, number / (number + 9))
        for name, value in committee.members[0].state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
    for name, value in committee.averages[0].state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_of_two_networks_each_guesses_for_the_other(ema: float) -> None:
    method = boosted("T-GCE+", **NOW, networks=2, ema=ema)
    committee = method.setting.model
    assert isinstance(committee, Committee)
    run_in = batches(3)
    for x, y, ids in run_in:
        method.step(views(x), y, ids)
    x, y, ids = run_in[0]
    told = [guess.logits for guess in method._guesses(x, y, ids) if guess is not None]
    assert committee.training
    who = committee.members if committee.averages is None else committee.averages
    committee.eval()
    torch.testing.assert_close(told[0], who[1](x))
    torch.testing.assert_close(told[1], who[0](x))


def test_networks_do_not_move_each_other() -> None:
    """Without guesses, two networks in one step go where each would go alone, momentum and weight decay included."""
    options = {**OFF, "networks": 2}
    given = adjusters_of("gce", "latest")
    setting = setting_of("T-GCE+", options=options)
    pair = methods.build("T-GCE+", setting, adjusters=given, **options)
    assert isinstance(setting.model, Committee)
    alone = [copy.deepcopy(member) for member in setting.model.members]
    run(pair, batches(6))
    for member, model in zip(setting.model.members, alone, strict=True):
        own = setting_of(model=model)
        run(methods.build("T-GCE", own, adjusters=given), batches(6))
        for name, value in member.state_dict().items():
            torch.testing.assert_close(value, model.state_dict()[name])


def test_reports_are_of_the_samples() -> None:
    method = boosted("A-SL+", **NOW, networks=2)
    x, y, ids = batches(1)[0]
    guesses = [guess.logits for guess in method._guesses(x, y, ids) if guess is not None]
    report = method.step(views(x), y, ids)
    together = torch.stack([logits.softmax(1) for logits in guesses]).mean(0).log()
    assert report.margins is not None
    assert report.rivals is not None
    torch.testing.assert_close(report.margins, margin(together, y))
    assert report.rivals.shape == (BATCH,)
    assert set(report.hyperparameters) == set(method.fields) == {"gamma1", "gamma2", "suspicion"}
    assert all(values.shape == (BATCH,) for values in report.hyperparameters.values())
    adjuster = method.adjuster
    assert adjuster is not None
    assert adjuster.running is not None
    torch.testing.assert_close(adjuster.running.table[ids], report.margins)  # remembered once a step


@pytest.mark.parametrize("name", ["A-GCE+", "T-GCE+"])
@pytest.mark.parametrize("boost_from", [0, 1])
def test_where_steps_only_note_what_is_not_finite_no_state_is_written(name: str, boost_from: float) -> None:
    noted = Noted(torch.device("cpu"))  # on a GPU it is there without asking
    own = {"every": 10} if name == "A-GCE+" else {}  # a meta step looks for itself
    method = built(name, setting_of(name, noted=noted), boost_from=boost_from, **own)
    run(method, batches(2))
    method.state_dict()
    assert isinstance(method, Boosted)
    weight = next(method.members[0].parameters())
    handle = weight.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
    run(method, batches(1))
    handle.remove()
    with pytest.raises(NonFiniteError, match="training diverged"):
        method.state_dict()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("A-GCE+", {"networks": 2}),
        ("A-GCE+", {"networks": 2, "doubt": "posterior", "suspicion": 0.0}),
        ("T-JS+", {"networks": 2, "ema": 0}),
    ],
)
def test_two_networks_stopped_and_resumed_are_bitwise_the_uninterrupted_run(name: str, options: dict[str, Any]) -> None:
    def make() -> tuple[Setting, Method]:
        setting = setting_of(name, options=options)
        return setting, built(name, setting, **options, boost_from=0.3)

    interrupted(make, 4, 7)


def seeing_progress() -> list[Adjuster]:
    """Snapshots that make something else of a margin as the training goes on."""
    generator = torch.Generator().manual_seed(5)
    made = [
        Adjuster("gce", [90, 80, 10, 10], margin="running", input="margin+progress", generator=generator)
        for _ in range(2)
    ]
    for adjuster in made:
        nn.init.normal_(adjuster.heads.weight, std=1.0, generator=generator)
    return made


@pytest.mark.parametrize("boost_from", [0, 0.3])
def test_labels_are_doubted_by_the_adjuster_of_the_step_also_after_a_resume(boost_from: float) -> None:
    options = {"doubt": "loss", "suspicion": 0.0, "confidence": 0.0, "boost_from": boost_from}

    def make() -> tuple[Setting, Method]:
        setting = setting_of("T-GCE+", options=options)
        return setting, built("T-GCE+", setting, adjusters=seeing_progress(), **options)

    interrupted(make, 4, 7)
    setting, method = make()
    assert isinstance(method, Boosted)
    run(method, batches(5))
    (x, y, ids) = batches(6)[5]
    method.prepared(shown(method, x), y, ids)
    assert method.objective.serving.progress == pytest.approx(5 / setting.total_steps)


def test_batches_of_what_is_believed_need_no_other_part() -> None:
    method = built("A-GCE+", setting_of("A-GCE+", options=OFF), **OFF, **NOW, believed=0.5)
    given = [ids for *_, ids in batches(2)]
    run(method, batches(2))
    method.begin_epoch(1, lambda module: torch.zeros(0))
    found = method.redrawn(given, 1, torch.Generator())
    assert any(not torch.equal(ours, theirs) for ours, theirs in zip(found, given, strict=True))


@pytest.mark.parametrize("name", ["T-GCE+", "DivideMix"])
def test_what_is_no_batch_for_it_is_refused_before_anything_moves(name: str) -> None:
    setting = setting_of(name, kind="image")
    method = built(name, setting)
    before = copy.deepcopy(setting.model.state_dict())
    (x, y, ids) = batches(1)[0]
    wanted = rf"{re.escape(name)} wants 2 views of every batch, a tuple .usual, .*, and got"
    for wrong, got in ((x, "one Tensor"), ((x,), "1 inputs"), ((x, x, x), "3 inputs")):
        with pytest.raises(OptionError, match=f"{wanted} {got}"):
            method.step(wrong, y, ids)
    assert_same(setting.model.state_dict(), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids: ids + SAMPLES, f"but the training set has {SAMPLES} samples"),
        (lambda ids: ids - SAMPLES, f"but the training set has {SAMPLES} samples"),
        (lambda ids: ids[:-4], f"don't name {BATCH} samples"),
        (lambda ids: ids[:1], r"shape \(1,\)"),
        (lambda ids: ids[:, None], rf"shape \({BATCH}, 1\)"),
        (lambda ids: ids.float(), "type torch.float32"),
        (lambda ids: ids > 0, "type torch.bool"),
        (lambda ids: ids.tolist(), "ids are a list: pass a tensor"),
    ],
    ids=["above", "below", "too few", "one", "column", "float", "bool", "list"],
)
@pytest.mark.parametrize("begins", [0.0, 0.5])
def test_ids_that_name_no_samples_are_refused_before_anything_moves(
    change: Callable[[Tensor], Any], words: str, begins: float
) -> None:
    options = {"boost_from": begins, "doubt": "posterior"}
    setting = setting_of("A-GCE+", options=options)
    method = built("A-GCE+", setting, **options)
    assert isinstance(method, Boosted)
    (x, y, ids) = batches(1)[0]
    before = copy.deepcopy((setting.model.state_dict(), method.state_dict(), setting.optimizer.state_dict()))
    with pytest.raises(SampleIdsError, match=words):
        method.step(shown(method, x), y, change(ids))
    assert method.steps == 0
    assert_same((setting.model.state_dict(), method.state_dict(), setting.optimizer.state_dict()), before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_ids_may_be_of_any_integer_type(dtype: torch.dtype) -> None:
    methods_of = [boosted("A-GCE+", trusted=CHECKED, believed=0.5, doubt="posterior", **NOW) for _ in range(2)]
    for method, kind in zip(methods_of, (torch.int64, dtype), strict=True):
        for x, y, ids in batches(3):
            method.step(shown(method, x), y, ids.to(kind))
    own, other = (method.state_dict() for method in methods_of)
    assert_same(other, own)


def test_the_prior_is_that_of_the_labels_only_where_classes_are_uneven() -> None:
    def prior(counts: list[int], **options: Any) -> list[float]:
        method = built("T-GCE+", setting_of("T-GCE+", class_counts=torch.tensor(counts)), **options)
        assert isinstance(method, Boosted)
        return [round(share, 3) for share in method.objective.prior.tolist()]

    assert prior([10, 20, 30]) == [0.333] * 3
    assert prior([10, 20, 70]) == [0.1, 0.2, 0.7]
    assert prior([10, 20, 70], prior="uniform") == [0.333] * 3
    assert prior([20, 20, 10], prior="given") == [0.4, 0.4, 0.2]
    z = torch.randn(9, 3, requires_grad=True)
    descended = z - 0.1 * torch.autograd.grad(divergence(torch.tensor([0.2, 0.3, 0.5]), z), z)[0]
    assert divergence(torch.tensor([0.2, 0.3, 0.5]), descended) < divergence(torch.tensor([0.2, 0.3, 0.5]), z)


def test_what_a_kind_of_data_cannot_have_is_refused() -> None:
    assert Parts().for_kind("image") == replace(Parts(), mixup=4.0, strong=1.0)
    assert Parts().for_kind("table") == replace(Parts(), mixup=1.0, strong=0.0)
    assert Parts().for_kind("text") == replace(Parts(), mixup=0.0, strong=0.0)
    with pytest.raises(OptionError, match="texts cannot be mixed"):
        Parts(mixup=1.0).for_kind("text")
    with pytest.raises(OptionError, match="strong views are for images, and these are tables"):
        Parts(strong=1.0).for_kind("table")
    with pytest.raises(OptionError, match="trains a committee, but the model is a Sequential"):
        built("A-GCE+", setting_of())
    with pytest.raises(OptionError, match="no weights of samples"):
        built("A-GCE+", setting_of("A-GCE+", weights=torch.ones(48)))


def test_of_a_row_s_categories_the_sample_s_own_stay() -> None:
    setting = setting_of("T-GCE+", kind="table", shape={"numbers": 3, "cardinalities": [4, 4]})
    method = built("T-GCE+", setting, **NOW)
    assert isinstance(method, Boosted)
    x, y, ids = batches(1)[0]
    (rows,), _ = method._boosted((x,), y, ids)
    assert torch.equal(rows[:, 3:], x[:, 3:])
    assert not torch.equal(rows[:, :3], x[:, :3])


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures with stripes along, across, or none; two fifths of the labels are wrong."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 360)
    wave = np.sin(np.arange(8) * np.pi / 2 + 1)
    patterns = np.stack([np.tile(wave, (8, 1)), np.tile(wave, (8, 1)).T, np.zeros((8, 8))])
    images = 128 + 60 * patterns[true][..., None] + rng.normal(0, 40, (360, 8, 8, 3))
    wrong = rng.random(360) < 0.4
    given = np.where(wrong, (true + rng.integers(1, 3, 360)) % 3, true)
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(path, x=images.clip(0, 255).astype(np.uint8), y=given, y_true=true)
    return path


def asked(data: Path, method: str, **changes: Any) -> Settings:
    usual: dict[str, Any] = {"clean": "30" if method.startswith("A-") else "none", "test": "0.2", "epochs": 6}
    usual |= {"model": "mlp", "batch_size": 32, "schedule": "cosine", "learning_rate": 0.05, "augment": "none"}
    return Settings(data=str(data), method=method, device="cpu", threads=1, **{**usual, **changes})


def test_a_boosted_run_learns_resumes_bitwise_and_keeps_its_adjusters(stripes: Path, tmp_path: Path) -> None:
    settings = asked(stripes, "A-GCE+", options={"networks": 2, "ema": 0.9, "every": 3}, epochs=5)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    outcome = start(plan(settings), whole, tensorboard=False)
    assert outcome.summary["last"]["test_accuracy"] > 0.8  # two fifths of the labels are wrong
    assert not start(plan(settings), parts, observer=StopAt(20), tensorboard=False).finished
    assert resume(parts, tensorboard=False).finished
    assert files(parts) == files(whole)
    assert len(load_adjusters([str(whole)])) == 4  # before the training, and along it
    model = Trained(whole, device="cpu").model
    assert isinstance(model, Committee)
    assert len(model.members) == 2
    record = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    wrong, right = (record[f"hyperparameters_{which}"]["suspicion"] for which in ("mislabelled", "clean"))
    assert wrong > right + 0.1


def test_a_transferred_one_runs_too(stripes: Path, tmp_path: Path) -> None:
    shipped = adjusters_of("gce", "latest", 1)[0]
    shipped.save(tmp_path / "gce.safetensors")
    settings = asked(stripes, "T-GCE+", adjusters=(str(tmp_path / "gce.safetensors"),), epochs=2)
    outcome = start(plan(settings), tmp_path / "run", tensorboard=False)
    assert outcome.finished
    assert outcome.summary["method"] == "T-GCE+"


def test_the_documented_options_are_those_that_there_are() -> None:
    page = (Path(__file__).parent.parent / "docs" / "boost.md").read_text()
    shown = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", page, re.M)
    assert shown == [(name, str(option.default).lower(), option.description) for name, option in OPTIONS.items()]


def test_boost_is_a_plus_behind_the_method_s_name(stripes: Path) -> None:
    def method(*more: object) -> str:
        answer = done("train", stripes, "--dry-run", "--json", "--device", "cpu", "--epochs", 1, *more)
        shown: str = json.loads(answer.out)["recipe"]["method"]
        return shown

    assert method("--clean", 30, "--boost") == "A-GCE+"
    assert method("--clean", 30, "--loss", "sl", "--boost", "--option", "mixup=0") == "A-SL+"
    assert method("--clean", 30, "--method", "a-js+", "--boost") == "A-JS+"
    assert "--boost" in done("train", "--help").out
    assert "GCE has no boosted form" in refused("train", stripes, "--method", "GCE", "--boost")
    for name in ("Forward", "GCE", "MW-Net", "ELR"):
        with pytest.raises(OptionError, match=f"{name} has no boosted form: only adjusted losses have one"):
            methods.boosted_form(name)
    assert methods.boosted_form("T-sl") == methods.boosted_form("T-SL+") == "T-SL+"
