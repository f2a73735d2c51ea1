"""Runs from beginning to end: what they leave, and that stopping and resuming changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from narl import Adjuster
from narl.errors import CheckpointError, NarlError, OptionError, OverlapError, RunFolderError
from narl.train import Settings, Trained, plan, resume, start
from narl.train.adjusters import load_adjusters
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder
from narl.train.schedule import Schedule

SAME = ("metrics.jsonl", "summary.json", "model.safetensors", "samples.npy", "samples.json")
EPOCHS = 4


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two rings with 30 % wrong labels; the truth is known."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(360, 3)).astype(np.float32)
    true = (np.linalg.norm(points[:, :2], axis=1) > 1.2).astype(np.int64)
    given_labels = np.where(rng.random(len(true)) < 0.3, 1 - true, true)
    path = tmp_path_factory.mktemp("data") / "rings.npz"
    np.savez(path, x=points, y=given_labels, y_true=true, classes=np.array(["inner <b>", "outer,\n"]))
    return path


def asked(data: Path, **settings: Any) -> Settings:
    learns = str(settings.get("method", "A-GCE")).startswith(("A-", "MW", "Forward"))
    values = {
        "method": "A-GCE",
        "clean": "24",
        "heldout": 0.25 if learns else None,
        "test": "0.2",
        "epochs": EPOCHS,
        "batch_size": 50,
        "seed": 1,
    }
    return Settings(data=str(data), **{**values, "device": "cpu", "threads": 1, **settings})


class StopAt:
    """Wants to stop after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def decoded(self, done: int, total: int) -> None:
        pass

    def begin(self, title: str, epochs: int, steps: int, done: int) -> None:
        pass

    def after_step(self, report: object) -> None:
        self.left -= 1

    def after_epoch(self, record: dict[str, Any]) -> None:
        pass

    def wants_stop(self) -> bool:
        return self.left <= 0


