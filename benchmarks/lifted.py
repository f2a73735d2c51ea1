"""Have an adjuster see margins lifted by the logarithm of the number of classes.

    python benchmarks/lifted.py adjusters/gce.safetensors adjusters/gce-lifted.safetensors

On its own number of classes nothing changes; see :meth:`narl.Adjuster.lifted`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from narl.adjuster import packs


def main(source: Path, target: Path) -> None:
    """Read, lift all snapshots, write."""
    pack = packs.read(source)
    packs.write(target, replace(pack, snapshots=tuple(snapshot.lifted() for snapshot in pack.snapshots)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
