"""The coordinator's door: events in, effects out. What is decided in between stands in ``run``.

No input or output, no threads, no clock, no chance: time comes in the event.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.checkpoint.messages import Effect, Event, JobStarted
from penstock.checkpoint.policy import CoordinatorSettings
from penstock.checkpoint.run import Run
from penstock.errors import InternalError

__all__ = ["Coordinator", "CoordinatorSettings"]

STORY: Final = 20
"""How many of the newest events an :class:`InternalError` tells."""


class Coordinator:
    """One run's checkpoints. :meth:`handle` is the only way to change it; an illegal event changes nothing.

    A run begins with :class:`JobStarted` and is over after :class:`EndJob` or :class:`FailJob`; what is reported later
    is ignored. The next run has a coordinator of its own.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._story: deque[str] = deque(maxlen=STORY)
        self._run: Run | None = None

    def handle(self, event: Event) -> list[Effect]:
        """Take in what happened; returns what is to be done about it, in order.

        Raises:
            InternalError: this cannot happen now; nothing has changed.
        """
        self._story.append(repr(event))
        try:
            if self._run is not None:
                return self._run.handle(event)
            if not isinstance(event, JobStarted):
                msg = "the job has not started"
                raise InternalError(msg)
            self._run = Run(self._settings, event)
            return self._run.begin()
        except InternalError as error:
            msg = f"{error}; the newest events:\n" + "\n".join(self._story)
            raise InternalError(msg) from error
