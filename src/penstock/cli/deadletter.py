"""The commands ``penstock deadletter list``, ``show``, ``replay`` and ``drop``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import Parameter
from rich.text import Text

from penstock.admin import dead_letter_replay
from penstock.admin.dead_letters import (
    causes_of,
    dead_letter_queue,
    dead_letter_queues,
    failed_again,
    letters_of,
    replayable,
    select_by_sql,
)
from penstock.cli.options import STATE, AsJson, Flag, JobName, State, Yes, session_for
from penstock.cli.output import CommandOutput, ExitCode, Output, UsageError, confirm
from penstock.cli.spark_options import NO_OPTIONS, SparkArguments, SparkOptions
from penstock.cli.words import UNKNOWN, clipped, count, plain_table, size
from penstock.clock import WallTime, format_time
from penstock.control.client import JobDirectory
from penstock.dead_letters.store import count_rows

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.admin.dead_letter_replay import DropPlan, ReplayResult
    from penstock.admin.dead_letters import DeadLetterQueue, Letter, LetterCause, LetterFile
    from penstock.dead_letters.store import RowRanges

LIST_SCHEMA: Final = "penstock.deadletter.list/1"
SHOW_SCHEMA: Final = "penstock.deadletter.show/1"
REPLAY_SCHEMA: Final = "penstock.deadletter.replay/1"
DROP_SCHEMA: Final = "penstock.deadletter.drop/1"
"""The schemas of the JSON documents: see docs/json.md."""
RAW_WIDTH: Final = 500
"""Characters of an error or a raw text that a person is shown; the JSON document has all of it."""
Uid: TypeAlias = Annotated[
    str | None, Parameter(help="The uid in stream.dead_letter(uid); may be left out if the job has only one.")
]
Where: TypeAlias = Annotated[str | None, Parameter(help="SQL condition: only dead letters for which it is true.")]


# ---- penstock deadletter list ----------------------------------------------------------------------------------------


def list_queues(job: JobName, /, *, state: State = STATE, as_json: AsJson = False, output: CommandOutput) -> int:
    """Print the queues of dead letters of a job, and the causes in each.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: its directory cannot be read.
    """
    queues = [(queue, causes_of(queue)) for queue in dead_letter_queues(JobDirectory(state, job))]
    if as_json:
        output.document(LIST_SCHEMA, job=job, dead_letters=[_queue_fields(queue, causes) for queue, causes in queues])
        return ExitCode.ENDED
    if not queues:
        output.result(Text(f"{job}: no dead letters; a pipeline keeps them with stream.dead_letter(uid)"))
        return ExitCode.ENDED
    output.result(_queue_table(queues))
    for queue, causes in queues:
        for line in _remarks(job, state, queue, causes):
            output.result(Text(line))
    return ExitCode.ENDED


def _queue_fields(queue: DeadLetterQueue, causes: tuple[LetterCause, ...]) -> dict[str, object]:
    live = [file for file in queue.files if file.is_live]
    return {
        "uid": queue.uid,
        "folder": queue.folder,
        "file_count": len(live),
        "bytes": sum(file.bytes for file in live),
        "rows": sum(each.rows for each in causes),
        "replayed_rows": sum(each.replayed for each in causes),
        "waiting_rows": queue.waiting,
        "failed_again_rows": failed_again(queue),
        "replayable_rows": _replayable(queue),
        "undone_rows": sum(file.rows for file in queue.files if not file.is_live),
        "oldest_written": min((file.written for file in live), default=None),
        "newest_written": max((file.written for file in live), default=None),
        "replay_count": len(queue.replays),
        "causes": [_cause_fields(each) for each in causes],
    }


def _cause_fields(cause: LetterCause) -> dict[str, object]:
    return {
        "cause": cause.cause,
        "step": cause.step,
        "source": cause.source,
        "rows": cause.rows,
        "replayed_rows": cause.replayed,
        "no_replay": cause.no_replay,
    }


def _replayable(queue: DeadLetterQueue) -> int:
    return sum(count_rows(spans) for letters in replayable(queue).values() for spans in letters.values())


def _queue_table(queues: list[tuple[DeadLetterQueue, tuple[LetterCause, ...]]]) -> Table:
    table = plain_table(
        ("dead letters", "left"),
        ("cause", "left"),
        ("step", "left"),
        ("source", "left"),
        ("rows", "right"),
        ("replayed", "right"),
        ("size", "right"),
        ("oldest", "left"),
        ("newest", "left"),
    )
    for queue, causes in queues:
        live = [file for file in queue.files if file.is_live]
        about = [
            size(sum(file.bytes for file in live)),
            _moment(min((file.written for file in live), default=None)),
            _moment(max((file.written for file in live), default=None)),
        ]
        if not causes:
            table.add_row(queue.uid, "", "", "", "0", "0", *about)
        for number, each in enumerate(causes):
            first = number == 0
            table.add_row(
                queue.uid if first else "",
                each.cause,
                each.step,
                each.source,
                f"{each.rows:,}",
                f"{each.replayed:,}",
                *(about if first else ("", "", "")),
            )
    return table


def _remarks(job: str, state: str, queue: DeadLetterQueue, causes: tuple[LetterCause, ...]) -> Iterator[str]:
    """What a person would ask next about a queue."""
    waiting, again = queue.waiting, failed_again(queue)
    undone = sum(file.rows for file in queue.files if not file.is_live)
    if waiting:
        yield f"{queue.uid}: {count(waiting, 'row')} of a replay yet to be in a checkpoint"
    if again:
        yield f"{queue.uid}: {count(again, 'row')} failed again after a replay"
    if undone:
        yield f"{queue.uid}: {count(undone, 'row')} more that a rewind has undone: their rows are read again"
    for each in causes:
        if each.no_replay is not None:
            yield f"{queue.uid}: {each.cause}: cannot be replayed: {each.no_replay}"
    if _replayable(queue):
        yield f"{queue.uid}: to read them again: penstock deadletter replay {job} {queue.uid} --all --state {state}"


def _moment(wall: int | None) -> str:
    return UNKNOWN if wall is None else format_time(wall)


# ---- penstock deadletter show ----------------------------------------------------------------------------------------


def show(
    job: JobName,
    uid: Uid = None,
    /,
    *,
    where: Where = None,
    limit: Annotated[int, Parameter(help="Maximum number of dead letters.")] = 20,
    spark: SparkArguments = NO_OPTIONS,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Print single dead letters.

    Raises:
        UsageError: the limit is less than 1.
        UnknownName: there are no such dead letters; with the nearest name.
        SettingsError: ``where`` is no SQL over dead letters.
    """
    if limit < 1:
        msg = f"--limit is {limit}. It must be at least 1."
        raise UsageError(msg)
    queue = dead_letter_queue(JobDirectory(state, job), uid)
    chosen = None if where is None else _select_by(output, spark, where)(queue)
    letters, found = letters_of(queue, chosen, limit=limit)
    if as_json:
        fields = [_letter_fields(each) for each in letters]
        output.document(SHOW_SCHEMA, job=job, uid=queue.uid, letter_count=found, letters=fields)
        return ExitCode.ENDED
    for letter in letters:
        for line in _letter_lines(letter):
            output.result(Text(line))
    output.result(Text(_end(len(letters), found)))
    return ExitCode.ENDED


