"""A consumer of confluent-kafka in the driver's hands. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sources.kafka.fetch import Message
    from penstock.sources.kafka.offsets import Offsets, TopicPartition


class LiveConsumer:
    """A consumer that fetches what comes, in threads of the client library."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._closed = False

    def add(self, at: Offsets) -> None:
        """Fetch these partitions too, from these offsets on."""
        from confluent_kafka import TopicPartition as Place

        self._consumer.incremental_assign([Place(part.topic, part.partition, offset) for part, offset in at.items()])

    def drop(self, parts: Collection[TopicPartition]) -> None:
        """Fetch these no more, and forget what was fetched of them."""
        from confluent_kafka import TopicPartition as Place

        self._consumer.incremental_unassign([Place(part.topic, part.partition) for part in parts])

    def take(self, most: int, *, wait: float = 0) -> Sequence[Message]:
        """What is there by now; if nothing is, one that comes while it waits."""
        if wait:
            first: list[Message] = self._consumer.consume(1, timeout=wait)
            return first + self._consumer.consume(most - 1, timeout=0) if first and most > 1 else first
        taken: Sequence[Message] = self._consumer.consume(most, timeout=0)
        return taken

    def close(self) -> None:
        """Release the connection."""
        if not self._closed:
            self._closed = True
            self._consumer.close()
