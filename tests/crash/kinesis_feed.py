"""A stream that rows are put into all along while its shards are split and merged; what a job reads that is killed."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from crash.kinesis_job import STREAM, TABLE, TABLE_URL, URL
from crash.numbered_rows import NumberedRows
from crash.waiting import clock
from integration.dynamo_server import DynamoServer
from integration.kinesis_server import KinesisServer, ShardedStream, hashes
from penstock.connectors.kinesis.aggregation import UserRecord, pack

ORDERLY = 1_200
"""Rows before the first of those that are deliberately late."""
MOST_SHARDS = 5


class KinesisFeed:
    """One stream of two shards at first, and a thread that puts rows and reshards by turns.

    The rows of a user are in one record, an aggregate if they are several, so their order is that of the stream.

    Args:
        home: the folder of the job; what was put lies in ``in`` there, at the end.
        per_second: rows that are put.
        gap: seconds from one split or merge to the next.
    """

    def __init__(
        self, server: KinesisServer, dynamo: DynamoServer, home: Path, seed: int, *, per_second: int, gap: float
    ) -> None:
        self._server, self._dynamo, self._home = server, dynamo, home
        self._chance = random.Random(seed)
        self._per_second, self._gap = per_second, gap
        self._made = NumberedRows()
        self._lines: list[str] = []
        self.reshards: Counter[str] = Counter()
        self.aggregates = 0
        self._stream = ShardedStream(server, f"torture-{home.name}", 2)
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kinesis-feed", daemon=True)
        self._thread.start()

    @property
    def stream(self) -> str:
        """Its name."""
        return self._stream.name

    @property
    def open_shards(self) -> int:
        """How many can be put into."""
        return len(self._stream.open_shards())

    @property
    def environment(self) -> dict[str, str]:
        """What tells the job where to read, and where its leases are."""
        return {
            STREAM: self.stream,
            URL: self._server.url,
            TABLE: self.stream,
            TABLE_URL: self._dynamo.url,
            "KINESIS_JOB_SECRET": "none",
        }

    # ------------------------------------------------------------------------------------------ as a campaign sees it

    @property
    def rows(self) -> int:
        return self._made.rows

    @property
    def delayed(self) -> set[int]:
        return self._made.delayed

    def drop(self, count: int = 1) -> None:
        """Nothing to do: the thread goes on by itself."""

    def feeding(self, progress: Callable[[], int]) -> AbstractContextManager[None]:
        return nullcontext()

    def drop_flush(self, user: str) -> None:
        self.close()
        if self._failure is not None:
            raise self._failure
        line = self._made.flush(user)
        for shard in self._stream.open_shards():
            first, _ = hashes(shard)
            self._put([{"Data": line.encode(), "PartitionKey": user, "ExplicitHashKey": str(first)}])
        folder = self._home / "in"
        folder.mkdir()
        (folder / "part-00000.jsonl").write_text("".join(f"{each}\n" for each in self._lines), encoding="utf-8")

    def close(self) -> None:
        """Put nothing more."""
        self._over.set()
        self._thread.join()

    # -------------------------------------------------------------------------------------------------------- parts

    def _run(self) -> None:
        try:
            began = reshard_at = clock()
            while not self._over.wait(0.1):
                now = clock()
                if now >= reshard_at + self._gap:
                    reshard_at = now
                    self._reshard()
                self._put(list(self._records(int((now - began) * self._per_second) - self._made.rows)))
        except BaseException as error:
            self._failure = error

    def _records(self, count: int) -> Iterator[dict[str, Any]]:
        rows = defaultdict(list)
        for _ in range(min(count, 400)):
            line = self._made.line(self._chance, disorder=self._made.rows >= ORDERLY)
            self._lines.append(line)
            rows[_user(line)].append(line.encode())
        for user, lines in rows.items():
            data = lines[0] if len(lines) == 1 else pack([UserRecord(user, None, line) for line in lines])
            self.aggregates += len(lines) > 1
            yield {"Data": data, "PartitionKey": user}

    def _put(self, records: list[dict[str, Any]]) -> None:
        if records:
            answer = self._stream.client.put_records(StreamName=self.stream, Records=records)
            assert not answer["FailedRecordCount"], answer

    def _reshard(self) -> None:
        """Split the shard with the most keys, or merge two neighbours."""
        shards = self._stream.open_shards()
        if len(shards) < 2 or (len(shards) < MOST_SHARDS and self._chance.random() < 0.5):
            self._stream.split(max(range(len(shards)), key=lambda at: _width(shards[at])))
            self.reshards["split"] += 1
        else:
            self._stream.merge(self._chance.randrange(len(shards) - 1))
            self.reshards["merge"] += 1


def _user(line: str) -> str:
    try:
        return json.loads(line)["user"]
    except ValueError:
        return "unreadable"


def _width(shard: dict[str, Any]) -> int:
    first, last = hashes(shard)
    return last - first
