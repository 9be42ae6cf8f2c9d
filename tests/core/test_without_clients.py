"""Connectors' client libraries are extras: without them all of penstock loads, and their sources can be described."""

import subprocess
import sys

LOADS_ALL = """
import importlib, pkgutil, sys
for client in ("confluent_kafka", "h11", "boto3", "botocore"):
    sys.modules[client] = None  # importing it fails
import penstock as ps
for module in pkgutil.walk_packages(ps.__path__, "penstock."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
ps.kafka.Source(servers="localhost:9092", topics=["orders"])
ps.kinesis.Source("orders")
ps.http.Source(8080, schema="id LONG")
"""


def test_every_module_loads_without_clients():
    done = subprocess.run([sys.executable, "-c", LOADS_ALL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
