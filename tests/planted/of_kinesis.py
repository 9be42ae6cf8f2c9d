"""Planted bugs of the Kinesis checkpointer and its lease table: at least one for each of the rows K1 to K15."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from penstock.connectors.kinesis import checkpointer, lease_export, lease_table, ranges
from penstock.connectors.kinesis.checkpointer import KinesisCheckpointer, retry_random
from penstock.connectors.kinesis.lease_commits import LeaseCommits
from penstock.connectors.kinesis.lease_export import LeaseExporter
from penstock.connectors.kinesis.lease_table import LeaseClaim, LeaseTable
from penstock.connectors.kinesis.positions import After
from penstock.connectors.kinesis.reader import KinesisReader
from penstock.connectors.kinesis.timer import MachineTimerClock, RecurringTimer
from penstock.errors import LeaseLost, LeaseTableUnavailable
from planted.bug import bug

ROWS = "core/test_kinesis_checkpointer.py::"


# ---- the timer -------------------------------------------------------------------------------------------------------


@bug("row-K1-own-clock", "the timer goes by the machine's clock", core=f"{ROWS}test_K1", blind=True)
def _(put):
    real = RecurringTimer.__init__
    put(
        RecurringTimer,
        "__init__",
        lambda self, _clock, interval, function, name: real(self, MachineTimerClock(), interval, function, name),
    )


@bug("row-K1-nameless", "the thread is not named after its worker", core=f"{ROWS}test_K1", blind=True)
def _(put):
    real = RecurringTimer.__init__
    put(
        RecurringTimer,
        "__init__",
        lambda self, clock, interval, function, _name: real(self, clock, interval, function, "Kinesis Checkpointer"),
    )


@bug("row-K1-not-started", "the timer waits for the first shard", core=f"{ROWS}test_K1", blind=True)
def _(put):
    start = RecurringTimer.start
    put(RecurringTimer, "start", lambda _self: None)
    real = KinesisCheckpointer.set_checkpointer

    def set_checkpointer(self, shard, each):
        with suppress(RuntimeError):
            start(self._timer)
        real(self, shard, each)

    put(KinesisCheckpointer, "set_checkpointer", set_checkpointer)


@bug("row-K7-dies", "what a tick throws ends the timer", core=f"{ROWS}test_K7", blind=True)
def _(put):
    def checkpoint_all(self):
        for shard in tuple(self._checkpointers):
            self._checkpoint(shard)

    def run(self):
        with suppress(Exception):
            while self._wait():
                self._next += self._interval
                self._function()

    put(KinesisCheckpointer, "_checkpoint_all", checkpoint_all)
    put(RecurringTimer, "_run", run)


# ---- which shards are written, and when ------------------------------------------------------------------------------


@bug("row-K2-first", "the first checkpointer of a shard stays", core=f"{ROWS}test_K2", blind=True)
def _(put):
    real = KinesisCheckpointer.set_checkpointer

    def set_checkpointer(self, shard, each):
        if shard not in self._checkpointers:
            real(self, shard, each)

    put(KinesisCheckpointer, "set_checkpointer", set_checkpointer)


def checkpointing(*, advances=True, before=False, text=False, sub=True, skips_quietly=True):
    """``_checkpoint`` with deviations."""

    def rank(position):
        if text:
            return str(position.seq), position.sub
        return (position.seq, position.sub) if sub else position.seq

    def checkpoint(self, shard):
        with self._writing:
            if shard not in self._checkpointers:
                return
            store = self._checkpointers[shard]
            if store is None and skips_quietly:
                checkpointer.log.debug("worker %s skips shard %s, which has no checkpointer", self._worker_id, shard)
                return
            position, last = self._receiver.stored(shard), self._last.get(shard)
            if not isinstance(position, After) or (advances and last is not None and rank(position) <= rank(last)):
                return
            if before:
                self._last[shard] = position
            self._retry(lambda: store.checkpoint(position))
            if shard in self._checkpointers:
                self._last[shard] = position

    return checkpoint


@bug("row-K3-before", "the last number moves before the write", core=f"{ROWS}test_K3", blind=True)
def _(put):
    put(KinesisCheckpointer, "_checkpoint", checkpointing(before=True))


@bug("row-K3-sub", "sub-sequence numbers do not advance a shard", core=f"{ROWS}test_K3", blind=True)
def _(put):
    put(KinesisCheckpointer, "_checkpoint", checkpointing(sub=False))


@bug("row-K4-always", "each tick writes", core=f"{ROWS}test_K4", blind=True)
def _(put):
    put(KinesisCheckpointer, "_checkpoint", checkpointing(advances=False))


@bug("row-K5-used", "a checkpointer that is not set is used", core=f"{ROWS}test_K5", blind=True)
def _(put):
    put(KinesisCheckpointer, "_checkpoint", checkpointing(skips_quietly=False))


@bug("row-K6-stops", "one failed shard ends the tick", core=f"{ROWS}test_K6", blind=True)
def _(put):
    def checkpoint_all(self):
        for shard in tuple(self._checkpointers):
            try:
                self._checkpoint(shard)
            except Exception as error:
                checkpointer.log.warning("worker %s could not checkpoint shard %s: %s", self._worker_id, shard, error)
                return

    put(KinesisCheckpointer, "_checkpoint_all", checkpoint_all)


@bug("row-K6-forgets", "a shard that failed is not written again", core=f"{ROWS}test_K6", blind=True)
def _(put):
    real = KinesisCheckpointer._checkpoint

    def checkpoint(self, shard):
        try:
            real(self, shard)
        except Exception:
            self._checkpointers.pop(shard)
            raise

    put(KinesisCheckpointer, "_checkpoint", checkpoint)


@bug("row-K13-text", "sequence numbers are compared as texts", core=f"{ROWS}test_K13", blind=True)
def _(put):
    put(KinesisCheckpointer, "_checkpoint", checkpointing(text=True))


@bug("row-K14-received", "what is received counts as stored", core=f"{ROWS}test_K14", blind=True)
def _(put):
    def checkpoint(self, shard):
        store = self._checkpointers[shard]
        store.checkpoint(After(9))

    put(KinesisCheckpointer, "_checkpoint", checkpoint)


# ---- removal and shutdown --------------------------------------------------------------------------------------------


def removing(*, waits=True, untracks=True, raises=True, forgets=True, ends=None, locks=True):
    """``remove_checkpointer`` with deviations."""

    def remove(self, shard, store):
        with self._writing if locks else Lock():
            if untracks:
                self._checkpointers.pop(shard, None)
            self._ends.pop(shard, None)
            if forgets:
                self._last.pop(shard, None)
        if store is None:
            if ends:
                ends(self, shard)
            return False
        if waits and not isinstance(self._receiver.stored(shard), checkpointer.Finished):
            self._ends[shard] = store
            return False
        try:
            self._retry(store.checkpoint)
        except Exception:
            checkpointer.log.exception("it failed")
            if raises:
                raise
        self._checkpointers.pop(shard, None)
        return True

    return remove


@bug("row-K8-at-once", "a shard ends before its records are stored", core=f"{ROWS}test_K8", blind=True)
def _(put):
    put(KinesisCheckpointer, "remove_checkpointer", removing(waits=False))


@bug("row-K8-untracked-last", "a shard is untracked after its end is written", core=f"{ROWS}test_K8", blind=True)
def _(put):
    put(KinesisCheckpointer, "remove_checkpointer", removing(untracks=False))


@bug("row-K8-swallowed", "an end that failed is only logged", core=f"{ROWS}test_K8", blind=True)
def _(put):
    put(KinesisCheckpointer, "remove_checkpointer", removing(raises=False))


@bug("row-K8-end-once", "an end that waited and failed is given up", core=f"{ROWS}test_K8", blind=True)
def _(put):
    real = KinesisCheckpointer._finish

    def finish(self, shard):
        try:
            real(self, shard)
        except Exception:
            self._ends.pop(shard)
            raise

    put(KinesisCheckpointer, "_finish", finish)


@bug("row-K9-remembered", "the last number of a lost shard is kept", core=f"{ROWS}test_K9", blind=True)
def _(put):
    put(KinesisCheckpointer, "remove_checkpointer", removing(forgets=False))


@bug("row-K9-tracked", "a lost shard stays tracked", core=f"{ROWS}test_K9", blind=True)
def _(put):
    real = KinesisCheckpointer.remove_checkpointer
    put(
        KinesisCheckpointer,
        "remove_checkpointer",
        lambda self, shard, store: False if store is None else real(self, shard, store),
    )


def retrying(*, attempts=4, below_ms=100, any_error=False):
    def retry(self, call):
        if not any_error:
            retry_random(call, attempts=attempts, below_ms=below_ms, pause=self._pause)
            return
        for _ in range(attempts - 1):
            with suppress(Exception):
                call()
                return
            self._pause(0.01)
        call()

    return retry


@bug("row-K10-three", "three attempts", core=f"{ROWS}test_K10", blind=True)
def _(put):
    put(KinesisCheckpointer, "_retry", retrying(attempts=3))


@bug("row-K10-any", "every error is retried", core=f"{ROWS}test_K10", blind=True)
def _(put):
    put(KinesisCheckpointer, "_retry", retrying(any_error=True))


@bug("row-K10-slow", "waits of up to a minute", core=f"{ROWS}test_K10", blind=True)
def _(put):
    put(KinesisCheckpointer, "_retry", retrying(below_ms=10**12))


@bug("row-K11-unlocked", "a removal does not wait for the write of its shard", core=f"{ROWS}test_K11", blind=True)
def _(put):
    put(KinesisCheckpointer, "remove_checkpointer", removing(locks=False))


@bug("row-K11-listed", "a pass writes all shards that there were at its beginning", core=f"{ROWS}test_K11", blind=True)
def _(put):
    def checkpoint_all(self):
        for shard, store in tuple(self._checkpointers.items()):
            with self._writing:
                position = self._receiver.stored(shard)
                if self._last.get(shard) != position:
                    store.checkpoint(position)
                    self._last[shard] = position

    put(KinesisCheckpointer, "_checkpoint_all", checkpoint_all)


@bug("row-K12-no-pass", "a shutdown makes no last pass", core=f"{ROWS}test_K12", blind=True)
def _(put):
    def shutdown(self):
        self._timer.stop()
        self._checkpointers.clear()
        self._ends.clear()
        self._last.clear()

    put(KinesisCheckpointer, "shutdown", shutdown)


@bug("row-K12-not-cleared", "a shutdown forgets nothing", core=f"{ROWS}test_K12", blind=True)
def _(put):
    def shutdown(self):
        self._timer.stop()
        self._checkpoint_all()

    put(KinesisCheckpointer, "shutdown", shutdown)


@bug("row-K12-runs-on", "a shutdown does not stop the timer", core=f"{ROWS}test_K12", blind=True)
def _(put):
    put(RecurringTimer, "stop", lambda _self: None)


# ---- the lease table -------------------------------------------------------------------------------------------------

COMMITS = "core/test_kinesis_commits.py::"
RACE = f"{COMMITS}test_two_exporters_race_and_a_watcher_sees_rows_that_only_advance"


@bug("row-K15-restores", "a start asks the lease table", core=f"{COMMITS}test_K15", blind=True)
def _(put):
    def start(self, parents):
        return self._table and {shard: lease.position for shard, lease in self._table.read().items()}

    put(LeaseCommits, "start", start)


@bug(
    "row-K15-before", "what is read is exported before its checkpoint completes", core=f"{COMMITS}test_K15", blind=True
)
def _(put):
    put(LeaseCommits, "shards_found", lambda self, shards: self._exporter.checkpoint_completed(shards))


@bug("lease-text", "a row advances by the order of texts", core=RACE, blind=True)
def _(put):
    put(
        lease_table,
        "_FORWARD",
        "(checkpoint IN (:horizon, :latest, :time) OR checkpoint < :checkpoint OR size(checkpoint) < :zero"
        " OR size(checkpoint) = :length AND checkpoint < :checkpoint"
        " OR (checkpoint = :checkpoint AND checkpointSubSequenceNumber < :sub))",
    )


@bug("lease-unconditional", "a row is written whatever it has", core=RACE, blind=True)
def _(put):
    put(
        lease_table,
        "_FORWARD",
        "(checkpoint IN (:horizon, :latest, :time) OR size(checkpoint) < :length OR checkpoint <> :end"
        " OR checkpointSubSequenceNumber < :sub)",
    )


@bug("lease-parent-first", "a parent ends before its children have rows", core=RACE, blind=True)
def _(put):
    real = LeaseExporter._insert

    def insert(self, shard, state):
        if state.parents and any(parent in self._unended for parent in state.parents):
            return
        real(self, shard, state)

    put(LeaseExporter, "_insert", insert)


@bug(
    "lease-one-child",
    "a parent ends when one child is known",
    core=f"{COMMITS}test_a_parent_does_not_end_while_a_child_is_not_known",
    blind=True,
)
def _(put):
    put(lease_export, "_covers", lambda children, _parent: bool(children))


@bug("lease-ahead", "the exporter writes what follows", core=RACE, blind=True)
def _(put):
    real = LeaseExporter.stored

    def stored(self, shard):
        position = real(self, shard)
        return After(position.seq, position.sub + 1) if isinstance(position, After) else position

    put(LeaseExporter, "stored", stored)


@bug(
    "lease-same-process",
    "a lease belongs to its owner's name, not to a process",
    core=f"{COMMITS}test_the_same_job_takes_its_leases_at_once_and_the_older_process_is_fenced",
    blind=True,
)
def _(put):
    real = LeaseTable._is_repeated
    put(
        LeaseTable,
        "_is_repeated",
        lambda self, seen, counter, claim: (
            bool(seen) and real(self, {**seen, "penstockClaim": {"S": claim.process}}, counter, claim)
        ),
    )


@bug(
    "lease-superseded-takes",
    "a process takes leases from the one that has claimed its job since",
    core=f"{COMMITS}test_an_older_process_that_was_stopped_before_it_opens_its_reader_takes_no_lease_from_the_newer_one",
    blind=True,
)
def _(put):
    put(LeaseClaim, "is_older_than", lambda self, lease: False)


@bug(
    "lease-outage-kills",
    "a renewal that is not answered counts as a lost lease",
    core=f"{COMMITS}test_an_outage_of_the_table_loses_no_lease",
    blind=True,
)
def _(put):
    real = LeaseTable.renew

    def renew(self, lease, claim):
        try:
            real(self, lease, claim)
        except LeaseTableUnavailable as error:
            raise LeaseLost(str(error)) from error

    put(LeaseTable, "renew", renew)


# ---- the source and its table ----------------------------------------------------------------------------------------

LEASES = "core/test_kinesis_leases.py::"


@bug(
    "wired-ahead",
    "a source exports what it has read when a checkpoint completes, not what the checkpoint has",
    core=f"{LEASES}test_a_completed_checkpoint_is_exported_and_what_was_read_since_is_not",
    blind=True,
)
def _(put):
    put(
        KinesisReader,
        "committed",
        lambda self, _checkpoint, _position: self._leases.checkpoint_completed(self._position.shards),
    )


@bug(
    "wired-late",
    "a source takes its leases when it finds shards, not before it reads",
    core=f"{LEASES}test_leases_are_owned_before_anything_is_read_and_given_up_at_the_end",
    blind=True,
)
def _(put):
    put(LeaseCommits, "opened", LeaseCommits.shards_found)


@bug(
    "wired-unfenced",
    "a poll does not ask whether a lease was lost",
    core=f"{LEASES}test_a_bumped_lease_fails_the_job",
    blind=True,
)
def _(put):
    put(LeaseCommits, "check", lambda _self: None)


# ---- ranges that executors read --------------------------------------------------------------------------------------


@bug(
    "range-uncut",
    "a task reads what its shard has by then, not up to the end that was fixed",
    core="core/test_kinesis_ranges.py::test_records_that_arrive_after_a_failed_attempt_are_not_in_the_next",
    blind=True,
)
def _(put):
    put(ranges, "_until", lambda _end, records: records)
