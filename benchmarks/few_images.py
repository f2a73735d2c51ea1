"""A few of CIFAR-10's training images at half their size, to choose on what is to serve where there is little.

    python benchmarks/few_images.py cifar10.npz few.npz
    narl bench run benchmarks/tables/few-images.json --data Few-CIFAR-10=few.npz

3,000 images to train on and as many others to test on. Images that results are reported on are not looked at.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import small_images

ROWS, SEED = 3000, 5


def main() -> None:
    """Draw both parts."""
    parser = argparse.ArgumentParser(description="a few of CIFAR-10's training images at half their size")
    parser.add_argument("source", type=Path, help="an .npz file with x_train and y_train")
    parser.add_argument("target", type=Path)
    paths = parser.parse_args()
    images, labels = small_images.read(paths.source)
    order = np.random.default_rng(SEED).permutation(len(images))
    train, test = order[:ROWS], order[ROWS : 2 * ROWS]
    np.savez(paths.target, x_train=images[train], y_train=labels[train], x_test=images[test], y_test=labels[test])


if __name__ == "__main__":
    main()
