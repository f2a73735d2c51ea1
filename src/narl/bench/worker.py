"""A process that trains what it is told on standard input: ``python -m narl.bench.worker``."""

from __future__ import annotations

import json
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

from narl.bench import adjusters, protocols, work
from narl.bench.cells import Cell
from narl.bench.protocols import Protocol
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.errors import NarlError, NarlWarning

STOPPED = 130


def order(cells: Sequence[tuple[Cell, Protocol]], place: Place) -> dict[str, Any]:
    """What to tell a worker: train these cells, as one if there are several, with one adjuster if their table says so.

    Args:
        cells: each with its table.
        place: where to.
    """
    asked = [{"cell": cell.to_json(), "protocol": protocols.to_json(protocol)} for cell, protocol in cells]
    return {"cells": asked, "place": place.to_json()}


def main() -> int:
    """Do what standard input says."""
    told = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", NarlWarning)
    asked = _until_told()
    try:
        place = Place.from_json(told["place"])
        cells = {Cell.from_json(one["cell"]): protocols.from_json(one["protocol"]) for one in told["cells"]}
        if any(protocol.shared for protocol in cells.values()):
            found = adjusters.learn(cells, place, asked)
        elif len(cells) > 1:
            found = work.train_as_one(cells, place, asked)
        else:
            found = [work.train(cell, protocol, place, asked) for cell, protocol in cells.items()]
    except NarlError as error:
        print(f"narl: {error}", file=sys.stderr)  # noqa: T201  goes to the cell's log
        return 2
    return STOPPED if None in found else 0


def _until_told() -> Asked:
    """An observer that stops when the process is asked to end."""
    asked = Asked()

    def stop(number: int, frame: FrameType | None) -> None:
        asked.stop = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return asked


if __name__ == "__main__":
    sys.exit(main())
