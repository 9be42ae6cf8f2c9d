"""The watermark of one edge out of those of its source's partitions: a pure machine. It reads no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.ids import BEGINNING, END_OF_TIME, EventTime, Instant
from penstock.runtime.watermarks import BoundedDelay


@dataclass(slots=True, kw_only=True)
class _Partition:
    """One partition: its mark, the source it is of, when it last had rows or had some waiting, and if it is idle."""

    mark: BoundedDelay
    source: str
    heard: Instant
    is_idle: bool = False


@dataclass(slots=True)
class PartitionMarks:
    """Each partition's watermark trails its largest event time by the delay; the edge's is the least of them.

    A partition without rows for ``idle_after`` holds nothing back, unless it is known to have some waiting; if all are
    idle the edge stands as far as they came. One that is new stands where the edge does, and holds it there until it
    has brought rows or is idle: its rows from then on are judged as everybody's. One that is gone holds nothing back.
    The edge never goes back.

    A snapshot has only where the edge stands, so after a restart all are new, and stand there. It was the slowest of
    those that were not idle, so what any of them had not brought yet is not late now, unless it already was. Where
    rows of several sources come, none counts before each has told its partitions (:meth:`expect`), lest the one that
    is read first takes the edge past the others.

    >>> edge = PartitionMarks(delay=5)
    >>> edge.observe({"t/0": 20, "t/1": 12}, source="t", now=Instant(0))
    7
    >>> edge.holder, edge.observe({"t/0": 21, "t/1": 40}, source="t", now=Instant(1)), edge.holder
    ('t/1', 16, 't/0')
    """

    delay: int
    at: EventTime = BEGINNING
    idle_after: int | None = None
    _partitions: dict[str, _Partition] = field(default_factory=dict)

    def copy(self) -> PartitionMarks:
        """Another that stands where this does, to go on from here by itself."""
        parts = {name: replace(part, mark=replace(part.mark)) for name, part in self._partitions.items()}
        return replace(self, _partitions=parts)

    def expect(self, sources: Iterable[str], now: Instant) -> None:
        """These sources have partitions which they have yet to name. Until then each is one that is new."""
        for uid in sources:
            self._partitions[uid] = _Partition(mark=BoundedDelay(self.delay, self.at), source=uid, heard=now)

    def stood(self, until: Mapping[str, Instant]) -> None:
        """Partitions and sources that were held until then: so long nobody asked them for rows."""
        for name, part in self._partitions.items():
            held = [until[known] for known in (name, part.source) if known in until]
            part.heard = max([part.heard, *held])

    def observe(
        self, largest: Mapping[str, int | None], *, source: str, now: Instant, behind: Collection[str] = ()
    ) -> EventTime:
        """A batch has passed.

        Args:
            largest: of each live partition of its source, by qualified name: the largest event time, if it had any.
            source: other partitions that came from it are gone.
            now: when the batch was taken.
            behind: partitions that have rows waiting.
        """
        self._partitions = {
            name: part for name, part in self._partitions.items() if part.source != source or name in largest
        }
        for name, time in largest.items():
            part = self._partitions.get(name)
            if part is None:
                part = _Partition(mark=BoundedDelay(self.delay, self.at), source=source, heard=now)
                self._partitions[name] = part
            if time is not None:
                part.mark.observe(EventTime(time))
            if time is not None or name in behind:
                part.heard = max(part.heard, now)
        return self.look(now)

    def look(self, now: Instant) -> EventTime:
        """Call those idle that brought nothing for long."""
        for part in self._partitions.values():
            part.is_idle = self.idle_after is not None and now >= part.heard + self.idle_after
        holder = self._holder()
        if holder is not None:
            self.at = max(self.at, holder.mark.at)
        return self.at

    def idle_at(self) -> Instant | None:
        """When the next partition is to be called idle if nothing comes."""
        if self.idle_after is None or len(self._partitions) < 2:  # noqa: PLR2004 - alone it is the edge that is idle
            return None
        waiting = [part.heard for part in self._partitions.values() if not part.is_idle]
        return Instant(min(waiting) + self.idle_after) if waiting else None

    def end(self) -> EventTime:
        """Nothing comes any more."""
        self.at = END_OF_TIME
        return self.at

    @property
    def holder(self) -> str | None:
        """Which of several partitions holds the edge back; ``None`` if there is only one, or all are idle."""
        held = self._holder()
        if held is None or held.is_idle or len(self._partitions) < 2:  # noqa: PLR2004 - then there is no choice
            return None
        return next(name for name, part in self._partitions.items() if part is held)

    def _holder(self) -> _Partition | None:
        active = [part for part in self._partitions.values() if not part.is_idle]
        if active:
            return min(active, key=lambda part: part.mark.at)
        return max(self._partitions.values(), key=lambda part: part.mark.at, default=None)
