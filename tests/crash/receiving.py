"""Sends rows to a job that is killed again and again, notes which were acknowledged, and compares with the output."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crash.driver import Driver, all_gone

START = 240
"""Seconds that a driver may take to come to its place."""


@dataclass(frozen=True)
class Strike:
    """Where a driver is killed, and what of it."""

    place: str
    hit: int
    shape: str = "group"


class Client:
    """Sends numbers, each once and never again, and notes those whose line was answered."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.acknowledged: list[int] = []
        self.sent = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):  # until a driver listens again
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                    self._send(connection)
            except OSError:
                continue

    def _send(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        with connection.makefile("rw", encoding="ascii") as lines:
            while not self._over.is_set():
                numbers = range(self.sent, self.sent + 5)
                self.sent += 5
                lines.write(",".join(map(str, numbers)) + "\n")
                lines.flush()
                if lines.readline() != "ok\n":
                    return
                self.acknowledged += numbers

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def run(home: Path, client: Client, strikes: Sequence[Strike], **environment: str) -> int:
    """Drivers that are killed one after the other, and one that ends in order; returns how many were killed."""
    around = {"RECEIVED_PORT": str(client.port), **environment}
    kills = 0
    try:
        for number, strike in enumerate(strikes):
            driver = Driver(
                home,
                number,
                "--checkpoint-every",
                "200ms",
                pipeline="received_job:job",
                pause_at=strike.place,
                hit=strike.hit,
                environment=around,
            )
            assert driver.reaches(START), driver.tail()
            driver.kill(strike.shape)
            kills += 1
        client.stop()
        last = Driver(home, len(strikes), "--until", "caught-up", pipeline="received_job:job", environment=around)
        assert last.wait(START) == 0, last.tail()
    finally:
        client.stop()
        assert all_gone(home) == 0
    return kills


def published(home: Path) -> Counter[int]:
    paths = (home / "out").glob("part-*")
    return Counter(json.loads(line)["id"] for path in paths for line in path.read_text().splitlines())


@dataclass(frozen=True)
class Verdict:
    """What became of the rows that were acknowledged, and whether any row was published twice."""

    acknowledged: int
    lost: list[int]
    repeated: list[int]


def judge(home: Path, client: Client) -> Verdict:
    found = published(home)
    return Verdict(
        acknowledged=len(client.acknowledged),
        lost=[number for number in client.acknowledged if number not in found],
        repeated=[number for number, count in found.items() if count > 1],
    )
