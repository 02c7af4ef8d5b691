#!/usr/bin/env bash
# The Python package beside others: 4 KiB reads by one thread, `File.preadinto` beside `os.preadv` on the mounted
# volume, from memory and past it; and a walk over 31 000 files with their sizes, beside dissect.extfs. Root. Builds the
# package as a release.
#
#   scripts/python-bench.sh [FILES [ROUNDS]]
#
# Fails if a read from memory is below 0.7 times as fast, or the walk below 20 times (PYTHON_READ, PYTHON_WALK).
set -euo pipefail
cd "$(dirname "$0")/.."

files=${1:-31000}
rounds=${2:-5}
. scripts/bench-bed.sh
# The command is not measured.
UEXT4=none bed python-bench 1024
PROFILE=${PROFILE:-release} scripts/python.sh --collect-only -q > /dev/null
venv=$target/python/venv
"$venv/bin/pip" install --quiet --disable-pip-version-check dissect.extfs==3.15
"$venv/bin/python" - "$work/image" "$files" <<'PY'
import sys, uext4
image, files = sys.argv[1], int(sys.argv[2])
uext4.mkfs(image, 512 << 20, block_size=4096, inodes=files + 2000)
with uext4.open(image) as volume:
    for number in range(files):
        if number % 1000 == 0:
            directory = volume.root / f"directory-{number // 1000}"
            directory.mkdir()
        directory.joinpath(f"file-{number}").touch()
    with volume.open_raw("/data", "w") as file:
        for part in range(64):
            file.pwrite(bytes([part]) * (1 << 20), part << 20)
PY
cp --sparse=always "$work/image" "$work/copy"
mkdir "$work/mnt"
device=$(losetup --find --show --direct-io=on "$work/copy")
mount -t ext4 -o ro "$device" "$work/mnt"
"$venv/bin/python" scripts/python-bench.py "$work/image" "$device" "$work/mnt" "$rounds" \
    "${PYTHON_READ:-0.7}" "${PYTHON_WALK:-20}"
