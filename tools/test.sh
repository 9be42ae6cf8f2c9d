#!/usr/bin/env bash
# Runs pytest with the arguments given. Every run hashes differently, so that no test leans on an order of sets;
# the header names the seed, and PYTHONHASHSEED=… repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."

# What starts a JVM maps Spark's classes from here; one that cannot (another Java, other jars) says nothing and loads them.
archive=$PWD/.venv/spark-classes.jsa
if [ -f "$archive" ]; then
  export SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$archive -Xlog:cds*=off${SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}"
fi

export PYTHONHASHSEED="${PYTHONHASHSEED:-$((RANDOM + 1))}"
exec .venv/bin/python -m pytest "$@"
