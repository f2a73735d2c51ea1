"""What scikit-learn calls X, as narl's inputs: arrays, data frames, sparse matrices, arrays of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from narl.data import encoding, pools
from narl.data.encoder import Encoder
from narl.data.pools import Pool
from narl.data.samples import Images, Inputs, Table
from narl.errors import DataError
from narl.integrations.sklearn.sparse import SparseEncoder, SparseRows, sparse_pool

Array = NDArray[Any]


def read(estimator: Any, X: Any, *, reset: bool) -> Inputs:
    """Check X as scikit-learn's estimators do, and say what it is.

    Args:
        estimator: gets ``n_features_in_`` and ``feature_names_in_``, or is asked for them.
        X: numbers ``(N, d)``, dense or sparse; a data frame, also with columns of words; images ``(N, H, W[, C])``.
        reset: whether this is training data, by which later data are measured.

    Returns:
        A table, sparse rows or images. Where the training data were sparse, later ones are made so, and the other way
        round.
    """
    from scipy.sparse import csr_matrix, issparse
    from sklearn.utils.validation import validate_data

    before: tuple[int, ...] | None = None if reset else estimator._image_shape
    if before is not None or (not issparse(X) and not hasattr(X, "columns") and len(shape_of(X)) in (3, 4)):
        return _images(estimator, X, before)
    estimator._image_shape = None
    words = estimator._word_columns if not reset else _word_columns(X)
    if reset:
        estimator._word_columns = words
    if words:
        validate_data(estimator, X, skip_check_array=True, reset=reset)
        return _frame(X, words)
    try:
        X = validate_data(estimator, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=reset)
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        raise DataError(f"{error}: columns of words are read from data frames, give pandas.DataFrame(X)") from error
    sparse = issparse(X) if reset else isinstance(estimator._encoder, SparseEncoder)
    if sparse:
        return SparseRows(X if issparse(X) else csr_matrix(X))
    numbers = X.toarray() if issparse(X) else X
    names = getattr(estimator, "feature_names_in_", None)
    return Table(
        numbers,
        np.empty((len(numbers), 0), dtype=object),
        tuple(map(str, range(numbers.shape[1]))) if names is None else tuple(map(str, names)),
    )


def shape_of(X: Any) -> tuple[int, ...]:
    """The shape of anything that can be an array; empty if it cannot be one.

    Example:
        >>> shape_of([[1, 2], [3, 4]]), shape_of([[1], [2, 3]])
        ((2, 2), ())
    """
    if isinstance(shape := getattr(X, "shape", None), tuple):
        return shape
    try:
        return np.asarray(X).shape
    except ValueError:  # rows of different lengths
        return ()


def fit_encoder(inputs: Inputs) -> Encoder:
    """The encoder for training inputs like these."""
    return SparseEncoder.fit(inputs) if isinstance(inputs, SparseRows) else encoding.fit(inputs)


def pool_of(inputs: Inputs, encoder: Encoder, device: torch.device) -> Pool:
    """The inputs, encoded, on the device where they fit."""
    if isinstance(inputs, SparseRows):
        assert isinstance(encoder, SparseEncoder)
        return sparse_pool(inputs, encoder, device)
    return pools.make_pool(inputs, encoder, device=device)


def _images(estimator: Any, X: Any, before: tuple[int, ...] | None) -> Images:
    from sklearn.utils.validation import check_array

    shape = shape_of(X)
    if before is not None and shape[1:] != before:
        raise DataError(
            f"X has shape {shape}, but {type(estimator).__name__} was fitted on images of shape (N, "
            f"{', '.join(map(str, before))}): give such images"
        )
    pixels = check_array(X, allow_nd=True, dtype=None, ensure_2d=False, input_name="X", estimator=estimator)
    if pixels.dtype.kind not in "biuf":
        raise DataError(f"X holds images of type {pixels.dtype}: give numbers, such as uint8 or float32")
    if before is None:
        estimator._image_shape = pixels.shape[1:]
        estimator._word_columns = ()
        estimator.n_features_in_ = int(np.prod(pixels.shape[1:]))
        floating = pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > 255
    else:
        floating = bool(estimator._encoder.floating)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.shape[3] not in (1, 3):
        if pixels.shape[1] not in (1, 3):
            raise DataError(f"X has shape {shape}: give images (N, H, W) or (N, H, W, C) with 1 or 3 channels")
        pixels = pixels.transpose(0, 2, 3, 1)  # torch's order
    if not floating and pixels.dtype != np.uint8:
        if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > 255:
            raise DataError(
                f"X has images of {pixels.dtype}, those that {type(estimator).__name__} was fitted on held bytes "
                "from 0 to 255: give such images"
            )
        return Images(np.ascontiguousarray(pixels, dtype=np.uint8))
    return Images(np.ascontiguousarray(pixels, dtype=np.float32) if floating else np.ascontiguousarray(pixels))


def _word_columns(X: Any) -> tuple[str, ...]:
    """Columns of a data frame that hold no numbers."""
    if not hasattr(X, "columns") or not hasattr(X, "__getitem__"):
        return ()
    return tuple(name for name in X.columns if isinstance(name, str) and not _is_numeric(X[name]))


def _is_numeric(column: Any) -> bool:
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return True
    if values.dtype.kind != "O" or str(getattr(column, "dtype", "")) == "category":
        return False
    return all(isinstance(value, (int, float, np.number, np.bool_)) or value is None for value in values.tolist())


def _frame(X: Any, words: Sequence[str]) -> Table:
    """A data frame with columns of words."""
    names = list(X.columns)
    missing = [name for name in words if name not in names]
    if missing:
        raise DataError(f"column {missing[0]!r} is missing: give the columns that the classifier was fitted on")
    number_names = [name for name in names if name not in words]
    numbers = np.empty((len(X), len(number_names)), dtype=np.float64)
    for place, name in enumerate(number_names):
        try:
            numbers[:, place] = np.asarray(X[name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"column {name!r} of X held numbers in training and cannot be read as numbers here ({error}): give "
                "numbers"
            ) from error
    categories = np.empty((len(X), len(words)), dtype=object)
    for place, name in enumerate(words):
        categories[:, place] = ["" if _is_missing(value) else str(value) for value in np.asarray(X[name]).tolist()]
    return Table(numbers, categories, tuple(number_names), tuple(words))


def _is_missing(value: object) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
