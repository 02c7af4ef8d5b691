#!/usr/bin/env bash
# `make fio`: the jobs of bench/fio/ on files inside a volume through uext4, on the kernel's ext4 and XFS, and on the
# raw device, in turn. Every flavour has a device of its own of the same kind and size: zram, a loop device over tmpfs,
# and for mapped memory a file on tmpfs. No device here has FUA: uext4 runs job 002 on a model of a disk that has it
# too. Root. e2fsck looks at uext4's volume after every job.
#
#   SIZE=1g RUNTIME=3 RAMP=1 ROUNDS=5 ONLY=shape,… FLAVOURS=uext4,off,ext4,xfs,raw make fio
#
# Results: target/fio-bench/{table.md,iops.svg,results.json}. `scripts/fio.sh smoke` runs all of it in small.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
size=${SIZE:-1g} runtime=${RUNTIME:-3} ramp=${RAMP:-1} rounds=${ROUNDS:-5}
. scripts/target.sh
out=$target/fio-bench
if [ "${1:-}" = smoke ]; then
    size=32m runtime=200ms ramp=0 rounds=1 out=$out-smoke
fi
skip() {
    echo "SKIP fio_jobs: $1" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
    [ "${UEXT4_REQUIRE:-}" != all ]
    exit
}
[ "$(id -u)" -eq 0 ] || skip "needs root (loop devices, zram and mounts)"
for program in fio mkfs.xfs mke2fs python3; do
    command -v "$program" > /dev/null || skip "needs \`$program\` (scripts/setup.sh as root installs it)"
done
[ -e /sys/class/zram-control/hot_add ] || skip "needs zram"
mib=$(numfmt --from=iec "${size^^}") mib=$((mib / 1048576))
# For the files of all jobs of a device, which come to three times the size on a loop device.
device_mib=$((mib * 4 + 512))
room=$(df --output=avail -m /dev/shm | tail -n 1)
needed=$((mib * 20 + 768))
[ "$room" -ge "$needed" ] || skip "needs $needed MiB of /dev/shm, $room are free: SIZE=512m"
status=0
scripts/fio-engine.sh || status=$?
[ "$status" -ne 3 ] || skip "needs the source of Debian's fio through apt, or FIO_SOURCE"
[ "$status" -eq 0 ] || exit "$status"

locks=/tmp
[ ! -d /run/lock ] || locks=/run/lock
exec 9> "$locks/uext4-test.lock"
flock 9
work=$(mktemp -d /dev/shm/uext4-fio-bench.XXXXXX)
loops=() zrams=() mounts=()
unmake() {
    local one
    for one in "${mounts[@]}"; do umount "$one" 2>/dev/null || true; done
    for one in "${loops[@]}"; do losetup -d "$one" 2>/dev/null || true; done
    for one in "${zrams[@]}"; do
        echo 1 > "/sys/block/zram$one/reset" && echo "$one" > /sys/class/zram-control/hot_remove || true
    done
    rm -rf "$work"
}
trap unmake EXIT

# Each makes a device of its kind, whose name is in $made.
make_loop() {
    truncate -s "${device_mib}M" "$work/loop.$1"
    made=$(losetup -f --show --direct-io=on "$work/loop.$1")
    loops+=("$made")
}
make_zram() {
    local number
    number=$(cat /sys/class/zram-control/hot_add)
    zrams+=("$number")
    echo "${device_mib}M" > "/sys/block/zram$number/disksize"
    made=/dev/zram$number
}

bed=
for kind in loop zram; do
    for flavour in uext4 ext4 xfs raw; do
        "make_$kind" "$flavour"
        place=$made
        case $flavour in
            uext4 | ext4) mke2fs -q -F -t ext4 "$made" ;;
            xfs) mkfs.xfs -q -f "$made" ;;
            # As much of it is there as of the others, which have files: holes are read faster.
            raw) dd if=/dev/zero of="$made" bs=1M count="$mib" status=none ;;
        esac
        case $flavour in
            ext4 | xfs)
                place=$work/mnt.$kind.$flavour
                mkdir "$place"
                mount -t "$flavour" "$made" "$place"
                mounts+=("$place")
                ;;
        esac
        bed+=$kind.$flavour=$place,
    done
done
truncate -s "$((mib * 4 + 128))M" "$work/dax"
mke2fs -q -F -t ext4 "$work/dax"
# Mapped memory has no holes, and mke2fs makes some.
fallocate -l "$((mib * 4 + 128))M" "$work/dax"
mkdir "$work/mapped"
bed+=dax.uext4=dax:$work/dax,dax.raw=$work/mapped
# Job 002 has 32 MiB whatever the size of the others.
truncate -s 128M "$work/model"
mke2fs -q -F -t ext4 "$work/model"
bed+=,model.uext4=$work/model

python3 -m doctest bench/fio/report.py
python3 bench/fio/run.py --bed "$bed" --engine "$target/fio/uext4.so" --out "$out" \
    --size "$size" --runtime "$runtime" --ramp "$ramp" --rounds "$rounds" ${ONLY:+--only "$ONLY"} \
    ${FLAVOURS:+--flavours "$FLAVOURS"}
