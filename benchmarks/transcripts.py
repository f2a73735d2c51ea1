"""Run the command lines that docs/train.md shows, and put what they really print into it.

    python benchmarks/transcripts.py DATA

DATA holds cifar-10-batches-py (the published python version), cifar10n-labels.npz, letter.npz, and trec/train.jsonl and
trec/test.jsonl. The folder of digits is made here from scikit-learn's. Everything runs in a scratch folder, on the CPU.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parent.parent / "docs" / "train.md"
SESSIONS = {
    "digits": [
        "narl train digits --clean digits-checked --test digits-test --model convnet --out run-digits",
        "narl predict run-digits digits-test --out predictions.csv",
    ],
    "letter": [
        "narl noise letter.npz --kind symmetric --rate 0.4 --out letter-noisy.npz",
        "narl train letter-noisy.npz --clean 260 --test 0.2 --epochs 10 --out run-letter",
    ],
    "trec": [
        "narl train trec/train.jsonl --label weak_label --true-label label --test trec/test.jsonl --drop-overlap "
        "--clean 180 --loss polysoft --epochs 10 --out run-trec",
    ],
    "cifar10n": [
        "narl train cifar-10-batches-py --labels cifar10n-labels.npz:worse_label --limit 5000 --clean 500 "
        "--model convnet --epochs 6 --out run-cifar10n",
    ],
}


def write_digits(folder: Path) -> None:
    """Class folders of PNG files: 1,200 with 40 % pair noise, 100 checked ones, the rest to test on."""
    from PIL import Image

    from narl.bench import digits

    task = digits.load("pair", seed=0)
    parts = {
        "digits": (task.images, task.given),
        "digits-checked": (task.clean_images, task.clean_labels),
        "digits-test": (task.test_images, task.test_labels),
    }
    for name, (images, labels) in parts.items():
        for number, (image, label) in enumerate(zip(images.numpy(), labels.tolist(), strict=True)):
            path = folder / name / f"digit {label}" / f"{number:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image[0] * 255).astype(np.uint8)).save(path)


def run(commands: list[str], folder: Path) -> str:
    """The commands and what they print, as on a terminal that is no terminal."""
    shown = []
    for command in commands:
        arguments = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{command}\n{done.stdout}")
        shown.append(f"$ {_wrapped(command)}\n{_shortened(done.stdout.rstrip())}")
    return "\n".join(shown)


def _shortened(output: str) -> str:
    """Without the middle of a long run."""
    lines = output.splitlines()
    epochs = [number for number, line in enumerate(lines) if re.match(r"\S+  epoch \d+/", line)]
    if len(epochs) <= 12:
        return output
    return "\n".join([*lines[: epochs[3]], "[…]", *lines[epochs[-3] :]])


def _wrapped(command: str) -> str:
    """In lines of at most 100 characters, broken between flags."""
    lines = [""]
    for part in re.split(r" (?=--)", command):
        if len(lines[-1]) + len(part) > 98:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def main() -> None:
    """Fill the page's blocks."""
    data = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("cifar-10-batches-py", "trec"):
            shutil.copytree(data / name, folder / name)
        for name in ("letter.npz", "cifar10n-labels.npz"):
            shutil.copy(data / name, folder / name)
        write_digits(folder)
        for name, commands in SESSIONS.items():
            print(name, flush=True)
            block = f"<!-- {name} -->\n```console\n{run(commands, folder)}\n```\n<!-- end -->"
            page = PAGE.read_text()
            PAGE.write_text(re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _: block, page, count=1, flags=re.DOTALL))  # noqa: B023


if __name__ == "__main__":
    main()
