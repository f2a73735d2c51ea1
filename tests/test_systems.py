"""What defines the compared systems: which samples are selected, which targets are used, which network moves."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from documented import ROOT
from methods_problem import BATCH, CLASSES, SAMPLES, batches, built, data, interrupted, run, setting_of
from narl import errors, margin
from narl.audit import from_run
from narl.models.committee import Committee
from narl.train import Settings, Trained, methods, plan, resume, start
from narl.train.methods import Method, Setting
from narl.train.methods.co_teaching import CoTeaching, forget_rate
from narl.train.methods.divide_mix import DivideMix
from narl.train.methods.elr import ELR
from narl.train.methods.elr_plus import ELRPlus
from narl.train.methods.mentornet import MentorNet
from narl.train.methods.mixing import beta_share, partners, sigmoid_ramp
from narl.train.record import SampleRecord
from test_train_session import StopAt, files

SYSTEMS = ("MentorNet", "Co-teaching", "ELR", "ELR+", "DivideMix")


def made(name: str, **options: Any) -> tuple[Setting, Any]:
    setting = setting_of(name, options=options)
    return setting, built(name, setting, **options)


def committee_of(setting: Setting) -> Committee:
    assert isinstance(setting.model, Committee)
    return setting.model


def look_at(x: Tensor) -> Any:
    """As the loop looks at all samples."""

    def look(module: nn.Module) -> Tensor:
        before = module.training
        module.eval()
        with torch.no_grad():
            found: Tensor = module(x)
        module.train(before)
        return found

    return look


def answering(logits: Tensor) -> Any:
    """A look that has its answers ready, one a network."""
    answers = iter(logits)
    return lambda module: next(answers)


# Co-teaching


@pytest.mark.parametrize("epoch", [0, 3, 30])
def test_two_networks_are_trained_on_each_other_s_small_losses(epoch: int) -> None:
    """Against two networks with an optimiser each, sample by sample."""
    setting, method = made("Co-teaching", forget=0.5, gradual=10)
    assert isinstance(method, CoTeaching)
    method.begin_epoch(epoch, look_at(data()[0]))
    nets = [copy.deepcopy(member) for member in committee_of(setting).members]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    for x, y, ids in batches(3):
        report = method.step(x, y, ids)
        outputs = [net(x) for net in nets]
        kept = int((1 - forget_rate(epoch, 0.5, 10)) * len(y) + 1e-9)
        chosen = []
        for output in outputs:
            pairs = zip(output.detach(), y, strict=True)
            values = [float(F.cross_entropy(z[None], label[None])) for z, label in pairs]
            chosen.append(sorted(range(len(y)), key=values.__getitem__)[:kept])
        for optimizer, output, rows in zip(optimizers, outputs, reversed(chosen), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(output[rows], y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        share = torch.tensor([sum(i in rows for rows in chosen) / 2 for i in range(len(y))])
        assert torch.equal(report.hyperparameters["selected"], share)
    for net, member in zip(nets, committee_of(setting).members, strict=True):
        for ours, theirs in zip(member.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert len(set(share.tolist())) > 1 or epoch == 0


# ELR and ELR+


def test_elr_targets_follow_the_average_of_the_predictions() -> None:
    setting, method = made("ELR", strength=2.0, decay=0.6)
    assert isinstance(method, ELR)
    targets = torch.zeros(SAMPLES, CLASSES)
    for x, y, ids in batches(4):
        logits = copy.deepcopy(setting.model)(x).detach()
        expected = []
        for z, label, i in zip(logits, y, ids, strict=True):
            targets[i] = 0.6 * targets[i] + 0.4 * z.softmax(0)
            expected.append(-torch.log(z.softmax(0)[label]) + 2 * torch.log(1 - z.softmax(0) @ targets[i]))
        report = method.step(x, y, ids)
        torch.testing.assert_close(report.loss, torch.stack(expected).mean())
        torch.testing.assert_close(method.memory.targets, targets)
        torch.testing.assert_close(report.hyperparameters["agreement"], targets[ids, y])


def test_elr_without_strength_is_cross_entropy() -> None:
    setting, method = made("ELR", strength=0.0)
    plain = setting_of()
    reference = built("CE", plain)
    run(method, batches(3))
    run(reference, batches(3))
    for ours, theirs in zip(setting.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_elr_plus_targets_come_from_the_other_network_s_average() -> None:
    setting, method = made("ELR+", decay=0.6, average=0.9, average_ramp=1.0, strength=2.0)
    assert isinstance(method, ELRPlus)
    committee = committee_of(setting)
    assert committee.averages is not None
    targets = torch.zeros(2, SAMPLES, CLASSES)
    generator = torch.Generator().manual_seed(5)
    for number, (x, y, ids) in enumerate(batches(4)):
        before = copy.deepcopy(committee)
        assert before.averages is not None
        predicted = [average(x).softmax(1).clamp(1e-4, 1 - 1e-4) for average in before.averages]
        total = torch.zeros(())
        mixtures = [(partners(BATCH, generator, x.device), beta_share(1.0, generator)) for _ in range(2)]
        for k, (order, share) in enumerate(mixtures):
            guess = predicted[1 - k] / predicted[1 - k].sum(1, keepdim=True)
            targets[k, ids] = 0.6 * targets[k, ids] + 0.4 * guess
            z = before.members[k](share * x + (1 - share) * x[order])
            hot = F.one_hot(y, CLASSES).float()
            label, target = (share * each + (1 - share) * each[order] for each in (hot, targets[k, ids]))
            p = z.softmax(1)
            total = total + (-(label * p.log()).sum(1) + 2 * torch.log(1 - (p * target).sum(1))).mean() / 2
        report = method.step(x, y, ids)
        torch.testing.assert_close(report.loss, total.detach(), rtol=1e-4, atol=1e-5)
        for memory, expected in zip(method.memories, targets, strict=True):
            torch.testing.assert_close(memory.targets, expected)
        torch.testing.assert_close(report.hyperparameters["agreement"], targets[:, ids, y].mean(0))
        torch.testing.assert_close(report.margins, margin(before(x).detach(), y))
        decay = 0.9 * sigmoid_ramp(number + 1, setting.total_steps)
        pairs = zip(before.averages.parameters(), committee.members.parameters(), strict=True)
        for now, (old, new) in zip(committee.averages.parameters(), pairs, strict=True):
            torch.testing.assert_close(now.data, decay * old.data + (1 - decay) * new.data)


# DivideMix


def in_second_phase(**options: Any) -> tuple[Setting, DivideMix, list[Tensor]]:
    """After a warm-up of a few steps, at the beginning of the next epoch."""
    setting, method = made("DivideMix", warmup=1, **options)
    assert isinstance(method, DivideMix)
    method.begin_epoch(0, look_at(data()[0]))
    assert method.rows(0, torch.Generator()) is None
    run(method, batches(3))
    method.begin_epoch(1, look_at(data()[0]))
    rows = method.rows(1, torch.Generator().manual_seed(7))
    assert rows is not None
    return setting, method, rows


def test_the_warm_up_is_cross_entropy_of_a_view_for_each_network() -> None:
    for penalty in (False, True):
        setting, method = made("DivideMix", penalty=penalty)
        nets = [copy.deepcopy(member) for member in committee_of(setting).members]
        x, y, ids = batches(1)[0]
        views = (x, x + 0.3)
        report = method.step(views, y, ids)
        expected = torch.zeros(())
        for net, view in zip(nets, views, strict=True):
            p = net(view).softmax(1)
            expected = expected + F.nll_loss(p.log(), y) + penalty * (p * p.log()).sum(1).mean()
        torch.testing.assert_close(report.loss, expected.detach() / 2)
        assert (report.hyperparameters["clean"] == 1).all()


def test_each_network_is_given_what_the_other_one_trusts() -> None:
    _, method, rows = in_second_phase()
    assert method.clean is not None
    for network in range(2):
        own = [(part, kept) for part, (k, kept, _) in zip(rows, method._batches, strict=True) if k == network]
        trusted = (method.clean[1 - network] > 0.5).nonzero().squeeze(1).tolist()
        labelled = torch.cat([part[:kept] for part, kept in own]).tolist()
        assert sorted(labelled) == trusted  # each once
        for part, kept in own:
            assert len(part) - kept == min(kept, SAMPLES - len(trusted))
            assert len(set(part.tolist())) == len(part)
            assert not set(part[kept:].tolist()) & set(trusted)
    assert [k for k, _, _ in method._batches] == sorted(k for k, _, _ in method._batches)
    again = method.rows(1, torch.Generator().manual_seed(7))
    assert again is not None
    assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))


@pytest.mark.parametrize(("clean", "labelled"), [(0.0, BATCH // 2), (1.0, SAMPLES), (0.5, BATCH // 2), (0.51, SAMPLES)])
def test_one_sided_divisions(clean: float, labelled: int) -> None:
    """Where nobody is trusted, a batch of the likeliest is; where everybody is, nothing is guessed."""
    _, method, _ = in_second_phase()
    method.clean = torch.full((2, SAMPLES), clean)
    rows = method.rows(1, torch.Generator())
    assert rows is not None
    assert sum(kept for k, kept, _ in method._batches if k == 0) == labelled
    x, noisy, _ = data()
    for part in rows:
        report = method.step((x[part], x[part]), noisy[part], part)
        assert report.loss.isfinite()


def test_a_step_is_that_of_a_loop_and_moves_one_network() -> None:
    setting, method, rows = in_second_phase(unlabelled=5.0, rampup=2.0, temperature=0.5, alpha=4.0)
    committee = committee_of(setting)
    assert method.clean is not None
    x, noisy, _ = data()
    generator = torch.Generator()
    generator.set_state(setting.generator.get_state())
    moved: set[int] = set()
    for part, (k, kept, done) in zip(rows, method._batches, strict=True):
        views, y = (x[part], x[part] + 0.1), noisy[part]
        own, other = copy.deepcopy(committee.members[k]), copy.deepcopy(committee.members[1 - k]).eval()
        momentum = {
            p: state["momentum_buffer"].clone()
            for p, state in setting.optimizer.state.items()
            if any(p is q for q in committee.members[1 - k].parameters())
        }
        report = method.step(views, y, part)

        order, share = partners(2 * len(part), generator, x.device), beta_share(4.0, generator)
        with torch.no_grad():
            mine = own(torch.cat(views)).softmax(1).view(2, len(part), CLASSES)
            theirs = [other(view).softmax(1) for view in views]
        targets = []
        for i in range(len(part)):
            if i < kept:
                w = method.clean[1 - k, part[i]]
                guess = w * torch.eye(CLASSES)[y[i]] + (1 - w) * (mine[0, i] + mine[1, i]) / 2
            else:
                guess = (mine[0, i] + mine[1, i] + theirs[0][i] + theirs[1][i]) / 4
            targets.append(guess**2 / (guess**2).sum())
        inputs, wanted = torch.cat(views), torch.stack([*targets, *targets])
        z = own(share * inputs + (1 - share) * inputs[order])
        wanted, p = share * wanted + (1 - share) * wanted[order], z.softmax(1)
        labelled = [i for i in range(2 * len(part)) if i % len(part) < kept]
        others = [i for i in range(2 * len(part)) if i % len(part) >= kept]
        expected = -torch.stack([(wanted[i] * p[i].log()).sum() for i in labelled]).mean()
        expected = expected + sum(torch.log((1 / CLASSES) / p.mean(0)[j]) / CLASSES for j in range(CLASSES))
        if others:
            squares = torch.stack([(p[i] - wanted[i]).square().mean() for i in others]).mean()
            expected = expected + 5.0 * min((1 + done - 1) / 2.0, 1) * squares
        torch.testing.assert_close(report.loss, expected.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(report.hyperparameters["clean"], method.clean[:, part].mean(0))

        still, state = committee.members[1 - k], other.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in still.state_dict().items())
        assert all(torch.equal(setting.optimizer.state[p]["momentum_buffer"], value) for p, value in momentum.items())
        assert not torch.equal(next(committee.members[k].parameters()), next(own.parameters()))
        moved.add(k)
    assert moved == {0, 1}


def test_losses_of_several_epochs_are_averaged_if_asked() -> None:
    _, method, _ = in_second_phase(remembered=3)
    looks = [torch.randn(2, SAMPLES, CLASSES, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    for epoch, logits in enumerate(looks):
        method.begin_epoch(2 + epoch, answering(logits))
    assert len(method._losses) == 3
    noisy = data()[1]
    scaled = []
    for logits in looks[1:]:
        values = F.cross_entropy(logits[1], noisy, reduction="none").double()
        scaled.append((values - values.min()) / (values.max() - values.min()))
    torch.testing.assert_close(torch.stack(method._losses)[:, 1], torch.stack(scaled))


def test_the_warm_up_fits_the_training() -> None:
    for epochs, expected in ((None, 10), (300, 10), (12, 4), (2, 1)):
        method = built("DivideMix", setting_of("DivideMix", epochs=epochs))
        assert isinstance(method, DivideMix)
        assert method.warmup == expected
    with pytest.raises(errors.OptionError, match="a warm-up of 10 epochs leaves nothing of a training of 10"):
        built("DivideMix", setting_of("DivideMix", epochs=10), warmup=10)


def test_division_needs_labels() -> None:
    setting = setting_of("DivideMix", labels=None)
    method = built("DivideMix", setting, warmup=1)
    method.begin_epoch(0, look_at(data()[0]))
    with pytest.raises(errors.OptionError, match="give the setting its labels"):
        method.begin_epoch(1, look_at(data()[0]))


def test_planted_labels_are_found(tmp_path: Path) -> None:
    """Three clouds of points: once the networks have learned them, the losses of wrong labels stand apart."""
    rng = np.random.default_rng(0)
    true = np.arange(300) % 3
    x = rng.normal(size=(300, 2)) + 4.0 * np.array([[1, 0], [-1, 1], [-1, -1]])[true]
    wrong = rng.random(300) < 0.3
    np.savez(tmp_path / "clouds.npz", x=x.astype(np.float32), y=np.where(wrong, (true + 1) % 3, true), y_true=true)
    asked = Settings(
        data=str(tmp_path / "clouds.npz"),
        method="DivideMix",
        options={"warmup": 3, "rampup": 3.0},
        test="none",
        epochs=8,
        batch_size=32,
        device="cpu",
        threads=1,
    )
    assert start(plan(asked), tmp_path / "run", tensorboard=False).finished
    record = SampleRecord.open(tmp_path / "run")
    clean, mislabelled = record.read("clean"), plan(asked).sets.mislabelled
    assert (clean[:3] == 1).all()
    assert mislabelled is not None
    assert ((clean[-1] < 0.5) == mislabelled).mean() > 0.95


# MentorNet


def test_the_threshold_is_a_running_percentile() -> None:
    setting, method = made("MentorNet", curriculum="predefined", percentile=0.6, decay=0.8, slope=0.5, dropout=False)
    assert isinstance(method, MentorNet)
    threshold = None
    for x, y, ids in batches(4):
        values = F.cross_entropy(copy.deepcopy(setting.model)(x), y, reduction="none").detach()
        latest = np.quantile(values.numpy(), 0.6)
        threshold = latest if threshold is None else 0.8 * threshold + 0.2 * latest
        report = method.step(x, y, ids)
        weights = [min(max(1 - (float(value) - threshold) / 0.5, 0), 1) for value in values]
        np.testing.assert_allclose(report.hyperparameters["weight"], weights, atol=1e-5)
        assert float(report.loss) == pytest.approx(float((values * torch.tensor(weights)).mean()), rel=1e-4)
    assert 0 < min(weights) + 1 < 2


def test_samples_are_left_out_at_random_early_more_than_later() -> None:
    method = built("MentorNet", setting_of(total=100), curriculum="predefined")
    assert isinstance(method, MentorNet)
    shares = []
    for steps in (0, 16, 17, 99):
        method.steps = steps
        present = method._present(2000)
        assert present is not None
        shares.append(float(present.mean()))
    np.testing.assert_allclose(shares, [0.5, 0.5, 0.95, 0.95], atol=0.04)


def test_the_learned_curriculum_tells_right_labels_from_wrong_ones() -> None:
    """The classifier knows the classes; the mentor learns from clean samples what that means for a loss."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(400) % 4
    x = 2.5 * F.one_hot(true, 4).float() + 0.5 * torch.randn(400, 4, generator=generator)
    wrong = torch.rand(400, generator=generator) < 0.4
    noisy = torch.where(wrong, (true + 1) % 4, true)
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(2 * torch.eye(4))
    setting = Setting(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-4),
        torch.bincount(noisy),
        lambda: (x[:100], true[:100]),
        160,
        400,
        generator,
    )
    method = MentorNet(setting, every=1, burn_in=0.5, mentor_lr=0.03)
    ids = torch.arange(100, 400)
    for number in range(160):
        report = method.step(x[ids], noisy[ids], ids)
        if number < 80:
            assert (report.hyperparameters["weight"] == 1).all()
    weights = report.hyperparameters["weight"]
    assert roc_auc_score(wrong[ids], -weights) > 0.98
    assert weights[wrong[ids]].mean() < 0.2
    assert weights[~wrong[ids]].mean() > 0.8


