#!/usr/bin/env bash
# Makes .venv with everything the checkout needs. Called by `make setup` when pyproject.toml or constraints.txt changed.
# VENV, EXTRA (of pyproject.toml) and CONSTRAINTS make another one: `make ecosystem`.
# Where packages come from is pip's business: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS or pip.conf.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
extra=${EXTRA:-dev}
constraints=${CONSTRAINTS:-constraints.txt}

command -v "$python" >/dev/null || { echo "setup: $python not found; install Python 3.11 or newer, or set PYTHON" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "setup: $("$python" --version) is too old; torch-webgpu needs 3.11 or newer (set PYTHON)" >&2; exit 1; }

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    # Debian ships venv without ensurepip unless python3-venv is installed; the system's pip can fill the gap.
    "$python" -m venv --clear "$venv" 2>/dev/null ||
        { "$python" -m venv --clear --without-pip "$venv" &&
            "$python" -m pip --python "$venv/bin/python" install --quiet pip; } ||
        { echo "setup: cannot create $venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
fi
echo "setup: installing the pinned packages into $venv"
"$venv/bin/python" -m pip install --quiet --constraint "$constraints" --editable ".[$extra]"
