#!/usr/bin/env bash
# The same work in a mount of uext4 (through /dev/fuse, and through io_uring where the kernel has it), of fuse2fs and of
# the kernel (loop device with direct I/O), on the same image: sequential and random data, names, a tar archive, warm
# walks. A server of files in memory on the same transports does what it can of it. They take turns in each round. Root.
#
#   scripts/mount-bench.sh [ROUNDS]        rows of Markdown: medians, and uext4 against the others
#   TOOLS="dev uring"                      some of dev, uring, memory-dev, memory-uring, fuse2fs, kernel
#   SIZE=256m  FILES=20000  RUNTIME=2      bytes of sequential work, files, seconds of each random job
#   RESULTS=FILE                           where each measured value goes
#   WORK=DIR                               where the image lies (default: the temporary directory)
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")/.."
rounds=${1:-3} size=${SIZE:-256m} files=${FILES:-20000} runtime=${RUNTIME:-2}
. scripts/target.sh
uext4=${UEXT4:-$target/release/uext4}
[ "$(id -u)" -eq 0 ] || { echo "mount-bench.sh: needs root (loop and FUSE mounts)"; exit 1; }
for program in mke2fs fuse2fs fio tar losetup python3; do
    command -v "$program" > /dev/null || { echo "mount-bench.sh: needs $program"; exit 1; }
done
[ -n "${UEXT4:-}" ] || build_command
memory=$target/release/examples/memory
case "${TOOLS:-memory}" in *memory*) cargo build --quiet --release -p uext4-fuse --example memory ;; esac
work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/uext4-mount-bench.XXXXXX")
image=$work/image mnt=$work/mnt results=$work/results loop=
mkdir "$mnt"

# Unmounts, and waits until the server has let go of the image.
leave() {
    for _ in $(seq 100); do
        if mountpoint -q "$mnt"; then
            umount "$mnt" 2> /dev/null || true
        elif ! pgrep -f "(fuse2fs|uext4).*$image|examples/memory $mnt" > /dev/null; then
            break
        fi
        sleep 0.1
    done
    if [ -n "$loop" ]; then losetup -d "$loop"; loop=; fi
}
# FUSE over io_uring is off by default: it is on while a lock is held, and as it was afterwards.
switch=/sys/module/fuse/parameters/enable_uring tools="dev memory-dev fuse2fs kernel" before=
if [ -w $switch ]; then
    exec 8> /tmp/uext4-fuse-uring.lock
    flock 8
    before=$(cat $switch)
    tools="dev uring memory-dev memory-uring fuse2fs kernel"
fi
finish() {
    leave
    if [ -n "$before" ]; then echo "$before" > $switch; fi
    rm -rf "$work"
}
trap finish EXIT
if [ -n "$before" ]; then echo Y > $switch; fi
tools=${TOOLS:-$tools}

# enter TOOL: makes the volume anew and mounts it.
enter() {
    rm -f "$image"
    mke2fs -q -F -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$image" 3G
    case $1 in
    dev | uring) "$uext4" mount -o "allow_other,dev,suid,transport=$1" "$image" "$mnt" 8>&- ;;
    memory-*)
        "$memory" "$mnt" "${1#memory-}" 8>&- &
        until mountpoint -q "$mnt"; do sleep 0.01; done
        ;;
    fuse2fs) fuse2fs -o fakeroot,allow_other,big_writes,kernel_cache "$image" "$mnt" > /dev/null 2>&1 ;;
    kernel)
        loop=$(losetup --find --show --direct-io=on "$image")
        mount -t ext4 "$loop" "$mnt"
        ;;
    esac
}

# data NAME FIO-OPTION...: bytes or operations per second.
data() {
    local name=$1 field
    shift
    case $name in *read*) field=7 ;; *) field=48 ;; esac
    case $name in *4k*) field=$((field + 1)) ;; esac
    fio --name=job --filename="$mnt/data" --size="$size" --gtod_reduce=1 --output-format=terse "$@" |
        cut -d ';' -f "$field" | head -n 1
}

