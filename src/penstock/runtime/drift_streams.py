"""Where the streams stand that wait for each other: what each was told, what is on its way, who is idle.

Compares nobody; :mod:`penstock.runtime.drift` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.graph.nodes import WithWatermark
from penstock.ids import Instant

PATIENCE: Final = 4
"""After so many batches in which a partition with rows waiting told no event time, it is taken to have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What a source is to leave out of its next batch.

    Attributes:
        partitions: these.
        everything: it is not polled at all.
        ahead: what is further ahead than it may be, for people: ``orders/3``, or the source. Whoever only waits to be
            told of batches on their way is not among them.
        by: the slowest, for whom those wait.
        wake_at: when to ask again if nothing else happens: somebody may be idle then.
    """

    partitions: frozenset[str] = frozenset()
    everything: bool = False
    ahead: tuple[str, ...] = ()
    by: str | None = None
    wake_at: Instant | None = None

    def leaves_out(self, name: str) -> bool:
        """Whether a partition is not read; the empty name is that of all that are not told apart."""
        return self.everything or name in self.partitions


READ_ON: Final = Hold()
"""Nothing is held."""


def qualified(source: str, name: str) -> str:
    """A partition's name among those of all sources; the source's own where its rows are not told apart."""
    return f"{source}/{name}" if name else source


@dataclass(slots=True, kw_only=True)
class Place:
    """Where a partition stands: its largest event time, how far its last batch took it, when it last had rows."""

    heard: Instant
    time: int | None = None
    stride: int | None = None
    is_idle: bool = False
    patience: int = PATIENCE

    @property
    def is_awaited(self) -> bool:
        """Whether its first event time is on its way."""
        return self.time is None and self.patience > 0 and not self.is_idle

    def came_without(self, *, has_waiting: bool) -> None:
        """A batch told nothing of it: as long as it has rows waiting they will be in one of the next."""
        self.patience = self.patience - 1 if has_waiting else 0

    def came_to(self, time: int) -> None:
        """A batch told its largest event time."""
        if self.time is not None:
            self.stride = max(0, time - self.time)
        self.time = time if self.time is None else max(self.time, time)

    def may_pass(self, limit: int, on_the_way: int) -> bool:
        """Whether it may be beyond the limit once all on its way is told, if batches go on as the last one."""
        assert self.time is not None
        return on_the_way > 0 and (self.stride is None or self.time + on_the_way * self.stride > limit)


@dataclass(slots=True, kw_only=True)
class DriftStream:
    """The rows of one source at one ``with_watermark``.

    It has spoken once a first job has told about a batch, or there was nothing to read; before, others wait for it.
    """

    mark: WithWatermark
    source: str
    heard: Instant
    places: dict[str, Place] = field(default_factory=dict)
    on_the_way: dict[int, Instant] = field(default_factory=dict)
    has_spoken: bool = False
    is_given_up: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether others wait for its first word."""
        return not self.has_spoken and not self.is_given_up

    def look(self, now: Instant, hold: Hold) -> None:
        """The clock stands for what is held; what brought nothing for long is idle, unless something is on its way."""
        due = self.mark.idle_after
        may_be_idle = due is not None and not self.on_the_way
        for name, place in self.places.items():
            if hold.leaves_out(name):
                place.heard = max(place.heard, now)
            elif may_be_idle and now >= place.heard + (due or 0):
                place.is_idle = True
        if may_be_idle and now >= self.heard + (due or 0):
            self.is_given_up = True

    def idle_at(self, hold: Hold) -> Iterator[Instant]:
        """When its next partitions will be idle if nothing comes."""
        due = self.mark.idle_after
        if due is None or self.on_the_way:
            return
        if self.is_awaited:
            yield Instant(self.heard + due)
        for name, place in self.places.items():
            if not place.is_idle and not hold.leaves_out(name):
                yield Instant(place.heard + due)

    def told(self, polled: Instant, times: Mapping[str, int | None], behind: Collection[str]) -> None:
        """A first job has told how far a batch has come; partitions that are not named are gone."""
        self.places = {name: self.places.get(name) or Place(heard=polled) for name in times}
        due = self.mark.idle_after
        for name, time in times.items():
            place = self.places[name]
            if time is not None:
                place.came_to(time)
            else:
                place.came_without(has_waiting=name in behind)
            if time is not None or name in behind:
                place.heard, place.is_idle = max(place.heard, polled), False
            elif due is not None and polled >= place.heard + due:
                place.is_idle = True
