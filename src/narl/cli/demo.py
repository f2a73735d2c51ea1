"""``narl demo``: what wrong labels do to three losses, in a minute."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narl.cli.progress import Progress

if TYPE_CHECKING:
    from narl.bench.digits import Run, Verdict


class Noise(str, Enum):
    """Kinds of noise, as a choice on the command line."""

    symmetric = "symmetric"
    asymmetric = "asymmetric"
    pair = "pair"
    instance = "instance"


class Margin(str, Enum):
    """The adjuster's input, as a choice on the command line."""

    latest = "latest"
    running = "running"


def demo(
    noise: Annotated[Noise, typer.Option(help="How 40 % of the labels get wrong.")] = Noise.pair,
    loss: Annotated[str, typer.Option(help="Robust loss to use fixed and adjusted: gce, sl, polysoft or js.")] = "gce",
    seeds: Annotated[int, typer.Option(min=1, help="How many times to repeat, with seeds 0, 1, …")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 30,
    margin: Annotated[Margin, typer.Option(help="What the adjuster looks at.")] = Margin.latest,
    picture: Annotated[Path, typer.Option(help="Where to draw hyperparameter against margin.")] = Path("narl-demo.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train on scikit-learn's digits with wrong labels: cross entropy, a robust loss, and the same loss adjusted.

    1,200 digits with 40 % wrong labels to train on, 100 clean ones to learn the loss from, 497 to test on. Results are
    the mean accuracy of the last five epochs.
    """
    from narl.bench import digits, figures
    from narl.errors import HyperparameterError
    from narl.losses import get
    from narl.train.environment import environment

    robust_loss = get(loss)
    if not robust_loss.hyperparameters:
        raise HyperparameterError(f"{loss!r} has no hyperparameters to adjust: use --loss gce, sl, polysoft or js")
    figures.check_writable(picture)

    methods = (("ce", False), (loss, False), (loss, True))
    runs: list[Run] = []
    verdicts: list[Verdict] = []
    with Progress(total=seeds * len(methods) * epochs) as progress:
        for seed in range(seeds):
            task = digits.load(noise.value, seed)
            for name, adjusted in methods:
                progress.begin(f"{'A-' if adjusted else ''}{get(name).title}, seed {seed}")
                run = digits.train(
                    task,
                    name,
                    adjusted=adjusted,
                    seed=seed,
                    epochs=epochs,
                    margin_kind=margin.value,
                    after_epoch=lambda accuracy: progress.advance(f"test accuracy {accuracy:.1%}"),
                )
                runs.append(run)
            verdicts.append(digits.verdict(run, task))
    drawn = figures.hyperparameters_by_margin(runs[-1].adjuster, verdicts[-1], picture)

    result = digits.summary(runs, verdicts)
    settings = {"noise": noise.value, "rate": digits.RATE, "loss": loss, "epochs": epochs, "margin": margin.value}
    if as_json:
        where = {"settings": settings, "picture": str(picture) if drawn else None, "environment": environment()}
        print(json.dumps({**result, **where}, indent=2))
    else:
        _print_table(result, settings)
        print(
            f"Picture of {robust_loss.title}'s hyperparameters against the margin: {picture}"
            if drawn
            else "No picture: matplotlib is not installed (pip install 'narl[figures]')"
        )


def _print_table(result: dict[str, Any], settings: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Digits, {settings['rate']:.0%} {settings['noise']} noise, {settings['epochs']} epochs")
    table.add_column("method")
    table.add_column("test accuracy, last 5 epochs", justify="right")
    table.add_column("on clean samples", justify="right")
    table.add_column("on mislabelled ones", justify="right")
    for row in result["summary"]:
        spread = f" ± {100 * row['std']:.1f}" if row["seeds"] > 1 else ""
        clean = ", ".join(f"{name} {means['clean']:.2f}" for name, means in row["hyperparameters"].items())
        mislabelled = ", ".join(f"{name} {means['mislabelled']:.2f}" for name, means in row["hyperparameters"].items())
        table.add_row(row["method"], f"{100 * row['mean']:.1f} %{spread}", clean or "–", mislabelled or "–")
    console = Console()
    console.print(table)
    console.print(f"The margin finds mislabelled samples with AUROC {result['audit']['auroc']:.3f}.")
