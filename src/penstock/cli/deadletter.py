"""Penstock deadletter list, show, replay, drop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import App, Parameter
from cyclopts.help import PlainFormatter
from rich.text import Text

from penstock.admin.dead_letter_replay import DropPlan, ReplayResult, drop, plan_drop, replay
from penstock.admin.dead_letters import (
    DeadLetterQueue,
    LetterCause,
    causes_of,
    dead_letter_queue,
    dead_letter_queues,
    failed_again,
    letters_of,
    replayable,
    select_by_sql,
)
from penstock.cli.options import STATE, AsJson, Flag, JobName, State, Yes, epilogue, session_for
from penstock.cli.output import ExitCode, Output, UsageError, confirm
from penstock.cli.words import UNKNOWN, clipped, count, event_time, plain_table, size, when
from penstock.clock import WallTime
from penstock.control.client import JobDirectory
from penstock.dead_letters.store import count_rows

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.admin.dead_letters import Letter, LetterFile
    from penstock.dead_letters.store import RowRanges


# ----------------------------------------------------------------------------------------------------
# ``penstock deadletter``: its words and options.

DEADLETTER_HELP: Final = """\
Rows that a pipeline gave up on and kept, with why and where they came from: look, replay, drop."""
LIST: Final = """\
List the dead letters of a job by cause and step, from its directory alone, whether it runs or not."""
SHOW: Final = """\
Show dead letters: why, where they came from, how often they failed, and their raw text; oldest first."""
REPLAY: Final = """\
Have rows that could not be decoded read again by their source: at once if the job runs, else at its next start.

Change the pipeline first. Each row is read once, exactly-once, and takes the way of any other row of its source;
one that fails again is a dead letter again. What an earlier replay named is left out, unless --again."""
DROP: Final = """\
Delete files of dead letters that are older than a date; asks first. Those that a replay may yet need are left."""
DEADLETTER_EXAMPLES: Final = """\
Examples:
  penstock deadletter list orders --state ./state
  penstock deadletter show orders bad-orders --limit 5
  penstock deadletter replay orders bad-orders --all"""
LIST_EXAMPLES: Final = """\
Examples:
  penstock deadletter list orders --state ./state
  penstock deadletter list orders --json | jq '.dead_letters[].rows'"""
SHOW_EXAMPLES: Final = """\
Examples:
  penstock deadletter show orders                      of the only dead letters that there are
  penstock deadletter show orders bad-orders --limit 100 --json
  penstock deadletter show orders bad-orders --where "place.partition = 3 AND error LIKE '%double%'"
  penstock deadletter show orders totals-late --where "record.user = 'ann'"
