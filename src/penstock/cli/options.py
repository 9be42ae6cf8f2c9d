"""Options that commands share; the pipeline by ``module:name``; a Spark session."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from cyclopts import Parameter

from penstock.checkpoint.recovery import check_rename
from penstock.cli.output import Output, UsageError
from penstock.clock import parse_duration
from penstock.errors import GraphError, PenstockError, did_you_mean
from penstock.spark.jvm import log_jvm_to_file
from penstock.user_code import raised_at, short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from pyspark.sql import SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.cli.spark_options import SparkOptions
    from penstock.job.start import StartOptions


# ---- options -------------------------------------------------------------------------------------------------------

STATE: Final = ".penstock"


def _jobs(context: Any) -> list[str]:
    """Completions for a job's name: the jobs in the folder of ``--state``, also as the project's file has it."""
    from penstock.cli.project_file import find_project
    from penstock.control.client import jobs_in

    state, default = context.get("--state"), STATE
    with suppress(UsageError):  # the command itself tells what is wrong with the file
        project = find_project()
        default = STATE if project is None else project.options.get("state", STATE)
    return jobs_in((state.raw if state is not None else None) or default)


_BY_TAB: Final[dict[str, Any]] = {"completer": _jobs} if "completer" in inspect.signature(Parameter).parameters else {}
"""Completion by Tab; empty where cyclopts is too old for it (on Python 3.10)."""
Flag: Final = Parameter(negative="", show_default=False)
State: TypeAlias = Annotated[str, Parameter(help="Folder that holds the state of jobs.")]
JobName: TypeAlias = Annotated[str, Parameter(help='Name of the job, as in @ps.pipeline("orders").', **_BY_TAB)]
AsJson: TypeAlias = Annotated[
    bool,
    Parameter(
        name="--json", negative="", show_default=False, help="For scripts: one document with a versioned schema."
    ),
]
PipelineName: TypeAlias = Annotated[str, Parameter(help="module:pipeline, also from the current folder.")]
Begin: Final = Parameter(
    name="--from", help="Savepoint or checkpoint to begin at, or an exported folder (with a slash)."
)
Claim: TypeAlias = Annotated[
    bool, Flag, Parameter(help="Take over the files of the exported folder: they are deleted there.")
]
Fresh: TypeAlias = Annotated[bool, Flag, Parameter(help="Begin empty; the state that is there is kept.")]
LeaveState: TypeAlias = Annotated[
    bool, Flag, Parameter(help="Leave state unused whose step the pipeline no longer has.")
]
MaxRows: TypeAlias = Annotated[int | None, Parameter(help="Maximum number of rows of a batch.")]
Rename: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(negative="", show_default=False, help="OLD=NEW: a step goes on with the state of its old uid."),
]
Timeout: TypeAlias = Annotated[
    str | None, Parameter(help="How long to wait for the job's answer, such as 30s; no limit by default.")
]
Yes: TypeAlias = Annotated[bool, Parameter(negative="", show_default=False, help="Do not ask; for scripts.")]


def seconds_of(text: str | None, option: str = "--timeout") -> float | None:
    """A duration from the command line, in seconds.

    Raises:
        UsageError: the text is not a duration; the message has the option's name.
    """
    if text is None:
        return None
    try:
        return parse_duration(option, text) / 1_000_000
    except GraphError as error:
        raise UsageError(str(error)) from error


def settings_of(
    checkpoint_every: str | None, stop_timeout: str | None, max_rows_per_batch: int | None, retained: int | None
) -> dict[str, object]:
    """Settings that ``run`` and ``plan`` take as options; ``None`` leaves the environment's value or the default."""
    return {
        "checkpoint_every": checkpoint_every,
        "stop_timeout": stop_timeout,
        "max_rows_per_batch": max_rows_per_batch,
        "retained": retained,
    }


def start_options(
    *,
    fresh: bool,
    restore_from: str | None,
    claim: bool,
    discard_unpublished: bool,
    allow_non_restored_state: bool,
    rename: Sequence[str],
) -> StartOptions:
    """How to start, from the options of ``run``.

    Raises:
        SettingsError: the options contradict one another.
        UsageError: a rename is not written as OLD=NEW.
    """
    from penstock.job.start import parse_start_options

    return parse_start_options(
        fresh=fresh,
        restore_from=restore_from,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
        rename=renames_of(rename),
    )


