"""Audits of runs: what the record holds, what old runs lack, folds, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from narl.audit import from_folds, from_run
from narl.audit.epochs import weights_of
from narl.audit.folds import assign
from narl.errors import DataError, NarlWarning, OptionError, RunFolderError
from narl.train import Settings, Trained, checkpoint, plan, resume, start
from narl.train.record import NAMES, RIVAL, VALUES, SampleRecord

EPOCHS = 6


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clouds of points, a quarter with the next one's label; the truth is known."""
    rng = np.random.default_rng(0)
    true = np.arange(400) % 4
    x = rng.normal(size=(400, 2)) + 3.0 * np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])[true]
    labels = np.where(rng.random(400) < 0.25, (true + 1) % 4, true)
    path = tmp_path_factory.mktemp("data") / "points.npz"
    np.savez(path, x=x.astype(np.float32), y=labels, y_true=true, classes=np.array(["a", "b", "<i>", "d\n"]))
    return path


def asked(data: Path, **given: Any) -> Settings:
    values: dict[str, Any] = {"method": "A-GCE", "clean": "40", "test": "0.1", "epochs": EPOCHS, "batch_size": 40}
    return Settings(data=str(data), **{**values, "seed": 1, "device": "cpu", "threads": 1, **given})


@pytest.fixture(scope="module")
def run(points: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert start(plan(asked(points)), folder, tensorboard=False).finished
    return folder


def copied(run: Path, place: Path) -> Path:
    shutil.copytree(run, place)
    return place


def as_before_audits(run: Path) -> Path:
    """Take out of a run what records of earlier versions did not hold."""
    about = json.loads((run / NAMES).read_text())
    values = np.load(run / VALUES)
    labels = about.pop("labels")
    about["fields"].remove(RIVAL)
    (run / NAMES).write_text(json.dumps(about))
    (run / VALUES).unlink()
    (run / NAMES).rename(run / "kept")
    old = SampleRecord.create(run, about["fields"], about["ids"], about["epochs"])
    for epoch, rows in enumerate(values):
        old.write(epoch, dict(zip(about["fields"], rows, strict=False)))
    (run / "kept").replace(run / NAMES)
    assert len(labels) == len(about["ids"])
    return run


def test_wrong_labels_score_low(points: Path, run: Path) -> None:
    verdicts, train = from_run(run), plan(asked(points)).sets.train
    assert train.true_labels is not None
    wrong = train.labels != train.true_labels
    assert verdicts.ids.tolist() == train.ids.tolist()
    np.testing.assert_array_equal(verdicts.given, train.labels)
    assert roc_auc_score(wrong, -verdicts.score) > 0.95
    assert (verdicts.suggested == train.true_labels).mean() > 0.9
    assert verdicts.class_names == ("a", "b", "<i>", "d\n")
    assert verdicts.noise.low <= wrong.mean() <= verdicts.noise.high
    assert verdicts.probability is not None
    assert abs(verdicts.probability.mean() - wrong.mean()) < 0.1
    assert set(verdicts.family.tolist()) <= {0, 1, 2}
    assert from_run(run, calibrate=False).probability is None


def test_the_record_holds_labels_and_the_classes_that_stood_against_them(points: Path, run: Path) -> None:
    record, train = SampleRecord.open(run), plan(asked(points)).sets.train
    assert record.labels is not None
    np.testing.assert_array_equal(record.labels, train.labels)
    against = record.epochs_of(RIVAL)
    assert against.shape == (EPOCHS, len(train))
    np.testing.assert_array_equal(against, record.read(RIVAL))
    assert ((against >= 0) & (against < 4) & (against != record.labels)).all()
    # In the last epoch, with a small learning rate, the classifier is nearly the trained one.
    predicted = Trained(run, "cpu").predict(train.inputs).argmax(axis=1)
    seen = np.where(record.read("margin", EPOCHS - 1) > 0, record.labels, against[-1])
    assert (seen == predicted).mean() > 0.95


def test_the_score_weighs_epochs_by_how_clearly_they_part_the_labels(run: Path) -> None:
    margins = SampleRecord.open(run).read("margin").astype(np.float64)
    weights = weights_of(margins)
    support = ((1 + np.tanh(margins / np.abs(margins).mean(axis=1, keepdims=True))) / 2).T @ (weights / weights.sum())
    score = from_run(run, calibrate=False).score
    np.testing.assert_array_equal(np.argsort(score, kind="stable"), np.argsort(support, kind="stable"))


def test_a_run_of_before_there_were_audits(run: Path, tmp_path: Path) -> None:
    old, new = from_run(as_before_audits(copied(run, tmp_path / "old"))), from_run(run)
    assert RIVAL not in SampleRecord.open(tmp_path / "old").fields
    np.testing.assert_array_equal(old.score, new.score)
    np.testing.assert_array_equal(old.given, new.given)
    assert (old.suggested == new.suggested).mean() > 0.95


def test_an_old_run_goes_on_as_it_began(points: Path, tmp_path: Path) -> None:
    class Stop:
        left = 2 * EPOCHS

        def decoded(self, done: int, total: int) -> None: ...
        def begin(self, title: str, epochs: int, steps: int, done: int) -> None: ...
        def after_epoch(self, record: dict[str, Any]) -> None: ...
        def after_step(self, report: object) -> None:
            self.left -= 1

        def wants_stop(self) -> bool:
            return self.left <= 0

    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert start(plan(asked(points)), whole, tensorboard=False).finished
    assert not start(plan(asked(points)), parted, observer=Stop(), tensorboard=False).finished
    for path in (parted / "checkpoints").iterdir():
        tree = checkpoint.load(path)
        del tree["values"][RIVAL]
        checkpoint.save(path, tree)
    assert resume(as_before_audits(parted), tensorboard=False).finished
    assert (parted / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    old, new = SampleRecord.open(parted), SampleRecord.open(whole)
    assert old.fields == new.fields[:-1]
    for field in old.fields:
        np.testing.assert_array_equal(old.read(field), new.read(field))


def test_a_clean_set_that_is_gone_is_said(points: Path, tmp_path: Path) -> None:
    data = tmp_path / "points.npz"
    shutil.copy(points, data)
    start(plan(asked(data, method="GCE", epochs=2)), tmp_path / "run", tensorboard=False)
    assert from_run(tmp_path / "run").probability is not None  # clean samples that only chose the epoch calibrate, too
    assert (from_run(tmp_path / "run").family == -1).all()
    data.unlink()
    with pytest.warns(NarlWarning, match=r"not calibrated: .*points\.npz"):
        assert from_run(tmp_path / "run").probability is None


def test_data_that_has_changed_is_not_used(points: Path, run: Path, tmp_path: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["config"]["fingerprint"] = "0" * 32
    changed = copied(run, tmp_path / "changed")
    (changed / "config.json").write_text(json.dumps(config))
    with pytest.warns(NarlWarning, match="has changed"):
        assert from_run(changed).probability is None
    with pytest.raises(RunFolderError, match="has changed"):
        from_run(as_before_audits(changed))
    with pytest.raises(RunFolderError, match="has changed"):
        from_folds(changed, 2)


def test_a_run_without_an_epoch_is_refused(run: Path, tmp_path: Path) -> None:
    begun = copied(run, tmp_path / "begun")
    (begun / "metrics.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="no epoch yet"):
        from_run(begun)
    with pytest.raises(RunFolderError, match="there is no folder"):
        from_run(tmp_path / "nowhere")


@pytest.mark.parametrize("labels", [[0], "no", [-1] * 400, [0.5] * 400, [99] * 400])
def test_labels_that_are_none_are_refused(run: Path, tmp_path: Path, labels: Any) -> None:
    broken = copied(run, tmp_path / "broken")
    about = json.loads((broken / NAMES).read_text())
    about["labels"] = labels[: len(about["ids"])]
    (broken / NAMES).write_text(json.dumps(about))
    with pytest.raises(RunFolderError, match=r"samples\.json"):
        from_run(broken)


def test_margins_that_are_missing_are_refused(run: Path, tmp_path: Path) -> None:
    blind = copied(run, tmp_path / "blind")
    record = SampleRecord.open(blind)
    nothing = np.full(len(record.ids), np.nan)
    for epoch in range(EPOCHS):
        record.write(epoch, dict.fromkeys(record.fields, nothing))
    with pytest.raises(RunFolderError, match="must report margins"):
        from_run(blind)


def test_folds_judge_by_classifiers_that_have_not_seen_the_label(
    points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    made = plan(asked(points, method="CE", epochs=3))
    start(made, folder, tensorboard=False)
    verdicts = from_folds(folder, 3)
    assert verdicts is not None
    assert made.sets.train.true_labels is not None
    wrong = made.sets.train.labels != made.sets.train.true_labels
    assert verdicts.ids.tolist() == made.sets.train.ids.tolist()
    assert roc_auc_score(wrong, -verdicts.score) > 0.9
    assert verdicts.probability is not None
    seen = [set(SampleRecord.open(path).ids.tolist()) for path in sorted((folder / "audit").glob("fold-*-of-3"))]
    assert len(seen) == 3
    assert all(sum(name not in part for part in seen) == 1 for name in verdicts.ids.tolist())
    monkeypatch.setattr("narl.audit.folds.session.start", None)  # nothing is trained twice
    again = from_folds(folder, 3)
    assert again is not None
    np.testing.assert_array_equal(again.score, verdicts.score)


def test_folds_can_be_stopped(run: Path, tmp_path: Path) -> None:
    class Stop:
        def decoded(self, done: int, total: int) -> None: ...
        def begin(self, title: str, epochs: int, steps: int, done: int) -> None: ...
        def after_epoch(self, record: dict[str, Any]) -> None: ...
        def after_step(self, report: object) -> None: ...
        def wants_stop(self) -> bool:
            return True

    assert from_folds(copied(run, tmp_path / "run"), 2, observer=Stop()) is None


def test_folds_share_classes_evenly_and_keep_copies_together() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    content = rng.integers(0, 70, 120)
    parts = assign(labels, content, ("a", "b", "c"), 4, seed=0)
    for number in np.unique(content):
        assert len(set(parts[content == number].tolist())) == 1
    sizes = np.bincount(parts[np.unique(content, return_index=True)[1]], minlength=4)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(parts, assign(labels, content, ("a", "b", "c"), 4, seed=0))
    with pytest.raises(DataError, match="'b' has no two different samples"):
        assign(np.array([0, 0, 1]), np.arange(3), ("a", "b"), 2, seed=0)
    with pytest.raises(OptionError, match="more than the 120 samples"):
        assign(labels, content, ("a", "b", "c"), 121, seed=0)
    with pytest.raises(OptionError, match="2 or more"):
        assign(labels, content, ("a", "b", "c"), 1, seed=0)
