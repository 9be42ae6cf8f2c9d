#!/usr/bin/env bash
# Runs a core of the tests on each older Spark of requirements/spark-*.txt. Each is installed once, into a folder of its
# own in .venv, and found before the Spark of .venv; all other packages are those of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

# What uses Spark's internals, whose constructors and answers differ, and whole jobs, restarts and recorded state.
core=(
  tests/integration/test_kafka_job.py
  tests/spark/test_class_archive.py
  tests/spark/test_doctor_spark.py
  tests/spark/test_golden_checkpoints.py
  tests/spark/test_http_job.py
  tests/spark/test_job.py
  tests/spark/test_kept_plans.py
  tests/spark/test_lost_block_job.py
  tests/spark/test_matched_rows.py
  tests/spark/test_output_in_blocks.py
  tests/spark/test_packed_rows.py
  tests/spark/test_row_owners.py
  tests/spark/test_sender.py
  tests/spark/test_session_windows.py
  tests/spark/test_testing_run.py
  tests/spark/test_window_deferred.py
  tests/spark/test_window_grouping.py
  tests/spark/test_window_state.py
)

failed=()
for wanted in requirements/spark-*.txt; do
  name=$(basename "$wanted" .txt)
  folder=$PWD/.venv/$name
  if ! cmp -s "$wanted" "$folder/installed.txt"; then
    echo "installing $name (about 450 MB)"
    rm -rf "$folder"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
      --no-build-isolation --target "$folder" -r "$wanted"
    cp "$wanted" "$folder/installed.txt"
  fi
  # Older versions of PySpark leave sockets to the garbage collector, which is no fault of ours.
  PYTHONPATH=$folder tools/test.sh -m "not long and not nightly" -W ignore::ResourceWarning \
    -W ignore::pytest.PytestUnraisableExceptionWarning "$@" "${core[@]}" || failed+=("$name")
done
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed on ${failed[*]}" >&2
  exit 1
fi
