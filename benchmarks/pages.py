"""Put the measured tables into docs/cost.md.

python benchmarks/pages.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from narl.bench import cost
from narl.bench.tables import Table

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "cost.md", ROOT / "results"
PARTS = {
    "ce": "cross entropy on given logits",
    "adjusted": "adjuster, loss and bookkeeping on given logits",
    "meta": "the adjuster's part of a meta iteration",
    "plain_step": "plain step of a linear classifier",
    "step": "its step with the adjusted loss",
    "meta_step": "its meta iteration",
}


def cost_tables() -> list[Table]:
    """Of ``results/cost-*.json``."""
    return cost.tables(cost.read(RESULTS))


def growth_tables() -> list[Table]:
    """Of ``results/growth-cpu.json``: milliseconds at each size, and exponents."""
    found = json.loads((RESULTS / "growth-cpu.json").read_text())
    return [_growth(axis) for axis in found["growth"]]


def _growth(axis: dict[str, Any]) -> Table:
    sizes = [f"{size:,}" for size in axis["sizes"]]
    lines = [
        (words, *(f"{ms:.2f}" for ms in axis[part]["ms"]), f"{axis[part]['exponent']:.2f}", _last(axis[part]))
        for part, words in PARTS.items()
    ]
    notes = []
    if "memory_mb" in axis:
        held = ", ".join(f"{size:.1f}" for size in axis["memory_mb"])
        record = axis["epoch_record"]
        written = ", ".join(f"{seconds:.3f}" for seconds in record["seconds"])
        notes.append(f"Running margins hold {held} MB; writing an epoch's record of every sample takes {written} s.")
    title = f"Milliseconds by {axis['axis'] if axis['axis'] != 'batch' else 'batch size'}"
    return Table(title, ("part", *sizes, "exponent", "last"), tuple(lines), tuple(notes))


def _last(part: dict[str, Any]) -> str:
    return f"{part['last_exponent']:.2f}"


def scaling_tables() -> list[Table]:
    """Of ``results/scaling-cpu.json``: samples a second, two processes over one."""
    rows = json.loads((RESULTS / "scaling-cpu.json").read_text())
    steps = list(dict.fromkeys(row["step"] for row in rows))
    by_sharing = {
        sharing: [row for row in rows if row["sharing"] == sharing] for sharing in ("same batch", "batch each")
    }
    lines = [
        (f"{sharing} ({found[0]['batch']} in all)", *(f"{row['ratio']:.2f}" for row in found))
        for sharing, found in by_sharing.items()
    ]
    where = rows[0]["environment"]
    note = f"{rows[0]['model']}, medians of {rows[0]['rounds']} rounds, {where['device']}, one thread a process."
    return [Table("Samples a second, two processes over one", ("", *steps), tuple(lines), (note,))]


BLOCKS: dict[str, Callable[[], list[Table]]] = {
    "cost": cost_tables,
    "growth": growth_tables,
    "scaling": scaling_tables,
}


def main() -> None:
    """Fill the page's blocks."""
    page = PAGE.read_text()
    for name, tables in BLOCKS.items():
        block = "\n\n".join([f"<!-- {name} -->", *(table.markdown() for table in tables()), "<!-- end -->"])
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        page, count = re.subn(pattern, lambda _: block, page, count=1, flags=re.DOTALL)  # noqa: B023
        if not count:
            raise SystemExit(f"{PAGE} has no block {name}: add <!-- {name} --> and <!-- end -->")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
