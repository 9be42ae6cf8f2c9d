"""How a job ends in order: the final checkpoint, everything published, a ``stopped`` entry. Pure; see C2."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.checkpoint.entries import Pin, Stopped
from penstock.checkpoint.messages import Answer, AnswerRequest, Effect, EndJob, StopRequested, WriteStopped
from penstock.errors import InternalError
from penstock.handles import Committable, output_names
from penstock.ids import CheckpointId, WallTime


class Ending:
    """Whether the job is to end, who asked for it, and how far it is."""

    def __init__(self) -> None:
        self.is_wanted = False
        """A final checkpoint is to be taken."""
        self.final: CheckpointId | None = None
        """The final checkpoint, once it is in the log."""
        self.is_drained = False
        """The sources have ended for good, or are about to: no checkpoint but the final one may say so."""
        self._is_impatient = False  # somebody does not wait longer for output to be published
        self._stops: list[StopRequested] = []
        self._is_writing = False

    def drain(self) -> bool:
        """The final barriers leave: whether the sources are to end first, for good."""
        self.is_drained = self.is_drained or any(stop.drain for stop in self._stops)
        return self.is_drained

    def is_too_late_for(self, stop: StopRequested, *, is_begun: bool, is_sent: bool) -> bool:
        """Whether it cannot get what it asks for any more: the final barriers have left, or its manifest is sent."""
        is_undrained = stop.drain and is_begun and not self.is_drained
        return self._is_sealed or is_undrained or (stop.name is not None and is_sent)

    @property
    def _is_sealed(self) -> bool:
        """The ``stopped`` entry is on its way: whoever asks from now on is not in it."""
        return self._is_writing

    def ask(self, stop: StopRequested) -> None:
        """Somebody asks the job to stop."""
        self.is_wanted = True
        self._stops.append(stop)

    def lose_patience(self, request: str) -> None:
        """Whoever asked does not wait longer for output to be published."""
        self._is_impatient = self._is_impatient or any(stop.request == request for stop in self._stops)

    def pins(self, checkpoint: CheckpointId, at: WallTime) -> tuple[Pin, ...]:
        """The names that the final checkpoint gets. The requests themselves are fulfilled by the ``stopped`` entry."""
        return tuple(
            Pin(name=stop.name, checkpoint=checkpoint, at=at, owner=stop.owner, request=stop.request)
            for stop in self._stops
            if stop.name is not None
        )

    def proceed(self, still_open: Iterable[Committable], wall: WallTime) -> list[Effect]:
        """What is next once the final checkpoint is in the log: wait, write ``stopped``, or give up waiting."""
        if self.final is None or self._is_writing:
            return []
        waiting = tuple(still_open)
        if not waiting:
            self._is_writing = True
            fulfils = tuple(stop.request for stop in self._stops)
            return [WriteStopped(body=Stopped(checkpoint=self.final, at=wall, fulfils=fulfils))]
        if not self._is_impatient:
            return []
        return [*self._unpublished(waiting), EndJob(published=False)]

    def stopped(self) -> list[Effect]:
        """The entry is in the log.

        Raises:
            InternalError: it was not being written.
        """
        if not self._is_writing:
            msg = "no 'stopped' entry is being written"
            raise InternalError(msg)
        return [*self._answers(Answer.DONE, "stopped, everything is published"), EndJob(published=True)]

    def cut_short(self, still_open: Iterable[Committable], message: str, *, is_sent: bool) -> list[Effect]:
        """The run has failed: whoever asked it to stop is told how far it came.

        Args:
            still_open: what the log holds and nobody has confirmed.
            message: why it failed.
            is_sent: the final checkpoint's manifest is on its way to the log.
        """
        if is_sent or self._is_writing:
            return self._answers(Answer.UNKNOWN, message)
        if self.final is None:
            return self._answers(Answer.FAILED, message)
        return self._unpublished(still_open)

    def _unpublished(self, still_open: Iterable[Committable]) -> list[Effect]:
        waiting = output_names(*still_open)
        message = f"checkpoint {self.final} is taken, not yet published: {waiting}; the next start publishes it"
        return self._answers(Answer.UNPUBLISHED, message)

    def _answers(self, answer: Answer, message: str) -> list[Effect]:
        stops, self._stops = self._stops, []
        return [
            AnswerRequest(request=stop.request, answer=answer, checkpoint=self.final, message=message) for stop in stops
        ]
