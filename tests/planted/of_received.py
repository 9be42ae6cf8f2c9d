"""Planted bugs of sources that are given rows: in their log (rule G5), and one for each row of the mission on them."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace

from penstock.checkpoint import paths, received, request_keys
from penstock.checkpoint.merged_blocks import BlockFiles, BlockFolder, BlockMerger, encode_merged
from penstock.checkpoint.received import ReceivedBlocks
from penstock.checkpoint.request_keys import RequestKeys, with_keys
from penstock.connectors.receivers import receiver
from penstock.connectors.receivers import socket as socket_source
from penstock.connectors.receivers.batch_clock import BatchClock
from penstock.connectors.receivers.blocks import BlockWriter
from penstock.connectors.receivers.receiver import ReceiverReader
from penstock.connectors.receivers.socket import RecordSplitter, SocketReceiver
from penstock.errors import GenerationFenced, PenstockError, StorageFailed
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.handles import BlockId
from penstock.runtime import source_task
from planted.bug import bug

# ---- the log: found by a simulation of its own -----------------------------------------------------------------------

SEEDS = "properties/test_received.py::test_G5_no_seed_loses_or_repeats_an_acknowledged_row"

MERGING = "properties/test_received.py::test_G5_no_story_loses_or_repeats_a_row_of_blocks_that_are_merged"

KEYS = "core/test_request_keys.py"


def without_the_second_lock(put):
    """The log is not asked before rows are acknowledged: the seal alone keeps an older process out."""
    put(ReceivedBlocks, "check", lambda _self: None)


@bug(
    "G5-unsealed",
    "nothing is sealed, so that the names of adopted blocks are not durable either",
    core=SEEDS,
    receives=True,
)
def _(put):
    def seal(self, generation, found, *, is_sealed):
        numbers = sorted(block.number for block in found if block.generation == generation)
        return received.SealedGeneration(generation=generation, numbers=tuple(numbers), end=len(numbers))

    put(ReceivedBlocks, "_seal", seal)


@bug("G5-seal-deleted", "a seal is deleted with the blocks before it", core=SEEDS, receives=True)
def _(put):
    without_the_second_lock(put)
    put(received, "removable", lambda found, low: tuple(sorted(b for b in found if low is not None and b < low)))


@bug("G5-folder-unchecked", "a writer whose number is taken goes on at the next", core=SEEDS, receives=True)
def _(put):
    without_the_second_lock(put)

    def write(self, data, keys=()):
        while True:
            block = BlockId(self._log.generation, self._next)
            self._next += 1
            with suppress(UnknownOutcome):
                if self._filesystem.create(self.place(block), with_keys(data, keys)) is Created.CREATED:
                    return block

    put(ReceivedBlocks, "write", write)


@bug("G5-no-folder-no-seal", "a generation without a folder is not sealed", core=SEEDS, receives=True)
def _(put):
    without_the_second_lock(put)
    put(received, "generations_to_seal", lambda _claimed, found, own: tuple(sorted(g for g in found if g < own)))


@bug("G5-fsync-retried", "a block whose sync failed counts as written if it can be read", core=SEEDS, blind=True)
def _(put):
    write = ReceivedBlocks.write

    def writing(self, data, keys=()):
        try:
            return write(self, data, keys)
        except StorageFailed as error:
            block, content = BlockId(self._log.generation, self._next), with_keys(data, keys)
            if isinstance(error.__cause__, UnknownOutcome) and self._filesystem.read(self.place(block)) == content:
                self._next += 1
                return block
            raise

    put(ReceivedBlocks, "write", writing)


@bug("G5-cleaned-at-newest", "blocks are deleted when the newest checkpoint is past them", core=SEEDS, receives=True)
def _(put):
    def low(history, uid):
        manifest = history.restore_point
        position = manifest and received.recorded(manifest, uid, history.log_id)
        return position.next if position else None

    put(received, "low_mark", low)


@bug("G5-acknowledged-early", "rows are acknowledged before their block is durable", core=SEEDS, receives=True)
def _(put):
    write = ReceivedBlocks.write

    def writing(self, data, keys=()):
        try:
            return write(self, data, keys)
        except GenerationFenced:
            raise
        except PenstockError:
            return BlockId(self._log.generation, self._next)

    put(ReceivedBlocks, "write", writing)


@bug("G5-merged-unsynced", "blocks go although their merged file may not be durable", core=MERGING, blind=True)
def _(put):
    real = BlockMerger._merge

    def merge(self, blocks):
        try:
            real(self, blocks)
        except StorageFailed:
            for block in blocks:
                self._filesystem.delete(paths.block(self._folder, block))

    put(BlockMerger, "_merge", merge)


@bug("G5-merged-moved", "blocks go before their merged file is written", core=MERGING, blind=True)
def _(put):
    def merge(self, blocks):
        contents = [self._filesystem.read(paths.block(self._folder, block)) for block in blocks]
        for block in blocks:
            self._filesystem.delete(paths.block(self._folder, block))
        with suppress(UnknownOutcome):
            self._filesystem.create(paths.merged_blocks(self._folder, blocks[0], blocks[-1]), encode_merged(contents))

    put(BlockMerger, "_merge", merge)


@bug("G5-merged-twice", "a block in a merged file and in one of its own is read twice", core=MERGING, receives=True)
def _(put):
    real = ReceivedBlocks.adopt

    def adopt(self, *arguments):
        found = real(self, *arguments)
        twice = {block for file in self._files.list().merged for block in file.blocks}
        again = [block for block in found.blocks if block in twice and self._filesystem.read(self.place(block))]
        return replace(found, blocks=(*found.blocks, *again))

    put(ReceivedBlocks, "adopt", adopt)


@bug(
    "G5-merged-not-listed",
    "a block that was merged since the folder was listed is missed",
    core=MERGING,
    receives=True,
)
def _(put):
    def read(self, block):
        data = self._filesystem.read(paths.block(self._folder, block))
        return data if data is not None else self._read_merged(block)

    put(BlockFiles, "read", read)


@bug("G5-merged-not-counted", "blocks in merged files are not adopted", core=MERGING, receives=True)
def _(put):
    real = BlockFolder.of
    put(BlockFolder, "of", lambda listed: real(path for path in listed if not path.endswith(".blocks")))


@bug("G5-keys-lost", "keys go with the blocks that hold them", core=KEYS, receives=True)
def _(put):
    put(RequestKeys, "save", lambda self: self._covered)


@bug("G5-keys-of-blocks-forgotten", "a start reads files of keys, and not the keys in blocks", core=KEYS, receives=True)
def _(put):
    put(request_keys, "split_keys", lambda content, _place: (content, ()))


# ---- rows of the mission: each is found by the test of its row -------------------------------------------------------

ROWS = "core/test_receivers_mission.py::"


def described(self, store):
    """The socket source that rows L4 to L6 describe: attempts for ever add up, a refusal fails, one buffer for all."""
    source, buffer, attempt = self._source, "", 0
    while not self._stopped.is_set():
        with socket.create_connection((source.host, source.port), 10) as connection:
            self._socket = connection
            while data := connection.recv(8_192):
                buffer += data.decode()
                while source.delimiter in buffer:
                    record, _, buffer = buffer.partition(source.delimiter)
                    store.store([(record,)])
        attempt += 1
        if source.max_attempts is not None and attempt >= source.max_attempts:
            break
        self._stopped.wait(source.retry_delay_ms / 1_000)
    if buffer:
        store.store([(buffer,)])


@bug("row-L3-straddled", "a delimiter that comes in two reads is not seen", core=f"{ROWS}test_L3", blind=True)
def _(put):
    def feed(self, data):
        start, searched = 0, len(self._buffer)
        self._buffer += data
        while (end := self._buffer.find(self._delimiter, max(start, searched))) >= 0:
            yield self._record(bytes(self._buffer[start:end]))
            start = end + len(self._delimiter)
        del self._buffer[:start]

    put(RecordSplitter, "feed", feed)


@bug("row-L3-trimmed", "a carriage return goes before any delimiter", core=f"{ROWS}test_L3", blind=True)
def _(put):
    real = RecordSplitter.__init__

    def init(self, *arguments):
        real(self, *arguments)
        self._trims = True

    put(RecordSplitter, "__init__", init)


@bug("row-L3-empty", "empty records are left out", core=f"{ROWS}test_L3", blind=True)
def _(put):
    real = RecordSplitter.feed
    put(RecordSplitter, "feed", lambda self, data: (record for record in real(self, data) if record[0]))


@bug("row-L4-added-up", "attempts are never reset", core=f"{ROWS}test_L4", blind=True)
def _(put):
    put(SocketReceiver, "on_start", described)


@bug("row-L4-no-delay", "the next connection is made at once", core=f"{ROWS}test_L4", blind=True)
def _(put):
    real = SocketReceiver.__init__
    put(
        SocketReceiver,
        "__init__",
        lambda self, source, count: real(self, replace(source, retry_delay_ms=0), count),
    )


@bug("row-L5-refused", "a refused connection fails the source", core=f"{ROWS}test_L5", blind=True)
def _(put):
    put(SocketReceiver, "on_start", described)


@bug("row-L6-glued", "one buffer serves all connections", core=f"{ROWS}test_L6", blind=True)
def _(put):
    put(SocketReceiver, "on_start", described)


@bug("row-L7-blocked", "a stop does not close the connection", core=f"{ROWS}test_L7", blind=True)
def _(put):
    put(socket_source, "_shut", lambda _connection: None)
    put(receiver, "_JOIN_SECONDS", 0.1)


@bug(
    "row-S19-skipped",
    "a block that cannot be read is reported, and reading goes on",
    core=f"{ROWS}test_S19",
    blind=True,
)
def _(put):
    real = ReceiverReader._open_next

    def open_next(self):
        try:
            return real(self)
        except StorageFailed:
            return self._open_next()

    put(ReceiverReader, "_open_next", open_next)


@bug("row-S21-no-ticks", "blocks carry no tick", core=f"{ROWS}test_S21", blind=True)
def _(put):
    put(BatchClock, "label", lambda _self, _wall: 0)


@bug("row-S21-forgotten", "a position does not say which tick was served last", core=f"{ROWS}test_S21", blind=True)
def _(put):
    real = ReceivedBlocks.position
    put(ReceivedBlocks, "position", lambda self, at=None, row=0, **_tick: real(self, at, row))


@bug("row-S22-burst", "every tick that passed is made up at once", core=f"{ROWS}test_S22", blind=True)
def _(put):
    real = BatchClock.__init__

    def init(self, ticks, **options):
        real(self, ticks and replace(ticks, catch_up=1 << 40), **options)

    put(BatchClock, "__init__", init)


@bug("row-S22-uncapped", "a batch that catches up takes all that there is", core=f"{ROWS}test_S22", blind=True)
def _(put):
    real = ReceiverReader._take
    put(ReceiverReader, "_take", lambda self, limits: real(self, replace(limits, rows=None, bytes=None)))


@bug("row-S23-again", "a tick that was served is allocated what has come since", core=f"{ROWS}test_S23", blind=True)
def _(put):
    put(BatchClock, "takes", lambda _self, _tick: True)


@bug("row-S24-rows-forgotten", "a position says no more than the block", core=f"{ROWS}test_S24", blind=True)
def _(put):
    real = ReceivedBlocks.position
    put(ReceivedBlocks, "position", lambda self, at=None, _row=0, **tick: real(self, at, 0, **tick))


@bug("row-S24-reallocated", "ticks fall when the clock is set back", core=f"{ROWS}test_S24", blind=True)
def _(put):
    put(BatchClock, "label", lambda self, wall: self._after(wall))


@bug("row-S27-deleted-as-read", "a block is deleted once it is read", core=f"{ROWS}test_S27", blind=True)
def _(put):
    real = ReceivedBlocks.read

    def read(self, block):
        data = real(self, block)
        self._filesystem.delete(self.place(block))
        return data

    put(ReceivedBlocks, "read", read)


@bug("row-S29-dropped", "a stop drops what no block has yet", core=f"{ROWS}test_S29", blind=True)
def _(put):
    real = BlockWriter.close

    def close(self):
        self._tables.clear()
        real(self)

    put(BlockWriter, "close", close)


@bug("row-S29-not-drained", "a stop leaves what was received to the next start", core=f"{ROWS}test_S29", blind=True)
def _(put):
    put(source_task, "_ends_reading", lambda _mail: False)
