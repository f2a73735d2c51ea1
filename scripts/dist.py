"""Builds narl's source archive and wheel, and looks into them.

python scripts/dist.py [--out dist]

What is built is what git knows of or would take, in a folder of its own, so that nothing that an earlier build left
behind gets in. The wheel is built from the source archive, and once more from the tree: both must hold the same files.
Needs the package ``build``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_PACKED = {"README.md"}  # for those who read the code


def sources(root: Path) -> list[Path]:
    """Files that git has in its index or would take, relative to ``root``."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, text=True)
    return sorted({Path(name) for name in listed.split("\0") if name and (root / name).is_file()})


def expected_files(root: Path) -> set[str]:
    """What of the package must be in the wheel: every module, and every other file that is not only for readers."""
    package = Path("src/narl")
    return {
        path.relative_to("src").as_posix()
        for path in sources(root)
        if package in path.parents and path.name not in NOT_PACKED
    }


def version(root: Path) -> str:
    """The version that the tree says it has."""
    found = re.search(r'__version__ = "([^"]+)"', (root / "src/narl/_version.py").read_text())
    if found is None:
        raise SystemExit('src/narl/_version.py: no line __version__ = "…"')
    return found[1]


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def faults(files: dict[str, bytes], expected: set[str], of_version: str) -> list[str]:
    """What is wrong with a wheel's files: one sentence each, none if all is well."""
    about = f"narl-{of_version}.dist-info/"
    inside = {name for name in files if not name.startswith(about)}
    found = [f"{name} is missing: name it in pyproject.toml, package-data" for name in sorted(expected - inside)]
    found += [f"{name} does not belong into the wheel" for name in sorted(inside - expected)]
    found += [
        f"{about}{name} is missing"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
        if about + name not in files
    ]
    if about + "METADATA" in files:
        metadata = Parser().parsestr(files[about + "METADATA"].decode())
        if metadata["Version"] != of_version:
            found.append(f"its version is {metadata['Version']}, the tree's is {of_version}")
        found += [f"its metadata has no {key}" for key in ("Summary", "Requires-Python") if not metadata[key]]
    return found


def archive_faults(archive: Path) -> list[str]:
    """What is wrong with a source archive."""
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt"}
    found = [f"{name} is missing: name it in MANIFEST.in" for name in sorted(wanted - names)]
    strangers = ("tests/", "docs/", "results/", "benchmarks/", "notebooks/", "scripts/", "examples/")
    return found + [f"{name} does not belong into it" for name in sorted(names) if name.startswith(strangers)]


def build(root: Path, out: Path) -> tuple[Path, Path]:
    """Build both into ``out``, which is emptied first.

    Returns:
        The source archive and the wheel.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="narl-dist-") as scratch:
        tree = Path(scratch, "tree")
        for path in sources(root):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, tree / path)
        _run_build("--outdir", out, tree)  # the archive, then the wheel from the archive
        _run_build("--wheel", "--outdir", Path(scratch, "direct"), tree)
        archive, wheel = next(out.glob("*.tar.gz")), next(out.glob("*.whl"))
        direct = contents(next(Path(scratch, "direct").glob("*.whl")))
    built = contents(wheel)
    of_version = version(root)
    found = [f"{wheel.name}: {fault}" for fault in faults(built, expected_files(root), of_version)]
    found += [f"{archive.name}: {fault}" for fault in archive_faults(archive)]
    found += [
        f"{name} is not the same in the wheels from the archive and from the tree"
        for name in sorted(built.keys() | direct.keys())
        if built.get(name) != direct.get(name)
    ]
    if found:
        shutil.rmtree(out)
        raise SystemExit("\n".join(found))
    return archive, wheel


def _run_build(*arguments: str | Path) -> None:
    # A fixed date: the same tree gives the same bytes.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1735689600"}
    command = [sys.executable, "-m", "build", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\nthe build has failed")


def main() -> None:
    """Build, check and say what there is."""
    parser = argparse.ArgumentParser(description="Build narl's source archive and wheel, and look into them.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for both, emptied first")
    for made in build(ROOT, parser.parse_args().out):
        print(f"{made}: {made.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
