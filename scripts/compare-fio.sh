#!/usr/bin/env bash
# How far `uext4 bench` is from fio with the same settings on the same device: 4 KiB random reads from a loop device
# over tmpfs, one thread, 128 in flight, batches of 32, registered file and buffers. Arm `raw` beside fio's io_uring,
# arm `on` beside fio with the engine, on the same file of the same volume. Root.
# Rounds alternate; the end prints the medians and that of the paired ratios.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")/.."
rounds=${1:-7}
. scripts/target.sh
uext4=${UEXT4:-$target/release/uext4}
[ "$(id -u)" -eq 0 ] || { echo "compare-fio.sh: needs root (loop device, tmpfs)"; exit 1; }
[ -n "${UEXT4:-}" ] || build_command
scripts/fio-engine.sh
engine=$target/fio/uext4.so
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

# measure ARM: operations a second by `uext4 bench`.
measure() {
    "$uext4" bench randread-poll --device "$loop:/" ${2:-} --qd 128 --size 1G --arms "$1" --seconds 3 \
        --json "$work/bench.json" > /dev/null 2>&1
    grep -m 1 -o '"iops": *[0-9]*' "$work/bench.json" | grep -o '[0-9]*$'
}

# by_fio OPTION...: the same by fio.
by_fio() {
    fio --name=fio --thread=1 --size=1G --direct=1 --iodepth=128 --iodepth_batch_submit=32 \
        --iodepth_batch_complete_min=32 --iodepth_batch_complete_max=128 --bs=4k --rw=randread --norandommap \
        --time_based --runtime=3 --ramp_time=0.5 --gtod_reduce=1 --output-format=terse "$@" | cut -d ';' -f 8
}

measure on --mkfs > /dev/null
for _ in $(seq "$rounds"); do
    echo "raw $(measure raw) $(by_fio --filename="$loop" --ioengine=io_uring --registerfiles=1 --fixedbufs=1)"
    echo "file $(measure on) $(by_fio --ioengine="external:$engine" --device="$loop" --filename=uext4-bench.0 \
        --registered=1 --queued=1)"
done | awk '
    function median(list, count,   i, j, t) {
        for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++)
            if (list[j] < list[i]) { t = list[i]; list[i] = list[j]; list[j] = t }
        return list[int((count + 1) / 2)]
    }
    function report(what, ours, theirs, ratios, count) {
        printf "median of %s: bench %d, fio %d IOPS, bench/fio %.3f\n", what, median(ours, count),
            median(theirs, count), median(ratios, count)
    }
    { printf "%s: bench %d, fio %d IOPS\n", $1, $2, $3 }
    $1 == "raw" { n++; a[n] = $2; b[n] = $3; c[n] = $2 / $3 }
    $1 == "file" { m++; d[m] = $2; e[m] = $3; f[m] = $2 / $3 }
    END { report("the raw device", a, b, c, n); report("a file", d, e, f, m) }'
