"""Cores and memory that a job of this machine would have. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.operate.doctor.findings import Finding, ok, warn

GIB: Final = 1 << 30
LITTLE: Final = 2 * GIB
"""Of memory: a driver with 1 GB of heap, what lies beside it, and a Python worker for each core."""

CGROUP: Final = Path("/sys/fs/cgroup")


def look_at_machine() -> Iterator[Finding]:
    """Cores, then memory."""
    yield cores_of(os.cpu_count() or 1, granted_cores())
    yield memory_of(total_memory(), granted_memory())


def cores_of(there: int, granted: float | None) -> Finding:
    """Whether the background can work beside the batches."""
    limit = granted if granted is not None and granted < there else None
    found = f"{there} cores" if there != 1 else "1 core"
    if limit is not None:
        found += f", of which this container may use {limit:g}"
    if (limit or there) < 2:  # noqa: PLR2004 - one for batches, one beside it
        fix = "give it two or more: on one, checkpoints and compaction run between batches and add to latency"
        return warn("cores", found, fix)
    return ok("cores", found)


def memory_of(there: int | None, granted: int | None) -> Finding:
    """Whether a driver and its workers fit."""
    if there is None:
        return ok("memory", "not known on this system")
    limit = granted if granted is not None and granted < there else None
    found = f"{there / GIB:.1f} GiB"
    if limit is not None:
        found += f", of which this container may use {limit / GIB:.1f} GiB"
    if (limit or there) < LITTLE:
        return warn("memory", found, "2 GiB or more: Spark's JVM takes 1 GiB of heap unless told otherwise")
    return ok("memory", found)


def total_memory() -> int | None:
    """Bytes of the machine; ``None`` where the system does not tell."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def granted_memory(cgroup: Path = CGROUP) -> int | None:
    """Bytes that the container may use; ``None`` without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int((cgroup / name).read_text(encoding="ascii"))
    return None


def granted_cores(cgroup: Path = CGROUP) -> float | None:
    """Cores that this process may use, by its container and by its affinity; ``None`` without a limit."""
    limits: list[float] = []
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        limits.append(int(quota) / int(period))
    with suppress(AttributeError, OSError):
        limits.append(float(len(os.sched_getaffinity(0))))
    return min(limits, default=None)
