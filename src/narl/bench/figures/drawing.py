"""How figures look and how they are written: for print, for every kind of colour vision, the same every time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from narl.atomic import replacing
from narl.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
COLUMN, PAGE = 3.5, 7.16  # inches: one column and both of a two-column page

# Okabe and Ito's palette: told apart with every kind of colour vision. Styles and hatches do the same in grey.
FIXED_COLOUR, TUNED_COLOUR, ADJUSTED_COLOUR, PLAIN_COLOUR = "#0072B2", "#56B4E9", "#D55E00", "#000000"
PRINTED_COLOUR = "#777777"
RIGHT_COLOUR, WRONG_COLOUR = "#56B4E9", "#E69F00"
FAMILY_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FAMILY_STYLES = ("-", "--", "-.", ":")
SYMBOLS = {
    "q": "$q$",
    "pi1": r"$\pi_1$",
    "gamma1": r"$\gamma_1$",
    "gamma2": r"$\gamma_2$",
    "lam": r"$\lambda$",
    "d": "$d$",
}

_STYLE: Any = {  # matplotlib types its keys, other ones in every version
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # letters stay letters, as publishers ask
    "svg.hashsalt": "narl",  # ids are random without it
}
# What would differ from day to day is left out.
_METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}


@final
@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, and what a reader must know about where it comes from.

    Args:
        figure: at the size of print.
        note: one line: data, model, schedule, seeds.
    """

    figure: Figure
    note: str


@contextmanager
def style() -> Iterator[None]:
    """The look of the paper's figures while it lasts; a user's own settings of matplotlib play no part.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("figures need matplotlib, which is not installed: pip install 'narl[figures]'")
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def canvas(width: float, height: float) -> Figure:
    """An empty figure.

    Args:
        width: in inches, ``COLUMN`` or ``PAGE``.
        height: in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Figure, rows: int, columns: int, *, sharey: bool | Literal["row"] = False) -> list[list[Axes]]:
    """Rows of axes over one scale of x, always a list of lists."""
    grid = figure.subplots(rows, columns, sharex=True, sharey=sharey, squeeze=False)
    return [list(row) for row in grid]


def letter(axes: Sequence[Axes], titles: Sequence[str]) -> None:
    """Head panels with (a), (b), … and a few words, so that a text can speak of them."""
    for place, (panel, title) in enumerate(zip(axes, titles, strict=True)):
        panel.set_title(f"({chr(ord('a') + place)}) {title}", loc="left")


def legend_above(figure: Figure, axes: Axes, columns: int, title: str = "") -> None:
    """One legend over all panels, where it covers nothing, with the entries of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, title=title or None)


def check_writable(path: Path) -> None:
    """Refuse a place where no picture can be written, before the work begins."""
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise OptionError(f"{path} is no picture that can be drawn: let the name end in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise OptionError(f"the folder {path.parent} does not exist: make it, or choose another one")


def folder_for(path: Path) -> None:
    """Make a folder for figures, unless it is there.

    Raises:
        OptionError: where there can be none.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{path} cannot be a folder for figures: {error.strerror or error}; choose another"
        ) from error


def save(drawing: Drawing, path: Path) -> None:
    """Write a figure, all of it or nothing; the same figure gives the same bytes.

    Args:
        drawing: the figure.
        path: ending in .svg, .png or .pdf.

    Raises:
        OptionError: where it cannot be written.
    """
    check_writable(path)
    kind = path.suffix.lower().removeprefix(".")
    try:
        with style(), replacing(path) as file:
            drawing.figure.savefig(file, format=kind, dpi=300, metadata=_METADATA[kind])
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"{path} could not be written: {reason}; choose another folder with --out") from error
