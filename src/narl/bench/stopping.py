"""A training that nobody looks at, and that stops when it is asked to."""

from __future__ import annotations

from typing import Any, final

from narl.bilevel import StepReport


@final
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
