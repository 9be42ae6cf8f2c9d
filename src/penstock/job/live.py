"""The jobs that this process has, so that the same call finds one or makes it. Knows nothing of what jobs do."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.graph.pipeline import PipelineDefinition
from penstock.job.job import Job

_live: dict[tuple[str, str], Job] = {}
_live_lock = threading.Lock()


def get_or_create(pipeline: PipelineDefinition, *, state: str | Path, **options: object) -> Job:
    """The job of this name on this state directory that this process has, or a new one that continues what is there.

    The same call starts from a checkpoint directory or afresh. Code is never stored: the pipeline given here runs.
    Options are those of :class:`Job`; they count only when it is made.

    Example::

        job = ps.get_or_create(orders, state="./state")
        job.run(until="caught-up")
    """
    key = (str(Path(state).resolve()) if "://" not in str(state) else str(state), pipeline.name)
    with _live_lock:
        job = _live.get(key)
        if job is None or job.is_over:
            job = _live[key] = Job(pipeline, state=state, **options)  # type: ignore[arg-type]
        return job
