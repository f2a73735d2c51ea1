"""--train-on-clean: checked samples in the training set, with their checked labels, and no others by that way."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import done, photos, refused, rings
from narl.audit import from_folds, from_run
from narl.audit.review.answers import FILE, Answers
from narl.audit.review.opening import open_desk
from narl.data.joining import joined
from narl.data.samples import ImageFiles, Images, Samples, Table, Texts
from narl.errors import DataError, NarlWarning, OptionError, OverlapError
from narl.train import Settings, plan, resume, start
from narl.train.prepare import Sets, prepare
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder
from test_train_session import StopAt, files

SHORT = ("--test", "0.2", "--epochs", 2, "--batch-size", 50, "--device", "cpu", "--no-tensorboard")


def contents(samples: Samples | None) -> list[float]:
    """The number that a sample is; copies have the same."""
    if samples is None:
        return []
    assert isinstance(samples.inputs, Table)
    return [float(row[0]) for row in samples.inputs.numbers]


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], float]:
    """A table of numbers, some of them twice; a clean set of one of three kinds; a share to hold out."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.permutation(np.concatenate([np.arange(36), rng.integers(0, 36, 12)])).astype(np.float64)
    true = (x % 2).astype(np.int64)
    data = {"x": x[:, None], "y": np.where(rng.random(48) < 0.3, 1 - true, true)}
    if draw(st.booleans()):
        data["y_true"] = true
    kind = draw(st.sampled_from(["number", "ids", "file"]))
    clean: dict[str, Any] = {"kind": kind, "count": draw(st.integers(6, 12))}
    if kind == "ids":
        chosen = rng.permutation(36)[: clean["count"]]  # numbers: of copies the first is named
        rows = [int(np.flatnonzero(x == number)[0]) for number in {*chosen.tolist(), 0, 1, 2, 3}]
        clean["lines"] = [f"{row},{int(rng.random() < 0.5) if row > 3 else row % 2}" for row in rows]
    if kind == "file":
        inside, outside = rng.permutation(36)[: clean["count"]], np.arange(40, 46)
        clean["x"] = np.concatenate([inside, outside]).astype(np.float64)[:, None]
        clean["y"] = (clean["x"][:, 0] % 2).astype(np.int64)
    return data, clean, draw(st.sampled_from([0.0, 0.3]))


