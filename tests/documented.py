"""The code of the documentation's pages, and the programs beside them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    """The Python code blocks of a page of ``docs/``, in order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def example(name: str) -> Any:
    """A program of ``examples/``, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    code: str
    run: bool  # marked <!-- run -->
    reason: str  # of <!-- not run: reason -->, or nothing


def pages() -> list[str]:
    """The pages of ``docs/``."""
    return sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def all_blocks(page: str) -> list[Block]:
    """Every block of a page of ``docs/``, in order, with what is said about it in a comment before it."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"(?:<!-- (run|not run: [^\n]+) -->\n)?^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [
        Block(language, code, mark == "run", mark.removeprefix("not run: ") if mark != "run" else "")
        for mark, language, code in found
    ]


def commands(block: Block) -> list[str]:
    """The lines of a block for the shell, without comments, continued lines as one."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"\s+# .*|^#.*", "", line).strip() for line in lines) if line]
