"""Pipelines to simulate: sources, perhaps a union, a keyed step, dead letters, late rows, sinks of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.compiler.tasks import build_tasks
from penstock.dead_letters.letters import VERB, with_dead_letter_folders
from penstock.elements import Batch, ObservedMetrics
from penstock.graph.nodes import (
    BAD_PORT,
    CallSite,
    Every,
    Graph,
    Keyed,
    Node,
    ParseJson,
    PortRef,
    PortSelect,
    Read,
    RowWise,
    Union,
    WithWatermark,
    Write,
    without_pause,
)
from penstock.interfaces.operator import LATE_PORT
from penstock.job.start import step_records
from simulation.letters import AGAIN, FakeLetters
from simulation.names import called
from simulation.receiving import ReceivingSource
from simulation.sinks import FakeSink
from simulation.sources import IntSource
from simulation.steps import CountSpec

if TYPE_CHECKING:
    from simulation.world import World

HERE = CallSite("simulation", 1)
KINDS = ("files/1", "table/1", "broker/1")
DEAD, LATE_ROWS = "dead", "late"
"""Sinks of side outputs: what could not be decoded, and what came late."""

RowKey = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a pipeline looks like; drawn from a seed, or given.

    ``without`` names sources and sinks that the graph does not have at the moment, and ``names`` says which steps have
    another uid now: pipelines change between runs.
    """

    totals: tuple[int, ...]
    union: bool
    keyed: bool
    marked: bool
    sinks: tuple[str, ...]
    idle_after: int | None = None
    max_drift: int | None = None
    paces: tuple[int | None, ...] = ()
    parses: bool = False
    dead: str | None = None
    late: str | None = None
    timed: bool = False
    defers: bool = False
    prefix: str = ""
    letters: bool = False
    receives: bool = False
    without: frozenset[str] = frozenset()
    names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def core(cls, chance: Random, least: int = 1) -> Shape:
        """Sources, perhaps a union, perhaps a keyed step, sinks."""
        sources = max(least, chance.choice((1, 2, 2, 3)))
        keyed = chance.random() < 0.75
        return cls(
            totals=tuple(chance.choice((2, 3, 4, 5, 6)) for _ in range(sources)),
            union=sources > 1 and (not keyed or chance.random() < 0.5),
            keyed=keyed,
            marked=chance.random() < 0.5,
            sinks=tuple(chance.sample(KINDS, chance.choice((1, 1, 2, 3)))),
        )

    @classmethod
    def drawn(cls, chance: Random, *, least: int = 1) -> Shape:
        """With anything else that a pipeline may have."""
        core = cls.core(chance, least)
        sources, keyed = len(core.totals), core.keyed
        parses = chance.random() < 0.4
        every = (None, None, None, 20_000, 100_000)
        shape = replace(
            core,
            totals=(*core.totals[:-1], chance.choice((1, core.totals[-1]))),
            idle_after=chance.choice((None, 100_000, 400_000)),
            max_drift=(1_000, None, None)[sum(core.totals) % 3],  # not drawn: seeds go on telling the stories they told
            paces=tuple(chance.choice(every) for _ in range(sources)),
            parses=parses,
            dead=chance.choice((None, *KINDS)) if parses else None,
            late=chance.choice((None, None, None, *KINDS)) if keyed else None,
            timed=keyed and chance.random() < 0.35,
        )
        may_defer = keyed and not shape.timed and shape.late is None
        return replace(shape, defers=may_defer and sum(core.totals) % 2 == 0)  # not drawn either

    def with_letters(self) -> Shape:
        """The same, with dead letters of the first source, which may read them again."""
        keyed = self.keyed or len(self.totals) > 1
        return replace(
            self, letters=True, parses=True, dead="files/1", union=False, keyed=keyed, totals=(8, *self.totals[1:])
        )

    def uid(self, step: str) -> str:
        """What a step is called now."""
        return dict(self.names).get(step, step)

    def renamed(self, step: str, number: int) -> Shape:
        """The same, with another uid for a step."""
        return replace(self, names=tuple({**dict(self.names), step: called(step, number)}.items()))

    @property
    def all_steps(self) -> tuple[str, ...]:
        """Whatever has a uid in the graph as it is now, by its first."""
        steps = [*(f"source{i}" for i in self.sources), *(["count"] if self.keyed else []), *self.all_sinks]
        return tuple(step for step in steps if step not in self.without)

    # ----------------------------------------------------------------------------------------- which rows go where

    def is_parsed(self, source: int) -> bool:
        return self.parses and (self.union or source == 0)

    def is_bad(self, source: int, row: int) -> bool:
        """What cannot be decoded."""
        if row >= AGAIN:  # some fail again
            return self.is_parsed(source) and (row // AGAIN + row) % 3 == 0
        if self.letters:
            return self.is_parsed(source) and row % 4 != 2
        return self.is_parsed(source) and (5 * row + 3 * source) % 4 == 1

    def is_late(self, source: int, row: int) -> bool:
        """What the keyed step calls late (by its number: so that a replay calls it late again)."""
        return self.late is not None and (row + source) % 3 == 2

    def takes(self, uid: str, source: int, row: int) -> bool:
        """Whether a sink is to get a row."""
        if self.is_bad(source, row):
            return uid == DEAD
        if self.is_late(source, row):
            return uid == LATE_ROWS
        return uid not in (DEAD, LATE_ROWS)

    def good_below(self, source: int, row: int) -> int:
        """How many rows of a source before ``row`` reach the keyed step; none counts for one that was read again."""
        if row >= AGAIN:
            return -1
        return sum(not self.is_bad(source, each) for each in range(row)) if self.parses else row

    @property
    def all_sinks(self) -> tuple[str, ...]:
        """Every sink of any version of the pipeline."""
        named = [f"sink{i}" for i in range(len(self.sinks))]
        return (*named, *([DEAD] if self.dead else []), *([LATE_ROWS] if self.late else []))

    @property
    def sources(self) -> tuple[int, ...]:
        """The sources that the graph has now."""
        return tuple(i for i in range(len(self.totals)) if f"source{i}" not in self.without)


class FakeAnalysis:
    """Answers as ``graph.analyze`` would, for integers."""

    def __init__(self, graph: Graph, world: World, shape: Shape) -> None:
        self.graph = graph
        self._world = world
        self._shape = shape

    def schema(self, ref: PortRef) -> None:
        return None

    def source(self, node: Read) -> Any:
        return node.source

    def read_tables_again(self) -> None:
        """There are none."""

    def chain(self, node: Node, steps: Sequence[Any], *, is_root: bool = True) -> Any:
        def rewrite(batch: Batch) -> Batch:
            measures = dict(batch.metrics)
            rows: Any = batch.frame
            if is_root and isinstance(node, Read):
                measures["rows"] = _told(rows=len(rows))
            only_if = batch.only_if
            for step in steps:
                match step:
                    case ParseJson():
                        measures[f"bad:{step.id}"] = _told(bad=sum(self._shape.is_bad(s, row) for s, row, _ in rows))
                    case PortSelect(node=parse, port=port):
                        rows = tuple(row for row in rows if self._shape.is_bad(*row[:2]) == (port == BAD_PORT))
                        only_if = (f"bad:{parse.id}", "bad") if port == BAD_PORT else only_if
                    case WithWatermark():
                        largest = max((self._world.time_of(row) for _, row, _ in rows), default=None)
                        measures[f"time:{step.id}"] = _told(max=largest)
            keeps = all(isinstance(step, WithWatermark) for step in steps)
            return replace(batch, frame=rows, rows=batch.rows if keeps else None, metrics=measures, only_if=only_if)

        return rewrite


def _told(**figures: object) -> ObservedMetrics:
    return ObservedMetrics(lambda: figures)


class Pipeline:
    """A shape as a graph of product nodes, with its task plans."""

    def __init__(self, shape: Shape, world: World) -> None:
        self._nodes: list[Node] = []
        self._world = world
        self.shape = shape
        ends = [self._source(number) for number in shape.sources]
        if shape.union and len(ends) > 1:
            ends = [self._add(Union, inputs=tuple(ends))]
        if shape.parses and (shape.union or 0 in shape.sources):
            ends[0] = self._parsed(ends[0])
        if not shape.union:
            ends = [self._marked(end) for end in ends]
        late = None
        if shape.keyed:
            ends = [self._add(Keyed, inputs=tuple(ends), uid=shape.uid("count"), spec=CountSpec(world, shape))]
            late = PortRef(ends[0].node, LATE_PORT)
        for number, kind in enumerate(shape.sinks):
            self._sink(f"sink{number}", kind, ends[0])
        if late is not None and shape.late is not None:
            self._sink(LATE_ROWS, shape.late, late)
        self.graph = with_dead_letter_folders(Graph(name="sim", origin=HERE, nodes=tuple(self._nodes)), world.disk)
        self.plans = build_tasks(self.graph)
        self.steps = step_records(self.plans)
        self.analysis = FakeAnalysis(self.graph, world, shape)

    def _source(self, number: int) -> PortRef:
        kind = ReceivingSource if self.shape.receives and number == 0 else IntSource
        source = kind(self._world, number, self.shape.totals[number])
        interval = self.shape.paces[number] if self.shape.paces else None
        pace = without_pause if interval is None else Every(interval)
        ref = self._add(Read, uid=self.shape.uid(f"source{number}"), source=source, pace=pace)
        return self._marked(ref) if self.shape.union else ref

    def _marked(self, ref: PortRef) -> PortRef:
        if not self.shape.marked:
            return ref
        times = {"delay": 0, "idle_after": self.shape.idle_after, "max_drift": self.shape.max_drift}
        return self._add(WithWatermark, inputs=(ref,), column="at", max_ahead=None, **times)

    def _parsed(self, ref: PortRef) -> PortRef:
        good = self._add(ParseJson, inputs=(ref,), column="value", schema="", on_error="split")
        if self.shape.letters and DEAD not in self.shape.without:
            uid, source = self.shape.uid(DEAD), self.shape.uid("source0")
            ref = self._add(
                RowWise, inputs=(PortRef(good.node, BAD_PORT),), verb=VERB, text=uid, build=lambda frame: frame
            )
            self._add(Write, inputs=(ref,), uid=uid, sink=FakeLetters(world=self._world, source=source))
        elif self.shape.dead is not None:
            self._sink(DEAD, self.shape.dead, PortRef(good.node, BAD_PORT))
        return good

    def _sink(self, uid: str, kind: str, ref: PortRef) -> None:
        if uid not in self.shape.without:
            sink = FakeSink(self._world, kind, self.shape.prefix)
            self._add(Write, inputs=(ref,), uid=self.shape.uid(uid), sink=sink)

    def _add(self, kind: Any, **fields: Any) -> PortRef:
        self._nodes.append(kind(id=len(self._nodes), origin=HERE, **fields))
        return PortRef(len(self._nodes) - 1)
