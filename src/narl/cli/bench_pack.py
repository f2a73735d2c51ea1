"""``narl bench pack``: make a release of a learned adjuster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pack(
    adjusters: Annotated[
        list[Path],
        typer.Argument(
            help="What narl bench adjusters has written: gce.safetensors; after it, adjusters of the same loss for one "
            "kind of data each."
        ),
    ],
    version: Annotated[str, typer.Option(help="Of the release: 1, 1.1, …", show_default=False)],
    results: Annotated[Path, typer.Option(help="Folder of the results, for the model card.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the file, its card and SHA256SUMS.")] = Path("adjusters"),
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for figures 6 and 7 of it; needs matplotlib.", show_default="none are drawn"),
    ] = None,
) -> None:
    """Give a learned adjuster a name, a version, a checksum and a model card.

    The card is written from the results: of the trainings that the adjuster was learned with, which must be there, and
    of the table transfer, as far as they are.

    narl bench pack adjusters/gce.safetensors --version 1 --out src/narl/adjuster/weights --figures docs/adjusters
    """
    from narl.adjuster import packs
    from narl.bench import releases, runs

    first, *others = map(packs.read, adjusters)
    for path in releases.release(first, version, runs.read(results), out, figures, others):
        print(path)
