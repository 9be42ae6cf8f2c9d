#!/usr/bin/env bash
# Prints the home of a Java that Spark runs on (17 or newer): JAVA_HOME, or the java on PATH, or one installed now.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# java -XshowSettings names the home and the version on any vendor's build, wherever the launcher's links lead.
setting() {
  "$1" -XshowSettings:properties -version 2>&1 | sed -n "s/^ *$2 = //p"
}

is_new_enough() {
  local version
  version=$(setting "$1" java.specification.version) || return 1
  [[ $version =~ ^[0-9]+$ ]] && [ "$version" -ge 17 ]
}

print_home_if_found() {
  local java
  for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)"; do
    if [ -x "$java" ] && is_new_enough "$java"; then
      setting "$java" java.home
      exit 0
    fi
  done
}

print_home_if_found
if "$here/apt-install.sh" openjdk-17-jre-headless || "$here/apt-install.sh" default-jre-headless; then
  print_home_if_found
fi
echo "Spark needs Java 17 or newer: install one (Debian: openjdk-17-jre-headless; macOS: brew install openjdk@17)" \
  "and put it on PATH or in JAVA_HOME" >&2
exit 1
