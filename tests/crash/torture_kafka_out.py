"""Kills a Kafka-to-Kafka job at every place it has, and its broker too, and compares what readers of committed
records see with another engine's result.

A process of its own appends rows all the while; the broker is killed, paused and restarted, and partitions are added.

make torture-kafka-out                      some tens of kills
make torture-kafka-out ARGS="--kills 60 --seed 7 --keep"
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from crash import campaign as campaigns  # noqa: E402 - found through the path above
from crash import conduct  # noqa: E402
from crash.broker_trouble import BrokerTrouble  # noqa: E402
from crash.kafka_feed import KafkaFeed  # noqa: E402
from crash.kafka_out_job import OUTPUTS  # noqa: E402
from crash.verdict import Verdict, judge  # noqa: E402
from integration.broker import Broker  # noqa: E402
from integration.topics import Topics  # noqa: E402

PER_SECOND = 200


class TopicsCampaign(campaigns.Campaign):
    """A campaign whose job publishes to topics."""

    topics: Topics

    def topic(self, output: str) -> str:
        return f"{self.feed.topic}-{output}"  # type: ignore[attr-defined]

    def published(self) -> set[str]:
        """How far readers of committed records can read, in names that show no generation."""
        return {
            f"{output}.{partition}-0-{end}.offset"
            for output in OUTPUTS
            for partition, end in self.topics.ends(self.topic(output)).items()
        }

    def keep(self) -> None:
        """What readers of committed records see, as files, which is what the verdict goes by."""
        for output in OUTPUTS:
            folder = self.home / output
            folder.mkdir()
            lines = [(each.value or b"").decode() for each in self.topics.read(self.topic(output))]
            (folder / "part-0.json").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            ends = [self.topics.ends(self.topic(output), committed=committed) for committed in (True, False)]
            if ends[0] != ends[1]:
                self.notes.append(f"{output}: the last stable offset stays behind: {ends}")


def torture(home: Path, arguments: argparse.Namespace) -> conduct.Outcome:
    """Kills, the verdict on what was published all the same, and the control."""
    killed, broken = conduct.folder(home, "killed"), conduct.folder(home, "broken")
    with Broker(home / "broker") as broker:
        topics = Topics(broker.servers)
        with closing(KafkaFeed(broker, topics, killed, arguments.seed, per_second=PER_SECOND)) as feed:
            campaign = _campaign(killed, arguments.seed, feed, topics)
            trouble = _killed(campaign, feed, arguments)
            campaign.keep()
            verdict = judge(killed, feed)
            problems = [*verdict.problems, *campaign.notes]
        with closing(KafkaFeed(broker, topics, broken, arguments.seed, per_second=PER_SECOND)) as other:
            control = _control(_campaign(broken, arguments.seed, other, topics), problems)
        if not arguments.short:
            conduct.check_reach(campaign, arguments.kills, problems)
    details = conduct.details(campaign, verdict) | {"broker": dict(trouble.done), "negative_control": asdict(control)}
    conduct.show(campaign, {"killed": verdict, conduct.CONTROL: control})
    figures = conduct.figures(campaign, verdict) | {
        "broker_kills": trouble.done["kill"],
        "broker_pauses": trouble.done["pause"],
        "control_repeated": control.repeated,
    }
    return conduct.Outcome(figures, problems, details)


def _campaign(home: Path, seed: int, feed: KafkaFeed, topics: Topics) -> TopicsCampaign:
    for output in OUTPUTS:
        topics.make(f"{feed.topic}-{output}", 2)
    campaign = TopicsCampaign(home, seed, feed, "kafka_out_job:job", feed.environment)
    campaign.topics = topics
    return campaign


def _killed(campaign: TopicsCampaign, feed: KafkaFeed, arguments: argparse.Namespace) -> BrokerTrouble:
    """The lives, and what befell the broker meanwhile."""
    try:
        if arguments.short:
            trouble = feed.begin_trouble(arguments.seed, gap=4, pause=3, once=True)
            campaign.strike("sink.kafka.marked", "group", hit=2)
            campaign.strike("sink.kafka.committed", "python")
        else:
            trouble = feed.begin_trouble(arguments.seed, gap=12, pause=6)
            campaigns.run(campaign, arguments.kills)
            campaign.zombies()
        campaign.finish(again=not arguments.short)
    finally:
        campaign.close()
    return trouble


def _control(campaign: TopicsCampaign, problems: list[str]) -> Verdict:
    """A job that commits its marker apart from the rows, killed in between, must repeat rows."""
    broken = {"TORTURE_BROKEN": "1"}
    try:
        driver = campaign.driver(pause_at="sink.kafka.begun", hit=2, **broken)
        if driver.reaches(campaigns.REACHED):
            driver.kill("group")
        campaign.finish(again=False, **broken)
    finally:
        campaign.close()
    campaign.keep()
    verdict = judge(campaign.home, campaign.feed)
    if not verdict.repeated:
        problems.append("the negative control, whose marker is apart from the rows, repeated nothing")
    return verdict


if __name__ == "__main__":
    sys.exit(conduct.conduct("torture-kafka-out", __doc__, torture))
