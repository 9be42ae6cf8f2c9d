"""``penstock deadletter list`` and ``replay``: what is printed of them. Decides nothing, and needs no pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.words import count, size, when
from penstock.operate.dead_letters import Place, Why, places_of, reasons, replayable
from penstock.operate.directory import JobDirectory
from penstock.operate.letters import chosen_by, failed_again
from penstock.operate.replaying import Replayed, replay
from penstock.operate.spans import length

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.output import Output
    from penstock.operate.spans import Spans

SCHEMA: Final = "penstock.deadletters/1"
"""Of the JSON documents of all four commands: fields may be added under this name, never changed or taken away."""


def list_places(output: Output, *, job: str, state: str, as_json: bool) -> int:
    """Print what dead letters there are.

    Raises:
        UnknownName: there is no such job; with the nearest name.
        CheckpointError: its directory cannot be read.
    """
    directory = JobDirectory(state, job)
    places = [(place, reasons(place)) for place in places_of(directory)]
    if as_json:
        write(output, {"job": job, "places": [_document(place, why) for place, why in places]})
        return ExitCode.ENDED
    if not places:
        output.result(Text(f"{job}: no dead letters; a pipeline keeps them with stream.dead_letter(uid)"))
        return ExitCode.ENDED
    output.result(_table(places))
    for place, why in places:
        for line in _remarks(job, state, place, why):
            output.result(Text(line))
    return ExitCode.ENDED


def _document(place: Place, why: tuple[Why, ...]) -> dict[str, object]:
    standing = [file for file in place.files if file.stands]
    return {
        "uid": place.uid,
        "folder": place.folder,
        "files": len(standing),
        "bytes": sum(file.bytes for file in standing),
        "rows": sum(each.rows for each in why),
        "replayed": sum(each.replayed for each in why),
        "waiting": place.waiting,
        "failed_again": failed_again(place),
        "replayable": _replayable(place),
        "undone": sum(file.rows for file in place.files if not file.stands),
        "oldest": min((file.written for file in standing), default=None),
        "newest": max((file.written for file in standing), default=None),
        "replays": len(place.replays),
        "causes": [asdict(each) for each in why],
    }


def _replayable(place: Place) -> int:
    return sum(length(spans) for letters in replayable(place).values() for spans in letters.values())


def _table(places: list[tuple[Place, tuple[Why, ...]]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("dead letters", "cause", "step", "source"):
        table.add_column(name)
    for name in ("rows", "replayed", "size"):
        table.add_column(name, justify="right")
    for name in ("oldest", "newest"):
        table.add_column(name)
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
        write(output, {"job": job, **asdict(done)})
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


# ------------------------------------------------------------------------------------------------- shared by the four


def chooser(output: Output, where: str) -> _Chooser:
    """What picks dead letters by SQL."""
    return _Chooser(output, where)


class _Chooser:
    def __init__(self, output: Output, where: str) -> None:
        self._output = output
        self._where = where

    def __call__(self, place: Place) -> Mapping[str, Spans]:
        with _spark(self._output) as spark:
            return chosen_by(spark, place, self._where)


@contextmanager
def _spark(output: Output) -> Iterator[SparkSession]:
    """The session that is there; or one of our own, whose log goes to a file that is thrown away."""
    from pyspark.sql import SparkSession

    from penstock.cli.engine import log_to_file
    from penstock.job.session import make_session

    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    output.note("starting Spark …", style="dim")
    with TemporaryDirectory(prefix="penstock-letters-") as folder:
        log_to_file("letters", folder)
        made = make_session("dead letters")
        try:
            yield made
        finally:
            made.stop()


def write(output: Output, fields: Mapping[str, object]) -> None:
    """Print one JSON document. Times are microseconds since 1970."""
    output.document(SCHEMA, **fields)


def _moment(wall: int | None) -> str:
    return "-" if wall is None else when(wall)