# timed COMMAND...: how many times a second it could run, in thousandths.
timed() {
    local start=${EPOCHREALTIME/./}
    "$@" > /dev/null
    echo $((1000000000 / (${EPOCHREALTIME/./} - start + 1)))
}

names() {
    python3 - "$1" "$mnt" "$files" << 'PY'
import os, sys
what, root, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = b'x' * 4096
for number in range(files):
    path = '%s/many/%d/%d' % (root, number % 20, number)
    if what == 'create':
        if number < 20:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(file, data)
        os.close(file)
    elif what == 'stat':
        os.stat(path)
    else:
        os.unlink(path)
PY
}

# run TOOL: one line of results for each task.
run() {
    local tool=$1
    enter "$tool"
    note() { echo "$1;$tool;$2" >> "$results"; }
    note "sequential write, direct" "$(data write --rw=write --bs=1m --direct=1)"
    note "sequential read, direct" "$(data read --rw=read --bs=1m --direct=1)"
    note "sequential write, cached, fsync" "$(data write --rw=write --bs=1m --end_fsync=1)"
    echo 3 > /proc/sys/vm/drop_caches
    note "sequential read, cached" "$(data read --rw=read --bs=1m)"
    local random=(--bs=4k --direct=1 --ioengine=io_uring --iodepth=32 --numjobs=4 --group_reporting --time_based
        --runtime="$runtime")
    note "random 4 KiB reads, 4 jobs × 32" "$(data read4k --rw=randread "${random[@]}")"
    note "random 4 KiB writes, 4 jobs × 32" "$(data write4k --rw=randwrite "${random[@]}")"
    note "4 KiB writes of 8 threads to one file" "$(data write4k --rw=randwrite --bs=4k --direct=1 --thread \
        --ioengine=psync --numjobs=8 --group_reporting --time_based --runtime="$runtime")"
    rm "$mnt/data"
    note "$files files created and written" "$(timed names create)"
    note "$files files looked at, cold" "$(echo 2 > /proc/sys/vm/drop_caches; timed names stat)"
    case $tool in memory-*)
        # It lists no directories.
        note "$files files removed" "$(timed names unlink)"
        leave
        return
        ;;
    esac
    find "$mnt" -newer /proc/version > /dev/null
    note "warm find" "$(timed find "$mnt" -newer /proc/version)"
    tar -C "$mnt" -cf "$work/many.tar" many
    note "$files files removed" "$(timed names unlink)"
    note "$files files from a tar archive" "$(timed tar -C "$mnt" -xf "$work/many.tar")"
    leave
    e2fsck -fn "$image" > /dev/null 2>&1 || echo "mount-bench.sh: e2fsck finds damage after $tool" >&2
}

: > "$results"
for _ in $(seq "$rounds"); do
    for tool in $tools; do run "$tool"; done
done
echo "| work | /dev/fuse: fuse2fs | kernel | memory | io_uring: fuse2fs | kernel | memory |"
echo "|---|--:|--:|--:|--:|--:|--:|"
awk -F ';' '
    !($1 in seen) { seen[$1] = 1; order[++count] = $1 }
    { all[$1, $2] = all[$1, $2] " " $3 }
    function median(text, parts, n, i, j, swap) {
        n = split(text, parts, " ")
        for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++)
            if (parts[j] + 0 < parts[i] + 0) { swap = parts[i]; parts[i] = parts[j]; parts[j] = swap }
        return parts[int((n + 1) / 2)]
    }
    function against(work, ours, other, digits) {
        ours = median(all[work, ours]); other = median(all[work, other])
        return ours && other ? sprintf("%." digits "f", ours / other) : "–"
    }
    END {
        for (i = 1; i <= count; i++) {
            work = order[i]
            printf "| %s | %s | %s | %s | %s | %s | %s |\n", work,
                against(work, "dev", "fuse2fs", 1), against(work, "dev", "kernel", 2),
                against(work, "dev", "memory-dev", 2), against(work, "uring", "fuse2fs", 1),
                against(work, "uring", "kernel", 2), against(work, "uring", "memory-uring", 2)
        }
    }' "$results"
if [ -n "${RESULTS:-}" ]; then cp "$results" "$RESULTS"; fi
