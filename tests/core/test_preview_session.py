"""The session that a preview begins where there is none is as a job's: its Python workers are this Python."""

import os
import sys

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.api.preview import local_session
from penstock.spark import session


class Begun(Exception):
    """A JVM would be started now."""


def test_workers_of_a_preview_are_this_python_unless_told_otherwise(monkeypatch):
    asked = []

    def start_jvm(conf):
        asked.append((os.environ["PYSPARK_PYTHON"], conf.get("spark.scheduler.mode")))
        raise Begun

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(session, "start_jvm", start_jvm)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    for chosen in (None, "python3.10"):
        if chosen is not None:
            monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        with pytest.raises(Begun):
            local_session()
    assert asked == [(sys.executable, "FAIR"), ("python3.10", "FAIR")]
