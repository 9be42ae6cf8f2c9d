"""Logs and pipelines that plans are made of: checkpoints, a savepoint, output that is open, code that moves."""

import io
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from core.checkpoint_values import CLAIM, entries, keyed, layer, manifest, output, pin, wrote
from core.cli_kit import say
from penstock.checkpoint import paths
from penstock.checkpoint.entries import StepRecord, StepRole, Stopped
from penstock.checkpoint.entry_codec import encode
from penstock.cli.options import start_options
from penstock.cli.output import Output
from penstock.cli.plan import show_plan
from penstock.handles import Position, TaskSnapshot
from penstock.testing.clock import ManualClock

GOLDEN = Path(__file__).parent / "cli_golden"

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND
SETTINGS = {"checkpoint_every": 5 * SECOND, "retained": 3, "stop_timeout": 8 * SECOND}

STEPS = (
    StepRecord(uid="in", role=StepRole.SOURCE),
    StepRecord(uid="totals", role=StepRole.STEP, kind="window/1"),
    StepRecord(uid="out", role=StepRole.SINK),
)

SHOP = """\
import penstock as ps


@ps.pipeline("orders")
def orders(p):
    numbers = p.read("in", ps.rate.Source(10)).with_watermark("at", delay="1 second")
    totals = numbers.group_by("value", ps.tumbling("1 minute")).agg("totals", ps.agg.count().alias("n"))
    totals.write("out", ps.console.Sink())
"""
"""Of the same steps as ``STEPS``."""


def counted(next, task="in"):
    return TaskSnapshot(task=task, position=Position(kind="rate/1", detail={"next": next, "started": NOON}))


def at(number, parent=None, *, steps=STEPS, tasks=None, seconds=0.25, **rest):
    """A checkpoint of ``STEPS``, a second after the one of the number below."""
    if tasks is None:
        tasks = (counted(number * 10), keyed(layer(f"layer-{number}")), wrote())
    triggered = NOON + number * SECOND
    completed = triggered + int(seconds * SECOND)
    made = manifest(number, parent, steps=steps, tasks=tasks, settings=SETTINGS, **rest)
    return replace(made, triggered=triggered, completed=completed)


def opened(number):
    """Open output of a checkpoint, with the name that its file is to get."""
    found = output(number)
    return replace(found, detail={"moves": {found.files[0].path: f"there/part-{number}"}})


def story(*, stopped=False):
    """A claim, three checkpoints, the second with a name, the third with output that is open."""
    bodies = [
        CLAIM,
        at(0),
        at(1, 0, open=(opened(1),)),
        pin("before-v2", 1),
        at(2, 1, open=(opened(2),)),
    ]
    return [*bodies, Stopped(checkpoint=2, at=NOON + 3 * SECOND)] if stopped else bodies


def write_log(state, bodies):
    """The log in a state folder, as its owners would have written it; in place of the one that is there."""
    shutil.rmtree(state / "orders", ignore_errors=True)
    for entry in entries(*bodies):
        path = state / entry.job / paths.entry(entry.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(entry))


def module(folder, source=SHOP):
    """A module of its own name in the folder, for modules are cached; its name."""
    name = "m_" + re.sub(r"\W", "_", folder.name) + f"_{abs(hash(source)) % 10**8}"
    (folder / f"{name}.py").write_text(source)
    return name


def tree(folder):
    """Every file below a folder with its bytes and time: what a plan must leave alone."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def shop_folder(tmp_path, monkeypatch):
    """A folder with the state of a job that was stopped, made the current one."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("one\ntwo\n")
    write_log(tmp_path / "state", story(stopped=True))
    return tmp_path


START = {"restore_from": None, "fresh": False, "claim": False, "discard_unpublished": False}


def planned(
    folder,
    source=SHOP,
    *,
    start_at=None,
    lists_kept=False,
    as_json=False,
    compares_schemas=False,
    settings=None,
    rename=(),
    **options,
):
    """What it prints, and the exit code."""
    out = io.StringIO()
    asked = {**START, "allow_non_restored_state": False, "restore_from": start_at, "rename": rename, **options}
    code = show_plan(
        f"{module(folder, source)}:orders",
        start_options(**asked),
        Output(out=out, err=io.StringIO()),
        state="state",
        settings=settings or {},
        compares_schemas=compares_schemas,
        lists_kept=lists_kept,
        as_json=as_json,
        clock=ManualClock("2026-01-01T12:00:14Z"),
    )
    return code, out.getvalue()


def shown(text, folder):
    """The text without what differs from machine to machine, or with each release."""
    text = text.replace(str(folder), "/shop")
    text = re.sub(r'("code": \{)[^}]*\}', r"\1}", text)
    return re.sub(r'("(?:tail_hash|log_id)": )"[0-9a-z-]+"', r'\1"…"', text)


def golden(name, text):
    place = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        place.write_text(text)
    assert text == place.read_text()


def saved(folder, source=SHOP, **options):
    code, text = planned(folder, source, as_json=True, **options)
    (folder / "plan.json").write_text(text)
    return code


def run(folder, source=SHOP, *more):
    name = module(folder, source)
    return say("run", f"{name}:orders", "--state", "state", "--no-parent", "--plan", "plan.json", *more)
