#!/usr/bin/env bash
# Makes .venv: the pinned requirements, and penstock itself, editable. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(tools/find-python.sh)

has_venv() {
  "$python" -c 'import ensurepip, venv' 2> /dev/null
}

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version > /dev/null 2>&1; then
  if ! has_venv; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! { tools/apt-install.sh "python$version-venv" || tools/apt-install.sh python3-venv; } || ! has_venv; then
      echo "$python cannot make a virtual environment: install its venv module (Debian: python$version-venv)" >&2
      exit 1
    fi
  fi
  "$python" -m venv --clear .venv
fi

install() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" < /dev/null
}

echo "installing the pinned requirements (the first time, pyspark alone is about 450 MB)"
install --require-hashes -r requirements/build.txt
install --require-hashes --no-build-isolation -r requirements/dev.txt
install --no-deps --no-build-isolation --editable .
touch .venv/.installed
