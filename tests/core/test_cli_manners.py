"""How every command behaves towards a terminal, a pipe, a reader that goes away, Ctrl-C and Tab."""

import io
import os
import subprocess
import sys

import pytest

from core.checkpoint_values import CLAIM
from core.cli_kit import Terminal, say
from core.test_cli_checkpoints import _write as write_log
from core.test_cli_checkpoints import at
from penstock.cli.main import dispatch, make_app
from penstock.cli.options import _BY_TAB
from penstock.cli.output import Output, ProgressLine, counting_bytes
from penstock.cli.run import RunCommand, _Runner
from penstock.facts import Restoring
from penstock.job.start import FROM_LATEST

COMMANDS = (
    ("--help",),
    ("run", "--help"),
    ("checkpoints", "JOB", "--state", "STATE"),
    ("checkpoints", "jobb", "--state", "STATE"),
    ("doctor", "--no-spark", "--state", "STATE"),
    ("rum",),
    ("demo", "--rows", "3"),
)
"""Results, helps and refusals."""


@pytest.fixture
def state(tmp_path):
    write_log(tmp_path / "state", [CLAIM, at(0), at(1, 0)])
    return tmp_path / "state"


def job_of(state):
    return next(state.iterdir()).name


def filled(words, state):
    return [{"JOB": job_of(state), "STATE": str(state)}.get(word, word) for word in words]


def shown(words, *, terminal, **environment):
    stream = Terminal if terminal else io.StringIO
    out, err = stream(), stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        dispatch(words, Output(out=out, err=err))
    return out.getvalue() + err.getvalue()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_off_a_terminal_there_are_no_control_codes(words, state):
    assert "\x1b" not in shown(filled(words, state), terminal=False, TERM="xterm", FORCE_COLOR="1")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_color_leaves_colours_out_on_a_terminal(words, state):
    assert "\x1b[3" not in shown(filled(words, state), terminal=True, TERM="xterm-256color", NO_COLOR="1")


def test_there_are_colours_on_a_terminal(state):
    assert "\x1b[3" in shown(["doctor", "--no-spark", "--state", str(state)], terminal=True, TERM="xterm-256color")


# ------------------------------------------------------------------------------------------------ results that are lost


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "JSON"])
def test_a_result_that_the_disk_has_no_room_for_is_a_failure(state, more):
    command = [sys.executable, "-m", "penstock", "checkpoints", job_of(state), "--state", str(state), *more]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        ["penstock: The result could not be written to stdout (No space left on device)."],
    )


def test_a_command_whose_reader_goes_away_ends_with_its_own_code(state):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    words = ["lag", job_of(state), "--state", str(state), "--max-lag", "10", "--json"]
    codes = [dispatch(words, Output(out=out, err=io.StringIO())) for out in (io.StringIO(), Gone())]
    assert codes[0] == codes[1] != 0


# ------------------------------------------------------------------------------------------------- what is waited for


def test_off_a_terminal_what_is_waited_for_is_a_line():
    err = io.StringIO()
    with ProgressLine(Output(err=err)) as waiting:
        waiting.on("orders: starting Spark")
        waiting.off()
        waiting.off()

    assert err.getvalue() == "orders: starting Spark …\n"


def test_on_a_terminal_it_is_a_line_that_counts_and_goes_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    err = Terminal()
    with ProgressLine(Output(err=err)) as waiting:
        waiting.on("orders: starting Spark")
        waiting.on("orders: something else")

    assert "orders: starting Spark … 0:00:00" in err.getvalue()
    assert err.getvalue().endswith("\x1b[2K"), "the line is erased at the end"


def test_how_far_it_is_is_told_on_a_terminal_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    shown, file = Terminal(), io.StringIO()
    for err in (shown, file):
        with ProgressLine(Output(err=err)) as waiting:
            waiting.now("orders: restoring 'totals', 2.0 MB of 44.0 MB done")
            waiting.now("orders: restoring 'totals', 4.0 MB of 44.0 MB done")
        with counting_bytes(Output(err=err), "copying") as told:
            told(0, 44_000)
            told(44_000, 44_000)

    assert "orders: restoring 'totals', 4.0 MB of 44.0 MB done … 0:00:00" in shown.getvalue()
    assert "copying" in shown.getvalue()
    assert "44.0/44.0 kB" in shown.getvalue()
    assert file.getvalue() == ""


def test_a_start_tells_what_it_does_until_its_sources_read_and_nothing_after_that(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    err = Terminal()
    runner = _Runner(RunCommand(pipeline="shop:orders", state="state", start=FROM_LATEST), Output(err=err))
    runner._progress.on("orders: starting Spark")
    runner._listen(Restoring(doing="restoring", task="totals", done=2_000_000, total=44_000_000))
    runner._progress.off()
    first = err.getvalue()
    runner._has_started = True  # from here on there is a line of now
    runner._listen(Restoring(doing="restoring", task="totals", done=4_000_000, total=44_000_000))

    assert "restoring 'totals', 2.0 MB of 44.0 MB done …" in first
    assert err.getvalue() == first


# ---------------------------------------------------------------------------------------------- ends that come early


def test_ctrl_c_is_told_as_what_it_is(state, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.checkpoints.JobDirectory", lambda *_, **__: interrupted())

    said = say("checkpoints", "orders", "--state", str(state))

    assert (said.code, said.err) == (130, "penstock: Interrupted.\n")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_is_no_error(state, form):
    words = [sys.executable, "-m", "penstock", "checkpoints", job_of(state), "--state", str(state), *form]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------------------------------------------------------- Tab


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_the_shell_is_written_where_it_is_asked_for(tmp_path, shell, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "there" / "penstock.script"

    said = say("--install-completion", "--shell", shell, "--output", str(path))

    assert said.code == 0
    assert f"completion for {shell} is in {path}" in said.err
    script = path.read_text()
    for word in ("checkpoints", "doctor", "--state", "--until"):
        assert word in script
    assert [each.name for each in tmp_path.iterdir()] == ["there"], "no start-up file was touched"


def test_where_the_shell_cannot_be_told_it_is_asked_for(monkeypatch):
    from cyclopts import completion

    def unknown():
        raise completion.ShellDetectionError

    monkeypatch.setattr(completion, "detect_shell", unknown)

    said = say("--install-completion")

    assert said.code == 64
    assert "Add --shell bash" in said.err


@pytest.mark.skipif(not _BY_TAB, reason="the command line library of Python 3.10 is too old for it")
def test_tab_offers_the_jobs_of_the_state_folder(state, capsys):
    app = make_app(Output())
    app(["__complete", "checkpoints", "--state", str(state), ""])

    assert capsys.readouterr().out.splitlines()[-1] == job_of(state)
