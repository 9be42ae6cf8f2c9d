"""``penstock run``: as a parent that watches, or as the process that runs the job. Thin: all work is the job's."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from penstock.cli.engine import EngineWatch, log_to_file
from penstock.cli.exits import ExitCode
from penstock.cli.lifeline import StopRequests
from penstock.cli.live import LiveOutput
from penstock.cli.locate import locate, refused
from penstock.cli.planned import Expected, as_planned, expected
from penstock.cli.preparing import progress_of
from penstock.cli.process import Parent
from penstock.cli.renames import renames_of
from penstock.cli.waiting import Waiting
from penstock.errors import EngineDied, PenstockError
from penstock.facts import Fact, JobStarted, Restoring
from penstock.runtime.clock import SystemClock
from penstock.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cli.output import Output
    from penstock.job import Job

STOP_TIMEOUT: Final = "8s"
"""So that a process that is asked to stop is gone after 10 s, which is what most that ask allow before they kill."""

LAST_WORDS: Final = 3.0
"""Seconds that a job gets to fail by itself once its JVM is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What was asked for on the command line."""

    pipeline: str
    state: str
    until: str = "stopped"
    fresh: bool = False
    restore_from: str | None = None
    claim: bool = False
    discard_unpublished: bool = False
    allow_non_restored_state: bool = False
    rename: tuple[str, ...] = ()
    take_over: bool = False
    master: str | None = None
    plan: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def command(self, *, begins: bool, take_over: bool, traceback: bool) -> list[str]:
        """The command line of the process that does it; ``begins``: where it begins is not in the log yet."""
        parts = [sys.executable, "-m", "penstock", "run", self.pipeline, "--no-parent", "--state", self.state]
        parts += ["--until", self.until]
        flags = {
            "--fresh": self.fresh and begins,
            "--claim": self.claim and begins,
            "--discard-unpublished": self.discard_unpublished and begins,
            "--allow-non-restored-state": self.allow_non_restored_state,
            "--take-over": take_over,
            "--traceback": traceback,
        }
        parts += [name for name, is_set in flags.items() if is_set]
        for pair in self.rename:  # always: harmless once a checkpoint names the new uids, and needed until then
            parts += ["--rename", pair]
        given = {
            "from": self.restore_from if begins else None,
            "plan": self.plan,
            "master": self.master,
            **self.settings,
        }
        for name, value in given.items():
            if value is not None:
                parts += [f"--{name.replace('_', '-')}", str(value)]
        return parts


def run_as_parent(options: RunOptions, output: Output) -> int:
    """Watch a child that runs the job.

    ``--fresh`` and ``--from`` count until a child had begun to read. ``--take-over`` counts for the first child only:
    whoever takes the job from that one meanwhile keeps it. ``--plan`` likewise: the log moves on with that one. Those
    after it begin as was planned.
    """
    from penstock.job.beginning import read_beginning

    read_settings(options.settings)
    read_beginning(
        fresh=options.fresh,
        restore_from=options.restore_from,
        claim=options.claim,
        discard_unpublished=options.discard_unpublished,
    )
    renames_of(options.rename)
    later = options if options.plan is None else as_planned(options)
    starts = itertools.count()

    def command(has_run: bool) -> Sequence[str]:
        is_first = next(starts) == 0
        given = options if is_first else later
        return given.command(
            begins=not has_run,
            take_over=given.take_over and is_first,
            traceback=output.traceback,
        )

    parent = Parent(
        command,
        tell=lambda text: output.note(f"penstock: {text}", style="yellow"),
    )
    code = parent.run()
    output.err.show_cursor(True)
    return code


def run_as_child(options: RunOptions, output: Output) -> int:
    """Run the job in this process."""
    return _Runner(options, output).run()


class _Runner:
    """One job in this process, with everything that may end it."""

    def __init__(self, options: RunOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._live: LiveOutput | None = None
        self._waiting = Waiting(output)
        self._name = ""
        self._has_started = False
        self._over = threading.Event()
        self._requests = StopRequests(at_once=self._end_at_once, tell=lambda text: output.note(f"penstock: {text}"))
        self._engine = EngineWatch(self._engine_died)

    def run(self) -> int:
        _log_to(self._output)
        if self._options.master is not None:
            os.environ["PENSTOCK_MASTER"] = self._options.master
        job = self._job()
        self._requests.bind(job.request_stop)
        try:
            if not self._requests.is_asked:
                self._waiting.on(f"{job.name}: starting Spark")
                job.start(self._options.until)
            job.wait()
        except PenstockError as error:
            return self._failed(error)
        finally:
            self._engine.release()
            self._over.set()
            self._close_lines()
        return ExitCode.INTERRUPTED if job.is_cut_short else ExitCode.ENDED

    def _job(self) -> Job:
        from penstock.job import Job

        options = self._options if self._options.plan is None else as_planned(self._options)
        settings = run_settings(options.settings)
        definition = locate(options.pipeline)
        self._name = definition.name
        seen: Expected | None = None
        if self._options.plan is not None:
            seen = expected(self._options, definition.graph(), read_settings(settings))
        engine_log = log_to_file(definition.name, options.state)
        logging.getLogger("penstock").debug("the engine writes its log to %s", engine_log)
        try:
            job = Job(
                definition,
                state=options.state,
                fresh=options.fresh,
                restore_from=(None if seen is None else seen.export) or options.restore_from,
                claim=options.claim,
                discard_unpublished=options.discard_unpublished,
                allow_non_restored_state=options.allow_non_restored_state,
                rename=renames_of(options.rename),
                take_over=options.take_over,
                expect=None if seen is None else seen.log,
                listener=self._listen,
                **cast("Any", settings),
            )
        except PenstockError:
            raise
        except Exception as error:
            raise refused(error) from error
        self._live = LiveOutput(job.name, output=self._output, clock=SystemClock(), sinks=job.graph.sinks)
        return job

    def _listen(self, fact: Fact) -> None:
        if isinstance(fact, Restoring) and not self._has_started:
            self._waiting.now(f"{self._name}: {progress_of(fact)}")
        if isinstance(fact, JobStarted):
            self._has_started = True  # from then on there is a line of now, and one at a time
            self._waiting.off()
            self._engine.begin()
            self._requests.running()
        if self._live is not None:
            self._live(fact)

    def _close_lines(self) -> None:
        """Leave the terminal as it was."""
        self._waiting.off()
        if self._live is not None:
            self._live.close()

    def _failed(self, error: PenstockError) -> int:
        self._close_lines()
        if self._engine.is_dead and not isinstance(error, EngineDied):
            error = _dead(error)
        code = self._output.error(error)
        if code == ExitCode.ENGINE_DIED:
            self._leave(code)
        return code

    # ------------------------------------------------------------------------- ends that do not come from the job

    def _end_at_once(self) -> NoReturn:
        self._output.note("penstock: ended at once; the next start goes on from the last complete checkpoint")
        self._leave(ExitCode.INTERRUPTED)

    def _engine_died(self) -> None:
        if not self._over.wait(LAST_WORDS):
            self._output.error(_dead(None))
            self._leave(ExitCode.ENGINE_DIED)

    def _leave(self, code: ExitCode) -> NoReturn:
        """End this process now: nothing that still runs in it could do anything useful."""
        self._close_lines()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def run_settings(given: Mapping[str, object]) -> Mapping[str, object]:
    """Those of the command line, and how long a stop may take; the environment counts before our own default of it."""
    if read_settings(given).stop_timeout is None:
        return {**given, "stop_timeout": STOP_TIMEOUT}
    return given


def _dead(cause: BaseException | None) -> EngineDied:
    error = EngineDied("the JVM under Spark is gone; the job goes on from its last complete checkpoint")
    error.__cause__ = cause
    return error


class _ToOutput(logging.Handler):
    """Log records of penstock, as lines of ours."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(f"penstock: {record.getMessage()}", style="yellow")


def _log_to(output: Output) -> None:
    logger = logging.getLogger("penstock")
    logger.addHandler(_ToOutput(output))
    logger.propagate = False
    if not output.traceback:  # the JVM's client would tell of its death first, with a trace, on the root logger itself
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
