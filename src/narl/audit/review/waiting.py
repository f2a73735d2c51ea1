"""Samples that wait for an answer: the next one at once, and no sample in two tabs at a time."""

from __future__ import annotations

from typing import Final, final

import numpy as np

_HELD: Final = 600.0
"""Seconds that a sample belongs to the tab that shows it."""

_MOST_TABS: Final = 1000
_AT_ONCE: Final = 1 << 16


@final
class Waiting:
    """Places 0 … N − 1 in an order, each waiting or answered.

    Args:
        count: N.

    Example:
        >>> waiting = Waiting(3)
        >>> waiting.next("left", 0.0), waiting.next("right", 0.0), waiting.next("left", 1.0)
        (0, 1, 0)
        >>> waiting.answered(0)
        >>> waiting.next("left", 2.0), waiting.left
        (2, 2)
        >>> waiting.reopened(0)
        >>> waiting.next("other", 3.0)
        0
    """

    def __init__(self, count: int) -> None:
        self._answers = np.zeros(count, np.uint16)
        self._first = 0  # nobody waits before it
        self._held: dict[str, tuple[int, float]] = {}
        self.left = count

    def next(self, tab: str, now: float) -> int | None:
        """The first place that waits and is in no other tab; the same one until it is answered.

        Args:
            tab: who asks.
            now: the time in seconds, by any clock that goes forward.

        Returns:
            The place; None where none waits.
        """
        own = self._held.pop(tab, None)
        if own is not None and not self._answers[own[0]]:
            return self.hold(tab, own[0], now)
        self._held = {other: held for other, held in self._held.items() if now - held[1] < _HELD}
        elsewhere = {place for place, _ in self._held.values()}
        self._first = place = self._waiting_from(self._first)
        while place in elsewhere:
            place = self._waiting_from(place + 1)
        return self.hold(tab, place, now) if place < len(self._answers) else None

    def hold(self, tab: str, place: int, now: float) -> int:
        """Give a place to a tab, which shows it next."""
        if len(self._held) >= _MOST_TABS:
            self._held.pop(next(iter(self._held)))
        self._held[tab] = (place, now)
        return place

    def answered(self, place: int) -> None:
        """One more answer to a place."""
        self.left -= int(self._answers[place] == 0)
        self._answers[place] += 1

    def reopened(self, place: int) -> None:
        """One answer less; without any the place waits again."""
        self._answers[place] -= 1
        if not self._answers[place]:
            self.left += 1
            self._first = min(self._first, place)

    def _waiting_from(self, place: int) -> int:
        """The first place from this one on that waits; N where none does."""
        for start in range(place, len(self._answers), _AT_ONCE):
            free = self._answers[start : start + _AT_ONCE] == 0
            if free.any():
                return start + int(free.argmax())
        return len(self._answers)
