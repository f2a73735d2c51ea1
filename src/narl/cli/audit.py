"""``narl audit``: which labels of a run are wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narl.cli import options as shared
from narl.cli.running import told_warnings
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.audit import Verdicts
    from narl.train.run_folder import RunFolder

_STOPPED = 130
_SHOWN = 10


def audit(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the tables; it is made if it is not there.", show_default="RUN/audit"),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="Train so many times more, each time without a part of the samples that is then judged.",
            show_default="by the run's own record",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="Where the run has a clean set, calibrate probabilities with it; reads the data again.")
    ] = True,
    report: Annotated[
        bool, typer.Option(help="Write report.html, a page that shows all of it; needs the report extra.")
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace tables in --out.")] = False,
    device: shared.Device = "auto",
    as_json: shared.Json = False,
) -> None:
    """Say which labels of a run's training set are wrong.

    narl audit run

    Writes labels.csv (the most suspicious first; also as Parquet where pyarrow is installed), cleanlab.csv (cleanlab's
    table of label issues), noise.json (noise rate and transition matrix) and report.html (a page that shows all of it).
    """
    from narl.audit.runs import paths_of
    from narl.audit.tables import labels_table, to_cleanlab
    from narl.cli.output import print_json, write_table
    from narl.train.run_folder import RunFolder

    folder = RunFolder.open(run)
    if folds is not None and not calibrate:
        raise OptionError("--no-calibrate is for audits by the run's record: leave it out with --folds")
    place = run / "audit" if out is None else out
    files = {name: place / name for name in [*_names(), *(["report.html"] if report else [])]}
    _check_folder(place, files, overwrite=overwrite or out is None)
    with told_warnings():
        verdicts = _verdicts(run, folds, calibrate, device)
    _make(place)
    table = labels_table(verdicts, paths_of(folder, verdicts.ids))
    for name, path in files.items():
        if name.startswith("labels"):
            write_table(path, table)
    write_table(files["cleanlab.csv"], to_cleanlab(verdicts))
    _write_noise(files["noise.json"], verdicts)
    if report and not _write_report(files["report.html"], verdicts, run):
        del files["report.html"]
    result = _result(folder, verdicts, files)
    if as_json:
        print_json(result)
    else:
        _print(verdicts, table, place, list(files), folder)


def _names() -> list[str]:
    import importlib.util

    tables = ["labels.csv", *(["labels.parquet"] if importlib.util.find_spec("pyarrow") else [])]
    return [*tables, "cleanlab.csv", "noise.json"]


def _check_folder(place: Path, files: dict[str, Path], *, overwrite: bool) -> None:
    """Refuse a place where nothing can or should be written, before the work begins."""
    from narl.cli.output import check_new

    if place.is_dir():
        for path in files.values():
            check_new(path, overwrite=overwrite, endings=(path.suffix,))
    elif place.exists():
        raise OptionError(f"{place} is a file: give a folder with --out")


def _make(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"the folder {place} cannot be made: {error.strerror or error}; choose another --out"
        ) from error


def _verdicts(run: Path, folds: int | None, calibrate: bool, device: str) -> Verdicts:
    from narl.audit import from_folds, from_run
    from narl.bilevel import Processes
    from narl.cli.watching import Watching

    if folds is None:
        return from_run(run, calibrate=calibrate, device=device)
    with Watching(Processes.alone()) as watching:
        found = from_folds(run, folds, observer=watching, device=device)
    if found is None:
        print("narl: stopped. Folds that were finished are kept: run the same command to go on", file=sys.stderr)
        raise typer.Exit(_STOPPED)
    return found


def _noise(verdicts: Verdicts) -> dict[str, Any]:
    noise = verdicts.noise
    return {
        "rate": noise.rate,
        "low": noise.low,
        "high": noise.high,
        "classes": list(verdicts.class_names),
        "matrix": noise.matrix.tolist(),
        "matrix_low": noise.matrix_low.tolist(),
        "matrix_high": noise.matrix_high.tolist(),
    }


def _write_noise(path: Path, verdicts: Verdicts) -> None:
    import json

    from narl.cli.output import writing

    with writing(path) as file:
        file.write(json.dumps(_noise(verdicts), indent=1).encode() + b"\n")


def _write_report(path: Path, verdicts: Verdicts, run: Path) -> bool:
    """Write the page; without its packages, say so: the tables are there all the same."""
    from narl.audit.report import check_installed, write_report
    from narl.errors import MissingExtraError

    try:
        check_installed()
    except MissingExtraError as error:
        print(f"narl: no report.html is written: {error}", file=sys.stderr)
        return False
    with told_warnings():
        write_report(verdicts, path, run=run)
    return True


def _result(run: RunFolder, verdicts: Verdicts, files: dict[str, Path]) -> dict[str, Any]:
    from narl.audit.doubts import doubt_of
    from narl.audit.runs import unjudged

    noise = verdicts.noise
    return {
        "run": str(run.path),
        "samples": len(verdicts),
        "unjudged": unjudged(run),
        "wrong": int(verdicts.wrong.sum()),
        "noise": {"rate": noise.rate, "low": noise.low, "high": noise.high},
        "calibrated": verdicts.probability is not None,
        "contradicted": verdicts.contradicted,
        "doubt": doubt_of(verdicts),
        "files": {name: str(path) for name, path in files.items()},
    }


def _print(verdicts: Verdicts, table: dict[str, Any], place: Path, names: list[str], run: RunFolder) -> None:
    from narl.audit.doubts import doubt_of
    from narl.audit.runs import note_of_unjudged

    noise, count = verdicts.noise, int(verdicts.wrong.sum())
    print(
        f"{count:,} of {len(verdicts):,} labels are held for wrong: {noise.rate:.1%}; where doubtful labels are "
        f"counted as right or as wrong, {noise.low:.1%} to {noise.high:.1%}"
    )
    for note in (doubt_of(verdicts), note_of_unjudged(run)):
        if note is not None:
            print(f"note: {note}")
    for line in _confusions(verdicts):
        print(line)
    if count:
        print("\nmost suspicious:")
    for row in range(min(count, _SHOWN)):
        chance = table["probability_wrong"][row]
        doubt = f"score {table['score'][row]:.3f}" + ("" if chance != chance else f", {_likely(chance)} wrong")
        name, given, suggested = (_line(table[key][row]) for key in ("id", "given_label", "suggested_label"))
        print(f"  {name}: {given} -> {suggested}  ({doubt})")
    print(f"\n{place}: {', '.join(names)}")
    print(f"check them in your browser: narl review {run.path}")


def _likely(chance: float) -> str:
    """A chance in words; nothing is sure to the last digit."""
    shown = "over 99%" if chance > 0.99 else "under 1%" if chance < 0.01 else f"{chance:.0%}"
    return f"{shown} likely"


def _confusions(verdicts: Verdicts) -> list[str]:
    """The classes that are most often taken for one another."""
    import numpy as np

    pairs = verdicts.suggested[verdicts.wrong] * len(verdicts.class_names) + verdicts.given[verdicts.wrong]
    found, counts = np.unique(pairs, return_counts=True)
    lines = []
    for place in np.argsort(-counts, kind="stable")[:5]:
        true, given = divmod(int(found[place]), len(verdicts.class_names))
        share = verdicts.noise.matrix[true, given]
        names = [_line(verdicts.class_names[label]) for label in (true, given)]
        lines.append(f"  {names[0]} labelled as {names[1]}: {counts[place]:,} ({share:.1%} of {names[0]})")
    return lines


def _line(text: str) -> str:
    """A text as a part of one line: line ends and control characters are shown, not obeyed."""
    shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
