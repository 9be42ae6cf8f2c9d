"""Files that are removed, with checkpoints, crashes, rewinds and old processes in any order: each is read once."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from core.files_kit import Feed, _without_a_disk, stopped_at  # noqa: F401 - a fixture
from penstock import failpoints
from penstock.clock import MonotonicTime, WallTime
from penstock.errors import SourceChanged, SourceUnavailable
from penstock.failpoints import FailpointCrash
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import PlannedBatch, ReadLimit

MOVES = st.one_of(
    st.sampled_from(["put", "fill", "fill", "hold", "hold", "checkpoint", "notify", "notify late", "restart"]),
    st.sampled_from(["begin anew", "lose the record", "go on in an old process", "open in an old process"]),
    st.tuples(st.just("rewind"), st.integers(0, 3)),
    st.tuples(st.just("rewind"), st.integers(0, 3)),
    st.tuples(st.just("crash"), st.sampled_from(["record", "noted", "moved", "put_back"])),
    st.tuples(st.just("stop"), st.sampled_from(["record", "noted", "moved", "put_back"]), st.integers(0, 3)),
)


@dataclass(frozen=True, eq=False)
class Saved:
    """A complete checkpoint: its position, and the files that its rows come from, which are known by their times."""

    position: Position
    read: tuple[int, ...]
    removed_before: frozenset[int]
    moved: frozenset[int]
    after: Saved | None

    def line(self):
        return [self, *(self.after.line() if self.after is not None else [])]


class Overtaken(Exception):
    """A process was stopped, another one started meanwhile, and the first has gone on."""


class Job:
    """A job on a folder, that knows which files its rows come from."""

    def __init__(self, root, way, before):
        """A first start; before it, so many checkpoints of a job that does not remove its files yet."""
        self.feed = Feed(root, after_read=way if before == 0 else None, max_files_per_batch=2)
        self.written = []
        self.saved = []
        self.newest = None
        self.old = []  # readers of processes before, each with the newest checkpoint then
        self.starts = 0
        self.was_lost = False  # the record, once
        self.is_unsure = False  # two processes have begun without it, so that neither knows of the other's files
        self.refusable = []  # checkpoints that a lost record, a fresh start or a rewind with files put back has left
        self.start(None)
        for number in range(before):
            if number:
                self.put()
                self.poll()
            self.checkpoint()
        self.feed.options["after_read"] = way
        if before:
            self.restart(self.newest)

    def there(self):
        return {path.stat().st_mtime_ns for path in self.feed.root.glob("*.json")}

    def start(self, at):
        """Restart from a checkpoint; ``None`` begins anew with the files that are there."""
        self.feed.position = None if at is None else at.position
        self.starts += 1
        before = self.there()
        try:
            with self.in_one_process():
                self.feed.start()
        finally:
            if self.there() - before:
                self.refusable += [each for each in self.saved if at is None or each not in at.line()]
        self.reader = self.feed.reader
        self.newest = at
        self.read = [] if at is None else [*at.read]
        if at is None:
            self.removed_before = frozenset(self.written) - self.there()
            self.old.clear()
            self.refusable = [*self.saved]
        else:
            self.removed_before = at.removed_before

    @contextmanager
    def in_one_process(self):
        """What a process does, unless another one starts meanwhile: then its log is fenced, and it has done nothing."""
        starts = self.starts
        try:
            yield
        finally:
            if self.starts != starts:
                self.feed.reader = self.reader
                raise Overtaken

    def restart(self, at):
        self.old.append((self.feed.reader, self.newest))
        self.start(at)

    def put(self):
        path = self.feed.root / f"{len(self.written) % 7}.json"
        if not path.exists():
            self.feed.put(path.name)
            self.written.append(path.stat().st_mtime_ns)

    def poll(self):
        self.feed.now += 10**9
        with self.in_one_process():
            answer = self.feed.reader.poll(now=MonotonicTime(self.feed.now), wall=WallTime(0), limits=ReadLimit())
        if isinstance(answer, PlannedBatch):
            self.read.extend(part.signature.mtime_ns for part in answer.plan)
            return True
        return False

    def checkpoint(self):
        with self.in_one_process():
            position = self.feed.checkpoint()
        moved = frozenset(self.written) - self.there()
        self.newest = Saved(position, tuple(self.read), self.removed_before, moved, self.newest)
        self.saved.append(self.newest)

    def notify(self, *, late):
        if self.newest is not None:
            index = self.saved.index(self.newest)
            with self.in_one_process():
                self.feed.complete(self.saved[max(0, index - late)].position)

    def rewind(self, back):
        """A rewind that is refused changes nothing; one that is killed is in the log already."""
        target = self.saved[max(0, len(self.saved) - 1 - back)]
        moved = frozenset(self.written) - self.there()
        if self.feed.source.removal.record() is None and moved != target.moved:
            return  # only the record says that files are missing
        try:
            self.feed.source.check_rows(target.position)
        except SourceChanged:
            if target not in self.refusable and not self.may_remove_after(target):
                assert moved != target.moved, "no file was removed"
            return
        self.old.append((self.feed.reader, self.newest))
        self.newest = target
        self.start(target)
        missing = {*self.written} - {*target.read} - target.removed_before - self.there()
        assert not missing, "it needs files that were removed"

    def may_remove_after(self, target):
        """Whether files are recorded as removable since, though a crash has come before they were moved."""
        return self.feed.source.removal.record().read > target.position.detail.get("read", 0)

    def go_on_in_an_old_process(self):
        for reader, newest in self.old[-2:]:
            with suppress(SourceUnavailable, SourceChanged):  # it may find a new file under a name that it has read
                reader.poll(now=MonotonicTime(self.feed.now + 10**12), wall=WallTime(0), limits=ReadLimit())
                if newest is not None:
                    reader.committed(CheckpointId(1), newest.position)

    def open_in_an_old_process(self):
        """What was stopped between its claim and its reader goes on; if it has taken over, the newer one finds that."""
        position = None if self.newest is None else self.newest.position
        for at in (position, *(newest.position for _, newest in self.old[-2:] if newest is not None)):
            with suppress(SourceUnavailable, SourceChanged):
                self.feed.open(self.feed.generation - 1, at)

    def take_over(self, back):
        """What happens while a process is stopped: a restart, or a rewind by so many checkpoints."""
        self.is_unsure |= self.was_lost and self.feed.source.removal.record() is None
        if back and self.saved:
            self.rewind(back)
        else:
            self.restart(self.newest)

    def act(self, move):
        match move:
            case "put":
                self.put()
            case "fill":
                self.put()
                self.put()
                self.poll()
            case "checkpoint":
                self.checkpoint()
            case "hold":
                self.put()
                self.poll()
                self.checkpoint()
                self.notify(late=False)
            case "notify" | "notify late":
                self.notify(late=move == "notify late")
            case "restart":
                self.restart(self.newest)
            case "begin anew":
                self.start(None)
            case "lose the record" if self.newest is not None:
                for record in (self.feed.root / ".penstock").glob("*.json"):
                    record.unlink()
                self.was_lost = True
                self.refusable = [*self.saved]
                self.restart(self.newest)
            case "go on in an old process":
                self.go_on_in_an_old_process()
            case "open in an old process":
                self.open_in_an_old_process()
            case ("rewind", back) if self.saved:
                self.rewind(back)


@given(
    way=st.sampled_from(["archive", "delete"]),
    before=st.integers(0, 3),
    moves=st.lists(MOVES, min_size=4, max_size=20),
)
@example("archive", 1, [("crash", "noted"), "hold", ("stop", "record", 1), "lose the record", "hold"])
def test_whatever_is_removed_rewound_and_killed_each_file_is_read_once(tmp_path_factory, way, before, moves):
    job = Job(tmp_path_factory.mktemp("files") / "in", way, before)
    try:
        play(job, moves)
    except SourceChanged:
        if not job.is_unsure:
            raise
        return  # it is refused, since which files are missing cannot be told
    for _ in job.written:
        job.poll()
    assert sorted([*job.read, *job.removed_before]) == sorted(job.written)


def play(job, moves):
    trouble = nullcontext
    for move in [*moves, "restart"]:
        match move:
            case ("crash", point):
                trouble = partial(failpoints.armed, f"source.files.{point}", "raise")
                continue
            case ("stop", point, back):
                trouble = partial(stopped_at, f"source.files.{point}", partial(job.take_over, back))
                continue
        try:
            with trouble():
                job.act(move)
        except (FailpointCrash, SourceUnavailable):
            trouble = nullcontext
            job.restart(job.newest)
        except Overtaken:
            trouble = nullcontext
