"""Where the next batch of a Kafka source is read: in the driver or by the executors. Pure.

In the driver a consumer has at hand what comes, so a small batch costs least and is there soonest. Executors read a
backlog with all cores. Which is better changes over at a size that ``bench/kafka_crossover.py`` measures. What counts
is all that waits, not what of it a batch may hold: the consumer brings a backlog one partition after the other, and so
some would wait for others; what executors read is planned, a part of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.sources.base import Limits
from penstock.sources.kafka.offsets import TopicPartition
from penstock.sources.kafka.planning import RowSizes

if TYPE_CHECKING:
    from penstock.sources.kafka.arguments import ReadIn

MOST_HERE: Final = 30_000
"""Rows that wait up to which they are read in the driver."""

HEAVIEST_HERE: Final = 24 * 1024 * 1024
"""Bytes of the same: less than a consumer keeps at hand."""

_MOST_AT_HAND: Final = 100_000
"""Rows of a batch where everything is read in the driver."""


@dataclass(slots=True)
class Places:
    """Chooses for each batch.

    Attributes:
        read_in: what was asked for: ``"driver"``, ``"executors"``, or ``"auto"``, by size.
        is_here: whether the last batch was read in the driver.

    >>> places, sizes, at = Places("auto"), RowSizes(), TopicPartition("orders", 0)
    >>> sizes.learn("orders", rows=1, bytes=100)
    >>> places.choose({at: 20_000}, sizes), places.choose({at: 12_000}, sizes)
    (False, True)
    >>> places.choose({at: 20_000}, sizes), places.choose({at: 40_000}, sizes)
    (True, False)
    """

    read_in: ReadIn
    is_here: bool = False

    def choose(self, waiting: Mapping[TopicPartition, int], sizes: RowSizes) -> bool:
        """Whether the next batch is read in the driver.

        What is read there stays there until there is twice as much as would bring it back: changing over costs.

        Args:
            waiting: how many offsets wait in each partition that may be read.
            sizes: what rows weigh.
        """
        if self.read_in != "auto":
            self.is_here = self.read_in == "driver"
            return self.is_here
        rows, weight = sum(waiting.values()), sizes.weigh(waiting)
        share = 1 if self.is_here else 2
        self.is_here = rows * share <= MOST_HERE and weight * share <= HEAVIEST_HERE
        return self.is_here

    def most(self, limits: Limits) -> int:
        """Most rows of a batch in the driver."""
        most = MOST_HERE if self.read_in == "auto" else _MOST_AT_HAND
        return most if limits.rows is None else min(most, limits.rows)
