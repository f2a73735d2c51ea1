"""The release script refuses what is not ready, in words, and tags what is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "release.py"
MAKEFILE = """\
check test types docs:
\t@test ! -e fail-$@
dist-check:
\t@mkdir -p dist && touch dist/narl-0.2.0.tar.gz dist/narl-0.2.0-py3-none-any.whl
"""


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *who, *arguments], cwd=folder, text=True, stderr=subprocess.STDOUT)


def commit(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Something")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that is ready for 0.2.0, with 0.1.0 released."""
    for variable in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{variable}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{variable}_EMAIL", "somebody@example.org")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path, Makefile=MAKEFILE, _dot_gitignore="dist/\n")
    git(tmp_path, "tag", "v0.1.0")
    (tmp_path / "src/narl").mkdir(parents=True)
    (tmp_path / "src/narl/_version.py").write_text('"""The version."""\n\n__version__ = "0.2.0"\n')
    commit(
        tmp_path,
        CITATION_dot_cff="cff-version: 1.2.0\nversion: 0.2.0\n",
        CHANGELOG_dot_md="# Changelog\n\n## 0.2.0 (2026-05-31)\n- Something new.\n\n## 0.1.0 (2026-01-01)\n- All.\n",
    )
    return tmp_path


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True)


def refusal(folder: Path, *arguments: str) -> str:
    """What the script says instead of releasing."""
    done = release(folder, *arguments)
    assert done.returncode == 1
    assert done.stderr.count("not released: ") == 1, done.stderr
    assert "v0.2.0" not in git(folder, "tag").split() or "the tag v0.2.0 exists" in done.stderr
    return done.stderr


@pytest.fixture
def origin(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the repository would be pushed to."""
    made = tmp_path_factory.mktemp("origin")
    git(made, "init", "--quiet", "--bare", "--initial-branch", "main")
    git(tree, "remote", "add", "origin", str(made))
    return made


def test_what_is_ready_is_built_and_tagged_here_only(tree: Path, origin: Path) -> None:
    done = release(tree, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert git(tree, "tag", "--list", "--format=%(contents)", "v0.2.0").strip() == "narl 0.2.0\n\n- Something new."
    assert "git push --atomic origin main v0.2.0" in done.stdout
    assert "twine upload dist/narl-0.2.0.tar.gz" in done.stdout
    assert git(origin, "for-each-ref") == ""


def test_it_is_published_only_if_asked_to(
    tree: Path, origin: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path_factory.mktemp("modules")
    (modules / "twine.py").write_text("import sys; print('twine', *sys.argv[1:])\n")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    done = release(tree, "0.2.0", "--publish")
    assert done.returncode == 0, done.stderr
    assert "twine upload dist/narl-0.2.0.tar.gz dist/narl-0.2.0-py3-none-any.whl" in done.stdout
    assert {"refs/heads/main", "refs/tags/v0.2.0"} == set(git(origin, "for-each-ref", "--format=%(refname)").split())


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "0.2.0rc1", "0.02.0", "next"])
def test_what_is_no_version(tree: Path, version: str) -> None:
    assert "is no version: give three numbers" in refusal(tree, version)


@pytest.mark.parametrize("version", ["0.0.9", "0.1.0"])
def test_versions_rise(tree: Path, version: str) -> None:
    said = refusal(tree, version)
    assert "does not come after 0.1.0" in said or "the tag v0.1.0 exists" in said


def test_a_tag_that_exists(tree: Path) -> None:
    git(tree, "tag", "v0.2.0")
    assert "the tag v0.2.0 exists" in refusal(tree, "0.2.0")


def test_another_branch(tree: Path) -> None:
    git(tree, "switch", "--quiet", "--create", "idea")
    assert "made on main, this is idea" in refusal(tree, "0.2.0")


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.txt"])
def test_something_that_is_not_committed(tree: Path, name: str) -> None:
    with (tree / name).open("a") as file:
        file.write("more\n")
    said = refusal(tree, "0.2.0")
    assert "not committed" in said
    assert name in said


def test_a_version_that_the_tree_does_not_have(tree: Path) -> None:
    assert "_version.py is of another version" in refusal(tree, "0.3.0")
    (tree / "src/narl/_version.py").write_text('__version__ = "0.3.0"\n')
    commit(tree)
    assert "CITATION.cff is of another version" in refusal(tree, "0.3.0")


@pytest.mark.parametrize(
    "text", ["## Unreleased\n- New.\n", "## 0.2.0\n- New.\n", "## 0.2.0 (2026-05-31)\n\n## 0.1.0\n- A.\n"]
)
def test_a_changelog_that_says_nothing(tree: Path, text: str) -> None:
    commit(tree, CHANGELOG_dot_md=text)
    assert "CHANGELOG.md has no section" in refusal(tree, "0.2.0")


@pytest.mark.parametrize("check", ["check", "test", "types", "docs"])
def test_a_check_that_fails(tree: Path, check: str) -> None:
    commit(tree, **{f"fail-{check}": ""})
    assert f"make {check} has failed" in refusal(tree, "0.2.0")


def test_checks_that_change_the_tree(tree: Path) -> None:
    commit(tree, Makefile=MAKEFILE.replace("test ! -e fail-$@", "touch left-behind"))
    assert "left-behind" in refusal(tree, "0.2.0")


def test_something_else_in_dist(tree: Path) -> None:
    commit(tree, Makefile=MAKEFILE + "\t@touch dist/narl-0.1.0.tar.gz\n")
    assert "dist/ should hold the archive and the wheel of 0.2.0" in refusal(tree, "0.2.0")
