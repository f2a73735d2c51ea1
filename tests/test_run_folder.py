"""Run folders: never half a run, nothing of others removed, and clear words about everything else."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crashes
import narl
from crashes import Killer, metrics_of, tree_of, values_of
from narl import atomic
from narl.errors import NarlError, OptionError, RunFolderError
from narl.train import writing
from narl.train.record import SampleRecord
from narl.train.run_folder import RESULTS, RunFolder

ENVIRONMENT = {"cores": 2}


def created(path: Path, **options: Any) -> RunFolder:
    return RunFolder.create(path, **{"config": {"seed": 3}, "environment": ENVIRONMENT, **options})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return created(tmp_path / "run")


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with crashes.killer() as found:
        yield found


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# New ones


def test_a_new_run(tmp_path: Path) -> None:
    run = created(
        tmp_path / "not" / "there" / "run", config={"epochs": 3, "columns": ("a", "b"), "rate": np.float64(0.5)}
    )
    assert sorted(os.listdir(run.path)) == [".lock", "config.json", "environment.json"]
    assert run.config == {"epochs": 3, "columns": ["a", "b"], "rate": 0.5}
    assert RunFolder.open(str(run.path)).config == run.config
    about = json.loads((run.path / "config.json").read_text())
    assert about == {"kind": "narl run", "format": 1, "narl": narl.__version__, "config": run.config}
    assert run.read_json("environment.json") == ENVIRONMENT
    assert run.metrics() == run.times() == []
    assert run.checkpoints.latest().tree is None


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert created(tmp_path).path == tmp_path


def test_a_run_is_not_replaced_unasked(run: RunFolder) -> None:
    before = everything(run.path)
    with pytest.raises(
        RunFolderError, match=rf"run in .* already: .*--out.*--resume {run.path}.*--overwrite"
    ) as caught:
        created(run.path)
    assert isinstance(caught.value, OSError)
    assert everything(run.path) == before


@pytest.mark.parametrize("name", ["thesis.tex", "config.json", ".lock", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("content", ["", "{}", '{"kind": "other", "format": 1}', "{", "narl"])
def test_a_folder_of_others_is_left_alone(tmp_path: Path, name: str, overwrite: bool, content: str) -> None:
    if name == ".lock" and not content:
        (tmp_path / "beside").write_text("a lock file alone could be ours")
    (tmp_path / name).write_text(content)
    before = everything(tmp_path)
    with pytest.raises(RunFolderError, match=r"exists already.*is not a run of narl: choose another --out"):
        created(tmp_path, overwrite=overwrite)
    assert everything(tmp_path) == before


def test_overwrite_removes_the_run_and_nothing_else(run: RunFolder) -> None:
    for name in RESULTS:
        (run.path / name).write_text("old")
    run.checkpoints.save(tree_of(1), 1, 0)
    part = created(run.path / "tuning" / "q=0.5")
    part.append_metrics(metrics_of(1))
    (run.path / "tensorboard").mkdir()
    (run.path / "tensorboard" / "events.out.tfevents.1").write_text("old")
    mine = ["notes.txt", "checkpoints/best.safetensors", "tuning/mine/a.txt", "tuning/b.txt", "tensorboard/picture.png"]
    for name in mine:
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("mine")
    new = created(run.path, config={"seed": 4}, overwrite=True)
    assert new.config == {"seed": 4}
    left = everything(run.path)
    assert set(left) == {".lock", "config.json", "environment.json", *mine}
    assert all(left[name] == b"mine" for name in mine)
    assert created(part.path).config == {"seed": 3}


@pytest.mark.parametrize("below", ["", "run", "a/b"])
def test_a_file_in_the_way(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match=r"file.*(file in the way|Not a directory|File exists).*choose another"):
        created(tmp_path / "file" / below)
    with pytest.raises(RunFolderError, match="is not a folder: give a folder that narl train --out made"):
        RunFolder.open(tmp_path / "file" / below)
    assert everything(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize(
    "path", ["/proc/narl-run", "/proc/1/narl/run", "a\0b", "x" * 300], ids=["a", "b", "nul", "long"]
)
def test_where_nothing_can_be_made(path: str) -> None:
    with pytest.raises(RunFolderError, match=r"cannot (make|read) .*choose another"):
        created(Path(path))
    with pytest.raises(RunFolderError):
        RunFolder.open(path)


def test_a_read_only_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        RunFolderError, match=r"cannot make the run folder .*: Read-only file system; choose another --out"
    ):
        created(tmp_path / "run")


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file in the way; choose another path"):
        RunFolder.check_new(tmp_path / "file" / "a" / "run")
    RunFolder.check_new(tmp_path / "a" / "b")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunFolderError, match="may not be written; choose another --out"):
        RunFolder.check_new(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("call", ["open", "fsync", "replace", "write"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_failing_creation_can_be_repeated(
    tmp_path: Path, call: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(RunFolderError, match=rf"cannot write .*: {os.strerror(number)}; .*nothing of the run"):
            created(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"before it began|not a run"):
        RunFolder.open(tmp_path / "run")
    assert created(tmp_path / "run").config == {"seed": 3}


def test_values_that_have_no_json(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a set cannot be written as JSON"):
        created(tmp_path / "run", config={"classes": {1, 2}})
    assert created(tmp_path / "run").config == {"seed": 3}


# Those that are there


@pytest.mark.parametrize("name", ["nowhere", "no/where"])
def test_open_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match=rf"there is no folder .*{name}: check the path"):
        RunFolder.open(tmp_path / name)


def test_open_a_folder_of_others(tmp_path: Path) -> None:
    for content in (None, "{}", "[]", '{"kind": "narl run"}', '{"kind": "narl run", "config": []}', '"narl run"'):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(RunFolderError, match="is not a run of narl: give a folder that narl train --out made"):
            RunFolder.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"kind": "narl run", ', b"[" * 100_000], ids=range(5))
def test_a_broken_configuration(run: RunFolder, content: bytes) -> None:
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"config\.json is damaged .*: restore it, or start the run anew"):
        RunFolder.open(run.path)
    with pytest.raises(RunFolderError, match="choose another --out"):
        created(run.path, overwrite=True)


@pytest.mark.parametrize("future", [2, "1", None, 1.5, True])
def test_a_newer_format(run: RunFolder, future: Any) -> None:
    about = {**run.read_json("config.json"), "format": future, "narl": "9.1"}
    run.write_json("config.json", about)
    with pytest.raises(RunFolderError, match=rf"has format {future}, written by narl 9\.1; .*upgrade narl"):
        RunFolder.open(run.path)
    assert created(run.path, overwrite=True).config == {"seed": 3}


def test_a_configuration_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot read .*config\.json: Is a directory"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="is not a run of narl"):
        created(tmp_path, overwrite=True)


def test_a_missing_file(run: RunFolder) -> None:
    with pytest.raises(RunFolderError, match=r"has no summary\.json"):
        run.read_json("summary.json")


# Records


def test_metrics_come_back_in_order(run: RunFolder) -> None:
    records = [metrics_of(epoch) for epoch in range(1, 4)]
    for record in records:
        run.append_metrics(record)
        run.append_time({"epoch": record["epoch"], "seconds": 0.5})
    assert run.metrics() == RunFolder.open(run.path).metrics() == records
    assert (run.path / "metrics.jsonl").read_text().count("\n") == 3
    run.rewrite_metrics(records[:2])
    run.rewrite_times(1)
    assert run.metrics() == records[:2]
    assert run.times() == [{"epoch": 1, "seconds": 0.5}]
    run.rewrite_metrics([])
    assert run.metrics() == []


def test_appended_and_rewritten_metrics_are_the_same_bytes(run: RunFolder) -> None:
    records = [{"epoch": 1, "loss": 1 / 3, "name": "é\u2028\ud800", "none": None, "by_class": [0.1, 0.2]}] * 3
    for record in records:
        run.append_metrics(record)
    before = (run.path / "metrics.jsonl").read_bytes()
    run.rewrite_metrics(run.metrics())
    assert (run.path / "metrics.jsonl").read_bytes() == before
    assert run.metrics() == records


def test_what_json_does_not_know_becomes_null(run: RunFolder) -> None:
    numbers = {
        "a": float("nan"),
        "b": [np.float32("inf"), -np.inf],
        "c": np.int8(3),
        "d": np.bool_(True),
        "e": np.str_("x"),
    }
    run.append_metrics({**numbers, "f": (1, 2), 3: 4})  # type: ignore[dict-item]
    assert run.metrics() == [{"a": None, "b": [None, None], "c": 3, "d": True, "e": "x", "f": [1, 2], "3": 4}]
    assert b"NaN" not in (run.path / "metrics.jsonl").read_bytes()


def test_a_torn_last_line_does_not_count(run: RunFolder) -> None:
    path = run.path / "metrics.jsonl"
    for epoch in (1, 2, 3):
        run.append_metrics(metrics_of(epoch))
    content = path.read_bytes()
    end_of_second = content.index(b"\n", content.index(b"\n") + 1) + 1
    for length in range(end_of_second, len(content) - 1):
        path.write_bytes(content[:length])
        assert run.metrics() == [metrics_of(1), metrics_of(2)]
    run.append_metrics(metrics_of(3))
    assert path.read_bytes() == content
    path.write_bytes(content[:-1])  # an editor's work
    run.append_metrics(metrics_of(4))
    assert run.metrics() == [metrics_of(epoch) for epoch in (1, 2, 3, 4)]


@pytest.mark.parametrize("line", [b"{", b"", b"[1]", b"\xff", b"3"])
def test_a_broken_line_in_the_middle(run: RunFolder, line: bytes) -> None:
    (run.path / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n' + line + b'\n{"epoch": 3}\n')
    with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is no JSON object"):
        run.metrics()


LINES = st.sampled_from([b'{"epoch": 1}', b'{"epoch": 1', b"\n", b"\r", b"[]", b"\xff", b"\x00", b" ", b'""'])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(content=st.lists(LINES, max_size=6).map(b"".join))
def test_any_metrics_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    try:
        before = writing.read_lines(path)
        writing.append_line(path, {"epoch": 1})
        assert writing.read_lines(path) == [*before, {"epoch": 1}]
    except RunFolderError as error:
        assert "no JSON object" in str(error)  # noqa: PT017 (either is right)


def test_metrics_on_a_full_disk(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path / "times.jsonl").symlink_to("/dev/full")
    with pytest.raises(
        RunFolderError,
        match=r"cannot write .*times\.jsonl: No space left on device; free some space; nothing of the run",
    ):
        run.append_time({"epoch": 1})

    run.append_metrics(metrics_of(1))
    before = (run.path / "metrics.jsonl").read_bytes()

    def refuse(_: int) -> NoReturn:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunFolderError, match="Disk quota exceeded; free some space"):
        run.append_metrics(metrics_of(2))
    with pytest.raises(RunFolderError, match="Disk quota exceeded; free some space"):
        run.rewrite_metrics([])
    assert (run.path / "metrics.jsonl").read_bytes() == before
    assert sorted(os.listdir(run.path)) == [".lock", "config.json", "environment.json", "metrics.jsonl", "times.jsonl"]


def test_an_interrupted_write_leaves_the_old_file(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_json("summary.json", {"accuracy": 0.5})

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.write_json("summary.json", {"accuracy": 0.6})
    assert run.read_json("summary.json") == {"accuracy": 0.5}
    assert not atomic.temporary_path(run.path / "summary.json").exists()


# Locks


def test_one_at_a_time(run: RunFolder) -> None:
    with run.lock():
        with pytest.raises(RunFolderError, match=rf"{run.path} is in use by process {os.getpid()}: wait"), run.lock():
            pass
        with pytest.raises(RunFolderError, match="is in use by process"):
            created(run.path, overwrite=True)
        assert RunFolder.open(run.path).config == run.config
    with run.lock():
        pass


def test_another_process_holds_the_lock_until_it_dies(run: RunFolder) -> None:
    code = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("narl run, last used by process 77", file=file, flush=True)
print("held", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(run.path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match="in use by process 77"), run.lock():
            pass
        other.kill()
        other.wait()
        with run.lock():
            pass


def test_a_file_system_without_locks(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: Any) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run.lock():
        run.append_metrics(metrics_of(1))
    assert len(run.metrics()) == 1


def test_a_system_without_locks(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with run.lock():
        run.append_metrics(metrics_of(1))
    assert run.metrics() == [metrics_of(1)]


def test_a_run_that_cannot_be_written_is_still_read(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append_metrics(metrics_of(1))

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    assert RunFolder.open(run.path).metrics() == [metrics_of(1)]
    with pytest.raises(RunFolderError, match="Read-only file system; allow writing there"), run.lock():
        pass


def test_results_without_their_configuration_are_not_taken_for_a_run_that_never_began(tmp_path: Path) -> None:
    run = created(tmp_path / "run")
    run.append_metrics(metrics_of(1))
    (run.path / "config.json").unlink()
    for use in (RunFolder.open, created, RunFolder.check_new):
        with pytest.raises(RunFolderError, match=r"not its config\.json: put that back"):
            use(run.path)
    assert (run.path / "metrics.jsonl").exists()


# Kills


def test_killed_at_every_moment_of_its_creation(tmp_path: Path, killer: Killer) -> None:
    for moment in itertools.count(1):
        folder = tmp_path / f"{moment}" / "run"
        if killer.run("create", folder, at=moment):
            break
        try:
            assert RunFolder.open(folder).config == {"epochs": crashes.EPOCHS}
        except RunFolderError as error:
            words = ("was stopped before it began", "there is no folder", "is not a run of narl")
            assert any(word in str(error) for word in words)  # noqa: PT017 (either is right)
            assert created(folder).config == {"seed": 3}
        else:
            with pytest.raises(RunFolderError, match="--resume"):
                created(folder)
    assert moment > 10


def test_killed_at_every_second_moment_of_an_overwrite(tmp_path: Path, killer: Killer) -> None:
    for moment in itertools.count(1, 2):
        run = created(tmp_path / f"{moment}")
        run.append_metrics(metrics_of(1))
        (run.path / "notes.txt").write_text("mine")
        run.checkpoints.save(tree_of(1), 1, 0)
        if killer.run("overwrite", run.path, at=moment):
            break
        try:
            found = RunFolder.open(run.path)
        except RunFolderError as error:
            assert "was stopped before it began" in str(error)  # noqa: PT017 (either is right)
            created(run.path)
        else:  # the old one with all it had, or the new one with nothing
            old = found.config == {"seed": 3}
            assert found.metrics() == ([metrics_of(1)] if old else [])
            assert (found.checkpoints.latest().tree is not None) == old
            created(run.path, overwrite=True)
        assert (run.path / "notes.txt").read_text() == "mine"
        assert RunFolder.open(run.path).metrics() == []
    assert moment > 20


def check_progress(folder: Path) -> int:
    """Everything in a killed run's folder is whole and fits together; its epochs."""
    run = RunFolder.open(folder)
    found = run.checkpoints.latest()
    epoch = 0 if found.tree is None else int(found.tree["epoch"])
    assert not found.rejected
    if epoch:
        assert (found.tree["weights"] == epoch).all()
        assert (found.tree["state"][0] == epoch).all()
    metrics = run.metrics()
    assert metrics == [metrics_of(number) for number in range(1, len(metrics) + 1)]
    assert len(metrics) >= epoch
    if (folder / "samples.npy").exists():
        record = SampleRecord.open(folder)
        assert record.written >= epoch
        values = np.load(folder / "samples.npy", mmap_mode="r")
        for number in range(epoch):
            assert (values[number, 0] == values_of(number + 1)["margin"]).all()
            assert (record.read("q", number) == values_of(number + 1)["q"]).all()
    else:
        assert not epoch
    return epoch


