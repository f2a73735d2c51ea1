"""The notebooks are valid, show what they made, name nothing of the machine they ran on, and run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == kind]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["digits", "image-folder", "own-loop"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_notebook_that_has_been_run(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        compile("".join(cell["source"]), path.name, "exec")  # plain Python, without magic
    outputs = [output for cell in code for output in cell["outputs"]]
    fields = {"stream": {"name", "text"}, "display_data": {"data", "metadata"}}
    assert all(output.keys() - {"output_type"} == fields[output["output_type"]] for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert sum(output["output_type"] == "stream" for output in outputs) >= 3
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_names_nothing_of_a_machine(path: Path) -> None:
    texts = ["".join(cell["source"]) for kind in ("code", "markdown") for cell in cells(path, kind)]
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            texts += ["".join(output.get("text", "")), "".join(output.get("data", {}).get("text/plain", ""))]
    assert not re.search(
        r"(?<!\w)/(home|root|tmp|work|Users|usr|opt|var)/|C:\\|0x[0-9a-f]{6}|localhost", "\n".join(texts)
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_names_in_the_repository_is_there(path: Path) -> None:
    named = re.findall(r"`(docs/[\w.-]+)`", "".join("".join(cell["source"]) for cell in cells(path, "markdown")))
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path, "code"):
        exec(compile("".join(cell["source"]), path.name, "exec"), names)
