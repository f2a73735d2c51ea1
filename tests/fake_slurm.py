"""Slurm's commands as far as submitit needs them, on this machine: ``python fake_slurm.py COMMAND ARGUMENT …``.

What is known of the jobs lies in the folder ``$FAKE_SLURM``: a file ``alive/ID`` or ``ended/ID`` (its state) a job.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

_COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol")


def install(root: Path) -> dict[str, str]:
    """Put the commands into a folder; returns the environment that finds them."""
    (root / "bin").mkdir(parents=True)
    for name in _COMMANDS:
        script = root / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" {name} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    for folder in ("alive", "ended", "again"):
        (root / folder).mkdir()
    # Trainings are found beside this file.
    return {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "FAKE_SLURM": str(root),
        "PYTHONPATH": str(Path(__file__).parent),
    }


def _sbatch(root: Path, file: str) -> None:
    if (root / "refusal").exists():
        sys.exit((root / "refusal").read_text())
    text = Path(file).read_text()
    (root / "submission").write_text(text)
    array = re.search(r"--array=0-(\d+)%", text)
    job = 100 + len({path.name.partition("_")[0] for path in root.glob("*/[0-9]*")})
    for task in [f"_{number}" for number in range(int(array[1]) + 1)] if array else [""]:
        (root / "alive" / f"{job}{task}").touch()
        command = [sys.executable, "-S", __file__, "run", file, f"{job}{task}"]
        subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sys.stdout.write(f"Submitted batch job {job}\n")


def _run(root: Path, file: str, job_id: str) -> None:
    job, _, task = job_id.partition("_")
    numbers = {"SLURM_JOB_ID": job, "SLURM_PROCID": "0"}
    numbers |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": task} if task else {}
    code = subprocess.run(["bash", file], env={**os.environ, **numbers}).returncode
    while (root / "again" / job_id).exists():
        (root / "again" / job_id).unlink()
        code = subprocess.run(["bash", file], env={**os.environ, **numbers}).returncode
    (root / "ended" / job_id).write_text("FAILED" if code else "COMPLETED")
    (root / "alive" / job_id).unlink()


def _srun(root: Path, *arguments: str) -> None:
    given = list(arguments)
    for stream, flag in ((1, "--output"), (2, "--error")):
        place = given.index(flag)
        path = given[place + 1].replace("%t", "0").replace("%j", os.environ["SLURM_JOB_ID"])
        path = path.replace("%A", os.environ["SLURM_JOB_ID"]).replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", ""))
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        del given[place : place + 2]
    command = [argument for argument in given if argument != "--unbuffered"]
    os.execvp(command[0], command)


def _squeue(root: Path, *arguments: str) -> None:
    sys.stdout.write("".join(f"{path.name}\n" for path in (root / "alive").iterdir()))


def _sacct(root: Path, *arguments: str) -> None:
    sys.stdout.write("JobID|State|NodeList\n")
    sys.stdout.write("".join(f"{path.name}|RUNNING|here\n" for path in (root / "alive").iterdir()))
    sys.stdout.write("".join(f"{path.name}|{path.read_text()}|here\n" for path in (root / "ended").iterdir()))


def _scontrol(root: Path, requeue: str, job_id: str) -> None:
    (root / "again" / job_id).touch()


if __name__ == "__main__":
    globals()[f"_{sys.argv[1]}"](Path(os.environ["FAKE_SLURM"]), *sys.argv[2:])