def sets_of(data: dict[str, Any], clean: dict[str, Any], heldout: float, **more: Any) -> tuple[Sets, Sets]:
    """The sets without the option and with it."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/data.npz", **data)
        where = str(clean["count"])
        if clean["kind"] == "ids":
            where = f"{folder}/clean.csv"
            Path(where).write_text("\n".join(["id,label", *clean["lines"]]))
        if clean["kind"] == "file":
            where = f"{folder}/clean.npz"
            np.savez(where, x=clean["x"], y=clean["y"])
        np.savez(f"{folder}/test.npz", x=np.arange(60.0, 64.0)[:, None], y=np.arange(4) % 2)
        test = f"{folder}/test.npz" if clean["kind"] == "file" else "0.1"  # what is drawn may be among the file's
        asked = {"data": f"{folder}/data.npz", "clean": where, "test": test, **more}
        without = Settings(**{"overlap": "drop", **asked}) if clean["kind"] == "file" else Settings(**asked)
        apart = prepare(without, heldout=heldout)
        return apart, prepare(Settings(**asked, train_on_clean=True), heldout=heldout)


@given(problem=problems())
@settings(max_examples=60)
def test_the_training_set_is_the_rest_and_the_checked_samples(
    problem: tuple[dict[str, Any], dict[str, Any], float],
) -> None:
    data, clean, heldout = problem
    try:
        apart, sets = sets_of(data, clean, heldout)
    except DataError as error:  # too few of a class were drawn: said, not got wrong
        assert "class" in str(error) or "held out" in str(error)  # noqa: PT017
        return
    assert sets.clean is not None
    rest = len(apart.train)
    # What was trained on without the option still is, the learned-from clean samples follow, and nothing else.
    assert sets.train.ids[:rest].tolist() == apart.train.ids.tolist()
    np.testing.assert_array_equal(sets.train.labels[:rest], apart.train.labels)
    assert contents(sets.train)[rest:] == contents(sets.clean)
    np.testing.assert_array_equal(sets.train.labels[rest:], sets.clean.labels)
    mark = "clean:" if clean["kind"] == "file" else ""
    assert sets.checked == tuple(sets.train.ids[rest:]) == tuple(f"{mark}{name}" for name in sets.clean.ids)
    assert sets.unchecked.tolist() == list(range(rest))
    assert len(set(sets.train.ids.tolist())) == len(sets.train)
    # Nobody is trained on what chooses the epoch or tests, nor on a checked sample with another label.
    for other in (sets.heldout, sets.test):
        assert not set(contents(sets.train)) & set(contents(other))
    assert not set(contents(sets.train)[:rest]) & set(contents(sets.clean))
    assert [part is not None for part in (sets.heldout,)] == [bool(heldout)]
    assert sets.unseen == ((sets.heldout,) if heldout else ())
    for one, other in ((apart.clean, sets.clean), (apart.heldout, sets.heldout), (apart.test, sets.test)):
        assert contents(one) == contents(other)
    # Counts and truth.
    assert sets.train.class_counts.tolist() == [int((sets.train.labels == label).sum()) for label in (0, 1)]
    wrong = [label != number % 2 for label, number in zip(sets.train.labels, contents(sets.train), strict=True)]
    assert (None if sets.mislabelled is None else sets.mislabelled.tolist()) == (wrong if "y_true" in data else None)
    assert sets.fingerprint() != apart.fingerprint()


def test_test_samples_are_refused_as_ever() -> None:
    data = {"x": np.arange(40.0)[:, None], "y": np.arange(40) % 2}
    clean = {"kind": "file", "count": 0, "x": np.arange(30.0, 44.0)[:, None], "y": np.arange(14) % 2}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/test.npz", x=np.array([[43.0], [50.0], [51.0]]), y=np.array([1, 0, 1]))
        with pytest.raises(OverlapError, match=r"1 sample of clean is also in test"):
            sets_of(data, clean, 0.0, test=f"{folder}/test.npz")
        np.savez(f"{folder}/test.npz", x=np.array([[3.0], [50.0], [51.0]]), y=np.array([1, 0, 1]))
        with pytest.raises(OverlapError, match=r"1 sample of train is also in test"):
            _, sets = sets_of(data, clean, 0.0, test=f"{folder}/test.npz", overlap="refuse")
        _, sets = sets_of(data, clean, 0.0, test=f"{folder}/test.npz", overlap="drop")
    assert len(sets.train) == 29 + 14
    assert "training samples that are also clean ones: 10; their checked labels count" in sets.notes


@pytest.mark.parametrize(("count", "many"), [(6, False), (8, True)])
def test_many_clean_samples_that_are_not_trained_on_are_pointed_out(count: int, many: bool) -> None:
    data = {"x": np.arange(40.0)[:, None], "y": np.arange(40) % 2}
    clean = {"kind": "file", "count": 0, "x": 100 + np.arange(float(count))[:, None], "y": np.arange(count) % 2}
    apart, sets = sets_of(data, clean, 0.0, test="none", seed=0)
    said = [note for note in apart.notes if note.endswith("--train-on-clean trains on them as well")]
    assert [note.split(" are many")[0] for note in said] == (
        [f"{count} clean samples beside 40 others"] if many else []
    )
    assert not any("are many" in note for note in sets.notes)


def test_an_answer_that_errs_counts_as_a_wrong_label() -> None:
    true = np.arange(40) % 2
    data = {"x": np.arange(40.0)[:, None], "y": true, "y_true": true}
    clean = {"kind": "ids", "count": 4, "lines": ["0,0", "1,1", "2,1", "3,1"]}
    _, sets = sets_of(data, clean, 0.0, test="none")
    assert sets.mislabelled is not None
    assert [name for name, wrong in zip(sets.train.ids, sets.mislabelled, strict=True) if wrong] == ["2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rings(tmp_path_factory.mktemp("data") / "rings.csv")


def asked(data: Path, **more: Any) -> Settings:
    values: dict[str, Any] = {"clean": "24", "train_on_clean": True, "test": "0.2", "epochs": 2, "batch_size": 50}
    return Settings(data=str(data), **{**values, "device": "cpu", "threads": 1, **more})


def test_a_run_resumes_and_its_audit_judges_what_nobody_checked(data: Path, tmp_path: Path) -> None:
    made = plan(asked(data, heldout=0.5))
    assert start(made, tmp_path / "whole", tensorboard=False).finished
    start(made, tmp_path / "parts", observer=StopAt(4), tensorboard=False)
    assert resume(tmp_path / "parts", tensorboard=False).finished
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    assert RunFolder.open(tmp_path / "whole").config["samples"] == {
        "train": 180,
        "clean": 12,
        "heldout": 12,
        "test": 48,
        "checked": 12,
    }
    ids = SampleRecord.open(tmp_path / "whole").ids.tolist()
    verdicts = from_run(tmp_path / "whole")
    assert verdicts.ids.tolist() == ids[:-12]
    assert tuple(ids[-12:]) == made.sets.checked
    assert verdicts.probability is not None, "calibrated with the half that was held out"
    folds = from_folds(tmp_path / "whole", 2)
    assert folds is not None
    assert folds.ids.tolist() == ids[:-12]
    assert folds.probability is not None


def test_an_audit_is_not_calibrated_on_what_was_trained_on(data: Path, tmp_path: Path) -> None:
    for method, clean in (("A-GCE", 24), ("GCE", 0)):
        start(plan(asked(data, method=method)), tmp_path / method, tensorboard=False)
        assert RunFolder.open(tmp_path / method).config["samples"]["clean"] == clean
        with pytest.warns(NarlWarning, match="was trained on all of its clean samples"):
            verdicts = from_run(tmp_path / method)
        assert verdicts.probability is None
        assert len(verdicts) == 168
    assert from_run(tmp_path / "GCE", calibrate=False).probability is None


def test_a_fixed_loss_trains_on_them_and_chooses_by_a_share(data: Path) -> None:
    sets = plan(asked(data, method="CE")).sets
    assert (len(sets.train), sets.clean, sets.heldout) == (192, None, None)
    for more in ({"heldout": 0.25}, {"patience": 3}, {"tune": True, "method": "GCE"}):
        sets = plan(asked(data, **{"method": "CE", **more})).sets
        assert sets.clean is None
        assert sets.heldout is not None
        assert (len(sets.train), len(sets.heldout)) == (186, 6)
    with pytest.raises(OptionError, match="a share of them that is not trained on with --heldout"):
        plan(asked(data, method="GCE", tune=True, heldout=0.0))


def test_the_command_line_says_it(data: Path, tmp_path: Path) -> None:
    assert "--train-on-clean is about the clean set" in refused("train", data, "--dry-run", "--train-on-clean", *SHORT)
    flags = ("train", data, "--clean", 24, *SHORT, "--dry-run")
    assert "24 clean samples are trained on as well, with their checked labels" in done(*flags, "--train-on-clean").out
    (tmp_path / "run.yaml").write_text("train-on-clean: true\n")
    said = json.loads(done(*flags, "--config", tmp_path / "run.yaml", "--json").out)
    assert said["samples"] == {"train": 192, "clean": 24, "heldout": 0, "test": 48, "checked": 24}


def test_answers_are_trained_on_and_not_asked_for_again(data: Path, tmp_path: Path) -> None:
    done("train", data, "--out", tmp_path / "first", *SHORT)
    record = SampleRecord.open(tmp_path / "first")
    assert record.labels is not None
    classes = RunFolder.open(tmp_path / "first").config["classes"]
    answers = Answers(tmp_path / "first" / FILE)
    for number, (name, label) in enumerate(zip(record.ids[:20].tolist(), record.labels[:20], strict=True)):
        given, other = classes[label], classes[1 - label]
        verdict, named = ("keep", given) if number % 2 else ("relabel", other)
        answers.add("Ada", "tab", name, given=given, verdict=verdict, label=named)
    answers.close()
    flags = ("--clean", tmp_path / "first", "--train-on-clean", *SHORT)
    done("train", data, "--out", tmp_path / "next", *flags)
    after = SampleRecord.open(tmp_path / "next")
    assert after.labels is not None
    assert set(after.ids[-20:].tolist()) == set(record.ids[:20].tolist())
    labels = dict(zip(after.ids.tolist(), after.labels.tolist(), strict=True))
    assert [labels[name] for name in record.ids[:20].tolist()] == [
        int(label) if number % 2 else 1 - int(label) for number, label in enumerate(record.labels[:20])
    ]
    with pytest.warns(NarlWarning, match="not calibrated"):
        desk = open_desk(tmp_path / "next")
    try:
        assert not set(desk.verdicts.ids.tolist()) & set(record.ids[:20].tolist())
    finally:
        desk.close()


def test_images_from_two_folders(tmp_path: Path) -> None:
    photos(tmp_path / "data", 10)
    photos(tmp_path / "checked", 3, seed=7)
    more = {"clean": str(tmp_path / "checked"), "test": "none", "model": "convnet", "epochs": 1}
    made = plan(asked(tmp_path / "data", **more))
    train, clean = made.sets.train, made.sets.clean
    assert clean is not None
    assert isinstance(train.inputs, ImageFiles)
    assert [train.inputs.path(row).parent.parent.name for row in (0, -1)] == ["data", "checked"]
    assert train.inputs.digests()[-6:] == clean.inputs.digests()
    start(made, tmp_path / "run", tensorboard=False)
    assert len(done("audit", tmp_path / "run", "--json").out) > 0


def samples(inputs: Any) -> Samples:
    count = len(inputs)
    return Samples(inputs, np.zeros(count, np.int64), ("a",), np.arange(count).astype(np.str_))


def test_what_cannot_be_one_set() -> None:
    grey, small = np.zeros((2, 8, 8, 1), np.uint8), np.zeros((2, 4, 4, 1), np.uint8)
    with pytest.raises(DataError, match="images of 8×8×1 uint8 and of 4×4×1 uint8"):
        joined(samples(Images(grey)), samples(Images(small)))
    with pytest.raises(DataError, match="image files and images in arrays"):
        joined(samples(ImageFiles(Path("x"), np.array(["a.png"]))), samples(Images(grey)))
    with pytest.raises(DataError, match="texts and images in arrays"):
        joined(samples(Texts(np.array(["a"], object))), samples(Images(grey)))
    none = np.empty((1, 0), object)
    wide, narrow = Table(np.array([[1.0, 2.0]]), none, ("b", "a")), Table(np.array([[3.0]]), none, ("a",))
    with pytest.raises(DataError, match="without the column 'b'"):
        joined(samples(wide), samples(narrow))
    turned = Table(np.array([[4.0, 5.0, 6.0]]), none, ("a", "c", "b"))
    both = joined(samples(wide), samples(turned)).inputs
    assert isinstance(both, Table)
    assert both.numbers.tolist() == [[1.0, 2.0], [6.0, 4.0]]
