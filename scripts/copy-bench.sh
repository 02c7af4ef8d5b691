#!/usr/bin/env bash
# A file copied into a volume: `uext4 cp` beside mount, cp, sync and umount of the kernel, on the same loop device over
# tmpfs. Root. Prints both times and the ratio of their medians.
#
#   scripts/copy-bench.sh [MIB [ROUNDS]]
#
# Fails if the ratio is below 1.0 (COPY_RATIO).
set -euo pipefail
cd "$(dirname "$0")/.."

mib=${1:-1024}
rounds=${2:-5}
floor=${COPY_RATIO:-1.0}
. scripts/bench-bed.sh

bed copy-bench $((3 * mib))
truncate -s $((mib + mib / 8 + 64))M "$work/image"
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup --find --show --direct-io=on "$work/image")
mkdir "$work/mnt"
head -c "${mib}M" /dev/urandom > "$work/source"

kernel() {
    mount -t ext4 "$device" "$work/mnt"
    cp "$work/source" "$work/mnt/file"
    sync -f "$work/mnt"
    umount "$work/mnt"
}
ours() { "$uext4" cp "$work/source" "$device:/file"; }
# The new file gets free blocks that were written before, in both cases.
remove() { "$uext4" rm "$device:/file"; }

kernel
remove
for _ in $(seq "$rounds"); do
    milliseconds kernel kernel
    remove
    milliseconds uext4 ours
    "$uext4" cat "$device:/file" | cmp - "$work/source"
    remove
done
e2fsck -fn "$device" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }

theirs=$(median "$work/kernel.times") mine=$(median "$work/uext4.times")
ratio=$(awk "BEGIN { printf \"%.2f\", $theirs / $mine }")
echo "copy-bench: $mib MiB copied in: kernel $theirs ms, uext4 $mine ms; ratio $ratio"
awk "BEGIN { exit !($ratio >= $floor) }" || { echo "copy-bench: promised: ratio >= $floor"; exit 1; }
