"""Golden cases: a pipeline, a story of rows and checkpoints, and the rows that must come of it, in one text file each.

::

    # What the case is about.
    [sources]
    a: user STRING, n LONG, at TIMESTAMP
    [pipeline]
    out = a.with_watermark("at", delay="0 seconds").group_by("user", ps.tumbling("1 minute")).agg("step", …)
    late = out.late
    [story]
    a: u 1 00:00:10
    a: v 2 00:00:20

    checkpoint
    time 10 seconds
    [out]
    u 00:00:00 00:01:00 1
    [late]

Rows of one source without an empty line between them are one batch. The pipeline is Python in which each source is a
stream; what a section below the story is named after is written to a sink of that name, and the section has its rows,
in any order. ``-`` is NULL, a time of day is one of 1 January 2026 in UTC. The story ends with the end of all sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.testing.pipeline_run import PipelineRun

CASES: Final = tuple(sorted((Path(__file__).parent / "cases").glob("*.txt")))

_DAY: Final = "2026-01-01"


@dataclass(frozen=True, slots=True)
class Send:
    """A batch of one source."""

    uid: str
    rows: list[dict[str, object]] = field(default_factory=list)

    def play(self, t: PipelineRun) -> None:
        t.send(self.uid, self.rows)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, which a crash may bring to nothing."""

    def play(self, t: PipelineRun) -> None:
        t.checkpoint()


@dataclass(frozen=True, slots=True)
class Time:
    """Processing time passes."""

    duration: str

    def play(self, t: PipelineRun) -> None:
        t.advance(self.duration)


Event: TypeAlias = Send | Checkpoint | Time


@dataclass(frozen=True, slots=True)
class Case:
    """One file, read."""

    name: str
    pipeline: PipelineDefinition
    story: tuple[Event, ...]
    expected: Mapping[str, list[str]]

    def found(self, t: PipelineRun) -> dict[str, list[str]]:
        """What was published, as the file has it."""
        return {uid: sorted(map(_told, t.rows(uid))) for uid in self.expected}

    @property
    def wanted(self) -> dict[str, list[str]]:
        return {uid: sorted(rows) for uid, rows in self.expected.items()}


def read(path: Path) -> Case:
    """A case from its file."""
    sections = dict(_sections(path.read_text(encoding="utf-8")))
    schemas = dict(line.split(": ", 1) for line in sections.pop("sources") if line)
    code = compile("\n".join(sections.pop("pipeline")), str(path), "exec")
    story = tuple(_story(sections.pop("story"), schemas))
    expected = {uid: [" ".join(line.split()) for line in lines if line] for uid, lines in sections.items()}

    @ps.pipeline(path.stem)
    def pipeline(p: ps.Pipeline) -> None:
        names: dict[str, Any] = {"ps": ps}
        for uid, schema in schemas.items():
            names[uid] = p.read(uid, ps.files.Source("/nowhere/at/all", schema=schema))
        exec(code, names)  # the case is ours
        for uid in expected:
            names[uid].write(uid, ps.memory.Sink())

    return Case(path.stem, pipeline, story, expected)


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            lines = []
            yield line[1:-1], lines
        elif not line.startswith("#"):
            lines.append(line.strip())


def _story(lines: list[str], schemas: Mapping[str, str]) -> Iterator[Event]:
    batch: Send | None = None
    for line in [*lines, ""]:
        uid, colon, values = line.partition(": ")
        if batch is not None and (not colon or uid != batch.uid):
            yield batch
            batch = None
        if colon:
            batch = batch or Send(uid)
            batch.rows.append(_row(values.split(), schemas[uid]))
        elif line == "checkpoint":
            yield Checkpoint()
        elif line:
            word, _, duration = line.partition(" ")
            assert word == "time", f"the story has {line!r}"
            yield Time(duration)


def _row(values: list[str], schema: str) -> dict[str, object]:
    columns = [column.split() for column in schema.split(", ")]
    return {name: _value(value, kind) for (name, kind), value in zip(columns, values, strict=True)}


def _value(text: str, kind: str) -> object:
    if text == "-":
        return None
    if kind == "TIMESTAMP":
        return f"{_DAY}T{text}Z" if "T" not in text else text
    return {"LONG": int, "DOUBLE": float}.get(kind, str)(text)


def _told(row: Mapping[str, object]) -> str:
    return " ".join(map(_text, row.values()))


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%H:%M:%S}" if f"{value:%Y-%m-%d}" == _DAY else f"{value:%Y-%m-%dT%H:%M:%SZ}"
    return "-" if value is None else str(value).replace(", ", ",")
