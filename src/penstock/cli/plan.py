"""``penstock plan``: what a start would do, as text or as a document."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import Parameter
from rich.text import Text

from penstock.admin.plan import make_plan
from penstock.admin.plan_document import SCHEMA, document
from penstock.admin.start_plan import StepVerdict
from penstock.cli.options import (
    STATE,
    AsJson,
    Begin,
    Claim,
    Flag,
    Fresh,
    LeaveState,
    PipelineName,
    Rename,
    State,
    explaining_user_code,
    load_pipeline,
    settings_of,
    start_options,
)
from penstock.cli.output import CommandOutput, ExitCode, Output, UsageError
from penstock.cli.run import run_settings
from penstock.cli.spark_options import NO_OPTIONS, SparkArguments, SparkOptions, note_ignored
from penstock.cli.words import age, count, size
from penstock.clock import format_time
from penstock.graph.validate import validate_mode
from penstock.handles import Guarantee
from penstock.settings import read_settings, setting_text
from penstock.spark.jvm import engine_log, log_jvm_to_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.admin.reprocessing import ImportPlan, OutputPlan
    from penstock.admin.start_plan import SinkPlan, SourcePlan, StartPlan, StepPlan
    from penstock.clock import Clock
    from penstock.handles import CheckpointId
    from penstock.job.start import StartOptions


# ---- the command ---------------------------------------------------------------------------------------------------

Discard: TypeAlias = Annotated[
    bool, Flag, Parameter(help="With --from or --fresh: never publish output above that is not published yet.")
]
Schemas: TypeAlias = Annotated[
    bool, Parameter(negative="--no-schemas", help="Compare the columns of steps and state: takes Spark, a few seconds.")
]
AsForRun: Final = Parameter(help="As for penstock run.")
All: TypeAlias = Annotated[bool, Flag, Parameter(help="Also list steps that are kept as they are.")]
Out: TypeAlias = Annotated[str | None, Parameter(help="File to write the plan to, for `penstock run --plan`.")]


def plan_start(  # noqa: PLR0913 - the options of the command
    pipeline: PipelineName,
    /,
    *,
    state: State = STATE,
    start_at: Annotated[str | None, Begin] = None,
    claim: Claim = False,
    fresh: Fresh = False,
    discard_unpublished: Discard = False,
    allow_non_restored_state: LeaveState = False,
    rename: Rename = (),
    schemas: Schemas = True,
    checkpoint_every: Annotated[str | None, AsForRun] = None,
    stop_timeout: Annotated[str | None, AsForRun] = None,
    max_rows_per_batch: Annotated[int | None, AsForRun] = None,
    retained: Annotated[int | None, AsForRun] = None,
    spark: SparkArguments = NO_OPTIONS,
    all: All = False,
    as_json: AsJson = False,
    out: Out = None,
    output: CommandOutput,
) -> int:
    """Print what a start of a pipeline would do; 2 if something changes, 65 if it would be refused.

    Raises:
        PenstockError: there is nothing to plan, and why.
    """
    settings = settings_of(checkpoint_every, stop_timeout, max_rows_per_batch, retained)
    read_settings(settings)  # as run does, refused before anything else
    start = start_options(
        fresh=fresh,
        restore_from=start_at,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
        rename=rename,
    )
    return show_plan(
        pipeline,
        start,
        output,
        state=state,
        settings=settings,
        configured=spark,
        compares_schemas=schemas,
        lists_kept=all,
        as_json=as_json,
        out=out,
    )


def show_plan(  # noqa: PLR0913 - the options of the command
    pipeline: str,
    start: StartOptions,
    output: Output,
    *,
    state: str,
    settings: Mapping[str, object],
    configured: SparkOptions = NO_OPTIONS,
    compares_schemas: bool = True,
    lists_kept: bool = False,
    as_json: bool = False,
    out: str | None = None,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> int:
    """Make a plan and print it; a refusal is printed as ``penstock run`` would print it, and has the same exit code.

    Args:
        pipeline: ``module:name``.
        start: how the planned start begins.
        output: prints it.
        state: the folder that holds the state of jobs.
        settings: those given as options.
        configured: how the start would make its session; the plan's own has one core of this machine.
        compares_schemas: whether to compare the columns of restored state.
        lists_kept: list the steps that are kept, too.
        as_json: print the document instead of text.
        out: a file for the document.
        spark: a session for schemas, if needed; without one a quiet local session is made.
        clock: for the age of checkpoints.

    Raises:
        PenstockError: nothing can be planned: no such pipeline, no such checkpoint, a log that cannot be read.
    """
    configuration = configured.use()
    definition = load_pipeline(pipeline)
    note_ignored(configuration, output)
    engine_log(definition.name, state)  # refuses a folder that a start could not write to
    if spark is None:
        log_jvm_to_file(definition.name, tempfile.gettempdir())  # keep the output of a JVM, if needed, off the terminal
    wanted = read_settings(run_settings(settings))
    with explaining_user_code():
        graph = definition.graph()
        validate_mode(graph, Guarantee(wanted.mode))
    found = make_plan(
        graph, start, state=state, settings=wanted, compares_schemas=compares_schemas, spark=spark, clock=clock
    )
    fields = document(found)
    if as_json:
        output.document(SCHEMA, **fields)
    else:
        for line in lines(found, lists_kept=lists_kept):
            output.result(line)
    if out is not None:
        _write(out, json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False) + "\n")
    if found.refusal is not None:
        return output.error(found.refusal)
    if out is not None:
        command = f"penstock run {pipeline} --state {state} --plan {out}"
        output.note(f"penstock: written to {out}; {command} carries it out")
    if found.is_refused:
        return ExitCode.REFUSED
    return ExitCode.CHANGES if found.is_change else ExitCode.ENDED


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"--out {path} cannot be written: {error.strerror or error}. Name a file in a folder that exists."
        raise UsageError(msg) from error


# ---- the text ------------------------------------------------------------------------------------------------------

MARKS: Final = {
    StepVerdict.NEW: "+",
    StepVerdict.MIGRATED: "~",
    StepVerdict.DROPPED: "-",
    StepVerdict.KEPT: "=",
    StepVerdict.REFUSED: "!",
}
"""Mark in front of each step, by verdict."""
_STYLES: Final = {"+": "green", "~": "yellow", "-": "red", "!": "bold red", "=": "dim"}


def lines(found: StartPlan, *, lists_kept: bool = False) -> Iterator[Text]:
    """The plan as text, line by line."""
    yield Text(_first(found), style="bold")
    for title, section in (
        ("Brought in", _aligned(_import_lines(found.bring) if found.bring is not None else ())),
        (
            "Steps  " + "  ".join(f"{mark} {verdict.value}" for verdict, mark in MARKS.items()),
            _steps(found, lists_kept),
        ),
        ("Sources", _sources(found)),
        ("Published before the sources start", _outputs(found.publish)),
        ("Voided before the sources start, never published", _outputs(found.void)),
        ("Given up for good", _given_up(found)),
        ("Readers see again", _again(found)),
        ("Sinks", _aligned((each.uid, f"{each.describe}: {_guarantee(each)}") for each in found.sinks)),
        ("Settings that differ from the last run's", _settings(found)),
        ("Warnings", found.warnings),
        ("Refused", found.refused),
    ):
        rows = list(section)
        if rows:
            yield Text("")
            yield Text(title, style="bold")
            for row in rows:
                yield row if isinstance(row, Text) else Text(f"  {row}")
    yield Text("")
    yield Text(summary(found), style="bold")


def summary(found: StartPlan) -> str:
    """The last line."""
    counts = found.counts
    shown = [f"{counts[name]} {name}" for name in ("new", "migrated", "dropped", "kept")]
    refused = counts["refused"] + len(found.refused)
    return f"Plan: {', '.join(shown)}" + (f", {refused} refused" if refused else "")


def _first(found: StartPlan) -> str:
    restored = found.restored
    if found.refused:
        return f"{found.job}: a start would be refused"
    refused = "would be refused; else it " if found.is_refused else ""
    if restored is None:
        beside = " beside the state that is there" if found.rewind is not None else ""
        return f"{found.job}: a start {refused}would begin empty{beside}"
    old = age(found.at - restored.completed)
    if found.bring is not None:
        return f"{found.job}: a start {refused}would {_first_line_of_import(found.bring, restored.checkpoint, old)}"
    kind = "" if restored.kind == "periodic" else f", {restored.kind}"
    names = f", {', '.join(restored.names)}" if restored.names else ""
    back = "go back to" if found.rewind is not None else "restore"
    return f"{found.job}: a start {refused}would {back} checkpoint {restored.checkpoint} ({old} old{kind}{names})"


def _first_line_of_import(bring: ImportPlan, checkpoint: CheckpointId, old: str) -> str:
    """What a start does with the import, to follow "would"."""
    if bring.is_brought:
        return f"restore checkpoint {checkpoint} ({old} old), which it has brought from {bring.folder} already"
    return f"begin with checkpoint {bring.checkpoint} of job {bring.job!r} ({old} old), exported to {bring.folder}"


def _import_lines(bring: ImportPlan) -> Iterator[tuple[str, str]]:
    """Details of the import, each with its title."""
    names = f" ({', '.join(bring.names)})" if bring.names else ""
    log = "this log" if bring.is_own else f"log {bring.log_id}"
    yield (
        "export",
        f"checkpoint {bring.checkpoint}{names} of {log}, exported {format_time(bring.exported)} by penstock "
        f"{bring.version}, sha256 {bring.sha256[:12]}",
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


def _aligned(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Rows as text, the names padded to the same width."""
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    return (f"{name:<{width}}  {text}" for name, text in pairs)


