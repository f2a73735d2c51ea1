"""Texts to tensors: tokens by a vocabulary of the training texts."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from narl.data.encoder import Encoder
from narl.data.samples import Inputs, Texts
from narl.errors import DataError, OptionError

PADDING = 0
UNKNOWN = 1
_FIRST = 2
_LARGEST_VOCABULARY = 50_000
_SMALL_CORPUS = 20_000
_LONGEST_DEFAULT = 256

# Chinese and Japanese write no spaces between words: there a character is a token.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# Marks that belong to the letter before them, which \w does not know: accents, vowel signs of Hebrew to Thai.
_MARKS = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0970-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
_TOKEN = re.compile(
    rf"\d+(?:[.,]\d+)*"
    rf"|[^\W\d_{_IDEOGRAPHS}](?:[^\W\d_{_IDEOGRAPHS}]|[{_MARKS}]|['’](?=[^\W\d_]))*"
    rf"|[^\s]"
)


def tokens(text: str) -> list[str]:
    """Words in lower case, numbers and punctuation marks, in order.

    Args:
        text: in any script; words of Chinese and Japanese are single characters.

    Returns:
        The tokens; none for an empty text.

    Example:
        >>> tokens("Who's the 3rd? It cost 1,000.50!")
        ["who's", 'the', '3', 'rd', '?', 'it', 'cost', '1,000.50', '!']
    """
    return _TOKEN.findall(unicodedata.normalize("NFC", text.lower()))


@final
class TextEncoder(Encoder):
    """Texts as token numbers ``(N, L)``, 0 for padding, 1 for tokens that the training texts don't have.

    Longer texts are cut; a text without any token becomes one unknown token.

    Args:
        vocabulary: the known tokens; the first is number 2.
        length: tokens that the model sees of a text.

    Example:
        >>> encoder = TextEncoder(["?", "who"], length=3)
        >>> encoder.encode(Texts(np.array(["Who is it?", ""], dtype=object)))
        tensor([[3, 1, 1],
                [1, 0, 0]])
    """

    kind: ClassVar[str] = "text"

    def __init__(self, vocabulary: Sequence[str], length: int) -> None:
        if length < 1:
            raise OptionError(f"text length is {length}, but a text needs room for at least one token: try 64")
        self.vocabulary = tuple(vocabulary)
        self.length = length
        self._numbers = {token: number for number, token in enumerate(self.vocabulary, start=_FIRST)}
        if len(self._numbers) != len(self.vocabulary):
            raise DataError("the vocabulary has a token twice: give every token once")

    @classmethod
    def fit(cls, inputs: Texts, length: int | None = None) -> TextEncoder:
        """The encoder for training texts like these.

        The vocabulary holds all their tokens, or, from 20,000 different ones on, those that occur at least twice, at
        most 50,000: the most frequent.

        Args:
            inputs: the training texts.
            length: None: enough for 99 of 100 training texts, at most 256.

        Returns:
            The encoder.
        """
        counts: Counter[str] = Counter()
        lengths = np.empty(len(inputs), np.int64)
        for row, text in enumerate(inputs.texts):
            found = tokens(str(text))
            counts.update(found)
            lengths[row] = len(found)
        if length is None:
            enough = math.ceil(float(np.percentile(lengths, 99))) if len(lengths) else 1
            length = max(1, min(enough, _LONGEST_DEFAULT))
        return cls(_vocabulary(counts), length)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TextEncoder:
        """The encoder that wrote this state."""
        return cls([str(token) for token in state["vocabulary"]], int(state["length"]))

    def state(self) -> dict[str, Any]:
        """Everything that was fitted."""
        return {"kind": self.kind, "vocabulary": list(self.vocabulary), "length": self.length}

    @property
    def shape(self) -> dict[str, Any]:
        """How many token numbers there are, padding and unknown among them, and how many a text has."""
        return {"vocabulary": len(self.vocabulary) + _FIRST, "length": self.length}

    def encode(self, inputs: Inputs) -> Tensor:
        """The texts' token numbers, ``(N, L)``, int64."""
        if not isinstance(inputs, Texts):
            raise self.refuse(inputs)
        encoded = np.full((len(inputs), self.length), PADDING, np.int64)
        for row, text in enumerate(inputs.texts):
            known = self._look_up(tokens(str(text))[: self.length]) or [UNKNOWN]
            encoded[row, : len(known)] = known
        return torch.from_numpy(encoded)

    def _look_up(self, found: Iterable[str]) -> list[int]:
        return [self._numbers.get(token, UNKNOWN) for token in found]


def _vocabulary(counts: Counter[str]) -> list[str]:
    least = 1 if len(counts) < _SMALL_CORPUS else 2
    kept = [token for token, count in counts.items() if count >= least]
    return sorted(kept, key=lambda token: (-counts[token], token))[:_LARGEST_VOCABULARY]
