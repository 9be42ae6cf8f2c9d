"""What is being waited for: on a terminal a line that counts the seconds and goes away, elsewhere a plain line."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from penstock.cli.output import Output


class Waiting:
    """At most one thing is waited for at a time; the next one takes its place. Use it in a ``with`` block."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.off()

    def on(self, text: str) -> None:
        """Say what is waited for from now on."""
        self.off()
        console = self._output.err
        if not console.is_terminal or console.is_dumb_terminal:
            self._output.note(f"{text} …")
            return
        line = Progress(
            SpinnerColumn(), TextColumn("{task.description} …"), TimeElapsedColumn(), console=console, transient=True
        )
        line.add_task(text, total=None)
        self._shown.enter_context(line)

    def off(self) -> None:
        """It is over; harmless if nothing is waited for."""
        self._shown.close()
