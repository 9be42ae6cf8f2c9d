"""Python and the packages that penstock asks for: whether those installed are in its ranges. Knows no Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from penstock.operate.doctor.findings import Finding, fail, ok, warn

PACKAGE: Final = "penstock"
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*])?\s*([^;]*)(?:;(.*))?$")
_EXTRA: Final = re.compile(r"\s*extra\s*==\s*['\"]([\w-]+)['\"]\s*$")
_PART: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")
_TESTED: Final = re.compile(r"Programming Language :: Python :: (\d+\.\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that is asked for, in which versions, and for which extra (``None``: always)."""

    name: str
    versions: str
    extra: str | None = None


Version = Callable[[str], "str | None"]
"""The version of a package that is installed here."""


def look_at_python() -> Iterator[Finding]:
    """Python, the packages that are always needed, and those of the extras."""
    tested = [found[1] for line in _classifiers() if (found := _TESTED.match(line))]
    yield python_of((sys.version_info.major, sys.version_info.minor), sys.version.split()[0], sys.executable, tested)
    asked = requirements(metadata.requires(PACKAGE) or ())
    yield packages_of(asked, installed)
    yield extras_of(asked, installed)


def installed(name: str) -> str | None:
    """The version of a package, ``None`` if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python_of(version: tuple[int, int], text: str, executable: str, tested: Collection[str]) -> Finding:
    """Whether this Python is one that penstock is tested with."""
    found = f"{text} ({executable})"
    known = sorted(tuple(int(part) for part in each.split(".")) for each in tested)
    if known and not known[0] <= version <= known[-1]:
        between = " to ".join(".".join(map(str, end)) for end in (known[0], known[-1]))
        return warn("python", found, f"penstock is tested with Python {between}: make the venv with one of them")
    return ok("python", found)


def requirements(lines: Sequence[str]) -> list[Requirement]:
    """What a package's metadata asks for; what it asks for on some systems only is left out.

    >>> requirements(["pyspark<5,>=4.1", "confluent-kafka>=2.12; extra == 'kafka'"])[1].extra
    'kafka'
    """
    found = []
    for line in lines:
        parts = _REQUIREMENT.match(line)
        extra = _EXTRA.match(parts[3]) if parts is not None and parts[3] else None
        if parts is not None and (extra is not None or not parts[3]):
            found.append(Requirement(name=parts[1], versions=parts[2].strip(), extra=extra[1] if extra else None))
    return found


def is_within(version: str, versions: str) -> bool:
    """Whether a version is in a range such as ``>=4.1,<5``; marks of pre-releases are not looked at.

    >>> is_within("4.3.0", ">=4.1,<5"), is_within("3.5.1", ">=4.1,<5"), is_within("5.0", "<5")
    (True, False, False)
    """
    return all(_fits(_numbers(version), operator, _numbers(bound)) for operator, bound in _PART.findall(versions))


def packages_of(asked: Sequence[Requirement], version: Version) -> Finding:
    """Whether everything that is always needed is there in its range."""
    needed = [each for each in asked if each.extra is None]
    there = {each.name: version(each.name) for each in needed}
    wrong = [each for each in needed if (now := there[each.name]) is None or not is_within(now, each.versions)]
    found = ", ".join(f"{name} {now or 'is missing'}" for name, now in there.items())
    if wrong:
        wanted = " ".join(f"'{each.name}{each.versions}'" for each in wrong)
        return fail("packages", found, f"pip install {wanted}")
    client = next((name for name in ("pyspark-client", "pyspark-connect") if version(name)), None)
    if client is not None:
        fix = f"pip uninstall {client} and install pyspark again: it makes Spark Connect sessions, which are refused"
        return warn("packages", f"{found}, and {client}", fix)
    return ok("packages", found)


def extras_of(asked: Sequence[Requirement], version: Version) -> Finding:
    """Which extras are installed; none is needed unless a pipeline uses it."""
    extras = sorted({each.extra for each in asked if each.extra is not None})
    there, missing, old = [], [], []
    for extra in extras:
        mine = [each for each in asked if each.extra == extra]
        versions = {each.name: version(each.name) for each in mine}
        if None in versions.values():
            missing.append(extra)
            continue
        there.append(f"{extra} ({', '.join(f'{name} {now}' for name, now in versions.items())})")
        outside = (each for each in mine if not is_within(str(versions[each.name]), each.versions))
        old += [f"'{each.name}{each.versions}'" for each in outside]
    found = "; ".join(
        [
            *there,
            *([f"not installed: {', '.join(f'{PACKAGE}[{extra}]' for extra in missing)}"] if missing else []),
        ]
    )
    if old:
        return warn("extras", found, f"pip install {' '.join(old)}")
    return ok("extras", found or "there are none")


def _classifiers() -> list[str]:
    return metadata.metadata(PACKAGE).get_all("Classifier") or []


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def _fits(version: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    size = max(len(version), len(bound))
    one, other = (each + (0,) * (size - len(each)) for each in (version, bound))
    match operator:
        case ">=":
            return one >= other
        case "<=":
            return one <= other
        case ">":
            return one > other
        case "<":
            return one < other
        case "==":
            return one == other
        case _:
            return one != other
