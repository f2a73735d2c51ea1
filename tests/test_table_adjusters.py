"""Adjusters for tables, learned from whole trainings: their form, and a search that goes on where it was stopped."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from narl import AdjustedLoss
from narl.adjuster import packs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("table_adjusters")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "table-adjusters.jsonl")
    yield module
    del sys.modules["table_adjusters"], sys.modules["travel"], sys.modules["whole_trainings"]


def numbers_of(study: ModuleType, loss: str, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    begin = study.beginning(loss).items()
    return {name: float(np.clip(rng.normal(mean, std), low, high)) for name, (mean, std, low, high) in begin}


@pytest.mark.parametrize("loss", ["gce", "js", "sl", "polysoft"])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_the_adjuster_computes_the_form(study: ModuleType, loss: str, classes: int) -> None:
    numbers = numbers_of(study, loss)
    first, then = (adjuster.refit([5] * classes) for adjuster in study.made(loss, numbers))
    assert (first.taken, then.taken) == (0.0, numbers["start"])
    margins, progress, kappa = torch.linspace(-9, 9, 37), 0.4, math.log(classes / 10)
    then.progress.fill_(progress)
    found = then.curves(margins)
    for number, (name, (low, high)) in enumerate(then.spans.items(), 1):
        way = study.OWN[loss][number - 1][2]
        way = numbers[f"g{number}"] if way is None else way
        for at, value in zip(margins.tolist(), found[name][:, 0].tolist(), strict=True):
            z = math.exp(numbers["log a"]) * (numbers["m0"] + numbers["mc"] * kappa + numbers["b"] * progress - at)
            ramp = max(z, 0) - max(z - numbers["w"] - numbers["wc"] * kappa, 0)
            logit = numbers[f"l{number}"] + way * ramp
            assert value == pytest.approx(low + (high - low) / (1 + math.exp(-logit)), rel=1e-3, abs=1e-4)
        level = numbers[f"s{number}"] + way * numbers["sc"] * kappa
        expected = torch.full((37,), low + (high - low) / (1 + math.exp(-level)))
        assert_close(first.curves(margins)[name][:, 0], expected, rtol=1e-3, atol=1e-4)


def test_a_search_goes_on_where_it_was_stopped(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Judged by a stand-in for trainings: the nearer m0 is to 2, the better."""

    class Pool:
        def __init__(self, _: int) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...
        def imap_unordered(self, _: object, jobs: list[Any]) -> Iterator[dict[str, object]]:
            for loss, candidates, table, kind, rate, _seed in jobs:
                assert loss == "gce"
                last5 = [0.5, 0.5, *(0.5 - 0.01 * abs(one["m0"] - 2) for one in candidates)]
                yield {"noise": kind, "rate": rate, "classes": table.classes, "last5": last5}

    monkeypatch.setattr(study.multiprocessing, "Pool", Pool)
    study.learn("gce", 3, 1)
    study.learn("gce", 6, 1)
    lines = [json.loads(line) for line in study.RESULTS.read_text().splitlines()]
    study.RESULTS.unlink()
    study.learn("gce", 6, 1)
    whole = [json.loads(line) for line in study.RESULTS.read_text().splitlines()]
    unlike = {"seconds"}
    assert [{k: v for k, v in one.items() if k not in unlike} for one in lines] == [
        {k: v for k, v in one.items() if k not in unlike} for one in whole
    ]
    assert [one["generation"] for one in whole] == list(range(6))
    assert abs(whole[-1]["mean"]["m0"] - 2) < 0.3 < abs(study.beginning("gce")["m0"][0] - 2)
    (table,) = study.tables()
    assert len(table.rows) == 6
    pack = packs.read(study.write("gce", tmp_path))
    assert [one.data for one in pack.snapshots] == ["table", "table"]
    assert "generations" in pack.about["section"]
    for_texts = packs.read(study.write("gce", tmp_path, "text"))
    assert {one.data for one in for_texts.snapshots} == {"text"}
    assert for_texts.about["section"].startswith("## On texts")
    assert packs.digest(for_texts.snapshots) != pack.digest
    capsys.readouterr()


def test_a_table_is_trained_with_all_candidates(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    table = study.travel.Drawn(6, 400, 6, 3, {"n_informative": 5, "n_redundant": 0, "random_state": 0})
    candidates = [numbers_of(study, "gce", seed) for seed in range(2)]
    found = study.worth(("gce", candidates, table, "symmetric", 0.4, 3))
    assert (found["noise"], found["rate"], found["classes"]) == ("symmetric", 0.4, 3)
    made = study.travel.problem(table, "symmetric", 0.4, 3)
    criterion = AdjustedLoss(study.made("gce", candidates[1]), torch.bincount(made.given))
    (alone,) = study.travel.side_by_side(made, "gce", [], [criterion], 3)
    assert found["last5"][3] == pytest.approx(alone["last5"], abs=0.011)
    assert len(found["last5"]) == 4
