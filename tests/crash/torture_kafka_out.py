"""Kills a Kafka-to-Kafka job at every place it has, and its broker too, and compares what readers of committed
records see with another engine's result.

A process of its own appends rows all the while; the broker is killed, paused and restarted, and partitions are added.
Between the kills the job is rewound behind results that readers have seen, and loses an executor while two publish.

make torture-kafka-out                      some tens of kills
make torture-kafka-out ARGS="--kills 60 --seed 7 --keep"
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from crash import campaign as campaigns  # noqa: E402 - found through the path above
from crash import conduct  # noqa: E402
from crash.broker_trouble import BrokerTrouble  # noqa: E402
from crash.driver import executors, surroundings  # noqa: E402
from crash.kafka_feed import KafkaFeed  # noqa: E402
from crash.kafka_out_job import OUTPUTS, SHARDS  # noqa: E402
from crash.verdict import Verdict, judge  # noqa: E402
from integration.broker import Broker  # noqa: E402
from integration.topics import Record, Topics  # noqa: E402

PER_SECOND = 200

CLUSTER = {"PENSTOCK_MASTER": "local-cluster[2,1,1024]", SHARDS: "2"}
"""Two executors, processes of their own, and two producers for each topic."""

LATER = (("sink.kafka.begun", "group"), ("sink.kafka.produced", "jvm"), ("sink.kafka.committed", "python"))
"""Kills after the rewind and the loss of an executor."""


class TopicsCampaign(campaigns.Campaign):
    """A campaign whose job publishes to topics."""

    topics: Topics
    undone: dict[str, dict[int, range]] = {}  # noqa: RUF012 - replaced, never changed
    """For each output and partition the records, counted from the first, that a rewind left to readers."""

    def rewind(self) -> None:
        """Go back behind a life whose results readers have seen. What the entry announces comes again, and no more."""
        self.look(checkpoints=3)
        self._penstock("savepoint", "create", "torture", "before")
        before = self._counts()
        self.look(checkpoints=4)
        after = self._counts()
        said = json.loads(self._penstock("rewind", "torture", "before", "--yes", "--json"))
        announced = {each["uid"] for each in said["again"]}
        self.undone = {
            output: {partition: range(before[output][partition], end) for partition, end in ends.items()}
            for output, ends in after.items()
        }
        for output, partitions in self.undone.items():
            seen = sum(len(each) for each in partitions.values())
            if bool(seen) != (OUTPUTS[output] in announced):
                self.notes.append(f"{output}: readers saw {seen} records of what was rewound, announced: {announced}")

    def lose_executor(self) -> bool:
        """Kill one of two executors before both publish; the job goes on by itself."""
        driver = self.driver(pause_at="sink.commit.before", hit=2, **CLUSTER)
        if not driver.reaches(campaigns.REACHED):
            self.notes.append(f"the driver that was to lose an executor came to no commit: {driver.tail()}")
            return False
        executors(driver)[0].kill()
        mark = campaigns.entries(self.home)
        driver.release()
        self._running(driver, mark + 4)
        self._require(driver.stop(campaigns.STOPPED), 0, driver, "stopped after it had lost an executor")
        return True

    def _penstock(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "penstock", *arguments, "--state", "state"]
        around = surroundings(self.home) | dict(self.environment)
        done = subprocess.run(command, cwd=self.home, env=around, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}"
            raise AssertionError(msg)
        return done.stdout

    def _counts(self) -> dict[str, Counter[int]]:
        """How many records of each partition readers see."""
        return {name: Counter(each.partition or 0 for each in self.topics.read(self.topic(name))) for name in OUTPUTS}

    def _that_count(self, output: str) -> list[Record]:
        """The records of an output, without those that a rewind left to readers and made again."""
        by_partition: dict[int, list[Record]] = defaultdict(list)
        for each in self.topics.read(self.topic(output)):
            by_partition[each.partition or 0].append(each)
        undone = self.undone.get(output, {})
        return [
            each
            for partition, records in by_partition.items()
            for number, each in enumerate(records)
            if number not in undone.get(partition, ())
        ]

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
            lines = [(each.value or b"").decode() for each in self._that_count(output)]
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
            trouble, executors_lost = _killed(campaign, feed, arguments)
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
        "rewound_records": sum(len(each) for output in campaign.undone.values() for each in output.values()),
        "executors_lost": executors_lost,
        "control_repeated": control.repeated,
    }
    return conduct.Outcome(figures, problems, details)


def _campaign(home: Path, seed: int, feed: KafkaFeed, topics: Topics) -> TopicsCampaign:
    for output in OUTPUTS:
        topics.make(f"{feed.topic}-{output}", 2)
    campaign = TopicsCampaign(home, seed, feed, "kafka_out_job:job", feed.environment, away="Kafka")
    campaign.topics = topics
    return campaign


def _killed(campaign: TopicsCampaign, feed: KafkaFeed, arguments: argparse.Namespace) -> tuple[BrokerTrouble, int]:
    """The lives; what befell the broker meanwhile, and how many executors were lost."""
    lost = 0
    try:
        if arguments.short:
            trouble = feed.begin_trouble(arguments.seed, gap=4, pause=3, once=True)
            campaign.strike("sink.kafka.marked", "group", hit=2)
            campaign.strike("sink.kafka.committed", "python")
        else:
            trouble = feed.begin_trouble(arguments.seed, gap=12, pause=6)
            campaigns.run(campaign, arguments.kills - len(LATER))
            campaign.rewind()
            lost = int(campaign.lose_executor())
            for place, shape in LATER:
                campaign.strike(place, shape)
            campaign.zombies()
        campaign.finish(again=not arguments.short)
    finally:
        campaign.close()
    return trouble, lost


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
