"""Proves that the topics that were read are those that were planned: a topic's name is not its identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import SourceChanged, SourceUnavailable
from penstock.sources.kafka.start import answered

if TYPE_CHECKING:
    from penstock.sources.kafka.client import Answer, Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """Called after rows were read, on any thread. An id never comes back, so it is enough to look afterwards.

    A consumer goes on in a topic that was deleted and made again without a word: at the same offsets, with other rows.

    Attributes:
        cluster: is asked.
        ids: of the topics that were read, where the cluster has ids.
        goes_on: a restart leaves out what is lost.
        answer: to a question that was asked after the rows were read, if it was.
    """

    cluster: Cluster
    ids: Mapping[str, str]
    goes_on: bool
    answer: Answer[Mapping[str, str | None]] | None = None

    def __call__(self) -> None:
        """See that it is so.

        Raises:
            SourceChanged: a topic was made again under its name.
            SourceUnavailable: nobody can tell now, or a restart reads the new one.
        """
        if not self.ids:
            return
        now = answered(self.answer or self.cluster.ids(list(self.ids)))
        changed = sorted(name for name, id in self.ids.items() if now.get(name, id) not in (id, None))
        if not changed:
            return
        told = f"topic {', '.join(map(repr, changed))} was deleted and made again while it was read"
        if self.goes_on:
            msg = f"{told}; a restart reads the new one from its beginning"
            raise SourceUnavailable(msg)
        msg = f"{told}: give the new topic another name, or the source another uid"
        raise SourceChanged(msg)
