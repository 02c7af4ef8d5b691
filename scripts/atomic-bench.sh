#!/usr/bin/env bash
# Durable atomic writes of 16 KiB, one at a time, beside what an application does without them: each page is written
# durably to a journal, then in place. On a loop device over tmpfs, which promises nothing, has a cache and no FUA.
# Root. Prints both times and the ratio of their medians.
#
#   scripts/atomic-bench.sh [MIB [ROUNDS]]
#
# Fails if the ratio is below 0.7 (ATOMIC_RATIO). Both ways wait for two flushes, one after another
# (docs/proof/results.md).
set -euo pipefail
cd "$(dirname "$0")/.."

mib=${1:-64}
rounds=${2:-7}
floor=${ATOMIC_RATIO:-0.7}
. scripts/bench-bed.sh

bed atomic-bench $((8 * mib))
truncate -s $((4 * mib + 64))M "$work/image"
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup --find --show --direct-io=on "$work/image")
for file in pages journal; do
    "$uext4" io "$device:/$file" -f -c "pwrite -b 1m 0 ${mib}m" -c fsync > /dev/null
done

# milliseconds NAME FILE OPTIONS: the time of the writes alone, without opening the volume.
milliseconds() {
    # shellcheck disable=SC2086  # words
    "$uext4" io --json "$device:/$2" -c "pwrite $3 -D -b 16k 0 ${mib}m" > "$work/out"
    sed -n 's/.*"seconds": *\([0-9.e-]*\).*/\1/p' "$work/out" | awk '{ printf "%.1f\n", 1000 * $1 }' >> "$work/$1.times"
}

for _ in $(seq "$rounds"); do
    milliseconds atomic pages -A
    milliseconds journal journal ""
    milliseconds place pages ""
done
e2fsck -fn "$device" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }

journal=$(median "$work/journal.times") place=$(median "$work/place.times") atomic=$(median "$work/atomic.times")
ratio=$(awk "BEGIN { printf \"%.2f\", ($journal + $place) / $atomic }")
echo "atomic-bench: $mib MiB by 16 KiB: journal $journal ms and in place $place ms, atomic $atomic ms; ratio $ratio"
awk "BEGIN { exit !($ratio >= $floor) }" || { echo "atomic-bench: promised: ratio >= $floor"; exit 1; }
