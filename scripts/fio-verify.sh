#!/usr/bin/env bash
# `make fio-verify`: fio writes files inside a volume through the engine and verifies what it reads back: blocks from
# 512 bytes to 256 KiB, mixed with reads, appends and trims, O_DSYNC, several jobs, and a verification by a process of
# its own that opens the volume anew. BYTES (10g) are moved in all, about. e2fsck looks at the volume after every job.
set -eu
cd "$(dirname "$0")/.."
bytes=${BYTES:-10g}
case "$bytes" in
    *g) mib=$((${bytes%g} * 1024)) ;;
    *m) mib=${bytes%m} ;;
    *) echo "BYTES=10g or 500m" >&2; exit 2 ;;
esac
skip() {
    echo "SKIP fio_verify: $1" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
    [ "${UEXT4_REQUIRE:-}" != all ]
    exit
}
if ! dpkg-query -W fio >/dev/null 2>&1 && [ -z "${FIO_SOURCE:-}" ]; then
    skip "needs fio of a Debian package, or FIO_SOURCE"
fi
if [ -z "${FIO_ENGINE_BUILT:-}" ]; then
    status=0
    scripts/fio-engine.sh || status=$?
    [ "$status" -ne 3 ] || skip "needs the source of Debian's fio through apt, or FIO_SOURCE"
    [ "$status" -eq 0 ] || exit "$status"
fi
. scripts/target.sh
engine=$target/fio/uext4.so
home=$(mktemp -d -p "${TMPDIR:-/dev/shm}" uext4-fio.XXXXXX)
trap 'rm -rf "$home"' EXIT
passed=0 failed=0

# job NAME OPTION...: runs a job and checks the volume. Moves `each` MiB, written and read.
job() {
    local name=$1
    shift
    if (cd "$home" && fio --output="$home/log" --ioengine="external:$engine" --thread=1 --direct=1 \
        --device="${image:-$home/volume}" --group_reporting --verify_fatal=1 --name="$name" "$@") &&
        judged > "$home/e2fsck" 2>&1
    then
        passed=$((passed + 1))
        echo "fio-verify: $name: ok"
    else
        failed=$((failed + 1))
        echo "fio-verify: $name: FAILED ($*)"
        cat "$home/log" "$home/e2fsck" 2>/dev/null | tail -n 30
    fi
}

# In a qcow2 image `image` names it, and is judged by its own tools; the volume is a raw copy of it then.
image=
judged() {
    [ -z "$image" ] || { qemu-img check -q "$image" && qemu-img convert -O raw "$image" "$home/volume"; } || return 1
    e2fsck -fn "$home/volume"
}

each=$((mib / 16))
[ "$each" -ge 16 ] || each=16
size=${each}m
for blocks in 4096 1024; do
    truncate -s $((each * 7 + 256))M "$home/volume"
    mke2fs -q -F -t ext4 -b "$blocks" "$home/volume"
    mixed=(--bsrange=512-256k --blockalign=512)
    job first-writes --rw=randwrite --verify=crc32c "${mixed[@]}" --size="$size" --iodepth=16
    job overwrites --rw=randrw --verify=xxhash "${mixed[@]}" --size="$size" --iodepth=32 --prepare=1 --overwrite=1 \
        --filename=prepared
    job durable --rw=randwrite --verify=sha1 --bs=4k --size=$((each / 4))m --sync=dsync --iodepth=8 --filename=durable
    job atomic --rw=randwrite --verify=sha1 --bs=16k --size=$((each / 4))m --sync=dsync --iodepth=8 --atomic=1 \
        --filename=atomic
    job synchronous --rw=randwrite --verify=md5 "${mixed[@]}" --size="$size" --fsync=64 --filename=synchronous
    job appends --rw=write --verify=crc32c --bsrange=512-64k --blockalign=512 --size="$size" --fallocate=none \
        --iodepth=4 --filename=appended
    # fio begins with the engine before it looks at the files.
    job late --rw=randwrite --verify=crc32c --bs=4k --size=$((each / 4))m --iodepth=8 --create_serialize=0 \
        --filename=late
    job many --rw=randwrite --verify=crc64 --bs=8k --size=$((each / 4))m --numjobs=4 --nrfiles=4 --iodepth=8 \
        --file_service_type=random --filename_format='many.$jobnum.$filenum'
    # Written by one process, verified by the next, after trims elsewhere in the file.
    job written --rw=randwrite --verify=crc32c-intel --bs=4k --size="$size" --iodepth=16 --do_verify=0 --randseed=7 \
        --filename=kept
    job verified --rw=randread --verify=crc32c-intel --bs=4k --size="$size" --iodepth=16 --randseed=7 --verify_only=1 \
        --filename=kept
    job trims --rw=randtrim --bs=64k --size="$size" --iodepth=4 --filename=kept
    rm "$home/volume"
done
# In an image that grows, over one that holds the empty volume, and with trims that free its clusters.
truncate -s $((each * 3 + 256))M "$home/volume"
mke2fs -q -F -t ext4 "$home/volume"
qemu-img convert -f raw -O qcow2 "$home/volume" "$home/base.qcow2"
image=$home/disk.qcow2
(cd "$home" && qemu-img create -q -f qcow2 -F qcow2 -b base.qcow2 disk.qcow2)
job image-first-writes --rw=randwrite --verify=crc32c --bsrange=512-256k --blockalign=512 --size="$size" --iodepth=16 \
    --filename=first
job image-overwrites --rw=randrw --verify=xxhash --bs=4k --size="$size" --iodepth=32 --prepare=1 --overwrite=1 \
    --filename=prepared
job image-durable --rw=randwrite --verify=sha1 --bs=4k --size=$((each / 4))m --sync=dsync --iodepth=8 \
    --filename=durable
job image-trims --rw=randtrim --bs=64k --size="$size" --iodepth=4 --filename=first
job image-again --rw=randwrite --verify=md5 --bs=64k --size="$size" --iodepth=16 --filename=first
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
