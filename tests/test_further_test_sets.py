"""``--also-test``: test sets beside the test set, which are looked at and choose nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from command_line import done, refused, result
from narl.audit.report import training
from narl.data.read import read_inputs
from narl.errors import DataError, OptionError, OverlapError
from narl.train import Settings, Trained, plan, resume, start
from narl.train.assembly import assemble
from narl.train.run_folder import RunFolder
from narl.train.summary import summarise
from test_train_session import StopAt

CLASSES = 12
EPOCHS = 3


def points(path: Path, count: int, seed: int, classes: int = CLASSES) -> Path:
    """Points around a centre a class."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, 5)) * 3
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    values = (centres[labels] + 1.5 * rng.normal(size=(count, 5))).astype(np.float32)
    np.savez(path, x=values, y=labels, classes=np.array([f"class {label}" for label in range(classes)]))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed, (name, count) in enumerate({"train": 240, "test": 60, "near": 48, "far": 36}.items()):
        points(folder / f"{name}.npz", count, seed)
    points(folder / "few.npz", 120, 9, classes=4)
    return folder


def asked(data: Path, **more: Any) -> Settings:
    further = {"near": str(data / "near.npz"), "Far-1.0": str(data / "far.npz")}
    about = {"clean": "24", "epochs": EPOCHS, "batch_size": 40, "device": "cpu", "threads": 1, "also_test": further}
    return Settings(str(data / "train.npz"), **{**about, "test": str(data / "test.npz"), **more})


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert start(plan(asked(data)), folder, tensorboard=False).finished
    return folder


def test_the_numbers_are_those_of_the_kept_model(data: Path, run: Path) -> None:
    last = RunFolder.open(run).metrics()[-1]
    for name, file in (("test", "test"), ("near", "near"), ("Far-1.0", "far")):
        with np.load(data / f"{file}.npz") as arrays:
            labels = arrays["y"]
        trained = Trained(run, device="cpu")
        predicted = trained.predict(read_inputs(data / f"{file}.npz", columns=trained.columns).inputs)
        assert last[f"{name}_accuracy"] == pytest.approx(accuracy_score(labels, predicted.argmax(axis=1)))
        assert last[f"{name}_top5_accuracy"] == pytest.approx(top_k_accuracy_score(labels, predicted, k=5))
        assert last[f"{name}_loss"] == pytest.approx(
            -np.log(predicted[np.arange(len(labels)), labels]).mean(), rel=1e-4
        )


def test_the_summary_has_them_in_the_same_epochs(run: Path) -> None:
    folder = RunFolder.open(run)
    metrics, summary = folder.metrics(), folder.read_json("summary.json")
    shares = [f"{name}{of}_accuracy" for name in ("test", "near", "Far-1.0") for of in ("", "_top5")]
    assert list(summary["last5"]) == shares
    assert list(summary["best"]) == ["epoch", *shares]
    best = metrics[summary["best"]["epoch"] - 1]
    assert best["test_accuracy"] == max(record["test_accuracy"] for record in metrics)
    for share in shares:
        assert summary["last5"][share] == pytest.approx(np.mean([record[share] for record in metrics]))
        assert summary["best"][share] == best[share]
    assert set(summary["near_accuracy_by_class"]) == set(summary["test_accuracy_by_class"])
    assert folder.config["samples"] == {"train": 216, "clean": 24, "heldout": 0, "test": 60, "near": 48, "Far-1.0": 36}


