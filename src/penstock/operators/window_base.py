"""What a window is to the step that keeps it: panes, and how windows are made of them. Knows no kind of window.

A *pane* is the longest stretch of time that no window's bound cuts: all rows of a pane are in the same windows. State
keeps one row for each key and pane, and a pane is put into its windows only when they are sent. Windows and panes are
known by their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Due:
    """Windows that end within some stretch of time, and where to find them.

    Attributes:
        first: end of the first window, as :meth:`Window.windows` takes it.
        last: end of the last window, likewise.
        panes: least and greatest end of the panes that these windows hold, in microseconds since the epoch.
    """

    first: int
    last: int
    panes: tuple[int, int]


class Window(Protocol):
    """How event times fall into windows. Times are microseconds since the epoch; starts belong, ends do not.

    Where rows themselves say where a window begins (sessions, counted windows), state keeps a row's own stretch of time
    in the place of a pane; all others are :class:`Paned`.
    """

    @property
    def lateness(self) -> int:
        """How long after a window's end, in microseconds of event time, rows still count in it."""
        ...

    @property
    def is_processing(self) -> bool:
        """Whether a row's time is the moment at which its batch arrives, in processing time."""
        ...

    @property
    def is_paned(self) -> bool:
        """Whether a window may hold several panes, or a pane be in several windows."""
        ...

    def pane(self, micros: str) -> str:
        """SQL for the end of the pane that holds the time ``micros`` (SQL); NULL if none does."""
        ...

    def due(self, after: int, until: int) -> Due | None:
        """The windows that end in ``(after, until]``, or ``None`` if none does."""
        ...

    def dead(self, closed: int) -> int:
        """Panes that end at or before this are in no window that ends after ``closed``."""
        ...

    def after(self, moment: int) -> int:
        """The first end of a window after a moment."""
        ...

    def describe(self) -> str:
        """In a few words, for people; two windows that need different state differ in it."""
        ...


@runtime_checkable
class Paned(Window, Protocol):
    """Windows that are laid out whatever rows there are."""

    def pane_start(self, pane: str) -> str:
        """SQL for the start of the pane that ends at ``pane`` (SQL)."""
        ...

    def windows(self, pane: str, first: str, last: str) -> str:
        """SQL for the windows that hold a pane: an array of structs of two BIGINT, start and end.

        Only windows from ``first`` to ``last`` (SQL for the values of a :class:`Due`); NULL if there are none.
        """
        ...


class Fixed(Paned, Protocol):
    """Windows of fixed lengths."""

    @property
    def step(self) -> int:
        """The length of a pane, in microseconds."""
        ...

    @property
    def offset(self) -> int:
        """Some bound of panes, in microseconds after the epoch."""
        ...

    def bound(self, micros: str) -> str:
        """SQL for the first bound of panes after ``micros`` (SQL), however far that is."""
        ...
