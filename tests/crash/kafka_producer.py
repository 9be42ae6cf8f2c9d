"""A process that appends numbered rows to all partitions of a topic, evenly, until its standard input says how to end.

``finish USER`` there: it waits until the broker has all rows, appends a row of that user to each partition, and tells
what it appended. The end of the input: it ends at once. Rows that may be late have a header that says so.
"""

from __future__ import annotations

import json
import queue
import random
import sys
import threading
from contextlib import suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from confluent_kafka import KafkaException, Producer  # noqa: E402

from crash.numbered_rows import NumberedRows  # noqa: E402 - found through the path above
from crash.waiting import clock  # noqa: E402

DELAYED = "delayed"
"""The header of rows that are deliberately late."""
ORDERLY = 1_200
"""Rows before the first of these."""
PATIENCE = 120
"""Seconds for the broker to take what is left: it may be away at that moment."""


class Appender:
    """Numbers rows and appends them: exactly once each, in their order, however often the broker goes away."""

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        settings = {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer(settings | {"reconnect.backoff.max.ms": 500})
        self._topic = topic
        self._chance = random.Random(seed)
        self._partitions = 0
        self.rows = NumberedRows()
        self.failed: list[str] = []

    def look(self) -> None:
        """Take partitions that were added; none while the broker does not answer."""
        with suppress(KafkaException):
            self._partitions = len(self._producer.list_topics(self._topic, timeout=1).topics[self._topic].partitions)

    def append_until(self, due: int) -> None:
        while self._partitions and self.rows.rows < due:
            number = self.rows.rows
            line = self.rows.line(self._chance, disorder=number >= ORDERLY)
            headers = [(DELAYED, b"")] if number in self.rows.delayed else []
            self._send(line, number % self._partitions, headers)
        self._producer.poll(0.02)

    def flush(self, user: str) -> None:
        """Close the windows of each partition, behind all that was appended to it."""
        self._await()
        until = clock() + PATIENCE
        before, self._partitions = self._partitions, 0
        while not self._partitions and clock() < until:
            self.look()
        for partition in range(max(before, self._partitions)):
            self._send(self.rows.flush(user), partition, [])
        self._await()

    def _send(self, line: str, partition: int, headers: list) -> None:
        self._producer.produce(
            self._topic, line.encode(), partition=partition, headers=headers, on_delivery=self._delivered
        )

    def _await(self) -> None:
        if left := self._producer.flush(PATIENCE):
            self.failed.append(f"{left} rows were not delivered in {PATIENCE} s")

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))


def main(servers: str, topic: str, seed: int, per_second: int) -> None:
    words: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(words,), daemon=True).start()
    appender, began, second = Appender(servers, topic, seed), clock(), -1
    while words.empty():
        now = clock() - began
        if int(now) != second:
            second = int(now)
            appender.look()
            _tell({"rows": appender.rows.rows})
        appender.append_until(int(now * per_second))
    verb, _, user = words.get().partition(" ")
    if verb == "finish":
        appender.flush(user)
        _tell({"rows": appender.rows.rows, "failed": appender.failed, "is_all": True})


def _listen(words: queue.Queue[str]) -> None:
    words.put(sys.stdin.readline().strip())


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
