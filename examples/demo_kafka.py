"""A real Kafka broker, orders appended live, and a pipeline that is killed with -9 and started again half-way.

The sums go to a topic, exactly once. At the end every order is counted, as a reader of committed records sees the
topic. The pipeline is `kafka_orders.py`; with --keep a copy lies beside its output.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from confluent_kafka import Producer  # noqa: E402

from integration.broker import QUIET, Broker, BrokerFailed  # noqa: E402 - found through the path above
from integration.broker_jars import JarsUnavailable, jars_folder  # noqa: E402
from integration.topics import Topics  # noqa: E402
from penstock.checkpoint.entries import Manifest  # noqa: E402
from penstock.cli.demo import (  # noqa: E402
    Totals,
    order_line,
    print_verdict,
    read_published,
    run_in_process,
)
from penstock.cli.output import Output  # noqa: E402
from penstock.cli.process import kill_process_tree, process_tree  # noqa: E402
from penstock.control.client import JobDirectory  # noqa: E402

PARTITIONS = 4


class _Shop(threading.Thread):
    """Appends orders to the partitions of a topic in turn, evenly, and counts what a pipeline must make of them."""

    def __init__(self, servers: str, topic: str, rows: int, per_second: int) -> None:
        super().__init__(daemon=True)
        self.appended, self.totals = 0, Totals()
        self.was_killed = threading.Event()
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **QUIET})
        self._topic, self._rows, self._per_second = topic, rows, per_second

    def run(self) -> None:
        chance, began = random.Random(42), time.monotonic()  # noqa: TID251 - orders come in real time
        while self.appended < self._rows:
            due = (time.monotonic() - began) * self._per_second  # noqa: TID251
            # However slow the pipeline is on its way up, some orders come after it was killed.
            most = self._rows if self.was_killed.is_set() else self._rows * 3 // 4
            while self.appended < min(due, most):
                line = order_line(self.appended, self._rows, chance, self.totals)
                self._producer.produce(self._topic, line.encode(), partition=self.appended % PARTITIONS)
                self.appended += 1
            self._producer.poll(0.05)
        self._producer.flush()


class _Demo:
    def __init__(self, output: Output, home: Path, temporary: str, rows: int, per_second: int) -> None:
        self.output, self.home, self.temporary = output, home, temporary
        self.rows, self.per_second = rows, per_second

    def run(self) -> bool:
        """Whether every order was found once."""
        self.say("1  fetch a Kafka broker: 44 MB of jars, once, by Maven or PySpark's Ivy, checked by their hashes")
        with self.output.err.status("fetching"):
            self.say(f"   they are in {jars_folder()}", "dim")
        self.say("2  start it: one node, on this machine's loopback interface only; it ends with this demo")
        with Broker(self.home / "broker") as broker:
            topics = Topics(broker.servers)
            topic, totals = topics.create("orders", PARTITIONS), topics.create("totals", 2)
            self.say(f"   it listens on {broker.servers}; topic {topic} has {PARTITIONS} partitions", "dim")
            return self.shop(broker.servers, topic, topics, totals)

    def shop(self, servers: str, topic: str, topics: Topics, totals: str) -> bool:
        self.say(f"3  run the pipeline: sum by user and minute, exactly once, into topic {totals}")
        shop = _Shop(servers, topic, self.rows, self.per_second)
        ends = [len(range(partition, self.rows, PARTITIONS)) for partition in range(PARTITIONS)]
        where = {
            "ORDERS_SERVERS": servers,
            "ORDERS_TOPIC": topic,
            "ORDERS_ENDS": json.dumps(ends),
            "ORDERS_TOTALS": totals,
        }
        shutil.copy(HERE / "kafka_orders.py", self.home)
        code = self.drive(where, lambda line, pid: self.open_or_kill(line, pid, shop))
        if code != -signal.SIGKILL:
            self.say(f"it ended with {code} before it could be killed", "red")
            return False
        self.say("5  start it again: it goes on from that checkpoint, and ends at the last order")
        shop.was_killed.set()
        if (code := self.drive(where, lambda _line, _pid: False)) != 0:
            self.say(f"the second run ended with {code}", "red")
            return False
        shop.join()
        self.say(f"6  read topic {totals} with a plain consumer, isolation.level=read_committed, and compare")
        (self.home / "out").mkdir()
        keep_totals(topics, totals, self.home / "out")
        return print_verdict(self.output, shop.totals, read_published(self.home / "out", self.home / "bad"))

    def drive(self, where: dict[str, str], stop: Callable[[str, int], bool]) -> int:
        return run_in_process(
            self.output, "kafka_orders:orders", self.home, self.temporary, stop=stop, environment=where
        )

    def open_or_kill(self, line: str, pid: int, shop: _Shop) -> bool:
        """At the first checkpoint orders begin to come; at one that has a sixth of them, whether all is killed."""
        point = JobDirectory(self.home / "state", "orders").read().restore_point if " checkpoint " in line else None
        if point is None:
            return False
        if not shop.ident:  # not started yet
            self.say(f"4  append {self.rows:,} orders, {self.per_second:,} a second, from now on")
            shop.start()
        read = _orders_read(point)
        if read < self.rows // 6:
            return False
        members = len(process_tree(pid))
        self.say(
            f"   kill -9 to all {members} processes, the JVM too: {read:,} orders are in checkpoint "
            f"{point.checkpoint}, {shop.appended:,} are in the topic, and more come",
            "bold red",
        )
        kill_process_tree(pid)
        return True

    def say(self, text: str, style: str = "") -> None:
        self.output.note(text, style=style)


def keep_totals(topics: Topics, totals: str, folder: Path) -> None:
    """Write what a reader of committed records sees of a topic into a file, a line for each record."""
    lines = [(record.value or b"").decode() + "\n" for record in topics.read(totals)]
    (folder / "part-0.json").write_text("".join(lines), encoding="utf-8")


def _orders_read(point: Manifest) -> int:
    """What a checkpoint of the pipeline's one source has read: the sum of its offsets."""
    positions = [snapshot.position.detail for snapshot in point.tasks if snapshot.position]
    return sum(sum(topic["next"].values()) for each in positions for topic in each["topics"].values())


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="orders in all")
    parser.add_argument("--per-second", type=int, default=2_000, help="orders appended each second")
    parser.add_argument("--keep", action="store_true", help="leave the folder with pipeline, state and output")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # unwinds: broker, pipeline and folder go too
    output, home = Output(), Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        # Paths of Unix sockets must be short, so Spark's temporary files have a folder of their own.
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
            return 0 if _Demo(output, home, temporary, arguments.rows, arguments.per_second).run() else 1
    except (JarsUnavailable, BrokerFailed) as error:
        output.note(str(error), style="red")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if arguments.keep:
            output.note(f"kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