def _letter_fields(letter: Letter) -> dict[str, object]:
    return {
        "letter": letter.id,
        "cause": letter.cause,
        "error": letter.error,
        "step": letter.step,
        "source": letter.source,
        "place": {name: letter.place.get(name) for name in ("topic", "partition", "offset", "file")},
        "event_time": letter.event_time,
        "checkpoint": letter.checkpoint,
        "written": letter.written,
        "attempt_count": letter.attempts,
        "replay_count": letter.replayed,
        "raw": letter.raw,
        "record": dict(letter.record),
    }


def _letter_lines(letter: Letter) -> list[str]:
    head = [letter.id, format_time(letter.written)]
    if letter.attempts > 1:
        head.append(f"attempt {letter.attempts}")
    if letter.replayed:
        head.append("replayed" if letter.replayed == 1 else f"replayed {letter.replayed} times")
    lines = [" · ".join(head), f"  {letter.cause} at {letter.step}, from {letter.source}{_place_text(letter)}"]
    if letter.error is not None:
        why = letter.error.removesuffix(letter.raw)  # the text that cannot be decoded is shown once
        lines.append(f"  {clipped(why.strip(), RAW_WIDTH)}")
    lines.append(f"  {clipped(letter.raw, RAW_WIDTH)}")
    return lines


def _place_text(letter: Letter) -> str:
    place = letter.place
    text = ""
    if "offset" in place:
        text += f": {place.get('topic')}-{place.get('partition')} offset {place['offset']}"
    if "file" in place:
        text += f": {place['file']}"
    if letter.event_time is not None:
        text += f", at {format_time(letter.event_time)}"
    return text


def _end(shown: int, found: int) -> str:
    return count(found, "dead letter") if shown == found else f"{shown} of {count(found, 'dead letter')} (--limit)"


# ---- penstock deadletter replay --------------------------------------------------------------------------------------