--where takes SQL over cause, error, step, source, place, event_time, record, checkpoint and written. It starts
Spark, which takes some seconds."""
REPLAY_EXAMPLES: Final = """\
Examples:
  penstock deadletter replay orders bad-orders --all
  penstock deadletter replay orders bad-orders --where "CAST(record.value AS STRING) LIKE '%\\"v\\":2%'"
  penstock deadletter replay orders bad-orders --all --again"""
DROP_EXAMPLES: Final = """\
Examples:
  penstock deadletter drop orders bad-orders --before 2026-01-01 --dry-run
  penstock deadletter drop orders bad-orders --before 2026-01-01T12:00:00Z --yes"""
Uid: TypeAlias = Annotated[
    str | None, Parameter(help="Of stream.dead_letter(uid); may be left out if the job has one only.")
]
Where: TypeAlias = Annotated[str | None, Parameter(help="SQL: only dead letters for which it holds.")]


def add_deadletter(app: App, output: Output) -> None:
    """Add ``deadletter`` with ``list``, ``show``, ``replay`` and ``drop``."""
    family = App(
        name="deadletter",
        help=DEADLETTER_HELP,
        help_epilogue=epilogue(DEADLETTER_EXAMPLES),
        help_format="plaintext",
        help_formatter=PlainFormatter(),
        version_flags=[],
    )
    app.command(family)
    _add_looking(family, output)
    _add_acting(family, output)


def _add_looking(family: App, output: Output) -> None:
    def list_letters(job: JobName, /, *, state: State = STATE, as_json: AsJson = False) -> int:

        return list_places(output, job=job, state=state, as_json=as_json)

    def show(
        job: JobName,
        uid: Uid = None,
        /,
        *,
        where: Where = None,
        limit: Annotated[int, Parameter(help="Most dead letters.")] = 20,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        return show_letters(output, job=job, uid=uid, where=where, limit=limit, state=state, as_json=as_json)

    family.command(list_letters, name="list", help=LIST, help_epilogue=epilogue(LIST_EXAMPLES))
    family.command(show, help=SHOW, help_epilogue=epilogue(SHOW_EXAMPLES))


def _add_acting(family: App, output: Output) -> None:
    def replay(
        job: JobName,
        uid: Uid = None,
        /,
        *,
        all: Annotated[bool, Flag, Parameter(help="All that were not replayed yet.")] = False,
        where: Where = None,
        again: Annotated[bool, Flag, Parameter(help="Also those that an earlier replay names.")] = False,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        return replay_letters(
            output, job=job, uid=uid, everything=all, where=where, again=again, state=state, as_json=as_json
        )

    def drop(
        job: JobName,
        uid: Uid = None,
        /,
        *,
        before: Annotated[str, Parameter(help="A date, or a date and time; UTC unless it says otherwise.")],
        dry_run: Annotated[bool, Flag, Parameter(help="Only say what would go.")] = False,
        yes: Yes = False,
        state: State = STATE,
        as_json: AsJson = False,
    ) -> int:

        return drop_letters(
            output, job=job, uid=uid, before=before, dry_run=dry_run, yes=yes, state=state, as_json=as_json
        )

    family.command(replay, help=REPLAY, help_epilogue=epilogue(REPLAY_EXAMPLES))
    family.command(drop, help=DROP, help_epilogue=epilogue(DROP_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock deadletter list`` and ``replay``: what is printed of them. Decides nothing, and needs no pipeline.

LIST_SCHEMA: Final = "penstock.deadletter.list/1"
REPLAY_SCHEMA: Final = "penstock.deadletter.replay/1"
"""Of the JSON documents: see docs/json.md."""


def list_places(output: Output, *, job: str, state: str, as_json: bool) -> int:
    """Print what dead letters there are.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: its directory cannot be read.
    """
    directory = JobDirectory(state, job)
    places = [(place, causes_of(place)) for place in dead_letter_queues(directory)]
    if as_json:
        output.document(LIST_SCHEMA, job=job, dead_letters=[_place(place, why) for place, why in places])
        return ExitCode.ENDED
    if not places:
        output.result(Text(f"{job}: no dead letters; a pipeline keeps them with stream.dead_letter(uid)"))
        return ExitCode.ENDED
    output.result(_table(places))
    for place, why in places:
        for line in _remarks(job, state, place, why):
            output.result(Text(line))
    return ExitCode.ENDED


def _place(place: DeadLetterQueue, why: tuple[LetterCause, ...]) -> dict[str, object]:
    standing = [file for file in place.files if file.is_live]
    return {
        "uid": place.uid,
        "folder": place.folder,
        "file_count": len(standing),
        "bytes": sum(file.bytes for file in standing),
        "rows": sum(each.rows for each in why),
        "replayed_rows": sum(each.replayed for each in why),
        "waiting_rows": place.waiting,
        "failed_again_rows": failed_again(place),
        "replayable_rows": _replayable(place),
        "undone_rows": sum(file.rows for file in place.files if not file.is_live),
        "oldest_written": min((file.written for file in standing), default=None),
        "newest_written": max((file.written for file in standing), default=None),
        "replay_count": len(place.replays),
        "causes": [_cause(each) for each in why],
    }


def _cause(why: LetterCause) -> dict[str, object]:
    return {
        "cause": why.cause,
        "step": why.step,
        "source": why.source,
        "rows": why.rows,
        "replayed_rows": why.replayed,
        "no_replay": why.no_replay,
    }


def _replayable(place: DeadLetterQueue) -> int:
    return sum(count_rows(spans) for letters in replayable(place).values() for spans in letters.values())


def _table(places: list[tuple[DeadLetterQueue, tuple[LetterCause, ...]]]) -> Table:
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
    for place, why in places:
        standing = [file for file in place.files if file.is_live]
        about = [
            size(sum(file.bytes for file in standing)),
            _moment(min((file.written for file in standing), default=None)),
            _moment(max((file.written for file in standing), default=None)),
        ]
        if not why:
            table.add_row(place.uid, "", "", "", "0", "0", *about)
        for number, each in enumerate(why):
            first = number == 0
            table.add_row(
                place.uid if first else "",
                each.cause,
                each.step,
                each.source,
                f"{each.rows:,}",
                f"{each.replayed:,}",
                *(about if first else ("", "", "")),
            )
    return table


def _remarks(job: str, state: str, place: DeadLetterQueue, why: tuple[LetterCause, ...]) -> Iterator[str]:
    """What a person would ask next."""
    waiting, again = place.waiting, failed_again(place)
    undone = sum(file.rows for file in place.files if not file.is_live)
    if waiting:
        yield f"{place.uid}: {count(waiting, 'row')} of a replay yet to be in a checkpoint"
    if again:
        yield f"{place.uid}: {count(again, 'row')} failed again after a replay"
    if undone:
        yield f"{place.uid}: {count(undone, 'row')} more that a rewind has undone: their rows are read again"
    for each in why:
        if each.no_replay is not None:
            yield f"{place.uid}: {each.cause}: cannot be replayed: {each.no_replay}"
    if _replayable(place):
        yield f"{place.uid}: to read them again: penstock deadletter replay {job} {place.uid} --all --state {state}"


def replay_letters(
    output: Output,
    *,
    job: str,
    uid: str | None,
    everything: bool,
    where: str | None,
    again: bool,
    state: str,
    as_json: bool,
) -> int:
    """Write a replay and say what comes of it.

    Raises:
        UsageError: neither all nor some were asked for, or both.
        UnknownName: there are no such dead letters.
        RequestRefused: none of them can be replayed.
    """
    if everything == (where is not None):
        msg = 'say which: --all, or --where "SQL"'
        raise UsageError(msg)
    directory = JobDirectory(state, job)
    done = replay(directory, uid, choose=None if where is None else chooser(output, where), again=again)
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


def _replay_text(directory: JobDirectory, done: ReplayResult) -> str:
    left = f"; {count(done.left, 'row')} left out, which a replay names already (--again)" if done.left else ""
    if not done.rows:
        return f"{done.uid}: nothing to replay{left}"
    which = ", ".join(map(str, done.replays))
    when = "within a second" if directory.owner() is not None else "at the job's next start"
    return f"{done.uid}: {count(done.rows, 'row')} will be read again by '{done.source}' {when} (replay {which}){left}"


def chooser(output: Output, where: str) -> _Chooser:
    """What picks dead letters by SQL."""
    return _Chooser(output, where)


class _Chooser:
    def __init__(self, output: Output, where: str) -> None:
        self._output = output
        self._where = where

    def __call__(self, place: DeadLetterQueue) -> Mapping[str, RowRanges]:
        with session_for(self._output, "dead letters") as spark:
            return select_by_sql(spark, place, self._where)


def _moment(wall: int | None) -> str:
    return UNKNOWN if wall is None else when(wall)


# ----------------------------------------------------------------------------------------------------
# ``penstock deadletter drop``: asks, deletes, says what went. Decides nothing.

DROP_SCHEMA: Final = "penstock.deadletter.drop/1"
"""Of the JSON document: see docs/json.md."""


def drop_letters(
    output: Output, *, job: str, uid: str | None, before: str, dry_run: bool, yes: bool, state: str, as_json: bool
) -> int:
    """Delete what is older than a time, once somebody has said yes.

    Raises:
        UsageError: ``before`` is no date, or nobody can be asked and ``--yes`` was not given.
        UnknownName: there are no such dead letters.
        CheckpointError: the directory cannot be read or written.
    """
    directory = JobDirectory(state, job)
    at = _time(before)
    dropping = plan_drop(directory.read(), dead_letter_queue(directory, uid), at)
    does = not dry_run and bool(dropping.files) and confirm(output, _question(dropping, at), yes=yes)
    if does:
        drop(directory, dropping)
    if as_json:
        fields: dict[str, object] = {"job": job, "uid": dropping.uid, "is_dry_run": dry_run, "was_done": does}
        files, kept = ([_file(each) for each in part] for part in (dropping.files, dropping.kept))
        output.document(DROP_SCHEMA, **fields, files=files, kept=kept)
    elif does or dry_run or not dropping.files:
        output.result(Text(_drop_text(dropping, at, dry_run=dry_run)))
    return ExitCode.FAILED if dropping.files and not does and not dry_run else ExitCode.ENDED


def _file(file: LetterFile) -> dict[str, object]:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "rows": file.rows,
        "checkpoint": file.checkpoint,
        "written": file.written,
        "was_undone": not file.is_live,
    }


def _time(text: str) -> WallTime:
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        msg = f"--before {text!r} is no date such as 2026-01-31, nor a time such as 2026-01-31T12:00:00Z"
        raise UsageError(msg) from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return WallTime(int(at.timestamp() * 1_000_000))


def _what(dropping: DropPlan) -> str:
    rows, files = sum(file.rows for file in dropping.files), len(dropping.files)
    return f"{count(rows, 'row')} in {count(files, 'file')} ({size(sum(file.bytes for file in dropping.files))})"


def _question(dropping: DropPlan, at: WallTime) -> str:
    return f"Delete {_what(dropping)} of {dropping.uid}, written before {when(at)}, for ever"


def _drop_text(dropping: DropPlan, at: WallTime, *, dry_run: bool) -> str:
    kept = f"; {count(len(dropping.kept), 'file')} left, which a replay may yet need" if dropping.kept else ""
    if not dropping.files:
        return f"{dropping.uid}: nothing to delete from before {when(at)}{kept}"
    return f"{dropping.uid}: {'would delete' if dry_run else 'deleted'} {_what(dropping)}{kept}"


# ----------------------------------------------------------------------------------------------------
# ``penstock deadletter show``: single dead letters as text and JSON. Decides nothing.

SHOW_SCHEMA: Final = "penstock.deadletter.show/1"
"""Of the JSON document: see docs/json.md."""
_CLIP: Final = 500
"""Characters of a raw text that people are shown; scripts get all."""


def show_letters(
    output: Output, *, job: str, uid: str | None, where: str | None, limit: int, state: str, as_json: bool
) -> int:
    """Print some of them.

    Raises:
        UsageError: the limit is none.
        UnknownName: there are no such dead letters; with the nearest name.
        SettingsError: ``where`` is no SQL over them.
    """
    if limit < 1:
        msg = f"--limit is {limit}, but must be at least 1"
        raise UsageError(msg)
    place = dead_letter_queue(JobDirectory(state, job), uid)
    chosen = None if where is None else chooser(output, where)(place)
    letters, found = letters_of(place, chosen, limit=limit)
    if as_json:
        told = [_letter(each) for each in letters]
        output.document(SHOW_SCHEMA, job=job, uid=place.uid, letter_count=found, letters=told)
        return ExitCode.ENDED
    for letter in letters:
        for line in _lines(letter):
            output.result(Text(line))
    output.result(Text(_end(len(letters), found)))
    return ExitCode.ENDED


def _letter(letter: Letter) -> dict[str, object]:
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


def _lines(letter: Letter) -> list[str]:
    told = [letter.id, when(letter.written)]
    if letter.attempts > 1:
        told.append(f"attempt {letter.attempts}")
    if letter.replayed:
        told.append("replayed" if letter.replayed == 1 else f"replayed {letter.replayed} times")
    lines = [" · ".join(told), f"  {letter.cause} at {letter.step}, from {letter.source}{_where(letter)}"]
    if letter.error is not None:
        why = letter.error.removesuffix(letter.raw)  # what cannot be decoded is told once
        lines.append(f"  {clipped(why.strip(), _CLIP)}")
    lines.append(f"  {clipped(letter.raw, _CLIP)}")
    return lines


def _where(letter: Letter) -> str:
    place = letter.place
    told = ""
    if "offset" in place:
        told += f": {place.get('topic')}-{place.get('partition')} offset {place['offset']}"
    if "file" in place:
        told += f": {place['file']}"
    if letter.event_time is not None:
        told += f", at {event_time(letter.event_time)}"
    return told


def _end(shown: int, found: int) -> str:
    return count(found, "dead letter") if shown == found else f"{shown} of {count(found, 'dead letter')} (--limit)"
