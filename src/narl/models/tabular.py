"""Classifiers of tables: numbers and categories into a multi-layer perceptron."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from narl.checks import can_read
from narl.errors import DataError, OptionError
from narl.models.building import at_least, build
from narl.models.mlp import check_perceptron, perceptron


@final
class Columns(nn.Module):
    """The numbers of a row as they are, and a learned vector for each of its categories.

    Args:
        numbers: d, columns of numbers.
        cardinalities: number of codes of each of the k columns of categories.

    Shape: ``(N, d + k)`` to ``(N, features)``.
    """

    def __init__(self, numbers: int, cardinalities: Sequence[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.embeddings = nn.ModuleList(nn.Embedding(codes, embedding_size(codes)) for codes in cardinalities)

    @property
    def features(self) -> int:
        """Numbers a row, with the categories' vectors."""
        return self.numbers + sum(embedding.embedding_dim for embedding in self._tables)

    @property
    def _tables(self) -> list[nn.Embedding]:
        return [table for table in self.embeddings if isinstance(table, nn.Embedding)]

    def forward(self, x: Tensor) -> Tensor:
        """Numbers and vectors side by side."""
        self._check(x)
        numbers, codes = x[:, : self.numbers], x[:, self.numbers :].long()
        vectors = [table(code) for table, code in zip(self._tables, codes.T, strict=True)]
        return torch.cat((numbers, *vectors), dim=1)

    def _check(self, x: Tensor) -> None:
        tables = self._tables
        if x.dim() != 2 or x.shape[1] != self.numbers + len(tables):
            raise DataError(
                f"a model of tables got a tensor of shape {tuple(x.shape)}: it takes one row a sample, "
                f"{self.numbers} numbers, then {len(tables)} category codes"
            )
        if tables and len(x) and can_read(x):
            lowest, highest = torch.aminmax(x[:, self.numbers :], dim=0)
            for column, (low, high, table) in enumerate(zip(lowest.tolist(), highest.tolist(), tables, strict=True)):
                if not (low >= 0 and high < table.num_embeddings):  # NaN fits neither
                    raise DataError(
                        f"category column {column} has codes from {low:g} to {high:g} but the model knows "
                        f"{table.num_embeddings}: encode the table as the training table was, with 0 for unknown values"
                    )


def embedding_size(codes: int) -> int:
    """How many numbers stand for a category: half as many as there are codes, 50 at most.

    Args:
        codes: number of codes of the column, the one for unknown values included.

    Returns:
        At least 1.

    Example:
        >>> [embedding_size(codes) for codes in (1, 2, 3, 20, 1000)]
        [1, 1, 2, 10, 50]
    """
    return min(50, (codes + 1) // 2)


def _network(
    numbers: int, cardinalities: Sequence[int], num_classes: int, hidden: Sequence[int], dropout: float
) -> nn.Sequential:
    columns = Columns(numbers, cardinalities)
    layers: OrderedDict[str, nn.Module] = OrderedDict(columns=columns)
    return nn.Sequential(layers | perceptron(columns.features, num_classes, hidden, dropout))


def tabular(
    numbers: int,
    cardinalities: Sequence[int],
    num_classes: int,
    hidden: Sequence[int] = (256, 256),
    dropout: float = 0.0,
    *,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""Multi-layer perceptron over the numbers and categories of a table.

    .. math:: h_0 = \big(x_1, \dots, x_d,\; e_1(a_1), \dots, e_k(a_k)\big), \qquad
              h_i = \operatorname{relu}(W_i h_{i-1} + b_i), \qquad z = W h_n + b

    with a learned vector :math:`e_j(a)` of :func:`embedding_size` numbers for each code a of column j. It begins at
    length 1 on average, as wide as a standardised number, so that no column drowns the others; that of code 0, for
    unknown values, begins at zero. No BatchNorm: in a small batch, rows would learn about each other through it.

    Args:
        numbers: d, columns of numbers; they should be standardised.
        cardinalities: number of codes of each of the k columns of categories: codes run from 0 to that less one.
        num_classes: c, at least 2.
        hidden: width of each hidden layer; ``()`` gives a linear classifier.
        dropout: share of hidden values set to zero while training, in ``[0, 1)``.
        generator: source of the initial weights; None means torch's global random state. Dropout draws from the
            global state, as torch's layer does.

    Returns:
        A model from ``(N, d + k)`` of floating type, numbers before category codes, to logits ``(N, c)``. In host
        memory, codes that the model does not know are a ``DataError``.

    Raises:
        OptionError: a size that is too small or no whole number, a table without columns, or a dropout outside its
            range.

    Example:
        >>> model = tabular(2, [3, 7], num_classes=4, generator=torch.Generator().manual_seed(0))
        >>> model(torch.tensor([[0.5, -1.2, 2.0, 6.0], [1.5, 0.3, 0.0, 1.0]])).shape
        torch.Size([2, 4])

    Reference: Guo, Berkhahn. Entity embeddings of categorical variables. arXiv:1604.06737, 2016.
    """
    at_least(0, numbers=numbers)
    at_least(2, num_classes=num_classes)
    if not isinstance(cardinalities, Sequence):
        raise OptionError(f"cardinalities must be a sequence of counts such as [3, 7], got {cardinalities!r}")
    at_least(1, **{f"cardinalities[{column}]": codes for column, codes in enumerate(cardinalities)})
    if not numbers and not cardinalities:
        raise OptionError("a table without columns has nothing to classify by: give numbers or cardinalities")
    check_perceptron(hidden, dropout)
    return build(lambda: _network(numbers, cardinalities, num_classes, hidden, dropout), generator)
