"""Table 4 on a small scale: mini-WebVision's and ILSVRC12's folders, a small network, trained, stopped and shown."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import done, refused
from narl.bench import comparison, protocols, runs, work
from narl.bench.asked import asked_of
from narl.bench.cells import Cell
from narl.bench.own_papers import hyperparameters
from narl.bench.protocol import Protocol, Schedule
from narl.bench.runs import Run
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.errors import ConfigError, OptionError
from narl.train import methods
from small_grid import decided

SYNSETS = [f"n{index:08d}" for index in range(1440764, 1440764 + 55)]
MINI = 50
SIDE = 12


def picture(path: Path, label: int, rng: np.random.Generator) -> None:
    """A picture whose colours tell the class, but for noise."""
    colour = np.random.default_rng(label).integers(0, 256, (2, 2, 3))
    pixels = np.repeat(np.repeat(colour, SIDE // 2, axis=0), SIDE // 2, axis=1) + rng.normal(
        scale=20, size=(SIDE, SIDE, 3)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def web_vision(root: Path) -> Path:
    rng = np.random.default_rng(1)
    lists: dict[str, list[str]] = {"train_filelist_google.txt": [], "val_filelist.txt": []}
    for label in range(len(SYNSETS)):
        for number in range(4):
            name = f"google/q{label:04d}/{number}.jpg"
            lists["train_filelist_google.txt"].append(f"{name} {label}")
            if label < MINI:
                picture(root / name, label, rng)
        lists["val_filelist.txt"].append(f"val{label:06d}.jpg {label}")
        if label < MINI:
            picture(root / f"val_images_256/val{label:06d}.jpg", label, rng)
    (root / "info").mkdir()
    (root / "info" / "synsets.txt").write_text("".join(f"{synset} thing {i}\n" for i, synset in enumerate(SYNSETS)))
    for name, lines in lists.items():
        (root / "info" / name).write_text("\n".join(lines) + "\n")
    return root


def image_net(root: Path) -> Path:
    rng = np.random.default_rng(2)
    for label, synset in enumerate(SYNSETS):
        for number in (2 * label, 2 * label + 1):
            picture(root / "val" / synset / f"ILSVRC2012_val_{number:08d}.JPEG", label, rng)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    return {"mini-WebVision": str(web_vision(folder / "web")), "ILSVRC12": str(image_net(folder / "imagenet"))}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Protocol:
    """The table with a network and batches that a second is enough for."""
    table = protocols.get("table4")
    training = {**table.training, "image_size": 8, "batch_size": 50, "clean_batch_size": 50, "learning_rate": 0.1}
    table = replace(table, model="convnet", training=training, clean=MINI, short=Schedule(6, (4,)))
    monkeypatch.setitem(protocols.PROTOCOLS, "table4", table)
    return table


def place(folder: Path, data: dict[str, str]) -> Place:
    return Place(tuple(data.items()), folder / "work", folder / "results", device="cpu")


def cell(table: Protocol, method: str) -> Cell:
    (found,) = table.cells(methods=[method])
    return found


class StopAt(Asked):
    """Wants to stop after so many steps."""

    left = 9

    def after_step(self, report: Any) -> None:
        self.left -= 1
        self.stop = self.left <= 0


def test_the_table_is_that_of_the_paper() -> None:
    table = protocols.get("table4")
    assert [str(task) for task in table.tasks] == ["mini-WebVision real"]
    assert table.schedule("paper", "mini-WebVision") == Schedule(100, (50,))
    assert table.schedule("short", "mini-WebVision") == Schedule(50, (25,))
    assert len(table.cells()) == 8
    asked = asked_of(cell(table, "DivideMix"), table)
    assert asked["options"] == {"unlabelled": 0.0, "alpha": 0.5, "warmup": 1}
    assert asked["also_test"] == ["ILSVRC12"]
    elr = methods.get("ELR+").checked({})
    assert hyperparameters("ELR+", table.tasks[0], 100) == {"average_ramp": 0.0}
    assert (elr["strength"], elr["decay"], elr["alpha"], elr["average"]) == (3, 0.7, 1, 0.997)


def test_a_cell_is_trained_stopped_gone_on_with_and_shown(
    small: Protocol, data: dict[str, str], tmp_path: Path
) -> None:
    one = cell(small, "Co-teaching")
    whole = work.train(one, small, place(tmp_path / "whole", data))
    assert whole is not None
    there = place(tmp_path, data)
    assert work.train(one, small, there, StopAt()) is None
    run = work.train(one, small, there)
    assert run is not None
    assert decided(one.result(there.results)) == decided(one.result(tmp_path / "whole" / "results"))

    curves = run.curves
    best = int(np.argmax(np.array(curves["test_accuracy"], float)))
    assert len(curves["ILSVRC12_top5_accuracy"]) == 6
    for dataset, metric, name in (
        ("mini-WebVision", "top1", "test_accuracy"),
        ("mini-WebVision", "top5", "test_top5_accuracy"),
        ("ILSVRC12", "top1", "ILSVRC12_accuracy"),
        ("ILSVRC12", "top5", "ILSVRC12_top5_accuracy"),
    ):
        values = np.array(curves[name], float)
        assert run.reached(dataset, metric) == pytest.approx((values[-5:].mean(), values[best]), abs=1e-5)
    assert run.reached("ImageNet-V2") is None

    shown = ("bench", "show", "table4", "--results", there.results)
    rows = json.loads(done(*shown, "--json").out)
    found = {(row["dataset"], row["metric"]): row for row in rows if row["method"] == "Co-teaching"}
    assert list(found) == list(small.measures)
    for (dataset, metric), row in found.items():
        assert (row["noise"], row["rate"], row["schedule"], row["seeds"]) == ("real", None, "short", 1)
        reached = run.reached(dataset, metric)
        assert reached is not None
        assert (row["last5_mean"], row["best_mean"]) == pytest.approx([100 * share for share in reached], abs=1e-3)
    text, top5 = done(*shown).out, found["ILSVRC12", "top5"]["last5_mean"]
    assert f"{top5:.1f} (84.7)" in text
    assert "28 of 32 cells" in text
    assert "The paper trained for" not in text
    assert f"| {top5:.1f} (84.7) |" in done(*shown, "--markdown").out


@pytest.mark.usefixtures("warm_workers")
def test_the_command_trains_boosted_losses_on_both(small: Protocol, data: dict[str, str], tmp_path: Path) -> None:
    given = [part for name, path in data.items() for part in ("--data", f"{name}={path}")]
    where = ("--results", tmp_path / "results", "--work", tmp_path / "work", "--device", "cpu", "--methods", "A-GCE+")
    answer = done("bench", "run", "table4", *given, *where)
    assert "1 cell: 0 with a result, 1 missing" in answer.out
    (run,) = runs.read(tmp_path / "results")
    assert run.settings["test_samples"] == MINI
    assert run.settings["clean_samples"] == MINI
    assert run.settings["train_samples"] == 3 * MINI
    assert set(run.further) == {"test_top5_accuracy", "ILSVRC12_accuracy", "ILSVRC12_top5_accuracy"}
    assert "1 with a result, 0 missing" in done("bench", "run", "table4", *given, *where).out
    assert len(comparison.stale("table4", [run])) == 0
    changed = replace(run, asked={**run.asked, "also_test": []})
    assert comparison.stale("table4", [changed]) == ["also_test was [], is ['ILSVRC12'] now"]


def test_both_data_sets_are_needed(data: dict[str, str]) -> None:
    command = ("bench", "run", "table4", "--dry-run", "--data")
    web = data["mini-WebVision"]
    assert "also tests on ILSVRC12, and where is it" in refused(*command, f"mini-WebVision={web}")
    assert "also tests on ILSVRC12, and where is it" in refused(*command, web)
    assert "is about mini-WebVision" in refused(*command, f"ILSVRC12={data['ILSVRC12']}")
    with pytest.raises(OptionError, match="--data ILSVRC12=FOLDER"):
        Place((("mini-webvision", "x"),), Path("w"), Path("r")).further(protocols.get("table4"))


def test_a_package_that_is_missing_is_said_once(data: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    given = [part for name, path in data.items() for part in ("--data", f"{name}={path}")]
    lines = done("bench", "run", "table4", *given, "--dry-run").out.splitlines()
    assert lines[1:] == [
        "8 cannot be trained: timm:inception_resnet_v2 needs the package timm: pip install 'narl[vision]'"
    ]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert "8 missing" in done("bench", "run", "table4", *given, "--dry-run").out


def test_results_without_further_numbers_stay_as_they_were() -> None:
    table = protocols.get("table4")
    run = Run(cell(table, "ELR+"), 0.7, 0.71, {})
    assert "further" not in run.to_json()
    rows = [row for row in comparison.rows(table, [run]) if row["method"] == "ELR+"]
    assert [row["seeds"] for row in rows] == [1, 0, 0, 0]
    damaged = {**run.to_json(), "further": {"test_top5_accuracy": {"last5": "much", "best": 0.9}}}
    with pytest.raises(ConfigError, match="further"):
        runs.from_json(damaged)
