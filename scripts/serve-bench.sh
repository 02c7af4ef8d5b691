#!/usr/bin/env bash
# `uext4 serve` of a file inside a volume beside qemu-nbd of a raw file: random reads and writes of 4 KiB, 32 at once,
# by one client (fio's engine nbd) on a Unix socket. Both are on loop devices with direct I/O on tmpfs, both files are
# written. qemu-nbd without cache, with each of its engines; the better one counts. Root. Prints requests in a second
# and the ratios of their medians.
#
#   scripts/serve-bench.sh [ROUNDS [SECONDS]]
#
# Fails if a ratio is below its floor: SERVE_READ (1.0), SERVE_WRITE (1.0). SERVE_PLUGIN=FILE measures a plug-in of
# nbdkit too (bench/nbdkit.c), which is given volume= and file=.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-11} seconds=${2:-1}
. scripts/bench-bed.sh

for tool in fio qemu-nbd; do
    command -v "$tool" > /dev/null || {
        echo "SKIP serve-bench: needs $tool" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
        exit 0
    }
done
bed serve-bench 1500
loops=() servers=()
leave() {
    [ "${#servers[@]}" -eq 0 ] || kill "${servers[@]}" 2> /dev/null || true
    wait
    [ "${#loops[@]}" -eq 0 ] || losetup -d "${loops[@]}"
    unmake
}
trap leave EXIT
# loop_of FILE: sets $loop.
loop_of() {
    loop=$(losetup --find --show --direct-io=on "$1")
    loops+=("$loop")
}

truncate -s 640M "$work/volume.img"
dd if=/dev/urandom of="$work/raw.img" bs=1M count=512 status=none
"$uext4" mkfs -q "$work/volume.img"
"$uext4" cp "$work/raw.img" "$work/volume.img:/disk"
loop_of "$work/volume.img"
volume=$loop
loop_of "$work/raw.img"
raw=$loop

# serving NAME COMMAND...: starts a server, and waits for its socket $work/NAME.sock.
serving() {
    local name=$1 tries=0
    shift
    "$@" > "$work/$name.log" 2>&1 &
    servers+=($!)
    until [ -S "$work/$name.sock" ]; do
        [ $((tries += 1)) -lt 200 ] || { cat "$work/$name.log"; exit 1; }
        sleep 0.05
    done
}
stopped() {
    kill "${servers[@]}"
    wait "${servers[@]}" || true
    servers=()
}
# measured NAME: adds what its server does to $work/NAME.randread and $work/NAME.randwrite.
measured() {
    local kind
    for kind in randread randwrite; do
        fio --name=serve --ioengine=nbd --uri="nbd+unix:///?socket=$work/$1.sock" --size=512m --rw="$kind" --bs=4k \
            --iodepth=32 --time_based --runtime="$seconds" --ramp_time=1 --norandommap --randrepeat=0 \
            --output-format=json --output="$work/out"
        python3 -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
print(int(job["read"]["iops"] + job["write"]["iops"]))' "$work/out" >> "$work/$1.$kind"
    done
}
ours() {
    serving uext4 "$uext4" serve "$volume:/disk" --socket "$work/uext4.sock"
    measured uext4
    stopped
}
theirs() {
    serving "qemu-$1" qemu-nbd -f raw --cache=none "--aio=$1" -t -e 8 -k "$work/qemu-$1.sock" "$raw"
    measured "qemu-$1"
    stopped
    rm -f "$work/qemu-$1.sock"
}
plugin() {
    [ -n "${SERVE_PLUGIN:-}" ] || return 0
    serving nbdkit nbdkit -f -U "$work/nbdkit.sock" "$SERVE_PLUGIN" volume="$volume" file=/disk
    measured nbdkit
    stopped
    rm -f "$work/nbdkit.sock"
}

for round in $(seq "$rounds"); do
    # Each round begins with another arm.
    if [ $((round % 2)) -eq 0 ]; then ours; theirs io_uring; theirs native; plugin
    else plugin; theirs native; theirs io_uring; ours; fi
done
losetup -d "${loops[@]}"
loops=()
e2fsck -fn "$work/volume.img" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }

failed=0
# compared KIND FLOOR
compared() {
    local our ring native best ratio
    our=$(median "$work/uext4.$1") ring=$(median "$work/qemu-io_uring.$1") native=$(median "$work/qemu-native.$1")
    best=$((ring > native ? ring : native))
    ratio=$(awk "BEGIN { printf \"%.2f\", $our / $best }")
    echo "serve-bench: $1 of 4 KiB, 32 at once (requests/s): qemu-nbd $ring with io_uring, $native with native;" \
        "uext4 $our; ratio $ratio"
    [ -z "${SERVE_PLUGIN:-}" ] || echo "serve-bench: $1: the plug-in of nbdkit $(median "$work/nbdkit.$1")"
    awk "BEGIN { exit !($ratio >= $2) }" || { echo "serve-bench: $1: promised: ratio >= $2"; failed=1; }
}
compared randread "${SERVE_READ:-1.0}"
compared randwrite "${SERVE_WRITE:-1.0}"
exit "$failed"
