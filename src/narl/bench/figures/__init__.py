"""Figures: drawn with matplotlib, readable in print and by the colour-blind.

The paper's, by their numbers there, from finished trainings and from theory; and the demonstration's picture.
"""

from __future__ import annotations

from collections.abc import Callable

from narl.bench.figures import figure1, figure2, figure5, figure6, figure7, figure8
from narl.bench.figures.drawing import FORMATS, Drawing, check_writable, folder_for, save, style
from narl.bench.figures.margins import hyperparameters_by_margin
from narl.bench.figures.trainings import Library, listed
from narl.errors import UnknownNameError

__all__ = [
    "FIGURES",
    "FORMATS",
    "Drawing",
    "Library",
    "check_number",
    "check_writable",
    "draw",
    "folder_for",
    "hyperparameters_by_margin",
    "save",
]

FIGURES: dict[int, Callable[[Library], Drawing]] = {
    1: figure1.draw,
    2: figure2.draw,
    5: figure5.draw,
    6: figure6.draw,
    7: figure7.draw,
    8: figure8.draw,
}


def check_number(number: int) -> None:
    """Refuse a figure that is not drawn here.

    Example:
        >>> check_number(3)
        Traceback (most recent call last):
        narl.errors.UnknownNameError: figure 3 shows neither results nor theory: choose from 1, 2, 5, 6, 7 and 8
    """
    if number not in FIGURES:
        known = listed([str(each) for each in FIGURES])
        raise UnknownNameError(f"figure {number} shows neither results nor theory: choose from {known}")


def draw(number: int, library: Library) -> Drawing:
    """One of the paper's figures.

    Args:
        number: its number in the paper.
        library: the trainings that there are.

    Returns:
        The figure and a line about where its numbers come from.

    Raises:
        ResultsError: trainings that it needs are missing; the message has the command that makes them.
        UnknownNameError: the number is none of :data:`FIGURES`.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> print(draw(2, Library([])).note)
        From theory alone. ...
    """
    check_number(number)
    with style():
        return FIGURES[number](library)