def test_they_change_nothing_else(data: Path, run: Path, tmp_path: Path) -> None:
    start(plan(asked(data, also_test={})), tmp_path / "alone", tensorboard=False)
    alone, beside = (RunFolder.open(path).metrics() for path in (tmp_path / "alone", run))
    assert alone == [{name: record[name] for name in alone[0]} for record in beside]
    assert (tmp_path / "alone" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_a_run_that_was_stopped_goes_on_with_them(data: Path, run: Path, tmp_path: Path) -> None:
    assert not start(plan(asked(data)), tmp_path / "run", observer=StopAt(8), tensorboard=False).finished
    assert resume(tmp_path / "run", tensorboard=False).finished
    assert result(tmp_path / "run") == result(run)


def test_runs_of_an_earlier_version_have_what_was_measured(data: Path) -> None:
    made = plan(asked(data, epochs=7))
    loop = assemble(made)
    loop.history = [{"test_accuracy": 0.5, "near_accuracy": 0.4}] * 3
    loop.history += [{"test_accuracy": 0.4, "near_accuracy": 0.3, "test_top5_accuracy": 0.9}] * 4
    loop.by_class = {name: [0.0] * CLASSES for name in loop.evaluated}
    summary = summarise(loop, made)
    assert summary["last5"] == pytest.approx({"test_accuracy": 0.42, "near_accuracy": 0.32})
    assert summary["best"] == {"epoch": 1, "test_accuracy": 0.5, "near_accuracy": 0.4}


def test_data_that_has_changed_is_noticed(data: Path) -> None:
    whole = plan(asked(data)).sets.fingerprint()
    renamed = {"close": str(data / "near.npz"), "Far-1.0": str(data / "far.npz")}
    assert plan(asked(data, also_test=renamed)).sets.fingerprint() != whole
    assert plan(asked(data, also_test={})).sets.fingerprint() != whole
    assert plan(asked(data)).sets.fingerprint() == whole


def test_samples_that_are_trained_on_are_refused_or_left_out(data: Path) -> None:
    shared = {"same": str(data / "train.npz")}
    with pytest.raises(OverlapError, match=r"216 samples of train are also in same .*; 24 samples of clean are"):
        plan(asked(data, also_test=shared))
    with pytest.raises(OverlapError, match="all 216 training samples are in the clean or test set"):
        plan(asked(data, also_test=shared, overlap="drop"))
    notes = plan(asked(data, also_test=shared, overlap="allow")).sets.notes
    assert sum("also in same" in note for note in notes) == 2
    # Two test sets may share samples.
    assert len(plan(asked(data, also_test={"again": str(data / "test.npz")})).sets.also["again"]) == 60


def test_classes_are_those_of_the_training_set(data: Path) -> None:
    with pytest.raises(DataError, match=r"has the class 'class 4', which the training set does not have"):
        plan(Settings(str(data / "few.npz"), test="0.2", also_test={"near": str(data / "near.npz")}, device="cpu"))
    image = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez(data / "images.npz", x=image, y=np.arange(4), classes=np.array([f"class {label}" for label in range(4)]))
    with pytest.raises(DataError, match=r"images\.npz holds images, the training data tables: give the same"):
        plan(asked(data, also_test={"images": str(data / "images.npz")}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"test": "x"}, "cannot call a set 'test'"),
        ({"HeldOut": "x"}, "cannot call a set 'HeldOut'"),
        ({"meta": "x"}, "cannot call a set 'meta'"),
        ({"two words": "x"}, "has the name 'two words': give a plain word"),
        ({"near_top5": "x"}, "has the name 'near_top5': give a plain word"),
        ({"../up": "x"}, "give a plain word"),
        ({"": "x"}, "give a plain word"),
        ({"near": ""}, "says of no data where it is"),
        ({"near": "x", "NEAR": "y"}, "two sets of one name"),
        (["near"], "is no path by name"),
        ({"near": 3}, "is no path by name"),
    ],
)
def test_names_that_could_be_mistaken_are_refused(given: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Settings("x.csv", also_test=given)


def test_the_command_says_and_shows_them(data: Path, tmp_path: Path) -> None:
    command = ("train", data / "train.npz", "--test", data / "test.npz", "--epochs", 1, "--device", "cpu")
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"also-test": [f"near={data / 'near.npz'}"]}))
    answer = done(*command, "--config", config, "--out", tmp_path / "run", "--no-tensorboard")
    assert "60 to test on, 48 of near\n" in answer.err
    last = RunFolder.open(tmp_path / "run").metrics()[-1]
    assert f"test {100 * last['test_accuracy']:.1f} %  near {100 * last['near_accuracy']:.1f} %  (" in answer.err
    for name in ("test", "near"):
        accuracy, top5 = last[f"{name}_accuracy"], last[f"{name}_top5_accuracy"]
        assert f"{name} accuracy, mean of the last 1 epoch: {accuracy:.2%}, top 5 {top5:.2%}\n" in answer.out
    assert "is not NAME=PATH" in refused(*command, "--also-test", data / "near.npz", "--dry-run")
    twice = ("--also-test", "near=a.npz", "--also-test", "near=b.npz")
    assert "one set twice" in refused(*command, *twice, "--dry-run")
    assert "there is no file or folder" in refused(*command, "--also-test", f"near={data / 'no.npz'}", "--dry-run")
    none = (*command[:2], "--test", "none", "--also-test", f"near={data / 'near.npz'}", "--dry-run")
    assert "is beside a test set" in refused(*none)


def test_few_classes_have_no_top_5(data: Path, tmp_path: Path) -> None:
    about: dict[str, Any] = {"test": "0.2", "epochs": 1, "device": "cpu", "method": "GCE"}
    outcome = start(plan(Settings(str(data / "few.npz"), **about)), tmp_path / "run", tensorboard=False)
    assert set(outcome.summary["last5"]) == {"test_accuracy"}
    assert set(outcome.summary["best"]) == {"epoch", "test_accuracy"}
    record = RunFolder.open(tmp_path / "run").metrics()[0]
    assert [name for name in record if name.endswith("_accuracy")] == ["test_accuracy"]


def test_tuning_does_not_look_at_them(data: Path, tmp_path: Path) -> None:
    about = asked(data, method="JS", tune=True, epochs=1)
    assert start(plan(about), tmp_path / "run", tensorboard=False).finished
    candidates = [RunFolder.open(path.parent).metrics()[0] for path in (tmp_path / "run").glob("tuning/*/config.json")]
    assert candidates
    assert not any(name.startswith(("test", "near", "Far")) for record in candidates for name in record)
    assert "near_accuracy" in RunFolder.open(tmp_path / "run").metrics()[0]


def test_reports_draw_them(run: Path) -> None:
    curves = training.curves(RunFolder.open(run).metrics())
    assert curves is not None
    assert list(curves["shares"]) == [
        "accuracy on the test set",
        "test labels among the five most probable",
        "agreement with the given labels",
        "accuracy on near",
        "accuracy on Far-1.0",
    ]
