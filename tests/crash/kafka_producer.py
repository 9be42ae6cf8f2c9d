"""A process that appends numbered rows to all partitions of a topic, evenly, until its standard input says how to end.

``finish USER`` there: it waits until the broker has all rows, appends a row of that user to each partition, and tells
what it appended. The end of the input: it ends at once. Rows that may be late have a header that says so.

It appends by turns: compressed and not, in transactions that are committed soon, or only when more has come behind
them, and beside rows of a transaction that is aborted. Some records have an empty value, or none.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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
TURN = 67
"""Rows that are appended in one way before the next."""
HOLLOW = {70: None, 140: b""}
"""By the rest of a row's number: values that some records have in the row's place."""
ABORTED = b'{"id": -2, "user": "~aborted", "amount": 1.0, "at": "2026-01-01T00:00:00Z"}'
"""What nobody may ever read."""

CODECS = ("none", "lz4", "zstd")

STEPS = (
    *("none", "begin", "inside", "commit"),
    *("lz4", "begin", "inside", "zstd", "commit"),
    *("begin", "ghosts", "none", "abort"),
)
"""What happens turn by turn. Codecs, and ``inside`` a transaction, are where rows are appended."""


class Row(NamedTuple):
    value: bytes | None
    partition: int
    headers: list[tuple[str, bytes]]


class Transaction:
    """The transactions of one producer, one at a time; a broker that goes away is waited for."""

    def __init__(self, settings: dict, topic: str) -> None:
        self._topic = topic
        self.producer = Producer(
            settings | {"transactional.id": f"{topic}-rows", "transaction.timeout.ms": 1_000 * PATIENCE}
        )
        self._rows: list[Row] = []
        self.is_open = self.is_void = False
        _insist(self.producer.init_transactions)

    def begin(self) -> None:
        self.producer.begin_transaction()
        self._rows, self.is_open, self.is_void = [], True, False

    def append(self, row: Row) -> None:
        self._rows.append(row)
        self.producer.produce(self._topic, row.value, partition=row.partition, headers=row.headers)

    def commit(self) -> list[Row]:
        """The rows that could not be committed: they are not in the topic."""
        if _insist(self.producer.commit_transaction):
            self.is_open = False
            return []
        self.abort()
        return self._rows

    def abort(self) -> None:
        _insist(self.producer.abort_transaction)
        self.is_open = False


def _insist(ask: Callable[[float], None]) -> bool:
    """Ask until it is done; false if the transaction can only be aborted."""
    until = clock() + PATIENCE
    while True:
        try:
            ask(10)
        except KafkaException as raised:
            error = raised.args[0]
            if error.txn_requires_abort():
                return False
            if not error.retriable() or clock() > until:
                raise
        else:
            return True


class Appender:
    """Numbers rows and appends them: exactly once each, in their order, however often the broker goes away."""

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        settings = {"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0, "reconnect.backoff.max.ms": 500}
        plain = settings | {"enable.idempotence": True}
        self._plain = {codec: Producer(plain | {"compression.type": codec}) for codec in CODECS}
        self._transaction = Transaction(settings, topic)
        self._producers = [*self._plain.values(), self._transaction.producer]
        self._steps = itertools.cycle(STEPS)
        self._place = self._plain["none"]
        self._left = 0
        self._topic = topic
        self._chance = random.Random(seed)
        self._partitions = 0
        self.rows = NumberedRows()
        self.failed: list[str] = []
        self.done = dict.fromkeys(STEPS, 0)

    def look(self) -> None:
        """Take partitions that were added, once each producer knows them; none while the broker does not answer."""
        with suppress(KafkaException):
            told = [each.list_topics(self._topic, timeout=1).topics[self._topic] for each in self._producers]
            self._partitions = min(len(topic.partitions) for topic in told)

    def append_until(self, due: int) -> None:
        while self._partitions and self.rows.rows < due:
            if not self._left:
                self._turn()
            self._left -= 1
            self._append(self._next())
        self._place.poll(0.02)

    def finish(self, user: str) -> None:
        """Close the windows of each partition, behind all that was appended to it."""
        self._await()
        if self._transaction.is_open:
            self._abort() if self._transaction.is_void else self._commit()
        self._place = self._plain["none"]
        until = clock() + PATIENCE
        before, self._partitions = self._partitions, 0
        while not self._partitions and clock() < until:
            self.look()
        for partition in range(max(before, self._partitions)):
            self._append(Row(self.rows.flush(user).encode(), partition, []))
        self._await()

    def _next(self) -> Row:
        number = self.rows.rows
        value = self.rows.line(self._chance, disorder=number >= ORDERLY).encode()
        headers = [(DELAYED, b"")] if number in self.rows.delayed else []
        return Row(HOLLOW.get(number % 211, value), number % self._partitions, headers)

    # -------------------------------------------------------------------------------------------------------- turns

    def _turn(self) -> None:
        """The next way to append. All of before is there first, so that rows keep their order whoever brings them."""
        self._await()
        acts = {"begin": self._transaction.begin, "commit": self._commit, "ghosts": self._ghosts, "abort": self._abort}
        for step in self._steps:
            self.done[step] += 1
            if step not in acts:
                break
            acts[step]()
        self._place = self._plain.get(step, self._transaction.producer)
        self._left = TURN

    def _commit(self) -> None:
        for row in self._transaction.commit():  # what came behind them is there already
            self._append(row._replace(headers=[(DELAYED, b"")]), self._plain["none"])
        self._await()

    def _ghosts(self) -> None:
        self._transaction.is_void = True  # also if the end comes before the turn that aborts it
        for number in range(5 * self._partitions):
            self._transaction.append(Row(ABORTED, number % self._partitions, []))
        self._transaction.producer.flush(PATIENCE)

    def _abort(self) -> None:
        self._transaction.abort()

    def _append(self, row: Row, place: Producer | None = None) -> None:
        place = place or self._place
        if place is self._transaction.producer:
            self._transaction.append(row)
        else:
            place.produce(
                self._topic, row.value, partition=row.partition, headers=row.headers, on_delivery=self._delivered
            )

    def _await(self) -> None:
        for producer in self._producers:
            if left := producer.flush(PATIENCE):
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
        appender.finish(user)
        _tell({"rows": appender.rows.rows, "failed": appender.failed, "steps": appender.done, "is_all": True})


def _listen(words: queue.Queue[str]) -> None:
    words.put(sys.stdin.readline().strip())


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
