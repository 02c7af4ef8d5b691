#!/usr/bin/env bash
# Buffered requests beside the kernel's page cache: a file is written and read in order in requests of 4 KiB, by `uext4
# io -b` and by dd on the kernel's ext4, on the same loop device over tmpfs. The write ends with a sync; the read is
# cold. Root. Prints both times and the ratios of their medians.
#
#   scripts/buffered-bench.sh [MIB [ROUNDS]]
#
# Fails if a ratio is below 0.7 (BUFFERED_RATIO).
set -euo pipefail
cd "$(dirname "$0")/.."

mib=${1:-1024}
rounds=${2:-5}
floor=${BUFFERED_RATIO:-0.7}
. scripts/bench-bed.sh

bed buffered-bench $((2 * mib))
truncate -s $((mib + mib / 8 + 64))M "$work/image"
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup --find --show --direct-io=on "$work/image")
mkdir "$work/mnt"

# milliseconds NAME COMMAND...
cold() { sync; echo 3 > /proc/sys/vm/drop_caches; }

for _ in $(seq "$rounds"); do
    mount -t ext4 "$device" "$work/mnt"
    rm -f "$work/mnt/file"
    sync -f "$work/mnt"
    milliseconds kernel-write dd if=/dev/zero of="$work/mnt/file" bs=4k count=$((mib * 256)) conv=fsync
    umount "$work/mnt"
    mount -t ext4 "$device" "$work/mnt"
    cold
    milliseconds kernel-read dd if="$work/mnt/file" of=/dev/null bs=4k
    rm -f "$work/mnt/file"
    umount "$work/mnt"
    milliseconds uext4-write "$uext4" io "$device:/file" -f -b -c "pwrite -b 4k 0 ${mib}m" -c fsync
    cold
    milliseconds uext4-read "$uext4" io "$device:/file" -r -b -c "pread -b 4k 0 ${mib}m"
done
e2fsck -fn "$device" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }

status=0
for what in write read; do
    theirs=$(median "$work/kernel-$what.times") mine=$(median "$work/uext4-$what.times")
    ratio=$(awk "BEGIN { printf \"%.2f\", $theirs / $mine }")
    echo "buffered-bench: $what of $mib MiB by 4 KiB: kernel $theirs ms, uext4 $mine ms; ratio $ratio"
    awk "BEGIN { exit !($ratio >= $floor) }" || { echo "buffered-bench: promised: ratio >= $floor"; status=1; }
done
exit "$status"
