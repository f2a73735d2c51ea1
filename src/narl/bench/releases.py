"""Adjusters to ship: a file with a name, a version and a checksum, its model card, and figures of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from narl._version import __version__
from narl.adjuster import Adjuster, packs
from narl.adjuster.packs import Pack
from narl.adjuster.pretrained import SUMS
from narl.atomic import replacing
from narl.bench import comparison, protocols
from narl.bench.figures import figure6, figure7, save
from narl.bench.figures.drawing import folder_for, style
from narl.bench.runs import Run
from narl.bench.tables import Table, model_title
from narl.bench.verdicts import Row, fixed_form
from narl.errors import OptionError, ResultsError
from narl.losses import get

_CARD = Template("""\
# $name

An adjuster of the $title loss: it gives every sample $hyperparameters of its own. narl's drop-in criterion for data
without any clean sample uses it:

```python
criterion = narl.AdjustedLoss.pretrained("$name", class_counts, total_steps=epochs * len(loader)$data)
```

[The method in pictures](../../../../docs/method.md) explains margins and families,
[transfer](../../../../docs/transfer.md#which-snapshot-serves-when) the snapshots.

| | |
|---|---|
$facts

$sections
## On data that it has not seen

$transferred
$missing
## Where it fails

$failures

An adjuster sees margins, not samples. Labels that are wrong for a reason that the classifier can learn, such as those
of simple rules, get high margins and are believed. Once a classifier has learned wrong labels by heart, their margins
are those of right ones. With some clean samples at hand, `narl train DATA --clean CHECKED` learns an adjuster for the
data itself.
$figures""")

_LEARNED = Template("""\
## How it was learned

$count classifiers were trained side by side, one for each task, with one adjuster. In a meta iteration each task says
by its own batch and clean samples where the adjuster should go, and it moves by the mean. The noise of a task and its
clean set are those of the seed. What it was before the training and along it is kept: on other data each snapshot
serves from the time on at which it was taken.

$table
""")


def release(
    pack: Pack, version: str, runs: Sequence[Run], out: Path, figures: Path | None, others: Sequence[Pack] = ()
) -> list[Path]:
    """Make a release of what a row of trainings has learned.

    Args:
        pack: what :func:`narl.bench.adjusters.collect` wrote.
        version: of the release: ``"1"``, ``"1.1"``.
        runs: finished trainings, those of the row among them; of the table ``transfer`` those that there are.
        out: folder for the file, its card and the list of checksums; made if it is missing.
        figures: folder for figures 6 and 7 of it; None: none are drawn.
        others: adjusters of the same loss for one kind of data each (``Adjuster.data``), which serve there instead. How
            they were learned, in Markdown, is in their ``about["section"]``.

    Returns:
        What was written.

    Raises:
        ResultsError: the row's trainings are not among the runs.

    An adjuster for one kind of data can come first, too, as long as there is none for any.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version):
        raise OptionError(f"version = {version!r} is none: give numbers with dots between, such as 1 or 1.1")
    row = [] if _for_one_kind(pack) else _row(pack, runs)
    whole = _with_others(pack, others)
    name = f"{pack.loss}-{version}"
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.safetensors"
    packs.write(path, replace(whole, name=name, version=version))
    _write(out / SUMS, _sums(out))  # first: the card compares results with what is shipped
    drawn = [] if figures is None or not row else _draw(row, name, figures)
    _write(out / f"{name}.md", _card(whole, row, runs, path, name, version, drawn))
    return [path, out / SUMS, out / f"{name}.md", *drawn]


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def _for_one_kind(pack: Pack) -> bool:
    """Whether it is of those that say themselves how they were learned."""
    return all(one.data is not None for one in pack.snapshots) and "section" in pack.about