def test_a_learned_curriculum_needs_clean_samples() -> None:
    with pytest.raises(errors.CleanBatchError, match="curriculum=predefined"):
        built("MentorNet", setting_of(clean=False), curriculum="learned")
    chosen = {clean: built("MentorNet", setting_of(clean=clean)) for clean in (True, False)}
    assert [isinstance(m, MentorNet) and m.mentor is not None for m in chosen.values()] == [True, False]


# Mixup


def test_a_step_of_mixup_is_that_of_a_loop() -> None:
    setting, method = made("Mixup", alpha=2.0)
    x, y, _ = batches(1)[0]
    draws = torch.Generator()
    draws.set_state(setting.generator.get_state())
    twin, optimizer = copy.deepcopy((setting.model, setting.optimizer))
    method.step(x, y, torch.arange(len(y)))
    order, share = partners(len(y), draws, torch.device("cpu")), beta_share(2.0, draws)
    assert 0.5 <= share < 1
    logits = twin(torch.stack([share * x[i] + (1 - share) * x[j] for i, j in enumerate(order.tolist())]))
    pairs = [(y[i], y[j]) for i, j in enumerate(order.tolist())]
    losses = [
        -share * row.log_softmax(0)[a] - (1 - share) * row.log_softmax(0)[b]
        for row, (a, b) in zip(logits, pairs, strict=True)
    ]
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for ours, theirs in zip(setting.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_mixup_of_nothing_is_cross_entropy() -> None:
    for name, options in (("Mixup", {"alpha": 0}), ("CE", {})):
        setting, method = made(name, **options)
        x, y, _ = batches(1)[0]
        report = method.step(x, y, torch.arange(len(y)))
        if name == "Mixup":
            before = report.loss, [weight.detach().clone() for weight in setting.model.parameters()]
    torch.testing.assert_close(report.loss, before[0])
    for ours, theirs in zip(setting.model.parameters(), before[1], strict=True):
        torch.testing.assert_close(ours, theirs)


# All of them


@pytest.mark.parametrize("name", ["Mixup", *SYSTEMS])
def test_the_documented_options_are_those_that_there_are(name: str) -> None:
    page = (ROOT / "docs" / "systems.md").read_text()
    chapter = re.split(r"^## ", page.split(f"\n## {name}\n")[1], flags=re.MULTILINE)[0]
    shown = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) ?\|$", chapter, re.MULTILINE)
    options = methods.get(name).options
    there = [(key, str(option.default).lower(), option.description) for key, option in options.items()]
    assert [(key, default, words) for key, default, words, _ in shown] == there


