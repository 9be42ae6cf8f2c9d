"""``penstock shadow``: finds both codes, has them run, and shows how their outputs differ. Thin: all work is below."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rich.text import Text

from penstock.cli.engine import log_to_file
from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.locate import locate, refused
from penstock.cli.renames import renames_of
from penstock.cli.shown import plain_table
from penstock.cli.waiting import Waiting
from penstock.cli.words import count, size
from penstock.errors import PenstockError
from penstock.operate.shadow.stages import COMPARING, COPYING, STARTING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.operate.shadow.comparing import Columns, Comparison, Sample
    from penstock.operate.shadow.running import ShadowResult, SinkShadow
    from penstock.operate.shadow.stages import Stage

SCHEMA: Final = "penstock.shadow/1"
"""Of the JSON document: see docs/json.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOptions:
    """What was asked for on the command line."""

    pipeline: str
    against: str | None
    restore_from: str
    state: str
    out: str | None = None
    key: Sequence[str] = ()
    rename: Sequence[str] = ()
    allow_non_restored_state: bool = False
    without: Sequence[str] = ()
    master: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)


def run_shadow(output: Output, options: ShadowOptions, *, as_json: bool) -> int:
    """Run, compare, print; the exit code says whether anything differs.

    Raises:
        UsageError: a pipeline or a key cannot be understood.
        PenstockError: what kept it from comparing.
    """
    from penstock.operate.shadow.running import shadow

    keys, rename = keys_of(options.key), renames_of(options.rename)
    new = locate(options.pipeline)
    old = locate(options.against) if options.against is not None else None
    if options.master is not None:
        os.environ["PENSTOCK_MASTER"] = options.master
    out = Path(options.out or f"shadow-{new.name}")
    log_to_file(out.name, str(out.parent), option="--out")
    output.note(f"penstock: a copy of {options.restore_from} is run through {_codes(options)}; this may take a while")
    try:
        with Waiting(output) as waiting:
            result = shadow(
                new,
                against=old,
                restore_from=options.restore_from,
                state=options.state,
                out=out,
                key=keys,
                rename=rename,
                allow_non_restored_state=options.allow_non_restored_state,
                without=options.without,
                progress=lambda stage: waiting.now(f"{new.name}: {progress_of(stage)}"),
                **cast("Any", options.settings),
            )
    except PenstockError:
        raise
    except Exception as error:
        raise refused(error) from error
    if as_json:
        output.document(SCHEMA, **document(result))
    else:
        for part in story(result):
            output.result(part)
    return ExitCode.ENDED if result.is_same or not result.is_compared else ExitCode.CHANGES


def progress_of(stage: Stage) -> str:
    """What goes on, for whoever waits.

    >>> from penstock.operate.shadow.stages import Stage
    >>> progress_of(Stage(doing="old", done=1_200, behind=300))
    'the old code, 1,200 rows read, 300 behind'
    >>> progress_of(Stage(doing="new", done=1_200, of=1_500))
    'the new code, 1,200 of 1,500 rows read'
    """
    if stage.doing == COPYING:
        return f"copying the checkpoint, {size(stage.done)} of {size(stage.of or 0)}"
    if stage.doing == STARTING:
        return "starting Spark"
    if stage.doing == COMPARING:
        return f"comparing, {stage.done} of {count(stage.of or 0, 'sink')}"
    if stage.of is not None:
        return f"the {stage.doing} code, {stage.done:,} of {count(stage.of, 'row')} read"
    behind = "" if stage.behind is None else f", {stage.behind:,} behind"
    return f"the {stage.doing} code, {count(stage.done, 'row')} read{behind}"


