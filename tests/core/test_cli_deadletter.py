"""``penstock deadletter`` on a directory made by hand, text and JSON against golden files; nothing here needs Spark."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from core.checkpoint_values import CLAIM, entries, manifest, rewind
from core.cli_kit import Terminal, say
from core.graphs import NoSource
from penstock.admin import dead_letter_replay
from penstock.admin.gc import files_of
from penstock.admin.plan import plan
from penstock.admin.verify import Fault, verify
from penstock.checkpoint import paths
from penstock.checkpoint.entries import StepRecord, StepRole, Stopped
from penstock.checkpoint.entry_codec import encode
from penstock.clock import MAX_WATERMARK
from penstock.control.client import JobDirectory
from penstock.dead_letters.store import LetterRange, Replay
from penstock.dead_letters.store import encode_replay as written
from penstock.graph.nodes import Graph
from penstock.handles import Committable, FileRef, Guarantee, Position, TaskSnapshot, with_replays
from penstock.interfaces.source import Backlog
from penstock.settings import read_settings

GOLDEN = Path(__file__).parent / "cli_golden"
NOON = 1_767_268_800
PLACE = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("file", pa.string())])
RECORD = pa.struct([("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
LATE = pa.struct([("user", pa.string()), ("at", pa.timestamp("us"))])
AT = datetime(2026, 1, 1, 11, 59, 7, tzinfo=timezone.utc)


def bad(offset: int, value: bytes) -> dict[str, object]:
    place = {"topic": "orders", "partition": 0, "offset": offset}
    shown = value.decode(errors="replace")
    error = f"malformed JSON, or a field that is not of its declared type (struct<id:bigint>): {shown}"
    text = {"cause": "decode", "error": error, "step": "parse_json value", "source": "orders", "undecoded": "value"}
    return {**text, "place": {**place, "file": None}, "record": {"value": value, **place}}


def late(user: str, file: str | None = None) -> dict[str, object]:
    text = {"cause": "late", "error": "came after each window that would hold it was closed", "step": "totals"}
    why = {"source": "orders", "no_replay": "they would be late again: their windows are closed for ever"}
    return {
        **text,
        **why,
        "place": {"file": file},
        "event_time": AT.replace(tzinfo=None),
        "record": {"user": user, "at": AT},
    }


class Job:
    """A state directory with one job, its log and its dead letters."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def log(self, *bodies: object) -> None:
        """The log, in place of what was there."""
        shutil.rmtree(self.state / "orders" / paths.LOG, ignore_errors=True)
        for entry in entries(CLAIM, *bodies):
            path = self.state / "orders" / paths.entry(entry.number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(entry))

    def letters(self, uid: str, checkpoint: int, *rows: dict[str, object], record: pa.DataType = RECORD) -> Path:
        columns = ("cause", "error", "step", "source", "undecoded", "no_replay")
        schema = [*((name, pa.string()) for name in columns), ("event_time", pa.timestamp("us")), ("place", PLACE)]
        table = pa.Table.from_pylist(list(rows), schema=pa.schema([*schema, ("record", record)]))
        path = self.folder(uid) / f"part-log-1-{uid}-{checkpoint}-0-00.zstd.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        os.utime(path, (NOON + checkpoint * 60, NOON + checkpoint * 60))
        return path

    def folder(self, uid: str) -> Path:
        return self.state / "orders" / "deadletters" / uid

    def replay(self, number: int, *letters: LetterRange) -> None:
        told = {"command": f"c-{number}", "uid": "bad-orders", "source": "orders", "after": 1, "at": NOON, "by": "me"}
        path = self.folder("bad-orders") / "_replays" / f"{number:020d}.json"
        path.write_bytes(written(Replay(number=number, letters=letters, **told)))

    def say(self, command: str, *arguments: str) -> str:
        said = say("deadletter", command, "orders", *arguments, "--state", str(self.state))
        assert said.code == 0, said.err
        return "".join(f"{line.rstrip()}\n" for line in said.out.replace(str(self.state), "STATE").splitlines())

    def refuses(self, command: str, *arguments: str, code: int = 64) -> str:
        said = say("deadletter", command, "orders", *arguments, "--state", str(self.state))
        assert said.code == code, said
        assert said.out == ""
        return said.err


