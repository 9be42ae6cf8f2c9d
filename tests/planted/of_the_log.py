"""Planted bugs: the log and its owner (L)."""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint import entry_codec, log, paths
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, LogWriter, OwnedLog
from penstock.control.client import OwnerCheck
from penstock.errors import StorageFailed
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.handles import EntryNumber
from penstock.interfaces import operator, sink
from penstock.job import wiring
from planted.bug import bug
from simulation import process
from simulation.fibers import FiberLock
from simulation.process import Driver


@bug("L1", "claims hold no token: two equal claims are one")
def _(put):
    real = Log._claim_entry

    def claim_entry(self, read, claim):
        body = replace(claim, host="same", pid=1, started=0)
        return replace(real(self, read, body), token="same", log_id=read.log_id or "same")

    put(Log, "_claim_entry", claim_entry)


@bug("L2", "what was read before the claim is not read again")
def _(put):
    def claim(self, claim, **_):
        read = self.read()
        while True:
            entry = self._claim_entry(read, claim)
            if self._writer.take(entry):
                return OwnedLog(self._filesystem, self._writer, entry, log._extended(read, entry))
            fresh = self.read()
            read = replace(read, tail=fresh.tail, tail_hash=fresh.tail_hash)

    put(Log, "claim", claim)


@bug("L2-again", "the read under a claim is not repeated: a restart is fenced by itself", core="core/test_log.py")
def _(put):
    put(Log, "_read_under_claim", lambda self, *, past_unreadable: self.read(past_unreadable=past_unreadable))


@bug("L3", "a write of unknown outcome is resolved by reading: not found is not written")
def _(put):
    def take(self, entry):
        path, data = paths.entry(entry.number), entry_codec.encode(entry)
        try:
            created = self._filesystem.create(path, data) is Created.CREATED
        except UnknownOutcome as error:
            if self._filesystem.read(path) is None:
                raise StorageFailed("not written") from error
            created = False
        return (created or self._filesystem.read(path) == data) and self.is_newest(entry.number)

    put(LogWriter, "take", take)


@bug("L4", "nobody looks for a higher number after creating an entry", core="core/test_log.py")
def _(put):
    put(LogWriter, "is_newest", lambda self, number: True)


@bug("L5", "an entry of somebody else is stepped over, not a fence")
def _(put):
    def append(self, body):
        with self._lock:
            while True:
                number = EntryNumber(self.history.tail + 1)
                entry = replace(self._claim, number=number, previous=self.history.tail_hash, body=body)
                if self._writer.take(entry):
                    self.history = log._extended(self.history, entry)
                    return number
                self.history = log.read_history(self._filesystem, "sim")

    put(OwnedLog, "append", append)


@bug("L5-target", "a tool does not check its target again under its claim")
def _(put):
    put(History, "restorable", property(lambda self: {key: manifest for key, (_, manifest) in self.manifests.items()}))


@bug("L6", "a restart inside the driver goes on under the old claim")
def _(put):
    real = process.Process.claim

    def claim(self, **options):
        if not isinstance(self, Driver):
            return real(self, **options)
        if not hasattr(self, "kept"):
            self.kept = real(self, **options)
        self.kept._lock = FiberLock()
        return self.kept

    put(process.Process, "claim", claim)


@bug("L7", "names of layers do not carry the generation")
def _(put):
    real = operator.OperatorContext
    put(wiring, "OperatorContext", lambda **fields: real(**{**fields, "folder": f"state/{fields['uid']}/0"}))


@bug("L7-staged", "names of staged output do not carry the generation")
def _(put):
    real = sink.SinkContext
    put(
        wiring,
        "SinkContext",
        lambda **fields: real(**{**fields, "generation": 0, "staging": f"staged/{fields['uid']}/0"}),
    )


@bug("L8", "an entry's content appears after its name", core="core/test_local_filesystem.py")
def _(put):
    import os

    from penstock.filesystem.local import LocalFileSystem

    def create(self, path, data):
        place = self._path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return Created.EXISTS
        os.write(handle, data)
        os.close(handle)
        return Created.CREATED

    put(LocalFileSystem, "create", create)


@bug("L9", "a start that loses its number to another start goes on", core="core/test_log.py core/test_log_races.py")
def _(put):
    real = Log.claim
    put(Log, "claim", lambda self, claim, **options: real(self, claim, **{**options, "take_over": True}))


@bug("L9-ask", "a start does not ask the living owner, and fences it")
def _(put):
    put(OwnerCheck, "__call__", lambda self: None)


@bug("L9-answer", "a start that a living owner answers goes on, and fences it")
def _(put):
    real = OwnerCheck._ask

    def ask(self, history):
        real(self, history)

    put(OwnerCheck, "_ask", ask)
