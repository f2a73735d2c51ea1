"""Sparse rows, such as counts of words: scaled but not centred, and made dense a batch at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narl.data.encoder import Encoder
from narl.data.pools import HeldPool, Pool
from narl.data.samples import Inputs, Rows
from narl.errors import DataError

_LENGTH = 10.0  # of 1, 4, 10 and 30 the best on TREC's questions as TF-IDF, with a network of one hidden layer
_HELD = 1 << 28  # bytes up to which the rows are made dense once and for all


@final
@dataclass(frozen=True, eq=False)
class SparseRows(Inputs):
    """Rows of numbers, most of them 0.

    Args:
        matrix: ``(N, d)``, scipy's CSR, finite, every column once in a row.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> rows = SparseRows(csr_matrix([[0, 2], [1, 0], [0, 2]]))
        >>> first, second, third = rows.digests()
        >>> len(rows), first == third, first == second
        (3, True, False)
    """

    kind: ClassVar[str] = "table"
    matrix: Any

    def __len__(self) -> int:
        """How many rows."""
        return int(self.matrix.shape[0])

    def take(self, rows: Rows) -> SparseRows:
        """These rows, in this order."""
        return SparseRows(self.matrix[rows])

    def digests(self) -> list[bytes]:
        """Fingerprints of the rows; zeros that are written down count as those that are not."""
        plain = self.matrix.copy()
        plain.eliminate_zeros()
        plain.sort_indices()
        ends = plain.indptr
        return [
            _digest(plain.indices[start:end].astype(np.int64), plain.data[start:end].astype(np.float64))
            for start, end in pairwise(ends)
        ]

    def fingerprint(self) -> bytes:
        """Of all rows."""
        return hashlib.blake2b(b"".join(self.digests()), digest_size=16).digest()


def _digest(places: NDArray[np.int64], values: NDArray[np.float64]) -> bytes:
    return hashlib.blake2b(places.tobytes() + values.tobytes(), digest_size=16).digest()


@final
@dataclass(frozen=True, eq=False)
class SparseEncoder(Encoder):
    r"""Rows as dense ``(N, d)``, every column by one factor.

    .. math:: x' = x \cdot \sqrt{N \,/\, \textstyle\sum_i \lVert x_i \rVert^2} \cdot s

    One factor for all: rows get a root-mean-square length of s, whatever unit they were counted in, and the weights
    that somebody gave to the columns, as TF-IDF does, stay. Nothing is centred, so zeros stay zeros.

    Args:
        columns: d.
        factor: of all numbers.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> rows = SparseRows(csr_matrix([[0.0, 2.0], [2.0, 0.0]]))
        >>> encoder = SparseEncoder.fit(rows)
        >>> encoder.encode(rows)
        tensor([[ 0., 10.],
                [10.,  0.]])
    """

    kind: ClassVar[str] = "table"
    columns: int
    factor: float

    @classmethod
    def fit(cls, inputs: SparseRows) -> SparseEncoder:
        """The encoder for training rows like these."""
        squares = float(np.square(inputs.matrix.data, dtype=np.float64).sum()) / max(len(inputs), 1)
        return cls(int(inputs.matrix.shape[1]), _LENGTH / np.sqrt(squares) if squares > 0 else 1.0)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SparseEncoder:
        """The encoder that wrote this state."""
        return cls(int(state["columns"]), float(state["factor"]))

    def state(self) -> dict[str, Any]:
        """Everything that was fitted."""
        return {"kind": self.kind, "columns": self.columns, "factor": self.factor}

    @property
    def shape(self) -> dict[str, Any]:
        """As that of a table of numbers."""
        return {"numbers": self.columns, "cardinalities": []}

    def encode(self, inputs: Inputs) -> Tensor:
        """The rows, ``(N, d)``, float32."""
        if not isinstance(inputs, SparseRows):
            raise self.refuse(inputs)
        if inputs.matrix.shape[1] != self.columns:
            raise DataError(f"these rows have {inputs.matrix.shape[1]} columns, those of the training {self.columns}")
        return torch.from_numpy(inputs.matrix.toarray().astype(np.float32, copy=False)).mul_(self.factor)


@final
class SparsePool(Pool):
    """Sparse rows that are made dense when they are needed.

    Args:
        inputs: the rows.
        encoder: what makes them dense.
        device: where the batches go.
    """

    def __init__(self, inputs: SparseRows, encoder: SparseEncoder, device: torch.device) -> None:
        self.inputs, self.encoder, self.device = inputs, encoder, device

    def __len__(self) -> int:
        """How many rows."""
        return len(self.inputs)

    def get(self, rows: Tensor) -> Tensor:
        """These rows, on the device."""
        return self.encoder.encode(self.inputs.take(rows.cpu().numpy())).to(self.device)


def sparse_pool(inputs: SparseRows, encoder: SparseEncoder, device: torch.device) -> Pool:
    """The pool for these rows: dense if they are small enough, else as they are."""
    if len(inputs) * encoder.columns * 4 <= _HELD:
        return HeldPool(encoder.encode(inputs).to(device), device)
    return SparsePool(inputs, encoder, device)
