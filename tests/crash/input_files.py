"""Input for jobs that are killed: files of numbered rows, dropped into a folder one after the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crash.numbered_rows import NumberedRows

ROWS = 120
"""Rows of a file."""
PATIENCE = 20
"""Looks without progress until one more file is dropped."""


@dataclass
class InputFiles:
    """Drops files into a folder, each by a rename, numbered on and on; the same seed makes the same rows.

    From file ``disorder_from`` on, each eleventh row is ten minutes old: it is late, unless its window is still open
    by chance. All others are out of order by less than the watermark's delay, so they never are.
    """

    folder: Path
    seed: int
    disorder_from: int = 10
    files: int = 0
    numbered: NumberedRows = field(default_factory=NumberedRows)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rows(self) -> int:
        """Rows that were written, unreadable ones too; those that only close windows do not count."""
        return self.numbered.rows

    @property
    def delayed(self) -> set[int]:
        """The numbers of the rows that may be late."""
        return self.numbered.delayed

    def feeding(self, progress: Callable[[], int]) -> Dropper:
        """Within its ``with`` block there is always something to read."""
        return Dropper(self, progress)

    def drop(self, count: int = 1) -> None:
        with self.lock:
            for _ in range(count):
                chance = random.Random(self.seed * 1_000_003 + self.files)
                disorder = self.files >= self.disorder_from
                self._put([self.numbered.line(chance, disorder=disorder) for _ in range(ROWS)])

    def drop_flush(self, user: str) -> None:
        """A row so far ahead that every window before it closes."""
        with self.lock:
            self._put([self.numbered.flush(user)])

    def _put(self, lines: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"part-{self.files:05d}.jsonl"
        hidden = self.folder / f".{name}.tmp"
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        hidden.rename(self.folder / name)
        self.files += 1


class Dropper:
    """Drops files on a thread of its own: two whenever ``progress`` changes, now and then one while it does not.

    So a job that works has always something to read, and one that starts or stands finds no mountain of input.
    """

    def __init__(self, files: InputFiles, progress: Callable[[], int], *, look_every: float = 0.1) -> None:
        self._files = files
        self._progress = progress
        self._every = look_every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dropper", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before, still = self._progress(), 0
        while not self._over.wait(self._every):
            now = self._progress()
            still = 0 if now != before else still + 1
            if still == 0:
                self._files.drop(2)
            elif still % PATIENCE == 0:
                self._files.drop()
            before = now
