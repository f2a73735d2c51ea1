"""The study of what travels: trainings side by side are what each would be alone, and files can be judged."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from narl import AdjustedLoss, Adjuster, losses, models
from narl.adjuster import packs
from narl.adjuster.packs import Pack

ROOT = Path(__file__).parent.parent


@pytest.fixture
def travel(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module("travel")
    del sys.modules["travel"]


def snapshots(loss: str = "gce", **options: Any) -> list[Adjuster]:
    """As if learned."""
    generator = torch.Generator().manual_seed(1)
    made = [Adjuster(loss, [90, 50, 10], generator=generator, **options) for _ in range(3)]
    for number, one in enumerate(made):
        one.taken = number / 2
        nn.init.normal_(one.heads.weight, std=0.3 * number, generator=generator)
    return made


def criteria(loss: str = "gce") -> list[AdjustedLoss]:
    counts = [30, 20, 10]
    return [
        AdjustedLoss(snapshots(loss), counts, robust_start=0.4),
        AdjustedLoss(snapshots(loss, input="scaled"), counts, margin="running"),
        AdjustedLoss(snapshots(loss, input="rank+progress", margin="running"), counts, serves="until"),
        AdjustedLoss(snapshots(loss, input="margin+classes"), counts),
        AdjustedLoss(snapshots(loss, margin="running"), counts, margin="auto"),
    ]


@pytest.mark.parametrize("loss", ["gce", "sl"])
def test_adjusters_side_by_side_give_what_each_gives_alone(travel: ModuleType, loss: str) -> None:
    together, alone = travel.Judges(criteria(loss), 60), criteria(loss)
    generator = torch.Generator().manual_seed(2)
    for step in range(20):
        ids = torch.randperm(60, generator=generator)[:15]
        logits, labels = 4 * torch.randn(len(alone), 15, 3, generator=generator), ids % 3
        together.turn(step / 20)
        found = together(torch.tensor(step / 20), logits, labels, ids)
        for number, criterion in enumerate(alone):
            named = ids if number < len(alone) - 1 else None
            criterion(logits[number], labels, progress=step / 20, ids=named)
            expected = criterion.last.hyperparameters
            for name, values in expected.items():
                assert_close(found[name].view(len(alone), 15)[number], values, rtol=1e-4, atol=1e-5)


def tiny(travel: ModuleType) -> Any:
    table = travel.Drawn(6, 400, 6, 3, {"n_informative": 5, "n_redundant": 0, "random_state": 0})
    return travel.problem(table, "symmetric", 0.4, 0)


def test_trainings_side_by_side_are_what_each_is_alone(travel: ModuleType) -> None:
    made = tiny(travel)
    assert made.wrong.double().mean() == pytest.approx(0.4 * 2 / 3, abs=0.15)
    counts = torch.bincount(made.given)
    found = travel.side_by_side(made, "gce", ["CE", "GCE"], [AdjustedLoss(snapshots(), counts, robust_start=0.4)], 3)

    def alone(criterion: Any) -> float:
        generator = torch.Generator().manual_seed(3)
        model = models.mlp(6, 3, hidden=travel.HIDDEN, generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        right = []
        for epoch in range(6):
            for number, ids in enumerate(torch.split(torch.randperm(300, generator=generator), 100)):
                progress = (3 * epoch + number) / 18
                optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * progress)) / 2
                optimizer.zero_grad()
                torch.autograd.backward(criterion(model(made.x[ids]), made.given[ids], progress).mean())
                optimizer.step()
            right.append(float((model(made.x_test).argmax(1) == made.y_test).double().mean()))
        return sum(right[1:]) / 5

    adjusted = AdjustedLoss(snapshots(), counts, robust_start=0.4, reduction="none")
    for row, criterion in zip(
        found,
        (lambda z, y, at: losses.ce(z, y), lambda z, y, at: losses.gce(z, y, 0.7), adjusted),
        strict=True,
    ):
        assert row["last5"] == pytest.approx(alone(criterion), abs=0.011)


def test_adjusters_of_files_are_judged_beside_their_loss(
    travel: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(travel, "RESULTS", tmp_path / "travel.jsonl")
    table = travel.Drawn(2, 200, 6, 3, {"n_informative": 5, "n_redundant": 0, "random_state": 0})
    for name, value in (("TARGETS", {"small": table}), ("SMALL", ("small",)), ("LONG", ()), ("SEEDS", (0, 1))):
        monkeypatch.setattr(travel, name, value)
    packs.write(tmp_path / "mine.safetensors", Pack(tuple(snapshots("sl", margin="running"))))
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["travel.py", "run", "--adjuster", str(tmp_path / "mine.safetensors")])
        travel.main()
    rows = [json.loads(line) for line in (tmp_path / "travel.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 4 * 3, "only what is missing is run"
    assert [row["variant"].partition(" (")[0] for row in rows[:3]] == ["CE", "SL", "mine: margin, running"]
    assert rows[2]["settings"]["options"] == {"robust_start": pytest.approx(1 / 3)}
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["travel.py", "show"])
    travel.main()
    assert "mine: margin, running" in capsys.readouterr().out


def test_results_are_there_once_each(travel: ModuleType) -> None:
    rows = travel.results()
    keys = ("table", "noise", "rate", "seed", "variant")
    assert len({tuple(row[key] for key in keys) for row in rows}) == len(rows)
    assert {row["variant"] for row in rows} >= set(travel.VARIANTS)


def test_what_heads_give_is_what_the_adjuster_computes(travel: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    packs.write(path, Pack(tuple(snapshots("sl", input="margin+progress+classes")), trained_on="nothing"))
    (table,) = travel.heads([path], classes=40)
    assert len(table.rows) == 3 * 2 * 3  # snapshots, hyperparameters, heads
    last = packs.read(path).snapshots[-1].refit([100] * 40)
    last.progress.fill_(1.0)
    at = [float(margin) for margin in table.columns[3:]]
    expected = last.curves(torch.tensor(at))["gamma2"][:, 1]
    (row,) = (row for row in table.rows if row[:3] == ("1.00", "gamma2", "1"))
    assert_close(torch.tensor([float(value) for value in row[3:]]), expected.detach(), atol=0.005, rtol=0)
