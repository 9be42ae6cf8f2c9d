"""Dead letters as JSON: a sink in the job's directory, and their rows as a source reads them again.

The reader of replays is the product's. A row that is read again is another row: its number says by which replay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.dead_letters.replay import letters_gone
from penstock.dead_letters.store import FOLDER, DeadLetterSink, Replay
from penstock.handles import CheckpointId, Committable, FileRef
from simulation.outside import rows_of
from simulation.sinks import FakeSink, FakeWriter

if TYPE_CHECKING:
    from simulation.world import World

AGAIN = 1_000
"""Rows with numbers above were read from letters; the rest of the number is that of the row that could not be."""

MOST = 1_000
"""Replays of one place."""

_RENAMED = re.compile(r"-r(\d+)$")


def number_of(uid: str) -> int:
    """Which of the names of a step this is; 0 for its first."""
    found = _RENAMED.search(uid)
    return int(found[1]) if found else 0


def read_again(row: int, uid: str, number: int) -> int:
    """The number of a row that a replay of some place has brought back: it tells all replays that it has been in.

    >>> read_again(5, "dead", 3), read_again(3_005, "dead", 4)
    (3005, 3000004005)
    """
    replay = number + MOST * number_of(uid)
    return row % AGAIN + AGAIN * (replay + MOST * MOST * (row // AGAIN))


@dataclass(frozen=True, slots=True)
class FakeLetters(DeadLetterSink):
    """Stages letters below the job's directory; ``source`` is the uid of whoever may read them again."""

    world: Any = None
    source: str = ""

    def check(self, schema: Any) -> None:
        pass

    def writer(self, context: Any) -> Any:
        return LettersWriter(self, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        return (f"{self.at}/.penstock/{log_id}",)

    @property
    def at(self) -> str:
        """Where the files are."""
        assert self.folder is not None
        return self.folder.removeprefix("file://")


class LettersWriter(FakeWriter):
    """Names files as the product does, and writes down who may read the rows again."""

    def __init__(self, sink: FakeLetters, context: Any) -> None:
        super().__init__(FakeSink(sink.world, "files/1"), context)
        self._folder = sink.at
        self._by = number_of(sink.source)
        self._root = f"{sink.at}/.penstock/{context.log_id}/{context.uid}/{context.generation}"

    def _bytes(self, rows: Sequence[tuple[int, int, int]]) -> bytes:
        return json.dumps([(source, row, self._by) for source, row, _ in rows]).encode()

    def _committable(self, checkpoint: CheckpointId, refs: tuple[FileRef, ...]) -> Committable:
        of = self._of
        name = f"{self._folder}/part-{of.log_id[:8]}-{of.uid}-{checkpoint}-{of.generation}"
        moves = {ref.path: f"{name}-{i:02}.zstd.parquet" for i, ref in enumerate(refs)}
        return Committable(
            uid=of.uid,
            kind="files/1",
            checkpoint=checkpoint,
            target=self._folder,
            files=refs,
            detail={"moves": moves},  # type: ignore[dict-item]
        )


def rows_again(world: World, replay: Replay) -> tuple[tuple[int, int, int], ...]:
    """What Spark would read: the rows of the letters that a replay names."""
    found: list[tuple[int, int, int]] = []
    for each in replay.letters:
        path = f"{FOLDER}/{replay.uid}/{each.file}"
        data = world.disk.read(path)
        if data is None:
            raise letters_gone(path)
        rows = rows_of(data)
        for start, end in each.ranges:
            found += [(source, read_again(row, replay.uid, replay.number), 0) for source, row, _ in rows[start:end]]
    return tuple(found)
