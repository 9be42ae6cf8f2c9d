"""``penstock savepoint export``: says what was copied where. No Spark, no pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.cli.shown import output_fields
from penstock.cli.waiting import counting_bytes
from penstock.cli.words import count, size
from penstock.handles import output_names
from penstock.operate.directory import JobDirectory
from penstock.operate.export import export_checkpoint

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.operate.export import Exported

SCHEMA: Final = "penstock.savepoint.export/1"
"""Of the JSON document: see docs/json.md."""


def export(output: Output, *, job: str, checkpoint: str, folder: str, state: str, wait: float, as_json: bool) -> int:
    """Export, and print what is in the folder.

    Raises:
        UnknownName: there is no such job or checkpoint; with the nearest name.
        PenstockError: it could not be exported; the folder holds no export.
    """
    with counting_bytes(output, "copying") as progress:
        made = export_checkpoint(JobDirectory(state, job), checkpoint, folder, wait=wait, progress=progress)
    if as_json:
        output.document(SCHEMA, **document(made))
        return ExitCode.ENDED
    output.result(Text(summary(made)))
    for line in warnings(made):
        output.note(f"penstock: {line}", style="yellow")
    return ExitCode.ENDED


def document(made: Exported) -> dict[str, object]:
    """The JSON document's fields. Times are microseconds since 1970."""
    export = made.export
    return {
        "job": export.job,
        "folder": made.folder,
        "log_id": export.log_id,
        "checkpoint": export.checkpoint,
        "names": list(export.names),
        "exported": export.at,
        "file_count": len(export.files),
        "bytes": export.bytes,
        "sha256": export.sha256,
        "left_open": [output_fields(item) for item in export.left_open],
    }


def summary(made: Exported) -> str:
    """In one line."""
    export = made.export
    called = f" ({', '.join(export.names)})" if export.names else ""
    return (
        f"{export.job}: checkpoint {export.checkpoint}{called} is in {made.folder} · {count(len(export.files), 'file')}"
        f", {size(export.bytes)} · sha256 {export.sha256[:12]}"
    )


def warnings(made: Exported) -> list[str]:
    """What the reader has to know of output that is not in it."""
    left = made.export.left_open
    if not left:
        return []
    named = output_names(*left)
    job = made.export.job
    return [
        f"the log does not know {count(len(left), 'output')} of it to be published: {named}. The export does not hold "
        f"them, job {job!r} publishes them: by itself if it runs, else by penstock settle {job}"
    ]
