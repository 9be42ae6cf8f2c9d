"""What observers are told when a start is through with the past: what it restored, and what it did before. Pure."""

from __future__ import annotations

from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.recovery import Recovery
from penstock.facts import JobStarted
from penstock.ids import WallTime


def started(owned: OwnedLog, recovery: Recovery, *, attempt: int, wall: WallTime) -> JobStarted:
    """The fact, once the recovery was carried out.

    Args:
        owned: the log, under the claim of this start.
        recovery: what was done.
        attempt: 1, 2, … within the process.
        wall: now.
    """
    held = None if recovery.restored is None else owned.history.manifests.get(recovery.restored)
    return JobStarted(
        job=owned.job,
        generation=owned.generation,
        restored=recovery.restored,
        published=len(recovery.commit),
        attempt=attempt,
        age_ms=None if held is None else max(0, wall - held[1].completed) / 1_000,
        new=recovery.fresh,
        migrated=tuple(change.uid for change in recovery.changes),
        dropped=recovery.dropped,
        imported=recovery.bring.folder if recovery.bring is not None else None,
    )
