"""The groups of an attempt, shared by the threads of its tasks: passes on what happens, wakes who may read again.

Decides nothing; :mod:`penstock.runtime.drift` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock.elements import Batch
from penstock.elements.partitions import largest_times
from penstock.graph.drift import DriftGroup
from penstock.graph.nodes import WithWatermark
from penstock.ids import Instant
from penstock.runtime.drift import Drift
from penstock.runtime.drift_streams import READ_ON, Hold, qualified


class DriftGates:
    """Asked by each source before it polls, and by each input before it calls a stream idle. Any thread may call.

    Args:
        groups: of the graph.
        now: when the attempt begins.
        wake: steps a source's task once more, by uid.
        finite: the run ends at what is there at its beginning, so what has nothing to read will never have any.
    """

    def __init__(
        self,
        groups: Sequence[DriftGroup],
        *,
        now: Instant,
        wake: Callable[[str], None],
        finite: bool = False,
    ) -> None:
        self._drifts = [Drift(group, now=now) for group in groups]
        self._marks = frozenset(stream.mark.id for group in groups for stream in group)
        self._wake = wake
        self._finite = finite
        self._holds: dict[str, Hold] = {}
        self._stood: dict[str, dict[str, Instant]] = {}
        self._lock = threading.Lock()

    def follows(self, mark: WithWatermark) -> bool:
        """Whether batches that pass this step are to be :meth:`followed <follow>`."""
        return mark.id in self._marks

    def follow(self, batch: Batch, mark: WithWatermark) -> None:
        """A batch has just been given the measure of this step: what it tells counts as soon as it is there."""
        measure, reading = batch.measures.get(f"time:{mark.id}"), batch.reading
        if measure is None or reading is None:
            return
        partitions = batch.partitions

        def told() -> None:
            times = None if measure.value is None else largest_times(measure.value, partitions)
            behind = partitions.behind if partitions is not None else frozenset[str]()
            behind = behind if times is None or "" not in times or not behind else frozenset(("",))
            with self._lock:
                for drift in self._drifts:
                    drift.told(mark.id, reading.source, reading.number, times, behind=behind)
            self._let_go()

        measure.when_settled(told)

    def sent(self, source: str, number: int, now: Instant) -> None:
        """A source has planned a batch."""
        with self._lock:
            for drift in self._drifts:
                drift.sent(source, number, now)

    def rested(self, source: str, *, idle: bool, ended: Collection[str] = ()) -> None:
        """A source had nothing; ``idle`` and ``ended`` as its reader says."""
        with self._lock:
            for drift in self._drifts:
                drift.rested(source, idle=idle or self._finite, ended=ended)
        self._let_go()

    def left(self, source: str) -> None:
        """A source has ended or is caught up."""
        with self._lock:
            for drift in self._drifts:
                drift.left(source)
            self._holds.pop(source, None)
        self._let_go()

    def hold(self, source: str, now: Instant) -> Hold:
        """What a source is to leave out of its next batch."""
        with self._lock:
            holds = [drift.hold(source, now) for drift in self._drifts if source in drift.sources]
            before, hold = self._holds.get(source, READ_ON), _together(holds)
            self._holds[source] = hold
            if before != READ_ON or hold != READ_ON:
                names = (*_held(source, before), *_held(source, hold))
                self._stood.setdefault(source, {}).update(dict.fromkeys(names, now))
            return hold

    def stood(self, sources: Iterable[str], now: Instant) -> Mapping[str, Instant]:
        """Until when partitions (``orders/3``) or whole sources were held, so that this is no silence of theirs."""
        stood: dict[str, Instant] = {}
        with self._lock:
            for source in sources:
                stood.update(self._stood.get(source, {}))
                stood.update(dict.fromkeys(_held(source, self._holds.get(source, READ_ON)), now))
        return stood

    def _let_go(self) -> None:
        """Those who wait ask again. Without the lock: a wake may do anything."""
        with self._lock:
            waiting = [source for source, hold in self._holds.items() if hold != READ_ON]
        for source in waiting:
            self._wake(source)


def _held(source: str, hold: Hold) -> Iterable[str]:
    if hold.everything:
        yield source
    for name in hold.partitions:
        yield qualified(source, name)


def _together(holds: Sequence[Hold]) -> Hold:
    """A source of several groups waits for all of them."""
    if len(holds) == 1:
        return holds[0]
    return Hold(
        partitions=frozenset[str]().union(*(hold.partitions for hold in holds)),
        everything=any(hold.everything for hold in holds),
        ahead=tuple(sorted({name for hold in holds for name in hold.ahead})),
        by=next((hold.by for hold in holds if hold.by is not None), None),
        wake_at=min((hold.wake_at for hold in holds if hold.wake_at is not None), default=None),
    )
