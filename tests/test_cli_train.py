"""``narl train``, ``transfer`` and ``predict`` from the command line, on tiny data of every kind."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import CLASSES, done, narl, paint, photos, refused, result, rings, tree
from narl.cli.watching import Watching
from narl.train import Settings, Trained, plan
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder
from narl.train.settings import ENGINES
from test_data_cifar import LABELS, cifar10, cifar100
from test_data_published import animal10n, food101n, ilsvrc12, mini_webvision, tiny_imagenet

EPOCHS = 3
SHORT = ("--epochs", EPOCHS, "--batch-size", 50, "--seed", 1, "--test", "0.2", "--device", "cpu", "--no-tensorboard")
ONE = ("--epochs", 1, "--device", "cpu", "--no-tensorboard")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rings(tmp_path_factory.mktemp("data") / "rings.csv")


@pytest.fixture(scope="module")
def reference(data: Path) -> Path:
    """A finished run of A-GCE."""
    run = data.parent / "reference"
    done("train", data, "--out", run, "--clean", 24, "--heldout", 0.25, *SHORT)
    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("pictures") / "photos")


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has Ctrl-C pressed after so many steps."""

    def press(steps: int) -> None:
        left, plain = steps, Watching.after_step

        def after_step(self: Watching, report: Any) -> None:
            nonlocal left
            plain(self, report)
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Watching, "after_step", after_step)

    return press


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trained_on(run: Path) -> set[str]:
    return set(SampleRecord.open(run).ids.tolist())


def clean_of(run: Path) -> tuple[list[str], list[str]]:
    """Ids and class names of a run's clean samples."""
    sets = plan(Settings.from_json(RunFolder.open(run).config["settings"])).sets
    assert sets.clean is not None
    return sets.clean.ids.tolist(), [sets.clean.classes[label] for label in sets.clean.labels]


def test_a_run_leaves_everything(reference: Path) -> None:
    assert [record["epoch"] for record in metrics(reference)] == [1, 2, 3]
    names = {path.name for path in reference.iterdir()}
    assert {"config.json", "environment.json", "summary.json", "samples.npy", "samples.json"} <= names
    assert {f"adjuster-{number}.safetensors" for number in (0, 1, 2, 3)} <= names
    summary = json.loads((reference / "summary.json").read_text())
    assert summary["method"] == "A-GCE"
    assert set(summary["test_accuracy_by_class"]) == set(CLASSES)
    assert {"last5", "best", "selected"} <= set(summary)


def test_what_is_said(data: Path, tmp_path: Path) -> None:
    answer = done("train", data, "--out", tmp_path / "run", "--method", "CE", *SHORT)
    assert answer.err.startswith("CE on 192 rows of 2 classes")
    assert [f"epoch {epoch}/3" in answer.err for epoch in (1, 2, 3)] == [True] * 3
    assert "test accuracy, mean of the last" in answer.out
    assert f"narl predict {tmp_path / 'run'} DATA" in answer.out


def test_json_is_all_of_standard_output(data: Path, reference: Path, tmp_path: Path) -> None:
    answer = done(
        "train", data, "--out", tmp_path / "run", "--clean", 24, "--heldout", 0.25, "--loss", "gce", *SHORT, "--json"
    )
    said = json.loads(answer.out)
    assert said.pop("run") == str(tmp_path / "run")
    assert said == json.loads((reference / "summary.json").read_text())
    assert result(tmp_path / "run") == result(reference), "the same seed, the same run"


