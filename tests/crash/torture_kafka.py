"""Kills a Kafka-to-files job at every place it has, and its broker too, and compares with another engine's result.

A process of its own appends rows all the while, in transactions too, of which some are aborted; the broker is killed,
paused and restarted, and partitions are added. What counts in the end is what is committed in the topic.

make torture-kafka                      some tens of kills
make torture-kafka ARGS="--kills 60 --seed 7 --keep"
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from bench import result  # noqa: E402 - found through the path above

from crash import campaign as campaigns  # noqa: E402
from crash import conduct  # noqa: E402
from crash.broker_trouble import BrokerTrouble  # noqa: E402
from crash.kafka_feed import KafkaFeed  # noqa: E402
from crash.verdict import judge  # noqa: E402
from integration.broker import Broker  # noqa: E402
from integration.topics import Topics  # noqa: E402

PER_SECOND = 200


def torture(home: Path, arguments: argparse.Namespace) -> conduct.Outcome:
    """Kills, the verdict on what was published all the same, and the controls."""
    killed = conduct.folder(home, "killed")
    with Broker(home / "broker") as broker:
        topics = Topics(broker.servers)
        with closing(KafkaFeed(broker, topics, killed, arguments.seed, per_second=PER_SECOND)) as feed:
            campaign = _campaign(killed, arguments.seed, feed)
            trouble = _killed(campaign, feed, arguments)
            verdict = judge(killed, feed)
            problems = [*verdict.problems, *campaign.notes, *_noise(campaign)]
            details = conduct.details(campaign, verdict) | {"broker": dict(trouble.done), "steps": feed.steps}
            verdicts = {"killed": verdict}
            if not arguments.short:
                details["uninterrupted"] = _uninterrupted(conduct.folder(home, "whole"), killed, feed, problems)
                conduct.check_reach(campaign, arguments.kills, problems)
        if not arguments.short:
            broken = conduct.folder(home, "broken")
            with closing(KafkaFeed(broker, topics, broken, arguments.seed, per_second=PER_SECOND)) as other:
                control = conduct.negative_control(_campaign(broken, arguments.seed, other), problems)
            verdicts[conduct.CONTROL] = control
            details["negative_control"] = asdict(control)
    conduct.show(campaign, verdicts)
    return conduct.Outcome(conduct.figures(campaign, verdict) | _figures(campaign, feed, trouble), problems, details)


def _figures(campaign: campaigns.Campaign, feed: KafkaFeed, trouble: BrokerTrouble) -> dict[str, result.Figure]:
    return {
        "broker_kills": trouble.done["kill"],
        "broker_pauses": trouble.done["pause"],
        "broker_restarts": trouble.done["restart"],
        "partitions_added": len(trouble.added()),
        "transactions": feed.steps["commit"],
        "transactions_aborted": feed.steps["abort"],
        "stops_cut_off": campaign.cut_off,
        "warnings_of_trouble": sum(life.said.count("has trouble with Kafka") for life in campaign.lives),
    }


def _noise(campaign: campaigns.Campaign) -> list[str]:
    """A broker that is away is told by the job, not by each of its clients again and again."""
    lines = sum("rdkafka#" in line for life in campaign.lives for line in life.said.splitlines())
    return [f"{lines} lines of the client library are in the drivers' logs"] if lines else []


def _killed(campaign: campaigns.Campaign, feed: KafkaFeed, arguments: argparse.Namespace) -> BrokerTrouble:
    """The lives, and what befell the broker meanwhile."""
    try:
        if arguments.short:
            trouble = feed.begin_trouble(arguments.seed, gap=4, pause=3, once=True)
            campaign.strike("sink.commit.before", "group", hit=3)
            campaign.strike("recovery.committed", "python")
        else:
            trouble = feed.begin_trouble(arguments.seed, gap=12, pause=6)
            campaigns.run(campaign, arguments.kills)
            campaign.zombies()
        campaign.finish(again=not arguments.short)
    finally:
        campaign.close()
    return trouble


def _uninterrupted(whole: Path, killed: Path, feed: KafkaFeed, problems: list[str]) -> dict[str, object]:
    """The topic from its beginning, in one go, with all partitions there."""
    shutil.copytree(killed / "in", whole / "in")
    return conduct.uninterrupted(
        whole, "kafka_job.py", feed, problems, flush_rows=feed.partitions, environment=feed.environment
    )


def _campaign(home: Path, seed: int, feed: KafkaFeed) -> campaigns.Campaign:
    return campaigns.Campaign(home, seed, feed, "kafka_job:job", feed.environment, away="Kafka")


if __name__ == "__main__":
    sys.exit(conduct.conduct("torture-kafka", __doc__, torture))
