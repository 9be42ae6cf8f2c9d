"""Draws the state machines from their tables into docs/diagrams, so that no picture says what the code does not.

`python tools/diagrams.py` writes the pages; a test fails while one of them is stale.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import barrier_moves
from barrier_moves import ALIGNMENT_MOVES, TRACKER_MOVES, BarrierState, Move, Outcome, Trigger
from penstock.runtime import lifecycle
from penstock.runtime.lifecycle import TRANSITIONS, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import Enum
    from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "diagrams"


@dataclass(frozen=True)
class Arrow:
    """A line in a diagram."""

    before: str
    after: str
    text: str = ""


def sentences(module: ModuleType, kind: type[Enum]) -> dict[str, str]:
    """The docstring below each member of an enumeration, by the member's value; empty where there is none."""
    tree = ast.parse(inspect.getsource(module))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    found = {member.value: "" for member in kind}
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(following, ast.Expr):
            member = kind[ast.unparse(statement.targets[0])]
            found[member.value] = " ".join(inspect.cleandoc(ast.literal_eval(following.value)).split())
    return found


def diagram(first: str, arrows: Iterable[Arrow], last: Iterable[str]) -> list[str]:
    """A state diagram in Mermaid's language."""
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {first}"]
    lines += [f"  {arrow.before} --> {arrow.after}{f': {arrow.text}' if arrow.text else ''}" for arrow in arrows]
    return [*lines, *(f"  {state} --> [*]" for state in last), "```"]


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table in Markdown's language."""
    return [_row(heads), _row(tuple("---" for _ in heads)), *(_row(row) for row in rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def lifecycle_page() -> str:
    """The life of a job."""
    order = list(JobState)
    arrows = [
        Arrow(state.value, target.value)
        for state, targets in TRANSITIONS.items()
        for target in order
        if target in targets
    ]
    over = [state.value for state, targets in TRANSITIONS.items() if not targets]
    meanings = sentences(lifecycle, JobState)
    return _page(
        "The life of a job",
        "penstock.runtime.lifecycle.TRANSITIONS",
        "Any other move is refused and changes nothing. A job that is over does not come back: a new one continues it.",
        diagram(JobState.CREATED.value, arrows, over),
        table(("state", "what is true while it lasts"), ((state, text) for state, text in meanings.items())),
    )


def barriers_page(title: str, name: str, moves: tuple[Move, ...], text: str) -> str:
    """What may become of one checkpoint at one task."""
    used = {state for move in moves for state in (move.before, move.after)}
    meanings = sentences(barrier_moves, BarrierState)
    arrows: dict[tuple[BarrierState, BarrierState], list[str]] = {}
    for move in moves:
        arrows.setdefault((move.before, move.after), []).append(_label(move.trigger, move.outcome))
    drawn = (Arrow(pair[0].value, pair[1].value, "<br/>".join(labels)) for pair, labels in arrows.items())
    return _page(
        title,
        f"tools/barrier_moves.py: {name}",
        text,
        diagram(BarrierState.UNSEEN.value, drawn, [BarrierState.OVER.value]),
        table(
            ("state", "what is true of the checkpoint while it lasts"),
            ((state.value, meanings[state.value]) for state in BarrierState if state in used),
        ),
        table(
            ("from", "what came", "to", "what the task does for it"),
            ((move.before.value, move.trigger.value, move.after.value, move.outcome.value) for move in moves),
        ),
    )


def _label(trigger: Trigger, outcome: Outcome) -> str:
    return trigger.value if outcome is Outcome.NOTHING else f"{trigger.value} / {outcome.value}"


def _page(title: str, source: str, text: str, *parts: list[str]) -> str:
    drawn = f"Drawn from `{source}` by `tools/diagrams.py`; do not edit."
    return "\n".join([f"# {title}", "", drawn, "", text, *(line for part in parts for line in ("", *part)), ""])


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    return {
        "lifecycle.md": lifecycle_page(),
        "alignment.md": barriers_page(
            "A checkpoint at one task, exactly-once",
            "ALIGNMENT_MOVES",
            ALIGNMENT_MOVES,
            "Inputs that brought the barrier wait until it came from all that are live. One checkpoint is waited for "
            "at a time. What is not drawn leaves the state as it is.",
        ),
        "tracker.md": barriers_page(
            "A checkpoint at one task, at-least-once",
            "TRACKER_MOVES",
            TRACKER_MOVES,
            "No input ever waits; barriers are counted for many checkpoints at a time, at most 50, and the oldest is "
            "dropped for a newer barrier. What is not drawn leaves the state as it is.",
        ),
    }


def main(folder: Path = FOLDER) -> int:
    """Write the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
