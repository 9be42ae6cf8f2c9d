"""Input for jobs that are killed: numbered rows in order of time, some deliberately late, some unreadable."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
USERS = 12
ROWS = 120
"""Rows of a file."""
SECONDS = 0.25
"""Event time from one row to the next."""
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
    rows: int = 0
    bad: int = 0
    files: int = 0
    delayed: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drop(self, count: int = 1) -> None:
        with self.lock:
            for _ in range(count):
                chance = random.Random(self.seed * 1_000_003 + self.files)
                self._put([self._line(chance) for _ in range(ROWS)])

    def drop_flush(self, user: str) -> None:
        """A row so far ahead that every window before it closes."""
        with self.lock:
            at = BEGIN + timedelta(seconds=self.rows * SECONDS) + timedelta(days=2)
            self._put([json.dumps({"id": -1, "user": user, "amount": 0.0, "at": _text(at)})])

    def _put(self, lines: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"part-{self.files:05d}.jsonl"
        hidden = self.folder / f".{name}.tmp"
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        hidden.rename(self.folder / name)
        self.files += 1

    def _line(self, chance: random.Random) -> str:
        number, self.rows = self.rows, self.rows + 1
        at = BEGIN + timedelta(seconds=number * SECONDS - chance.random() * 3)
        if number % 97 == 96:
            self.bad += 1
            return chance.choice(
                [f"not json at all {number}", f'{{"id": {number}, "user": "u1", "amou', _wrong(number)]
            )
        if self.files >= self.disorder_from and number % 11 == 10:
            at -= timedelta(minutes=10)
            self.delayed.add(number)
        user, amount = f"u{chance.randrange(USERS):02d}", chance.randint(1, 400) / 4
        return json.dumps({"id": number, "user": user, "amount": amount, "at": _text(at)})


def _wrong(number: int) -> str:
    return json.dumps({"id": number, "user": "u1", "amount": "a lot", "at": _text(BEGIN)})


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
