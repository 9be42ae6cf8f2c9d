#!/usr/bin/env bash
# Runs pytest with the arguments given. Every run hashes differently, so that no test leans on an order of sets;
# the header names the seed, and PYTHONHASHSEED=… repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."

# Two workers and two JVMs share two cores: the second compiler would work on code that is soon not run again.
options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
# What starts a JVM maps Spark's classes from here; one that cannot (another Java, other jars) says nothing and loads them.
archive=$PWD/.venv/spark-classes.jsa
if [ -f "$archive" ]; then
  options="-XX:SharedArchiveFile=$archive -Xlog:cds*=off $options"
fi
export SPARK_SUBMIT_OPTS="$options${SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}"

# Hundreds of tests start a Python process. Where the environment forbids bytecode, each would compile penstock anew.
unset PYTHONDONTWRITEBYTECODE

export PYTHONHASHSEED="${PYTHONHASHSEED:-$((RANDOM + 1))}"
exec .venv/bin/python -m pytest "$@"
