"""Tables of results, for a terminal, a page or a mail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

_MODELS = {
    "resnet32": "ResNet-32",
    "resnet34": "ResNet-34",
    "preact_resnet18": "PreAct ResNet-18",
    "timm:inception_resnet_v2": "Inception-ResNet-v2",
    "transformer": "6-layer transformer encoder",
}


@final
@dataclass(frozen=True)
class Table:
    """Cells that are ready to be read: the first column names the row, the others hold its numbers.

    Args:
        title: what is shown.
        columns: their headings.
        rows: cells, as many in each row as there are columns.
        notes: what a reader must know, a sentence each.

    Example:
        >>> table = Table("Cost", ("method", "ratio"), (("CE", "1.00"), ("A-GCE", "3.75")), ("Two cores.",))
        >>> print(table.text())
        Cost
        method  ratio
        CE       1.00
        A-GCE    3.75
        Two cores.
        >>> print(table.markdown())
        **Cost**
        <BLANKLINE>
        | method | ratio |
        |---|---:|
        | CE | 1.00 |
        | A-GCE | 3.75 |
        <BLANKLINE>
        Two cores.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Columns of one width each, for a file or another program."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        return "\n".join([self.title, *(line.rstrip() for line in aligned), *self.notes])

    def markdown(self) -> str:
        """For a page of documentation."""
        heading, rule = _line(self.columns), "|---" + "|---:" * (len(self.columns) - 1) + "|"
        table = "\n".join([heading, rule, *map(_line, self.rows)])
        return "\n\n".join([f"**{self.title}**", table, *([" ".join(self.notes)] if self.notes else [])])


def model_title(name: str) -> str:
    """A classifier as people write it.

    Example:
        >>> model_title("resnet32"), model_title("mine")
        ('ResNet-32', 'mine')
    """
    return _MODELS.get(name, name)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