@pytest.mark.parametrize("name", ["Co-teaching", "ELR+", "DivideMix"])
def test_two_networks_are_needed(name: str) -> None:
    with pytest.raises(errors.OptionError, match=r"trains two networks, but the model is a Sequential"):
        built(name, setting_of())
    weights = torch.ones(SAMPLES)
    with pytest.raises(errors.OptionError, match="takes no weights"):
        built(name, setting_of(name, weights=weights))


@pytest.mark.parametrize(("curriculum", "stop"), [("predefined", 3), ("learned", 3)])
def test_both_curricula_resume_bitwise(curriculum: str, stop: int) -> None:
    def make() -> tuple[Setting, Method]:
        setting = setting_of()
        return setting, built("MentorNet", setting, curriculum=curriculum, every=2)

    interrupted(make, stop, 7)


def test_what_is_not_finite_is_refused() -> None:
    setting, method = made("Co-teaching")
    x, y, ids = batches(1)[0]
    with torch.no_grad():
        committee_of(setting).members[0].get_parameter("3.weight").fill_(1e38)
    before = copy.deepcopy(setting.model.state_dict())
    with pytest.raises(errors.NarlError):
        method.step(x * 1e3, y, ids)
    for key, value in setting.model.state_dict().items():
        assert torch.equal(value, before[key])
    assert not setting.optimizer.state
    method._noted.note(torch.tensor(torch.inf), setting.optimizer)  # as on a GPU, where nobody waits for the loss
    with pytest.raises(errors.NonFiniteError, match="training diverged"):
        method.state_dict()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stripes in three directions, 30 % with a wrong label."""
    rng = np.random.default_rng(0)
    true = np.arange(120) % 3
    plane = np.add.outer(np.arange(8), np.zeros(8)), np.add.outer(np.zeros(8), np.arange(8))
    stripes = np.stack([plane[0], plane[1], plane[0] + plane[1]]) % 4 < 2
    images = 100 * stripes[true] + rng.integers(0, 100, (120, 8, 8))
    wrong = rng.random(120) < 0.3
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(path, x=images.astype(np.uint8)[..., None], y=np.where(wrong, (true + 1) % 3, true), y_true=true)
    return path


OPTIONS: dict[str, dict[str, Any]] = {
    "Co-teaching": {"forget": 0.3, "gradual": 3.0},
    "DivideMix": {"warmup": 2, "rampup": 2.0},
    "MentorNet": {"every": 2, "burn_in": 0.3},
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_runs_are_stopped_resumed_audited_and_predict(name: str, pictures: Path, tmp_path: Path) -> None:
    asked = Settings(
        data=str(pictures),
        method=name,
        options=OPTIONS.get(name, {}),
        clean="12" if name == "MentorNet" else "none",
        test="none",
        epochs=4,
        batch_size=20,
        model="convnet",
        augment="crop",
        device="cpu",
        threads=1,
        learning_rate=0.05,
    )
    assert start(plan(asked), tmp_path / "whole", tensorboard=False).finished
    stopped = tmp_path / "parts"
    assert not start(plan(asked), stopped, observer=StopAt(3), tensorboard=False).finished
    for stop in (5, 7):  # in the middle of epochs, the last time of one that the method divides
        assert not resume(stopped, observer=StopAt(stop), tensorboard=False).finished
    assert resume(stopped, tensorboard=False).finished
    assert files(stopped) == files(tmp_path / "whole")

    record = SampleRecord.open(stopped)
    (field,) = set(record.fields) - {"margin", "rival"}
    assert np.isfinite(record.read(field)).all()
    samples = plan(asked).sets
    assert samples.mislabelled is not None
    verdicts = from_run(stopped)
    assert len(verdicts) == len(samples.train)
    assert roc_auc_score(samples.mislabelled, -verdicts.score) > 0.65
    found = Trained(stopped, device="cpu").predict(samples.train.inputs)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
