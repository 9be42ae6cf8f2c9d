"""Named places where a test can crash, stop or break a process.

A failpoint costs two look-ups while nothing is armed. Arm it in code::

    with failpoints.armed("checkpoint.manifest.written", "raise"):
        ...

or for a whole process by its environment: ``PENSTOCK_FAILPOINTS="sink.published=kill@2;log.claim.before=pause:/tmp/x"``
kills the process (SIGKILL) at its second publication. Actions: ``kill``, ``killpg`` (the whole process group),
``raise`` (``Crash``), ``pause:FILE`` (until FILE is gone) and ``error:ENOSPC`` (or another errno's name).
``@hit`` counts from 1; without it every hit acts. ``PENSTOCK_FAILPOINTS_RECORD=FILE`` appends the name of every hit.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.errors import InternalError, SettingsError, did_you_mean

FAILPOINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "checkpoint.manifest.before": "all tasks have acknowledged, nothing of the manifest is written",
        "checkpoint.manifest.written": "the manifest is in the log, no task has been notified",
        "gc.delete.after": "a condemned file is deleted",
        "gc.delete.before": "a file is condemned in the log and not yet deleted",
        "export.file.copied": "a file of a checkpoint is copied, the export is not yet one",
        "export.pinned": "a checkpoint has a name for a while, nothing is copied",
        "export.written": "the export is whole, its checkpoint still has the name",
        "import.claimed": "an exported folder is this log's alone, nothing of it is copied",
        "import.file.before": "a file of an export is about to be copied into the job's state",
        "import.file.copied": "a file of an export is copied, no entry names it",
        "import.release.before": "an export was taken over, one of its files is about to be deleted there",
        "local.create.linked": "a file has its name, its folder is not yet synced",
        "local.create.temp_written": "a file's content is durable under a temporary name",
        "local.move.before": "nothing is renamed yet",
        "local.move.renamed": "a file is renamed, the folders are not yet synced",
        "local.settle.synced": "a file's content is durable, its name may not be",
        "log.append.before": "an entry other than a claim or a manifest is about to be written",
        "log.append.written": "an entry other than a claim or a manifest is in the log",
        "log.claim.before": "the log is read, the claim is about to be written",
        "log.claim.written": "the claim is in the log, nothing has been read under it",
        "log.trim.before": "an entry below the floor is about to be deleted",
        "received.block.before": "rows were received, nothing of their block is written",
        "received.block.durable": "a block of received rows is durable, nobody was told",
        "received.clean.before": "a block that no checkpoint reads any more is about to be deleted",
        "received.keys.written": "the keys of requests are in a file of their own, their blocks are not deleted",
        "received.merge.before": "small blocks of received rows are about to be merged into one file",
        "received.merge.delete": "blocks of received rows are in a merged file, one of their own files still exists",
        "received.merge.written": "a merged file of received rows is durable, all files of its blocks still exist",
        "received.seal.before": "the blocks of an older generation are about to be sealed",
        "received.skip.before": "the log says that a damaged block is skipped, and it is still there",
        "received.sealed": "all older generations of a receiver are sealed, none of their blocks is read",
        "recovery.committed": "what the log held open is published, nothing is restored",
        "recovery.restored": "state and positions are restored, no source has started",
        "recovery.delete.before": "a file whose deletion was recorded is about to be deleted again",
        "sink.commit.before": "a checkpoint is in the log, its output is not published",
        "sink.files.before_move": "a staged file is about to get its final name",
        "sink.for_each.called": "a function of for_each_batch has returned, that is not noted anywhere",
        "sink.files.moved": "one file of an epoch is published, others may not be",
        "sink.kafka.begun": "a transaction of Kafka is begun, nothing is in it",
        "sink.kafka.committed": "a transaction of Kafka is committed, that is not noted anywhere",
        "sink.kafka.marked": "the records of an epoch and its marker are in a transaction that is not committed",
        "sink.kafka.produced": "the records of an epoch are in a transaction, its marker is not",
        "sink.published": "output is published, that is not recorded",
        "sink.staged": "a batch is staged, in no checkpoint",
        "sink.prepared": "an epoch is durable and not yet acknowledged",
        "sink.voided": "a discarded committable can no longer be published",
        "source.files.moved": "a file that a checkpoint holds has left its directory, the position still names it",
        "source.files.noted": "files of a checkpoint may be removed, none of them is",
        "source.files.record": "the next record of removed files is about to take the place of the one that was read",
        "source.files.put_back": "an archived file is back in its directory after a rewind, others may not be",
        "source.polled": "a batch is planned and not yet sent",
        "state.compacted": "layers are merged, nothing durable names the result yet",
        "state.layer.before_write": "a layer is about to be written",
        "state.layer.durable": "a layer is durable and not yet acknowledged",
        "state.layer.written": "a layer, or a part of a large one, is written and not yet durable",
        "state.part.loaded": "some of a step's restored rows are in memory, others may not be",
    }
)
"""Every failpoint and what is true there. Hitting one that is not declared is an ``InternalError``."""


class FailpointCrash(BaseException):
    """Raised by the action ``raise``; not an ``Exception``, so that no handler on the way catches it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    act: Callable[[str], None]
    hit: int | None


