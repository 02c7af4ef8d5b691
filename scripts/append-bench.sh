#!/usr/bin/env bash
# Appends of 4 KiB with 32 in flight: fio's engine for uext4 beside io_uring on the kernel's ext4, into a new file on
# the same loop device over tmpfs, each at its best: uext4 in batches of 16, the kernel one by one. Root. Prints both
# rates and the ratio of their medians.
#
#   scripts/append-bench.sh [MIB [ROUNDS]]
#
# Fails if the ratio is below 1.0 (APPEND_RATIO).
set -euo pipefail
cd "$(dirname "$0")/.."

mib=${1:-256}
rounds=${2:-5}
floor=${APPEND_RATIO:-1.0}
. scripts/bench-bed.sh

bed append-bench $((2 * mib + 64))
scripts/fio-engine.sh > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
truncate -s $((2 * mib + 64))M "$work/image"
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup --find --show --direct-io=on "$work/image")
mkdir "$work/mnt"

# rate NAME OPTIONS...: requests a second.
rate() {
    local name=$1
    shift
    fio --rw=write --bs=4k --iodepth=32 --direct=1 --thread=1 --size="${mib}m" --fallocate=none \
        --output-format=json --name=append "$@" > "$work/out"
    sed -n '/"write" *:/,$ s/.*"iops" *: *\([0-9.]*\),.*/\1/p' "$work/out" | head -n 1 >> "$work/$name.rates"
}

for _ in $(seq "$rounds"); do
    mount -t ext4 "$device" "$work/mnt"
    rate kernel --ioengine=io_uring --filename="$work/mnt/file"
    rm "$work/mnt/file"
    umount "$work/mnt"
    rate uext4 --iodepth_batch_submit=16 --iodepth_batch_complete_min=16 \
        --ioengine="external:$PWD/target/fio/uext4.so" --device="$device" --path=file
    "$uext4" rm "$device:/file"
done
e2fsck -fn "$device" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }

theirs=$(median "$work/kernel.rates") mine=$(median "$work/uext4.rates")
ratio=$(awk "BEGIN { printf \"%.2f\", $mine / $theirs }")
echo "append-bench: 4 KiB, 32 in flight: kernel $theirs, uext4 $mine a second; ratio $ratio"
awk "BEGIN { exit !($ratio >= $floor) }" || { echo "append-bench: promised: ratio >= $floor"; exit 1; }
