"""The command line as a person or a program sees it, and tiny data to try it on."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from narl.cli import main
from narl.data.image_files import is_image

SAME = ("metrics.jsonl", "summary.json", "model.safetensors", "samples.npy", "samples.json")
CLASSES = ("inner, <b>", 'outer "&"')
IMAGE_SIDE = 12


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str


def narl(*arguments: object) -> Answer:
    """Run a command in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["narl", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    assert threading.current_thread() is threading.main_thread()
    return Answer(code, out.getvalue(), err.getvalue())


def done(*arguments: object) -> Answer:
    """Run a command that succeeds."""
    answer = narl(*arguments)
    assert answer.code == 0, answer.err
    return answer


def refused(*arguments: object, plan_shown: bool = False) -> str:
    """Run a command that is refused: one line, which is returned; before it perhaps what was planned."""
    return refusal(narl(*arguments), plan_shown=plan_shown)


def refusal(answer: Answer, *, plan_shown: bool = False) -> str:
    """The one line of a command that was refused."""
    assert answer.code == 2, (answer.code, answer.err)
    assert "Traceback" not in answer.err
    lines = answer.err.splitlines()
    spoken = [line for line in lines if line.startswith("narl: ")]
    assert len(spoken) == 1, answer.err
    assert lines[-1] == spoken[0]
    assert plan_shown or len(lines) == 1, answer.err
    return spoken[0]


def process(
    *arguments: object, file_limit: int | None = None, begin: Sequence[str] = (sys.executable, "-m", "narl")
) -> subprocess.Popen[str]:
    """Start a command as a process of its own; with a limit, no file of it grows beyond so many bytes."""
    if file_limit is not None:  # Python ignores the signal; what is left is an error like that of a full disk
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({file_limit}, {file_limit})); "
        begin = [sys.executable, "-c", f"{limit}from narl.cli import main; main()"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*begin, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def answer_of(running: subprocess.Popen[str]) -> Answer:
    """Wait for a process."""
    with running:
        out, err = running.communicate(timeout=120)
    return Answer(running.returncode, out, err)


def result(run: Path) -> dict[str, bytes]:
    """Everything in a run's folder that the seed decides."""
    names = [*SAME, *(path.name for path in sorted(run.glob("adjuster-*.safetensors")))]
    return {name: (run / name).read_bytes() for name in names}


def tree(folder: Path) -> dict[str, bytes]:
    """All files under a folder, with what they hold."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rings(path: Path, count: int = 240, seed: int = 0) -> Path:
    """A CSV of points in two rings, with numbers, a category, ids and 25 % wrong labels; the truth stands beside."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 2))
    true = (np.linalg.norm(points, axis=1) > 1.2).astype(int)
    given = np.where(rng.random(count) < 0.25, 1 - true, true)
    quoted = ['"' + name.replace('"', '""') + '"' for name in CLASSES]
    rows = [
        f"p{seed}-{row},{x:.6f},{y:.6f},{('red', 'green', 'blue')[row % 3]},{quoted[given[row]]},{quoted[true[row]]}\n"
        for row, (x, y) in enumerate(points)
    ]
    path.write_text("id,east,north,colour,label,true_label\n" + "".join(rows))
    return path


def paint(root: Path, seed: int = 0) -> Path:
    """Every image under a folder gets pixels of its own, so that no two are copies."""
    rng = np.random.default_rng(seed)
    for path in sorted(root.rglob("*")):
        if path.is_file() and is_image(path.name):
            Image.fromarray(rng.integers(0, 256, (IMAGE_SIDE, IMAGE_SIDE, 3), dtype=np.uint8)).save(path)
    return root


def photos(root: Path, count: int = 8, classes: tuple[str, ...] = ("cat", "dog"), seed: int = 0) -> Path:
    """A folder of class folders, with so many images each."""
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number}.jpg").touch()
    return paint(root, seed)
