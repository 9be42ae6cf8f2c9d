"""A job: a pipeline on a state directory. The composition root, where all parts meet."""

from penstock.job.job import Job
from penstock.job.live import get_or_create
from penstock.job.report import Report

__all__ = ["Job", "Report", "get_or_create"]
