"""``penstock deadletter list`` and ``replay``: what is printed of them. Decides nothing, and needs no pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.session import session_for
from penstock.cli.shown import UNKNOWN, plain_table
from penstock.cli.words import count, size, when
from penstock.operate.directory import JobDirectory
from penstock.operate.letters.listing import Place, Why, places_of, reasons, replayable
from penstock.operate.letters.reading import chosen_by, failed_again
from penstock.operate.letters.replaying import Replayed, replay
from penstock.operate.letters.spans import length

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.cli.output import Output
    from penstock.operate.letters.spans import Spans

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
    places = [(place, reasons(place)) for place in places_of(directory)]
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


def _place(place: Place, why: tuple[Why, ...]) -> dict[str, object]:
    standing = [file for file in place.files if file.stands]
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
        "undone_rows": sum(file.rows for file in place.files if not file.stands),
        "oldest_written": min((file.written for file in standing), default=None),
        "newest_written": max((file.written for file in standing), default=None),
        "replay_count": len(place.replays),
        "causes": [_cause(each) for each in why],
    }


def _cause(why: Why) -> dict[str, object]:
    return {
        "cause": why.cause,
        "step": why.step,
        "source": why.source,
        "rows": why.rows,
        "replayed_rows": why.replayed,
        "no_replay": why.no_replay,
    }


def _replayable(place: Place) -> int:
    return sum(length(spans) for letters in replayable(place).values() for spans in letters.values())


def _table(places: list[tuple[Place, tuple[Why, ...]]]) -> Table:
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
        standing = [file for file in place.files if file.stands]
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


def _remarks(job: str, state: str, place: Place, why: tuple[Why, ...]) -> Iterator[str]:
    """What a person would ask next."""
    waiting, again = place.waiting, failed_again(place)
    undone = sum(file.rows for file in place.files if not file.stands)
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
    output.result(Text(_told(directory, done)))
    return ExitCode.ENDED


def _told(directory: JobDirectory, done: Replayed) -> str:
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

    def __call__(self, place: Place) -> Mapping[str, Spans]:
        with session_for(self._output, "dead letters") as spark:
            return chosen_by(spark, place, self._where)


def _moment(wall: int | None) -> str:
    return UNKNOWN if wall is None else when(wall)
