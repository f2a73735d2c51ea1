"""Bad input from the command line: one line that names the thing and the way out, and nothing is lost."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import done, narl, photos, refused, result, rings, tree
from narl.cli import main
from test_data_image_files import bomb

ONE = ("--epochs", 1, "--device", "cpu", "--no-tensorboard")
IMAGES = ("--model", "convnet", *ONE)

TABLE = "a,b,label\n" + "".join(f"{i},{i * i % 7},{('yes', 'no')[i % 2]}\n" for i in range(40))


@contextmanager
def nothing_changes(folder: Path) -> Iterator[None]:
    """Whatever is refused inside leaves every file as it was, and no other one."""
    before, folders = tree(folder), sorted(folder.rglob("*"))
    yield
    assert tree(folder) == before
    assert sorted(folder.rglob("*")) == folders


def table(folder: Path, text: str, name: str = "data.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def cut(path: Path) -> bytes:
    """Truncate a file; what it held is returned."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return content


# Tables


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (TABLE, ["--label", "labl"], ["labl", "did you mean 'label'?"]),
        ("a,b,c\n" + "".join(f"{i}.5,{i}.25,{i}.125\n" for i in range(40)), [], ["data.csv", "--label"]),
        ("a,label\n" + "".join(f"{i},\n" for i in range(40)), [], ["data.csv", "label"]),
        (TABLE.replace("7,0,no", "7,0,"), [], ["data.csv", "'label' has no label in 1 of 40 rows", "7"]),
        (TABLE + "1,2,yes,4\n", [], ["data.csv", "42", "4"]),
        (TABLE + "1,2\n", [], ["data.csv", "42", "2"]),
        ("a,label\n" + "".join(f"{i},yes\n" for i in range(40)), [], ["data.csv", "one class only", "'yes'"]),
        ("a,label\n", [], ["data.csv", "has no rows"]),
        ("", [], ["data.csv", "empty"]),
        (TABLE.replace("12,4", "12,inf"), [], ["data.csv", "'b'", "row 12"]),
        (TABLE.replace("12,4", "12,nan"), ["--numbers", "a,b"], ["data.csv", "'b'", "row 12"]),
        (TABLE.replace("12,4", "12,1e300"), [], ["data.csv", "'b'", "row 12"]),
        (TABLE.replace("12,4", "12,much"), ["--numbers", "a,b"], ["data.csv", "'b'", "'much'", "row 12"]),
        ("text,label\n" + "".join(f"nan,{i % 2}\n" for i in range(40)), ["--text", "text"], ["data.csv", "'text'"]),
        ("text,label\n" + "".join(f",{i % 2}\n" for i in range(40)), ["--text", "text"], ["data.csv", "'text'"]),
        (TABLE, ["--clean", "60"], ["class", "need 30 of it", "ask for fewer"]),
        (TABLE + "99,1,a\n99,2,a\n98,3,a\n", ["--clean", "12", "--test", "none"], ["'a' has 3", "need 4", "fewer"]),
        (TABLE, ["--clean", "1"], ["too few for 2 classes", "at least 2"]),
        (TABLE, ["--clean", "nowhere.csv"], ["nowhere.csv", "no file or folder"]),
        (TABLE, ["--clean", "ids.txt"], ["ids.txt", "cannot be read"]),
        (TABLE, ["--test", "nowhere.csv"], ["nowhere.csv", "no file or folder"]),
        (TABLE, ["--layout", "cvs"], ["cvs", "did you mean 'csv'?"]),
        (TABLE, ["--method", "A-GCE"], ["A-GCE", "--clean"]),
        (TABLE, ["--method", "A-GC", "--clean", "10"], ["A-GC", "did you mean"]),
        (TABLE, ["--loss", "gec"], ["gec", "did you mean 'gce'?"]),
        (TABLE, ["--model", "resnet32"], ["resnet32", "tabular"]),
        (TABLE, ["--model", "no.such:thing"], ["no.such"]),
        (TABLE, ["--device", "gpu"], ["gpu", "--device cpu"]),
        (TABLE, ["-o", "q"], ["NAME=VALUE"]),
        (TABLE, ["--method", "GCE", "-o", "p=1"], ["'p'", "q"]),
        (TABLE, ["--method", "GCE", "-o", "q=7"], ["q", "7"]),
        (TABLE, ["--labels", "nowhere.npy"], ["nowhere.npy"]),
        (TABLE, ["--lr", "nan"], ["--learning-rate", "nan"]),
        (TABLE, ["--clean", ""], ["'' is no path"]),
        (TABLE, ["--threads", "1000000"], ["--threads", "at most 1,024"]),
        (TABLE, ["--workers", "1000000"], ["--workers", "at most 1,024"]),
        (TABLE, ["--image-size", "1000000"], ["--image-size", "at most 8,192"]),
        (TABLE, ["--text-length", "10000000"], ["--text-length", "at most 65,536"]),
        (TABLE, ["--memory", "nan"], ["--memory nan"]),
        (TABLE, ["--device", "meta"], ["'meta'", "use cpu, cuda or auto"]),
        (TABLE, ["--method", "T-GCE", "--adjuster", "none.safetensors", "--dry-run"], ["none.safetensors"]),
    ],
)  # fmt: skip
def test_tables(tmp_path: Path, text: str, flags: list[str], words: list[str]) -> None:
    data = table(tmp_path, text)
    with nothing_changes(tmp_path):
        message = refused("train", data, "--out", tmp_path / "run", *ONE, *flags)
        for word in words:
            assert word in message, message


