"""CIFAR-10 with 200 classes, to choose on what is to serve where there are many.

    python benchmarks/turned.py cifar10.npz turned.npz

Each image is turned by a multiple of 90 degrees and has its colours exchanged in one of five ways; its class says what
it shows, how it was turned and which colours were exchanged. No images but those of CIFAR-10 are needed; those that
results are reported on are not looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COLOURS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0))
QUARTERS = 4


def turned(
    images: NDArray[np.uint8], labels: NDArray[np.int64], seed: int, only: Sequence[int] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images, each turned and coloured at random, and their new classes.

    Args:
        images: ``(N, H, W, 3)``, as high as wide.
        labels: what they show, ``(N,)``.
        seed: of the draws.
        only: some of the 20 ways; None: all.

    Example:
        >>> found, labels = turned(np.zeros((3, 2, 2, 3), np.uint8), np.array([0, 1, 9]), 0)
        >>> found.shape, bool((labels % 10 == [0, 1, 9]).all()), bool((labels < 200).all())
        ((3, 2, 2, 3), True, True)
    """
    ways = range(QUARTERS * len(COLOURS)) if only is None else only
    drawn = np.random.default_rng(seed).integers(len(ways), size=len(images))
    found = np.empty_like(images)
    for number, way in enumerate(ways):
        chosen, colours = drawn == number, COLOURS[way // QUARTERS]
        found[chosen] = np.rot90(images[chosen], way % QUARTERS, axes=(1, 2))[..., colours]
    return found, labels.astype(np.int64) + 10 * drawn


def main() -> None:
    """Turn both parts."""
    parser = argparse.ArgumentParser(description="CIFAR-10 with 200 classes")
    parser.add_argument("source", type=Path, help="an .npz file with x_train, y_train, x_test and y_test")
    parser.add_argument("target", type=Path)
    paths = parser.parse_args()
    given = np.load(paths.source)
    made: dict[str, NDArray[np.generic]] = {}
    for seed, part in enumerate(("train", "test")):
        images, labels = turned(given[f"x_{part}"], given[f"y_{part}"], seed)
        made |= {f"x_{part}": images, f"y_{part}": labels}
    np.savez(paths.target, **made)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
