"""How far a job's sources are behind, partition by partition, and whether that is too far. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.durations import format_duration, parse_duration
from penstock.errors import GraphError, SettingsError
from penstock.operate.standing import Being

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.facts import SourceLag
    from penstock.operate.standing import Standing

STALE: Final = 60.0
"""Seconds after which the numbers of a running job say nothing of now; it writes them every 10 s at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBehind:
    """One partition: the next row to be read, where it ends, and how far that is apart.

    ``holds``: steps whose event time this partition holds back.
    """

    partition: str
    position: int | None
    end: int | None
    rows: int
    seconds: float | None
    rate: float | None
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBehind:
    """One source. What is ``None`` is not known; a source that cannot tell how far it is behind knows nothing.

    ``holds``: steps whose event time the source as a whole holds back.
    """

    source: str
    rows: int | None
    seconds: float | None
    rate: float | None
    eta_seconds: float | None
    partitions: tuple[PartitionBehind, ...]
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that a source may be behind: rows, or microseconds."""

    rows: int | None = None
    micros: int | None = None

    def __str__(self) -> str:
        return f"{self.rows:,} rows" if self.micros is None else format_duration(self.micros)


def lags(now: Standing) -> tuple[SourceBehind, ...]:
    """Every source of the job, sorted by uid, as it was told last."""
    report = now.hint.report if now.hint is not None else None
    held_by = report.held_by if report is not None else {}
    holds: dict[str, list[str]] = {}
    for step, by in sorted(held_by.items()):
        holds.setdefault(by, []).append(step)
    told = report.lag if report is not None else {}
    return tuple(_behind(source, told.get(source), holds) for source in now.sources)


def _behind(source: str, lag: SourceLag | None, holds: dict[str, list[str]]) -> SourceBehind:
    partitions = tuple(_partitions(source, lag, holds)) if lag is not None else ()
    rates = [each.rate for each in partitions if each.rate is not None]
    return SourceBehind(
        source=source,
        rows=lag.rows if lag is not None else None,
        seconds=lag.seconds if lag is not None else None,
        rate=sum(rates) if rates else None,
        eta_seconds=lag.eta_seconds if lag is not None else None,
        partitions=partitions,
        holds=tuple(holds.get(source, ())),
    )


def _partitions(source: str, lag: SourceLag, holds: dict[str, list[str]]) -> Iterator[PartitionBehind]:
    for name, each in lag.partitions.items():
        yield PartitionBehind(
            partition=name,
            position=each.position,
            end=each.end,
            rows=each.rows,
            seconds=each.seconds,
            rate=each.rate,
            holds=tuple(holds.get(f"{source}/{each.name or name}", ())),
        )


def read_limit(text: str) -> Limit:
    """What ``--max-lag`` says.

    Raises:
        SettingsError: it is neither a number of rows nor a length of time.

    >>> str(read_limit("10000")), str(read_limit("90s"))
    ('10,000 rows', '90 seconds')
    """
    plain = text.replace("_", "").replace(",", "").strip()
    if plain.isascii() and plain.isdecimal():
        return Limit(rows=int(plain))
    try:
        return Limit(micros=parse_duration("--max-lag", text))
    except GraphError:
        msg = f"--max-lag is {text!r}: give rows, as in 10000, or a length of time, as in 30s"
        raise SettingsError(msg) from None


def over(now: Standing, limit: Limit) -> list[str]:
    """Which sources are further behind than that, in words. A check must not pass on what nobody knows.

    A source of a kind that never tells is left out, unless there is no other.
    """
    if now.being is not Being.RUNNING:
        return [f"job {now.job!r} does not run ({now.being.value}): how far it is behind now is not known"]
    if not now.is_hint_of_now or (now.hint_age or 0.0) > STALE:
        return [f"job {now.job!r} has not told how far it is behind for more than {STALE:g} s"]
    telling = [each for each in lags(now) if each.rows is not None]
    if not telling:
        return [f"no source of job {now.job!r} has told how far it is behind"]
    return [said for each in telling if (said := _over(each, limit)) is not None]


def _over(each: SourceBehind, limit: Limit) -> str | None:
    assert each.rows is not None  # it has told
    if each.rows == 0:
        return None
    if limit.rows is not None:
        return f"{each.source}: {each.rows:,} rows behind, more than {limit}" if each.rows > limit.rows else None
    assert limit.micros is not None  # it is one of the two
    if each.seconds is None:
        return f"{each.source}: how long it is behind is not known"
    return (
        f"{each.source}: {each.seconds:,.1f} s behind, more than {limit}"
        if each.seconds * 1_000_000 > limit.micros
        else None
    )
