"""The test set-up finds a Chromium, or installs Debian's; without one, nothing passes in silence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from found_browser import chromium

SCRIPT = Path(__file__).parent.parent / "scripts" / "chromium.sh"
APT = """#!/bin/sh
echo "$*" >> {calls}
case "$*" in *install*) {then};; esac
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell's")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Programs that a bare machine has; its user is root."""
    for name in ("sh", "mktemp", "rm", "tail", "chmod", "echo"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    program(tmp_path / "id", "echo 0")
    return tmp_path


def program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def apt(machine: Path, then: str) -> None:
    (machine / "apt-get").write_text(APT.format(calls=machine / "calls", then=then))
    (machine / "apt-get").chmod(0o755)


def said(machine: Path, **environment: str) -> tuple[str, str]:
    """What the script prints, and what it tells people."""
    ended = subprocess.run(
        ["sh", str(SCRIPT)],
        env={"PATH": str(machine), "TMPDIR": str(machine), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stdout.strip(), ended.stderr


def test_one_that_is_there_is_taken(machine: Path) -> None:
    apt(machine, "exit 1")
    program(machine / "google-chrome", "true")
    assert said(machine) == (str(machine / "google-chrome"), "")
    program(machine / "chromium", "true")
    assert said(machine)[0] == str(machine / "chromium")
    assert said(machine, CHROMIUM="/opt/mine") == ("/opt/mine", "")
    assert not (machine / "calls").exists()


def test_where_there_is_none_debians_is_installed(machine: Path) -> None:
    apt(machine, f"echo '#!/bin/sh' > {machine / 'chromium'}; chmod +x {machine / 'chromium'}")
    found, told = said(machine)
    assert found == str(machine / "chromium")
    assert "Installing Debian's chromium" in told
    update, install = (machine / "calls").read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith(" chromium")


def test_what_cannot_be_installed_is_said(machine: Path) -> None:
    assert said(machine) == ("", "")  # no apt-get
    apt(machine, "echo 'E: Unable to locate package chromium'; exit 100")
    found, told = said(machine)
    assert found == ""
    assert "Unable to locate package" in told
    program(machine / "id", "echo 1000")
    assert said(machine) == ("", ""), "only root installs"
    assert said(machine, NARL_NO_BROWSER="1") == ("", "")


def test_without_one_the_tests_fail_unless_they_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("PATH", str(tmp_path)), ("CHROMIUM", ""), ("NARL_NO_BROWSER", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception, match="no Chromium was found"):
        chromium()
    monkeypatch.setenv("NARL_NO_BROWSER", "1")
    with pytest.raises(pytest.skip.Exception, match="leaves out"):
        chromium()
    monkeypatch.delenv("NARL_NO_BROWSER")
    monkeypatch.setenv("CHROMIUM", "/opt/mine")
    assert chromium() == "/opt/mine"
