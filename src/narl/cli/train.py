"""``narl train``: a classifier from noisy labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narl.cli import options as shared
from narl.cli.checked import clean_set
from narl.cli.config import ConfigFile
from narl.cli.running import carry_out, go_on
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.train.settings import Settings

_METHOD, _RUN = "Method", "Run"


def train(
    context: typer.Context,
    data: shared.Data = None,
    out: shared.Out = None,
    clean: Annotated[
        str,
        typer.Option(
            help="Samples whose labels are right, to learn the loss from: a file or folder like DATA; a file of sample "
            "ids (.txt, or CSV with id and label); a run on DATA, for what was checked in it with narl review; a "
            "number, to take that many out of DATA, class by class, whose labels you vouch for; or none.",
            rich_help_panel=_METHOD,
        ),
    ] = "none",
    train_on_clean: Annotated[
        bool,
        typer.Option(
            "--train-on-clean",
            help="Train on the clean samples as well, with their checked labels; else they only serve the loss. Never "
            "on held-out ones.",
            rich_help_panel=_METHOD,
        ),
    ] = False,
    clean_share: Annotated[
        str,
        typer.Option(
            help="Share of every batch that these clean samples have, a number between 0 and 1; auto: by how many they "
            "are and how wrong the given labels are among them; images, as often as any others.",
            rich_help_panel=_METHOD,
        ),
    ] = "auto",
    method: Annotated[
        str | None,
        typer.Option(
            help="CE, MAE, GCE, SL, PolySoft, JS; A-GCE, A-SL, … (learned on the clean set); T-GCE, … (learned before, "
            "see --adjuster); Forward, MW-Net, Mixup, MentorNet, Co-teaching, ELR, ELR+, DivideMix; or "
            "package.module:Class.",
            rich_help_panel=_METHOD,
            show_default="A-GCE with a clean set, T-SL without",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Robust loss; adjusted if there is a clean set. The short form of --method.",
            rich_help_panel=_METHOD,
            show_default="gce with a clean set, sl without",
        ),
    ] = None,
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            "-o",
            help="Option of the method, NAME=VALUE, such as q=0.5.",
            rich_help_panel=_METHOD,
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer copies it
    boost: Annotated[
        bool,
        typer.Option(
            "--boost",
            help="Mixup, strong views, guesses for doubted labels, averaged weights and a prior of the classes with an "
            "A-* or T-* method; the same as a plus behind its name, such as --method A-GCE+.",
            rich_help_panel=_METHOD,
        ),
    ] = False,
    margin: Annotated[
        str | None,
        typer.Option(
            help="What an adjuster looks at: running or latest.", rich_help_panel=_METHOD, show_default="running"
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            help="Steps from one meta step to the next.",
            rich_help_panel=_METHOD,
            show_default="1 in short runs, 10 in long ones",
        ),
    ] = None,
    adjuster: Annotated[
        list[str],
        typer.Option(
            help="Learned adjuster for T-*: a run, files in order, or a name of narl.pretrained().",
            rich_help_panel=_METHOD,
            show_default="the one that narl ships",
        ),
    ] = [],  # noqa: B006
    heldout: Annotated[
        float | None,
        typer.Option(
            help="Share of the clean set that is kept apart to choose the best epoch.",
            rich_help_panel=_METHOD,
            show_default="none, or a quarter with --patience",
        ),
    ] = None,
    clean_batch_size: Annotated[
        int | None,
        typer.Option(
            help="Clean samples a meta step.",
            rich_help_panel=_METHOD,
            show_default="all up to 300, else as many as --batch-size",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose a fixed loss's hyperparameters by validation on the clean set.",
            rich_help_panel=_METHOD,
        ),
    ] = False,
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
    patience: shared.Patience = None,
    seed: shared.Seed = 0,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with a run that was stopped.", rich_help_panel=_RUN, show_default=False),
    ] = None,
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
    """Train a classifier on data with wrong labels.

    A folder of class folders, 200 labels vouched for: narl train photos --clean 200 --out run

    A table, checked rows apart: narl train table.csv --clean checked.csv --out run

    On with a run that was stopped: narl train --resume run
    """
    if resume is not None:
        refuse_all_but(context, "resume", "config", "tensorboard", "as_json", "dry_run")
        go_on(resume, tensorboard=tensorboard, as_json=as_json, dry_run=dry_run)
        return
    if data is None:
        raise OptionError("what shall be trained on? Give a folder or file: narl train DATA --out RUN")
    with clean_set(clean, data, trial=dry_run) as clean:
        settings = settings_of(locals())
        carry_out(settings, out, overwrite=overwrite, tensorboard=tensorboard, as_json=as_json, dry_run=dry_run)


def refuse_all_but(context: typer.Context, *kept: str) -> None:
    """Refuse arguments that were given and would have no effect."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in kept and source is not None and source.name != "DEFAULT":
            shown = name.upper() if name == "data" else parameter.opts[0]
            raise OptionError(f"--resume goes on with a run as it was begun: leave {shown} out")