@pytest.mark.parametrize("extra", [("--json",), ()])
def test_a_dry_run_checks_and_writes_nothing(data: Path, extra: tuple[str, ...]) -> None:
    before = tree(data.parent)
    answer = done("train", data, "--out", data.parent / "new", "--clean", 24, *SHORT, *extra, "--dry-run")
    if extra:
        said = json.loads(answer.out)
        assert said["samples"] == {"train": 168, "clean": 24, "heldout": 0, "test": 48}
        assert said["recipe"]["method"] == "A-GCE"
        assert said["classes"] == list(CLASSES)
    else:
        assert f"would be written to {data.parent / 'new'}" in answer.out
    assert tree(data.parent) == before
    assert done("train", data, *SHORT, "--dry-run").code == 0, "without --out, too"
    assert "--epochs = 0" in refused("train", data, "--epochs", 0, "--dry-run")


def test_flags_of_columns_may_be_repeated(tmp_path: Path) -> None:
    rows = "".join(f"{row % 7},{row % 5},{row % 3},{'xy'[row % 2]}\n" for row in range(60))
    (tmp_path / "t.csv").write_text("a,b,c,label\n" + rows)
    answer = done("train", tmp_path / "t.csv", "--ignore", "a", "--ignore", "b", "--numbers", "c", "--dry-run")
    assert "numbers c; left out a, b" in answer.out + answer.err


@pytest.mark.parametrize("stops", [(2,), (4, 5)])
def test_ctrl_c_and_resume(
    data: Path, reference: Path, tmp_path: Path, stop_at: Callable[[int], None], stops: tuple[int, ...]
) -> None:
    run = tmp_path / "run"
    command: list[object] = ["train", data, "--out", run, "--clean", 24, "--heldout", 0.25, *SHORT]
    for stop in stops:
        stop_at(stop)
        answer = narl(*command)
        assert answer.code == 130
        assert answer.out == ""
        assert answer.err.endswith(f"narl: stopped and saved. Go on with: narl train --resume {run}\n")
        assert "Traceback" not in answer.err
        command = ["train", "--resume", run, "--no-tensorboard"]
        assert f"{len(metrics(run))} of 3 epochs are done" in done(*command, "--dry-run").out
    done(*command)
    assert result(run) == result(reference)
    again = done(*command)
    assert "the run was finished already" in again.err
    assert result(run) == result(reference)


