"""The page about an upgrade, run as it stands: its two pipelines, its commands in their order, against plain Python."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from crash.driver import surroundings

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "upgrade-story.md"
START = datetime(2026, 1, 5, tzinfo=timezone.utc)
UPGRADE = 150
"""Seconds of event time at which the code changes, in the middle of a minute."""


def rows(first, last, *, refunds=False):
    """An order every five seconds of event time; each third is refunded a little."""
    step = 15 if refunds else 5
    return [
        {"id": n, "user": f"u{n % 3}", "amount": -1.0 if refunds else float(n), "at": START + timedelta(seconds=n)}
        for n in range(first, last, step)
    ]


def drop(folder, name, found):
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(row | {"at": f"{row['at']:%Y-%m-%dT%H:%M:%SZ}"}) for row in found]
    hidden = folder / f".{name}"
    hidden.write_text("\n".join(lines) + "\n")
    hidden.rename(folder / name)


def commands():
    """Each with the exit code that the page gives, which is 0 unless it says otherwise."""
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in "".join(blocks).splitlines():
        words, _, remark = line.partition("#")
        code = re.search(r"exit (\d+)", remark)
        yield shlex.split(words)[1:], int(code[1]) if code else 0


def run(home, words):
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=home,
        env=surroundings(home),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def published(home, folder):
    return [
        json.loads(line) for path in (home / folder).glob("part-*") for line in path.read_text().splitlines() if line
    ]


def test_the_story_of_an_upgrade_as_the_page_tells_it(tmp_path):
    for name in ("shop_v1.py", "shop_v2.py"):
        shutil.copy(ROOT / "examples" / "upgrade" / name, tmp_path)
    before, after = rows(0, UPGRADE), rows(UPGRADE, 300)
    refunds = rows(UPGRADE, 300, refunds=True)
    end = [{"id": 9_999, "user": "end", "amount": 0.0, "at": START + timedelta(hours=1)}]  # closes what is before it
    drop(tmp_path / "orders", "1.json", before)
    (tmp_path / "refunds").mkdir()
    told = []
    for words, code in commands():
        done = run(tmp_path, words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        told.append((words, done))
        if words[0] == "savepoint":  # the world goes on while the new code is tried
            drop(tmp_path / "orders", "2.json", after)
            drop(tmp_path / "refunds", "1.json", refunds)
            drop(tmp_path / "orders", "3.json", end)
            drop(tmp_path / "refunds", "2.json", end)

    plans = [done for words, done in told if words[0] == "plan"]
    assert "--rename" in plans[0].stderr + plans[0].stdout, "the remedy"
    assert "spent" in plans[1].stdout
    _check(published(tmp_path, "totals"), before, after, refunds)
    assert len(published(tmp_path, "archive")) == len(before), "Tuesday's code keeps none"


def _check(found, before, after, refunds):
    amounts, counts = defaultdict(float), defaultdict(int)
    for row in [*before, *after, *refunds]:
        place = row["user"], row["at"].replace(second=0)
        amounts[place] += row["amount"]
        counts[place] += row not in before
    told = {
        (row["user"], datetime.fromisoformat(row["window_start"][:19]).replace(tzinfo=timezone.utc)): row
        for row in found
    }
    assert len(told) == len(found), "none twice"
    assert {place: row["amount"] for place, row in told.items()} == dict(amounts)
    for place, row in told.items():
        is_old = place[1] + timedelta(minutes=1) <= START + timedelta(seconds=UPGRADE)
        if not is_old:
            assert row["n"] == counts[place], "of open windows the count knows only rows from the upgrade on"
