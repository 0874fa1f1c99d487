#!/usr/bin/env bash
# Makes the virtual environment DIR: finds a Python >= 3.11, installs the project (editable) and its dev group.
# Run by `make install`. PYTHON names the interpreter to use instead of the first one that fits.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: make_venv.sh DIR}

fits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local name names=(python3 python3.13 python3.12 python3.11 python3.14 python)
  [ -z "${PYTHON:-}" ] || names=("$PYTHON")  # one path, which may hold spaces
  for name in "${names[@]}"; do
    if command -v "$name" >/dev/null 2>&1 && fits "$name"; then
      command -v "$name"
      return
    fi
  done
  {
    if [ -n "${PYTHON:-}" ]; then
      echo "make install: PYTHON=$PYTHON is not a Python >= 3.11 that can make virtual environments."
    else
      echo "make install: no Python >= 3.11 that can make virtual environments was found."
    fi
    echo "  looked for: ${names[*]}"
    echo "  found here: $(python3 --version 2>&1 || echo 'no python3')"
    echo "  Install one (on Debian and Ubuntu also its -venv package), or name it: make install PYTHON=/path/to/python3"
  } >&2
  return 1
}

fetch() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet "$@" && return
  {
    echo "make install: pip could not fetch what the project needs (see above)."
    echo "  pip uses the package index of your pip configuration; without one it needs PIP_FIND_LINKS or PIP_INDEX_URL."
  } >&2
  return 1
}

# An environment whose interpreter is gone, or that was copied from elsewhere, is made anew.
home() { "$venv/bin/python" -c 'import os, sys, pip; print(os.path.realpath(sys.prefix))' 2>/dev/null; }
if [ ! -x "$venv/bin/python" ] || [ "$(home)" != "$(pwd -P)/$venv" ]; then
  python=$(find_python)
  echo "make install: $("$python" --version) -> $venv/" >&2
  "$python" -m venv --clear "$venv"
fi
# Dependency groups need pip 25.1; a Python may come with an older one. Already new enough: nothing is fetched.
fetch 'pip>=25.1'
fetch --editable . --group dev
