"""What the clients of a reader say of their own accord: it tells why an answer does not come."""

from __future__ import annotations

import logging
from typing import Final

from penstock.sources.kafka_errors import Trouble, is_refusal, is_wordless

log: Final = logging.getLogger("penstock.kafka")


class Said:
    """The last trouble that a client met by itself, and whether it ever reached the cluster."""

    def __init__(self) -> None:
        self._last: Trouble | None = None
        self._reached = False
        self._refusals = 0

    def heard(self, trouble: Trouble) -> None:
        """Called by a client."""
        log.debug("%s: %s", trouble.name(), trouble.str())
        if trouble.name() != "_ALL_BROKERS_DOWN":
            self._last = trouble
            self._refusals += is_refusal(trouble.name())

    def answered(self) -> None:
        """The cluster was reached."""
        self._last, self._reached = None, True

    @property
    def refusal(self) -> Trouble | None:
        """Why the cluster lets nobody in with these options, if it has said so twice and never let anybody in."""
        return self._last if self._refusals > 1 and not self._reached else None

    def behind(self, trouble: Trouble) -> tuple[str, str]:
        """The code and the words for an error: where it only says that nothing came, those of what came before.

        A login is refused for good only if it never worked: a broker that is just starting may refuse some.
        """
        if self._last is None or not is_wordless(trouble.name()):
            return trouble.name(), trouble.str()
        code = trouble.name() if self._reached else self._last.name()
        return code, f"{trouble.str()}; {self._last.str()}"
