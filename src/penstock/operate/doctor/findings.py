"""What a check found: a frozen line with its remedy, and what several of them come to. Knows no check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How a check ended, from best to worst."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of ``penstock doctor``.

    Attributes:
        name: what was looked at.
        status: whether it will do.
        found: what is there.
        fix: what to do about it; ``None`` where nothing needs doing.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None


def ok(name: str, found: str) -> Finding:
    """It will do."""
    return Finding(name=name, status=Status.OK, found=found)


def warn(name: str, found: str, fix: str) -> Finding:
    """It works, but not as well as it could, or not for ever."""
    return Finding(name=name, status=Status.WARN, found=found, fix=fix)


def fail(name: str, found: str, fix: str) -> Finding:
    """A job cannot run so."""
    return Finding(name=name, status=Status.FAIL, found=found, fix=fix)


def worst(findings: Iterable[Finding]) -> Status:
    """What all of them come to.

    >>> worst([ok("java", "17"), warn("memory", "1 GB", "add some")])
    <Status.WARN: 'warn'>
    """
    order = list(Status)
    return max((finding.status for finding in findings), key=order.index, default=Status.OK)
