#!/usr/bin/env bash
# Runs pytest with the arguments given. Every run hashes differently, so that no test leans on an order of sets;
# the header names the seed, and PYTHONHASHSEED=… repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONHASHSEED="${PYTHONHASHSEED:-$((RANDOM + 1))}"
exec .venv/bin/python -m pytest "$@"