def test_killed_at_every_moment_of_training(tmp_path: Path, killer: Killer) -> None:
    crashes.create(tmp_path / "run")
    reached = []
    for moment in itertools.count(1):
        before = check_progress(tmp_path / "run")
        through = killer.run("train 2", tmp_path / "run", at=moment)
        after = check_progress(tmp_path / "run")
        assert before <= after <= before + 2
        reached.append(after - before)
        if through:
            break
    assert moment > 20
    assert reached[0] == 0
    assert 1 in reached
    assert reached[-1] == 2


def test_killed_at_random_moments(tmp_path: Path, killer: Killer) -> None:
    crashes.create(tmp_path / "run")
    chance = random.Random(0)
    epoch = 0
    for _ in range(8):
        assert not killer.run("train", tmp_path / "run", after=chance.uniform(0.02, 0.12))
        epoch, before = check_progress(tmp_path / "run"), epoch
        assert epoch >= before
    assert epoch > 0
    assert killer.run("train 2", tmp_path / "run")
    assert check_progress(tmp_path / "run") == epoch + 2
    names = os.listdir(tmp_path / "run" / "checkpoints")
    assert len(names) == 2
    assert not any(name.endswith(".tmp") for name in names)


@pytest.mark.parametrize("kind", [RunFolderError, NarlError, OSError])
def test_kinds_of_errors(kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind):
        RunFolder.open(tmp_path / "nowhere")
