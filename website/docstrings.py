"""Docstrings as Markdown: formulas and references are written there as Sphinx has them."""

from __future__ import annotations

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^([ ]*)\.\. math::[ ]*(.*(?:\n(?:\1[ ]+\S.*)?)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)  # of the two, griffe takes this one for a doctest
REFERENCE = re.compile(r":(?:func|class|meth|data|attr|mod):`~?\.?([^`]+)`")


def as_markdown(text: str) -> str:
    """A docstring with its formulas between dollars, its references as code, its examples as such."""
    text = BLOCK.sub(lambda match: f"{match[1]}$$\n{_indented(match[2], match[1])}\n{match[1]}$$\n\n", text)
    text = INLINE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
    text = EXAMPLE.sub("Examples:", text)
    return REFERENCE.sub(r"`\1`", text)


def _indented(formula: str, indent: str) -> str:
    return "\n".join(indent + line.strip() for line in formula.strip().splitlines() if line.strip())


class AsMarkdown(griffe.Extension):
    """Applies :func:`as_markdown` to everything that has a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