def _with_others(pack: Pack, others: Sequence[Pack]) -> Pack:
    """All in one, with what is said about them."""
    snapshots, words = list(pack.snapshots), [pack.trained_on]
    sections = [str(pack.about["section"])] if "section" in pack.about else []
    if _for_one_kind(pack):
        words = [f"on data of kind {pack.snapshots[0].data}: {pack.trained_on}"]
    for other in others:
        kinds = {one.data for one in other.snapshots}
        if other.loss != pack.loss or None in kinds or len(kinds) > 1 or kinds & {one.data for one in snapshots}:
            raise OptionError(
                f"an adjuster of {other.loss} for {', '.join(sorted(map(str, kinds)))} data cannot be added to one of "
                f"{pack.loss}: add those of the same loss, for one further kind of data each"
            )
        (kind,) = kinds
        snapshots += other.snapshots
        words.append(f"on data of kind {kind}: {other.trained_on}")
        sections.append(str(other.about.get("section", "")))
    about = {**pack.about, **({"sections": sections} if sections else {})}
    return replace(pack, snapshots=tuple(snapshots), trained_on="; ".join(words), about=about)


def _row(pack: Pack, runs: Sequence[Run]) -> list[Run]:
    """The trainings that the pack says it comes from."""
    by_slug = {run.cell.slug: run for run in runs}
    wanted = pack.about.get("cells", [])
    missing = [slug for slug in wanted if slug not in by_slug]
    if missing or not wanted:
        raise ResultsError(
            f"there is no result of {missing[0]}, which the adjuster was learned from: name the folder with --results"
            if missing
            else "this file does not say which trainings it was learned from: give one that narl bench adjusters wrote"
        )
    return [by_slug[slug] for slug in wanted]


def _sums(out: Path) -> str:
    """A line for each file, as ``sha256sum`` writes and checks them."""
    return "".join(f"{packs.sha256(path)}  {path.name}\n" for path in sorted(out.glob("*.safetensors")))


def _draw(row: Sequence[Run], name: str, folder: Path) -> list[Path]:
    folder_for(folder)
    shown = min(row, key=lambda run: (run.cell.task.noise != "symmetric", abs((run.cell.task.rate or 0) - 0.4)))
    parted = max(row, key=_spread)
    written = []
    for number, draw, run in ((6, figure6.of_run, shown), (7, figure7.of_run, parted)):
        with style():
            drawing = draw(run)
        save(drawing, folder / f"{name}-figure{number}.svg")
        written.append(folder / f"{name}-figure{number}.svg")
    return written


def _spread(run: Run) -> float:
    """How much the families differ in size: where they do, the figure shows them apart."""
    centres = run.adjuster.get("centres") or [1.0]
    return float(max(centres) / max(min(centres), 1e-9))


def _card(
    pack: Pack, row: Sequence[Run], runs: Sequence[Run], path: Path, name: str, version: str, drawn: Sequence[Path]
) -> str:
    loss = get(pack.loss)
    everything = comparison.rows(protocols.TRANSFER, runs, variants=True)
    transferred = [row for row in everything if row["seeds"]]
    own = [row for row in transferred if row["method"] == f"T-{loss.title}"]
    missing = [_task(row) for row in everything if row["method"] == f"T-{loss.title}" and not row["seeds"]]
    taken = ", ".join(_taken(one) for one in pack.snapshots)
    kinds = [one.data for one in pack.snapshots]
    facts = {
        "version": version,
        "file": f"`{name}.safetensors`, {path.stat().st_size:,} bytes",
        "SHA-256": f"`{packs.sha256(path)}`",
        "for": pack.data,
        "sees": pack.input,
        "snapshots": f"{len(pack.snapshots)}, at {taken} of the training",
        "learned from": pack.trained_on,
        **(_trained_with(row[0]) if row else {}),
        "licence": "Apache-2.0, as narl",
    }
    first = [_LEARNED.substitute(count=len(row), table=_learned(row).markdown())] if row else []
    return _CARD.substitute(
        name=name,
        title=loss.title,
        hyperparameters=" and ".join(h.name for h in loss.hyperparameters),
        data="" if None in kinds else f', data="{kinds[0]}"',
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        sections="\n".join(f"{section.strip()}\n" for section in [*first, *pack.about.get("sections", [])]),
        transferred=_beside(own, transferred).markdown() if own else "Not measured yet.",
        missing="" if not missing else f"\nNot measured yet: {', '.join(missing)}.\n",
        failures=_failures(own, transferred),
        figures="".join(f"\n![Figure {one.stem[-1]} of it]({os.path.relpath(one, path.parent)})\n" for one in drawn),
    )