def test_jsonl_with_mixed_types(tmp_path: Path) -> None:
    rows = [{"a": i, "label": i % 2} for i in range(30)]
    for broken, words in (
        ({"a": 1, "label": [1]}, "label"),
        ({"a": 1, "label": {"x": 1}}, "label"),
        ({"a": 1}, "label"),
        ({"a": [1, 2], "label": 1}, "'a'"),
        ({"a": 1, "label": None}, "label"),
    ):
        data = table(tmp_path, "".join(json.dumps(row) + "\n" for row in [*rows, broken]), "data.jsonl")
        with nothing_changes(tmp_path):
            message = refused("train", data, "--out", tmp_path / "run", *ONE)
        assert "data.jsonl" in message
        assert words in message
    for line in ("{", "[1]", "no JSON", '{"a": 1, "label": 0} {}'):
        data = table(tmp_path, "".join(json.dumps(row) + "\n" for row in rows) + line + "\n", "data.jsonl")
        with nothing_changes(tmp_path):
            assert "line 31" in refused("train", data, "--out", tmp_path / "run", *ONE)


@pytest.mark.parametrize(
    ("label", "words"),
    [("True", "true"), ("1.5", "1.5"), ("one", "'one'")],
    ids=["a truth value", "a fraction", "a word"],
)
def test_labels_of_mixed_types(tmp_path: Path, label: str, words: str) -> None:
    rows = [f'{{"a": {i}, "label": {i % 2}}}\n' for i in range(30)]
    odd = {"True": "true", "1.5": "1.5", "one": '"one"'}[label]
    data = table(tmp_path, "".join(rows) + f'{{"a": 99, "label": {odd}}}\n', "data.jsonl")
    with nothing_changes(tmp_path):
        message = refused("train", data, "--out", tmp_path / "run", *ONE, "--test", "none")
    assert "data.jsonl" in message, message
    assert words in message


def test_a_class_of_the_test_set_that_training_does_not_know(tmp_path: Path) -> None:
    data, test = table(tmp_path, TABLE), table(tmp_path, "a,b,label\n0.5,1,yes\n0.25,1,nope\n", "test.csv")
    for flag in ("--test", "--clean"):
        with nothing_changes(tmp_path):
            message = refused("train", data, flag, test, "--out", tmp_path / "run", *ONE)
        assert "test.csv" in message
        assert "'nope'" in message
        assert "('no', 'yes')" in message


def test_a_test_table_without_a_column(tmp_path: Path) -> None:
    data, test = table(tmp_path, TABLE), table(tmp_path, "a,label\n0.5,yes\n0.25,no\n", "test.csv")
    with nothing_changes(tmp_path):
        message = refused("train", data, "--test", test, "--out", tmp_path / "run", *ONE)
    assert "test.csv" in message
    assert "'b'" in message


def test_a_clean_set_without_a_class(tmp_path: Path) -> None:
    data, clean = table(tmp_path, TABLE), table(tmp_path, "a,b,label\n0.5,1,yes\n0.25,1,yes\n", "clean.csv")
    with nothing_changes(tmp_path):
        assert "has no sample of class 'no'" in refused(
            "train", data, "--clean", clean, "--out", tmp_path / "run", *ONE
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,label\n0,yes\n0,no\n", "'0' is listed 2 times"),
        ("id,label\n0,yes\n1,noo\n", "did you mean 'no'?"),
        ("id,label\n0,yes\n400,no\n", "'400'"),
        ("id,label\n0\n", "1 cells in line 2"),
        ("id,label\n", "is empty"),
    ],
)
def test_ids_of_clean_samples(tmp_path: Path, content: str, words: str) -> None:
    data, clean = table(tmp_path, TABLE), table(tmp_path, content, "ids.csv")
    with nothing_changes(tmp_path):
        assert words in refused("train", data, "--clean", clean, "--test", "none", "--out", tmp_path / "run", *ONE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(40, 3), (40, 6, 6, 3)])
