"""Kinesis in this process, with boto3's calls: what no emulator does is done here, on a clock that a test moves.

It keeps the service's limits (five reads and 2 MB a second and shard, 10 MB a page, iterators for five minutes), trims
what is older than the retention period, and misbehaves as a test tells it to.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from hashlib import md5
from itertools import pairwise
from typing import Any, NoReturn

from botocore.exceptions import ClientError

from penstock.clock import Clock

MAX_HASH = 2**128 - 1
FIRST_NUMBER = 10**55 - 5_000
"""Sequence numbers soon have one digit more: as texts their order is another than as numbers."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
HOUR = 3_600_000_000


def refusal(code: str, operation: str, message: str = "the fake says so") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


def refuse(code: str, operation: str) -> NoReturn:
    raise refusal(code, operation)


def throttled(operation: str = "GetRecords") -> ClientError:
    return refusal("ProvisionedThroughputExceededException", operation)


def hash_of(key: str) -> int:
    return int.from_bytes(md5(key.encode()).digest(), "big")


@dataclass
class FakeRecord:
    number: int
    key: str
    data: bytes
    arrived: int


@dataclass
class FakeShard:
    id: str
    first: int
    last: int
    parents: tuple[str, ...] = ()
    records: list[FakeRecord] = field(default_factory=list)
    closed: int | None = None
    began: int = 0
    reads: list[int] = field(default_factory=list)
    blocked_until: int = 0


@dataclass
class Iterator:
    shard: str
    index: int
    issued: int
    gap: int
    tries: int = 0


