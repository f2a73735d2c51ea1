"""Encoders by the kind of the inputs: fitted on training inputs, or from what an earlier one wrote down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narl.data.encoder import Encoder
from narl.data.image_encoding import ImageEncoder
from narl.data.samples import ImageFiles, Images, Inputs, Table, Texts
from narl.data.table_encoding import TableEncoder
from narl.data.text_encoding import TextEncoder
from narl.errors import DataError, nearest

__all__ = ["Encoder", "ImageEncoder", "TableEncoder", "TextEncoder", "fit", "from_state"]


def fit(inputs: Inputs, *, image_size: int | None = None, text_length: int | None = None) -> Encoder:
    """The encoder for inputs like these.

    Args:
        inputs: the training inputs; nothing is learned from any others.
        image_size: side of the square images that the model sees; None: that of the images, at most 64.
        text_length: tokens that the model sees of a text; None: enough for 99 of 100 texts, at most 256.

    Returns:
        The encoder of the inputs' kind.

    Raises:
        DataError: no inputs, an unreadable image, or numbers that are not finite.

    Example:
        >>> import numpy as np
        >>> encoder = fit(Texts(np.array(["Who wrote it?", "When?"], dtype=object)))
        >>> encoder.shape
        {'vocabulary': 7, 'length': 4}
        >>> encoder.encode(Texts(np.array(["Who wrote?"], dtype=object)))
        tensor([[5, 6, 2, 0]])
    """
    if len(inputs) == 0:
        raise DataError("there are no training inputs to learn an encoding from: give at least one sample")
    if isinstance(inputs, Images | ImageFiles):
        return ImageEncoder.fit(inputs, image_size)
    if isinstance(inputs, Texts):
        return TextEncoder.fit(inputs, text_length)
    if isinstance(inputs, Table):
        return TableEncoder.fit(inputs)
    raise DataError(f"inputs of type {type(inputs).__name__} have no encoder: give images, texts or a table")


def from_state(state: Mapping[str, Any]) -> Encoder:
    """The encoder that wrote this state.

    Args:
        state: from :meth:`Encoder.state`, perhaps by way of JSON.

    Returns:
        An encoder that gives exactly the same tensors.

    Raises:
        DataError: the state is incomplete or of no known kind.

    Example:
        >>> import json
        >>> import numpy as np
        >>> encoder = fit(Images(np.full((4, 8, 8, 1), 51, dtype=np.uint8)))
        >>> from_state(json.loads(json.dumps(encoder.state()))).state() == encoder.state()
        True
    """
    kinds = {encoder.kind: encoder for encoder in (ImageEncoder, TextEncoder, TableEncoder)}
    kind = str(state.get("kind")) if isinstance(state, Mapping) else ""
    if kind not in kinds:
        raise DataError(f"encoder of kind {kind!r} is unknown: {nearest(kind, kinds)}")
    try:
        return kinds[kind].from_state(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the {kind} encoder's state is incomplete or changed ({error!r}): train again") from error