def renames_of(pairs: Sequence[str]) -> dict[str, str]:
    """New uids by old ones, from all ``--rename OLD=NEW`` options.

    Raises:
        UsageError: one is not written like that, or repeats an old uid.
        SettingsError: they contradict one another.

    >>> renames_of(["totals=sums", "in=orders"])
    {'totals': 'sums', 'in': 'orders'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new) or old in found:
            msg = f"--rename {pair} is not OLD=NEW, or repeats an old uid. Write for example --rename totals=sums."
            raise UsageError(msg)
        found[old] = new
    return check_rename(found)


# ---- the pipeline --------------------------------------------------------------------------------------------------


def load_pipeline(target: str, *, state: str | None = None) -> PipelineDefinition:
    """The pipeline that ``module:name`` names; the current folder is searched first.

    Args:
        target: ``module:name``.
        state: the folder for the log of a JVM that the module needs; by default that for temporary files.

    Raises:
        UsageError: there is no such module or pipeline; the message has the nearest names.
        GraphError: the module's own code raised; the message has the user's line.
    """
    name, colon, attribute = target.partition(":")
    if not colon or not name or not attribute:
        raise UsageError(_shape(target))
    search_current_folder()
    module = _import(name, target, state or gettempdir())
    found = getattr(module, attribute, None)
    if found is None:
        here = _pipelines(module)
        msg = f"Module {name!r} has no pipeline {attribute!r}{_hint(attribute, here, 'It has no pipeline at all.')}"
        raise UsageError(msg)
    if not _is_pipeline(found):
        msg = f'{target} is a {type(found).__name__}, not a pipeline. Put @ps.pipeline("{attribute}") above it.'
        raise UsageError(msg)
    return found  # type: ignore[no-any-return]


def search_current_folder() -> None:
    """Let the user's modules be imported from the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _shape(target: str) -> str:
    path = Path(target.partition(":")[0])
    example = f"{path.stem}:{target.partition(':')[2] or 'orders'}" if path.suffix == ".py" else f"{target}:orders"
    return f"{target!r} is not module:pipeline. Write for example {example}."


def _import(name: str, target: str, state: str) -> ModuleType:
    if name.endswith(".py") or "/" in name:
        raise UsageError(_shape(target))
    try:
        return _imported(name, state)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise user_code_error(error) from error
        near = [module.name for module in pkgutil.iter_modules([os.getcwd()])]
        msg = f"There is no module {name!r} in {os.getcwd()} or on the path"
        raise UsageError(msg + _hint(name, near, "This folder has no modules.")) from None
    except PenstockError:
        raise
    except Exception as error:
        raise user_code_error(error) from error


@contextmanager
def explaining_user_code() -> Iterator[None]:
    """Context that turns an exception of the user's code into an error with the user's line.

    Raises:
        GraphError: the user's code raised.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise user_code_error(error) from error


def _imported(name: str, state: str) -> ModuleType:
    """The module. If it needs Spark, as ``@udf("double")`` does, it is imported once more with a session."""
    from penstock.spark.session import borrow_session, lacks_session

    try:
        return importlib.import_module(name)
    except Exception as error:
        if not lacks_session(error):
            raise
    log_jvm_to_file(name, state)
    with borrow_session(name):
        return importlib.import_module(name)


def user_code_error(error: BaseException) -> GraphError:
    """The exception of the user's code, as an error with the user's line and no other frame."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return GraphError(f"SyntaxError: {error.msg}", where=f"{short_path(error.filename)}:{error.lineno}")
    return GraphError(what, where=raised_at(error))


def _pipelines(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if _is_pipeline(value)]


def _is_pipeline(value: object) -> bool:
    from penstock.api.pipeline import PipelineDefinition

    return isinstance(value, PipelineDefinition)


def _hint(name: str, known: Iterable[str], none: str) -> str:
    return did_you_mean(name, known) or f". {none}"


# ---- a session -----------------------------------------------------------------------------------------------------


@contextmanager
def session_for(output: Output, spark: SparkOptions, purpose: str) -> Iterator[SparkSession]:
    """A session for a command that reads but runs no job: on the current Spark application, or one of its own.

    Args:
        output: says that Spark starts, which takes a while.
        spark: options of a session of its own.
        purpose: names an application of its own, such as ``state query``; its log is thrown away.
    """
    from penstock.spark.query_log import quiet
    from penstock.spark.session import borrow_session, current_session

    with TemporaryDirectory(prefix="penstock-") as folder, quiet():
        spark.use()
        if current_session() is None:
            output.note("starting Spark …", style="dim")
            log_jvm_to_file(purpose.replace(" ", "-"), folder)
        with borrow_session(purpose) as session:
            yield session
