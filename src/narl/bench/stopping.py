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
