#!/usr/bin/env bash
# The measured promises: instruction counts (valgrind) and ratios of speeds measured side by side,
# the walk over a million files, the check beside e2fsck, buffered requests and SQLite beside the kernel, and volumes
# made with their files, volumes in qcow2 images and on servers among them, and the Python package.
set -u
cd "$(dirname "$0")/.."
. scripts/steps.sh

step instructions release_tests instructions
step floors release_tests floors
step walk scripts/walk-bench.sh 1000000 100 3
step check scripts/check-bench.sh
step buffered scripts/buffered-bench.sh
step sqlite scripts/sqlite-bench.sh
step copy scripts/copy-bench.sh
step atomic scripts/atomic-bench.sh
step append scripts/append-bench.sh
step image scripts/image-bench.sh
step nbd scripts/nbd-bench.sh
step serve scripts/serve-bench.sh
step qcow2 scripts/qcow2-bench.sh
step rbd scripts/rbd-bench.sh
step python scripts/python-bench.sh
finish
