"""--clean-share: checked samples have a share of every batch, and cross entropy as their loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import done, refused, rings
from engine_problem import ROWS, SAMPLES, apart, replay_on_cpu, twin
from narl.data.id_file import write_id_file
from narl.errors import OptionError
from narl.train import plan, resume, start
from narl.train.assembly import assemble
from narl.train.batches import sizes
from narl.train.checked import Mixture, auto_share
from narl.train.engine.iteration import Iteration
from narl.train.engine.stack import Stack
from narl.train.methods import Setting, build
from narl.train.methods.trusted import with_trusted
from narl.train.run_folder import RunFolder
from test_engine import played, values_of
from test_engine_stack import check_same, seats_of
from test_train_on_clean import asked
from test_train_session import StopAt, files


@given(
    checked=st.integers(1, 30),
    others=st.integers(1, 120),
    batch=st.integers(2, 40),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_batches_have_the_share_and_all_samples_their_turn(
    checked: int, others: int, batch: int, share: float, seed: int
) -> None:
    rows = torch.randperm(checked + others, generator=torch.Generator().manual_seed(seed))
    mixture, wanted = Mixture(rows[:checked], rows[checked:], share), sizes(checked + others, batch)
    ours = set(rows[:checked].tolist())
    counts = np.zeros(checked + others, np.int64)
    for epoch in range(5):
        batches = mixture.batches(wanted, seed=seed, epoch=epoch)
        again = mixture.batches(wanted, seed=seed, epoch=epoch)
        assert [one.tolist() for one in batches] == [one.tolist() for one in again]
        assert [len(one) for one in batches] == wanted
        so_far = seen = 0
        for one in batches:
            so_far, seen = so_far + len(one), seen + sum(row in ours for row in one.tolist())
            assert abs(seen - share * so_far) <= 0.5 + 1e-9  # nearer no whole number comes
        np.add.at(counts, torch.cat(batches).numpy(), 1)
    for kind in (rows[:checked], rows[checked:]):
        assert np.ptp(counts[kind.numpy()]) <= 1


def test_orders_differ_by_seed_epoch_and_round() -> None:
    mixture = Mixture(torch.arange(50), torch.arange(50, 100), 0.5)
    drawn = [mixture.batches([100], seed=seed, epoch=epoch)[0].tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(rows) for rows in drawn}) == 4
    alone = [tuple(row for row in rows if row < 50) for rows in drawn]
    assert len(set(alone)) == 4


@given(st.integers(1, 10_000), st.integers(1, 100_000), st.integers(2, 1000), st.floats(0, 1))
def test_the_share_where_nobody_said(checked: int, others: int, classes: int, wrong: float) -> None:
    share = auto_share(checked, others, classes, wrong, 10**9)
    assert checked / (checked + others) <= share < 1
    assert share <= auto_share(checked + 1, others, classes, wrong, 10**9)
    assert share <= auto_share(checked, others, classes, min(1.0, wrong + 0.1), 10**9)
    assert auto_share(checked, others, classes, None, 9) == auto_share(checked, others, classes, 0.2, 9)
    odds = checked * min(1.0, wrong / 0.4) / (20 * classes)
    wanted = max(checked / (checked + others), odds / (1 + odds))
    assert share == pytest.approx(min(wanted, 1 - 1 / (checked + others)), abs=6e-4)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 60), st.integers(1, 12))
def test_every_given_label_has_its_turn(checked: int, others: int, batch: int, epochs: int) -> None:
    mixture = Mixture(
        torch.arange(checked),
        torch.arange(checked, checked + others),
        auto_share(checked, others, 2, 0.5, epochs),
    )
    wanted = sizes(checked + others, batch)
    seen = [
        row for epoch in range(epochs) for rows in mixture.batches(wanted, seed=0, epoch=epoch) for row in rows.tolist()
    ]
    assert set(range(checked, checked + others)) <= set(seen)


@given(st.integers(0, 2**32), st.integers(1, 12), st.booleans())
@settings(max_examples=30)
def test_trusted_samples_have_cross_entropy(seed: int, count: int, probabilities: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits, own = torch.randn(count, 4, generator=draw), torch.rand(count, generator=draw)
    y = torch.randint(0, 4, (count,), generator=draw)
    trusted, ids = torch.rand(20, generator=draw) < 0.5, torch.randperm(20, generator=draw)[:count]
    found = with_trusted(own, logits, F.one_hot(y, 4).float() if probabilities else y, ids, trusted)
    for row in range(count):
        expected = -torch.log(logits[row].exp()[y[row]] / logits[row].exp().sum()) if trusted[ids[row]] else own[row]
        torch.testing.assert_close(found[row], expected)
    assert with_trusted(own, logits, y, ids, None) is own
    assert with_trusted(own.mean(), logits, y, ids, trusted) == own.mean()


def test_the_adjuster_moves_by_the_exact_hypergradient() -> None:
    """Against one long graph through the virtual step."""
    draw = torch.Generator().manual_seed(0)
    x, y, ids = torch.randn(12, 5, generator=draw).double(), torch.arange(12) % 3, torch.arange(12)
    clean = torch.randn(9, 5, generator=draw).double(), torch.arange(9) % 3
    model = torch.nn.Linear(5, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    counts, trusted = torch.tensor([4, 4, 4]), torch.arange(12) < 5
    setting = Setting(model, optimizer, counts, lambda: clean, 10, 12, draw, trusted=trusted)
    method: Any = build("A-GCE", setting, every=1, margin="latest")
    method.adjuster.double()
    found = method.look_ahead(x, y, ids).gradients
    logits = F.linear(x, model.weight, model.bias)
    values = torch.where(trusted, F.cross_entropy(logits, y, reduction="none"), method.adjuster.loss(logits, y))
    slopes = torch.autograd.grad(values.mean(), [model.weight, model.bias], create_graph=True)
    weight, bias = model.weight - 0.3 * slopes[0], model.bias - 0.3 * slopes[1]
    meta = F.cross_entropy(F.linear(clean[0], weight, bias), clean[1])
    expected = torch.autograd.grad(meta, list(method.adjuster.parameters()), allow_unused=True)
    assert any(float(gradient.abs().max()) > 0 for gradient in found)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


@pytest.mark.parametrize(("name", "options"), [("GCE", {}), ("A-GCE", {"every": 2})])
def test_an_engine_does_the_same_steps(name: str, options: dict[str, Any]) -> None:
    made = [twin(name, dtype=torch.float64, trusted=trusted, **options) for trusted in (20, 20, 0)]
    own, other, without = made
    iteration = Iteration(other.model, other.optimizer)
    for batch in own.batches:
        expected, found = own.method.step(*batch), played(other, iteration, batch)
        without.method.step(*batch)
        assert apart(values_of(found), values_of(expected)) < 1e-5
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-6
    assert apart(without.model.state_dict().values(), own.model.state_dict().values()) > 1e-3
    assert own.method.state_dict().keys() == without.method.state_dict().keys()


def test_trainings_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    own, stacked = ([twin("A-GCE", dtype=torch.float64, trusted=n, every=2) for n in (20, 7)] for _ in range(2))
    stack = Stack()
    seats = seats_of(stack, stacked)
    for number in range(4):
        found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            check_same(report, one.method.step(*one.batches[number]))
    assert stack._engine is not None
    assert stack._engine._graphs, "no step was done as one"


def test_what_is_no_such_list_is_refused() -> None:
    one = twin("CE")
    with pytest.raises(OptionError, match=rf"give bools of shape \({SAMPLES},\)"):
        Setting(
            one.model, one.optimizer, torch.tensor([5]), None, 1, SAMPLES, torch.Generator(), trusted=torch.ones(ROWS)
        )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rings(tmp_path_factory.mktemp("data") / "rings.csv")


def test_the_share_is_decided_once_and_kept(data: Path, tmp_path: Path) -> None:
    made = plan(asked(data))
    assert made.sets.wrong == 8 / 24
    assert made.recipe.clean_share == round(20 / (20 + 2 * 20), 3)
    ids = tmp_path / "clean.csv"
    train = made.sets.train
    named = [train.classes[label ^ (row < 20)] for row, label in enumerate(train.labels.tolist())]
    ids.write_bytes(write_id_file(train.ids[:40].tolist(), named[:40]))
    made = plan(asked(data, clean=str(ids)))
    assert made.sets.wrong == 0.5
    assert made.recipe.clean_share == 0.5
    assert made.sets.notes[-1] == (
        "they are 50% of every batch, with cross entropy as their loss; 50% of them had been given another label: "
        "--clean-share says otherwise"
    )
    assert start(made, tmp_path / "whole", tensorboard=False).finished
    start(made, tmp_path / "parts", observer=StopAt(3), tensorboard=False)
    assert resume(tmp_path / "parts", tensorboard=False).finished
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    assert RunFolder.open(tmp_path / "whole").config["recipe"]["clean_share"] == 0.5


@pytest.mark.parametrize("method", ["A-GCE", "CE", "Forward", "A-GCE+", "T-SL+"])
def test_batches_are_drawn_so_and_epochs_stay_as_long(data: Path, method: str) -> None:
    made = plan(asked(data, method=method, clean_share=0.6))
    loop = assemble(made)
    batches = loop._batches()
    assert [len(rows) for rows in batches] == sizes(192, 50)
    assert [int((rows >= 168).sum()) for rows in batches] == [30, 30, 30, 25]
    trusted = loop.method.setting.trusted  # type: ignore[attr-defined]
    assert trusted.nonzero().flatten().tolist() == list(range(168, 192))
    assert plan(asked(data, method=method, train_on_clean=False)).recipe.clean_share is None


def test_methods_that_are_no_loss_of_each_sample(data: Path) -> None:
    for method in ("DivideMix", "Co-teaching", "Mixup"):
        made = plan(asked(data, method=method))
        assert made.recipe.clean_share is None
        assert made.trusted is None
        with pytest.raises(OptionError, match="--clean-share is for losses of each sample and boosted ones"):
            plan(asked(data, method=method, clean_share=0.5))


def test_the_command_line(data: Path) -> None:
    flags = ("train", data, "--clean", 24, "--test", "0.2", "--epochs", 2, "--device", "cpu", "--dry-run")
    said = json.loads(done(*flags, "--train-on-clean", "--clean-share", 0.7, "--json").out)
    assert said["recipe"]["clean_share"] == 0.7
    note = "they are 33% of every batch, with cross entropy as their loss; 33% of them had been given another label"
    assert note in " ".join(done(*flags, "--train-on-clean").out.split())
    assert "add --train-on-clean" in refused(*flags, "--clean-share", 0.7)
    for wrong in ("0", "1", "1.5", "nan", "half"):
        assert "--clean-share" in refused(*flags, "--train-on-clean", "--clean-share", wrong)


def test_images_have_a_share_if_one_is_given(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=pixels, y=np.arange(60) % 3)
    for share in (None, 0.4):
        made = plan(asked(tmp_path / "images.npz", method="CE", model="convnet", clean_share=share))
        assert made.recipe.clean_share == share
