"""A process that trains what it is told on standard input: ``python -m narl.bench.worker``.

Each line is an order. The process lasts, so that what it compiled for one order serves the next; it leaves at the end
of the input, or with the first order that it could not fulfil.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from narl.bench import adjusters, work
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol, from_json, to_json
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.errors import NarlError, NarlWarning

STOPPED = 130


def order(cells: Sequence[tuple[Cell, Protocol]], place: Place, log: Path) -> str:
    """What to tell a worker: train these cells, as one if there are several, with one adjuster if their table says so.

    Args:
        cells: each with its table.
        place: where to.
        log: file that takes what the training has to say.
    """
    asked = [{"cell": cell.to_json(), "protocol": to_json(protocol)} for cell, protocol in cells]
    return json.dumps({"cells": asked, "place": place.to_json(), "log": str(log)}) + "\n"


def main() -> int:
    """Do what standard input says, line by line."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", NarlWarning)
    asked = _until_told()
    for line in sys.stdin:
        told = json.loads(line)
        _write_to(told["log"])
        try:
            found = _fulfilled(told, asked)
        except NarlError as error:
            print(f"narl: {error}", file=sys.stderr)  # noqa: T201  goes to the cell's log
            return 2
        if None in found:
            return STOPPED
        _forget()
    return 0


def _fulfilled(told: dict[str, Any], asked: Asked) -> Sequence[object]:
    """Train; None among what is returned: it was stopped."""
    place = Place.from_json(told["place"])
    cells = {Cell.from_json(one["cell"]): from_json(one["protocol"]) for one in told["cells"]}
    if any(protocol.shared for protocol in cells.values()):
        return adjusters.learn(cells, place, asked)
    if len(cells) > 1:
        return work.train_as_one(cells, place, asked)
    return [work.train(cell, protocol, place, asked) for cell, protocol in cells.items()]


def _write_to(log: str) -> None:
    """Have all that is printed from now on written to this file."""
    with Path(log).open("a") as output:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(output.fileno(), stream.fileno())


def _forget() -> None:
    """Give back the memory of a training that has ended."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
