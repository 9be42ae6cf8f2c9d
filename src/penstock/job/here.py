"""Where this process runs, so that another can tell whether the number of this one means anything to it.

Host names do not say that: containers share them. The machine's boot and the space that gives processes their numbers
do; both are in a mark behind the name. Knows nothing of jobs.
"""

from __future__ import annotations

import platform
from hashlib import sha256
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def here(proc: Path = PROC) -> str:
    """Host and mark, ``web-1#9f86d081884c``; the host alone where no mark can be had, which then compares with nobody.

    >>> here(Path("/nowhere")) == platform.node()
    True
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = (proc / "self/ns/pid").readlink()
    except (OSError, ValueError):
        return platform.node()
    return f"{platform.node()}#{sha256(f'{boot} {space}'.encode()).hexdigest()[:12]}"


def is_here(place: str) -> bool:
    """Whether a process of that place would have a number of its own here, too."""
    return "#" in place and place == here()
