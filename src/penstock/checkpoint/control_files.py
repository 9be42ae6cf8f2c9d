"""The files below ``control/``: written once, listed, cleaned. Used by running jobs and by whoever asks them.

Nothing that decides is read from here: what was done stands in the log. A lost answer is a lost answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.control import ControlAnswer, ControlRequest
from penstock.checkpoint.control_codec import decode_answer, decode_request, encode_answer, encode_request
from penstock.checkpoint.numbers import backoff
from penstock.errors import StateDirectoryRefused, StorageFailed
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.ids import Instant

LOOK_AGAIN: Final = 0.05
"""Seconds from one look for an answer to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one listing found: ids, sorted."""

    open: tuple[str, ...]
    """Requests without an answer."""
    answered: tuple[str, ...]
    """Answers, whether their request is still there or not."""


class ControlFiles:
    """The requests to one job and their answers.

    Args:
        filesystem: rooted at the job's directory.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem

    def scan(self) -> Scan:
        """List once."""
        found = [paths.control_id(path) for path in self._filesystem.list(paths.CONTROL)]
        ids = [each for each in found if each is not None]
        answered = {id for id, is_answer in ids if is_answer}
        asked = {id for id, is_answer in ids if not is_answer}
        return Scan(open=tuple(sorted(asked - answered)), answered=tuple(sorted(answered)))

    # --------------------------------------------------------------------------------------------------------- asking

    def ask(self, request: ControlRequest, *, pause: Callable[[float], object]) -> None:
        """Put a request there; the same one again is no new request.

        Raises:
            StateDirectoryRefused: another request has this id.
            StorageFailed: surely nothing was asked.
        """
        path, data = paths.request(request.request), encode_request(request)
        for seconds in backoff():
            try:
                if self._filesystem.create(path, data) is Created.EXISTS and self._filesystem.read(path) != data:
                    msg = f"{path} holds another request; ids are random and never used twice"
                    raise StateDirectoryRefused(msg)
                return
            except UnknownOutcome:
                pause(seconds)

    def answer_to(self, request: str) -> ControlAnswer | None:
        """The answer, if it is there.

        Raises:
            CheckpointUnreadable: it is not one.
        """
        data = self._filesystem.read(paths.answer(request))
        return None if data is None else decode_answer(data, request)

    def wait_for_answer(
        self, request: str, *, seconds: float, now: Callable[[], Instant], pause: Callable[[float], object]
    ) -> ControlAnswer | None:
        """The answer, waited for at most so long; ``None`` if nobody gave one. ``pause`` may raise, to give up.

        Raises:
            CheckpointUnreadable: there is one, which this version does not understand.
            StorageFailed: whether there is one cannot be seen, to the end.
        """
        deadline = now() + int(seconds * 1_000_000)
        while True:
            answer, failed = self._look_for(request)
            if answer is not None:
                return answer
            left = (deadline - now()) / 1_000_000
            if left <= 0 and failed is not None:
                raise failed
            if left <= 0:
                return None
            pause(min(LOOK_AGAIN, left))

    def _look_for(self, request: str) -> tuple[ControlAnswer | None, StorageFailed | None]:
        """Storage that fails just now has not said that there is no answer."""
        try:
            return self.answer_to(request), None
        except StorageFailed as error:
            return None, error

    # ------------------------------------------------------------------------------------------------------ answering

    def request(self, id: str) -> ControlRequest | None:
        """The request, if it is still there.

        Raises:
            CheckpointUnreadable: it is not one that this version understands.
        """
        data = self._filesystem.read(paths.request(id))
        return None if data is None else decode_request(data, id)

    def answer(self, answer: ControlAnswer) -> bool:
        """Put an answer there unless there is one; ``False`` if that is not known and should be tried again.

        Raises:
            StorageFailed: surely nothing was written.
        """
        try:
            self._filesystem.create(paths.answer(answer.request), encode_answer(answer))
        except UnknownOutcome:
            return False
        return True

    def forget(self, id: str) -> None:
        """Remove request and answer, in this order: a request whose answer is gone would look open again."""
        self._filesystem.delete(paths.request(id))
        self._filesystem.delete(paths.answer(id))
