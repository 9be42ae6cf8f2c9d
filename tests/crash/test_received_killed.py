"""kill -9 while rows are received: every row that was acknowledged is published once, and one never sent twice."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from crash.driver import Driver, all_gone

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

START = 240
KILLS = (
    ("received.block.before", 5),
    ("received.block.durable", 9),
    ("received.sealed", 1),
    ("received.clean.before", 2),
)


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


def run(home: Path, client: Client, kills: tuple[tuple[str, int], ...], **environment: str) -> list[Driver]:
    """Drivers that are killed one after the other, and one that ends in order."""
    around = {"RECEIVED_PORT": str(client.port), **environment}
    drivers = []
    try:
        for number, (place, hit) in enumerate(kills):
            arguments = ("--checkpoint-every", "200ms")
            pipeline = "received_job:job"
            driver = Driver(home, number, *arguments, pipeline=pipeline, pause_at=place, hit=hit, environment=around)
            drivers.append(driver)
            assert driver.reaches(START), driver.tail()
            driver.kill("group")
        client.stop()
        last = Driver(home, len(kills), "--until", "caught-up", pipeline="received_job:job", environment=around)
        assert last.wait(START) == 0, last.tail()
    finally:
        client.stop()
        assert all_gone(home) == 0
    return drivers


def published(home: Path) -> Counter[int]:
    paths = (home / "out").glob("part-*")
    return Counter(json.loads(line)["id"] for path in paths for line in path.read_text().splitlines())


def test_each_acknowledged_row_is_published_once_whenever_the_job_is_killed(tmp_path: Path) -> None:
    client = Client()

    run(tmp_path, client, KILLS)

    found = published(tmp_path)
    assert len(client.acknowledged) > 40
    assert client.sent > len(client.acknowledged)
    assert [number for number in client.acknowledged if found[number] != 1] == []
    assert [number for number, count in found.items() if count > 1] == []


def test_a_receiver_that_answers_before_rows_are_durable_loses_some(tmp_path: Path) -> None:
    client = Client()

    run(tmp_path, client, KILLS[:1], RECEIVED_EARLY="1")

    found = published(tmp_path)
    assert [number for number in client.acknowledged if number not in found] != []