def files(run: Path) -> dict[str, bytes]:
    names = [*SAME, *(path.name for path in sorted(run.glob("adjuster-*.safetensors")))]
    return {name: (run / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def reference(rings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "reference"
    assert start(plan(asked(rings)), run, tensorboard=False).finished
    return run


def test_a_run_leaves_what_it_should(reference: Path) -> None:
    records = [json.loads(line) for line in (reference / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
    for record in records:
        assert 0 <= record["test_accuracy"] <= 1
        assert record["meta_loss"] > 0
        assert 0 < record["hyperparameters"]["q"] < 1
        assert 0 <= record["margin_auroc"] <= 1
    summary = json.loads((reference / "summary.json").read_text())
    accuracies = [record["test_accuracy"] for record in records]
    assert summary["last5"]["test_accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["best"]["test_accuracy"] == max(accuracies)
    assert set(summary["test_accuracy_by_class"]) == {"inner <b>", "outer,\n"}
    config = RunFolder.open(reference).config
    assert config["classes"] == ["inner <b>", "outer,\n"]
    kept = [Adjuster.load(reference / f"adjuster-{number}.safetensors") for number in range(4)]
    before, *learned = (one.curves(torch.tensor([-3.0, 0.0, 3.0]))["q"] for one in kept)
    assert len(set(before.flatten().tolist())) == 1  # all samples alike before the training
    assert all(len(set(curve.flatten().tolist())) > 1 for curve in learned)
    samples = SampleRecord.open(reference)
    assert samples.fields == ("margin", "q", "rival")
    assert np.isfinite(samples.read("margin")).all()
    assert len(samples.ids) == config["samples"]["train"]
    times = [json.loads(line) for line in (reference / "times.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in times] == list(range(1, EPOCHS + 1))


def test_sets_share_no_sample(rings: Path) -> None:
    sets = plan(asked(rings)).sets
    assert sets.clean is not None
    assert sets.heldout is not None
    assert sets.test is not None
    parts = [set(part.ids.tolist()) for part in (sets.train, sets.clean, sets.heldout, sets.test)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 360
    for part in (sets.clean, sets.heldout, sets.test):
        assert part.true_labels is not None
        np.testing.assert_array_equal(part.labels, part.true_labels)


@pytest.mark.parametrize("method", ["CE", "GCE", "A-GCE", "A-JS", "Forward", "MW-Net"])
def test_resumed_equals_uninterrupted(method: str, rings: Path, tmp_path: Path) -> None:
    made = plan(asked(rings, method=method))
    assert start(made, tmp_path / "whole", tensorboard=False).finished
    assert not start(made, tmp_path / "parts", observer=StopAt(7), tensorboard=False).finished
    assert not resume(tmp_path / "parts", observer=StopAt(5), tensorboard=False).finished
    assert resume(tmp_path / "parts", tensorboard=False).finished
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


@given(stops=st.lists(st.integers(1, 12), min_size=1, max_size=3))
@settings(max_examples=5, deadline=None)
def test_resumed_at_any_step(stops: list[int], rings: Path, reference: Path, tmp_path_factory: Any) -> None:
    run = tmp_path_factory.mktemp("stopped") / "run"
    outcome = start(plan(asked(rings)), run, observer=StopAt(stops[0]), tensorboard=False)
    for stop in stops[1:]:
        outcome = outcome if outcome.finished else resume(run, observer=StopAt(stop), tensorboard=False)
    if not outcome.finished:
        resume(run, tensorboard=False)
    assert files(run) == files(reference)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(rings: Path, reference: Path, tmp_path: Path) -> None:
    start(plan(asked(rings)), tmp_path / "run", observer=StopAt(13), tensorboard=False)
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    outcome = resume(tmp_path / "run", tensorboard=False)
    assert any(newest.name in remark for remark in outcome.remarks)
    assert files(tmp_path / "run") == files(reference)


def test_dropout_and_convolutions_resume_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", x=rng.integers(0, 256, (120, 8, 8, 3), dtype=np.uint8), y=np.arange(120) % 3)
    made = plan(asked(tmp_path / "x.npz", model="convnet", clean="12", epochs=2, batch_size=20))
    start(made, tmp_path / "whole", tensorboard=False)
    start(made, tmp_path / "parts", observer=StopAt(6), tensorboard=False)
    resume(tmp_path / "parts", tensorboard=False)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_a_run_from_before_engines_and_precisions_goes_on(rings: Path, reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(plan(asked(rings)), run, observer=StopAt(7), tensorboard=False)
    config = json.loads((run / "config.json").read_text())
    del config["config"]["settings"]["engine"], config["config"]["settings"]["precision"]
    del config["config"]["recipe"]["precision"]
    (run / "config.json").write_text(json.dumps(config))
    assert resume(run, tensorboard=False).finished
    assert files(run) == files(reference)


@pytest.mark.parametrize("what", ["x", "y", "y_true", "classes"])
def test_changed_data_is_noticed(what: str, rings: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.npz"
    arrays = dict(np.load(rings))
    np.savez(copy, **arrays)
    start(plan(asked(copy)), tmp_path / "run", observer=StopAt(3), tensorboard=False)
    arrays[what] = arrays[what][::-1] if what == "classes" else np.roll(arrays[what], 1, axis=0)
    np.savez(copy, **arrays)
    with pytest.raises(RunFolderError, match="has changed since the run began"):
        resume(tmp_path / "run", tensorboard=False)


def test_clean_samples_that_are_named_are_never_drawn_for_the_test_set(rings: Path, tmp_path: Path) -> None:
    ids = [str(number) for number in range(0, 360, 6)]
    (tmp_path / "clean.txt").write_text("\n".join(ids))
    sets = plan(asked(rings, clean=str(tmp_path / "clean.txt"), heldout=None, test="auto", limit=200)).sets
    assert sets.clean is not None
    assert set(sets.clean.ids.tolist()) == set(ids)
    assert len(sets.train) + (0 if sets.test is None else len(sets.test)) == 200


def test_a_method_that_does_not_learn_from_clean_samples_keeps_all_of_them_to_choose_by(rings: Path) -> None:
    sets = plan(asked(rings, method="CE")).sets
    assert sets.clean is None
    assert sets.heldout is not None
    assert len(sets.heldout) == 24


def test_large_numbers_keep_their_differences(tmp_path: Path) -> None:
    lines = [f"{1_700_000_000 + row},{row % 2}" for row in range(60)]
    (tmp_path / "times.csv").write_text("\n".join(["seconds,label", *lines]))
    made = plan(asked(tmp_path / "times.csv", clean="none", heldout=None, method="CE", test="none"))
    assert len(torch.unique(made.encoder.encode(made.sets.train.inputs))) == 60


def test_a_column_that_tells_the_label_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60).tolist()
    rows = [f"{x:.3f},{label + 4},{'ab'[label]},{label}" for x, label in zip(rng.random(60), labels, strict=True)]
    (tmp_path / "leak.csv").write_text("\n".join(["x,code,letter,label", *rows]))
    made = plan(asked(tmp_path / "leak.csv", clean="none", heldout=None, method="CE", test="none"))
    telling = [note for note in made.sets.notes if "tells the label exactly" in note]
    assert ["'code'" in telling[0], "'letter'" in telling[1], len(telling)] == [True, True, 2]


def test_copies_are_found_whatever_their_precision(rings: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(rings))
    np.savez(tmp_path / "double.npz", **{**arrays, "x": arrays["x"].astype(np.float64) + 1e-12})
    with pytest.raises(OverlapError, match="also in clean"):
        plan(asked(tmp_path / "double.npz", clean=str(rings), method="CE", test="none"))


def test_own_methods_that_draw_from_the_global_state_are_repeatable(
    rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawing.py").write_text(
        "import torch\nfrom narl import losses\nfrom narl.train.methods import LossMethod\n"
        "class Drawn(LossMethod):\n"
        "    def __init__(self, setting):\n        super().__init__(setting)\n        self.scale = torch.rand(())\n"
        "    def values(self, logits, y, ids):\n        return self.scale * losses.ce(logits, y)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two"):
        start(plan(asked(rings, method="drawing:Drawn", epochs=1)), tmp_path / name, tensorboard=False)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_failed_tuning_leaves_the_way_free(rings: Path, tmp_path: Path) -> None:
    with pytest.raises(NarlError, match="lower the learning rate"):
        start(plan(asked(rings, method="GCE", tune=True, learning_rate=1e6)), tmp_path / "run", tensorboard=False)
    start(plan(asked(rings, method="GCE", tune=True, epochs=1)), tmp_path / "run", tensorboard=False)


def test_code_that_has_changed_is_one_clear_error(rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shifting.py").write_text(
        "import torch\nWIDTH = 8\ndef make(numbers, num_classes):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(numbers, WIDTH), torch.nn.Linear(WIDTH, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    start(plan(asked(rings, model="shifting:make")), tmp_path / "run", observer=StopAt(3), tensorboard=False)
    import shifting  # type: ignore[import-not-found]

    monkeypatch.setattr(shifting, "WIDTH", 9)
    with pytest.raises(CheckpointError, match="code has changed"):
        resume(tmp_path / "run", tensorboard=False)


def test_a_finished_run_is_left_alone(reference: Path) -> None:
    before = files(reference)
    outcome = resume(reference, tensorboard=False)
    assert outcome.finished
    assert "finished already" in outcome.remarks[0]
    assert files(reference) == before


def test_training_leaves_the_random_state_alone(rings: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    start(plan(asked(rings, epochs=1)), tmp_path / "run", tensorboard=False)
    assert torch.equal(torch.rand(3), expected)


def test_seeds_differ(rings: Path, reference: Path, tmp_path: Path) -> None:
    start(plan(asked(rings, seed=2)), tmp_path / "run", tensorboard=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() != (reference / "metrics.jsonl").read_bytes()


def test_tuning_chooses_on_clean_samples_and_survives_a_stop(rings: Path, tmp_path: Path) -> None:
    made = plan(asked(rings, method="GCE", tune=True, epochs=2))
    start(made, tmp_path / "whole", tensorboard=False)
    start(made, tmp_path / "parts", observer=StopAt(20), tensorboard=False)
    resume(tmp_path / "parts", tensorboard=False)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    found = json.loads((tmp_path / "whole" / "tuning.json").read_text())
    best = max(found["candidates"], key=lambda row: (row["clean_accuracy"], -row["clean_loss"]))
    assert found["chosen"] == best["options"]
    for candidate in (tmp_path / "whole" / "tuning").iterdir():
        assert "test_accuracy" not in (candidate / "metrics.jsonl").read_text()


def test_transfer_uses_the_snapshots(rings: Path, reference: Path, tmp_path: Path) -> None:
    made = plan(asked(rings, method=None, clean="none", heldout=None, adjusters=(str(reference),)))
    assert made.recipe.method == "T-GCE"
    assert start(made, tmp_path / "whole", tensorboard=False).finished
    kept = load_adjusters([str(tmp_path / "whole" / "source-adjusters.safetensors")])
    assert len(kept) == 4
    for number, one in enumerate(kept):
        taken = Adjuster.load(reference / f"adjuster-{number}.safetensors")
        assert torch.equal(one.heads.weight, taken.heads.weight)
        assert one.taken == taken.taken == pytest.approx(number / 3, abs=0.1)
    start(made, tmp_path / "parts", observer=StopAt(7), tensorboard=False)
    for path in (tmp_path / "parts").glob("adjuster-*"):
        pytest.fail(f"{path} is none of a transferred run's")
    resume(tmp_path / "parts", tensorboard=False)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_trained_predicts_what_was_measured(rings: Path, reference: Path) -> None:
    sets = plan(asked(rings)).sets
    trained = Trained(reference, "cpu")
    assert sets.test is not None
    probabilities = trained.predict(sets.test.inputs)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    summary = json.loads((reference / "summary.json").read_text())
    accuracy = (probabilities.argmax(1) == sets.test.labels).mean()
    assert accuracy == pytest.approx(summary["selected"]["test_accuracy"])


def test_patience_stops_early(rings: Path, tmp_path: Path) -> None:
    outcome = start(plan(asked(rings, epochs=30, patience=1, learning_rate=1e-6)), tmp_path / "run", tensorboard=False)
    assert outcome.summary["stopped_early"]
    assert outcome.summary["epochs"] < 30


def test_tensorboard_is_written(rings: Path, tmp_path: Path) -> None:
    start(plan(asked(rings, epochs=1)), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "A-GCE", "clean": "none", "heldout": None}, "give them with --clean"),
        ({"method": "CE", "clean": "none", "heldout": None, "patience": 3}, "--patience needs clean"),
        ({"heldout": 0.0, "patience": 3}, "--patience needs clean"),
        ({"clean": "none", "method": "Forward"}, "--heldout is a share"),
        ({"method": "CE", "heldout": 0.5}, "all of them choose the epoch"),
        ({"method": "CE", "clean_batch_size": 7}, "for CE all of them choose the epoch"),
        (
            {"method": "MentorNet", "clean_batch_size": 7, "options": {"curriculum": "predefined"}},
            "for MentorNet with these options all of them choose the epoch",
        ),
        ({"optimizer": "adamw", "momentum": 0.5}, "--momentum is of sgd"),
        ({"options": {"adjusters": "x"}}, "--adjuster"),
        ({"method": "GCE", "tune": True, "options": {"q": 0.3}}, "--tune chooses q"),
        ({"device": "meta"}, "does not train on"),
        ({"method": "CE", "adjusters": ("x.safetensors",)}, "--adjuster is for T-"),
        ({"method": "A-GCE", "tune": True}, "--tune"),
        ({"optimizer": "lion"}, "lion"),
        ({"augment": "flip"}, "for images"),
        ({"test": "1.5"}, "no share"),
        ({"device": "cuda:77"}, "--device cpu"),
        ({"warmup": 9.0}, "warm-up"),
        ({"overlap": "maybe"}, "maybe"),
        ({"model": "resnet32"}, "resnet32"),
        ({"schedule": "cosin"}, "cosine"),
        ({"schedule": "cosin", "milestones": (1,)}, "no schedule is called 'cosin'"),
        ({"schedule": "cosine", "milestones": (1,)}, "the cosine schedule has no milestones"),
        ({"milestones": (1,)}, "the cosine schedule has no milestones"),  # a table's default
        ({"schedule": "step", "milestones": (1, EPOCHS)}, f"--milestones {EPOCHS} is not inside a run of {EPOCHS}"),
        ({"schedule": "step", "milestones": (1, 1.01)}, "at least a step apart"),
        ({"schedule": "step", "milestones": (1e-9,)}, "at least a step apart"),
        ({"schedule": "step", "milestones": (1,), "warmup": 2.0}, "warm-up: give milestones after it"),
        ({"clean": "400"}, "class"),
        ({"options": {"marginn": "latest"}}, "margin"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_training(changes: dict[str, Any], words: str, rings: Path) -> None:
    with pytest.raises(NarlError, match=words):
        plan(asked(rings, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 0}, {"batch_size": 1}, {"learning_rate": 0.0}, {"learning_rate": float("nan")}, {"seed": -1},
     {"heldout": 1.0}, {"limit": 1}, {"seed": 2**64}, {"milestones": (0,)}, {"milestones": (2, 2)}, {"milestones": [2]},
     {"milestones": ("2",)}, {"milestones": (float("inf"),)}, {"milestones": (float("nan"),)}, {"milestones": (True,)}],
)  # fmt: skip
def test_settings_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        replace(Settings(data="x"), **changes)


@given(sixths=st.integers(1, 50), steps=st.integers(1, 500))
def test_milestones_at_the_default_epochs_are_the_default(sixths: int, steps: int) -> None:
    total = 6 * sixths * steps
    default, told = (
        Schedule("step", total),
        Schedule("step", total, milestones=(4 * sixths * steps, 5 * sixths * steps)),
    )
    around = {
        border + shift for border in (0, 4 * sixths * steps, 5 * sixths * steps, total - 1) for shift in (-1, 0, 1)
    }
    assert all(default.factor(step) == told.factor(step) for step in around if step >= 0)


@given(
    epochs=st.lists(st.integers(1, 299), min_size=1, max_size=5, unique=True).map(sorted),
    steps=st.integers(1, 5000),
    epoch=st.integers(0, 299),
)
def test_milestones_fall_with_the_epochs_first_step(epochs: list[int], steps: int, epoch: int) -> None:
    schedule = Schedule("step", 300 * steps, milestones=[one * steps for one in epochs])
    expected = float(f"1e-{sum(epoch >= one for one in epochs)}")
    assert schedule.factor(epoch * steps) == schedule.factor((epoch + 1) * steps - 1) == expected


def test_a_run_with_milestones_goes_on_as_it_was(rings: Path, tmp_path: Path) -> None:
    made = plan(asked(rings, schedule="step", milestones=(1, 2.5)))
    assert [made.schedule.factor(step) for step in (made.steps - 1, made.steps, made.total_steps - 1)] == [1, 0.1, 0.01]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start(made, whole, tensorboard=False)
    assert not start(made, parts, observer=StopAt(made.steps - 1), tensorboard=False).finished
    assert resume(parts, tensorboard=False).finished
    assert files(parts) == files(whole)
    start(plan(asked(rings, schedule="step")), tmp_path / "default", tensorboard=False)
    assert files(tmp_path / "default") != files(whole)


def test_a_run_from_before_milestones_goes_on(rings: Path, reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "old"
    start(plan(asked(rings)), run, observer=StopAt(3), tensorboard=False)
    config = json.loads((run / "config.json").read_text())
    del config["config"]["settings"]["milestones"]
    (run / "config.json").write_text(json.dumps(config))
    assert resume(run, tensorboard=False).finished
    assert files(run) == files(reference)


@pytest.mark.parametrize("method", ["GCE", "A-GCE"])
def test_layers_hear_of_their_mode_by_the_epoch(
    method: str, rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is told: in every step that would keep the host busy."""
    told: Counter[nn.Module] = Counter()
    train = nn.Module.train

    def counted(module: nn.Module, mode: bool = True) -> nn.Module:
        if mode:
            told[module] += 1
        return train(module, mode)

    monkeypatch.setattr(nn.Module, "train", counted)
    run = tmp_path / "run"
    start(plan(asked(rings, method=method, batch_size=10)), run, tensorboard=False)
    rows = len(SampleRecord.open(run).ids)
    assert max(told.values(), default=0) <= 2 * EPOCHS < EPOCHS * rows // 10


@pytest.mark.parametrize("steps", [3, 6, 9, 18])
def test_a_run_that_counts_its_matrix_is_resumed_bitwise(steps: int, rings: Path, tmp_path: Path) -> None:
    """The matrix is counted after 6 of 24 steps; stopped before, at that moment, and after."""
    counting = plan(asked(rings, method="Forward", options={"estimate": "counted"}))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert start(counting, whole, tensorboard=False).finished
    assert not start(counting, stopped, observer=StopAt(steps), tensorboard=False).finished
    assert resume(stopped, tensorboard=False).finished
    assert files(stopped) == files(whole)
