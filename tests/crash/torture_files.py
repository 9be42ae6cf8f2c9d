"""Kills a files-to-files job at every place it has, and compares what it published with another engine's result.

make torture-files                      some tens of kills
make torture-files ARGS="--kills 60 --seed 7 --keep"
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from crash import campaign as campaigns  # noqa: E402 - found through the path above
from crash import conduct  # noqa: E402
from crash.input_files import InputFiles  # noqa: E402
from crash.verdict import judge  # noqa: E402


def torture(home: Path, arguments: argparse.Namespace) -> conduct.Outcome:
    """Kills, the verdict on what was published all the same, and the controls."""
    campaign = _campaign(conduct.folder(home, "killed"), arguments.seed)
    try:
        if arguments.short:
            _few(campaign)
        else:
            campaigns.run(campaign, arguments.kills)
            campaign.zombies()
        campaign.finish()
    finally:
        campaign.close()
    verdict = judge(campaign.home, campaign.feed)
    problems = [*verdict.problems, *campaign.notes]
    details = conduct.details(campaign, verdict)
    if not arguments.short:
        whole = conduct.folder(home, "whole")
        whole.joinpath("in").mkdir(parents=True, exist_ok=True)
        for path in campaign.feed.folder.rglob("part-*.jsonl"):  # the archived ones too
            shutil.copy2(path, whole / "in")
        details["uninterrupted"] = conduct.uninterrupted(
            whole, "files_job.py", campaign.feed, problems, flush_rows=1, environment={}
        )
        conduct.check_reach(campaign, arguments.kills, problems)
    control = conduct.negative_control(_campaign(conduct.folder(home, "broken"), arguments.seed), problems)
    details["negative_control"] = asdict(control)
    conduct.show(campaign, {"killed": verdict, conduct.CONTROL: control})
    return conduct.Outcome(conduct.figures(campaign, verdict), problems, details)


def _campaign(home: Path, seed: int) -> campaigns.Campaign:
    return campaigns.Campaign(home, seed, InputFiles(home / "in", seed), "files_job:job")


def _few(campaign: campaigns.Campaign) -> None:
    for place, shape, hit in (
        ("sink.commit.before", "group", 3),
        ("recovery.committed", "python", 1),
        ("sink.files.moved", "python", 2),
        ("checkpoint.manifest.before", "jvm", 3),
        ("source.files.moved", "python", 2),
    ):
        campaign.strike(place, shape, hit=hit)


if __name__ == "__main__":
    sys.exit(conduct.conduct("torture-files", __doc__, torture))
