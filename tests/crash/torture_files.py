"""Kills a files-to-files job at every place it has, and compares what it published with another engine's result.

make torture-files                      some tens of kills
make torture-files ARGS="--kills 60 --seed 7 --keep"
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
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from bench import result  # noqa: E402

from crash import campaign as campaigns  # noqa: E402 - found through the path above
from crash.driver import surroundings  # noqa: E402
from crash.verdict import Verdict, judge  # noqa: E402
from crash.waiting import clock  # noqa: E402
from penstock.failpoints import KNOWN  # noqa: E402

SHORT = 4


def main() -> int:
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # a runner that is ended ends its drivers
        signal.signal(number, lambda *_: sys.exit(130))
    home = Path(tempfile.mkdtemp(prefix="penstock-torture-"))
    began = clock()
    try:
        figures, problems, details = torture(home, kills=arguments.kills, seed=arguments.seed, short=arguments.short)
    finally:
        if not arguments.keep:
            shutil.rmtree(home, ignore_errors=True)
    figures["seconds"] = round(clock() - began, 1)
    for problem in problems:
        print(f"PROBLEM {problem}")
    if arguments.keep:
        print(f"kept: {home}")
    if not arguments.short:
        settings = {"kills": arguments.kills, "seed": arguments.seed, "checkpoint_every": campaigns.EVERY}
        print(f"written: {result.save('torture-files', figures, settings=settings, details=details)}")
    result.tell(figures)
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=42)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="few kills, no fence; for the test suite")
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs, state and output")
    return parser.parse_args()


def torture(home: Path, *, kills: int, seed: int, short: bool) -> tuple[dict, list[str], dict]:
    """Figures, everything that must not be, and details of a whole run."""
    campaign = campaigns.Campaign(_folder(home, "killed"), seed)
    try:
        if short:
            _few(campaign)
        else:
            campaigns.run(campaign, kills)
            for place in ("sink.commit.before", None):
                campaign.zombie(place)
        campaign.finish()
    finally:
        campaign.close()
    verdict = judge(campaign.home, campaign.files)
    problems = [*verdict.problems, *campaign.notes]
    details = {"verdict": asdict(verdict), "not_reached": dict(campaign.not_reached)}
    if not short:
        details["uninterrupted"] = _uninterrupted(_folder(home, "whole"), campaign, problems)
        _check_reach(campaign, problems)
    control = _negative_control(_folder(home, "broken"), seed)
    details["negative_control"] = asdict(control)
    if not control.lost + control.repeated:
        problems.append("the negative control, which publishes before the manifest, lost and repeated nothing")
    _print(campaign, verdict, control)
    details["kills"] = [asdict(kill) for kill in campaign.kills]
    return _figures(campaign, verdict), problems, details


def _few(campaign: campaigns.Campaign) -> None:
    for place, shape, hit in (
        ("sink.commit.before", "group", 3),
        ("recovery.committed", "python", 1),
        ("sink.files.moved", "python", 2),
        ("checkpoint.manifest.before", "jvm", 3),
    ):
        campaign.strike(place, shape, hit=hit)


def _folder(home: Path, name: str) -> Path:
    made = home / name
    made.mkdir()
    return made


# ----------------------------------------------------------------------------------------------------- the two controls


def _uninterrupted(home: Path, campaign: campaigns.Campaign, problems: list[str]) -> dict[str, object]:
    """The same input without a kill: rows are conserved by the counters too."""
    shutil.copytree(campaign.home / "in", home / "in")
    report = home / "report.json"
    command = [sys.executable, str(HERE / "files_job.py"), "state", str(report)]
    done = subprocess.run(command, cwd=home, env=surroundings(home), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problems.append(f"the uninterrupted run ended with {done.returncode}: {done.stderr[-800:]}")
        return {}
    verdict = judge(home, campaign.files)
    problems += [f"uninterrupted: {problem}" for problem in verdict.problems]
    told = json.loads(report.read_text(encoding="utf-8"))
    read = told["rows_read"].get("lines", 0) - 1  # the row that closes the windows
    late, bad = told["counters"].get("totals.late", 0), told["rows_written"].get("bad-out", 0)
    if read != verdict.rows or verdict.in_windows + late + bad != read:
        problems.append(
            f"counters: {read} of {verdict.rows} rows read, {verdict.in_windows} in windows + {late} late + {bad} bad"
        )
    return {"counters": told, "verdict": asdict(verdict)}


def _negative_control(home: Path, seed: int) -> Verdict:
    """A job whose sinks publish before the manifest, killed in between, must lose or repeat rows."""
    broken = {"FILES_JOB_BROKEN": "1"}
    campaign = campaigns.Campaign(home, seed)
    try:
        for _ in range(3):  # until a kill falls between a publication and its manifest
            campaign.files.drop(10)
            driver = campaign.driver(pause_at="checkpoint.manifest.before", hit=2, **broken)
            before = campaign.published()
            if driver.reaches(campaigns.REACHED):
                driver.kill("group")
            if campaign.published() > before:
                break
        campaign.finish(**broken)
    finally:
        campaign.close()
    return judge(home, campaign.files)


# ------------------------------------------------------------------------------------------------------------- figures


def _check_reach(campaign: campaigns.Campaign, problems: list[str]) -> None:
    kills = campaign.kills
    if sum(kill.in_commit for kill in kills) * 3 < len(kills):
        problems.append("less than a third of the kills came between manifest and confirmation")
    unkilled = sorted(campaign.hits & set(KNOWN) - {kill.place for kill in kills})
    if unkilled:
        problems.append(f"places that were reached and never killed at: {', '.join(unkilled)}")
    if campaign.fenced < 2:
        problems.append(f"{campaign.fenced} of 2 stopped drivers ended fenced")


def _figures(campaign: campaigns.Campaign, verdict: Verdict) -> dict[str, result.Figure]:
    kills = campaign.kills
    return {
        "kills": len(kills),
        "kills_in_commit": sum(kill.in_commit for kill in kills),
        "kills_in_recovery": sum(kill.in_recovery for kill in kills),
        "rows": verdict.rows,
        "lost": verdict.lost,
        "repeated": verdict.repeated,
        "fenced": campaign.fenced,
        "failpoints_hit": len(campaign.hits & set(KNOWN)),
        "failpoints_known": len(KNOWN),
    }


def _print(campaign: campaigns.Campaign, verdict: Verdict, control: Verdict) -> None:
    counts: Counter[tuple[str, str]] = Counter((kill.place, kill.shape) for kill in campaign.kills)
    recoveries = Counter(kill.place for kill in campaign.kills if kill.in_recovery)
    rows = []
    for place in sorted({*KNOWN, *(kill.place for kill in campaign.kills)}):
        shapes = [counts[place, shape] for shape in campaigns.SHAPES]
        phase = "commit" if place in campaigns.COMMIT else ""
        reached = "yes" if place in campaign.hits or sum(shapes) else "no"
        rows.append([place, phase, reached, *shapes, recoveries[place]])
    result.show("kills", ["place", "phase", "reached", "python", "jvm", "group", "in recovery"], rows)
    result.show(
        "rows",
        ["run", "in", "in windows", "late", "bad", "windows", "lost", "repeated"],
        [
            ["killed", *_counts(verdict)],
            ["negative control (must not be 0, 0)", *_counts(control)],
        ],
    )


def _counts(of: Verdict) -> list[int]:
    return [of.rows, of.in_windows, of.late, of.bad, of.windows, of.lost, of.repeated]


if __name__ == "__main__":
    sys.exit(main())
