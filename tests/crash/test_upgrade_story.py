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
UPGRADE = datetime(2026, 1, 5, 0, 2, 30, tzinfo=timezone.utc)
"""When the code changes, in event time: in the middle of a minute."""


def rows(home, folder, day):
    """What the page's sample made, with times as times; without the last order, which closes what is before it."""
    found = [json.loads(line) for line in (home / folder / f"{day}.json").read_text().splitlines()]
    return [
        row | {"at": datetime.fromisoformat(row["at"].replace("Z", "+00:00"))} for row in found if row["user"] != "end"
    ]


def commands():
    """Each with the exit code that the page gives, which is 0 unless it says otherwise."""
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in "".join(blocks).splitlines():
        words, _, remark = line.partition("#")
        code = re.search(r"exit (\d+)", remark)
        yield shlex.split(words), int(code[1]) if code else 0


def run(home, words):
    program = ["-m", *words] if words[0] == "penstock" else words[1:]
    return subprocess.run(
        [sys.executable, *program],
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
    shutil.copytree(ROOT / "examples" / "upgrade", tmp_path, dirs_exist_ok=True)
    told = []
    for words, code in commands():
        done = run(tmp_path, words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        told.append((words, done))

    before, after = rows(tmp_path, "orders", "monday"), rows(tmp_path, "orders", "tuesday")
    refunds = rows(tmp_path, "refunds", "tuesday")
    plans = [done for words, done in told if words[1] == "plan"]
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
        is_old = place[1] + timedelta(minutes=1) <= UPGRADE
        if not is_old:
            assert row["n"] == counts[place], "of open windows the count knows only rows from the upgrade on"
