"""The study of noise rates: what is trained once, what it says, and that the rate reaches the loss."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from narl import AdjustedLoss
from narl.adjuster import packs

ROOT = Path(__file__).parent.parent
MODULES = ("noise_rates", "travel", "judges")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("noise_rates")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "noise-rates.jsonl")
    options = {"n_informative": 5, "n_redundant": 0, "random_state": 0}
    monkeypatch.setattr(module, "TABLES", {"tiny": module.Drawn(6, 600, 6, 3, options)})
    monkeypatch.setattr(module, "NOISE", (("clean", 0.0), ("symmetric", 0.4)))
    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_what_is_missing_is_trained_once(study: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    study.run(["gce"], 1)
    rows = study.results()
    assert [(row["noise"], row["loss"], len(row["last5"])) for row in rows] == [
        ("clean", "gce", 5),
        ("symmetric", "gce", 5),
    ]
    study.run(["gce"], 1)
    assert study.results() == rows
    study.run(["gce", "js"], 1)
    assert [row["loss"] for row in study.results()] == ["gce", "gce", "js", "js"]
    assert capsys.readouterr().out.count("tiny, symmetric 0.4, seed 0, ") == 2


def test_the_table_says_points_over_cross_entropy(study: ModuleType) -> None:
    row = {"table": "tiny", "noise": "symmetric", "rate": 0.4, "seed": 0, "loss": "js", "estimated": 0.37}
    study.RESULTS.write_text(
        "".join(
            json.dumps({**row, "seed": seed, "last5": [0.5, 0.4, 0.55, 0.6 + seed / 50, 0.7]}) + "\n" for seed in (0, 1)
        )
    )
    (table,) = study.tables()
    found = {line[0]: line[1:] for line in table.rows}
    assert found["CE, %"] == ("–", "50.0")
    assert [found[f"{name}"][1] for name in ("JS", "T-JS", "T-JS, noise estimated", "T-JS, noise given")] == [
        "-10.0",
        "+5.0",
        "+11.0",
        "+20.0",
    ]
    assert found["estimated"] == ("–", "37.0")
    assert "seeds: 2" in table.notes[0]


@pytest.mark.parametrize("rates", [(None, 0.4, "estimated"), ("estimated", "estimated", None)])
def test_losses_side_by_side_are_those_of_each_alone(study: ModuleType, rates: tuple[Any, ...]) -> None:
    pack = packs.read(ROOT / "results" / "adjusters" / "js-prepared.safetensors")
    counts, generator = [30, 20, 10], torch.Generator().manual_seed(2)
    together, alone = (
        [AdjustedLoss(pack.snapshots, counts, "none", noise_rate=rate) for rate in rates] for _ in range(2)
    )
    judges = study.travel.Judges(together, 60)
    for step in range(20):
        ids = torch.randperm(60, generator=generator)[:15]
        logits, labels = 4 * torch.randn(len(rates), 15, 3, generator=generator), ids % 3
        judges.turn(step / 20)
        found = judges.losses(torch.tensor(step / 20), logits, labels, ids).view(len(rates), 15)
        for own, criterion, values in zip(logits, alone, found, strict=True):
            torch.testing.assert_close(values, criterion(own, labels, step / 20, ids), rtol=1e-4, atol=1e-5)
    for one, other in zip(together, alone, strict=True):
        assert one.noise_rate == (None if other.noise_rate is None else pytest.approx(other.noise_rate))