def keys_of(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The key columns by sink.

    Raises:
        UsageError: one of them is not ``sink=column,…``.

    >>> keys_of(["totals-out=user,window_start"])
    {'totals-out': ('user', 'window_start')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        sink, equals, names = text.partition("=")
        columns = tuple(name.strip() for name in names.split(",") if name.strip())
        if not sink or not equals or not columns:
            msg = f"--key {text!r} is not sink=column,column; write for example --key totals-out=user,window_start"
            raise UsageError(msg)
        found[sink] = columns
    return found


def _codes(options: ShadowOptions) -> str:
    return options.pipeline if options.against is None else f"{options.against}, then through {options.pipeline}"


# ----------------------------------------------------------------------------------------------------------- as JSON


def document(result: ShadowResult) -> dict[str, object]:
    """The JSON document's fields."""
    return {
        "job": result.job,
        "checkpoint": result.checkpoint,
        "is_compared": result.is_compared,
        "is_same": result.is_same,
        "folder": result.folder,
        "runs": [
            {
                "side": side,
                "sources": [{"uid": uid, "rows_read": rows} for uid, rows in sorted(report.rows_read.items())],
                "sinks": [{"uid": uid, "rows_written": rows} for uid, rows in sorted(report.rows_written.items())],
            }
            for side, report in result.reports.items()
        ],
        "sinks": [_sink(sink) for sink in result.sinks],
        "notes": list(result.notes),
    }


def _sink(sink: SinkShadow) -> dict[str, object]:
    return {
        "uid": sink.uid,
        "old_rows": sink.rows.get("old"),
        "new_rows": sink.rows.get("new"),
        "key_columns": list(sink.key),
        "is_same": sink.is_same,
        "comparison": None if sink.comparison is None else _comparison(sink.comparison, has_key=bool(sink.key)),
    }


def _comparison(held: Comparison, *, has_key: bool) -> dict[str, object]:
    columns = held.columns
    return {
        "old_rows": held.old,
        "new_rows": held.new,
        "equal_rows": held.equal,
        "only_old_rows": held.only_old,
        "only_new_rows": held.only_new,
        "changed_rows": held.changed if has_key else None,
        "compared_columns": list(columns.compared),
        "added_columns": list(columns.added),
        "removed_columns": list(columns.removed),
        "retyped_columns": list(columns.retyped),
        "left_out_columns": list(columns.left_out),
        "samples": [{"old": sample.old, "new": sample.new} for sample in held.samples],
    }


# ---------------------------------------------------------------------------------------------------------- as text


def story(result: ShadowResult) -> Iterator[Table | Text]:
    """What a person reads: a table of sinks, what differs, and a last line that says it all."""
    yield Text(_read(result))
    yield _table(result)
    for sink in result.sinks:
        yield from (Text(line) for line in _differences(sink))
    for note in result.notes:
        yield Text(f"note: {note}", style="yellow")
    yield Text(_verdict(result), style="bold")


def _read(result: ShadowResult) -> str:
    read = {side: sum(report.rows_read.values()) for side, report in result.reports.items()}
    rows = ", ".join(f"{count(number, 'row')} read by the {side} code" for side, number in read.items())
    return f"{result.job}: from checkpoint {result.checkpoint} on, {rows}"


def _table(result: ShadowResult) -> Table:
    table = plain_table(
        ("sink", "left"),
        ("old", "right"),
        ("new", "right"),
        ("equal", "right"),
        ("only old", "right"),
        ("only new", "right"),
        ("changed", "right"),
    )
    for sink in result.sinks:
        held = sink.comparison
        if held is None:
            cells = [f"{sink.rows[side]:,}" if side in sink.rows else "-" for side in ("old", "new")]
            table.add_row(sink.uid, *cells, "-", "-", "-", "-")
            continue
        numbers = [held.old, held.new, held.equal, held.only_old, held.only_new]
        changed = f"{held.changed:,}" if sink.key else "-"
        table.add_row(sink.uid, *(f"{number:,}" for number in numbers), changed)
    return table


def _differences(sink: SinkShadow) -> Iterator[str]:
    held = sink.comparison
    if held is None:
        return
    lines = [*_columns(held.columns), *(line for sample in held.samples for line in _sample(sample))]
    if lines:
        yield f"{sink.uid}:"
        yield from (f"  {line}" for line in lines)


def _columns(columns: Columns) -> Iterator[str]:
    for what, names in (
        ("only in the new code", columns.added),
        ("only in the old code", columns.removed),
        ("of another type, not compared", columns.retyped),
        ("not comparable", columns.left_out),
    ):
        if names:
            yield f"columns {what}: {', '.join(names)}"


def _sample(sample: Sample) -> Iterator[str]:
    for sign, row in (("-", sample.old), ("+", sample.new)):
        if row is not None:
            yield f"{sign} {json.dumps(row, ensure_ascii=False)}"


def _verdict(result: ShadowResult) -> str:
    if not result.is_compared:
        return f"nothing to compare with (--against); what the new code wrote is in {result.folder}"
    if result.is_same:
        return f"the same rows in every sink; they are in {result.folder}"
    differing = [sink.uid for sink in result.sinks if not sink.is_same]
    return f"the outputs differ in {', '.join(differing)}; both are in {result.folder}"
