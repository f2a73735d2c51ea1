"""From a run to its review and back: ``narl review``, a kill in its midst, ``narl train --clean RUN``."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from unittest import mock

import numpy as np
import PIL.Image
import pytest

from command_line import CLASSES, done, narl, photos, process, refused, rings, tree
from narl.audit.review.agreement import read_agreed
from narl.audit.review.answers import FILE, Answers
from narl.audit.review.opening import open_desk
from narl.errors import NarlWarning
from narl.train.record import SampleRecord
from review_desk import Client, served


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rings(tmp_path_factory.mktemp("data") / "rings.csv")


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A run that nobody changes."""
    run = data.parent / "trained"
    done("train", data, "--out", run, "--epochs", 2, "--no-tensorboard", "--test", "none")
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def check_some(run: Path, who: str, ids: list[str], label: int | None) -> None:
    answers = Answers(run / FILE)
    for name in ids:
        if label is None:
            answers.add(who, "tab", name, given=CLASSES[0], verdict="unsure", label=None)
        else:
            verdict = "keep" if label == 0 else "relabel"
            answers.add(who, "tab", name, given=CLASSES[0], verdict=verdict, label=CLASSES[label])
    answers.close()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def test_a_run_is_reviewed_with_its_own_samples(run: Path, data: Path) -> None:
    rows = {row["id"]: row for row in rows_of(data)}
    with served(open_desk(run)) as client:
        assert client.ask("GET", "/api/about").json["classes"] == [*CLASSES]
        for verdict in ("keep", "unsure"):
            sample = client.next()["sample"]
            row = rows[sample["id"]]
            cells = dict(sample["content"]["cells"])
            assert CLASSES[sample["given"]] == row["label"]
            assert (cells["east"], cells["colour"]) == (f"{float(row['east']):.7g}", row["colour"])
            assert "label" not in cells
            assert "true_label" not in cells
            client.answer(sample["number"], verdict)
    assert len(read_agreed(run).labels) == len(read_agreed(run).undecided) == 1


def test_images_of_a_run_are_found_again(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 6)
    done("train", folder, "--out", tmp_path / "run", "--epochs", 1, "--no-tensorboard", "--model", "convnet")
    desk = open_desk(tmp_path / "run", order="suspicious")
    ids = [str(name) for name in desk.verdicts.ids]
    assert ids == SampleRecord.open(tmp_path / "run").ids.tolist()
    for number, name in enumerate(ids):
        shown = np.asarray(PIL.Image.open(io.BytesIO(desk.contents.png(number))))
        assert np.array_equal(shown, np.asarray(PIL.Image.open(folder / name).convert("RGB")))
    desk.close()


