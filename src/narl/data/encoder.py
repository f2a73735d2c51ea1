"""What turns inputs into tensors: one interface for images, texts and tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from narl.data.samples import Inputs
from narl.errors import DataError

_PLURALS = {"image": "images", "text": "texts", "table": "rows of a table"}


class Encoder(ABC):
    """Fitted on training inputs, it turns any inputs of their kind into tensors that a model understands.

    ``kind`` is that of the inputs. Encoding has two halves: :meth:`encode` makes compact tensors on the host, once;
    :meth:`finish` makes a batch of them ready for the model, on the batch's device, after augmentation.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """What a model's builder needs to know of the inputs."""

    @abstractmethod
    def encode(self, inputs: Inputs) -> Tensor:
        """Compact tensor on the host, one entry a sample."""

    def finish(self, x: Tensor) -> Tensor:
        """A batch of encoded samples as the model wants it, on the batch's device."""
        return x

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that was fitted, to be written as JSON; :func:`narl.data.encoding.from_state` reads it."""

    def refuse(self, inputs: Inputs) -> DataError:
        """The error about inputs of another kind."""
        given, wanted = (_PLURALS.get(kind, kind) for kind in (inputs.kind, self.kind))
        return DataError(f"these inputs are {given}, but the model was trained on {wanted}: give {wanted}")
