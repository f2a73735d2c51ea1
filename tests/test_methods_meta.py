"""Methods that learn their loss, and the use of what they learned: A-*, MW-Net, T-*."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import narl
from methods_problem import (
    BATCH,
    CLASSES,
    adjusters_of,
    assert_same,
    batches,
    built,
    data,
    interrupted,
    model_of,
    run,
    setting_of,
)
from narl import errors
from narl.train.methods import Method, Setting
from narl.train.methods.adjusted import Adjusted
from narl.train.methods.meta import MetaMethod, auto_every, auto_learning_rate
from narl.train.methods.meta_weight_net import MetaWeightNet, WeightNet
from narl.train.methods.transferred import Transferred
from oracles import relative_error, unrolled


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("virtual", ["optimizer", "sgd"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_hypergradient_of_the_weight_net_is_that_of_unrolling(kind: str, virtual: str, normalise: bool) -> None:
    model = model_of().double()
    net = WeightNet(20, normalise=normalise, generator=torch.Generator().manual_seed(0)).double()
    parameters = model.parameters()
    optimizer: Any = (
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if kind == "sgd" else torch.optim.Adam(parameters, lr=0.01)
    )
    x, _, true = data()
    for _ in range(2):  # the second time with momentum
        batch = batches(1)[0][0].double(), batches(1)[0][1]
        clean = x[:20].double(), true[:20]
        found = narl.hypergradient(model, optimizer, net, batch, clean, virtual=virtual)
        expected = unrolled(model, optimizer, net, batch, clean, virtual)
        assert relative_error(found, expected) < 1e-7
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@given(st.integers(0, 10_000), st.integers(1, 9), st.booleans())
def test_weights_carry_no_gradient_and_have_the_mean_one_if_normalised(seed: int, n: int, normalise: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = WeightNet(normalise=normalise, generator=generator).double()
    logits = torch.randn(n, 4, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.randint(0, 4, (n,), generator=generator)
    cross_entropy = F.cross_entropy(logits, y, reduction="none")
    weights = net.weights(cross_entropy.detach()).detach()
    values = net.loss(logits, y)
    naive = cross_entropy * weights * (n / weights.sum() if normalise else 1)
    torch.testing.assert_close(values, naive)
    (found,) = torch.autograd.grad(values.mean(), logits)
    (expected,) = torch.autograd.grad(naive.mean(), logits)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(net.observe(logits.detach(), y)[0]["weight"], weights)


def test_a_weight_net_that_gives_nothing_is_no_division_by_zero() -> None:
    net = WeightNet(normalise=True)
    nn.init.constant_(net.output.bias, -1e4)
    values = net.loss(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    assert torch.equal(values, torch.zeros(3))


def test_a_run_of_mw_net_is_algorithm_1_with_its_loss() -> None:
    setting, reference = setting_of(total=9), setting_of(total=9)
    method = built("MW-Net", setting, every=2, adjuster_lr=0.05)
    assert isinstance(method, MetaWeightNet)
    net = WeightNet(generator=torch.Generator().manual_seed(5))
    outer = torch.optim.Adam(net.parameters(), lr=0.05, weight_decay=1e-4)
    meta = narl.MetaStep(reference.model, reference.optimizer, net, every=2, adjuster_optimizer=outer)
    assert reference.clean is not None
    for x, y, ids in batches(6):
        assert_same(vars(method.step(x, y, ids)), vars(meta.step(x, y, reference.clean)))
    assert_same(setting.model.state_dict(), reference.model.state_dict())
    assert_same(method.net.state_dict(), net.state_dict())


@pytest.mark.parametrize("margin", ["latest", "running"])
def test_a_run_of_an_adjusted_loss_is_algorithm_1(margin: str) -> None:
    setting, reference = setting_of(total=9), setting_of(total=9)
    method = built("A-SL", setting, margin=margin, every=3, adjuster_lr=0.02, families=2, hidden=7)
    adjuster = narl.Adjuster(
        "sl", setting.class_counts, 2, 7, margin=margin, generator=torch.Generator().manual_seed(5)
    )
    decay = {"latest": 1e-4, "running": 1e-5}[margin]
    outer = torch.optim.Adam(adjuster.parameters(), lr=0.02, weight_decay=decay)
    meta = narl.MetaStep(reference.model, reference.optimizer, adjuster, every=3, adjuster_optimizer=outer)
    assert method.fields == ("gamma1", "gamma2")
    for x, y, ids in batches(7):
        assert_same(vars(method.step(x, y, ids)), vars(meta.step(x, y, reference.clean, ids)))
    assert method.adjuster is not None
    assert_same(method.adjuster.state_dict(), adjuster.state_dict())


OPTIONS: list[dict[str, Any]] = [
    {},
    {"every": 2, "warmup": 0.4},
    {"margin": "latest", "follow_schedule": True},
    {"virtual": "sgd", "tangent": "reverse", "families": 2, "hidden": 9},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_adjusted_runs_resume_bitwise_with_any_options(options: dict[str, Any], stop: int) -> None:
    def make() -> tuple[Setting, Method]:
        setting = setting_of()
        return setting, built("A-GCE", setting, **options)

    interrupted(make, stop, 7)


@settings(max_examples=15)
@given(
    stop=st.integers(0, 6),
    every=st.one_of(st.none(), st.integers(1, 4)),
    warmup=st.floats(0, 1),
    follow=st.booleans(),
    margin=st.sampled_from(["running", "latest"]),
)
def test_any_state_can_be_taken_and_given_back(
    stop: int, every: int | None, warmup: float, follow: bool, margin: str
) -> None:
    options: dict[str, Any] = {"every": every, "warmup": warmup, "follow_schedule": follow, "margin": margin}
    method, other = (built("A-JS", setting_of(), **options) for _ in range(2))
    run(method, batches(stop))
    state = copy.deepcopy(method.state_dict())
    other.load_state_dict(state)
    assert_same(other.state_dict(), state)


def test_warmup_leaves_the_adjuster_alone_and_trains_with_its_start() -> None:
    setting, reference = setting_of(total=8), setting_of(total=8)
    method = built("A-GCE", setting, warmup=0.5, every=2)
    fixed = built("GCE", reference, q=0.3)
    assert isinstance(method, Adjusted)
    start = [parameter.detach().clone() for parameter in method.adjuster.parameters()]
    for t, (x, y, ids) in enumerate(batches(8)):
        report = method.step(x, y, ids)
        assert (report.meta_loss is not None) == (t in (4, 6))
        if t < 4:
            torch.testing.assert_close(report.loss, fixed.step(x, y, ids).loss)
            assert all(torch.equal(a, b) for a, b in zip(start, method.adjuster.parameters(), strict=True))
            assert all(parameter.grad is None for parameter in method.adjuster.parameters())
    assert not torch.equal(start[-1], list(method.adjuster.parameters())[-1])


def test_warmup_of_the_whole_run_never_asks_for_clean_samples() -> None:
    method = built("MW-Net", setting_of(clean=True, total=5), warmup=1.0)
    assert all(report.meta_loss is None for report in run(method, batches(5)))


def test_the_learning_rate_follows_the_schedule_if_asked() -> None:
    for follow in (True, False):
        setting = setting_of()
        method = built("A-GCE", setting, follow_schedule=follow, adjuster_lr=0.01)
        assert isinstance(method, Adjusted)
        seen = []
        for lr, batch in zip((0.05, 0.1, 0.01, 0.0), batches(4), strict=True):
            for group in setting.optimizer.param_groups:
                group["lr"] = lr
            method.step(*batch)
            group = method._meta.adjuster_optimizer.param_groups[0]
            seen.append(group["lr"])
            assert group["weight_decay"] == pytest.approx(1e-5 / 0.01 * group["lr"])
        assert seen == pytest.approx([0.01, 0.01, 0.001, 0.0] if follow else [0.01] * 4)


@given(st.integers(1, 10**6))
def test_automatic_numbers_are_within_bounds_and_monotone(steps: int) -> None:
    assert 1 <= auto_every(steps) <= 10
    assert auto_every(steps) <= auto_every(2 * steps)
    assert 1e-3 <= auto_learning_rate(steps) <= 1e-2
    assert auto_learning_rate(steps) >= auto_learning_rate(2 * steps)


@pytest.mark.parametrize(("total", "every", "rate"), [(500, 1, 0.01), (60_000, 10, 0.001), (10_000, 2, 0.003)])
def test_automatic_numbers_reach_the_step(total: int, every: int, rate: float) -> None:
    for name in ("A-GCE", "MW-Net"):
        method = built(name, setting_of(total=total))
        assert isinstance(method, MetaMethod)
        assert method.every == every
        assert method.adjuster_lr == pytest.approx(rate)


def test_a_whole_run_has_three_snapshots() -> None:
    for total in (1, 2, 3, 7, 9):
        method = built("A-GCE", setting_of(total=total))
        assert isinstance(method, Adjusted)
        learned = []
        for batch in batches(total):
            method.step(*batch)
            learned.append(copy.deepcopy(dict(method.adjuster.named_parameters())))
        for number, snapshot in enumerate(method.snapshots, start=1):
            due = math.ceil(number * total / 3)
            assert_same(dict(snapshot.named_parameters()), learned[due - 1])
            assert snapshot.running is not None
            assert len(snapshot.running.table) == 0
            assert all(parameter.grad is None for parameter in snapshot.parameters())
        assert len(method.snapshots) == 3


def test_a_run_that_ends_early_has_three_snapshots_too() -> None:
    method = built("A-GCE", setting_of(total=9))
    assert isinstance(method, Adjusted)
    run(method, batches(4))
    first, second, third = (dict(snapshot.named_parameters()) for snapshot in method.snapshots)
    now = dict(method.adjuster.named_parameters())
    assert_same(second, now)
    assert_same(third, now)
    assert not torch.equal(first["heads.bias"], now["heads.bias"])
    criterion = narl.AdjustedLoss(method.snapshots, setting_of().class_counts)
    assert criterion(torch.zeros(2, CLASSES), torch.tensor([0, 1]), progress=1.0, ids=torch.arange(2)).isfinite()


@pytest.mark.parametrize("margin", ["latest", "running"])
def test_transfer_is_training_with_the_criterion(margin: str) -> None:
    given = adjusters_of("gce", margin)
    setting, reference = setting_of(clean=False, total=6), setting_of(total=6)
    method = built("T-GCE", setting, adjusters=given)
    criterion = narl.AdjustedLoss(given, setting.class_counts)
    for t, (x, y, ids) in enumerate(batches(6)):
        report = method.step(x, y, ids)
        logits = reference.model(x)
        expected = criterion.at(t / 6)
        assert_same(dict(report.hyperparameters), {"q": expected(logits, y, ids)["q"].detach()})
        loss = criterion(logits, y, progress=t / 6, ids=ids)
        reference.optimizer.zero_grad()
        loss.backward()
        reference.optimizer.step()
        torch.testing.assert_close(report.loss, loss.detach())
    for ours, theirs in zip(setting.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    run(method, batches(2))  # a training that is longer than planned stays with the last snapshot
    assert isinstance(method, Transferred)
    for ours, theirs in zip(method.current.parameters(), method.criterion.at(1.0).parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert method.adjuster is None


def test_transfer_takes_one_adjuster_or_several_and_files(tmp_path: Any) -> None:
    one = adjusters_of("gce", count=1)[0]
    one.save(tmp_path / "a.safetensors")
    given: list[Any] = [one, [one], (one,), tmp_path / "a.safetensors", [str(tmp_path / "a.safetensors")] * 3]
    batch = batches(1)[0]
    first = built("T-GCE", adjusters=one).step(*batch)
    for adjusters in given:
        assert_same(vars(built("T-GCE", adjusters=adjusters).step(*batch)), vars(first))
    assert first.hyperparameters["q"].shape == (BATCH,)


@pytest.mark.parametrize(
    ("adjusters", "words"),
    [
        (None, "an adjuster of 'gce' is needed"),
        ([], "an adjuster of 'gce' is needed"),
        (adjusters_of("js"), "adjusts 'js', not 'gce': choose the method of its loss, T-JS"),
        ([5], "got int, no adjuster"),
        (5, "got int, no adjuster"),
    ],
)
def test_adjusters_that_cannot_serve(adjusters: Any, words: str) -> None:
    with pytest.raises(errors.OptionError, match=words):
        built("T-GCE", adjusters=adjusters)


@pytest.mark.parametrize(
    "options",
    [{"every": 0}, {"warmup": 1.5}, {"adjuster_lr": -1.0}, {"virtual": "adam"}, {"tangent": "x"}, {"hidden": 0}],
)
def test_options_outside_their_values(options: dict[str, Any]) -> None:
    for name in ("A-GCE", "MW-Net"):
        with pytest.raises(errors.OptionError, match=next(iter(options))):
            built(name, **options)


def test_learned_from_the_generator_alone() -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.rand(3)  # the global generator has moved on
        setting = setting_of(generator=torch.Generator().manual_seed(seed))
        parts = built("A-GCE", setting), built("MW-Net", setting)
        assert isinstance(parts[0], Adjusted)
        assert isinstance(parts[1], MetaWeightNet)
        return [parts[0].adjuster.hidden.weight, parts[1].net.hidden.weight, parts[1].net.output.bias]

    for ours, theirs, others in zip(weights(1), weights(1), weights(2), strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, others)
