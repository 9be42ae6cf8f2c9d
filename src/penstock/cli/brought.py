"""An exported checkpoint that a start brings in, in words for people. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.words import count, size, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.ids import CheckpointId
    from penstock.operate.plan.bringing import BringPlan


def first_line_of(bring: BringPlan, checkpoint: CheckpointId, old: str) -> str:
    """What a start does with it, in short: it "would …"."""
    if bring.is_brought:
        return f"restore checkpoint {checkpoint} ({old} old), which it has brought from {bring.folder} already"
    return f"begin with checkpoint {bring.checkpoint} of job {bring.job!r} ({old} old), exported to {bring.folder}"


def lines_of(bring: BringPlan) -> Iterator[tuple[str, str]]:
    """Each part of the import, with its name."""
    names = f" ({', '.join(bring.names)})" if bring.names else ""
    log = "this log" if bring.is_own else f"log {bring.log_id}"
    yield (
        "export",
        f"checkpoint {bring.checkpoint}{names} of {log}, exported {when(bring.exported)} by penstock {bring.version}, "
        f"sha256 {bring.sha256[:12]}",
    )
    if bring.is_brought:
        if bring.claim:
            yield "claimed", "what is left of its files in the folder is deleted"
        return
    yield "copied", f"{count(bring.files, 'file')}, {size(bring.bytes)}; the folder is not needed afterwards"
    if bring.claim:
        yield "claimed", "the files are deleted in the folder once they are copied; nobody else can begin with it"
    if bring.left is not None:
        yield "beside", f"checkpoint {bring.left}, which is left and can be gone back to, while it is kept"
