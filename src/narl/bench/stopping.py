"""A training that nobody looks at, and that stops when it is asked to."""

from __future__ import annotations

from typing import Any, final

from narl.bilevel import StepReport


class Asked:
    """An observer that shows nothing. Set ``stop``, and the training saves and leaves.

    Example:
        >>> asked = Asked()
        >>> asked.stop = True
        >>> asked.wants_stop()
        True
    """

    def __init__(self) -> None:
        self.stop = False

    def wants_stop(self) -> bool:
        """Whether somebody asked."""
        return self.stop

    def decoded(self, done: int, total: int) -> None:
        """Nothing to show."""

    def begin(self, title: str, epochs: int, steps: int, done: int) -> None:
        """Nothing to show."""

    def after_step(self, report: StepReport) -> None:
        """Nothing to show."""

    def after_epoch(self, record: dict[str, Any]) -> None:
        """Nothing to show."""


@final
class Latch(Asked):
    """An observer of trainings that go side by side: between two looks all of them hear the same.

    Args:
        asked: whom somebody may ask to stop, at any moment.

    Example:
        >>> asked = Asked()
        >>> latch = Latch(asked)
        >>> asked.stop = True
        >>> latch.wants_stop()
        False
        >>> latch.look()
        >>> latch.wants_stop()
        True
    """

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked

    def look(self) -> None:
        """See whether somebody asked."""
        self.stop = self._asked.stop


@final
class Located(Asked):
    """An observer of one training among several, that knows how far it was when it began.

    Args:
        name: of the training.
        asked: whom somebody may ask to stop.

    Example:
        >>> located = Located("digits/a-gce-seed0", Asked())
        >>> located.begin("A-GCE", epochs=3, steps=10, done=20)
        >>> located.at(5)
        'digits/a-gce-seed0, epoch 3, step 5 of 10'
    """

    def __init__(self, name: str, asked: Asked) -> None:
        super().__init__()
        self._name, self._asked = name, asked
        self._steps, self._done = 0, 0

    def wants_stop(self) -> bool:
        """Whether somebody asked."""
        return self._asked.wants_stop()

    def begin(self, title: str, epochs: int, steps: int, done: int) -> None:
        """Remember where it begins."""
        self._steps, self._done = steps, done

    def at(self, step: int) -> str:
        """Where the training was at a step, counted from 1 since it began or went on."""
        epoch, of_epoch = divmod(self._done + step - 1, self._steps)
        return f"{self._name}, epoch {epoch + 1}, step {of_epoch + 1} of {self._steps}"
