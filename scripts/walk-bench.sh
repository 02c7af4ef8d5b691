#!/usr/bin/env bash
# Walk and stat of a million files: `uext4 find` beside the kernel's ext4 and find(1), both cold, on the same
# loop device over tmpfs. Root. Prints both times, the ratio of their medians, and our resident memory.
#
#   scripts/walk-bench.sh [FILES [DIRECTORIES [ROUNDS]]]
#
# Fails if the ratio is below 0.7 or the memory above 128 MiB (WALK_RATIO, WALK_RSS_MIB). WALK_DIRECT=off lets the
# loop device go through the page cache.
set -euo pipefail
cd "$(dirname "$0")/.."

files=${1:-1000000}
directories=${2:-100}
rounds=${3:-5}
floor=${WALK_RATIO:-0.7}
most=${WALK_RSS_MIB:-128}
. scripts/bench-bed.sh

bed walk-bench "$((files * 512 / 1048576 + 512))"

# Inodes, their tables and the directories: 256 bytes and a name for each file.
truncate -s $((files * 512 / 1048576 + 512))M "$work/image"
mke2fs -q -F -t ext4 -N $((files + files / 10 + 1000)) -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup --find --show --direct-io="${WALK_DIRECT:-on}" "$work/image")
mkdir "$work/mnt"
mount -t ext4 "$device" "$work/mnt"
per=$((files / directories))
for directory in $(seq -w "$directories"); do
    mkdir "$work/mnt/directory-$directory"
    (cd "$work/mnt/directory-$directory" && seq -f 'file-%07g.txt' "$per" | xargs touch)
done
umount "$work/mnt"
echo "walk-bench: $((per * directories)) files in $directories directories on $device"

cold() { sync; echo 3 > /proc/sys/vm/drop_caches; }
# seconds COMMAND...: wall-clock time.
seconds() {
    local start end
    start=$(date +%s%N)
    "$@"
    end=$(date +%s%N)
    echo $(((end - start) / 1000000)) | awk '{ printf "%.3f\n", $1 / 1000 }'
}
kernel() { find "$work/mnt" -printf '%s\n' > "$work/kernel.out"; }
# A test that every file passes and that needs its inode.
ours() { "$uext4" find "$device" --links +0 > "$work/ours.out"; }
# The highest resident size of one of our walks, MiB. The kernel keeps the mark; the last look comes close.
memory() {
    local pid high=0 now
    "$uext4" find "$device" --links +0 > /dev/null &
    pid=$!
    while now=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null) && [ -n "$now" ]; do
        high=$now
    done
    wait "$pid"
    echo $(((high + 1023) / 1024))
}

for _ in $(seq "$rounds"); do
    mount -t ext4 -o ro "$device" "$work/mnt"
    cold
    seconds kernel >> "$work/kernel.times"
    umount "$work/mnt"
    cold
    seconds ours >> "$work/ours.times"
done
[ "$(wc -l < "$work/kernel.out")" -eq "$(wc -l < "$work/ours.out")" ] ||
    { echo "walk-bench: $(wc -l < "$work/kernel.out") and $(wc -l < "$work/ours.out") entries"; exit 1; }
theirs=$(median "$work/kernel.times")
mine=$(median "$work/ours.times")
rss=$(memory)
ratio=$(awk "BEGIN { printf \"%.2f\", $theirs / $mine }")
echo "walk-bench: kernel find -printf %s, cold: $theirs s; uext4 find with stat: $mine s; ratio $ratio;" \
    "$rss MiB resident"
awk "BEGIN { exit !($ratio >= $floor && $rss <= $most) }" ||
    { echo "walk-bench: promised: ratio >= $floor, at most $most MiB"; exit 1; }
