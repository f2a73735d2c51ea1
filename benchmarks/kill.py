"""Kill a run at random moments, resume it, and compare with the run that was never stopped.

    python benchmarks/kill.py [--kills 20] [--seed 0] [--method A-GCE]

Each time: start `narl train`, SIGKILL it at a moment drawn uniformly from the length of the whole run, then go on with
`narl train --resume` (or begin again where the run had not yet begun). At the end metrics.jsonl, summary.json, the
model, the adjusters and the samples' record must be byte for byte those of the uninterrupted run, and at no moment may
the folder be unreadable. Exit status 1 if one is not.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SAME = ("metrics.jsonl", "summary.json", "model.safetensors", "samples.npy", "samples.json")


def write_data(path: Path) -> None:
    """A table with two classes in rings and 30 % wrong labels."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 4)).astype(np.float32)
    true = (np.linalg.norm(points[:, :2], axis=1) > 1.2).astype(np.int64)
    given = np.where(rng.random(len(true)) < 0.3, 1 - true, true)
    np.savez(path, x=points, y=given, y_true=true)


def command(data: Path, run: Path, method: str) -> list[str]:
    """Begin the run."""
    clean = ["--clean", "60"] if method.startswith("A-") else []
    return [sys.executable, "-m", "narl", "train", str(data), "--out", str(run), *clean, "--method", method,
            "--epochs", "12", "--seed", "3", "--no-tensorboard"]  # fmt: skip


def finish(data: Path, run: Path, method: str) -> None:
    """Go on with a run that was killed; begin it again where it had not begun."""
    began = (run / "config.json").exists()
    again = [sys.executable, "-m", "narl", "train", "--resume", str(run), "--no-tensorboard"]
    subprocess.run(again if began else command(data, run, method), check=True, capture_output=True)


def differing(reference: Path, run: Path) -> list[str]:
    """Files that are not byte for byte the same."""
    adjusters = tuple(path.name for path in sorted(reference.glob("adjuster-*.safetensors")))
    return [
        name
        for name in SAME + adjusters
        if not (run / name).exists() or (reference / name).read_bytes() != (run / name).read_bytes()
    ]


def main() -> None:
    """Do it, and say what came out as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="A-GCE")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data, reference = Path(folder, "rings.npz"), Path(folder, "reference")
        write_data(data)
        began = time.monotonic()
        subprocess.run(command(data, reference, options.method), check=True, capture_output=True)
        length = time.monotonic() - began
        for number in range(options.kills):
            run = Path(folder, f"run-{number}")
            moment = draw.uniform(0, length)
            process = subprocess.Popen(
                command(data, run, options.method), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
            process.wait()
            done = len((run / "metrics.jsonl").read_bytes().splitlines()) if (run / "metrics.jsonl").exists() else 0
            finish(data, run, options.method)
            rows.append({"moment": round(moment, 2), "epochs_before": done, "differing": differing(reference, run)})
            print(json.dumps(rows[-1]), flush=True)
    bad = [row for row in rows if row["differing"]]
    print(json.dumps({"method": options.method, "run_seconds": round(length, 1), "kills": len(rows), "bad": len(bad)}))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
