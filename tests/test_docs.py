"""The documentation's pages: their code runs, their commands exist, and the site has all of them."""

from __future__ import annotations

import csv
import importlib
import inspect
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from command_line import done
from documented import ROOT, Block, all_blocks, commands, pages
from narl import losses
from narl.cli import _parser
from test_public_names import ROOMS

# Pages whose blocks a test of their own runs, with what they need.
TESTED_IN = {
    "lightning.md": "test_lightning.py",
    "methods.md": "test_methods_own.py",
    "recipes.md": "test_recipes.py",
    "sklearn.md": "test_sklearn.py",
    "transformers.md": "test_transformers.py",
}
WITH_CODE = [
    page
    for page in pages()
    if page not in TESTED_IN and any(block.language == "python" or block.run for block in all_blocks(page))
]
FROM_OUTSIDE = ("taylor_ce",)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory of one's own; losses and modules that come from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(losses.names())
    yield tmp_path
    for name in set(losses.names()) - known:
        losses.unregister(name)
    for name in FROM_OUTSIDE:
        sys.modules.pop(name, None)


def write_table(path: Path) -> None:
    """Two classes, of two numbers."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["width", "height", "label"])
        for _ in range(90):
            width, height = draw.random(), draw.random()
            table.writerow([f"{width:.3f}", f"{height:.3f}", "wide" if width > height else "high"])


def prepared(page: str, folder: Path) -> dict[str, Any]:
    """What a page takes for granted: names in its code, files in its commands."""
    if page == "add-a-loss.md":
        write_table(folder / "data.csv")
    if page not in ("audit.md", "report.md"):
        return {}
    write_table(folder / "data.csv")
    done("train", "data.csv", "--clean", 20, "--epochs", 2, "--out", "run", "--no-tensorboard")
    labels = torch.arange(40) % 2
    logits = 2 * torch.nn.functional.one_hot(labels, 2) + torch.randn(40, 2)
    return {"logits": logits, "labels": labels, "clean_logits": logits[:20], "clean_labels": labels[:20]}


def run_python(block: Block, names: dict[str, Any], folder: Path) -> None:
    """In the names of the blocks before; a block that is a file by its first line, as that module."""
    file = re.match(r"# (\w+)\.py\n", block.code)
    if file is None:
        exec(compile(block.code, "a block of the page", "exec"), names)
        return
    (folder / f"{file[1]}.py").write_text(block.code)
    names.update(vars(importlib.import_module(file[1])))


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_and_commands_run(page: str, folder: Path) -> None:
    names = prepared(page, folder) | {"__name__": "page"}
    for block in all_blocks(page):
        if block.language == "python" and not block.reason:
            run_python(block, names, folder)
        for command in commands(block) if block.run else ():
            first, *arguments = shlex.split(command)
            if first == "narl":
                done(*arguments)
            else:
                subprocess.run(["bash", "-ec", command], check=True, cwd=folder)


@pytest.mark.parametrize("page", pages())
def test_every_block_can_be_read(page: str) -> None:
    for block in all_blocks(page):
        if block.language == "python":
            compile(block.code, page, "exec")
        if block.language == "sh":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)


def test_pages_are_tested_where_it_is_said() -> None:
    for page, test in TESTED_IN.items():
        if (ROOT / "docs" / page).exists():
            assert page in (ROOT / "tests" / test).read_text()


@pytest.mark.parametrize("page", ["../README.md", *pages()])
def test_commands_and_their_flags_exist(page: str) -> None:
    shown = [command for block in all_blocks(page) if block.language == "sh" for command in commands(block)]
    shown += re.findall(r"^\$ (narl (?:.*\\\n)*.*)", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    for command in shown:
        called = re.search(r"(?:^|-m )narl (.*)", command.replace("\\\n", " "), re.DOTALL)
        if called is not None:
            check_command(shlex.split(called[1].replace("[", "").replace("]", "")))


def check_command(words: list[str]) -> None:
    """That a command line names a command that there is, and flags that it has."""
    command: Any = _parser()
    while getattr(command, "commands", None):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= known | {"--help", "-h"}, (command.name, used - known)


def nav_of(part: Any) -> list[str]:
    """The pages in a part of mkdocs.yml's nav, in order."""
    if isinstance(part, str):
        return [part]
    inside = part.values() if isinstance(part, dict) else part
    return [page for one in inside for page in nav_of(one)]


@pytest.fixture
def site_links(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "website")
    return importlib.import_module("site_links")


def test_the_site_has_every_page_once(site_links: ModuleType) -> None:
    found = nav_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(found) == sorted([*pages(), *site_links.ELSEWHERE])


def test_links_lead_on_the_site_where_they_lead_in_the_repository(site_links: ModuleType) -> None:
    everywhere = {*pages(), *site_links.ELSEWHERE}
    for page in everywhere:
        source = ROOT / site_links.source_of(page)
        text, copied = site_links.on_the_site(page, source.read_text())
        before, after = (
            re.findall(r"\]\(([^)\s]+)\)", site_links.FENCE.sub("", t)) for t in (source.read_text(), text)
        )
        for old, new in zip(before, after, strict=True):
            if "://" in old or old.startswith("#"):
                assert new == old
                continue
            place = str(((ROOT / "docs" / page).parent / new.split("#")[0]).resolve().relative_to(ROOT / "docs"))
            target = (source.parent / old.split("#")[0]).resolve()
            assert target == (ROOT / site_links.source_of(place)).resolve() or place.removeprefix("files/") in copied


def test_code_is_no_link(site_links: ModuleType) -> None:
    text = "[a](../CONTRIBUTING.md)\n```python\nx[0](../CONTRIBUTING.md)\n```\n[b](../examples/taylor_ce.py#L3) [c](#d)"
    moved, copied = site_links.on_the_site("train.md", text)
    assert moved == (
        "[a](contributing.md)\n```python\nx[0](../CONTRIBUTING.md)\n```\n[b](files/examples/taylor_ce.py#L3) [c](#d)"
    )
    assert copied == ["examples/taylor_ce.py"]


def test_docstrings_become_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=object))
    monkeypatch.syspath_prepend(ROOT / "website")
    as_markdown = importlib.import_module("docstrings").as_markdown
    del sys.modules["docstrings"]
    text = "One :func:`mae`.\n\n.. math:: a\n          + b\n\nMore :math:`x\ny`.\n\nExample:\n    >>> 1\n    1"
    assert as_markdown(text) == "One `mae`.\n\n$$\na\n+ b\n$$\n\nMore $x y$.\n\nExamples:\n    >>> 1\n    1"
    for name in losses.names():
        assert "math::" not in as_markdown(inspect.getdoc(losses.get(name).function) or "")


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    shown: list[str] = []
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for name, options in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", page.read_text(), re.MULTILINE):
            heading = re.search(r"heading: (\S+)", options)
            shown.append(heading[1] if heading else name)
    assert len(shown) == len(set(shown))
    listed = [named(name) for name in shown if not name.startswith(("narl.integrations.tr", "narl.integrations.li"))]
    for room, names in ROOMS.items():
        for name in names:
            value = named(f"{room}.{name}")
            if not inspect.ismodule(value) and not isinstance(value, str):
                times = sum(value is other for other in listed) or shown.count(f"{room}.{name}")
                assert times == 1, f"{room}.{name}"


def named(path: str) -> object:
    """An object by its path."""
    room, _, name = path.rpartition(".")
    return getattr(importlib.import_module(room), name)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_what_is_made_from_results_is_there(page: Path) -> None:
    assert re.findall(r"<!-- ([\w-]+) -->\s*<!-- end -->", page.read_text()) == []
