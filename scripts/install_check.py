"""Installs narl's wheel into clean environments, with no extra and with each extra alone, and uses it there.

python scripts/install_check.py dist/narl-*.whl [--extras figures tables] [--out results/install.json]

One environment gets narl and what it needs. Every extra gets an environment of its own that sees that one and nothing
else, so that torch is unpacked once, and no extra sees another one's packages. In each, narl is imported with warnings
as errors, what the extra is for is done once, and ``narl demo`` trains for an epoch, all of it outside the repository.
Where the extra is missing, the same must be refused with the command that installs it.

``vision`` is not tried: torchvision cannot be imported beside torch's CPU build, and breaks lightning, torchmetrics and
transformers once it is installed there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What an extra is for, in a few lines that fail without it.
USES = {
    "figures": """
from narl.bench.figures import drawing
with drawing.style():
    drawing.canvas(3, 2).savefig("empty.svg")
""",
    "report": """
import numpy as np
from pathlib import Path
from narl import audit
from narl.audit.report import write_report
logits = np.random.default_rng(0).normal(size=(60, 3))
write_report(audit.from_logits(logits, logits.argmax(1)), "report.html")
assert Path("report.html").stat().st_size > 1e6
""",
    "review": """
from narl.audit.review.server import check_installed
check_installed()
import narl.audit.review.app
""",
    "tables": """
from pathlib import Path
from narl.cli.output import write_table
from narl.data.read import read
write_table(Path("t.parquet"), {"x": [0.5, 1.5, 2.5, 3.5], "label": ["a", "b", "a", "b"]})
assert len(read("t.parquet").labels) == 4
""",
    "hub": "from narl.data.read import read; read('hub:narl/none-such')",
    "transformers": "from narl.integrations.transformers import NoiseAwareTrainer",
    "lightning": "from narl.integrations.lightning import NoiseAwareCallback",
    "tensorboard": """
import subprocess, sys
from pathlib import Path
rows = "".join(f"{i % 7},{i % 3},{'ab'[i % 7 > 3]}\\n" for i in range(200))
Path("t.csv").write_text("x,z,label\\n" + rows)
subprocess.run([sys.executable, "-m", "narl", "train", "t.csv", "--epochs", "1", "--out", "run"], check=True)
assert Path("run/tensorboard").is_dir(), "ImportError: no TensorBoard files without narl[tensorboard]"
""",
    "sweep": "import narl.bench.slurm as slurm; from pathlib import Path; slurm._executor(Path('jobs'))",
}
# Two need what is not here, a network and a cluster; they must get as far as missing it.
AS_FAR_AS = {"hub": "narl/none-such", "sweep": "this machine has no sbatch"}
IMPORT = "import narl; narl.MetaStep, narl.AdjustedLoss, narl.NoiseAwareClassifier; print(narl.__file__)"


@dataclass(frozen=True)
class Seen:
    """What came of one extra: packages that it brought, megabytes on the disk, seconds, and the demo's words."""

    extra: str
    packages: int
    megabytes: int
    seconds: int
    demo: str


class Environment:
    """A virtual environment in ``place``, which may see the packages of another one."""

    def __init__(self, place: Path, below: Environment | None = None) -> None:
        venv.create(place, with_pip=True)
        self.place = place
        self.python = place / "bin" / "python"
        self.packages = next(place.glob("lib/python*/site-packages"))
        if below is not None:
            (self.packages / "below.pth").write_text(f"{below.packages}\n")

    def install(self, what: str) -> int:
        """Install ``what``, as pinned; the number of packages that this environment then has of its own."""
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "-c", ROOT / "constraints.txt", what], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{what} cannot be installed:\n{done.stderr[-3000:]}")
        return sum(not path.name.startswith(("pip-", "setuptools-")) for path in self.packages.glob("*.dist-info"))

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python in ``folder``, where nothing of the repository is in sight."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment["HF_HUB_OFFLINE"] = "1"
        return subprocess.run([self.python, *arguments], cwd=folder, env=environment, capture_output=True, text=True)

    def megabytes(self) -> int:
        """Space on the disk."""
        return sum(path.stat().st_size for path in self.place.rglob("*") if path.is_file()) // 1_000_000


def use(environment: Environment, extra: str, folder: Path) -> str:
    """Import narl, do what the extra is for and run the demonstration, or stop with what was said instead.

    Returns:
        The demonstration's last line.
    """
    folder.mkdir()
    imported = environment.run("-W", "error", "-c", IMPORT, folder=folder)
    if imported.returncode or not imported.stdout.startswith(str(environment.place.parent)):
        raise SystemExit(
            f"{extra}: narl cannot be imported from the wheel:\n{imported.stdout}{imported.stderr[-2000:]}"
        )
    if extra:
        used = environment.run("-c", USES[extra], folder=folder)
        as_far_as = extra in AS_FAR_AS and AS_FAR_AS[extra] in used.stderr and f"narl[{extra}]" not in used.stderr
        if used.returncode and not as_far_as:
            raise SystemExit(f"{extra}: {used.stderr[-2000:]}")
    demo = environment.run("-m", "narl", "demo", "--epochs", "1", folder=folder)
    if demo.returncode:
        raise SystemExit(f"{extra}: narl demo: {demo.stderr[-2000:]}")
    drawn = (folder / "narl-demo.png").is_file()
    if drawn is not (extra == "figures"):
        raise SystemExit(f"{extra}: {'a' if drawn else 'no'} picture, by matplotlib, which belongs to figures alone")
    return demo.stdout.strip().splitlines()[-1]


def refusals(environment: Environment, extras: list[str], folder: Path) -> None:
    """Without the extras, what they are for names the one that it needs."""
    folder.mkdir()
    for extra in extras:
        refused = environment.run("-c", USES[extra], folder=folder)
        if not refused.returncode or f"narl[{extra}]" not in refused.stderr:
            raise SystemExit(f"{extra}: without it, nobody says pip install 'narl[{extra}]':\n{refused.stderr[-2000:]}")


def check(wheel: Path, extras: list[str], scratch: Path) -> list[Seen]:
    """Try ``wheel`` without extras and with each of ``extras``; environments and files go to ``scratch``."""
    wheel = wheel.resolve()
    found: list[Seen] = []
    began = time.monotonic()
    alone = Environment(scratch / "alone")
    packages = alone.install(str(wheel))
    refusals(alone, extras, scratch / "refused")
    for extra in ["", *extras]:
        environment = alone
        if extra:
            began = time.monotonic()
            environment = Environment(scratch / extra, below=alone)
            packages = environment.install(f"{wheel}[{extra}]")
        said = use(environment, extra, scratch / f"work-{extra or 'alone'}")
        found.append(Seen(extra, packages, environment.megabytes(), round(time.monotonic() - began), said))
        print(f"{extra or 'no extra':12} {found[-1].packages:3} packages, {found[-1].megabytes} MB: {said}", flush=True)
        if extra:
            shutil.rmtree(environment.place)
    return found


def main() -> None:
    """Check the wheel that is named."""
    parser = argparse.ArgumentParser(description="Install narl's wheel with each extra alone, and use it.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extras", nargs="*", choices=USES, default=list(USES))
    parser.add_argument("--out", type=Path, help="where to write what was seen, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="narl-install-") as scratch:
        found = check(arguments.wheel, arguments.extras, Path(scratch))
    if arguments.out:
        about = {"wheel": arguments.wheel.name, "python": sys.version.split()[0], "platform": sys.platform}
        arguments.out.write_text(json.dumps({**about, "seen": [asdict(one) for one in found]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
