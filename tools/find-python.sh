#!/usr/bin/env bash
# Prints the path of a Python that penstock runs on: $PYTHON, or the first suitable one on PATH.
set -euo pipefail

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

for name in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 python; do
  if found=$(command -v "$name") && is_new_enough "$found"; then
    echo "$found"
    exit 0
  fi
done
echo "penstock needs Python 3.10 or newer: put one on PATH, or name it with PYTHON=/path/to/python3" >&2
exit 1
