"""What the clients of a reader say of their own accord: why an answer does not come, and what of it people are told.

A client whose broker is away says so twenty times a second. People are told once, then now and then, then that it is
over; the rest is there for whoever sets the logger ``penstock.kafka`` to debug.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, final

from penstock.ids import Instant
from penstock.sources.kafka.errors import Trouble, is_outage, is_refusal, is_wordless

log: Final = logging.getLogger("penstock.kafka")

_SECOND: Final = 1_000_000

_AGAIN: Final = 10 * _SECOND
"""Microseconds from the first line about a trouble to the second; each later wait is twice as long."""

_SELDOM: Final = 3_600 * _SECOND
"""The longest of these waits."""

_CALM: Final = 20 * _SECOND
"""Microseconds without a word after which one broker of several is well again: clients try it at least so often."""

_AT_ONCE: Final = 50
_TWICE_OVER: Final = frozenset({"FAIL", "ERROR"})
"""Facilities of log lines that say what the client also tells as an error."""


class Said:
    """The last trouble that a client met by itself, and whether it ever reached the cluster.

    It also stands for the logger of clients. They may call it on any thread.
    """

    def __init__(self) -> None:
        self._last: Trouble | None = None
        self._reached = False
        self._refusals = 0
        self._complaints: deque[Trouble] = deque(maxlen=_AT_ONCE)
        self._lines: deque[str] = deque(maxlen=_AT_ONCE)

    def heard(self, trouble: Trouble) -> None:
        """Called by a client."""
        log.debug("%s: %s", trouble.name(), trouble.str())
        if not is_outage(trouble.name()):
            self._last = trouble
            self._refusals += is_refusal(trouble.name())

    def complained(self, trouble: Trouble) -> None:
        """Called by the client that is listened to all along, so that what it says is news."""
        self.heard(trouble)
        self._complaints.append(trouble)

    def complaints(self) -> list[Trouble]:
        """What it complained of since the last time; of very much the latest."""
        found = []
        while self._complaints:
            found.append(self._complaints.popleft())
        return found

    def log(self, level: int, words: str, *given: object) -> None:
        """Called by a client as its logger, with a facility, its name and a text; the same text is told once."""
        line = words % given
        if given[:1] and given[0] in _TWICE_OVER:
            level = logging.DEBUG
        elif level > logging.DEBUG:
            level = logging.DEBUG if line in self._lines else level
            self._lines.append(line)
        log.log(level, "%s", line)

    def answered(self) -> None:
        """The cluster was reached."""
        self._last, self._reached = None, True

    @property
    def last(self) -> Trouble | None:
        """The last trouble since the cluster was reached."""
        return self._last

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


@final
class Outage:
    """Decides what is told of a cluster in trouble: its beginning, that it goes on, its end. Pure.

    Args:
        what: who has trouble with what: ``"source orders has trouble with Kafka at k:9092"``.

    >>> outage = Outage("source in has trouble with Kafka at k:9092")
    >>> outage.met(Instant(0), "connection refused", whole=True)
    'source in has trouble with Kafka at k:9092: connection refused'
    >>> outage.met(Instant(1_000_000), "connection refused", whole=True)
    >>> outage.answered(Instant(4_000_000), asked=Instant(3_000_000))
    'source in has trouble with Kafka at k:9092 no more; it lasted 4 s'
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: Instant | None = None
        self._last = Instant(0)
        self._due = Instant(0)
        self._wait = _AGAIN
        self._whole = False

    def met(self, now: Instant, words: str, *, whole: bool) -> str | None:
        """Something went wrong; what to tell, if anything.

        Args:
            now: the time.
            words: what.
            whole: whether nothing of the cluster can be reached, not only one of its brokers.
        """
        self._last, self._whole = now, self._whole or whole
        if self._since is None:
            self._since, self._due, self._wait = now, Instant(now + _AGAIN), _AGAIN
            return f"{self._what}: {words}"
        if now < self._due:
            return None
        self._wait = min(_SELDOM, self._wait * 2)
        self._due = Instant(now + self._wait)
        return f"{self._what}, for {(now - self._since) // _SECOND} s now: {words}"

    def answered(self, now: Instant, *, asked: Instant) -> str | None:
        """The cluster answered what it was asked then; what to tell, if that means that it is well again."""
        if self._since is None or asked < self._last or not (self._whole or now >= self._last + _CALM):
            return None
        told = f"{self._what} no more; it lasted {(now - self._since) // _SECOND} s"
        self._since, self._whole = None, False
        return told
