"""The shards of a stream and how far each was read: which can be read, which have ended, and what a checkpoint holds.

All decisions here are pure. A shard is known by its stream's ARN, the time the stream was created, and its own id:
what else is known of it changes when it closes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from penstock.codec import Codec
from penstock.connectors.kinesis.positions import (
    After,
    AtHorizon,
    AtTime,
    Finished,
    ShardPosition,
    position_from_json,
    position_to_json,
)
from penstock.errors import CheckpointUnreadable, InternalError, SourceChanged, StateIncompatible
from penstock.handles import Json, Position

KIND: Final = "kinesis/1"
"""Kind of the positions; also the version of their format."""
MAX_HASH: Final = 2**128 - 1
"""The last hash key of a stream: its open shards share the keys from 0 to this one."""


# ---- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedShard:
    """A shard as ListShards describes it. A closed shard takes no more records; it may have some to be read."""

    id: str
    parents: tuple[str, ...]
    first_hash: int
    last_hash: int
    is_closed: bool = False


Listing: TypeAlias = Mapping[str, ListedShard]
"""All shards of a complete answer, with all its pages."""


@dataclass(frozen=True, slots=True)
class ShardState:
    """How far one shard was read.

    Attributes:
        position: where reading goes on.
        parents: the shards that it was split or merged from.
        first_hash: the first hash key of its records.
        last_hash: the last one.
        read_until: milliseconds since the epoch up to which all records that arrived were read; ``None`` if that is
            not known.
    """

    position: ShardPosition
    parents: tuple[str, ...]
    first_hash: int
    last_hash: int
    read_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisPosition:
    """How far a stream was read.

    Attributes:
        arn: of the stream.
        created: when it was created, in milliseconds since the epoch. A stream that was deleted and made again under
            its name has another time.
        shards: all shards that were found, except those that were finished and are listed no more.
    """

    arn: str
    created: int
    shards: Mapping[str, ShardState] = field(default_factory=dict)

    @property
    def unfinished(self) -> list[str]:
        """The shards that have more records, now or later, in order."""
        return sorted(id for id, state in self.shards.items() if not isinstance(state.position, Finished))


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The records of one shard in a batch: those after a position, up to and including another, and their number.

    The number is ``None`` if executors will read them: they have not been counted yet.
    """

    shard: str
    after: ShardPosition
    to: After
    count: int | None
    read_until: int | None = None


# ---- the first position ----------------------------------------------------------------------------------------------


def start(arn: str, created: int, listing: Listing, at: ShardPosition) -> KinesisPosition:
    """The position of a source that has read nothing: ``at`` in every shard that is listed.

    Shards that are found later come from these, so they are read from their first record on.
    """
    return KinesisPosition(arn=arn, created=created, shards={id: _state(shard, at) for id, shard in listing.items()})


def begin_at(first: KinesisPosition, at: Mapping[str, ShardPosition], horizon: int) -> KinesisPosition:
    """The position of a source that has read nothing: in each shard where ``at`` says.

    Args:
        first: with all shards.
        at: by shard.
        horizon: milliseconds since the epoch. A time before it is the first record that is still there: nothing was
            read, so nothing between them is lost.
    """
    states = {}
    for id, state in first.shards.items():
        position = at[id]
        if isinstance(position, AtTime) and position.ms < horizon:
            position = AtHorizon()
        until = position.ms if isinstance(position, AtTime) else None
        states[id] = replace(state, position=position, read_until=until)
    return replace(first, shards=states)


def _state(shard: ListedShard, at: ShardPosition, read_until: int | None = None) -> ShardState:
    return ShardState(at, shard.parents, shard.first_hash, shard.last_hash, read_until)


# ---- discovery -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardChanges:
    """What ``discover`` found.

    Attributes:
        position: with new shards, and without those that were finished and are gone.
        found: the new shards.
        orphans: new shards with a parent that is neither known nor listed. They wait for a second listing: a parent
            that was only left out of this one has to be read before them.
    """

    position: KinesisPosition
    found: tuple[str, ...] = ()
    orphans: frozenset[str] = frozenset()


