"""``narl predict``: labels and probabilities for new samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narl.cli.config import ConfigFile
from narl.cli.running import told_warnings

if TYPE_CHECKING:
    from narl.data.encoder import Encoder
    from narl.data.samples import Inputs


def predict(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    data: Annotated[str, typer.Argument(help="New samples, laid out like the training data.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .jsonl or .parquet.")] = Path("predictions.csv"),
    layout: Annotated[str, typer.Option(help="How DATA is laid out, if it is not found out right.")] = "auto",
    part: Annotated[str, typer.Option(help="Which part of DATA, where it has parts: train or test.")] = "test",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be decoded.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    config: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Predict new samples with the classifier of a run.

    narl predict run new.csv --out predictions.csv

    Writes a row a sample: its id, the most probable class, its probability, and the probability of every class.
    """
    from narl.cli.output import check_new, print_json, write_predictions
    from narl.data.read import read_inputs
    from narl.train.trained import Trained

    with told_warnings():
        trained = Trained(run, device)
        check_new(out, overwrite=overwrite, source=Path(data))
        columns = trained.columns
        samples = read_inputs(data, part=part, layout=layout, columns=columns, skip_unreadable=skip_unreadable)
        _warn_of_unseen(trained.encoder, samples.inputs)
        if not dry_run:
            probabilities = trained.predict(samples.inputs)
            best = probabilities.argmax(1)
            labels = [trained.classes[index] for index in best]
            write_predictions(out, samples.ids.tolist(), labels, probabilities, trained.classes)
    done = {"run": str(run), "samples": len(samples), "classes": list(trained.classes), "model_of_epoch": trained.epoch}
    if as_json:
        print_json({**done, "out": None if dry_run else str(out)})
    else:
        what = "would predict" if dry_run else "predicted"
        count = "1 sample" if len(samples) == 1 else f"{len(samples):,} samples"
        print(f"{what} {count} with the model of epoch {trained.epoch}: {out}")


def _warn_of_unseen(encoder: Encoder, inputs: Inputs) -> None:
    """Say which categories the model knows nothing about."""
    import warnings

    from narl.data.samples import Table
    from narl.data.table_encoding import TableEncoder
    from narl.errors import NarlWarning

    if isinstance(encoder, TableEncoder) and isinstance(inputs, Table):
        for name, count in encoder.unseen(inputs).items():
            warnings.warn(
                f"column {name!r}: {count:,} of {len(inputs):,} values were not in the training data",
                NarlWarning,
                stacklevel=2,
            )