class _Register:
    """The armed failpoints, and how often each failpoint was hit."""

    def __init__(self) -> None:
        self.plans: dict[str, _Plan] = {}
        self.record: Path | None = None
        self.hits: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def is_active(self) -> bool:
        return bool(self.plans) or self.record is not None


_register = _Register()
_active = False


def failpoint(name: str) -> None:
    """Mark a place where a test may strike.

    Raises:
        InternalError: the name is not declared in ``FAILPOINTS``.
    """
    if name not in FAILPOINTS:
        msg = f"Failpoint {name!r} is not declared in penstock.failpoints.FAILPOINTS."
        raise InternalError(msg)
    if _active:
        _hit(name)


def _hit(name: str) -> None:
    with _register.lock:
        _register.hits[name] += 1
        count = _register.hits[name]
        plan = _register.plans.get(name)
        if _register.record is not None:
            with _register.record.open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
    if plan is not None and plan.hit in {None, count}:
        plan.act(name)


def arm(name: str, action: str, *, hit: int | None = None) -> None:
    """Act at a failpoint, at its ``hit``-th hit from now on or at each.

    Raises:
        SettingsError: no such failpoint or action.
    """
    if name not in FAILPOINTS:
        hint = did_you_mean(name, FAILPOINTS, otherwise=f"Failpoints: {', '.join(sorted(FAILPOINTS))}.")
        msg = f"Failpoint {name!r} does not exist{hint}"
        raise SettingsError(msg)
    if hit is not None and hit < 1:
        msg = f"Failpoint {name!r} counts hits from 1, and got {hit}."
        raise SettingsError(msg)
    with _register.lock:
        _register.plans[name] = _Plan(_action(name, action), hit)
        _register.hits[name] = 0
        _refresh()


def disarm(name: str | None = None) -> None:
    """Disarm one failpoint, or all."""
    with _register.lock:
        if name is None:
            _register.plans.clear()
        else:
            _register.plans.pop(name, None)
        _refresh()


@contextmanager
def armed(name: str, action: str, *, hit: int | None = None) -> Iterator[None]:
    """Arm a failpoint for the length of a ``with`` block."""
    arm(name, action, hit=hit)
    try:
        yield
    finally:
        disarm(name)


def reached() -> Mapping[str, int]:
    """How often each failpoint was hit while any was armed. For messages: only differences are meaningful."""
    with _register.lock:
        return dict(_register.hits)


def record_to(path: Path | None) -> None:
    """Append the name of every hit to a file, or stop doing so."""
    with _register.lock:
        _register.record = path
        _refresh()


def load(environment: Mapping[str, str]) -> None:
    """Arm the failpoints of the environment; called once at import with that of the process.

    Raises:
        SettingsError: a malformed value.
    """
    for text in filter(None, (part.strip() for part in environment.get("PENSTOCK_FAILPOINTS", "").split(";"))):
        name, equals, action = text.partition("=")
        action, _, hit = action.partition("@")
        if not equals or (hit and not hit.isdigit()):
            msg = f"PENSTOCK_FAILPOINTS: {text!r} is not name=action or name=action@hit."
            raise SettingsError(msg)
        arm(name.strip(), action.strip(), hit=int(hit) if hit else None)
    record = environment.get("PENSTOCK_FAILPOINTS_RECORD")
    if record:
        record_to(Path(record))


def _refresh() -> None:
    global _active  # noqa: PLW0603 - one flag for the process, read at every failpoint
    _active = _register.is_active


def _action(name: str, action: str) -> Callable[[str], None]:
    verb, _, argument = action.partition(":")
    if verb == "kill" and not argument:
        return lambda _: os.kill(os.getpid(), signal.SIGKILL)
    if verb == "killpg" and not argument:
        return lambda _: os.killpg(os.getpgrp(), signal.SIGKILL)
    if verb == "raise" and not argument:
        return _raise_crash
    if verb == "pause" and argument:
        return lambda _: _wait_until_gone(Path(argument))
    number = getattr(errno, argument, None) if argument.startswith("E") else None
    if verb == "error" and isinstance(number, int):
        return lambda place: _raise_error(number, place)
    msg = f"Failpoint {name!r} has an unknown action {action!r}. Use kill, killpg, raise, pause:FILE or error:ERRNO."
    raise SettingsError(msg)


def _raise_crash(name: str) -> None:
    raise FailpointCrash(name)


def _raise_error(number: int, name: str) -> None:
    raise OSError(number, os.strerror(number), name)


def _wait_until_gone(path: Path) -> None:
    """Block this thread until the file is gone."""
    waiting = threading.Event()
    while path.exists():
        waiting.wait(0.01)


load(os.environ)
