"""Tells whoever asked something of an attempt how it ended. Decides nothing but what is too late."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.checkpoint.messages import AbortReason, Answer, AnswerRequest
from penstock.runtime.inbox import Item, Request

log = logging.getLogger("penstock")


class Answers:
    """The way back to those who asked; may be used from any thread."""

    def __init__(self, answered: Callable[[AnswerRequest], None]) -> None:
        self._answered = answered

    def tell(self, answer: AnswerRequest) -> None:
        """Who cannot be told fails nothing: neither the job nor what others are told."""
        try:
            self._answered(answer)
        except Exception:
            log.warning("request %s may not have got its answer", answer.request, exc_info=True)

    def refuse(self, items: Iterable[Item]) -> None:
        """Nobody will take these in any more."""
        message = AbortReason.STOPPING.value
        for item in items:
            if isinstance(item, Request):
                self.tell(AnswerRequest(request=item.request, answer=Answer.REFUSED, checkpoint=None, message=message))
