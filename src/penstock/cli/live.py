"""A running job on a terminal: a header, a line for each checkpoint, and a progress line."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.text import Text

from penstock.cli.words import age, clock_time, count, size, watermark
from penstock.clock import MIN_WATERMARK
from penstock.facts import (
    BatchDone,
    CheckpointCompleted,
    CheckpointFailed,
    Counted,
    Fact,
    JobEnded,
    JobStarted,
    Published,
    Restarting,
    RowsRead,
    SourceLag,
    WatermarkAdvanced,
)

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.clock import Clock, MonotonicTime, WallTime

SPAN: Final = 5_000_000
"""Microseconds over which rows per second are averaged."""
_SETTLED: Final = frozenset({"done", "already done"})


class LiveOutput:
    """A listener that prints facts, from any thread.

    Args:
        job: its name.
        output: prints the lines.
        clock: for the time in front of lines.
        sinks: uids whose rows count as written.
    """

    def __init__(self, job: str, *, output: Output, clock: Clock, sinks: frozenset[str] = frozenset()) -> None:
        self._job = job
        self._output = output
        self._clock = clock
        self._sinks = sinks
        self._lock = threading.RLock()
        self._rows: deque[tuple[MonotonicTime, int]] = deque()
        self._total = {"read": 0, "written": 0, "checkpoints": 0, "late": 0}
        self._watermarks: dict[str, int] = {}
        self._lag: dict[str, SourceLag] = {}
        self._last: tuple[int, WallTime] | None = None
        self._live: Live | None = None

    def __call__(self, fact: Fact) -> None:
        """Print a line for the fact, or include it in the progress line."""
        with self._lock:
            self._show(fact)

    def close(self) -> None:
        """Remove the progress line; harmless if it is removed already."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _show(self, fact: Fact) -> None:
        match fact:
            case JobStarted():
                self._started(fact)
            case RowsRead():
                self._total["read"] += fact.rows
                self._rows.append((self._clock.now(), fact.rows))
            case BatchDone():
                self._total["written"] += (fact.rows or 0) if fact.task in self._sinks else 0
            case Counted(name="late"):
                self._total["late"] += fact.amount
            case WatermarkAdvanced() | SourceLag():
                self._remember(fact)
            case CheckpointCompleted():
                self._completed(fact)
            case CheckpointFailed():
                reason = f"{fact.reason.replace('_', ' ')}: {fact.message}" if fact.message else fact.reason
                self._line(f"checkpoint {fact.checkpoint} FAILED {reason}", style="red")
            case Published():
                if fact.outcome not in _SETTLED:
                    self._line(f"checkpoint {fact.checkpoint} of {fact.task} is not published yet: {fact.outcome}")
            case Restarting():
                self._line(f"restarting in {fact.delay_ms / 1_000:.1f} s: {fact.cause}", style="yellow")
            case JobEnded():
                self._ended(fact)
            case _:
                pass

    def _remember(self, fact: WatermarkAdvanced | SourceLag) -> None:
        if isinstance(fact, SourceLag):
            self._lag[fact.task] = fact
        else:
            self._watermarks[fact.task] = fact.at

    def _started(self, fact: JobStarted) -> None:
        how = "starting empty" if fact.restored is None else f"restoring from checkpoint {fact.restored}"
        if fact.age_ms is not None:
            how += f" ({age(round(fact.age_ms * 1_000))} old)"
        if fact.imported is not None:
            how += f", brought from {fact.imported}"
        named = {"new": fact.new, "migrated": fact.migrated, "dropped": fact.dropped}
        changes = [f"{what} {', '.join(uids)}" for what, uids in named.items() if uids]
        parts = [f"{self._job}: {how}", *changes, f"generation {fact.generation}"]
        if fact.published:
            parts.append(f"published {count(fact.published, 'output')} that the log held open")
        self._output.note(" · ".join(parts), style="bold")
        self._watermarks.clear()
        self._lag.clear()
        self._rows.clear()
        if self._has_progress_line and self._live is None:
            console = self._output.err
            self._live = Live(console=console, get_renderable=self._status, refresh_per_second=4, transient=True)
            self._live.start()

    def _completed(self, fact: CheckpointCompleted) -> None:
        self._last = (fact.checkpoint, self._clock.wall())
        self._total["checkpoints"] += 1
        kind = "" if fact.kind == "periodic" else f" ({fact.kind})"
        parts = [f"{fact.duration_ms / 1_000:.2f} s", f"+{size(fact.bytes)}"]
        if fact.committables:
            parts.append(count(fact.committables, "output"))
        done = f"checkpoint {fact.checkpoint} ok{kind} [{', '.join(parts)}]"
        behind = [] if self._has_progress_line else self._behind(least=1)
        self._line(" · ".join([done, *behind]))

    def _ended(self, fact: JobEnded) -> None:
        self.close()
        total = self._total
        parts = [
            f"{self._job}: {fact.state}",
            f"{count(total['read'], 'row')} read",
            f"{total['written']:,} written",
            *([f"{total['late']:,} late"] if total["late"] else []),
            count(total["checkpoints"], "checkpoint"),
        ]
        self._output.note(" · ".join(parts), style="bold")

    def _line(self, text: str, *, style: str = "") -> None:
        self._output.note(f"{clock_time(self._clock.wall())} {text}", style=style)

    # ---- the progress line -----------------------------------------------------------------------------------------

    def _status(self) -> Text:
        with self._lock:
            return Text(self._status_text(), style="dim", no_wrap=True, overflow="ellipsis")

    def _status_text(self) -> str:
        now = self._clock.now()
        while self._rows and self._rows[0][0] < now - SPAN:
            self._rows.popleft()
        rate = sum(rows for _, rows in self._rows) / (SPAN / 1_000_000)
        parts = [
            f"{rate:,.0f} rows/s",
            f"watermark {watermark(min(self._watermarks.values(), default=MIN_WATERMARK))}",
            *self._behind(),
        ]
        if self._last is not None:
            age = max(0, self._clock.wall() - self._last[1]) / 1_000_000
            parts.append(f"checkpoint {self._last[0]} {age:.0f} s ago")
        return " · ".join([*parts, "Ctrl-C stops in order"])

    @property
    def _has_progress_line(self) -> bool:
        return self._output.err.is_terminal and not self._output.err.is_dumb_terminal

    def _behind(self, *, least: int = 0) -> list[str]:
        """How far the sources that know it are behind in all, and when the last of them catches up."""
        counted = [lag.rows for lag in self._lag.values() if lag.rows is not None]
        files = sum(lag.files or 0 for lag in self._lag.values())
        if not self._lag or sum(counted) + files < least:
            return []
        parts = [count(sum(counted), "row")] if counted or not files else []
        found = " and ".join([*parts, *([count(files, "file")] if files else [])]) + " behind"
        ends = [lag.eta_seconds for lag in self._lag.values() if lag.is_behind]
        known = [end for end in ends if end is not None]
        return [f"{found}, caught up in {max(known):,.0f} s" if known and len(known) == len(ends) else found]
