"""The command ``penstock shadow``: how the outputs of new and old code differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter
from rich.text import Text

from penstock.admin.shadow import COMPARING, COPYING, STARTING
from penstock.admin.shadow import shadow as run_shadow
from penstock.cli.options import (
    STATE,
    AsJson,
    Begin,
    Flag,
    MaxRows,
    State,
    explaining_user_code,
    load_pipeline,
    renames_of,
)
from penstock.cli.output import CommandOutput, ExitCode, ProgressLine, UsageError
from penstock.cli.spark_options import NO_OPTIONS, SparkArguments, note_ignored
from penstock.cli.words import count, plain_table, size
from penstock.spark.jvm import log_jvm_to_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.table import Table

    from penstock.admin.shadow import ShadowResult, SinkShadow, Stage
    from penstock.admin.shadow_compare import ComparedColumns, Comparison, DiffSample

SCHEMA: Final = "penstock.shadow/1"  # see docs/json.md
Several: Final = Parameter(negative="", show_default=False)
"""An option that may be given several times."""


def shadow(  # noqa: PLR0913 - the options of the command
    pipeline: Annotated[str, Parameter(help="The new code: module:pipeline, also from the current folder.")],
    /,
    *,
    restore_from: Annotated[str, Begin],
    against: Annotated[str | None, Parameter(help="The old code: module:pipeline.")] = None,
    until: Annotated[  # noqa: ARG001 - there is one value; the option is there so that the command reads like run
        Literal["caught-up"], Parameter(help="caught-up ends both runs when what is there now is read.")
    ] = "caught-up",
    key: Annotated[
        tuple[str, ...], Several, Parameter(help="sink=column,…: the columns that match an old row with its new one.")
    ] = (),
    rename: Annotated[tuple[str, ...], Several, Parameter(help="OLD=NEW: the new code's uid of a step.")] = (),
    out: Annotated[str | None, Parameter(help="New folder for all output; ./shadow-JOB by default.")] = None,
    allow_non_restored_state: Annotated[bool, Flag, Parameter(help="The new code may leave state unused.")] = False,
    without: Annotated[
        tuple[str, ...], Several, Parameter(help="Uid of a source that is not read, by either code.")
    ] = (),
    max_rows_per_batch: MaxRows = None,
    spark: SparkArguments = NO_OPTIONS,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Run both codes, compare and print their outputs; 2 if they differ.

    Raises:
        UsageError: a pipeline or a key cannot be understood.
        PenstockError: the outputs could not be compared, and why.
    """
    keys, renames = keys_of(key), renames_of(rename)
    configuration = spark.use()
    new = load_pipeline(pipeline)
    old = load_pipeline(against) if against is not None else None
    note_ignored(configuration, output)
    folder = Path(out or f"shadow-{new.name}")
    log_jvm_to_file(folder.name, str(folder.parent), option="--out")
    codes = pipeline if against is None else f"{against}, then through {pipeline}"
    output.note(f"penstock: a copy of {restore_from} is run through {codes}; this may take a while")
    with explaining_user_code(), ProgressLine(output) as progress:
        result = run_shadow(
            new,
            against=old,
            restore_from=restore_from,
            state=state,
            out=folder,
            key=keys,
            rename=renames,
            allow_non_restored_state=allow_non_restored_state,
            without=without,
            progress=lambda stage: progress.now(f"{new.name}: {progress_of(stage)}"),
            max_rows_per_batch=max_rows_per_batch,
        )
    if as_json:
        output.document(SCHEMA, **document(result))
    else:
        for part in report_text(result):
            output.result(part)
    return ExitCode.ENDED if result.is_same or not result.is_compared else ExitCode.CHANGES


def progress_of(stage: Stage) -> str:
    """What a stage does and how far it is, for people.

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


def keys_of(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The key columns of each sink.

    Raises:
        UsageError: an argument is not ``sink=column,…``.

    >>> keys_of(["totals-out=user,window_start"])
    {'totals-out': ('user', 'window_start')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in arguments:
        sink, equals, names = text.partition("=")
        columns = tuple(name.strip() for name in names.split(",") if name.strip())
        if not sink or not equals or not columns:
            msg = f"--key {text!r} is not sink=column,column. Write for example --key totals-out=user,window_start."
            raise UsageError(msg)
        found[sink] = columns
    return found


# ---- the JSON document -----------------------------------------------------------------------------------------------


def document(result: ShadowResult) -> dict[str, object]:
    """The fields of the JSON document."""
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
        "sinks": [_sink_fields(sink) for sink in result.sinks],
        "notes": list(result.notes),
    }


def _sink_fields(sink: SinkShadow) -> dict[str, object]:
    return {
        "uid": sink.uid,
        "old_rows": sink.rows.get("old"),
        "new_rows": sink.rows.get("new"),
        "key_columns": list(sink.key),
        "is_same": sink.is_same,
        "comparison": None if sink.comparison is None else _comparison_fields(sink.comparison, has_key=bool(sink.key)),
    }


def _comparison_fields(comparison: Comparison, *, has_key: bool) -> dict[str, object]:
    columns = comparison.columns
    return {
        "old_rows": comparison.old,
        "new_rows": comparison.new,
        "equal_rows": comparison.equal,
        "only_old_rows": comparison.only_old,
        "only_new_rows": comparison.only_new,
        "changed_rows": comparison.changed if has_key else None,
        "compared_columns": list(columns.compared),
        "added_columns": list(columns.added),
        "removed_columns": list(columns.removed),
        "retyped_columns": list(columns.retyped),
        "left_out_columns": list(columns.left_out),
        "samples": [{"old": sample.old, "new": sample.new} for sample in comparison.samples],
    }


# ---- the text --------------------------------------------------------------------------------------------------------


def report_text(result: ShadowResult) -> Iterator[Table | Text]:
    """The result for people: a table of sinks, what differs, and the verdict as the last line."""
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
        comparison = sink.comparison
        if comparison is None:
            cells = [f"{sink.rows[side]:,}" if side in sink.rows else "-" for side in ("old", "new")]
            table.add_row(sink.uid, *cells, "-", "-", "-", "-")
            continue
        numbers = [comparison.old, comparison.new, comparison.equal, comparison.only_old, comparison.only_new]
        changed = f"{comparison.changed:,}" if sink.key else "-"
        table.add_row(sink.uid, *(f"{number:,}" for number in numbers), changed)
    return table


def _differences(sink: SinkShadow) -> Iterator[str]:
    comparison = sink.comparison
    if comparison is None:
        return
    lines = [*_columns(comparison.columns), *(line for sample in comparison.samples for line in _sample(sample))]
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
