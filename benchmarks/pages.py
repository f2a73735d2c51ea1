"""Put the measured tables into docs/cost.md, engine.md, scaling.md, results.md, findings.md, audit.md and review.md.

python benchmarks/pages.py
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clean_share
import forward_matrix
import noise_rates
import plan
import small_images
import table_adjusters
import text_adjusters
import text_steps
import travel
from narl.bench import audit_table, comparison, cost, own_table, review_table, runs
from narl.bench.tables import Table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
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


def tangent_tables() -> list[Table]:
    """Of ``results/tangents-cpu.json``: cost and error of the forms of the tangent."""
    found = json.loads((RESULTS / "tangents-cpu.json").read_text())
    words = {"recorded": "recorded, the default", "dual": "dual numbers", "reverse": "reverse over reverse"}
    lines = []
    for form, passes in found["in_forward_passes"].items():
        steps, errors = found["in_plain_steps"][form], found["errors"]["resnet32"][form]["hypergradient_of_float32"]
        shown = ("–", "–") if form == "dual" else (f"{errors['median']:.0e}", f"{errors['max']:.0e}")
        plain = f"{steps['channels_last']:.2f}", f"{steps['as_given']:.2f}"
        lines.append((words.get(form, form), f"{passes:.1f}", *plain, *shown))
    heads = ("form", "tangent, in forward passes", "meta iteration, in plain steps", "in plain steps channels first")
    where = found["environment"]
    note = (
        "Errors of the hypergradient over a training run of 300 steps on digits, against dual numbers in float32. "
        f"{where['device']}, {where['threads']} threads, torch {where['torch']}."
    )
    title = "Forms of the tangent, ResNet-32, batch 100, float32"
    return [Table(title, (*heads, "error, median", "largest"), tuple(lines), (note,))]


def graphed_tables() -> list[Table]:
    """Of ``results/graphed-h200.json``, ``captured-h200.json``: steps as they are written and as graphs, on a GPU."""
    found, captured = (json.loads((RESULTS / f"{name}-h200.json").read_text()) for name in ("graphed", "captured"))
    whole = {row["method"]: row for row in captured["methods"]}
    rows = []
    for row in found["methods"]:
        name = row["method"]
        if name in whole:  # by passes in the first file
            rows += [(f"{name}, a graph a pass", row), (f"{name}, a graph a step", whole[name])]
        else:
            rows.append((name, row))
    lines = [
        (
            name,
            *(f"{row[f'{form}_ms']:.1f} ({_range(row[f'{form}_all_ms'])})" for form in ("written", "graphs")),
            f"{row['ratio']:.1f}",
        )
        for name, row in rows
    ]
    where = found["environment"]
    note = (
        f"PreAct ResNet-18, {found['rows']} images of 32 × 32, {found['precision']}, {where['device']}, torch "
        f"{where['torch']}, alone: medians of {found['rounds']} rounds of {found['steps']} steps, and their range. Of "
        "A-SL and A-SL+ one step in ten is a meta step. CE and A-SL have a graph a step, the systems a graph a pass. "
        "A-SL+ with a graph a step was timed in a run of its own."
    )
    heads = ("", "as written", "with graphs", "ratio")
    return [Table("Milliseconds a step", heads, tuple(lines), (note,))]


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def comparison_tables(name: str) -> list[Table]:
    """Of ``results/runs``: a table of the paper, or CIFAR-10N, with its variants."""
    return comparison.tables(name, comparison.rows(name, runs.read(RESULTS), variants=True))


def transfer_tables() -> list[Table]:
    """Of ``results/runs``: the data sets on which transferred losses have been trained, and what is to be reached."""
    rows = comparison.rows("transfer", runs.read(RESULTS), variants=True)
    there = {row["dataset"] for row in rows if row["seeds"] and row["method"].startswith("T-")}
    return comparison.tables("transfer", [row for row in rows if row["dataset"] in there])


def study_tables(name: str) -> list[Table]:
    """Of a table in ``benchmarks/tables``, with its variants."""
    table = own_table.read(ROOT / "benchmarks" / "tables" / f"{name}.json")
    return comparison.tables(table, comparison.rows(table, runs.read(RESULTS), variants=True))


def starts_tables() -> list[Table]:
    """Of ``benchmarks/tables/starts.json``: where each of the short starts ends."""
    table = own_table.read(ROOT / "benchmarks" / "tables" / "starts.json")
    by_method: dict[str, list[list[float]]] = {method: [] for method in table.methods}
    for run in runs.read(RESULTS):
        if run.cell.schedule == "starts" and dict(run.cell.options).get("every") == 6:
            by_method[run.cell.method].append([100 * (right or 0.0) for right in run.curves["test_accuracy"]])
    lines = [
        (method, str(len(curves)), *(_from_to([curve[epoch] for curve in curves]) for epoch in (0, 3, 7)))
        for method, curves in by_method.items()
        if curves
    ]
    note = "Test accuracy, %, from the lowest to the highest of the starts; a tenth is right by chance."
    return [Table(table.title, ("", "starts", "epoch 1", "epoch 4", "epoch 8"), tuple(lines), (note,))]


def boost_tables() -> list[Table]:
    """Of ``benchmarks/tables/boost.json`` and ``boost-faster.json``: first looks, by held-out clean samples."""
    read = {name: own_table.read(ROOT / "benchmarks" / "tables" / f"{name}.json") for name in ("boost", "boost-faster")}
    tasks = list(dict.fromkeys(str(task) for table in read.values() for task in table.tasks))
    by_way: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for run in runs.read(RESULTS):
        if run.cell.schedule not in read:
            continue
        options = dict(run.cell.options)
        rate = read[run.cell.schedule].training["learning_rate"]
        doubted = "given up" if options.get("certain") else "weakened"
        way = (f"{rate:g}", doubted, f"{options['mixup']:g}", f"{options.get('boost_from', 0.1):g}")
        by_way.setdefault(way, {})[str(run.cell.task)] = [
            100 * (right or 0.0) for right in run.curves["heldout_accuracy"]
        ]
    lines = [
        (*way, *(_course(found[task]) if task in found else "–" for task in tasks))
        for way, found in sorted(by_way.items())
    ]
    shown = [task.partition(" ")[2] for task in tasks]  # all are of CIFAR-10's images
    columns = ("learning rate", "doubted labels", "mixup", "boosted from", *shown)
    note = (
        "A-SL+, PreAct ResNet-18, 30 epochs, 44,000 images, one seed: accuracy, %, on 5,000 clean samples that were "
        "held out, after 6, 12 and 30 epochs. every = 10, memory = 0.5, confidence = 0, else as narl has it."
    )
    return [Table("First looks at the boost", columns, tuple(lines), (note,))]


def _course(curve: list[float]) -> str:
    return ", ".join(f"{curve[epoch - 1]:.1f}" for epoch in (6, 12, 30))


def believed_tables() -> list[Table]:
    """Of ``benchmarks/tables/boost-believed.json`` and ``boost-rivals.json``: checked images are trained on."""
    lines = []
    for run in runs.read(RESULTS):
        if run.cell.schedule not in ("boost-believed", "boost-rivals"):
            continue
        options, curves = dict(run.cell.options), run.curves
        parts = ("believed", "temperature")
        tests = [100 * (right or 0.0) for right in curves["test_accuracy"]]
        chosen_by = [100 * (right or 0.0) for right in curves.get("heldout_accuracy", [])]
        heldout = ", ".join(f"{chosen_by[epoch - 1]:.1f}" for epoch in (6, 12, 24, 36)) if chosen_by else "–"
        lines.append(
            (
                run.cell.method,
                *(f"{options.get(part, 0):g}" if options else "–" for part in parts),
                str(len(tests)),
                heldout,
                f"{sum(tests[-5:]) / 5:.1f}",
                f"{run.seconds:.0f}",
            )
        )
    columns = ("", "believed", "temperature", "epochs", "held out: 6, 12, 24, 36", "test", "seconds")
    note = (
        "PreAct ResNet-18, batches of 128, learning rate 0.05 with a cosine, one seed, four trainings at once on an "
        "H200. A-SL+: 44,000 images and 1,000 checked ones, which are a quarter of every batch, 5,000 more held out; "
        "doubt = posterior, suspicion = 0, confidence = 0, mixup = 1, boost_from = 0.2, every = 10. DivideMix: 50,000 "
        "images, of which 1,000 are checked. Accuracy, %; test: mean of the last five epochs."
    )
    return [Table("80 % symmetric noise, checked images trained on", columns, tuple(sorted(lines)), (note,))]


def _from_to(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def audit_tables() -> list[Table]:
    """Of ``results/audit``: how well wrong labels are found."""
    return audit_table.tables(audit_table.rows(runs.read(RESULTS / "audit")))


def review_tables() -> list[Table]:
    """Of ``results/review``: what a simulated reviewer's answers are worth."""
    return review_table.tables(review_table.rows(runs.read(RESULTS / "review")))


