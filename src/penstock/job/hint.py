"""What a run has done so far, as a file that commands show: a hint, replaced every second. Nothing decides by it.

It outlives its process, so that numbers of a dead job can be shown, with their age. A job never fails for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoint import paths
from penstock.ids import Generation, Instant, WallTime
from penstock.job.numbers import numbers, read_report, read_side_output, side_output_fields
from penstock.job.report import Report
from penstock.job.side_outputs import SideOutput

if TYPE_CHECKING:
    from penstock.checkpoint.log import OwnedLog
    from penstock.filesystem.base import FileSystem
    from penstock.runtime.clock import Clock

log: Final = logging.getLogger("penstock")

SCHEMA: Final = "penstock.report/1"
"""Of the file: fields may be added under this name, never changed or taken away."""

EVERY: Final = 1_000_000
"""Microseconds from one writing to the next while something changes."""

AT_LEAST: Final = 10_000_000
"""And while nothing does: so its age says that the job lives."""

LARGEST: Final = 16 * 1024 * 1024
"""Bytes that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What was last told of a run.

    Attributes:
        job: its name.
        log_id: of the log that it had; another log's hint says nothing.
        generation: under which it was written; that of the log is newer where a run died before it wrote any.
        began: when the process took the job.
        written: when this was written.
        report: the numbers, as :meth:`penstock.Job.report` has them.
        side_outputs: where late and bad rows go.
    """

    job: str
    log_id: str
    generation: Generation
    began: WallTime
    written: WallTime
    report: Report
    side_outputs: tuple[SideOutput, ...] = ()


class HintWriter:
    """Replaces the hint of a running job; called by one thread again and again, and once at its end.

    Args:
        filesystem: rooted at the job's directory.
        job: its name.
        report: the numbers so far.
        owned: the log that the job has now, if it has one.
        clock: for the pace, and for people.
        side_outputs: of the pipeline.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        *,
        job: str,
        report: Callable[[], Report],
        owned: Callable[[], OwnedLog | None],
        clock: Clock,
        side_outputs: tuple[SideOutput, ...] = (),
    ) -> None:
        self._filesystem = filesystem
        self._job = job
        self._report = report
        self._owned = owned
        self._clock = clock
        self._side_outputs = side_outputs
        self._began = clock.wall()
        self._at: Instant | None = None
        self._last: tuple[Generation, Report] | None = None
        self._is_told = False

    def look(self) -> None:
        """Write it if it is time to; never raises."""
        now = self._clock.now()
        if self._at is None or now >= self._at + EVERY:
            self._write(now, at_least=AT_LEAST)

    def finish(self) -> None:
        """Write it as it is at the end; never raises."""
        self._write(self._clock.now(), at_least=0)

    def _write(self, now: Instant, *, at_least: int) -> None:
        try:
            owned, report = self._owned(), self._report()
            if owned is None:
                return
            is_news = self._last != (owned.generation, report)
            if not is_news and self._at is not None and now < self._at + at_least:
                return
            self._at = now
            if not self._is_superseded(owned):
                self._filesystem.replace(paths.REPORT, encode(self._hint(owned, report)))
            self._last = (owned.generation, report)
        except Exception as error:  # whatever it is, nobody's rows depend on it
            if not self._is_told:
                log.warning("job %s cannot write its numbers for `penstock status`: %s", self._job, error)
            self._is_told = True

    def _is_superseded(self, owned: OwnedLog) -> bool:
        """Whether a newer owner writes there: this process does not know yet that it is over."""
        data = self._filesystem.read(paths.REPORT)
        if data is None or len(data) > LARGEST:
            return False
        try:
            told: Any = json.loads(data)
            return bool(told["log_id"] == owned.log_id and told["generation"] > owned.generation)
        except (KeyError, TypeError, ValueError, RecursionError):
            return False

    def _hint(self, owned: OwnedLog, report: Report) -> Hint:
        return Hint(
            job=self._job,
            log_id=owned.log_id,
            generation=owned.generation,
            began=self._began,
            written=self._clock.wall(),
            report=report,
            side_outputs=self._side_outputs,
        )


def read_hint(filesystem: FileSystem) -> Hint | None:
    """What lies there, if this version understands it.

    Raises:
        StorageFailed: the file cannot be read.
    """
    data = filesystem.read(paths.REPORT)
    return None if data is None or len(data) > LARGEST else decode(data)


def encode(hint: Hint) -> bytes:
    """As JSON; times are microseconds since 1970."""
    plain = {
        "schema": SCHEMA,
        "job": hint.job,
        "log_id": hint.log_id,
        "generation": hint.generation,
        "began": hint.began,
        "written": hint.written,
        "run": numbers(hint.report),
        "side_outputs": [side_output_fields(each) for each in hint.side_outputs],
    }
    return json.dumps(plain).encode()


def decode(data: bytes) -> Hint | None:
    """The inverse; ``None`` where these bytes are no hint of this version. Fields that it does not know are left out.

    >>> decode(b"torn") is None
    True
    """
    try:
        told: Any = json.loads(data)
        if told["schema"] != SCHEMA:
            return None
        return Hint(
            job=str(told["job"]),
            log_id=str(told["log_id"]),
            generation=Generation(int(told["generation"])),
            began=WallTime(int(told["began"])),
            written=WallTime(int(told["written"])),
            report=read_report(told["run"]),
            side_outputs=tuple(read_side_output(each) for each in told["side_outputs"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
