#!/usr/bin/env bash
# Random reads and overwrites of 4 KiB, 32 in flight, in a file of a volume inside a qcow2 image, all of it allocated:
# beside the same volume as a raw image, both through fio's engine for uext4, and beside the same image exported by
# qemu-nbd (cache=none, its quicker aio) and read by fio's engine for NBD. The images lie on an ext4 file system on a
# loop device over tmpfs, and nothing is in a page cache. Root. Prints the medians of the rates, and of the ratios of
# each round, since the sides take turns.
#
#   scripts/qcow2-bench.sh [MIB [ROUNDS [SECONDS]]]
#
# Fails if a ratio is below its floor: QCOW2_RAW (0.8), QCOW2_NBD (3).
set -euo pipefail
cd "$(dirname "$0")/.."

mib=${1:-1024}
rounds=${2:-9}
seconds=${3:-1}
. scripts/bench-bed.sh

# The volume has the file and its metadata; there are three images of it.
volume=$((mib + 128))
whole=$((3 * volume + 512))
bed qcow2-bench $((whole + 64))
scripts/fio-engine.sh > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
truncate -s "${whole}M" "$work/host"
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$work/host"
device=$(losetup --find --show --direct-io=on "$work/host")
mkdir "$work/mnt"
mount -t ext4 "$device" "$work/mnt"

server=
stop() {
    [ -z "$server" ] || { kill "$server" && wait "$server" || true; }
    server=
}
trap 'stop; unmake' EXIT

# inside IMAGE OPTION...: fio in the file of the volume in an image. `exported`: on the disk that qemu-nbd exports.
inside() {
    local image=$1
    shift
    fio --output-format=json --name=file --ioengine="external:$target/fio/uext4.so" --device="$work/mnt/$image" \
        --path=file --thread=1 --iodepth=32 --iodepth_batch_submit=16 --iodepth_batch_complete_min=16 \
        --size="${mib}m" "$@"
}
exported() {
    fio --output-format=json --name=disk --ioengine=nbd --uri="nbd+unix:///?socket=$work/nbd" --iodepth=32 "$@"
}
serve() {
    rm -f "$work/nbd"
    qemu-nbd -t -f qcow2 --cache=none --aio="$1" -k "$work/nbd" "$work/mnt/copy.qcow2" > "$work/server" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        [ ! -S "$work/nbd" ] || return 0
        kill -0 "$server" 2> "$work/out" || { cat "$work/server"; exit 1; }
        sleep 0.05
    done
    echo "qcow2-bench: qemu-nbd made no socket in five seconds"
    exit 1
}

truncate -s "${volume}M" "$work/mnt/disk.raw"
mke2fs -q -F -t ext4 "$work/mnt/disk.raw"
inside disk.raw --rw=write --bs=256k > "$work/out"
# Without holes: every cluster has its place. qemu-nbd's is one more, since overwrites of the disk leave no volume.
qemu-img convert -S 0 -f raw -O qcow2 "$work/mnt/disk.raw" "$work/mnt/disk.qcow2"
cp "$work/mnt/disk.qcow2" "$work/mnt/copy.qcow2"
sync -f "$work/mnt"

# rate NAME OPTION...: adds requests a second to $work/NAME.rates.
rate() {
    local name=$1 kind=read
    [[ $name != *.write ]] || kind=write
    shift
    "$@" --rw="rand$kind" --bs=4k --direct=1 --time_based=1 --runtime="$seconds" --ramp_time=0.5 > "$work/out"
    sed -n "/\"$kind\" *:/,\$ s/.*\"iops\" *: *\\([0-9.]*\\),.*/\\1/p" "$work/out" | head -n 1 >> "$work/$name.rates"
}
for _ in $(seq "$rounds"); do
    for kind in read write; do
        rate "raw.$kind" inside disk.raw
        rate "qcow2.$kind" inside disk.qcow2
        for aio in native io_uring; do
            serve "$aio"
            rate "$aio.$kind" exported --size="${volume}m"
            stop
        done
    done
done
qemu-img check -q "$work/mnt/disk.qcow2"
for image in disk.raw disk.qcow2; do
    [ "$image" = disk.raw ] || qemu-img convert -O raw "$work/mnt/disk.qcow2" "$work/mnt/disk.raw"
    e2fsck -fn "$work/mnt/disk.raw" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }
done

failed=0
# compared WHAT FLOOR THEIRS OURS: the files of the rates of both.
compared() {
    local ratio
    paste "$work/$4.rates" "$work/$3.rates" | awk '{ print $1 / $2 }' > "$work/ratios"
    ratio=$(median "$work/ratios")
    printf 'qcow2-bench: %s: theirs %.0f, uext4 %.0f a second; ratio %.2f (%.2f to %.2f)\n' "$1" \
        "$(median "$work/$3.rates")" "$(median "$work/$4.rates")" "$ratio" \
        "$(sort -n "$work/ratios" | head -n 1)" "$(sort -n "$work/ratios" | tail -n 1)"
    awk "BEGIN { exit !($ratio >= $2) }" || { echo "qcow2-bench: $1: promised: ratio >= $2"; failed=1; }
}
for kind in read write; do
    compared "$kind, raw image" "${QCOW2_RAW:-0.8}" "raw.$kind" "qcow2.$kind"
    # The quicker of each round.
    paste "$work/native.$kind.rates" "$work/io_uring.$kind.rates" |
        awk '{ print ($1 > $2 ? $1 : $2) }' > "$work/nbd.$kind.rates"
    compared "$kind, qemu-nbd" "${QCOW2_NBD:-3}" "nbd.$kind" "qcow2.$kind"
done
exit "$failed"
