"""What a page of the docs shows, as tests use it: its command lines, and its samples held against what was said."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"

_DIFFERS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "<time>"),
    (r"^\d\d:\d\d:\d\d ", "<time> "),
    (r"\b\d[\d.,]* (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?", "<long>"),
    (r"\b\d[\d.,]* (?:B|kB|MB|GB|GiB)(?!\w)", "<size>"),
)
"""What is another thing on every machine and at every time: moments, ages, sizes."""


def blocks(page: str, language: str = "") -> list[str]:
    """The blocks of code of a page that are of a language; those that say none unless it is given."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE)
    return [content for kind, content in found if kind == language]


def command_lines(page: str) -> list[str]:
    """The command lines of a page, without remarks; what stands in brackets once left out and once taken."""
    found = re.findall(r"^(?:\$ )?(penstock .*?)(?: +#.*)?$", "\n".join(blocks(page)), flags=re.MULTILINE)
    return [variant for line in found for variant in _variants(line)]


def sample(page: str, begins: str) -> str:
    """The one block of a page that begins so."""
    (found,) = [text for text in blocks(page) if text.startswith(begins)]
    return found


def shows(shown: str, said: str, **places: Path) -> None:
    """Fail unless a sample is what was said, but for what differs by machine and time; ``…`` stands for anything.

    Args:
        shown: the sample.
        said: what a command printed.
        places: folders by the names that the page has for them: ``srv="/tmp/x"`` for ``/srv/…``.
    """
    for name, place in places.items():
        said = said.replace(str(place), f"/srv/{name}")
    expected, found = _plain(shown), _plain(said)
    pattern = "\n".join(re.escape(line).replace("…", ".*") for line in expected)
    assert re.fullmatch(pattern, "\n".join(found)), "\n".join(["shown:", *expected, "said:", *found])


def _plain(text: str) -> list[str]:
    lines = []
    for line in text.strip().splitlines():
        for differs, instead in _DIFFERS:
            line = re.sub(differs, instead, line)  # noqa: PLW2901 - one after the other
        lines.append(" ".join(line.split()))
    return lines


def _variants(line: str) -> list[str]:
    """A line without what may be left out, and with all of it; of several the first is taken."""
    without = " ".join(re.sub(r"\[[^\]]*\]", "", line).split())
    with_all = " ".join(re.sub(r"\[([^\]|]*)[^\]]*\]", r"\1", line).split())
    return [without] if without == with_all else [without, with_all]