def test_ctrl_c_before_training(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from narl.train import planning

    def pressed(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(planning, "plan", pressed)
    answer = narl("train", data, "--out", tmp_path / "run", *SHORT)
    assert answer.code == 130
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()


def test_a_tampered_checkpoint_gives_way(
    data: Path, reference: Path, tmp_path: Path, stop_at: Callable[[int], None]
) -> None:
    run = tmp_path / "run"
    stop_at(7)
    assert narl("train", data, "--out", run, "--clean", 24, "--heldout", 0.25, *SHORT).code == 130
    newest = max((run / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    answer = done("train", "--resume", run, "--no-tensorboard")
    assert f"{newest.name} is damaged" in answer.err
    assert "is used instead" in answer.err
    assert result(run) == result(reference)


def test_resume_takes_no_other_data(data: Path, reference: Path, tmp_path: Path) -> None:
    assert "leave DATA out" in refused("train", data, "--resume", reference)
    assert "leave --epochs out" in refused("train", "--resume", reference, "--epochs", 9)
    assert "is not a run of narl" in refused("train", "--resume", data.parent)
    assert "there is no folder" in refused("train", "--resume", tmp_path / "none")


def test_data_that_changed_is_not_resumed(tmp_path: Path, stop_at: Callable[[int], None]) -> None:
    data, run = rings(tmp_path / "rings.csv"), tmp_path / "run"
    stop_at(3)
    assert narl("train", data, "--out", run, *SHORT).code == 130
    content = data.read_text()
    data.write_text(content + f'new,1,1,red,"{CLASSES[0]}","{CLASSES[0]}"\n')
    assert "has changed since the run began" in refused("train", "--resume", run)
    data.write_text(content)
    done("train", "--resume", run, "--no-tensorboard")


def test_two_on_one_run(data: Path, reference: Path, tmp_path: Path, stop_at: Callable[[int], None]) -> None:
    run = tmp_path / "run"
    stop_at(3)
    assert narl("train", data, "--out", run, "--clean", 24, "--heldout", 0.25, *SHORT).code == 130
    with RunFolder.open(run).lock():
        assert "is in use by process" in refused("train", "--resume", run, "--no-tensorboard")
        assert "is in use by process" in refused("train", data, "--out", run, "--overwrite", *SHORT, plan_shown=True)
    done("train", "--resume", run, "--no-tensorboard")
    assert result(run) == result(reference)


def test_overwriting_is_asked_for(data: Path, reference: Path, tmp_path: Path) -> None:
    done("train", data, "--out", tmp_path / "run", "--method", "CE", *SHORT)
    command = ("train", data, "--out", tmp_path / "run", "--clean", 24, "--heldout", 0.25, *SHORT)
    before = tree(tmp_path)
    assert "there is a run in" in refused(*command)
    assert tree(tmp_path) == before
    done(*command, "--overwrite")
    assert result(tmp_path / "run") == result(reference)


def test_tune(data: Path, tmp_path: Path, stop_at: Callable[[int], None]) -> None:
    command = ("train", data, "--method", "GCE", "--tune", "--clean", 24, *SHORT)
    done(*command, "--out", tmp_path / "whole")
    found = json.loads((tmp_path / "whole" / "tuning.json").read_text())
    assert found["chosen"] in [row["options"] for row in found["candidates"]]
    candidates = sorted((tmp_path / "whole" / "tuning").iterdir())
    assert len(candidates) == len(found["candidates"]) > 1
    for candidate in candidates:
        assert "test_accuracy" not in (candidate / "metrics.jsonl").read_text()
    stop_at(17)
    assert narl(*command, "--out", tmp_path / "parts").code == 130
    done("train", "--resume", tmp_path / "parts", "--no-tensorboard")
    assert result(tmp_path / "parts") == result(tmp_path / "whole")
    assert "give them with --clean" in refused("train", data, "--method", "GCE", "--tune", *SHORT, "--dry-run")


@pytest.mark.parametrize("suffix", ["toml", "yaml", "json"])
def test_a_configuration_file(data: Path, reference: Path, tmp_path: Path, suffix: str) -> None:
    settings: dict[str, Any] = {"data": str(data), "clean": "24", "heldout": 0.25, "epochs": 99, "batch_size": 50}
    settings |= {"seed": 1, "test": "0.2", "device": "cpu", "tensorboard": False}
    text = {
        "toml": "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        "yaml": "\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()),
        "json": json.dumps(settings),
    }
    config = tmp_path / f"run.{suffix}"
    config.write_text(text[suffix])
    done("train", "--config", config, "--epochs", EPOCHS, "--out", tmp_path / "run")
    assert result(tmp_path / "run") == result(reference), "flags go before the file"


def test_milestones(data: Path, reference: Path, tmp_path: Path) -> None:
    step = ("--schedule", "step", *SHORT, "--dry-run")
    assert "step schedule with milestones 1, 2.5; seed" in done("train", data, *step, "--milestones", "1, 2.5").out
    transferred = done("transfer", data, "--from", reference, *step, "--milestones", "1,2", "--json").out
    assert json.loads(transferred)["settings"]["milestones"] == [1, 2]
    (tmp_path / "run.yaml").write_text("milestones: [1, 2]")
    asked = done("train", data, *step, "--config", tmp_path / "run.yaml", "--json").out
    assert json.loads(asked)["settings"]["milestones"] == [1, 2]
    assert "is no list of epochs: write it like" in refused("train", data, *step, "--milestones", "soon")
    assert "train longer with --epochs" in refused("train", data, *step, "--milestones", "80,120")
    assert "has no milestones" in refused("train", data, *SHORT, "--dry-run", "--milestones", "1")


@pytest.mark.parametrize("files", [False, True])
def test_transfer(data: Path, reference: Path, tmp_path: Path, files: bool) -> None:
    other = rings(tmp_path / "other.csv", 120, seed=5)
    learned = [reference / f"adjuster-{number}.safetensors" for number in (1, 2, 3)] if files else [reference]
    source = [part for path in learned for part in ("--from", path)]
    answer = done("transfer", other, *source, "--out", tmp_path / "new", *SHORT, "--json")
    assert json.loads(answer.out)["method"] == "T-GCE"
    assert len(metrics(tmp_path / "new")) == EPOCHS
    assert all(0 < record["hyperparameters"]["q"] < 1 for record in metrics(tmp_path / "new"))


def test_a_transfer_stopped_goes_on(
    data: Path, reference: Path, tmp_path: Path, stop_at: Callable[[int], None]
) -> None:
    command = ("transfer", data, "--from", reference, *SHORT)
    done(*command, "--out", tmp_path / "whole")
    stop_at(5)
    assert narl(*command, "--out", tmp_path / "parts").code == 130
    done("train", "--resume", tmp_path / "parts", "--no-tensorboard")
    assert result(tmp_path / "parts") == result(tmp_path / "whole")


def test_a_transfer_killed_while_it_began_goes_on(data: Path, reference: Path, tmp_path: Path) -> None:
    """Of the adjusters that a run keeps, the first one was written, and the rest was not."""
    command = ("transfer", data, "--from", reference, *SHORT)
    done(*command, "--out", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    kept = ("config.json", "environment.json", ".lock", "source-adjusters.safetensors")
    for path in (tmp_path / "killed").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in kept:
            path.unlink()
    done("train", "--resume", tmp_path / "killed", "--no-tensorboard")
    assert result(tmp_path / "killed") == result(tmp_path / "whole")


def test_a_transfer_in_place_of_its_source(data: Path, reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "run")
    done("transfer", data, "--from", reference, "--out", tmp_path / "new", *SHORT)
    done("transfer", data, "--from", tmp_path / "run", "--out", tmp_path / "run", "--overwrite", *SHORT)
    assert result(tmp_path / "run") == result(tmp_path / "new")


def test_relative_paths_hold_from_elsewhere(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: Callable[[int], None]
) -> None:
    rings(tmp_path / "rings.csv")
    monkeypatch.chdir(tmp_path)
    stop_at(5)
    assert narl("train", "rings.csv", "--out", "run", "--clean", 24, "--heldout", 0.25, *SHORT).code == 130
    monkeypatch.chdir("/")
    done("train", "--resume", tmp_path / "run", "--no-tensorboard")
    assert result(tmp_path / "run") == result(reference)


def test_an_option_of_the_fixed_loss_says_so(data: Path, tmp_path: Path) -> None:
    for words in ((), ("--loss", "gce")):
        said = refused("train", data, "--option", "q=0.5", *words, "--out", tmp_path / "run")
        assert "has no option 'q': it is one of the fixed GCE: add --method GCE" in said
    said = refused("train", data, "--option", "marginn=latest", "--out", tmp_path / "run")
    assert "did you mean 'margin'" in said
    assert "adjusters" not in said


def test_an_option_of_the_boosted_form_says_so(data: Path, tmp_path: Path) -> None:
    for words, boosted in (((), "T-SL+"), (("--clean", "24", "--method", "A-GCE"), "A-GCE+")):
        said = refused("train", data, "--option", "believed=0.5", *words, "--out", tmp_path / "run")
        assert f"has no option 'believed': it is one of the boosted {boosted}: add --boost" in said
    said = refused("train", data, "--method", "ELR", "--option", "alpha=1", "--out", tmp_path / "run")
    assert "boost" not in said


def test_transfer_needs_what_was_learned(data: Path, tmp_path: Path) -> None:
    assert "--from" in refused("transfer", data, "--loss", "mae", "--out", tmp_path / "run")
    assert "holds no adjuster" in refused("transfer", data, "--from", data.parent, "--out", tmp_path / "run")
    assert "none.safetensors" in refused(
        "transfer", data, "--from", tmp_path / "none.safetensors", "--out", tmp_path / "run"
    )
    assert "Give a folder or file" in refused("transfer", "--from", "x", "--out", tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_predict(data: Path, reference: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    lines = ["id,east,north,colour", "a,0.1,0.2,red", "b,3.5,-3.1,blue", 'c,-0.3,4.0,"mauve, dark"']
    new.write_text("\n".join(lines) + "\n")
    answer = done("predict", reference, new, "--out", tmp_path / "predictions.csv", "--json")
    assert json.loads(answer.out)["samples"] == 3
    found = rows(tmp_path / "predictions.csv")
    assert [row["id"] for row in found] == ["a", "b", "c"]
    assert [*found[0]] == ["id", "label", "probability", *(f"p:{name}" for name in CLASSES)]
    for row in found:
        shares = [float(row[f"p:{name}"]) for name in CLASSES]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert row["label"] == CLASSES[int(np.argmax(shares))]
        assert float(row["probability"]) == max(shares)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_predictions_are_the_models(data: Path, reference: Path, tmp_path: Path, suffix: str) -> None:
    import pandas

    from narl.data.read import read_inputs

    out = tmp_path / f"predictions.{suffix}"
    done("predict", reference, data, "--out", out)
    trained = Trained(reference, "cpu")
    expected = trained.predict(read_inputs(data, columns=trained.columns).inputs)
    found = {
        "csv": pandas.read_csv,
        "tsv": lambda path: pandas.read_csv(path, sep="\t"),
        "jsonl": lambda path: pandas.read_json(path, lines=True),
        "parquet": pandas.read_parquet,
    }[suffix](out)
    np.testing.assert_allclose(found[[f"p:{name}" for name in CLASSES]].to_numpy(), expected, rtol=1e-6, atol=1e-9)


def test_predict_asks_before_it_replaces(
    data: Path, reference: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "predictions.csv"
    assert "would predict 240 samples" in done("predict", reference, data, "--out", out, "--dry-run").out
    assert not out.exists()
    out.write_text("precious")
    assert "--overwrite" in refused("predict", reference, data, "--out", out)
    assert out.read_text() == "precious"
    assert "trained on tables" in refused("predict", reference, pictures, "--out", out, "--overwrite")
    assert "'colour'" in refused("predict", reference, _without(data, "colour", tmp_path), "--out", out, "--overwrite")
    assert out.read_text() == "precious"
    assert "is not a run" in refused("predict", data.parent, data, "--out", tmp_path / "p.csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "predict.toml").write_text(f"overwrite = true\nout = {json.dumps(str(out))}\n")
    done("predict", reference, data, "--config", "predict.toml")
    assert len(rows(out)) == 240


def _without(data: Path, column: str, folder: Path) -> Path:
    kept = [{name: cell for name, cell in row.items() if name != column} for row in rows(data)]
    with (folder / "without.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*kept[0]])
        writer.writeheader()
        writer.writerows(kept)
    return folder / "without.csv"


def test_a_run_that_is_stopped_predicts(data: Path, tmp_path: Path, stop_at: Callable[[int], None]) -> None:
    stop_at(5)
    assert narl("train", data, "--out", tmp_path / "run", *SHORT).code == 130
    assert "model of epoch 1" in done("predict", tmp_path / "run", data, "--out", tmp_path / "p.csv").out


# The clean set in every form


def test_clean_samples_by_number(data: Path, reference: Path) -> None:
    config = RunFolder.open(reference).config
    assert config["samples"] == {"train": 168, "clean": 18, "heldout": 6, "test": 48}
    assert not trained_on(reference) & set(clean_of(reference)[0])
    assert len(trained_on(reference)) == 168


def test_clean_samples_in_a_file(data: Path, tmp_path: Path) -> None:
    clean = rings(tmp_path / "clean.csv", 20, seed=9)
    done("train", data, "--clean", clean, "--out", tmp_path / "run", *SHORT)
    assert RunFolder.open(tmp_path / "run").config["samples"] == {"train": 192, "clean": 20, "heldout": 0, "test": 48}
    ids, names = clean_of(tmp_path / "run")
    assert not trained_on(tmp_path / "run") & set(ids)
    assert names == [row["true_label"] for row in rows(clean)]


@pytest.mark.parametrize("name", ["clean.txt", "clean.csv"])
def test_clean_samples_by_their_ids(data: Path, tmp_path: Path, name: str) -> None:
    some = rows(data)[30:60]
    corrected = {row["id"]: CLASSES[number % 2] for number, row in enumerate(some)}
    if name == "clean.txt":
        (tmp_path / name).write_text("\n".join(corrected) + "\n")
    else:
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([("id", "label"), *corrected.items()])
    done("train", data, "--clean", tmp_path / name, *SHORT, "--test", "none", "--out", tmp_path / "run")
    ids, names = clean_of(tmp_path / "run")
    assert ids == [row["id"] for row in some]
    assert names == ([row["true_label"] for row in some] if name == "clean.txt" else list(corrected.values()))
    assert trained_on(tmp_path / "run") == {row["id"] for row in rows(data)} - set(ids)


def test_clean_samples_in_a_folder(pictures: Path, tmp_path: Path) -> None:
    clean = photos(tmp_path / "clean", 3, seed=4)
    command = ("train", pictures, "--clean", clean, "--model", "convnet", *ONE)
    done(*command, "--out", tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").config["samples"] == {"train": 14, "clean": 6, "heldout": 0, "test": 2}
    (clean / "cat" / "0.jpg").write_bytes((pictures / "cat" / "5.jpg").read_bytes())
    assert "'cat/5.jpg' is 'cat/0.jpg' there" in refused(*command, "--test", "none", "--out", tmp_path / "other")


# Samples that are in two sets


@pytest.mark.parametrize("other", ["--test", "--clean"])
def test_overlap(data: Path, tmp_path: Path, other: str) -> None:
    lines = data.read_text().splitlines()
    copies = [line.replace("p0-", "copy-") for line in lines[1:11]]
    extra = rings(tmp_path / "other.csv", 20, seed=3)
    extra.write_text(extra.read_text() + "\n".join(copies) + "\n")
    command = ["train", data, "--out", tmp_path / "run", *SHORT, other, extra, "--method", "CE"]
    command += ["--test", "none"] if other == "--clean" else []
    name = other.removeprefix("--")
    message = refused(*command)
    assert f"10 samples of train are also in {name} ('p0-0' is 'copy-0'" in message
    assert "--drop-overlap" in message
    assert "--allow-overlap" in message
    assert not (tmp_path / "run").exists()
    assert "contradict" in refused(*command, "--allow-overlap", "--drop-overlap")
    done(*command, "--drop-overlap")
    assert trained_on(tmp_path / "run") == {f"p0-{row}" for row in range(10, 240)}
    answer = done(*command, "--allow-overlap", "--overwrite")
    assert "allowed: 10 samples of train are also in" in answer.err
    assert len(trained_on(tmp_path / "run")) == 240


def test_overlap_of_images(pictures: Path, tmp_path: Path) -> None:
    test = photos(tmp_path / "test", 2, seed=8)
    (test / "dog" / "again.jpg").write_bytes((pictures / "dog" / "3.jpg").read_bytes())
    command = ("train", pictures, "--test", test, "--model", "convnet", "--out", tmp_path / "run", *ONE)
    assert "1 sample of train is also in test ('dog/3.jpg' is 'dog/again.jpg' there)" in refused(*command)
    done(*command, "--drop-overlap")
    assert "dog/3.jpg" not in trained_on(tmp_path / "run")


def test_overlap_of_the_clean_and_the_test_set(data: Path, tmp_path: Path) -> None:
    other = rings(tmp_path / "other.csv", 20, seed=3)
    command = ("train", data, "--out", tmp_path / "run", *SHORT, "--clean", other, "--test", other)
    for flags in ((), ("--drop-overlap",)):
        assert "take them out of clean or test" in refused(*command, *flags)
    done(*command, "--allow-overlap")


# Every layout


def _noisy_cifar10(root: Path) -> list[object]:
    given = [LABELS[row] if row % 5 else (LABELS[row] + 1) % 3 for row in range(10)]
    torch.save({"clean_label": np.array(LABELS[:10]), "worse_label": np.array(given)}, root / "CIFAR-10_human.pt")
    return [cifar10(root).parent, "--labels", f"{root}/CIFAR-10_human.pt:worse_label"]


def _image_table(root: Path) -> list[object]:
    folder = photos(root / "img")
    found = sorted(folder.rglob("*.jpg"))
    (root / "images.csv").write_text(
        "file,label\n" + "".join(f"{path.relative_to(root)},{path.parent.name}\n" for path in found)
    )
    return [root / "images.csv"]


TEXTS = [(f"{('good', 'bad')[i % 2]} day number {i} {'and more ' * (i % 3)}", ("yes", "no")[i % 2]) for i in range(24)]


def _texts(root: Path) -> list[object]:
    (root / "texts.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in TEXTS))
    return [root / "texts.csv"]


def _jsonl(root: Path) -> list[object]:
    lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in TEXTS]
    (root / "texts.jsonl").write_text("".join(lines))
    return [root / "texts.jsonl"]


def _parquet(root: Path) -> list[object]:
    import pandas

    pandas.read_csv(rings(root / "rings.csv", 40)).to_parquet(root / "rings.parquet")
    return [root / "rings.parquet"]


def _arrays(root: Path) -> list[object]:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 10, 8, 3), dtype=np.uint8)
    np.savez(root / "images.npz", images=pixels, labels=np.arange(30) % 3)
    return [root / "images.npz", "--model", "convnet"]


def _webvision(root: Path) -> list[object]:
    return [paint(mini_webvision(root / "webvision")), "--model", "convnet"]


LAYOUTS: dict[str, tuple[Callable[[Path], list[object]], int]] = {
    "folder": (lambda root: [photos(root / "photos"), "--model", "convnet"], 2),
    "csv of images": (lambda root: [*_image_table(root), "--model", "convnet"], 2),
    "csv of texts": (_texts, 2),
    "csv of numbers and categories": (lambda root: [rings(root / "rings.csv", 40)], 2),
    "jsonl": (_jsonl, 2),
    "parquet": (_parquet, 2),
    "npz": (_arrays, 3),
    "cifar10 with a noise file": (lambda root: [*_noisy_cifar10(root), "--model", "convnet"], 3),
    "cifar100": (lambda root: [cifar100(root), "--model", "convnet"], 3),
    "tiny-imagenet": (lambda root: [paint(tiny_imagenet(root)), "--model", "convnet"], 2),
    "animal10n": (lambda root: [paint(animal10n(root)), "--model", "convnet"], 10),
    "food101n": (lambda root: [paint(food101n(root)), "--model", "convnet"], 2),
    "mini-webvision": (_webvision, 50),
    "mini-webvision tested on ilsvrc12": (
        lambda root: [*_webvision(root), "--test", paint(ilsvrc12(root / "ILSVRC"), seed=1)],
        50,
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_and_predicts(layout: str, tmp_path: Path) -> None:
    write, classes = LAYOUTS[layout]
    root = tmp_path / "data"
    root.mkdir()
    arguments = write(root)
    run = tmp_path / "run"
    before = tree(root)
    done("train", *arguments, "--out", run, *ONE)
    assert tree(root) == before, "nothing is written beside the data"
    assert len(metrics(run)) == 1
    config = RunFolder.open(run).config
    assert len(config["classes"]) == classes
    assert config["samples"]["test"] > 0
    done("predict", run, str(arguments[0]), "--out", tmp_path / "predictions.csv")
    found = rows(tmp_path / "predictions.csv")
    assert {row["label"] for row in found} <= set(config["classes"])
    if "noise" in layout:
        assert "margin_auroc" in metrics(run)[0]


# What it costs to ask


HEAVY = ("torch", "numpy", "yaml", "PIL", "sklearn", "pandas", "pyarrow", "safetensors", "matplotlib")


@pytest.mark.parametrize("command", [(), ("train",), ("transfer",), ("predict",), ("noise",)])
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    program = (
        f"import sys; sys.argv = ['narl', *{command!r}, '--help']\n"
        "from narl.cli import main\n"
        "try: main()\n"
        f"finally: print('HEAVY', sorted(set(sys.modules) & set({HEAVY!r})))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("HEAVY []\n")
    assert "Usage: narl" in found.stdout


def test_help_is_quick() -> None:
    def best(*arguments: str) -> float:
        """Seconds of the processor: a machine with other work is not to blame."""
        times = []
        for _ in range(4):
            before = os.times()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            after = os.times()
            times.append(after.children_user + after.children_system - before.children_user - before.children_system)
        return min(times)

    assert best("-m", "narl", "--help") < best("-c", "pass") + 0.5


def test_the_help_names_the_engines_that_there_are() -> None:
    said = " ".join(done("train", "--help").out.replace("│", " ").split())
    told = said[said.index("--engine") : said.index("--precision")]
    assert re.findall(r"(?:^|<str>|;) (\w+): ", told) == list(ENGINES)


def test_what_a_method_does_not_learn_from_chooses_its_epoch(tmp_path: Path) -> None:
    data = rings(tmp_path / "rings.csv")
    given = Settings(data=str(data), method="MentorNet", clean="12", test="none", device="cpu")
    learned, predefined = plan(given), plan(replace(given, options={"curriculum": "predefined"}))
    assert (len(learned.sets.clean or ()), len(learned.sets.heldout or ())) == (12, 0)
    assert (len(predefined.sets.clean or ()), len(predefined.sets.heldout or ())) == (0, 12)
    matrix = tmp_path / "matrix.csv"
    matrix.write_text("0.8,0.2\n0.2,0.8\n")
    known = plan(replace(given, method="Forward", options={"matrix": str(matrix)}))
    assert (len(known.sets.clean or ()), len(known.sets.heldout or ())) == (0, 12)


def test_averages_are_no_parameters_of_their_own(tmp_path: Path) -> None:
    data = rings(tmp_path / "rings.csv")
    given = Settings(data=str(data), method="A-GCE", clean="12", test="none", device="cpu")
    plain = plan(given).parameters
    assert plan(replace(given, method="A-GCE+")).parameters == plain
    assert plan(replace(given, method="A-GCE+", options={"networks": 2})).parameters == 2 * plain


def test_labels_that_have_not_come_up_agree_with_nobody(tmp_path: Path) -> None:
    data = rings(tmp_path / "rings.csv")
    options = (
        "--train-on-clean",
        "--clean-share",
        0.9,
        "--boost",
        "--option",
        "boost_from=0",
        "--option",
        "believed=0.9",
    )
    out = tmp_path / "run"
    done("train", data, "--clean", 12, *options, "--epochs", 2, "--test", "none", "--out", out, "--device", "cpu")
    record = SampleRecord.open(out)
    for epoch, row in enumerate(metrics(out)):
        margins = record.read("margin", epoch)
        known = margins[~np.isnan(margins)]
        assert len(known) < len(margins)
        assert row["train_agreement"] == pytest.approx((known > 0).mean())
