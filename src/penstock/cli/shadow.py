"""Penstock shadow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

from cyclopts import App, Parameter
from rich.text import Text

from penstock.admin.shadow import COMPARING, COPYING, STARTING
from penstock.cli.options import (
    STATE,
    AsJson,
    Begin,
    Flag,
    Master,
    MaxRows,
    State,
    epilogue,
    load_pipeline,
    renames_of,
    user_code_error,
)
from penstock.cli.output import ExitCode, Output, ProgressLine, UsageError
from penstock.cli.words import count, plain_table, size
from penstock.errors import PenstockError
from penstock.spark.jvm import log_jvm_to_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

    from penstock.admin.shadow import ShadowResult, SinkShadow, Stage
    from penstock.admin.shadow_compare import ComparedColumns, Comparison, DiffSample


# ----------------------------------------------------------------------------------------------------
# ``penstock shadow``: its words and options.

SHADOW_HELP: Final = """\
Run new code on a copy of a savepoint, its sinks muted into a folder, and compare with what the old code writes.

Nothing outside is changed: sources are only read, and the real job may run meanwhile. Both codes read to the same
end. Ends with 0 if every sink got the same rows, with 2 if not."""
SHADOW_EXAMPLES: Final = """\
Examples:
  penstock shadow shop_v2:orders --against shop:orders --from before-v2 --key totals-out=user,window_start
  penstock shadow shop_v2:orders --from ./exports/orders --out ./tried         count what the new code writes"""
New: TypeAlias = Annotated[str, Parameter(help="The new code: module:pipeline, also from the current folder.")]
Old: TypeAlias = Annotated[str | None, Parameter(help="The old code: module:pipeline.")]
Until: TypeAlias = Annotated[Literal["caught-up"], Parameter(help="Both end when what is there now is read.")]
Several: Final = Parameter(negative="", show_default=False)
Key: TypeAlias = Annotated[
    tuple[str, ...], Several, Parameter(help="sink=column,…: which old and which new row are the same.")
]
Rename: TypeAlias = Annotated[tuple[str, ...], Several, Parameter(help="OLD=NEW: the new code's uid of a step.")]
Out: TypeAlias = Annotated[str | None, Parameter(help="New folder for all output; ./shadow-JOB by default.")]
LeaveState: TypeAlias = Annotated[bool, Flag, Parameter(help="The new code may leave state unused.")]
Without: TypeAlias = Annotated[tuple[str, ...], Several, Parameter(help="A source that neither code reads.")]


def add_shadow(app: App, output: Output) -> None:
    """Add ``shadow``."""

    def shadow(  # noqa: PLR0913 - the options of the command
        pipeline: New,
        /,
        *,
        restore_from: Annotated[str, Begin],
        against: Old = None,
        until: Until = "caught-up",  # noqa: ARG001 - there is one; it is written so that it reads like run
        key: Key = (),
        rename: Rename = (),
        out: Out = None,
        allow_non_restored_state: LeaveState = False,
        without: Without = (),
        max_rows_per_batch: MaxRows = None,
        master: Master = None,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        options = ShadowOptions(pipeline=pipeline, against=against, restore_from=restore_from, state=state, out=out)
        options = replace(options, key=key, rename=rename, allow_non_restored_state=allow_non_restored_state)
        options = replace(options, without=without, master=master, settings={"max_rows_per_batch": max_rows_per_batch})
        return run_shadow(output, options, as_json=as_json)

    app.command(shadow, help=SHADOW_HELP, help_epilogue=epilogue(SHADOW_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock shadow``: finds both codes, has them run, and shows how their outputs differ. Thin: all work is below.

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
    from penstock.admin.shadow import shadow

    keys, rename = keys_of(options.key), renames_of(options.rename)
    new = load_pipeline(options.pipeline)
    old = load_pipeline(options.against) if options.against is not None else None
    if options.master is not None:
        os.environ["PENSTOCK_MASTER"] = options.master
    out = Path(options.out or f"shadow-{new.name}")
    log_jvm_to_file(out.name, str(out.parent), option="--out")
    output.note(f"penstock: a copy of {options.restore_from} is run through {_codes(options)}; this may take a while")
    try:
        with ProgressLine(output) as waiting:
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
        raise user_code_error(error) from error
    if as_json:
        output.document(SCHEMA, **document(result))
    else:
        for part in report_text(result):
            output.result(part)
    return ExitCode.ENDED if result.is_same or not result.is_compared else ExitCode.CHANGES


def progress_of(stage: Stage) -> str:
    """What goes on, for whoever waits.

    >>> from penstock.admin.shadow import Stage
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


def report_text(result: ShadowResult) -> Iterator[Table | Text]:
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


def _columns(columns: ComparedColumns) -> Iterator[str]:
    for what, names in (
        ("only in the new code", columns.added),
        ("only in the old code", columns.removed),
        ("of another type, not compared", columns.retyped),
        ("not comparable", columns.left_out),
    ):
        if names:
            yield f"columns {what}: {', '.join(names)}"


def _sample(sample: DiffSample) -> Iterator[str]:
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
