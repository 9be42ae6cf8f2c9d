"""What is being waited for: on a terminal a line that counts the seconds and goes away, elsewhere a plain line.

How far it is is told on a terminal only: elsewhere nobody sits and watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from penstock.cli.output import Output

Bytes: TypeAlias = Callable[[int, int], None]
"""Gets the bytes that are done and those there are, again and again."""


class Waiting:
    """At most one thing is waited for at a time; the next one takes its place. Use it in a ``with`` block."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shown = ExitStack()
        self._line: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.off()

    def on(self, text: str) -> None:
        """Say what is waited for from now on."""
        self.off()
        if not _is_watched(self._output):
            self._output.note(f"{text} …")
            return
        line = Progress(
            SpinnerColumn(),
            TextColumn("{task.description} …", markup=False),
            TimeElapsedColumn(),
            console=self._output.err,
            transient=True,
        )
        line.add_task(text, total=None)
        self._shown.enter_context(line)
        self._line = line

    def now(self, text: str) -> None:
        """Say on the same line how far it is, while its seconds are counted on; nothing where nobody watches."""
        if self._line is not None:
            self._line.update(self._line.task_ids[0], description=text)
        elif _is_watched(self._output):
            self.on(text)

    def off(self) -> None:
        """It is over; harmless if nothing is waited for."""
        self._line = None
        self._shown.close()


@contextmanager
def counting_bytes(output: Output, what: str) -> Iterator[Bytes]:
    """A bar on a terminal, for gigabytes take their time; elsewhere nothing.

    Args:
        output: of the command.
        what: is done, in front of the bar.
    """
    if not _is_watched(output):
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _is_watched(output: Output) -> bool:
    return output.err.is_terminal and not output.err.is_dumb_terminal