def replay(  # noqa: PLR0913 - the options of the command
    job: JobName,
    uid: Uid = None,
    /,
    *,
    all: Annotated[bool, Flag, Parameter(help="Replay all that were not replayed yet.")] = False,
    where: Where = None,
    again: Annotated[bool, Flag, Parameter(help="Also replay those that were replayed before.")] = False,
    spark: SparkArguments = NO_OPTIONS,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Request a replay, and say when its rows are read again.

    Raises:
        UsageError: neither ``--all`` nor ``--where`` was given, or both.
        UnknownName: there are no such dead letters.
        RequestRefused: none of them can be replayed.
    """
    if all == (where is not None):
        msg = 'The command does not say which dead letters. Give --all, or --where "SQL".'
        raise UsageError(msg)
    directory = JobDirectory(state, job)
    choose = None if where is None else _select_by(output, spark, where)
    done = dead_letter_replay.replay(directory, uid, choose=choose, again=again)
    if as_json:
        output.document(
            REPLAY_SCHEMA,
            job=job,
            uid=done.uid,
            source=done.source,
            rows=done.rows,
            replays=list(done.replays),
            left_out_rows=done.left,
        )
        return ExitCode.ENDED
    output.result(Text(_replay_text(directory, done)))
    return ExitCode.ENDED


def _select_by(
    output: Output, options: SparkOptions, where: str
) -> Callable[[DeadLetterQueue], Mapping[str, RowRanges]]:
    """A function that selects dead letters of a queue by SQL, in a session that it starts if there is none."""

    def select(queue: DeadLetterQueue) -> Mapping[str, RowRanges]:
        with session_for(output, options, "dead letters") as spark:
            return select_by_sql(spark, queue, where)

    return select


def _replay_text(directory: JobDirectory, done: ReplayResult) -> str:
    left = f"; {count(done.left, 'row')} left out, which a replay names already (--again)" if done.left else ""
    if not done.rows:
        return f"{done.uid}: nothing to replay{left}"
    which = ", ".join(map(str, done.replays))
    when = "within a second" if directory.owner() is not None else "at the job's next start"
    return f"{done.uid}: {count(done.rows, 'row')} will be read again by '{done.source}' {when} (replay {which}){left}"


# ---- penstock deadletter drop ----------------------------------------------------------------------------------------


def drop(
    job: JobName,
    uid: Uid = None,
    /,
    *,
    before: Annotated[str, Parameter(help="A date, or a date and time, in UTC unless it has another zone.")],
    dry_run: Annotated[bool, Flag, Parameter(help="Only say what would be deleted.")] = False,
    yes: Yes = False,
    state: State = STATE,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Delete dead letters that were written before a time, after a question.

    Raises:
        UsageError: ``before`` is no date, or there is no terminal to ask at and ``--yes`` was not given.
        UnknownName: there are no such dead letters.
        CheckpointError: the directory cannot be read or written.
    """
    directory = JobDirectory(state, job)
    at = _parse_time(before)
    plan = dead_letter_replay.plan_drop(directory.read(), dead_letter_queue(directory, uid), at)
    does = not dry_run and bool(plan.files) and confirm(output, _question(plan, at), yes=yes)
    if does:
        dead_letter_replay.drop(directory, plan)
    if as_json:
        fields: dict[str, object] = {"job": job, "uid": plan.uid, "is_dry_run": dry_run, "was_done": does}
        files, kept = ([_file(each) for each in part] for part in (plan.files, plan.kept))
        output.document(DROP_SCHEMA, **fields, files=files, kept=kept)
    elif does or dry_run or not plan.files:
        output.result(Text(_drop_text(plan, at, dry_run=dry_run)))
    return ExitCode.FAILED if plan.files and not does and not dry_run else ExitCode.ENDED


def _file(file: LetterFile) -> dict[str, object]:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "rows": file.rows,
        "checkpoint": file.checkpoint,
        "written": file.written,
        "was_undone": not file.is_live,
    }


def _parse_time(text: str) -> WallTime:
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        msg = f"--before {text!r} is neither a date nor a time. Write it as 2026-01-31 or as 2026-01-31T12:00:00Z."
        raise UsageError(msg) from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return WallTime(int(at.timestamp() * 1_000_000))


def _what(plan: DropPlan) -> str:
    rows, files = sum(file.rows for file in plan.files), len(plan.files)
    return f"{count(rows, 'row')} in {count(files, 'file')} ({size(sum(file.bytes for file in plan.files))})"


def _question(plan: DropPlan, at: WallTime) -> str:
    return f"Delete {_what(plan)} of {plan.uid}, written before {format_time(at)}, for ever"


def _drop_text(plan: DropPlan, at: WallTime, *, dry_run: bool) -> str:
    kept = f"; {count(len(plan.kept), 'file')} left, which a replay may yet need" if plan.kept else ""
    if not plan.files:
        return f"{plan.uid}: nothing to delete from before {format_time(at)}{kept}"
    return f"{plan.uid}: {'would delete' if dry_run else 'deleted'} {_what(plan)}{kept}"
