"""What befalls a broker while a job reads from it: partitions added, pauses, kills, restarts. Knows nothing of the job.

One after the other on a thread of its own, with a gap of chance between, so that each meets the job anywhere: at work,
in a commit, in recovery, or dead. At the end the broker is well, and each has happened at least once.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable

from integration.broker import Broker
from integration.topics import Topics

ACTS = ("add_partition", "pause", "kill", "pause", "restart", "pause", "kill")
FEW = ("add_partition", "kill", "pause")
MOST_PARTITIONS = 8


class BrokerTrouble:
    """Troubles one broker, and one topic on it.

    Args:
        knows: whether the job has a partition in a checkpoint.
        chance: chooses the gaps, at most ``gap`` seconds, and the pauses, at most ``pause`` seconds.
        once: only few things happen, each once; otherwise all, again and again.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        chance: random.Random,
        knows: Callable[[int], bool],
        *,
        gap: float,
        pause: float,
        once: bool = False,
    ) -> None:
        self.done: Counter[str] = Counter()
        self.found: dict[int, int] = {}
        """Where an added partition ended when the job was seen to know it: what is behind was appended after that."""
        self._broker = broker
        self._topics = Topics(broker.servers)
        self._topic = topic
        self._chance = chance
        self._knows = knows
        self._gap = gap
        self._pause = pause
        self._once = once
        self._begin = self._last = len(self._topics.ends(topic))
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trouble", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until each has happened and the broker is well.

        Raises:
            AssertionError, BrokerFailed: the broker did not become well.
        """
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def added(self) -> range:
        """The partitions that were added."""
        return range(self._begin, self._last)

    # ------------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        acts = {
            "add_partition": self._add_partition,
            "pause": self._pause_a_while,
            "kill": self._kill,
            "restart": self._broker.restart,
        }
        try:
            names = iter(FEW) if self._once else itertools.cycle(ACTS)
            wanted = set(FEW if self._once else ACTS)
            while not (self._over.is_set() and wanted <= self.done.keys()):
                self._rest()
                if (name := next(names, None)) is not None:
                    acts[name]()
                    self.done[name] += 1
        except BaseException as error:
            self._failure = error

    def _rest(self) -> None:
        for _ in range(int(self._chance.random() * self._gap * 10)):
            if self._over.wait(0.1):
                break
            for partition in self.added():
                if partition not in self.found and self._knows(partition):
                    self.found[partition] = self._topics.ends(self._topic, committed=False)[partition]

    def _add_partition(self) -> None:
        if self._last < MOST_PARTITIONS:
            self._topics.add_partitions(self._topic, self._last + 1)
            self._last += 1

    def _pause_a_while(self) -> None:
        self._broker.pause()
        threading.Event().wait(self._pause * (0.3 + 0.7 * self._chance.random()))  # how long is what is tried
        self._broker.resume()

    def _kill(self) -> None:
        self._broker.kill()
        threading.Event().wait(self._chance.random())  # a job may look at this moment, or not
        self._broker.start()
