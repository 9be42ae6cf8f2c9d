"""The session that a preview begins where there is none: its Python workers are this Python."""

import os
import sys

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.api.preview import local_session


class Builder:
    def appName(self, name):
        return self

    def config(self, name, value):
        return self

    def getOrCreate(self):
        return os.environ["PYSPARK_PYTHON"]


def test_workers_of_a_preview_are_this_python_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert local_session() == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.10")
    assert local_session() == "python3.10"