def test_features_that_are_not_finite(tmp_path: Path, value: float, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    x[17].flat[2] = value
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(40) % 2)
    model = ("--model", "convnet") if len(shape) == 4 else ()
    with nothing_changes(tmp_path):
        for test in ("none", "0.5"):
            message = refused("train", tmp_path / "data.npz", "--out", tmp_path / "run", *ONE, *model, "--test", test)
            assert "row 17" in message
            assert "data.npz: array 'x' has NaN, infinity or too large a number" in message


def test_divergence_leaves_the_way_free(tmp_path: Path) -> None:
    data = table(tmp_path, TABLE)
    command = ("train", data, "--method", "CE", "--out", tmp_path / "run", *ONE)
    with nothing_changes(tmp_path):
        message = refused(*command, "--lr", "1e6", "--batch-size", 2, plan_shown=True)
    assert "learning rate" in message
    done(*command)


# Images


def test_a_truncated_image(tmp_path: Path) -> None:
    data, run = photos(tmp_path / "photos"), tmp_path / "run"
    cut(data / "dog" / "3.jpg")
    command = ("train", data, "--test", "none", "--out", run, *IMAGES)
    with nothing_changes(tmp_path):
        message = refused(*command)
    assert "dog/3.jpg cannot be read" in message
    assert "--skip-unreadable" in message
    answer = done(*command, "--skip-unreadable")
    assert "narl: 1 of 16 images of" in answer.err
    assert "cannot be read and are left out: 'dog/3.jpg'" in answer.err
    assert "T-SL on 15 images" in answer.err


@pytest.mark.parametrize("memory", ["1", "0"])
@pytest.mark.parametrize("other", ["--test", "--clean"])
def test_a_truncated_image_in_another_set(tmp_path: Path, other: str, memory: str) -> None:
    """Found after the plan was made, or, where images are decoded as they are needed, during the first epoch."""
    data, extra, run = photos(tmp_path / "photos"), photos(tmp_path / "extra", 4, seed=1), tmp_path / "run"
    whole = cut(extra / "cat" / "2.jpg")
    command = ("train", data, "--out", run, *IMAGES, "--test", "none", other, extra, "--memory", memory)
    with nothing_changes(tmp_path):
        assert "extra/cat/2.jpg cannot be read" in refused(*command, plan_shown=True)
    answer = done(*command, "--skip-unreadable")
    assert "1 of 8 images" in answer.err
    before = tree(tmp_path)
    assert "extra/cat/2.jpg cannot be read" in refused(*command, "--overwrite", plan_shown=True)
    if memory == "1":
        assert tree(tmp_path) == before, "the run that was there still is"
    (extra / "cat" / "2.jpg").write_bytes(whole)
    done(*command, "--overwrite")


def test_a_decompression_bomb(tmp_path: Path) -> None:
    data, run = photos(tmp_path / "photos"), tmp_path / "run"
    (data / "cat" / "bomb.png").write_bytes(bomb())
    with nothing_changes(tmp_path):
        message = refused("train", data, "--out", run, *IMAGES, "--test", "none")
    assert "bomb.png has more than 89,478,485 pixels" in message
    assert "1 of 17 images" in done("train", data, "--out", run, *IMAGES, "--skip-unreadable").err
    with nothing_changes(tmp_path):
        assert "bomb.png" in refused("predict", run, data, "--out", tmp_path / "predictions.csv")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty or no image"), (b"no image", "empty or no image"), (b"\x89PNG\r\n\x1a\n", "image")],
)
def test_files_that_are_no_images(tmp_path: Path, content: bytes, words: str) -> None:
    data = photos(tmp_path / "photos")
    (data / "cat" / "odd.png").write_bytes(content)
    with nothing_changes(tmp_path):
        message = refused("train", data, "--out", tmp_path / "run", *IMAGES, "--test", "none")
    assert "cat/odd.png" in message
    assert words in message


def test_folders_that_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    photos(tmp_path / "one", classes=("cat",))
    photos(tmp_path / "hole")
    (tmp_path / "hole" / "empty class").mkdir()
    with nothing_changes(tmp_path):
        for name, words in (
            ("empty", "is empty"),
            ("one", "one class only ('cat')"),
            ("hole", "'empty class'"),
            ("onee", "did you mean"),
        ):
            message = refused("train", tmp_path / name, "--out", tmp_path / "run", *IMAGES)
            assert name in message
            assert words in message or "empty class" in message, message