def settings_of(given: dict[str, Any]) -> Settings:
    """The settings from a command's arguments, by name."""
    from narl.data.read import Columns
    from narl.train.defaults import method_of
    from narl.train.methods import boosted_form
    from narl.train.settings import Settings

    columns = Columns(
        label=given["label"],
        true_label=given["true_label"],
        id=given["id_column"],
        image=given["image"],
        text=given["text"],
        numbers=shared.names(given["numbers"]),
        categories=shared.names(given["categories"]),
        ignore=shared.names(given["ignore"]),
    )
    if given["allow_overlap"] and given["drop_overlap"]:
        raise OptionError("--allow-overlap and --drop-overlap contradict each other: use one")
    method = _method(given["method"], given["loss"], given["clean"])
    overlap = "allow" if given["allow_overlap"] else "drop" if given["drop_overlap"] else "refuse"
    same: tuple[str, ...] = (
        "data",
        "layout",
        "labels",
        "clean",
        "train_on_clean",
        "heldout",
        "test",
        "limit",
        "skip_unreadable",
        "tune",
        "model",
    )
    same += ("image_size", "text_length", "augment", "epochs", "batch_size", "optimizer", "learning_rate")
    same += (
        "momentum",
        "clean_batch_size",
        "weight_decay",
        "schedule",
        "warmup",
        "patience",
        "seed",
        "device",
        "engine",
        "precision",
        "threads",
        "workers",
    )
    settings = Settings(
        columns=columns,
        overlap=overlap,
        method=method,
        adjusters=tuple(given["adjuster"]),
        milestones=shared.milestones(given["milestones"]),
        also_test=shared.by_name(given["also_test"]),
        memory_limit=_bytes(given["memory"]),
        clean_share=_share(given["clean_share"]),
        **{name: given[name] for name in same},
    )
    if given.get("boost"):
        settings = replace(settings, method=boosted_form(method_of(settings)))
    options = read_options(method_of(settings), given["option"], margin=given["margin"], every=given["every"])
    return replace(settings, options=options)


def _share(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"--clean-share {text} is no share: give a number between 0 and 1, or auto") from None


def _bytes(gibibytes: float) -> int:
    if not 0 <= gibibytes < 2**20:
        raise OptionError(f"--memory {gibibytes} is no amount of memory: give GiB, such as 4")
    return round(gibibytes * 2**30)


def _method(method: str | None, loss: str | None, clean: str) -> str | None:
    from narl import losses
    from narl.train import methods
    from narl.train.adjusters import without_clean

    if loss is None:
        return method
    robust = losses.get(loss)
    if method is None:
        return f"A-{robust.title}" if clean != "none" and robust.hyperparameters else without_clean(robust.name)[0]
    spec = methods.get(method)
    if spec.loss is not None and spec.loss != robust.name:
        raise OptionError(f"--method {method} and --loss {loss} contradict each other: leave one of them out")
    return method


def read_options(method: str, pairs: list[str], **flags: Any) -> dict[str, Any]:
    """Options of a method from ``NAME=VALUE`` and from flags of their own."""
    from narl.errors import nearest
    from narl.train import methods

    known = methods.get(method).options
    options: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise OptionError(f"--option {pair} is not NAME=VALUE: write it like --option q=0.5")
        if name in options:
            raise OptionError(f"the method's option {name} is given twice: keep one")
        if name not in known:
            fixed, boosted = methods.fixed_with(name), methods.boosted_with(method, name)
            way = nearest(name, known.keys() - {"adjusters"}) if known else "it has none"
            if fixed is not None:
                way = f"it is one of the fixed {fixed}: add --method {fixed}"
            if boosted is not None:
                way = f"it is one of the boosted {boosted}: add --boost, or choose that method"
            raise OptionError(f"{method} has no option {name!r}: {way}")
        options[name] = known[name].read(name, value)
    return options
