"""Options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from narl.errors import OptionError

_DATA, _MODEL, _TRAINING, _OUTPUT = "Data", "Model", "Training", "Run"

Data = Annotated[
    str | None,
    typer.Argument(
        help="What to train on: a folder of class folders with images; a CSV, JSONL or Parquet file; .npz arrays; a "
        "folder with CIFAR-10/100, TinyImageNet-200, ANIMAL-10N, Food-101N, WebVision; or hub:NAME.",
        show_default=False,
    ),
]
Layout = Annotated[str, typer.Option(help="How DATA is laid out, if it is not found out right.", rich_help_panel=_DATA)]
Label = Annotated[
    str | None, typer.Option(help="Column of the given labels.", rich_help_panel=_DATA, show_default="detected")
]
TrueLabel = Annotated[
    str | None,
    typer.Option(help="Column of the true labels, where they are known.", rich_help_panel=_DATA, show_default=False),
]
Id = Annotated[
    str | None,
    typer.Option("--id", help="Column with a name for every sample.", rich_help_panel=_DATA, show_default="detected"),
]
Text = Annotated[str | None, typer.Option(help="Column of texts.", rich_help_panel=_DATA, show_default="detected")]
Image = Annotated[
    str | None, typer.Option(help="Column of image files.", rich_help_panel=_DATA, show_default="detected")
]
Numbers = Annotated[
    list[str] | None,
    typer.Option(help="Columns of numbers, with commas between.", rich_help_panel=_DATA, show_default="detected"),
]
Categories = Annotated[
    list[str] | None,
    typer.Option(help="Columns of categories, with commas between.", rich_help_panel=_DATA, show_default="detected"),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Columns to leave out, with commas between.", rich_help_panel=_DATA, show_default=False),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="File with other given labels, FILE or FILE:KEY, such as CIFAR-10N's; DATA's own then count as the truth.",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
Test = Annotated[
    str,
    typer.Option(
        help="Test set: a file or folder, a share of DATA, 'none', or 'auto': DATA's own, else a tenth of it.",
        rich_help_panel=_DATA,
    ),
]
AlsoTest = Annotated[
    list[str],
    typer.Option(
        help="A further test set, NAME=PATH, such as ILSVRC12=val: its accuracy is reported beside the test set's and "
        "chooses nothing. May be repeated.",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Use so many samples of DATA only; drawn clean and test samples come out of them.",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Leave out images that cannot be decoded.", rich_help_panel=_DATA),
]
AllowOverlap = Annotated[
    bool,
    typer.Option("--allow-overlap", help="Accept samples that are in two of the sets.", rich_help_panel=_DATA),
]
DropOverlap = Annotated[
    bool,
    typer.Option(
        "--drop-overlap", help="Leave samples of the clean and test sets out of training.", rich_help_panel=_DATA
    ),
]

Model = Annotated[
    str | None,
    typer.Option(
        help="resnet32, resnet34, preact_resnet18, convnet; text_cnn, text_transformer; tabular, mlp; "
        "package.module:function; timm:NAME or hf:NAME.",
        rich_help_panel=_MODEL,
        show_default="resnet32 for images, text_cnn for texts, tabular for tables",
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        help="Side in pixels that images are brought to.", rich_help_panel=_MODEL, show_default="theirs, at most 64"
    ),
]
TextLength = Annotated[
    int | None,
    typer.Option(help="Tokens a text is cut to.", rich_help_panel=_MODEL, show_default="by the data"),
]
Augment = Annotated[
    str | None,
    typer.Option(
        help="Variations of training images: crop, flip, cutout, colour, resized-crop, rotate, strong, joined by +; "
        "or none.",
        rich_help_panel=_MODEL,
        show_default="crop+flip; crop for grey images",
    ),
]

Epochs = Annotated[
    int | None,
    typer.Option(help="Passes over the data.", rich_help_panel=_TRAINING, show_default="by the kind of data"),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Samples a step, of all processes together.",
        rich_help_panel=_TRAINING,
        show_default="100; more for large tables",
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(help="sgd or adamw.", rich_help_panel=_TRAINING, show_default="adamw for texts, else sgd"),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        "--lr",
        help="Where the schedule starts.",
        rich_help_panel=_TRAINING,
        show_default="0.1 for images, 0.05 for tables, 0.001 with adamw",
    ),
]
Momentum = Annotated[float | None, typer.Option(help="Of sgd.", rich_help_panel=_TRAINING, show_default="0.9")]
WeightDecay = Annotated[
    float | None,
    typer.Option(help="Of the classifier.", rich_help_panel=_TRAINING, show_default="5e-4 for sgd, 1e-4 for adamw"),
]
Schedule = Annotated[
    str | None,
    typer.Option(help="step, cosine or constant.", rich_help_panel=_TRAINING, show_default="by the kind of data"),
]
Milestones = Annotated[
    str | None,
    typer.Option(
        help="Epochs after which the step schedule divides the learning rate by ten, with commas between.",
        rich_help_panel=_TRAINING,
        show_default="two thirds and five sixths of the run",
    ),
]
Warmup = Annotated[float, typer.Option(help="Epochs during which the learning rate rises.", rich_help_panel=_TRAINING)]
Patience = Annotated[
    int | None,
    typer.Option(
        help="Stop after so many epochs without a better one on held-out clean samples.",
        rich_help_panel=_TRAINING,
        show_default="never",
    ),
]
Seed = Annotated[int, typer.Option(help="Of everything random.", rich_help_panel=_TRAINING)]

Out = Annotated[
    Path | None,
    typer.Option(help="Folder to make for the run.", rich_help_panel=_OUTPUT, show_default=False),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run that is in the folder.", rich_help_panel=_OUTPUT)
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.", rich_help_panel=_OUTPUT)]
Engine = Annotated[
    str,
    typer.Option(
        help="auto: on a GPU, steps compiled and captured as graphs; eager: steps as they are written.",
        rich_help_panel=_OUTPUT,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        help="float32, bfloat16, or auto: bfloat16 for images and texts on GPUs that have it.", rich_help_panel=_OUTPUT
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads to compute with on the CPU.", rich_help_panel=_OUTPUT, show_default="by the model"),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Threads that decode images.", rich_help_panel=_OUTPUT, show_default="by the machine"),
]
Memory = Annotated[
    float,
    typer.Option(
        help="GiB of decoded images to hold in memory; beyond it they are decoded as they are needed.",
        rich_help_panel=_OUTPUT,
    ),
]
TensorBoard = Annotated[
    bool, typer.Option(help="Write for TensorBoard, where it is installed.", rich_help_panel=_OUTPUT)
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Check everything, say what would happen, do nothing.", rich_help_panel=_OUTPUT),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_OUTPUT)]


def names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names from a list with commas, or from several.

    Example:
        >>> names("width, height"), names(["width", "height,depth"])
        (('width', 'height'), ('width', 'height', 'depth'))
    """
    lists = [given] if isinstance(given, str) else given or ()
    return tuple(name.strip() for one in lists for name in one.split(",") if name.strip())


def by_name(given: list[str]) -> dict[str, str]:
    """Paths by name, of ``--also-test``.

    Example:
        >>> by_name(["ILSVRC12=imagenet/val"])
        {'ILSVRC12': 'imagenet/val'}
    """
    pairs = [one.partition("=") for one in given]
    for pair in pairs:
        if not pair[1]:
            raise OptionError(f"--also-test {pair[0]} is not NAME=PATH: write it like --also-test ILSVRC12=PATH")
    found = {name: path for name, _, path in pairs}
    if len(found) < len(pairs):
        raise OptionError("--also-test names one set twice: keep one of them, or rename it")
    return found


def milestones(given: str | None) -> tuple[float, ...]:
    """Epochs from a list with commas.

    Example:
        >>> milestones("80, 120")
        (80.0, 120.0)
    """
    try:
        return tuple(float(epoch) for epoch in names(given))
    except ValueError:
        raise OptionError(f"--milestones {given} is no list of epochs: write it like --milestones 80,120") from None