BLOCKS: dict[str, dict[str, Callable[[], list[Table]]]] = {
    "cost.md": {"cost": cost_tables, "growth": growth_tables, "scaling": scaling_tables},
    "engine.md": {"tangents": tangent_tables, "graphed": graphed_tables},
    "scaling.md": {"plan": plan.tables},
    "results.md": {
        name: functools.partial(comparison_tables, name) for name in ("table1", "table2", "figure5", "cifar10n")
    },
    "transfer.md": {"transfer": transfer_tables},
    "travel.md": {
        "travel": travel.tables,
        "table-adjusters": table_adjusters.tables,
        "small-images": small_images.tables,
        "noise-rates": noise_rates.tables,
        "many": functools.partial(study_tables, "many"),
        "few-images": functools.partial(study_tables, "few-images"),
        "turned": functools.partial(study_tables, "turned"),
        "texts": functools.partial(study_tables, "texts"),
        "texts-tables": functools.partial(study_tables, "texts-tables"),
        "text-adjusters": text_adjusters.tables,
        "text-steps": text_steps.tables,
    },
    "findings.md": {
        "letters": functools.partial(study_tables, "letters"),
        "starts": starts_tables,
        "drawn-over-all": functools.partial(study_tables, "drawn-over-all"),
        "forward-matrix": forward_matrix.tables,
    },
    "audit.md": {"audit": audit_tables},
    "boost.md": {
        "boost": boost_tables,
        "boost-believed": believed_tables,
        "boost-tables": functools.partial(study_tables, "boost-tables"),
        "boost-checked": functools.partial(study_tables, "boost-checked"),
    },
    "review.md": {"review": review_tables, "clean-share": clean_share.tables},
}


def main() -> None:
    """Fill the pages' blocks."""
    for name, blocks in BLOCKS.items():
        fill(ROOT / "docs" / name, blocks)


def fill(path: Path, blocks: dict[str, Callable[[], list[Table]]]) -> None:
    """Replace a page's blocks."""
    page = path.read_text()
    for name, tables in blocks.items():
        block = "\n\n".join([f"<!-- {name} -->", *(table.markdown() for table in tables()), "<!-- end -->"])
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        page, count = re.subn(pattern, lambda _: block, page, count=1, flags=re.DOTALL)  # noqa: B023
        if not count:
            raise SystemExit(f"{path} has no block {name}: add <!-- {name} --> and <!-- end -->")
    path.write_text(page)


if __name__ == "__main__":
    main()
