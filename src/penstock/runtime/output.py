"""Where a task's elements go: along routes, rewritten by fused steps, into channels. Runs nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.elements import Batch, Element, Lease
from penstock.operators.base import MAIN
from penstock.runtime.channel import Channel
from penstock.runtime.turns import is_empty


class Rewrite(Protocol):
    """Fused stateless steps: a batch with another lazy frame, and with the measures that were built into it."""

    def __call__(self, batch: Batch) -> Batch:
        """Rewrite; runs no job."""
        ...


class Keep(Protocol):
    """Persists a batch that several will run. The result's leases free it when each of ``readers`` released it."""

    def __call__(self, batch: Batch, readers: int) -> Batch:
        """Persist; runs no job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A route, ready to walk: its steps compiled, its leaf a channel.

    ``only_if`` is the measure and the figure without which a batch has no rows for this branch.
    """

    rewrite: Rewrite | None
    channel: Channel | None = None
    branches: tuple[Path, ...] = ()
    only_if: tuple[str, str] | None = None

    def channels(self) -> Sequence[Channel]:
        """All channels it leads to."""
        found = [channel for branch in self.branches for channel in branch.channels()]
        return [self.channel, *found] if self.channel is not None else found


class Output:
    """All outputs of one task. Batches go by port; control elements go everywhere, in order with them."""

    def __init__(self, paths: Mapping[str, Path], keep: Keep) -> None:
        self._paths = paths
        self._keep = keep
        self._channels = [channel for path in paths.values() for channel in path.channels()]
        self._sent = 0

    @property
    def has_room(self) -> bool:
        """Whether every channel has room, so that work may begin that emits anywhere."""
        return all(channel.has_room for channel in self._channels)

    @property
    def is_awaited(self) -> bool:
        """Whether everybody downstream is through with all that was sent."""
        return all(channel.is_awaited for channel in self._channels)

    @property
    def is_end(self) -> bool:
        """Whether nothing comes behind: the task is a sink."""
        return not self._channels

    def emit(self, batch: Batch, port: str = MAIN, *, ready: Callable[[], None] | None = None) -> None:
        """Send a batch along the port's route. One that nobody reads is released at once.

        ``ready`` is called when all its rewriting is done, before anybody downstream can see it.
        """
        path = self._paths.get(port)
        if path is None:
            batch.release()
            return
        self._sent += 1
        parcels = list(self._walk(replace(batch, sequence=self._sent), path))
        if ready is not None:
            ready()
        for channel, rewritten in parcels:
            channel.put(rewritten)

    def broadcast(self, element: Element) -> None:
        """Send a control element to everybody."""
        for channel in self._channels:
            channel.put(element)

    def _walk(self, batch: Batch, path: Path) -> Iterator[tuple[Channel, Batch]]:
        if path.rewrite is not None:
            batch = path.rewrite(batch)
        if path.channel is not None:
            yield path.channel, batch
        if path.branches:
            kept = self._kept(batch, path.branches)
            for branch in path.branches:
                yield from self._walk(kept, branch)

    def _kept(self, batch: Batch, branches: Sequence[Path]) -> Batch:
        """A batch for several branches: one that no more than one will run need not be persisted."""
        runners = sum(not is_empty(replace(batch, only_if=each.only_if or batch.only_if)) for each in branches)
        if runners > 1:
            return self._keep(batch, len(branches))
        return replace(batch, leases=(Lease(batch.release, holders=len(branches)),))
