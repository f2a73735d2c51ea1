"""ImageNet's synset ids and their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from narl.data.source import read_lines


def read_words(path: Path) -> dict[str, str]:
    """The first word of every synset in a file of lines such as ``n01440764 tench, Tinca tinca``; none: no file."""
    if not path.is_file():
        return {}
    words = {}
    for line in read_lines(path):
        synset, _, rest = line.strip().replace("\t", " ").partition(" ")
        words[synset] = rest.split(",")[0].strip()
    return words


def class_names(synsets: Iterable[str], words: Mapping[str, str]) -> tuple[str, ...]:
    """Names such as ``n01440764 tench``: words alone are not unique, and the ids tell classes of two sets alike.

    Example:
        >>> class_names(["n01440764", "n01443537"], {"n01440764": "tench"})
        ('n01440764 tench', 'n01443537')
    """
    return tuple(f"{synset} {words[synset]}" if words.get(synset) else synset for synset in synsets)
