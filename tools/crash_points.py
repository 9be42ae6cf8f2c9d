"""Keeps the list of crash points in docs/crash-tutorial.md equal to the code: `python tools/crash_points.py` writes it.

A test fails while it is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from penstock.failpoints import FAILPOINTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "crash-tutorial.md"
BEGIN, END = "<!-- made by tools/crash_points.py -->\n", "<!-- until here -->\n"
GROUPS = {
    "A batch": ("source.polled", "sink.staged", "state.compacted"),
    "A checkpoint": (
        "state.layer.before_write",
        "state.layer.written",
        "state.layer.durable",
        "sink.prepared",
        "checkpoint.manifest.before",
        "checkpoint.manifest.written",
    ),
    "Its output is published": (
        "sink.commit.before",
        "sink.files.before_move",
        "sink.files.moved",
        "sink.for_each.called",
        "sink.kafka.begun",
        "sink.kafka.produced",
        "sink.kafka.marked",
        "sink.kafka.committed",
        "sink.published",
    ),
    "A start": (
        "log.claim.before",
        "log.claim.written",
        "recovery.committed",
        "sink.voided",
        "recovery.delete.before",
        "state.part.loaded",
        "recovery.restored",
    ),
    "Rows are received": (
        "received.seal.before",
        "received.sealed",
        "received.block.before",
        "received.block.durable",
        "received.keys.written",
        "received.merge.before",
        "received.merge.written",
        "received.merge.delete",
        "received.clean.before",
        "received.skip.before",
    ),
    "Files that were read are archived or deleted": (
        "source.files.record",
        "source.files.noted",
        "source.files.moved",
        "source.files.put_back",
    ),
    "What is no longer needed goes": ("gc.delete.before", "gc.delete.after", "log.trim.before"),
    "A checkpoint leaves as a folder, or comes back from one": (
        "export.pinned",
        "export.file.copied",
        "export.written",
        "import.claimed",
        "import.file.before",
        "import.file.copied",
        "import.release.before",
    ),
    "Any durable file": (
        "log.append.before",
        "log.append.written",
        "local.create.temp_written",
        "local.create.linked",
        "local.settle.synced",
        "local.move.before",
        "local.move.renamed",
    ),
}
"""Every point, by what is going on, in the order in which a job comes there."""

REAL_JOBS_ONLY = frozenset(
    {
        *GROUPS["A checkpoint leaves as a folder, or comes back from one"],
        *GROUPS["Rows are received"],
        "local.move.before",
        "local.move.renamed",
        "recovery.delete.before",
        "sink.files.before_move",
        "sink.files.moved",
        "sink.for_each.called",
        "sink.kafka.begun",
        "sink.kafka.produced",
        "sink.kafka.marked",
        "sink.kafka.committed",
        "sink.voided",
        *GROUPS["Files that were read are archived or deleted"],
    }
)
"""What a test with `ps.testing.run` does not come to: no command is given, and nothing outside is reached."""


def section() -> str:
    """The list as Markdown."""
    lines = []
    for title, names in GROUPS.items():
        lines += [f"**{title}**", "", "| point | what is true there |", "|---|---|"]
        for name in names:
            only = " (real jobs only)" if name in REAL_JOBS_ONLY else ""
            lines.append(f"| `{name}` | {FAILPOINTS[name]}{only} |")
        lines.append("")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the list as it must be."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: f"{BEGIN}\n{section()}{END}", text, flags=re.DOTALL)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