def _steps(found: StartPlan, lists_kept: bool) -> Iterator[Text]:
    order = list(MARKS)
    shown = [step for step in found.steps if lists_kept or step.verdict is not StepVerdict.KEPT]
    width = max((len(step.uid) for step in shown), default=0)
    kind_width = max((len(_kind(step)) for step in shown), default=0)
    for step in sorted(shown, key=lambda step: order.index(step.verdict)):
        mark = MARKS[step.verdict]
        text = f"  {mark} {step.uid:<{width}}  {_kind(step):<{kind_width}}  {step.reason}{_state_size(step)}"
        yield Text(text, style=_STYLES[mark])
    kept = found.counts["kept"]
    if kept and not lists_kept:
        yield Text(f"  = {kept} kept as they are (--all lists them)", style=_STYLES["="])


def _kind(step: StepPlan) -> str:
    return f"{step.role} {step.kind}".rstrip()


def _state_size(step: StepPlan) -> str:
    return "" if step.rows is None else f" ({count(step.rows, 'row')}, {size(step.bytes or 0)})"


def _sources(found: StartPlan) -> Iterator[str]:
    rows = []
    for source in found.sources:
        where = "goes on" if source.resumes else "begins at its start"
        rows.append((source.uid, f"{source.describe}: {where}, {_backlog(source)}"))
    for source, row in zip(found.sources, _aligned(rows), strict=True):
        yield row
        if source.backlog is not None:
            ends = source.backlog.partitions.items()
            yield from (f"  {text}" for text in _aligned((name, f"{at:,} → {end:,}") for name, (at, end) in ends))