def at(checkpoint: int, parent: int | None = None, *, read: int = 0, ended: bool = False) -> object:
    position = with_replays(Position(kind="kafka/1", detail={"bounded": False, "topics": {}}), {"bad-orders": read})
    source = TaskSnapshot(task="orders", position=position, watermarks=(MAX_WATERMARK,) if ended else ())
    sinks = [StepRecord(uid=uid, role=StepRole.SINK) for uid in ("bad-orders", "late-totals")]
    return manifest(checkpoint, parent, tasks=(source,), steps=(StepRecord(uid="orders", role=StepRole.SOURCE), *sinks))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Bad orders of two checkpoints, of which one was replayed and failed again; late rows of a third."""
    made = Job(tmp_path / "s")
    made.log(at(0), at(1, 0), at(2, 1, read=1), Stopped(checkpoint=2, at=NOON))
    first = made.letters("bad-orders", 1, bad(7, b'{"id": "x"}'), bad(9, b'{"id": 1.5, "more": "\xff\x1b[1m"}'))
    made.letters("bad-orders", 2, bad(7, b'{"id": "x"}'))
    made.letters("late-totals", 2, late("ann"), late("bob", "in/1.json"), record=LATE)
    replay = Replay(
        number=1,
        command="c-1",
        uid="bad-orders",
        source="orders",
        after=1,
        at=NOON,
        by="process 7 on here",
        letters=(letters_of(first, (0, 1)),),
    )
    folder = made.folder("bad-orders") / "_replays"
    folder.mkdir()
    (folder / f"{1:020d}.json").write_bytes(written(replay))
    return made


class Asked(NoSource):
    """Tells nothing, and remembers from where it was asked to."""

    guarantee = Guarantee.EXACTLY_ONCE
    positions: ClassVar[list[Position | None]] = []

    def backlog(self, resume: Position | None) -> Backlog:
        self.positions.append(resume)
        return Backlog()


def letters_of(path: Path, span: tuple[int, int]):
    return LetterRange(file=path.name, ranges=(span,))


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"deadletter-said-{name}"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def steady(text: str) -> str:
    """JSON without what differs from writer to writer: sizes of Parquet files."""
    told = json.loads(text)
    for place in told.get("dead_letters", []):
        assert place["bytes"] > 0
        place["bytes"] = 0
    for file in (*told.get("files", []), *told.get("kept", [])):
        assert file["bytes"] > 0
        file["bytes"] = 0
    return json.dumps(told, indent=2) + "\n"


def test_the_list_counts_by_cause_and_step_and_says_what_to_do_next(job: Job) -> None:
    golden("list.json", steady(job.say("list", "--json")))
    for uid in ("bad-orders", "late-totals"):
        for path in job.folder(uid).glob("*.parquet"):
            assert path.stat().st_size < 10_000
    text = job.say("list")
    sizes = {f"{place['bytes'] / 1_000:.1f} kB" for place in json.loads(job.say("list", "--json"))["dead_letters"]}
    for size in sizes:
        text = text.replace(size, "0.0 kB")
    golden("list.txt", text)


def test_letters_are_shown_with_place_attempts_and_text_that_harms_no_terminal(job: Job) -> None:
    golden("show.txt", job.say("show", "bad-orders"))
    golden("show.json", job.say("show", "bad-orders", "--json"))
    golden("show-late.txt", job.say("show", "late-totals"))
    golden("show-late.json", job.say("show", "late-totals", "--json"))
    assert "2 of 3 dead letters (--limit)" in job.say("show", "bad-orders", "--limit", "2")


def test_a_replay_names_what_none_has_named_and_a_second_one_nothing(job: Job) -> None:
    golden("replay.txt", job.say("replay", "bad-orders", "--all"))
    named = json.loads((job.folder("bad-orders") / "_replays" / f"{2:020d}.json").read_text())
    assert (named["number"], named["rows"], named["after"], named["source"]) == (2, 2, 2, "orders")
    assert sorted(named["letters"].values()) == [[[0, 1]], [[1, 2]]]
    golden("replay-again.txt", job.say("replay", "bad-orders", "--all"))
    assert "2 rows of a replay yet to be in a checkpoint" in job.say("list")
    assert json.loads(job.say("replay", "bad-orders", "--all", "--again", "--json")) == {
        "schema": "penstock.deadletter.replay/1",
        "job": "orders",
        "uid": "bad-orders",
        "source": "orders",
        "rows": 3,
        "replays": [3],
        "left_out_rows": 0,
    }


def test_many_letters_are_several_replays_of_one_command(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_replay, "MOST_LETTERS", 1)
    done = json.loads(job.say("replay", "bad-orders", "--all", "--again", "--json"))
    assert (done["rows"], done["replays"], done["left_out_rows"]) == (3, [2, 3, 4], 0)
    files = sorted((job.folder("bad-orders") / "_replays").iterdir())
    told = [json.loads(path.read_text()) for path in files]
    assert [each["rows"] for each in told] == [1, 1, 1, 1]
    assert len({each["command"] for each in told}) == 2, "each row once for each command"
    assert sorted(span for each in told[1:] for spans in each["letters"].values() for span in spans) == [
        [0, 1],
        [0, 1],
        [1, 2],
    ]


def test_what_cannot_be_replayed_is_refused_with_the_reason(job: Job) -> None:
    assert "late: they would be late again" in job.refuses("replay", "late-totals", "--all", code=1)
    assert 'Give --all, or --where "SQL".' in job.refuses("replay", "bad-orders")
    assert "Did you mean 'bad-orders'?" in job.refuses("replay", "bad-order", "--all")
    assert "Name one of bad-orders, late-totals." in job.refuses("show")
    job.log(at(0), at(1, 0), at(2, 1, read=1, ended=True), Stopped(checkpoint=2, at=NOON))
    ended = job.refuses("replay", "bad-orders", "--all", code=1)
    assert "Source 'orders' of job 'orders' has ended, for it was bounded or drained" in ended
    assert "Go back to a checkpoint before its end (penstock rewind orders CHECKPOINT)" in ended
    job.log(at(0), at(1, 0), manifest(2, 1, tasks=(), steps=()), Stopped(checkpoint=2, at=NOON))
    gone = job.refuses("replay", "bad-orders", "--all", code=1)
    assert "source 'orders', which is not in checkpoint 2, where the next start of job 'orders' goes on" in gone
    assert "(sources there: none). A pipeline that reads 'orders' again reads all of it" in gone


def test_a_renamed_source_replays_letters_of_its_old_uid(job: Job) -> None:
    before = at(2, read=1)
    renamed = manifest(3, 2, tasks=(replace(before.tasks[0], task="orders-v2"),), steps=before.steps)
    job.log(at(0), at(1, 0), at(2, 1, read=1), renamed, Stopped(checkpoint=3, at=NOON))
    job.letters("bad-orders", 3, {**bad(11, b"{"), "source": "orders-v2"})
    done = json.loads(job.say("replay", "bad-orders", "--all", "--json"))
    assert (done["source"], done["rows"]) == ("orders-v2", 3)


def test_letters_of_a_step_that_has_another_uid_now_are_not_asked_for_in_vain(job: Job) -> None:
    before = at(2, read=1)
    steps = tuple(replace(step, uid=step.uid.replace("bad-orders", "bad-lines")) for step in before.steps)
    job.log(at(0), at(1, 0), replace(before, steps=steps), Stopped(checkpoint=2, at=NOON))
    said = job.refuses("replay", "bad-orders", "--all", code=1)
    assert "Job 'orders' had no step 'bad-orders' at checkpoint 2" in said
    assert "Give the step its uid 'bad-orders' back and run the job" in said
    assert len(list((job.folder("bad-orders") / "_replays").iterdir())) == 1, "nothing was written"


def test_a_replay_is_numbered_above_what_a_position_says_was_read(job: Job) -> None:
    job.log(at(0), at(1, 0), at(2, 1, read=7), Stopped(checkpoint=2, at=NOON))
    assert json.loads(job.say("replay", "bad-orders", "--all", "--json"))["replays"] == [8]
    assert json.loads(job.say("replay", "bad-orders", "--all", "--again", "--json"))["replays"] == [9]


def test_verify_names_what_ends_the_next_start_or_is_left_out_by_it(job: Job) -> None:
    def broken(quick: bool = False) -> list[tuple[str, Fault]]:
        found = verify(JobDirectory(job.state, "orders"), quick=quick)
        assert found.is_sound == (found.remedies == ())
        return [(each.path.rpartition("/")[2], each.fault) for each in found.broken]

    job.log(at(0), at(1, 0), at(2, 1, read=1), Stopped(checkpoint=2, at=NOON))
    replays = job.folder("bad-orders") / "_replays"
    (replays / f"{1:020d}.json").write_bytes(b"{}")
    assert broken() == [], "it was read"
    (replays / f"{1:020d}.json").unlink()
    first, _ = sorted(job.folder("bad-orders").glob("*.parquet"))
    job.replay(2, letters_of(first, (0, 2)))
    assert broken() == []
    job.replay(3, letters_of(first, (1, 3)))
    assert broken() == [(first.name, Fault.REFERENCE)]
    first.write_bytes(b"PAR1")
    assert set(broken()) == {(first.name, Fault.UNREADABLE)}
    assert broken(quick=True) == []
    first.unlink()
    assert set(broken(quick=True)) == {(first.name, Fault.MISSING)}
    (replays / f"{2:020d}.json").write_bytes(b"{")
    (replays / f"{3:020d}.json").rename(replays / f"{4:020d}.json")
    assert broken()[:2] == [(f"{2:020d}.json", Fault.UNREADABLE), (f"{3:020d}.json", Fault.MISSING)]
    job.log(at(0), at(1, 0), at(2, 1, read=4), Stopped(checkpoint=2, at=NOON))
    assert broken() == []


def test_a_plan_says_which_replays_wait(job: Job) -> None:
    def graph(uid: str) -> Graph:
        @ps.pipeline("orders")
        def orders(p: ps.Pipeline) -> None:
            lines = p.read("orders", Asked())
            good, broken = lines.parse_json("value", "id LONG", on_error="split")
            broken.dead_letter(uid)
            good.write("out", ps.console.Sink())

        return orders.graph()

    def warnings(uid: str = "bad-orders") -> list[str]:
        found = plan(graph(uid), state=job.state, settings=read_settings({}), compares_schemas=False)
        return [each for each in found.warnings if "replay" in each]

    job.log(at(0), at(1, 0), at(2, 1, read=1), Stopped(checkpoint=2, at=NOON))
    assert warnings() == []
    assert Asked.positions == [Position(kind="kafka/1", detail={"bounded": False, "topics": {}})]
    job.say("replay", "bad-orders", "--all")
    told = "source 'orders' will read 1 replay of dead letters 'bad-orders' besides: penstock deadletter list orders"
    assert warnings() == [told]
    (told,) = warnings("bad-lines")
    assert told.startswith("source 'orders' will not read 1 replay of dead letters 'bad-orders'")


def test_staged_letters_are_listed_once(job: Job) -> None:
    staged = job.folder("bad-orders") / ".penstock" / "log-1" / "bad-orders" / "0" / "3" / "part-0.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"PAR1")
    file = FileRef(path=str(staged), length=4, sha256="")
    item = Committable(uid="bad-orders", kind="files/1", checkpoint=3, target="there", files=(file,))
    job.log(at(0), manifest(3, 0, open=(item,)))
    found = JobDirectory(job.state, "orders")
    assert [path for path in files_of(found.filesystem, found.read()) if ".penstock" in path] == [str(staged)]


def test_letters_behind_a_rewind_are_undone(job: Job) -> None:
    job.log(at(0), at(1, 0), at(2, 1, read=1), rewind(1, 2), Stopped(checkpoint=1, at=NOON))
    place = json.loads(job.say("list", "--json"))["dead_letters"][0]
    assert (place["rows"], place["undone_rows"], place["waiting_rows"]) == (2, 1, 1)
    assert "1 row more that a rewind has undone" in job.say("list")


def test_a_drop_asks_and_leaves_what_a_replay_needs(job: Job) -> None:
    before = ("bad-orders", "--before", "2026-01-01T12:01:30Z")
    assert "There is no terminal to answer on. Give --yes" in job.refuses(
        "drop", "late-totals", "--before", "2027-01-01"
    )
    golden("drop-kept.txt", job.say("drop", *before, "--yes"))
    golden("drop-kept.json", steady(job.say("drop", *before, "--yes", "--json")))
    job.log(at(1), at(2, 1, read=1), Stopped(checkpoint=2, at=NOON))
    assert json.loads(job.say("drop", *before, "--json", "--yes"))["kept"] != [], "checkpoint 1 has yet to read it"
    job.log(at(2, 1, read=1), Stopped(checkpoint=2, at=NOON))
    golden("drop-dry.txt", unsized(job.say("drop", *before, "--dry-run")))
    golden("drop-dry.json", steady(job.say("drop", *before, "--dry-run", "--json")))
    golden("drop.txt", unsized(job.say("drop", *before, "--yes")))
    assert len(list(job.folder("bad-orders").glob("*.parquet"))) == 1
    assert "is neither a date nor a time. Write it as 2026-01-31" in job.refuses(
        "drop", "bad-orders", "--before", "yesterday", "--yes"
    )


def test_who_says_no_to_a_drop_keeps_all_and_gets_a_document_that_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.log(at(2, 1, read=2), Stopped(checkpoint=2, at=NOON))
    before = {path: path.read_bytes() for path in job.state.rglob("*") if path.is_file()}
    monkeypatch.setattr("sys.stdin", Terminal("n\n" * 2))
    asked = ("deadletter", "drop", "orders", "bad-orders", "--before", "2027-01-01", "--state", str(job.state))
    told, document = say(*asked), say(*asked, "--json")
    assert (told.code, document.code) == (1, 1)
    assert {path: path.read_bytes() for path in job.state.rglob("*") if path.is_file()} == before
    assert told.out == ""
    golden("drop-no.txt", f"--- stderr\n{unsized(told.err)}")
    golden("drop-no.json", steady(document.out.replace(str(job.state), "STATE")))


def test_the_documents_of_what_was_dropped_and_of_what_will_be_read_again(job: Job) -> None:
    golden("replay.json", job.say("replay", "bad-orders", "--all", "--json"))
    golden("replay-again.json", job.say("replay", "bad-orders", "--all", "--json"))
    job.log(at(2, 1, read=2), Stopped(checkpoint=2, at=NOON))
    golden("drop.json", steady(job.say("drop", "bad-orders", "--before", "2027-01-01", "--yes", "--json")))


def unsized(text: str) -> str:
    """Without the size of Parquet files, which differs from writer to writer."""
    start, _, rest = text.partition("(")
    return f"{start}(SIZE{rest[rest.index(')') :]}"


def test_a_job_without_dead_letters_says_how_to_keep_some(tmp_path: Path) -> None:
    made = Job(tmp_path)
    made.log(at(0))
    assert made.say("list") == "orders: no dead letters; a pipeline keeps them with stream.dead_letter(uid)\n"
    assert json.loads(made.say("list", "--json"))["dead_letters"] == []
    assert "has no dead letters. A pipeline keeps them" in made.refuses("show")


def test_a_damaged_file_is_named(job: Job) -> None:
    path = next(job.folder("late-totals").glob("*.parquet"))
    path.write_bytes(b"PAR1")
    assert str(path) in job.refuses("list", code=65)
