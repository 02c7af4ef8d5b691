#!/usr/bin/env bash
# Random reads and writes of 4 KiB with 32 in flight on an RBD image of a Ceph cluster of one node: uext4 in a file of
# a volume (fio's engine for uext4), a bare loop over librbd (scripts/rbd-loop.c, the better of its two ways) and `rbd
# bench`, all without librbd's cache and over written data, in turns. Then the requests of an append of 4 KiB with
# fsync, and the time of mkfs for 1 PiB. Prints rates and the ratios of their medians.
#
#   scripts/rbd-bench.sh [ROUNDS [SECONDS]]
#
# Fails if a ratio to the bare loop is below 0.85 (RBD_LOOP), or to `rbd bench` below 0.8 (RBD_BENCH), if an append with
# fsync takes more than 3 writes (RBD_FSYNC), or if mkfs takes more than 60 s (RBD_MKFS).
# UEXT4_FIO: the engine; otherwise it is built.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-5}
seconds=${2:-5}
. scripts/bench-bed.sh

for tool in ceph-mon ceph-mgr ceph-osd ceph rbd fio gcc; do
    if ! command -v $tool > /dev/null; then
        echo "SKIP rbd-bench: needs the program \`$tool\`" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
        exit 0
    fi
done
bed rbd-bench 4000
engine=${UEXT4_FIO:-$target/fio/uext4.so}
if [ -z "${UEXT4_FIO:-}" ]; then
    scripts/fio-engine.sh > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
fi
libraries=$(dirname "$(ldconfig -p | awk '/librbd.so.1/ { print $NF; exit }')")
gcc -O2 -Wall -Wextra -o "$work/loop" scripts/rbd-loop.c "$libraries/librbd.so.1" "$libraries/librados.so.2"

CEPH_OSD_BYTES=3221225472 scripts/ceph.sh up "$work/ceph" $$
# A client that still runs when the script ends would wait for the cluster for ever.
trap 'pkill -KILL -P $$ "fio|loop|rbd" || true; scripts/ceph.sh down "$work/ceph"; unmake' EXIT
export CEPH_CONF=$work/ceph/ceph.conf
# For `rbd bench` as well.
printf '[client]\nrbd cache = false\n' >> "$CEPH_CONF"
bytes=$((256 << 20))
rbd create --size 256M rbd/bare
rbd bench --io-type write --io-size 4M --io-pattern seq --io-total $bytes rbd/bare > "$work/out"
rbd create --size 512M rbd/volume
volume="rbd:rbd/volume?conf=$CEPH_CONF"
"$uext4" mkfs -q "$volume"
"$uext4" prepare "$volume:/file" 256M > "$work/out"

ours() {
    fio --name=rbd --rw="rand$1" --bs=4k --iodepth=32 --direct=1 --thread=1 --size=256m --runtime="$seconds" \
        --time_based --output-format=json --ioengine="external:$engine" --device="$volume" --path=file > "$work/out"
    sed -n "/\"$1\" *:/,\$ s/.*\"iops\" *: *\\([0-9.]*\\),.*/\\1/p" "$work/out" | head -n 1 >> "$work/$1.ours"
}
loop() { "$work/loop" "$2" "$CEPH_CONF" rbd bare "$1" 4096 32 $bytes "$seconds" >> "$work/$1.$2"; }
bench() {
    rbd bench --io-type "$1" --io-size 4K --io-threads 32 --io-pattern rand --io-total "$2" rbd/bare > "$work/out"
    # elapsed: 2   ops: 8192   ops/sec: 3712.28   bytes/sec: …
    sed -n 's/.*ops\/sec: *\([0-9.]*\).*/\1/p' "$work/out" | tail -n 1 >> "$work/$1.bench"
}

for _ in $(seq "$rounds"); do
    for kind in read write; do
        loop $kind poll
        ours $kind
        loop $kind callback
        bench $kind 64M
    done
done

failed=0
# promised NAME FLOOR OURS THEIRS
promised() {
    local ratio
    ratio=$(awk "BEGIN { printf \"%.2f\", $3 / $4 }")
    echo "rbd-bench: $1: theirs $4, uext4 $3 a second; ratio $ratio"
    awk "BEGIN { exit !($ratio >= $2) }" || { echo "rbd-bench: $1: promised: ratio >= $2"; failed=1; }
}
for kind in read write; do
    mine=$(median "$work/$kind.ours") poll=$(median "$work/$kind.poll") callback=$(median "$work/$kind.callback")
    bare=$(awk "BEGIN { print ($poll > $callback ? $poll : $callback) }")
    promised "4 KiB $kind, 32 in flight, bare loop" "${RBD_LOOP:-0.85}" "$mine" "$bare"
    promised "4 KiB $kind, 32 in flight, rbd bench" "${RBD_BENCH:-0.8}" "$mine" "$(median "$work/$kind.bench")"
done

# What two more appends add, each with fsync: opening and closing are in both.
writes() {
    local more=()
    for at in $(seq 1 "$1"); do more+=(-c "pwrite $((4 * at))k 4k" -c fsync); done
    "$uext4" trace --output "$work/trace" -- io -f "$volume:/append" -t -c "pwrite 0 4k" -c fsync "${more[@]}" \
        > "$work/out"
    sed -n 's/.* \([0-9]*\) writes.*/\1/p' "$work/trace" | tail -n 1
}
writes 1 > /dev/null
each=$((($(writes 11) - $(writes 1)) / 10))
echo "rbd-bench: append of 4 KiB with fsync: $each writes, one after another"
[ "$each" -le "${RBD_FSYNC:-3}" ] || { echo "rbd-bench: promised: at most ${RBD_FSYNC:-3}"; failed=1; }

rbd create --size 1P --object-size 32M rbd/huge
milliseconds mkfs "$uext4" trace --output "$work/trace" -- \
    mkfs -O bigalloc -C 1M -G 1024 "rbd:rbd/huge?conf=$CEPH_CONF"
took=$(median "$work/mkfs.times")
echo "rbd-bench: mkfs of 1 PiB: $took ms; $(sed -n 's/^total: \([^;]*\);.*/\1/p' "$work/trace")"
[ "$took" -le $((${RBD_MKFS:-60} * 1000)) ] || { echo "rbd-bench: promised: ${RBD_MKFS:-60} s"; failed=1; }

rbd export --no-progress rbd/volume "$work/exported"
e2fsck -fn "$work/exported" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }
exit "$failed"
