#!/usr/bin/env bash
# How far the arm `raw` of `uext4 bench` is from fio with the same settings on the same device: 4 KiB random reads
# from a loop device over tmpfs, one thread, 128 in flight, batches of 32, registered file and buffers. Root.
# Rounds alternate; the end prints the median of each and of the paired ratios.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")/.."
rounds=${1:-7}
uext4=${UEXT4:-target/release/uext4}
[ "$(id -u)" -eq 0 ] || { echo "compare-fio.sh: needs root (loop device, tmpfs)"; exit 1; }
[ -x "$uext4" ] || cargo build --release -p uext4-cli
work=$(mktemp -d)
loop=
clean() {
    [ -z "$loop" ] || losetup -d "$loop"
    # The loop device lets go of the file a moment after it was detached.
    for _ in 1 2 3 4 5; do
        ! mountpoint -q "$work" || umount "$work" 2>/dev/null || sleep 0.5
    done
    rmdir "$work"
}
trap clean EXIT
mount -t tmpfs -o size=2500M tmpfs "$work"
dd if=/dev/zero of="$work/image" bs=1M count=2048 status=none
loop=$(losetup -f --show --direct-io=on "$work/image")
for _ in $(seq "$rounds"); do
    "$uext4" bench randread-poll --device "$loop:/" --mkfs --qd 128 --size 1G --arms raw --seconds 3 \
        --json "$work/raw.json" > /dev/null 2>&1
    raw=$(grep -m 1 -o '"iops": *[0-9]*' "$work/raw.json" | grep -o '[0-9]*$')
    fio=$(fio --name=fio --filename="$loop" --size=1G --direct=1 --ioengine=io_uring --iodepth=128 \
        --iodepth_batch_submit=32 --iodepth_batch_complete_min=32 --iodepth_batch_complete_max=128 --bs=4k \
        --rw=randread --norandommap --registerfiles=1 --fixedbufs=1 --time_based --runtime=3 --ramp_time=0.5 \
        --gtod_reduce=1 --output-format=terse | cut -d ';' -f 8)
    echo "$raw $fio"
done | awk '
    function median(list, count,   i, j, t) {
        for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++)
            if (list[j] < list[i]) { t = list[i]; list[i] = list[j]; list[j] = t }
        return list[int((count + 1) / 2)]
    }
    { printf "round %d: raw %d, fio %d IOPS\n", NR, $1, $2; raw[NR] = $1; fio[NR] = $2; ratio[NR] = $1 / $2 }
    END { printf "median: raw %d, fio %d IOPS, raw/fio %.3f\n", median(raw, NR), median(fio, NR), median(ratio, NR) }'
