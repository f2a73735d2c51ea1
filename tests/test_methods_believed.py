"""Batches in which believed labels come up more often: what is drawn, how often, and what a boosted run makes of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from command_line import rings
from methods_problem import BATCH, SAMPLES, batches, built, run, setting_of
from narl.train import plan, resume, start
from narl.train.assembly import assemble
from narl.train.batches import shuffled, sizes
from narl.train.methods.believed import _groups, how_often, more_believed
from narl.train.methods.boosted import Boosted
from narl.train.methods.guesses import ByPosterior
from test_train_on_clean import asked
from test_train_session import StopAt, files

DRAWS = torch.Generator


def usual(samples: int, batch: int, epoch: int = 0) -> list[Tensor]:
    return list(torch.split(shuffled(samples, seed=0, epoch=epoch), sizes(samples, batch)))


@given(
    samples=st.integers(2, 150),
    batch=st.integers(2, 40),
    share=st.floats(0, 0.9),
    checked=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_sizes_stay_and_no_batch_holds_a_sample_twice(
    samples: int, batch: int, share: float, checked: float, seed: int
) -> None:
    draws = DRAWS().manual_seed(seed)
    beliefs, kept = torch.rand(samples, generator=draws), torch.rand(samples, generator=draws) < checked
    given = usual(samples, batch)
    found = more_believed(given, beliefs, share, DRAWS().manual_seed(seed), kept)
    assert [len(rows) for rows in found] == [len(rows) for rows in given]
    for ours, theirs in zip(found, given, strict=True):
        assert len(set(ours.tolist())) == len(ours)
        assert sorted(ours[kept[ours]].tolist()) == sorted(theirs[kept[theirs]].tolist())
        movable = int((~kept[theirs]).sum())
        stayed = set(ours.tolist()) & set(theirs[~kept[theirs]].tolist())
        assert len(stayed) >= movable - round(share * movable)
    again = more_believed(given, beliefs, share, DRAWS().manual_seed(seed), kept)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in found]


@pytest.mark.parametrize("checked", [False, True], ids=["none checked", "some checked"])
@pytest.mark.parametrize(
    ("samples", "batch", "share"), [(2000, 50, 0.5), (100, 100, 0.9), (200, 100, 0.9), (400, 100, 0.5), (600, 60, 0.9)]
)
def test_samples_come_up_as_often_as_is_said(samples: int, batch: int, share: float, checked: bool) -> None:
    kept = torch.arange(samples) % 10 == 0 if checked else None
    beliefs = torch.rand(samples, generator=DRAWS().manual_seed(1)) ** 2
    counts, epochs = Counter[int](), 120_000 // samples
    for epoch in range(epochs):
        drawn = more_believed(usual(samples, batch, epoch), beliefs, share, DRAWS().manual_seed(epoch), kept)
        counts.update(torch.cat(drawn).tolist())
    found = torch.tensor([counts[row] / epochs for row in range(samples)])
    expected = how_often(beliefs, share, batch, kept)
    for low in np.arange(0, 1, 0.2):  # in the mean of samples that are believed alike
        alike = (beliefs >= low) & (beliefs < low + 0.2) & (torch.tensor(True) if kept is None else ~kept)
        assert_close(found[alike].mean(), expected[alike].mean(), rtol=0.06, atol=0.01)
    if kept is not None:
        assert_close(found[kept], torch.ones(int(kept.sum())))
    assert_close(expected.mean(), torch.tensor(1.0))


def test_batches_that_are_drawn_for_at_once_are_alike() -> None:
    """One sample in twenty is believed: a draw takes a good part of those, and the first batch must not have most."""
    samples, batch, epochs = 3500, 10, 20
    at_once = len(_groups(usual(samples, batch), 0.5, samples)[0])
    assert at_once == 14
    beliefs = torch.where(torch.arange(samples) % 20 == 0, 0.95, 0.02)
    found = torch.zeros(at_once)
    for epoch in range(epochs):
        drawn = more_believed(usual(samples, batch, epoch), beliefs, 0.5, DRAWS().manual_seed(epoch))
        believed = torch.stack([(beliefs[rows[batch // 2 :]] > 0.5).double().mean() for rows in drawn])
        found += believed.view(-1, at_once).mean(dim=0) / epochs
    half = at_once // 2
    assert_close(found[:half].mean(), found[half:].mean(), rtol=0, atol=0.02)
    assert found.min() > 0.6


@pytest.mark.slow
def test_more_samples_than_torch_draws_from() -> None:
    (rows,) = more_believed([torch.arange(4)], torch.ones(2**24 + 1), 0.5, DRAWS().manual_seed(0))
    assert rows[:2].tolist() == [0, 1]
    assert len(set(rows.tolist())) == 4


def test_where_too_few_can_be_drawn_batches_stay_as_they_are() -> None:
    """Of a batch that repeats checked samples, as a share of few of them does."""
    kept = torch.arange(8) < 2
    given = [torch.tensor([0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 2, 3])]
    (found,) = more_believed(given, torch.rand(8), 0.5, DRAWS(), kept)
    assert torch.equal(found, given[0])
    assert (how_often(torch.rand(2), 0.5, 2, kept[:2]) == 1).all()


def test_where_nothing_is_believed_all_are_drawn_alike() -> None:
    counts = torch.zeros(40)
    for seed in range(200):
        (rows,) = more_believed([torch.arange(10)], torch.zeros(40), 0.5, DRAWS().manual_seed(seed))
        counts[rows] += 1
    assert (counts[:5] == 200).all()
    assert counts[5:].min() > 0
    assert_close(counts[5:].mean(), torch.tensor(200 * 5 / 35))


def test_the_noise_is_counted_as_if_all_came_up_alike() -> None:
    """Of labels that a network is sure are right, half are drawn so, and the others at half the rate."""
    count, classes = 4000, 4
    draws = DRAWS().manual_seed(4)
    true = torch.arange(count) % classes
    wrong = torch.rand(count, generator=draws) < 0.5
    y = torch.where(wrong, (true + 1) % classes, true)
    logits = 20.0 * torch.nn.functional.one_hot(true, classes)
    found = {}
    for told in (False, True):
        doubts = ByPosterior(None, num_classes=classes, num_samples=count, memory=1.0)
        doubts.often = how_often((~wrong).float(), 0.5, 100) if told else None
        for epoch in range(4):
            for rows in more_believed(usual(count, 100, epoch), (~wrong).float(), 0.5, DRAWS().manual_seed(epoch)):
                doubts.remember(logits[rows], y[rows], rows)
        found[told] = float(doubts.evidence.transition.diagonal().mean())
    assert found[True] == pytest.approx(0.5, abs=0.02)
    assert found[False] > 0.7


def boosted(**options: float) -> Boosted:
    method = built("A-GCE+", setting_of("A-GCE+", options=options), **options)
    assert isinstance(method, Boosted)
    return method


def test_batches_change_once_the_boost_has_begun_and_by_the_latest_suspicions() -> None:
    method = boosted(believed=0.5, boost_from=0.4)
    given = usual(SAMPLES, BATCH)

    def look(module: torch.nn.Module) -> Tensor:
        raise AssertionError("nobody has to look")

    method.begin_epoch(0, look)
    assert method.redrawn(given, 0, DRAWS()) is given
    assert method.objective.doubts.often is None
    reports = run(method, batches(6))
    method.begin_epoch(1, look)
    expected = torch.zeros(SAMPLES)
    for report, (_, _, ids) in zip(reports, batches(6), strict=True):
        expected[ids] = report.hyperparameters["suspicion"]
    assert method._beliefs is not None
    assert_close(method._beliefs, 1 - expected)
    found = method.redrawn(given, 1, DRAWS().manual_seed(3))
    assert [len(rows) for rows in found] == [len(rows) for rows in given]
    assert all(rows[:8].tolist() == theirs[:8].tolist() for rows, theirs in zip(found, given, strict=True))
    assert any(rows.tolist() != theirs.tolist() for rows, theirs in zip(found, given, strict=True))
    often = how_often(1 - expected, 0.5, BATCH)
    assert_close(method.objective.doubts.often, often)
    assert often.std() > 0.1
    assert boosted(boost_from=0).redrawn(given, 1, DRAWS()) is given


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rings(tmp_path_factory.mktemp("data") / "rings.csv")


@pytest.mark.parametrize("doubt", ["margin", "posterior"])
def test_a_run_goes_on_bitwise_with_its_batches(doubt: str, data: Path, tmp_path: Path) -> None:
    options = {"believed": 0.5, "boost_from": 0.2, "doubt": doubt, "suspicion": 0.0}
    settings = asked(data, method="A-GCE+", clean_share=0.25, options=options, epochs=4)
    made = plan(settings)
    assert start(made, tmp_path / "whole", tensorboard=False).finished
    assert not start(made, tmp_path / "parts", observer=StopAt(6), tensorboard=False).finished
    assert not resume(tmp_path / "parts", observer=StopAt(4), tensorboard=False).finished
    assert resume(tmp_path / "parts", tensorboard=False).finished
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(epoch["loss"]) for epoch in metrics)


def test_checked_samples_keep_their_share(data: Path) -> None:
    loop = assemble(plan(asked(data, method="A-GCE+", clean_share=0.6, options={"believed": 0.5})))
    assert isinstance(loop.method, Boosted)
    before = loop._batches()
    loop.method._beliefs = torch.rand(192, generator=DRAWS().manual_seed(0))
    after = loop._batches()
    assert [int((rows >= 168).sum()) for rows in after] == [int((rows >= 168).sum()) for rows in before]
    assert [rows.tolist() for rows in after] != [rows.tolist() for rows in before]
