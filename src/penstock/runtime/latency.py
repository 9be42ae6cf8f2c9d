"""When a source sends its next latency marker; pure. Knows neither the task that sends it nor where it arrives."""

from __future__ import annotations

from penstock.ids import Instant


class MarkerRhythm:
    """A fixed rate, from the first question on; what is missed is not made up.

    While there is no room downstream one marker at most waits there, to tell how long that lasts: so markers never
    pile up behind a step that stands still.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._is_one_stuck = False
        self.next_at: Instant | None = None
        """When to ask again."""

    def due(self, now: Instant, *, has_room: bool) -> bool:
        """Whether to send one now; asked again before :attr:`next_at`, the answer is no."""
        if self.next_at is not None and now < self.next_at:
            return False
        first = now if self.next_at is None else self.next_at
        self.next_at = Instant(first + ((now - first) // self._interval + 1) * self._interval)
        if not has_room and self._is_one_stuck:
            return False
        self._is_one_stuck = not has_room
        return True
