"""Pure decisions about the next batch: how many of the fetched records of each shard it takes, and how far to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from penstock.connectors.kinesis.fetch import FetchedRecord
from penstock.connectors.kinesis.positions import After, Finished, ShardPosition

if TYPE_CHECKING:
    from penstock.connectors.kinesis.shards import KinesisPosition


def share(waiting: Mapping[str, int], most: int, turn: str | None) -> tuple[dict[str, int], str | None]:
    """Divide ``most`` rows among shards, each the same number as far as it has them; also the next ``turn``.

    Rows that are left over go to the shards in turn, so with fewer rows than shards each is still read.

    >>> share({"a": 5, "b": 1, "c": 9}, 7, None)
    ({'a': 3, 'b': 1, 'c': 3}, None)
    >>> share({"a": 5, "b": 5}, 1, "a")
    ({'a': 0, 'b': 1}, 'b')
    """
    shares = dict.fromkeys(waiting, 0)
    left = min(most, sum(waiting.values()))
    while left:
        open = sorted(shard for shard, rows in waiting.items() if rows > shares[shard])
        equal = left // len(open)
        if equal:
            for shard in open:
                given = min(equal, waiting[shard] - shares[shard])
                shares[shard] += given
                left -= given
            continue
        in_turn = [each for each in open if turn is None or each > turn] + [
            each for each in open if turn and each <= turn
        ]
        for shard in in_turn[:left]:
            shares[shard] += 1
        turn, left = in_turn[left - 1], 0
    return shares, turn


def fit_bytes(shares: Mapping[str, int], sizes: Mapping[str, list[int]], most: int) -> int:
    """The number of rows of all shards together that have about ``most`` bytes; at least one.

    Args:
        shares: rows of each shard.
        sizes: bytes of at least so many of its next records.
        most: bytes.
    """
    rows = sum(shares.values())
    size = sum(sum(sizes[shard][:count]) for shard, count in shares.items())
    return rows if size <= most else max(1, min(rows - 1, rows * most // size))


def end_of_replay(end: KinesisPosition, shard: str, parents_of: Mapping[str, Collection[str]]) -> ShardPosition | None:
    """Up to where a shard is read by a run that ends at ``end``; ``None``: it is not read.

    A shard that ``end`` has forgotten was read to its end there: it is an ancestor of one that ``end`` has. Any other
    unknown shard was found later.
    """
    if shard in end.shards:
        position = end.shards[shard].position
        return position if isinstance(position, After | Finished) else None
    open, seen = list(end.shards), set(end.shards)
    while open:
        id = open.pop()
        parents = end.shards[id].parents if id in end.shards else parents_of.get(id, ())
        for parent in parents:
            if parent == shard:
                return Finished()
            if parent not in seen:
                seen.add(parent)
                open.append(parent)
    return None


def is_beyond(record: FetchedRecord, end: ShardPosition | None) -> bool:
    """Whether a record is after the end of a replay."""
    if isinstance(end, After):
        return (record.seq, record.sub) > (end.seq, end.sub)
    return end is None
