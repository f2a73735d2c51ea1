"""Makes a release, or says why not.

python scripts/release.py 0.2.0             # checks all, builds dist/, sets the tag v0.2.0 here
python scripts/release.py 0.2.0 --publish   # also pushes main and the tag, and uploads dist/ with twine

Before it, write the version into src/narl/_version.py and CITATION.cff, turn the changelog's "Unreleased" into
"0.2.0 (2026-05-31)", and commit. Nothing is changed but dist/ and the tag, and the tag comes last.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

CHECKS = ("check", "test", "types", "docs", "dist-check")  # targets of make, in this order; the last one builds, too
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class Refusal(Exception):
    """Why there is no release, and what to do about it."""


def number(version: str) -> tuple[int, int, int]:
    """A version as numbers.

    Raises:
        Refusal: it is none.
    """
    found = VERSION.fullmatch(version)
    if found is None:
        raise Refusal(f"{version!r} is no version: give three numbers, like 0.2.0")
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def refuse_unready(root: Path, version: str) -> None:
    """See that the tree is what is to be released: all that takes no time.

    Args:
        root: of the repository.
        version: to release.

    Raises:
        Refusal: it is not.
    """
    wanted = number(version)
    branch = _git(root, "branch", "--show-current")
    if branch != "main":
        raise Refusal(f"releases are made on main, this is {branch or 'no branch'}: git switch main")
    _refuse_dirty(root)
    tags = _git(root, "tag", "--list", "v*").split()
    if f"v{version}" in tags:
        raise Refusal(f"the tag v{version} exists: what is released is not changed, take the next version")
    released = [number(tag[1:]) for tag in tags if VERSION.fullmatch(tag[1:])]
    if released and wanted <= max(released):
        last = ".".join(map(str, max(released)))
        raise Refusal(f"{version} does not come after {last}, which is released: take a higher one")
    _refuse_without(root / "src/narl/_version.py", f'__version__ = "{version}"')
    _refuse_without(root / "CITATION.cff", f"version: {version}")
    if not notes(root, version):
        raise Refusal(
            f'CHANGELOG.md has no section "## {version} (YYYY-MM-DD)" with something in it: say what has changed'
        )


def notes(root: Path, version: str) -> str:
    """What the changelog says of a version; empty if it has no section with a date for it."""
    title = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n(.*?)(?=^## |\Z)"
    found = re.search(title, (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def run_checks(root: Path) -> None:
    """Run every check, and build.

    Raises:
        Refusal: one of them failed, or changed what is in git.
    """
    for check in CHECKS:
        print(f"make {check}", flush=True)
        if subprocess.run(["make", check], cwd=root).returncode:
            raise Refusal(f"make {check} has failed: see above")
    _refuse_dirty(root)


def built(root: Path, version: str) -> list[Path]:
    """The files to upload.

    Raises:
        Refusal: dist/ does not hold them, or something else.
    """
    wanted = [root / "dist" / f"narl-{version}.tar.gz", root / "dist" / f"narl-{version}-py3-none-any.whl"]
    there = sorted((root / "dist").glob("*"))
    if there != sorted(wanted):
        raise Refusal(f"dist/ should hold the archive and the wheel of {version}, it has {[p.name for p in there]}")
    return wanted


def release(root: Path, version: str, *, publish: bool) -> None:
    """Check, build and tag; push and upload if asked to.

    Raises:
        Refusal: something is not as it should be; nothing has been tagged.
    """
    refuse_unready(root, version)
    run_checks(root)
    files = built(root, version)
    _git(root, "tag", "--annotate", f"v{version}", "--message", f"narl {version}\n\n{notes(root, version)}")
    push = ["git", "push", "--atomic", "origin", "main", f"v{version}"]
    upload = ["twine", "upload", *(str(path.relative_to(root)) for path in files)]
    if not publish:
        print(f"v{version} is tagged, here only. To publish it:\n  {' '.join(push)}\n  {' '.join(upload)}")
        return
    for command in (push, [sys.executable, "-m", *upload]):
        if subprocess.run(command, cwd=root).returncode:
            raise Refusal(
                f"{' '.join(command)} has failed; the tag v{version} is set here: repeat from this command on"
            )


def _refuse_dirty(root: Path) -> None:
    if changed := _git(root, "status", "--porcelain"):
        raise Refusal(f"there is something that is not committed: commit it or take it away\n{changed}")


def _refuse_without(path: Path, line: str) -> None:
    if line not in path.read_text("utf-8").splitlines():
        raise Refusal(f"{path.name} is of another version: it needs the line {line}")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise Refusal(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> None:
    """Release the version that is named, of the repository that one stands in."""
    parser = argparse.ArgumentParser(description="Make a release of narl, or say why not.")
    parser.add_argument("version", help="three numbers, like 0.2.0")
    parser.add_argument("--publish", action="store_true", help="push main and the tag, and upload with twine")
    arguments = parser.parse_args()
    try:
        release(Path.cwd(), arguments.version, publish=arguments.publish)
    except Refusal as refusal:
        raise SystemExit(f"not released: {refusal}") from None


if __name__ == "__main__":
    main()
