"""A topic that a process of its own appends to all along, on a broker in trouble; what a job reads that is killed.

When it is over, all records are read back from the topic into one file, which is what the verdict goes by.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from crash.broker_trouble import BrokerTrouble
from crash.kafka_job import EMPTY, SERVERS, TOMBSTONE, TOPIC
from crash.kafka_producer import DELAYED
from crash.waiting import clock, until
from integration.broker import QUIET, Broker
from integration.topics import Topics
from penstock.control.client import JobDirectory
from penstock.errors import PenstockError

PRODUCER = Path(__file__).with_name("kafka_producer.py")
PATIENCE = 300


class KafkaFeed:
    """One topic with a producer; the broker has trouble from ``begin_trouble`` on.

    Args:
        home: the folder of the job; what was in the topic lies in ``in`` there, at the end.
        per_second: rows that are appended.
    """

    def __init__(self, broker: Broker, topics: Topics, home: Path, seed: int, *, per_second: int) -> None:
        self._broker = broker
        self._home = home
        self._topics = topics
        self.topic = topics.create("torture", 2)
        self.delayed: set[int] = set()
        self.trouble: BrokerTrouble | None = None
        self._told: dict = {"rows": 0}
        command = [sys.executable, str(PRODUCER), broker.servers, self.topic, str(seed), str(per_second)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What tells the job where to read."""
        return {SERVERS: self._broker.servers, TOPIC: self.topic}

    def begin_trouble(self, seed: int, *, gap: float, pause: float, once: bool = False) -> BrokerTrouble:
        """What befalls the broker from now on; it ends when all windows are closed."""
        chance = random.Random(seed)
        self.trouble = BrokerTrouble(self._broker, self.topic, chance, self._is_known, gap=gap, pause=pause, once=once)
        return self.trouble

    # ------------------------------------------------------------------------------------------ as a campaign sees it

    @property
    def rows(self) -> int:
        """What the producer says it appended."""
        return int(self._told["rows"])

    def drop(self, count: int = 1) -> None:
        """Nothing to do: the producer goes on by itself."""

    def feeding(self, progress: Callable[[], int]) -> AbstractContextManager[None]:
        return nullcontext()

    def drop_flush(self, user: str) -> None:
        if self.trouble is not None:
            self.trouble.end()
        assert self._process.stdin is not None
        self._process.stdin.write(f"finish {user}\n")
        self._process.stdin.flush()
        until(PATIENCE, "the producer has appended all", lambda: self._told.get("is_all") or self._is_over)
        assert self._told.get("failed") == [], f"rows are missing in the topic: {self._told}"
        self._keep(list(self._records()))

    def close(self) -> None:
        """Nothing of it is left but the topic."""
        if self.trouble is not None:
            with suppress(AssertionError):  # of a run that failed already
                self.trouble.end()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    # -------------------------------------------------------------------------------------------------------- parts

    @property
    def _is_over(self) -> bool:
        return self._process.poll() is not None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed
            for line in self._process.stdout:
                self._told = json.loads(line)

    def _is_known(self, partition: int) -> bool:
        """Whether the job's newest checkpoint has the partition."""
        with suppress(PenstockError, OSError):
            point = JobDirectory(str(self._home / "state"), "torture").read().restore_point
            for snapshot in point.tasks if point else ():
                detail = snapshot.position.detail if snapshot.position else None
                if isinstance(detail, dict) and str(partition) in detail["topics"][self.topic]["next"]:
                    return True
        return False

    def _records(self) -> Iterator[Message]:
        """All records of the topic that are committed, read with the plain client."""
        until(
            PATIENCE,
            "the markers of all transactions are there",
            lambda: self._topics.ends(self.topic) == self._topics.ends(self.topic, committed=False),
        )
        left = {partition: end for partition, end in self._topics.ends(self.topic).items() if end}
        reading = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self._broker.servers, "group.id": "oracle", **reading, **QUIET})
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in left])
            deadline = clock() + PATIENCE
            while left:
                assert clock() < deadline, f"the topic was not read back: {left} are left"
                for message in consumer.consume(10_000, 1.0):
                    error = message.error()
                    if error is None:
                        yield message
                        continue
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    if message.offset() >= left.get(message.partition(), message.offset() + 1):
                        del left[message.partition()]
        finally:
            consumer.close()

    def _keep(self, records: list[Message]) -> None:
        """As a file of lines; and which rows may be late, by what the records say.

        Those of an added partition may be too that were there before the job found it: event time had gone on.
        """
        found = self.trouble.found if self.trouble else {}
        added = self.trouble.added() if self.trouble else ()
        for each in records:
            is_early = each.partition() in added and each.offset() < found.get(each.partition(), each.offset() + 1)
            if is_early or DELAYED in dict(each.headers() or ()):
                with suppress(ValueError):
                    self.delayed.add(json.loads(each.value() or "")["id"])
        folder = self._home / "in"
        folder.mkdir()
        lines = (TOMBSTONE if each.value() is None else each.value().decode() or EMPTY for each in records)
        (folder / "part-00000.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    @property
    def steps(self) -> dict[str, int]:
        """How often the producer did what it does by turns."""
        return dict(self._told.get("steps", {}))

    @property
    def partitions(self) -> int:
        """How many the topic has."""
        return len(self._topics.ends(self.topic))
