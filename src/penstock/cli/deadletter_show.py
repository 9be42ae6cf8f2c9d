"""``penstock deadletter show``: single dead letters as text and JSON. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from penstock.cli.deadletter import chooser
from penstock.cli.exits import ExitCode, UsageError
from penstock.cli.words import clipped, count, event_time, when
from penstock.operate.directory import JobDirectory
from penstock.operate.letters.listing import place_of
from penstock.operate.letters.reading import letters_of

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.operate.letters.reading import Letter

SCHEMA: Final = "penstock.deadletter.show/1"
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
    place = place_of(JobDirectory(state, job), uid)
    chosen = None if where is None else chooser(output, where)(place)
    letters, found = letters_of(place, chosen, limit=limit)
    if as_json:
        told = [_letter(each) for each in letters]
        output.document(SCHEMA, job=job, uid=place.uid, letter_count=found, letters=told)
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