def test_data_that_has_changed_is_noticed(run: Path, data: Path, tmp_path: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["config"]["settings"]["data"] = str(tmp_path / "rings.csv")
    (run / "config.json").write_text(json.dumps(config))
    lines = data.read_text().splitlines(keepends=True)
    (tmp_path / "rings.csv").write_text("".join(lines[:-1]))
    assert "restore the data that the run was trained on" in refused("review", run, "--no-browser")
    quoted = ['"' + name.replace('"', '""') + '"' for name in CLASSES]
    old, new = (
        quoted if f",{quoted[0]},{quoted[0]}" in lines[1] or f",{quoted[0]},{quoted[1]}" in lines[1] else quoted[::-1]
    )
    (tmp_path / "rings.csv").write_text("".join([lines[0], lines[1].replace(f",{old},", f",{new},", 1), *lines[2:]]))
    with pytest.warns(NarlWarning, match="1 labels have changed since the run was trained"):
        open_desk(run).close()


def test_answers_about_other_samples_are_kept_and_said(run: Path) -> None:
    check_some(run, "Ada", ["nobody"], 1)
    with pytest.warns(NarlWarning, match="about samples that this run has not"):
        open_desk(run).close()
    assert read_agreed(run).labels == {"nobody": CLASSES[1]}


@contextmanager
def reviewing(run: Path, *options: object) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    running = process("review", run, "--no-browser", *options)
    try:
        assert running.stdout is not None
        running.stdout.readline()
        link = running.stdout.readline().strip()
        port, token = link.removeprefix("http://127.0.0.1:").split("/#token=")
        yield Client(int(port), token), running
    finally:
        running.kill()
        running.communicate()


def test_a_kill_between_answers_loses_none_that_was_confirmed(run: Path) -> None:
    confirmed: list[tuple[str, int]] = []
    enough = threading.Event()

    def work(client: Client) -> None:
        try:
            shown = client.next()
            while True:
                number = shown["sample"]["number"]
                shown = client.answer(number, "keep")
                confirmed.append((client.labeller, number))
                if len(confirmed) >= 40:
                    enough.set()
        except (OSError, HTTPException):
            return  # the server is gone, perhaps in the middle of a reply

    with reviewing(run, "--labeller", "Ada") as (client, running):
        assert client.ask("GET", "/api/about").json["labeller"] == "Ada"
        workers = [
            threading.Thread(target=work, args=(Client(client.port, client.token, who, f"tab {tab}"),))
            for who in ("Ada", "Bob")
            for tab in range(2)
        ]
        for worker in workers:
            worker.start()
        assert enough.wait(60)
        running.kill()  # SIGKILL, while answers are under way
        for worker in workers:
            worker.join(60)
    desk = open_desk(run)  # it goes on as if nothing had been
    ids = desk.verdicts.ids
    answers = Answers(run / FILE, create=False)
    standing = {(answer.labeller, answer.sample) for answer in answers.standing()}
    answers.close()
    assert {(who, str(ids[number])) for who, number in confirmed} <= standing
    assert len(standing) <= len(confirmed) + 4  # those whose reply was cut off
    assert desk.next("Ada", "tab")["progress"]["keep"] == sum(who == "Ada" for who, _ in standing)
    desk.close()


def test_agreed_answers_are_the_next_clean_set_and_not_trained_on(run: Path, data: Path, tmp_path: Path) -> None:
    inner, outer, both, unsure = [f"p0-{k}" for k in range(8)], [f"p0-{k}" for k in range(8, 16)], ["p0-16"], ["p0-17"]
    check_some(run, "Ada", [*inner, *both], 0)
    check_some(run, "Ada", outer, 1)
    check_some(run, "Bob", [*both, *inner[:1]], 1)
    check_some(run, "Bob", [*unsure, *outer], None)
    before = tree(run)
    options = ("--epochs", 1, "--no-tensorboard", "--test", "none")
    trial = done("train", data, "--clean", run, "--dry-run", "--json", *options)
    assert {name: content for name, content in tree(run).items() if "sqlite-" not in name} == before
    assert json.loads(trial.out)["samples"]["clean"] == 15
    answer = done("train", data, "--clean", run, "--out", tmp_path / "next", *options)
    assert (
        "15 samples with an agreed label; 2 left out because labellers disagree; 1 left out because nobody"
        in answer.err
    )
    ids = set(SampleRecord.open(tmp_path / "next").ids.tolist())
    assert ids == {f"p0-{k}" for k in range(240)} - {*inner[1:], *outer}
    settings = json.loads((tmp_path / "next" / "config.json").read_text())["config"]["settings"]
    taken = rows_of(Path(settings["clean"]))
    assert {row["id"]: row["label"] for row in taken} == {
        **dict.fromkeys(inner[1:], CLASSES[0]),
        **dict.fromkeys(outer, CLASSES[1]),
    }
    # More answers later do not change what that run was trained with.
    check_some(run, "Ada", ["p0-100"], 1)
    assert len(rows_of(Path(settings["clean"]))) == 15
    assert json.loads(done("train", "--resume", tmp_path / "next", "--json").out)["epochs"] == 1


def test_runs_without_answers_or_on_other_data_are_no_clean_set(run: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    assert "check some labels with narl review" in refused("train", data, "--clean", run, "--out", out)
    check_some(run, "Ada", ["p0-0"], None)
    assert "no sample with an agreed label" in refusal_of("train", data, "--clean", run, "--out", out)
    other = rings(tmp_path / "other.csv", seed=1)
    assert "--export checked.csv --agreed" in refused("train", other, "--clean", run, "--out", out)
    check_some(run, "Ada", ["p0-0"], 1)
    said = refusal_of("train", data, "--clean", run, "--out", out)
    assert "has no sample of class" in said
    assert not out.exists()


def test_a_run_that_is_overwritten_keeps_the_answers(run: Path, data: Path) -> None:
    check_some(run, "Ada", ["p0-0"], 1)
    done("train", data, "--out", run, "--overwrite", "--epochs", 1, "--no-tensorboard", "--test", "none")
    assert read_agreed(run).labels == {"p0-0": CLASSES[1]}


def refusal_of(*arguments: object) -> str:
    answer = narl(*arguments)
    assert answer.code == 2, answer.err
    return answer.err.splitlines()[-1]


def test_answers_are_exported(run: Path, data: Path, tmp_path: Path) -> None:
    assert "check some labels" in refused("review", run, "--export", tmp_path / "a.csv")
    check_some(run, "Ada", ["p0-0", "p0-1"], 1)
    check_some(run, "Bob", ["p0-1", "=1+1", "p0-2"], None)
    assert (
        "5 answers: 2 samples with an agreed label; 2 left out"
        in done("review", run, "--export", tmp_path / "a.csv").out
    )
    first, *_, last = rows_of(tmp_path / "a.csv")
    assert {key: value for key, value in first.items() if key != "at"} == {
        "id": "p0-0",
        "given": CLASSES[0],
        "answer": "relabel",
        "label": CLASSES[1],
        "labeller": "Ada",
    }
    assert (last["id"], last["answer"], last["label"]) == ("p0-2", "unsure", "")
    assert "--overwrite" in refused("review", run, "--export", tmp_path / "a.csv")
    done("review", run, "--export", tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [CLASSES[1], CLASSES[1], None, None, None]
    done("review", run, "--export", tmp_path / "clean.csv", "--agreed")
    assert rows_of(tmp_path / "clean.csv") == [{"id": name, "label": CLASSES[1]} for name in ("p0-0", "p0-1")]
    assert "let the name end in" in refused("review", run, "--export", tmp_path / "a.doc")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{run}", "--port", 70000], "is no port"),
        (["{run}", "--labeller", " "], "labeller's name"),
        (["{run}", "--order", "best"], "known: doubtful, informative, random, suspicious"),
        (["{run}", "--agreed"], "give --export FILE"),
        (["{run}/nothing"], "there is no folder"),
        (["{data}"], "is not a folder: give a folder that narl train --out made"),
        (["{data.parent}", "--export", "x.csv"], "not a run of narl"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_line(run: Path, data: Path, arguments: list[object], reason: str) -> None:
    filled = [str(one).format(run=run, data=data) for one in arguments]
    assert reason in refused("review", "--no-browser", *filled)


def test_without_the_packages_it_says_how_to_install_them(run: Path) -> None:
    with mock.patch.dict(sys.modules, {"uvicorn": None}):
        assert "pip install 'narl[review]'" in refused("review", run, "--no-browser")
