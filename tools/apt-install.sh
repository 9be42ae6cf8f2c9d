#!/usr/bin/env bash
# Installs Debian packages if this machine takes them and we may; otherwise fails without a word, and the caller explains.
set -euo pipefail

command -v apt-get > /dev/null || exit 1
[ "$(id -u)" = 0 ] || exit 1
export DEBIAN_FRONTEND=noninteractive
echo "installing $*" >&2
{
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "$@"
} >&2 < /dev/null
