"""What is built and how it is checked: the wheel's contents, importing, citation. The rest is ``make dist-check``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import narl

ROOT = Path(__file__).parent.parent


def script(name: str) -> ModuleType:
    """A file of ``scripts/``, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


dist = script("dist")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return read


def test_every_file_of_the_package_is_packed(project: dict[str, Any]) -> None:
    package = ROOT / "src" / "narl"
    patterns = project["tool"]["setuptools"]["package-data"]["narl"]
    packed = {path.relative_to(ROOT / "src").as_posix() for pattern in patterns for path in package.glob(pattern)}
    others = {name for name in dist.expected_files(ROOT) if not name.endswith(".py")}
    assert "narl/py.typed" in others
    assert others == packed


ABOUT = "narl-0.1.0.dist-info/"


def wheel_of(changes: dict[str, bytes | None]) -> dict[str, bytes]:
    """Files of a wheel with one module, and what is changed about them; None: taken away."""
    files: dict[str, bytes | None] = {"narl/one.py": b"", ABOUT + "RECORD": b"", ABOUT + "WHEEL": b""}
    files |= {ABOUT + "entry_points.txt": b"", ABOUT + "licenses/LICENSE": b""}
    files[ABOUT + "METADATA"] = b"Name: narl\nVersion: 0.1.0\nSummary: s\nRequires-Python: >=3.10\n"
    return {name: value for name, value in {**files, **changes}.items() if value is not None}


def test_a_good_wheel_has_no_faults() -> None:
    assert dist.faults(wheel_of({}), {"narl/one.py"}, "0.1.0") == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"narl/one.py": None}, "narl/one.py is missing: name it in pyproject.toml"),
        ({"tests/test_one.py": b""}, "tests/test_one.py does not belong into the wheel"),
        ({ABOUT + "entry_points.txt": None}, "entry_points.txt is missing"),
        ({ABOUT + "METADATA": b"Version: 0.0.9\nSummary: s\nRequires-Python: >=3.10"}, "version is 0.0.9"),
        ({ABOUT + "METADATA": b"Version: 0.1.0\nSummary: s\n"}, "no Requires-Python"),
    ],
)
def test_a_bad_wheel_is_seen(changes: dict[str, bytes | None], fault: str) -> None:
    (found,) = dist.faults(wheel_of(changes), {"narl/one.py"}, "0.1.0")
    assert fault in found


def test_every_extra_is_tried_alone_or_said_why_not(project: dict[str, Any]) -> None:
    check = script("install_check")
    extras = set(project["project"]["optional-dependencies"]) - {"dev", "docs"}
    assert set(check.USES) == extras - {"vision"}
    assert "``vision`` is not tried" in (check.__doc__ or "")


# What an extra brings for others to use.
FOR_OTHERS = {"accelerate": "transformers' Trainer", "torchvision": "timm", "pandas": "data frames that people give"}
CALLED = {"scikit-learn": "sklearn", "pillow": "PIL", "pyyaml": "yaml"}


def test_what_is_installed_is_used(project: dict[str, Any]) -> None:
    about = project["project"]
    extras = about["optional-dependencies"]
    wanted = [*about["dependencies"], *(one for name in extras if name not in ("dev", "docs") for one in extras[name])]
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in (Requirement(one).name for one in wanted):
        if name not in FOR_OTHERS:
            assert re.search(rf"(import|from) {CALLED.get(name, name)}\b|\"{name}\"", code), name


BELOW_3_11 = {"tomli", "exceptiongroup", "async-timeout", "pytz", "six"}  # nobody needs them later


def test_every_supported_python_has_one_version_of_everything(project: dict[str, Any]) -> None:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    supported = SpecifierSet(project["project"]["requires-python"])
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert version in supported
        found = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate({"python_version": version})]
        assert len(found) == len(set(found)), "two versions of one package"
        names = {pin.name for pin in pins} - (set() if version == "3.10" else BELOW_3_11)
        assert set(found) == names, version


def test_the_page_says_what_was_seen_of_every_extra() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    seen = json.loads((ROOT / "results" / "install.json").read_text())["seen"]
    assert {one["extra"] for one in seen} == {"", *script("install_check").USES}
    for one in seen[1:]:
        row = rf"^\| `{one['extra']}` \|.*\| {one['packages']} packages?, {one['megabytes']} MB \|$"
        assert re.search(row, page, re.MULTILINE), one["extra"]
    assert f"{seen[0]['packages']} packages and\n{seen[0]['megabytes']:,} MB" in page


@pytest.mark.slow
def test_the_wheel_installs_and_the_demonstration_runs(tmp_path: Path) -> None:
    _, wheel = dist.build(ROOT, tmp_path / "dist")
    (seen,) = script("install_check").check(wheel, [], tmp_path)
    assert "matplotlib is not installed" in seen.demo


def test_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == narl.__version__ == metadata.version("narl")
    assert citation["license"] == "Apache-2.0"
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Ding", "Shu", "Meng", "Xu"]
    assert paper["title"] in " ".join((ROOT / "README.md").read_text().split())


IMPORTING = """
import time
import torch
began = time.{clock}()
import narl
narl.MetaStep, narl.AdjustedLoss, narl.losses, narl.noise, narl.models
print(time.{clock}() - began)
"""


def test_importing_narl_adds_little_to_torch_and_warns_of_nothing() -> None:
    # Processor time, and the best of several: a busy machine takes longer by the clock. All the core's names are taken.
    command = [sys.executable, "-W", "error", "-c", IMPORTING.format(clock="process_time")]
    best = 9.0
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        best = min(best, float(done.stdout))
        if best <= 0.3:
            return
    pytest.fail(f"importing narl takes {best:.2f} s over torch's own import; 0.3 s are allowed")


def test_the_typed_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "typed.py"
    assert "# pyright: strict" in path.read_text()
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == "True"


def test_make_targets_are_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert targets == set(phony[1].split())
    assert all(re.search(rf"^{target}:.*## \S", makefile, re.MULTILINE) for target in targets)