def test_a_test_folder_with_another_class(tmp_path: Path) -> None:
    data = tmp_path / "data"
    photos(data / "train")
    photos(data / "test", 2, classes=("cat", "dgo"), seed=3)
    with nothing_changes(tmp_path):
        message = refused("train", data, "--out", tmp_path / "run", *IMAGES)
    assert "'dgo'" in message
    assert "did you mean 'dog'?" in message


# Where a run goes


def test_an_output_folder_that_exists(tmp_path: Path) -> None:
    data = table(tmp_path, TABLE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with nothing_changes(tmp_path):
        for flags in ((), ("--overwrite",)):
            assert "is not a run of narl" in refused("train", data, "--out", tmp_path / "mine", *ONE, *flags)
            assert "file in the way" in refused("train", data, "--out", data, *ONE, *flags)
            assert "file in the way" in refused("train", data, "--out", data / "run", *ONE, *flags)
        assert "--out RUN" in refused("train", data, *ONE)
    (tmp_path / "empty").mkdir()
    done("train", data, "--out", tmp_path / "empty", *ONE)


def test_a_read_only_disk(tmp_path: Path) -> None:
    data = table(tmp_path, TABLE)
    message = refused("train", data, "--out", "/proc/run", *ONE, plan_shown=True)
    assert "/proc/run" in message
    assert "choose another --out" in message
    if os.getuid():  # root writes everywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        message = refused("train", data, "--out", tmp_path / "locked" / "run", *ONE, plan_shown=True)
        assert "Permission denied" in message


def test_a_disk_that_fills_up_while_tensorboard_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.tensorboard import SummaryWriter

    data, run = rings(tmp_path / "rings.csv", 60), tmp_path / "run"
    command = ("train", data, "--epochs", 2, "--device", "cpu")
    done(*command, "--out", tmp_path / "whole")

    def full(self: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(SummaryWriter, "flush", full)
        message = refused(*command, "--out", run, plan_shown=True)
    assert "tensorboard: No space left on device; free some space" in message
    done("train", "--resume", run)
    assert result(run) == result(tmp_path / "whole")


def test_a_file_where_tensorboard_writes(tmp_path: Path) -> None:
    data, run = rings(tmp_path / "rings.csv", 60), tmp_path / "run"
    done("train", data, "--out", run, *ONE)
    (run / "tensorboard").write_text("precious")
    (run / "summary.json").unlink()
    assert "tensorboard" in refused("train", "--resume", run)
    done("train", "--resume", run, "--no-tensorboard")
    assert (run / "tensorboard").read_text() == "precious"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("whole")
    done("train", rings(folder / "rings.csv", 60), "--out", folder / "run", *ONE)
    return folder / "run"


@pytest.mark.parametrize("name", ["config.json", "encoder.json", "samples.npy", "metrics.jsonl", "samples.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1, 2", b"\x00\xff" * 50, b'{"kind": "narl run", "format": 1, "config": {}}'],
    ids=["empty", "no keys", "torn", "noise", "no content"],
)
def test_a_damaged_run(tmp_path: Path, whole: Path, name: str, content: bytes) -> None:
    """Every file may be damaged: it is mended, or named; there is no traceback."""
    data, run = whole.parent / "rings.csv", tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    (run / name).write_bytes(content)
    for command in (
        ("train", "--resume", run, "--no-tensorboard", "--dry-run"),
        ("train", "--resume", run, "--no-tensorboard"),
        ("predict", run, data, "--out", tmp_path / "predictions.csv", "--overwrite"),
    ):
        answer = narl(*command)
        assert answer.code in (0, 2)
        assert "Traceback" not in answer.err
        if answer.code:
            assert len(answer.err.splitlines()) == 1
            assert answer.err.startswith("narl: ")
            assert str(run) in answer.err


# Configuration files


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.toml", "epoch = 3\n", ["'epoch'", "did you mean 'epochs'?"]),
        ("run.yaml", "epohcs: 3\n", ["'epohcs'", "did you mean 'epochs'?"]),
        ("run.json", '{"leraning-rate": 3}', ["did you mean 'learning-rate'?"]),
        ("run.toml", "epochs = 'many'\n", ["epochs", "'many'", "number"]),
        ("run.yaml", "epochs: [1, 2]\n", ["epochs"]),
        ("run.yaml", "a: b: c\n", ["run.yaml", "line 1"]),
        ("run.toml", "[train]\nepochs = 3\n", ["'train' is a table"]),
        ("run.ini", "epochs=3\n", ["run.ini", ".toml"]),
        ("run.json", '{"epochs": 1, "epochs": 2}', ["epochs", "twice"]),
        ("run.toml", "epochs = 0\n", ["--epochs = 0"]),
        ("run.toml", "method = 'A-GEC'\nclean = '4'\n", ["'A-GEC'", "did you mean 'A-GCE'?"]),
    ],
)
def test_configuration_files(tmp_path: Path, name: str, content: str, words: list[str]) -> None:
    data, config = table(tmp_path, TABLE), table(tmp_path, content, name)
    with nothing_changes(tmp_path):
        message = refused("train", data, "--config", config, "--out", tmp_path / "run")
        for word in words:
            assert word in message, message


