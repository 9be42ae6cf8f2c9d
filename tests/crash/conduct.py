"""How a torture is called, how it ends and what it tells; knows neither the job nor what the job reads.

A torture is a function of an empty folder and the arguments, which gives an ``Outcome``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import result

from crash import campaign as campaigns
from crash.driver import surroundings
from crash.feed import Feed
from crash.verdict import Verdict, judge
from crash.waiting import clock
from penstock.failpoints import FAILPOINTS

HERE = Path(__file__).resolve().parent


@dataclass
class Outcome:
    """What is told at the end; any problem makes the exit code 1."""

    figures: dict[str, result.Figure]
    problems: list[str]
    details: dict[str, object]


def conduct(name: str, about: str, torture: Callable[[Path, argparse.Namespace], Outcome]) -> int:
    """Run it in a folder that is removed, tell its result, and save that too unless it was the short form."""
    arguments = _arguments(about)
    for number in (signal.SIGINT, signal.SIGTERM):  # a runner that is ended ends what it started
        signal.signal(number, lambda *_: sys.exit(130))
    home = Path(tempfile.mkdtemp(prefix="penstock-torture-"))
    began = clock()
    try:
        outcome = torture(home, arguments)
    finally:
        if not arguments.keep:
            shutil.rmtree(home, ignore_errors=True)
    figures = outcome.figures | {"seconds": round(clock() - began, 1)}
    for problem in outcome.problems:
        print(f"PROBLEM {problem}")
    if arguments.keep:
        print(f"kept: {home}")
    if not arguments.short:
        settings = {"kills": arguments.kills, "seed": arguments.seed, "checkpoint_every": campaigns.EVERY}
        print(f"written: {result.save(name, figures, settings=settings, details=outcome.details)}")
    result.tell(figures)
    return 1 if outcome.problems else 0


def _arguments(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="few kills, no fence; for the test suite")
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs, state and output")
    return parser.parse_args()


def folder(home: Path, name: str) -> Path:
    """A new folder below ``home``."""
    made = home / name
    made.mkdir()
    return made


# ----------------------------------------------------------------------------------------------------- the two controls


def uninterrupted(
    home: Path, script: str, feed: Feed, problems: list[str], *, flush_rows: int, environment: Mapping[str, str]
) -> dict[str, object]:
    """The same input without a kill, in a folder that has it: rows are conserved by the counters too."""
    report = home / "report.json"
    command = [sys.executable, str(HERE / script), "state", str(report)]
    environment = {**surroundings(home), **environment}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problems.append(f"the uninterrupted run ended with {done.returncode}: {done.stderr[-800:]}")
        return {}
    verdict = judge(home, feed)
    problems += [f"uninterrupted: {problem}" for problem in verdict.problems]
    told = json.loads(report.read_text(encoding="utf-8"))
    if told["restarts"]:  # the counters count rows again then
        problems.append(f"the uninterrupted run restarted {told['restarts']} times: {told['last_failure']}")
    read = told["rows_read"].get("lines", 0) - flush_rows
    late, bad = told["counters"].get("totals.late", 0), told["rows_written"].get("bad-out", 0)
    if read != verdict.rows or verdict.in_windows + late + bad != read:
        problems.append(
            f"counters: {read} of {verdict.rows} rows read, {verdict.in_windows} in windows + {late} late + {bad} bad"
        )
    return {"counters": told, "verdict": asdict(verdict)}


def negative_control(campaign: campaigns.Campaign, problems: list[str]) -> Verdict:
    """A job whose sinks publish before the manifest, killed in between, must lose or repeat rows."""
    broken = {"TORTURE_BROKEN": "1"}
    try:
        for _ in range(3):  # until a kill falls between a publication and its manifest
            campaign.feed.drop(10)
            driver = campaign.driver(pause_at="checkpoint.manifest.before", hit=2, **broken)
            before = campaign.published()
            if driver.reaches(campaigns.REACHED):
                driver.kill("group")
            if campaign.published() > before:
                break
        campaign.finish(again=False, **broken)  # whether it does so twice says nothing of it
    finally:
        campaign.close()
    verdict = judge(campaign.home, campaign.feed)
    if not verdict.lost + verdict.repeated:
        problems.append("the negative control, which publishes before the manifest, lost and repeated nothing")
    return verdict


# ------------------------------------------------------------------------------------------------------------- figures


def check_reach(campaign: campaigns.Campaign, asked: int, problems: list[str]) -> None:
    """Whether a whole run killed as often, and wherever, it should."""
    kills = campaign.kills
    if len(kills) < asked:
        problems.append(f"{len(kills)} kills, {asked} were asked for")
    if sum(kill.in_commit for kill in kills) * 3 < len(kills):
        problems.append("less than a third of the kills came between manifest and confirmation")
    if missed := campaigns.missed(campaign, asked):
        problems.append(f"places that were reached and never killed at: {', '.join(missed)}")
    if campaign.fenced < len(campaigns.ZOMBIES):
        problems.append(f"{campaign.fenced} of {len(campaigns.ZOMBIES)} stopped drivers ended fenced")


def figures(campaign: campaigns.Campaign, verdict: Verdict) -> dict[str, result.Figure]:
    kills = campaign.kills
    return {
        "kills": len(kills),
        "kills_in_commit": sum(kill.in_commit for kill in kills),
        "kills_in_recovery": sum(kill.in_recovery for kill in kills),
        "rows": verdict.rows,
        "lost": verdict.lost,
        "repeated": verdict.repeated,
        "fenced": campaign.fenced,
        "failpoints_hit": len(campaign.hits & set(FAILPOINTS)),
        "failpoints_known": len(FAILPOINTS),
    }


def details(campaign: campaigns.Campaign, verdict: Verdict) -> dict[str, object]:
    return {
        "verdict": asdict(verdict),
        "not_reached": dict(campaign.not_reached),
        "kills": [asdict(kill) for kill in campaign.kills],
    }


def show(campaign: campaigns.Campaign, verdicts: Mapping[str, Verdict]) -> None:
    """Two tables: the kills by place and shape, and the rows of each run."""
    counts: Counter[tuple[str, str]] = Counter((kill.place, kill.shape) for kill in campaign.kills)
    recoveries = Counter(kill.place for kill in campaign.kills if kill.in_recovery)
    rows = []
    for place in sorted({*FAILPOINTS, *(kill.place for kill in campaign.kills)}):
        shapes = [counts[place, shape] for shape in campaigns.SHAPES]
        phase = "commit" if place in campaigns.COMMIT else ""
        reached = "yes" if place in campaign.hits or sum(shapes) else "no"
        rows.append([place, phase, reached, *shapes, recoveries[place]])
    result.show("kills", ["place", "phase", "reached", "python", "jvm", "group", "in recovery"], rows)
    result.show(
        "rows",
        ["run", "in", "in windows", "late", "bad", "windows", "lost", "repeated"],
        [[name, *_counts(verdict)] for name, verdict in verdicts.items()],
    )


def _counts(of: Verdict) -> list[int]:
    return [of.rows, of.in_windows, of.late, of.bad, of.windows, of.lost, of.repeated]


CONTROL = "negative control (must not be 0, 0)"
