"""``narl transfer``: train on new data with a loss that was learned elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from narl.cli import options as shared
from narl.cli.config import ConfigFile
from narl.cli.running import carry_out
from narl.cli.train import settings_of
from narl.errors import OptionError


def transfer(
    data: shared.Data = None,
    source: Annotated[
        list[str],
        typer.Option(
            "--from",
            help="What was learned: the run of an A-* method, adjuster files in order, a name of narl.pretrained(), or "
            "hf://owner/repo/file.",
            show_default="what narl ships of --loss",
        ),
    ] = [],  # noqa: B006  typer copies it
    loss: Annotated[
        str | None,
        typer.Option(
            help="Whose shipped adjuster serves, where none is named: gce, sl, polysoft or js.", show_default="sl"
        ),
    ] = None,
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            "-o",
            help="serves=until: each snapshot serves until it was taken, as in the paper; margin=latest or running; "
            "robust_start=0.3: share of the steps with the loss's fixed hyperparameters.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    out: shared.Out = None,
    layout: shared.Layout = "auto",
    label: shared.Label = None,
    true_label: shared.TrueLabel = None,
    id_column: shared.Id = None,
    text: shared.Text = None,
    image: shared.Image = None,
    numbers: shared.Numbers = None,
    categories: shared.Categories = None,
    ignore: shared.Ignore = None,
    labels: shared.Labels = None,
    test: shared.Test = "auto",
    also_test: shared.AlsoTest = [],  # noqa: B006
    limit: shared.Limit = None,
    skip_unreadable: shared.SkipUnreadable = False,
    allow_overlap: shared.AllowOverlap = False,
    drop_overlap: shared.DropOverlap = False,
    model: shared.Model = None,
    image_size: shared.ImageSize = None,
    text_length: shared.TextLength = None,
    augment: shared.Augment = None,
    epochs: shared.Epochs = None,
    batch_size: shared.BatchSize = None,
    optimizer: shared.Optimizer = None,
    learning_rate: shared.LearningRate = None,
    momentum: shared.Momentum = None,
    weight_decay: shared.WeightDecay = None,
    schedule: shared.Schedule = None,
    milestones: shared.Milestones = None,
    warmup: shared.Warmup = 0.0,
    seed: shared.Seed = 0,
    overwrite: shared.Overwrite = False,
    device: shared.Device = "auto",
    engine: shared.Engine = "auto",
    precision: shared.Precision = "auto",
    threads: shared.Threads = None,
    workers: shared.Workers = None,
    memory: shared.Memory = 1.0,
    tensorboard: shared.TensorBoard = True,
    config: ConfigFile = None,
    dry_run: shared.DryRun = False,
    as_json: shared.Json = False,
) -> None:
    """Train on new data, without clean samples, with adjusters learned on other data.

    narl transfer other.csv --from run --out transferred

    Each snapshot of the adjuster serves from the time on at which it was taken; families are fitted to the new data. A
    run that was stopped goes on with: narl train --resume RUN
    """
    from narl.train.adjusters import load_adjusters, without_clean

    if data is None:
        raise OptionError("what shall be trained on? Give a folder or file: narl transfer DATA --from RUN --out NEW")
    if not source:
        method, adjuster = without_clean(loss)
        if adjuster is None:
            raise OptionError(
                f"what was learned before? narl ships no adjuster of {method.lower()!r}: name the run of an A-* "
                "method, or adjuster files, with --from"
            )
        source = [adjuster]
    learned = load_adjusters(source)
    arguments: dict[str, Any] = dict(locals())
    method = f"T-{learned[0].robust_loss.title}"
    alone: dict[str, Any] = {
        "method": method,
        "adjuster": source,
        "loss": None,
        "margin": None,
        "every": None,
    }
    alone |= {"clean": "none", "train_on_clean": False, "heldout": None, "clean_batch_size": None}
    alone |= {"clean_share": "auto", "tune": False, "patience": None}
    settings = settings_of(arguments | alone)
    carry_out(settings, out, overwrite=overwrite, tensorboard=tensorboard, as_json=as_json, dry_run=dry_run)
