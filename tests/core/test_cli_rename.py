"""``--rename`` on the command line: how it is written, and that every child gets it."""

import pytest

from core.cli_kit import say
from penstock.api.pipeline import pipeline
from penstock.cli.options import renames_of
from penstock.cli.output import UsageError
from penstock.cli.run import RunCommand
from penstock.errors import SettingsError
from penstock.job.job import Job
from penstock.job.start import StartOptions


@pytest.mark.parametrize("pair", ["totals", "=sums", "totals=", "totals=sums"])
def test_a_rename_is_written_old_is_new_once_each(pair):
    with pytest.raises(UsageError, match=rf"--rename {pair} is not OLD=NEW"):
        renames_of(["totals=total", pair])


def test_a_wrong_rename_ends_with_64_before_anything_is_looked_for():
    said = say("run", "shop:orders", "--rename", "a=b", "--rename", "c")
    assert said.code == 64
    assert "--rename c is not OLD=NEW" in said.err


def test_every_child_is_given_the_renames():
    """Until a checkpoint has the new uids it needs them, and from then on they do nothing."""
    options = RunCommand(pipeline="m:p", state="s", start=StartOptions(rename={"a": "b", "c": "d"}))
    command = options.child_command(begins=False, take_over=False, traceback=False)
    assert [command[place + 1] for place, word in enumerate(command) if word == "--rename"] == ["a=b", "c=d"]


def test_a_fresh_start_has_nothing_to_rename(tmp_path):
    @pipeline("empty")
    def empty(p):
        from penstock.connectors import console, rate

        p.read("in", rate.Source(1)).write("out", console.Sink())

    with pytest.raises(SettingsError, match="Leave one of them out"):
        Job(empty, state=tmp_path, fresh=True, rename={"a": "in"})
