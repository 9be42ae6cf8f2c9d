#!/usr/bin/env bash
# Pins what requirements/*.in ask for, with hashes, for every supported Python on Linux and macOS at once.
# Extras are kept: pip looks for the newest coverage[toml] where only coverage is pinned, and refuses it for its hash.
# The files name versions and hashes only: whoever installs them decides which index they come from.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"${PYTHON:-python3}" -m venv "$tool/venv"
"$tool/venv/bin/python" -m pip install --quiet uv

for name in build dev docs spark-4.1 spark-4.2; do
  {
    echo "# Made from $name.in by \`make lock\`; do not edit."
    "$tool/venv/bin/uv" pip compile --quiet --universal --python-version 3.10 --generate-hashes \
      --no-strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-find-links "requirements/$name.in"
  } > "$tool/$name.txt"
  mv "$tool/$name.txt" "requirements/$name.txt"
done