class FakeKinesis:
    """One stream of one account, and a client of it at once.

    Attributes:
        calls: how often each operation was called.
        enforces: whether reads beyond the limits are refused.
        refuses_first: how many of the reads of each page are throttled.
        gap: empty pages in front of each iterator's first records, though records follow.
        ends_late: whether a closed shard ends with a page of its own, as kinesalite has it.
        names_children: whether the last page names them.
        hidden: shards that so many of the next listings leave out.
        unclosed: shards that so many of the next listings show as open.
        listed_at_once: shards of one page of a listing.
        errors: errors of the next calls of an operation.
        refused_puts: for how many puts of a record with this key PutRecords fails.
        fails_pages: expired iterators: pages whose numbers are here answer that their iterator has expired.
    """

    def __init__(self, clock: Clock, *, shards: int = 1, name: str = "orders", retention_hours: int = 24) -> None:
        self.clock = clock
        self.name = name
        self.retention_hours = retention_hours
        self.calls: dict[str, int] = defaultdict(int)
        self.enforces = True
        self.refuses_first = 0
        self.gap = 0
        self.ends_late = False
        self.names_children = True
        self.hidden: dict[str, int] = {}
        self.unclosed: dict[str, int] = {}
        self.listed_at_once = 3
        self.errors: dict[str, list[Exception]] = defaultdict(list)
        self.refused_puts: dict[str, int] = defaultdict(int)
        self.expired_pages: set[int] = set()
        self.spurious_ends: set[int] = set()
        self.page_size = 10_000
        self.max_page_bytes = 10 * 1024 * 1024
        self.is_gone = False
        self._lock = threading.RLock()
        self._made = 0
        self.create(shards)

    # ---- what tests do -----------------------------------------------------------------------------------------------

    def create(self, shards: int) -> None:
        """Make the stream, or make it again."""
        self._made += 1
        self.created = self._wall()
        self.shards: dict[str, FakeShard] = {}
        self.iterators: dict[str, Iterator] = {}
        self._number = FIRST_NUMBER
        width = (MAX_HASH + 1) // shards
        for number in range(shards):
            last = MAX_HASH if number == shards - 1 else (number + 1) * width - 1
            self._new_shard(number * width, last)

    def put(self, key: str, data: bytes | str, *, hash_key: int | None = None) -> str:
        """Put a record; returns the id of its shard."""
        with self._lock:
            at = hash_of(key) if hash_key is None else hash_key
            shard = next(each for each in self.shards.values() if each.closed is None and each.first <= at <= each.last)
            self._number += 1 + at % 7
            data = data.encode() if isinstance(data, str) else data
            shard.records.append(FakeRecord(self._number, key, data, self._wall()))
            return shard.id

    def split(self, shard: str) -> tuple[str, str]:
        """Split an open shard in the middle."""
        with self._lock:
            parent = self.shards[shard]
            assert parent.closed is None
            middle = (parent.first + parent.last) // 2
            parent.closed = self._wall()
            return (
                self._new_shard(parent.first, middle, (shard,)).id,
                self._new_shard(middle + 1, parent.last, (shard,)).id,
            )

    def merge(self, shard: str, other: str) -> str:
        """Merge two neighbours."""
        with self._lock:
            one, two = sorted((self.shards[shard], self.shards[other]), key=lambda each: each.first)
            assert one.closed is two.closed is None
            assert one.last + 1 == two.first
            one.closed = two.closed = self._wall()
            return self._new_shard(one.first, two.last, (one.id, two.id)).id

    def update_shard_count(self, *, StreamName: str, TargetShardCount: int, ScalingType: str) -> dict[str, Any]:
        """Split or merge until there are so many open shards: twice or half as many."""
        assert StreamName == self.name
        assert ScalingType == "UNIFORM_SCALING"
        while len(open := self.open_shards()) < TargetShardCount:
            self.split(max(open, key=lambda each: each.last - each.first).id)
        while len(open := sorted(self.open_shards(), key=lambda each: each.first)) > TargetShardCount:
            pairs = list(pairwise(open))
            self.merge(*(each.id for each in min(pairs, key=lambda pair: pair[1].last - pair[0].first)))
        return {}

    def open_shards(self) -> list[FakeShard]:
        """The shards that take records."""
        return [each for each in self.shards.values() if each.closed is None]

    def everything(self) -> list[tuple[str, bytes]]:
        """Keys and data of all records, by shard."""
        return [(record.key, record.data) for shard in self.shards.values() for record in shard.records]

    def _new_shard(self, first: int, last: int, parents: tuple[str, ...] = ()) -> FakeShard:
        id = f"shardId-{len(self.shards):012d}"
        self.shards[id] = FakeShard(id, first, last, parents, began=self._wall())
        return self.shards[id]

    def _wall(self) -> int:
        return int(self.clock.wall())

    def _horizon(self) -> int:
        return self._wall() - self.retention_hours * HOUR

    # ---- boto3's calls -----------------------------------------------------------------------------------------------

    def _called(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.errors[operation]:
            raise self.errors[operation].pop(0)
        if self.is_gone:
            refuse("ResourceNotFoundException", operation)

    def describe_stream_summary(self, *, StreamName: str) -> dict[str, Any]:
        with self._lock:
            self._called("DescribeStreamSummary")
            if StreamName != self.name:
                refuse("ResourceNotFoundException", "DescribeStreamSummary")
            return {
                "StreamDescriptionSummary": {
                    "StreamARN": f"arn:aws:kinesis:eu-central-1:000000000000:stream/{self.name}",
                    "StreamCreationTimestamp": EPOCH + timedelta(microseconds=self.created),
                    "StreamStatus": "ACTIVE",
                    "RetentionPeriodHours": self.retention_hours,
                    "OpenShardCount": len(self.open_shards()),
                }
            }

    def list_shards(self, *, StreamName: str | None = None, NextToken: str | None = None) -> dict[str, Any]:
        with self._lock:
            self._called("ListShards")
            assert (StreamName is None) != (NextToken is None), "the service refuses both at once"
            at = int(NextToken or 0)
            all = [each for each in self.shards.values() if self._is_listed(each)]
            page = all[at : at + self.listed_at_once]
            answer: dict[str, Any] = {
                "Shards": [self._described(each) for each in page if not self._taken(self.hidden, each.id)]
            }
            if at + self.listed_at_once < len(all):
                answer["NextToken"] = str(at + self.listed_at_once)
            return answer

    def _is_listed(self, shard: FakeShard) -> bool:
        return shard.closed is None or shard.closed >= self._horizon()

    @staticmethod
    def _taken(counts: dict[str, int], id: str) -> bool:
        if not counts.get(id):
            return False
        counts[id] -= 1
        return True

    def _described(self, shard: FakeShard) -> dict[str, Any]:
        numbers = {"StartingSequenceNumber": str(FIRST_NUMBER)}
        if shard.closed is not None and not self._taken(self.unclosed, shard.id):
            numbers["EndingSequenceNumber"] = str(2**63 - 1)  # as kinesis-local has it
        described: dict[str, Any] = {
            "ShardId": shard.id,
            "HashKeyRange": {"StartingHashKey": str(shard.first), "EndingHashKey": str(shard.last)},
            "SequenceNumberRange": numbers,
        }
        return described | dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))

    def get_shard_iterator(
        self,
        *,
        StreamName: str,
        ShardId: str,
        ShardIteratorType: str,
        StartingSequenceNumber: str | None = None,
        Timestamp: datetime | None = None,
    ) -> dict[str, Any]:
        with self._lock:
            self._called("GetShardIterator")
            shard = self.shards.get(ShardId)
            if shard is None or StreamName != self.name or not self._is_listed(shard):
                refuse("ResourceNotFoundException", "GetShardIterator")
            records = shard.records
            if ShardIteratorType == "TRIM_HORIZON":
                index = 0
            elif ShardIteratorType == "AT_TIMESTAMP":
                assert Timestamp is not None
                since = (Timestamp - EPOCH) // timedelta(microseconds=1)
                if since > self._wall():
                    refuse("InvalidArgumentException", "GetShardIterator")
                index = next((n for n, each in enumerate(records) if each.arrived >= since), len(records))
            else:
                number = int(StartingSequenceNumber or "x")
                if number not in [each.number for each in records]:
                    refuse("InvalidArgumentException", "GetShardIterator")
                index = [each.number for each in records].index(number)
                index += ShardIteratorType == "AFTER_SEQUENCE_NUMBER"
            return {"ShardIterator": self._iterator(ShardId, index, self.gap)}

    def _iterator(self, shard: str, index: int, gap: int) -> str:
        token = f"{self._made}-{len(self.iterators)}-{shard}"
        self.iterators[token] = Iterator(shard, index, self._wall(), gap)
        return token

    def get_records(self, *, ShardIterator: str, Limit: int) -> dict[str, Any]:
        with self._lock:
            self._called("GetRecords")
            assert 1 <= Limit <= 10_000
            iterator = self.iterators.get(ShardIterator)
            if iterator is None:
                refuse("InvalidArgumentException", "GetRecords")
            page = self.calls["GetRecords"]
            if self._wall() - iterator.issued > 300_000_000 or page in self.expired_pages:
                refuse("ExpiredIteratorException", "GetRecords")
            shard = self.shards[iterator.shard]
            self._keep_limits(shard, iterator)
            return self._page(shard, iterator, Limit)

    def _keep_limits(self, shard: FakeShard, iterator: Iterator) -> None:
        iterator.tries += 1
        if iterator.tries <= self.refuses_first:
            raise throttled()
        if not self.enforces:
            return
        now = self._wall()
        shard.reads = [at for at in shard.reads if at > now - 1_000_000]
        if len(shard.reads) >= 5 or now < shard.blocked_until:
            raise throttled()
        shard.reads.append(now)

    def _page(self, shard: FakeShard, iterator: Iterator, limit: int) -> dict[str, Any]:
        now, horizon = self._wall(), self._horizon()
        first = next((n for n, each in enumerate(shard.records) if each.arrived >= horizon), len(shard.records))
        index = max(iterator.index, first)
        taken: list[FakeRecord] = []
        size = 0
        if not iterator.gap:
            for record in shard.records[index : index + min(limit, self.page_size)]:
                size += len(record.data)
                if taken and size > self.max_page_bytes:
                    break
                taken.append(record)
        shard.blocked_until = max(shard.blocked_until, now + sum(len(each.data) for each in taken) // 2)
        index += len(taken)
        rest = shard.records[index:]
        behind = (now - rest[0].arrived) // 1_000 + 1 if rest else 0
        answer: dict[str, Any] = {
            "Records": [
                {
                    "SequenceNumber": str(each.number),
                    "PartitionKey": each.key,
                    "Data": each.data,
                    "ApproximateArrivalTimestamp": EPOCH + timedelta(microseconds=each.arrived),
                }
                for each in taken
            ],
            "MillisBehindLatest": behind,
        }
        has_ended = shard.closed is not None and not rest and not (self.ends_late and taken)
        if self.calls["GetRecords"] in self.spurious_ends:
            return answer
        if not has_ended:
            answer["NextShardIterator"] = self._iterator(shard.id, index, max(0, iterator.gap - 1))
        elif self.names_children:
            children = [each for each in self.shards.values() if shard.id in each.parents]
            answer["ChildShards"] = [{"ShardId": each.id, "ParentShards": list(each.parents)} for each in children]
        return answer

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        with self._lock:
            self._called("PutRecords")
            assert StreamName == self.name
            assert 1 <= len(Records) <= 500
            assert sum(len(each["Data"]) + len(each["PartitionKey"]) for each in Records) <= 5 * 1024 * 1024
            answers: list[dict[str, Any]] = []
            for each in Records:
                key = each["PartitionKey"]
                if self.refused_puts[key] > 0:
                    self.refused_puts[key] -= 1
                    answers.append({"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"})
                    continue
                hash_key = each.get("ExplicitHashKey")
                shard = self.put(key, each["Data"], hash_key=None if hash_key is None else int(hash_key))
                answers.append({"ShardId": shard, "SequenceNumber": str(self.shards[shard].records[-1].number)})
            return {"Records": answers, "FailedRecordCount": sum("ErrorCode" in each for each in answers)}

    def close(self) -> None:
        """As boto3's."""