def discover(position: KinesisPosition, listing: Listing, previous: Listing) -> ShardChanges:
    """Compare a position with the shards that are listed now.

    A new shard is read from its first record on, whatever the start was: its parents are read before it. Ancestors of
    shards that were read are not new. They were finished and forgotten, and a late or wrong listing shows them again.

    Args:
        position: how far the stream was read.
        listing: its shards now.
        previous: its shards before. A finished shard is forgotten if it is in neither.
    """
    known = position.shards
    read = {id for id, state in known.items() if isinstance(state.position, After | Finished)}
    past = _ancestors(read, position, listing)
    found = [id for id in sorted(listing) if id not in known and id not in past]
    kept = {
        id: state
        for id, state in known.items()
        if not isinstance(state.position, Finished) or id in listing or id in previous
    }
    new = {id: _state(listing[id], AtHorizon(), _read_until(listing[id].parents, known)) for id in found}
    after = replace(position, shards={**kept, **new})
    orphans = frozenset(
        id for id in found if any(parent not in after.shards and parent not in past for parent in listing[id].parents)
    )
    return ShardChanges(position=after, found=tuple(found), orphans=orphans)


def _ancestors(of: Collection[str], position: KinesisPosition, listing: Listing) -> set[str]:
    def parents(id: str) -> tuple[str, ...]:
        if id in position.shards:
            return position.shards[id].parents
        return listing[id].parents if id in listing else ()

    found: set[str] = set()
    open = [parent for id in of for parent in parents(id)]
    while open:
        id = open.pop()
        if id not in found:
            found.add(id)
            open += parents(id)
    return found


def _read_until(parents: Sequence[str], known: Mapping[str, ShardState]) -> int | None:
    """Up to when the parents were read: the first record of their child cannot be older."""
    times = [known[parent].read_until for parent in parents if parent in known]
    return min((time for time in times if time is not None), default=None)


def readable(position: KinesisPosition, orphans: Collection[str] = ()) -> list[str]:
    """The shards that may be read now: those whose parents were read to their end, or are not there any more.

    So the records of one key are read in the order in which they were put, across splits and merges.
    """
    unfinished = set(position.unfinished)
    return [
        id
        for id in sorted(unfinished)
        if id not in orphans and not unfinished.intersection(position.shards[id].parents)
    ]


def finish(position: KinesisPosition, shard: str) -> KinesisPosition:
    """The position after the last record of a closed shard. Its children may be read if it was their last parent."""
    ended = replace(position.shards[shard], position=Finished())
    shards = {**position.shards, shard: ended}
    for id, state in position.shards.items():
        if shard in state.parents and isinstance(state.position, AtHorizon):
            shards[id] = replace(state, read_until=_read_until(state.parents, shards))
    return replace(position, shards=shards)


def drop(position: KinesisPosition, shard: str) -> KinesisPosition:
    """The position without a shard that is lost."""
    return replace(position, shards={id: state for id, state in position.shards.items() if id != shard})


def uncovered(listing: Listing) -> tuple[int, int] | None:
    """The first hash keys that belong to no open shard; ``None`` if there are none, as in any complete listing.

    >>> half = MAX_HASH // 2
    >>> uncovered({"a": ListedShard("a", (), 0, half)}) == (half + 1, MAX_HASH)
    True
    """
    next = 0
    for shard in sorted(listing.values(), key=lambda shard: shard.first_hash):
        if shard.is_closed:
            continue
        if shard.first_hash > next:
            return next, shard.first_hash - 1
        next = max(next, shard.last_hash + 1)
    return None if next > MAX_HASH else (next, MAX_HASH)


