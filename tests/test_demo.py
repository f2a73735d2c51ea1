"""The demonstration: its data, its training, its command, what it prints and draws, and the obvious mistakes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import command_line
import narl
from command_line import answer_of, process
from narl.bench import digits
from narl.cli import app


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """A run of two epochs and two seeds: parsed standard output, standard error, the picture."""
    picture = tmp_path_factory.mktemp("demo") / "picture.png"
    result = run("demo", "--epochs", "2", "--seeds", "2", "--json", "--loss", "sl", "--picture", str(picture))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr, picture


@pytest.mark.parametrize("kind", digits.NOISES)
def test_splits_are_disjoint_and_the_noise_is_as_asked(kind: str) -> None:
    task = digits.load(kind, seed=3)
    assert [len(part) for part in (task.images, task.clean_images, task.test_images)] == [1200, 100, 497]
    assert torch.bincount(task.clean_labels).tolist() == [10] * 10
    # scikit-learn's digits hold no image twice, so that equal pixels would mean the same sample
    everything = torch.cat([task.images, task.clean_images, task.test_images]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == len(everything)
    moved = 0.5 if kind == "asymmetric" else 1.0  # the share of classes that this noise touches
    assert float(task.mislabelled.float().mean()) == pytest.approx(0.4 * moved, abs=0.06)
    again = digits.load(kind, seed=3)
    assert torch.equal(again.given, task.given)
    assert torch.equal(again.images, task.images)
    assert not torch.equal(digits.load(kind, seed=4).given, task.given)


def test_shifts_equal_a_loop() -> None:
    images = torch.rand(20, 1, 8, 8)
    moved = digits.shifted(images, torch.Generator().manual_seed(0))
    down, right = torch.randint(0, 3, (2, 20, 1, 1, 1), generator=torch.Generator().manual_seed(0)).flatten(1).tolist()
    for i in range(20):
        canvas = torch.zeros(10, 10)
        canvas[1:9, 1:9] = images[i, 0]
        assert torch.equal(moved[i, 0], canvas[down[i] : down[i] + 8, right[i] : right[i] + 8])
    assert len({*zip(down, right, strict=True)}) > 4


def test_training_is_reproducible_and_leaves_the_global_random_state_alone() -> None:
    task = digits.load("pair", seed=0)
    state = torch.get_rng_state()
    first, second = (digits.train(task, "gce", adjusted=True, seed=1, epochs=1) for _ in range(2))
    assert first.accuracies == second.accuracies
    assert torch.equal(torch.get_rng_state(), state)


def test_adjusted_loss_is_ahead_of_cross_entropy_under_pair_noise() -> None:
    task = digits.load("pair", seed=0)
    plain = digits.train(task, "ce", adjusted=False, seed=0)
    adjusted = digits.train(task, "gce", adjusted=True, seed=0)
    verdict = digits.verdict(adjusted, task)
    q = verdict.means()["q"]
    assert adjusted.test_accuracy > plain.test_accuracy + 0.05
    assert q["mislabelled"] > q["clean"] + 0.2
    assert verdict.auroc > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("kind", digits.NOISES)
def test_adjusted_loss_is_ahead_of_cross_entropy_on_average(kind: str) -> None:
    gains = []
    for seed in range(3):
        task = digits.load(kind, seed)
        plain = digits.train(task, "ce", adjusted=False, seed=seed)
        adjusted = digits.train(task, "gce", adjusted=True, seed=seed)
        gains.append(adjusted.test_accuracy - plain.test_accuracy)
    assert min(gains) > 0.0
    assert sum(gains) / 3 > 0.03


def test_auroc_and_means_equal_a_loop() -> None:
    margins = torch.tensor([3.0, -1.0, 2.0, -4.0])
    wrong = torch.tensor([False, True, True, True])
    verdict = digits.Verdict(margins, {"q": torch.tensor([0.1, 0.7, 0.9, 0.8])}, wrong)
    pairs = [(a, b) for a in margins[wrong].tolist() for b in margins[~wrong].tolist()]
    assert verdict.auroc == pytest.approx(sum(a < b for a, b in pairs) / len(pairs))
    assert verdict.means()["q"] == {"clean": pytest.approx(0.1), "mislabelled": pytest.approx(0.8)}


def test_json_has_the_promised_shape(short: tuple[dict[str, Any], str, Path]) -> None:
    result, _, picture = short
    assert [(row["method"], row["seed"]) for row in result["results"]] == [
        (method, seed) for seed in (0, 1) for method in ("CE", "SL", "A-SL")
    ]
    for row in result["results"]:
        assert row["test_accuracy"] == pytest.approx(sum(row["accuracies"]) / 2)
        assert 0 <= row["test_accuracy"] <= row["best_accuracy"] <= 1
        assert set(row["hyperparameters"]) == ({"gamma1", "gamma2"} if row["method"] == "A-SL" else set())
    assert 0 <= result["audit"]["auroc"] <= 1
    assert result["audit"]["auroc"] == pytest.approx(sum(result["audit"]["auroc_by_seed"]) / 2)
    for row in result["summary"]:
        seeds = [r["test_accuracy"] for r in result["results"] if r["method"] == row["method"]]
        assert row["mean"] == pytest.approx(sum(seeds) / 2)
        assert row["std"] == pytest.approx(abs(seeds[0] - seeds[1]) / 2**0.5)
    assert result["settings"]["noise"] == "pair"
    assert result["picture"] == str(picture)


def test_progress_is_plain_lines_on_standard_error(short: tuple[dict[str, Any], str, Path]) -> None:
    lines = short[1].strip().splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("CE, seed 0: test accuracy ")
    assert "\x1b" not in short[1]


def test_picture_is_a_picture(short: tuple[dict[str, Any], str, Path]) -> None:
    with Image.open(short[2]) as image:
        assert image.format == "PNG"
        assert min(image.size) > 600
        assert len(image.convert("RGB").getcolors(2**24) or []) > 50  # more than an empty canvas


def test_table(tmp_path: Path) -> None:
    result = run("demo", "--epochs", "1", "--noise", "symmetric", "--picture", str(tmp_path / "p.svg"))
    assert result.exit_code == 0, result.output
    for words in ("40% symmetric noise", "CE", "GCE", "A-GCE", "AUROC", "p.svg"):
        assert words in result.stdout.replace("\n", "")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


def test_without_matplotlib_there_is_no_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run("demo", "--epochs", "1", "--picture", str(tmp_path / "p.png"))
    assert result.exit_code == 0, result.output
    assert "pip install 'narl[figures]'" in result.stdout
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--loss", "gcee"], "did you mean 'gce'?"),
        (["demo", "--loss", "ce"], "no hyperparameters to adjust"),
        (["demo", "--noise", "pairs"], "'pair'"),
        (["demo", "--seeds", "0"], "--seeds"),
        (["demo", "--epochs", "many"], "--epochs"),
        (["demo", "--picture", "no-such-folder/p.png"], "folder no-such-folder does not exist"),
        (["demo", "--picture", "p.txt"], "end in .png"),
        (["dmeo"], "dmeo"),
        (["demo", "extra"], "extra"),
    ],
)
def test_mistakes_end_in_one_clear_message(arguments: list[str], message: str) -> None:
    made = command_line.narl(*arguments)
    assert made.out == ""
    assert message in command_line.refusal(made)


def test_a_process_says_the_same_as_its_command() -> None:
    arguments = ("demo", "--loss", "gcee")
    assert answer_of(process(*arguments)) == command_line.narl(*arguments)


def test_help_and_version() -> None:
    assert "demo" in run("--help").stdout
    assert run("--version").stdout.strip() == f"narl {narl.__version__}"
    assert "--noise" in run("demo", "--help").stdout
