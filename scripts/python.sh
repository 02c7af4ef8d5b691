#!/usr/bin/env bash
# `make python`: builds the wheel of python/ as `pip install ./python` does, though not as a release (PROFILE=release
# does), installs it in a virtual environment of its own, target/python/venv, and runs its tests there.
#   scripts/python.sh [ARGUMENTS OF PYTEST...]
# Exit status 77: the packages of the tests cannot be fetched.
set -eu
cd "$(dirname "$0")/.."
. scripts/target.sh
out=$target/python
venv=$out/venv
mkdir -p "$out"

# Only if the list of packages changed: that takes the longest.
environment() {
    local wanted
    wanted=$(cat python/tests/requirements.txt <(python3 --version) | sha256sum)
    [ "$(cat "$venv/made-for" 2>/dev/null)" != "$wanted" ] || return 0
    python3 -m venv --clear "$venv"
    timeout 600 "$venv/bin/pip" install --quiet --disable-pip-version-check \
        -r python/tests/requirements.txt || return 77
    echo "$wanted" > "$venv/made-for"
}

wheel() {
    rm -rf "$out/wheel"
    MATURIN_PEP517_ARGS="--profile ${PROFILE:-dev} --locked" "$venv/bin/pip" wheel --quiet \
        --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$out/wheel" ./python
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$out"/wheel/*.whl
}

environment
# The module is built by the interpreter's own tools, which are in the environment.
PATH=$venv/bin:$PATH wheel
export UEXT4_WHEEL PYTHONDONTWRITEBYTECODE=1 MYPY_CACHE_DIR=$out/mypy
UEXT4_WHEEL=$(echo "$out"/wheel/*.whl)
cd python
exec timeout 1200 "$venv/bin/python" -m pytest -o cache_dir="$out/pytest" "$@"
