"""Runs the notebooks, each in an empty folder, and keeps what they show.

python scripts/notebooks.py [notebooks/digits.ipynb …]

Needs the packages ``nbclient`` and ``ipykernel``. A cell that fails, or writes to standard error, stops it.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def run(path: Path) -> None:
    """Run all cells of a notebook and write it back with their outputs, without whatever differs by machine."""
    # Whether they are installed makes no difference to type checkers.
    nbformat: Any = importlib.import_module("nbformat")
    client: Any = importlib.import_module("nbclient").NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client(notebook, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise SystemExit(f"{path.name}, cell {number} writes to standard error:\n{output.text}")
            if "metadata" in output:
                output.metadata = {}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    print(f"{path.name}: {len(notebook.cells)} cells, {path.stat().st_size // 1000} kB")


def main() -> None:
    """Run those that are named, or all."""
    named = [Path(name) for name in sys.argv[1:]]
    for path in named or sorted((ROOT / "notebooks").glob("*.ipynb")):
        run(path)


if __name__ == "__main__":
    main()