def test_no_configuration_file(tmp_path: Path) -> None:
    table(tmp_path, "epochs = 1\n", "run.toml")
    assert "did you mean" in refused("train", "--config", tmp_path / "rum.toml", "--out", tmp_path / "run")


# Class names


def test_class_names_survive(tmp_path: Path) -> None:
    names = ("salt, pepper", "<script>alert('x')</script>", 'say "cheese"', "=1+1", " spaced ", "Ünï 漢字 🐈", "a\nb")
    lines = [json.dumps({"a": i, "b": i * i % 7, "label": names[i % len(names)]}) for i in range(70)]
    data = table(tmp_path, "\n".join(lines) + "\n", "data.jsonl")
    run, out = tmp_path / "run", tmp_path / "predictions.csv"
    answer = done("train", data, "--out", run, *ONE)
    assert len(answer.out.splitlines()) == 4, "a newline in a name does not break the report"
    done("predict", run, data, "--out", out)
    with out.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file))
    kept = {name.removeprefix("p:") for name in header[3:]}
    assert kept == {*names}


def test_class_names_that_the_terminal_cannot_show(
    whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = table(tmp_path, "".join(f'{{"a": {i}, "label": "{"漢🐈"[i % 2]}"}}\n' for i in range(30)), "data.jsonl")
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.argv", ["narl", "train", str(data), "--out", str(tmp_path / "run"), *map(str, ONE)])
    monkeypatch.setattr("sys.stdout", shown)
    with pytest.raises(SystemExit) as ending:
        main()
    assert not ending.value.code
    shown.seek(0)
    assert "\\u6f22" in shown.read()


def test_a_newline_in_the_name_of_a_file(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    (data / "cat" / "two\nlines.png").write_bytes(b"no image")
    with nothing_changes(tmp_path):
        assert "two lines.png" in refused("train", data, "--out", tmp_path / "run", *IMAGES, "--test", "none")


# Predictions


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,east,north,colour\na,nan,1,red\n", ["'east'", "row 0"]),
        ("id,east,north,colour\na,much,1,red\n", ["'east'", "'much'"]),
        ("id,east,north,colour\na,1e300,1,red\n", ["'east'", "too large"]),
        ("id,east,north,colour\n", ["no rows"]),
        ("id,east,colour\na,1,red\n", ["'north'"]),
        ("id,east,north,colour\na,1,red\n", ["new.csv"]),
    ],
)
def test_new_samples_that_cannot_be_predicted(whole: Path, tmp_path: Path, text: str, words: list[str]) -> None:
    new = table(tmp_path, text, "new.csv")
    with nothing_changes(tmp_path):
        message = refused("predict", whole, new, "--out", tmp_path / "predictions.csv")
        for word in words:
            assert word in message


def test_predictions_never_replace_what_is_predicted(whole: Path, tmp_path: Path) -> None:
    new = rings(tmp_path / "new.csv", 10)
    with nothing_changes(tmp_path):
        assert "is what is read, and would be lost" in refused("predict", whole, new, "--out", new, "--overwrite")
        assert "let the name end in" in refused("predict", whole, new, "--out", tmp_path / "p.xlsx")
        assert "does not exist" in refused("predict", whole, new, "--out", tmp_path / "none" / "p.csv")
        assert "could not be written" in refused("predict", whole, new, "--out", "/proc/p.csv")


def test_a_model_that_is_damaged_or_missing(whole: Path, tmp_path: Path) -> None:
    run, new = tmp_path / "run", rings(tmp_path / "new.csv", 10)
    shutil.copytree(whole, run)
    cut(run / "model.safetensors")
    assert "model.safetensors" in refused("predict", run, new, "--out", tmp_path / "p.csv")
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "checkpoints")
    assert "has no trained model yet" in refused("predict", run, new, "--out", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