def _backlog(source: SourcePlan) -> str:
    backlog = source.backlog
    if backlog is None:
        return f"how much waits is not known: {source.unknown}"
    parts = []
    if backlog.rows is not None:
        parts.append(f"at most {count(backlog.rows, 'row')}" if backlog.rows else "no row")
    if backlog.files is not None:
        parts.append(_files(backlog.files, backlog.bytes or 0) if backlog.files else "no file")
    return f"{' and '.join(parts)} waiting"


def _outputs(items: Sequence[OutputPlan]) -> Iterator[str]:
    return _aligned((item.uid, f"checkpoint {item.checkpoint}: {_files_of([item])} → {item.target}") for item in items)


def _files_of(items: Sequence[OutputPlan]) -> str:
    return _files(sum(item.file_count or 0 for item in items), sum(item.bytes or 0 for item in items))


def _files(files: int, bytes: int) -> str:
    return f"{count(files, 'file')}, {size(bytes)}"


def _given_up(found: StartPlan) -> Iterator[str]:
    """What is lost for good after a rewind."""
    rewind = found.rewind
    if rewind is not None and rewind.condemned:
        yield f"{_checkpoints(rewind.condemned)}: discarding condemns what was built on it"
    if rewind is not None and rewind.lost:
        yield f"{_numbers('entry', 'entries', rewind.lost)} of the log, which cannot be read"


def _again(found: StartPlan) -> Iterator[str]:
    back = found.rewind or found.bring
    if back is None:
        return
    yield from _aligned(
        (each.uid, f"output of {_checkpoints(each.checkpoints)}: {_files_of(each.outputs)} in {each.target}")
        for each in back.again
    )
    if back.is_more_published:
        yield "and what was published for checkpoints that the log no longer names"


def _checkpoints(ids: Sequence[int]) -> str:
    return _numbers("checkpoint", "checkpoints", ids)


def _numbers(one: str, several: str, numbers: Sequence[int]) -> str:
    return f"{one if len(numbers) == 1 else several} {', '.join(map(str, numbers))}"


def _guarantee(sink: SinkPlan) -> str:
    return f"{sink.guarantee}, {sink.because}" if sink.because else sink.guarantee


def _settings(found: StartPlan) -> Iterator[str]:
    return _aligned(
        (change.name, f"{setting_text(change.name, change.before)} → {setting_text(change.name, change.now)}")
        for change in found.changed or ()
    )