def check_identity(position: KinesisPosition, arn: str, created: int) -> None:
    """Refuse another stream of the same name.

    Raises:
        SourceChanged: the stream has another ARN, or was deleted and made again.
    """
    if position.arn != arn:
        msg = (
            f"The position belongs to stream {position.arn}, and the source reads {arn}. Correct stream=, region= or "
            "the account, or give the source a uid of its own."
        )
        raise SourceChanged(msg)
    if position.created != created:
        msg = (
            f"Stream {arn} was deleted and made again: the position is of one created at {position.created} ms since "
            f"1970, and this one was created at {created} ms. Its records are others. Give the source a uid of its "
            "own, or begin again with penstock run … --fresh."
        )
        raise SourceChanged(msg)


# ---- batches ---------------------------------------------------------------------------------------------------------


def advance(position: KinesisPosition, ranges: Sequence[ShardRange]) -> KinesisPosition:
    """The position after ranges were read that begin at the position of each shard.

    Raises:
        InternalError: a range does not follow on its shard's position.
    """
    shards = dict(position.shards)
    for part in ranges:
        state = shards[part.shard]
        if state.position != part.after or (part.count is not None and part.count < 1):
            msg = f"Range {part} does not follow on position {state.position} of shard {part.shard}."
            raise InternalError(msg)
        known = [time for time in (state.read_until, part.read_until) if time is not None]
        shards[part.shard] = replace(state, position=part.to, read_until=max(known, default=None))
    return replace(position, shards=shards)


# ---- as JSON ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardDocument:
    # Hash keys are text: as numbers of JSON other readers would round them.
    position: Json
    parents: tuple[str, ...]
    hashes: tuple[str, ...]
    read_until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamDocument:
    arn: str
    created: int
    shards: Mapping[str, _ShardDocument]


_CODEC: Final = Codec(_StreamDocument)


def encode(position: KinesisPosition) -> Position:
    """The position as a manifest holds it: the same bytes for equal positions.

    >>> state = ShardState(After(4959, 2), (), 0, MAX_HASH, 1_000)
    >>> position = encode(KinesisPosition(arn="arn:s", created=5, shards={"shard-0": state}))
    >>> position.detail["shards"]["shard-0"]["position"]
    {'at': 'after', 'seq': '4959', 'sub': 2}
    """
    document = _StreamDocument(
        arn=position.arn,
        created=position.created,
        shards={
            id: _ShardDocument(
                position=position_to_json(state.position),
                parents=state.parents,
                hashes=(str(state.first_hash), str(state.last_hash)),
                read_until=state.read_until,
            )
            for id, state in sorted(position.shards.items())
        },
    )
    detail: Json = _CODEC.to_json(document)  # type: ignore[assignment] # it is plain JSON
    return Position(kind=KIND, detail=detail)


def decode(position: Position) -> KinesisPosition:
    """The inverse of ``encode``.

    Raises:
        StateIncompatible: another kind of source wrote the position, or this version cannot read it.
    """
    if position.kind != KIND:
        msg = (
            f"The position is of kind {position.kind!r}, but a Kinesis source reads {KIND!r}. Give the new source a "
            "uid of its own, or restore with the source, or the version of penstock, that wrote it."
        )
        raise StateIncompatible(msg)
    try:
        document = _CODEC.from_json(position.detail, "position")
        shards = dict(_read_shards(document))
    except (CheckpointUnreadable, ValueError) as error:
        msg = (
            f"The position of a Kinesis source cannot be read ({error}). It was written by another version of "
            "penstock. Start that version, or give the source a uid of its own."
        )
        raise StateIncompatible(msg) from error
    return KinesisPosition(arn=document.arn, created=document.created, shards=shards)


def _read_shards(document: _StreamDocument) -> Iterator[tuple[str, ShardState]]:
    for id, shard in document.shards.items():
        first, last = map(int, shard.hashes)
        yield (
            id,
            ShardState(position_from_json(shard.position, id), shard.parents, first, last, shard.read_until),
        )


# ---- the next batch -------------------------------------------------------------------------------------------------


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


def is_beyond(seq: int, sub: int, end: ShardPosition | None) -> bool:
    """Whether the record with these numbers is after the end of a replay."""
    if isinstance(end, After):
        return (seq, sub) > (end.seq, end.sub)
    return end is None