def _trained_with(run: Run) -> dict[str, Any]:
    """What the classifiers that it was learned with have in common."""
    settings, where = run.settings, run.environment
    return {
        "classifiers": f"{model_title(run.cell.model)}, {settings['epochs']} epochs, {settings['optimizer']}, learning "
        f"rate {settings['learning_rate']:g}, batch {settings['batch_size']}",
        "clean samples": f"{settings['clean_samples']:,} a task",
        "seed": run.cell.seed,
        "options": ", ".join(f"{key} = {value}" for key, value in settings["options"].items()),
        "made with": f"narl {where.get('narl', __version__)}, torch {where.get('torch', '?')}, "
        f"{where.get('device', '?')}",
    }


def _taken(snapshot: Adjuster) -> str:
    words = "?" if snapshot.taken is None else f"{snapshot.taken:.2f}"
    return words if snapshot.data is None else f"{words} ({snapshot.data})"


def _learned(row: Sequence[Run]) -> Table:
    lines = tuple(
        (
            str(run.cell.task),
            f"{100 * run.last5:.1f}",
            *_means(run),
            "–" if not run.auroc else f"{run.auroc['last']:.3f}",
        )
        for run in row
    )
    names = [name for name in row[0].samples if name != "margin"]
    heading = ("task", "test accuracy, %", *(f"{name}, {who}" for name in names for who in ("right", "wrong")), "AUROC")
    note = (
        "Means over samples with right and with wrong labels at the end; AUROC of low margins finding the wrong ones."
    )
    return Table("The classifiers that it was learned with", heading, lines, (note,))


def _means(run: Run) -> list[str]:
    found: list[Any] = [
        values[f"{who}_mean"] for name, values in run.samples.items() if name != "margin" for who in ("right", "wrong")
    ]
    return ["–" if value is None else f"{value:.2f}" for value in found]


def _beside(own: Sequence[Row], everything: Sequence[Row]) -> Table:
    by_place = {(*_place(row), row["method"]): row for row in everything}
    fixed = str(fixed_form(own[0]["method"]))
    others = ("CE", fixed, f"{fixed}, tuned")
    lines = tuple(
        (_task(row), *(_number(by_place.get((*_place(row), method))) for method in others), _number(row)) for row in own
    )
    note = "Test accuracy, %, mean of the last five epochs ± standard deviation over seeds (narl bench show transfer)."
    return Table("Transferred", ("task", *others, own[0]["method"]), lines, (note,))


def _failures(own: Sequence[Row], everything: Sequence[Row]) -> str:
    """Where it is behind cross entropy or its fixed form, in words."""
    by_place = {(*_place(row), row["method"]): row for row in everything}
    found = []
    for row in own:
        for method in ("CE", str(fixed_form(row["method"]))):
            other = by_place.get((*_place(row), method))
            if other is not None and other["last5_mean"] > row["last5_mean"]:
                gap = other["last5_mean"] - row["last5_mean"]
                shown = f"{gap:.1f}" if gap >= 0.05 else "less than 0.1"
                found.append(f"- {_task(row)}: {shown} points behind {method}.")
    if not own:
        return "Nothing has been measured on other data yet."
    return "\n".join(found) or "In none of the cells above is it behind cross entropy or its fixed form."


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("dataset", "noise", "rate", "schedule", "model"))


def _task(row: Row) -> str:
    return " ".join([row["dataset"], row["noise"], *([] if row["rate"] is None else [f"{row['rate']:g}"])])


def _number(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{row['last5_mean']:.1f}" + ("" if row["last5_std"] is None else f" ± {row['last5_std']:.1f}")
