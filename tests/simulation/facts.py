"""Ghost state: what entries and sinks have shown so far, as the judge holds it; and what a violation is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoint.entries import Entry, Manifest
from penstock.dead_letters.store import Replay
from penstock.handles import Committable
from simulation.outside import Row

RowKey = tuple[int, int]


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


@dataclass
class Facts:
    """Copied with the world."""

    log_id: str = ""
    tail: int = -1
    generation: int = -1
    entries: dict[int, Entry] = field(default_factory=dict)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    chains: dict[int, dict[str, frozenset[str]]] = field(default_factory=dict)
    """By checkpoint and sink: every staged file of its timeline."""
    read: dict[int, frozenset[RowKey]] = field(default_factory=dict)
    """By checkpoint: rows that its timeline has read, also of sources that are gone."""
    emitted: dict[int, frozenset[RowKey]] = field(default_factory=dict)
    """By checkpoint: those of them that no timer holds back."""
    covered: dict[int, dict[str, frozenset[RowKey]]] = field(default_factory=dict)
    """By checkpoint and sink: the rows that its timeline owes to the sink; none of times when the graph lacked it."""
    condemned: set[int] = field(default_factory=set)
    doomed: dict[str, int] = field(default_factory=dict)
    came_back: set[str] = field(default_factory=set)
    """Condemned, and perhaps there again after a crash: deletions need not be durable."""
    pins: dict[str, int] = field(default_factory=dict)
    restore: int | None = None
    staged: dict[str, Committable] = field(default_factory=dict)
    content: dict[str, list[Row]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    discarded: set[str] = field(default_factory=set)
    void: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    """Staged files of entries that cannot be read and that a rewind went past: published or not, nobody can say."""
    published: dict[str, Counter[RowKey]] = field(default_factory=dict)
    expected: dict[str, dict[RowKey, int]] = field(default_factory=dict)
    fulfilled: dict[str, int] = field(default_factory=dict)
    """Requests, and the entry that holds them."""

    cut_short: dict[int, frozenset[int]] = field(default_factory=dict)
    """By checkpoint: sources that have ended for good although they have more rows; they were drained."""
    drains: set[str] = field(default_factory=set)
    """Requests that ask for a drain."""
    exports: dict[str, Any] = field(default_factory=dict)
    """By the hash of an exported folder's description: what the judge knows of it."""
    excused: set[tuple[str, RowKey]] = field(default_factory=set)
    """Rows that were read before the job began with a folder, and that another log has not published: nor will this."""
    owners: dict[str, str] = field(default_factory=dict)
    """By the same hash: which log has taken its files over."""

    letters: dict[int, frozenset[str]] = field(default_factory=dict)
    """By checkpoint: files of dead letters that its timeline has put there."""
    finals: dict[str, str] = field(default_factory=dict)
    """By the path of such a file: where it was staged."""
    replays: dict[str, dict[int, Replay]] = field(default_factory=dict)
    """By the uid of dead letters and number."""
    asked_again: set[str] = field(default_factory=set)
    """Commands that were to replay also what an earlier one had."""
    again: set[RowKey] = field(default_factory=set)
    """Rows that some replay brings back, by the numbers that they have then."""
    dropped: set[str] = field(default_factory=set)
    """Files of dead letters that somebody has dropped."""

    def copy(self) -> Facts:
        copied: dict[str, Any] = {name: _copied(value) for name, value in vars(self).items()}
        return Facts(**copied)

    @property
    def is_owing(self) -> bool:
        """Whether something is in the log and not published: when a rewind is most dangerous."""
        settled = self.done | self.discarded | self.lost
        return any(path not in settled for path in self.staged)

    @property
    def is_drained(self) -> bool:
        """Whether what is restored next can read nothing more."""
        return self.restore is not None and bool(self.cut_short.get(self.restore))

    def verdicts(self) -> tuple[object, ...]:
        """What was published and what should be: equal where the same files and sinks are to be judged alike."""
        published = frozenset((uid, frozenset(seen.items())) for uid, seen in self.published.items())
        expected = frozenset((uid, frozenset(rows.items())) for uid, rows in self.expected.items())
        return published, expected, frozenset(self.done), frozenset(self.void), frozenset(self.discarded)

    def known(self) -> list[int]:
        """Checkpoints that can be restored."""
        return [id for id in sorted(self.manifests) if id not in self.condemned]


def _copied(value: Any) -> Any:
    if isinstance(value, Counter | set):
        return value.copy()
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value
