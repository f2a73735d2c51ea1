"""The examples of plain PyTorch run, and narl costs them as many lines as they say."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def code_of(name: str) -> list[str]:
    """Lines of code, without the docstring and empty ones."""
    text = (EXAMPLES / name).read_text()
    return [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("name", "added", "removed"), [("pytorch_adjusted_loss.py", 2, 1), ("pytorch_meta_step.py", 5, 5)]
)
def test_lines(name: str, added: int, removed: int) -> None:
    compared = list(difflib.ndiff(code_of("pytorch_plain.py"), code_of(name)))
    new = [line[2:] for line in compared if line.startswith("+ ")]
    assert len(new) == added
    assert sum(line.startswith("- ") for line in compared) == removed
    assert all(line.endswith("# +") for line in new)
    assert sum(line.endswith("# +") for line in code_of(name)) == added


def test_they_run_and_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in ("pytorch_plain.py", "pytorch_meta_step.py", "pytorch_adjusted_loss.py"):
        with contextlib.redirect_stdout(io.StringIO()) as said, torch.random.fork_rng(devices=[]):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        match = re.fullmatch(r"test accuracy ([\d.]+)%\n", said.getvalue())
        assert match is not None, said.getvalue()
        found[name] = float(match[1])
    assert found["pytorch_meta_step.py"] > found["pytorch_plain.py"] > 50
    assert (tmp_path / "gce.safetensors").exists()
