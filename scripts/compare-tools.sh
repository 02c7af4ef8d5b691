#!/usr/bin/env bash
# How long the same work takes through uext4, debugfs, fuse2fs and the kernel's ext4 (loop mount): a file of 512 MiB
# read from end to end, a tree of 10 000 files copied out, 4 KiB read at random by one thread (fio; direct I/O). One
# image in /dev/shm. The tools take turns; each round mounts anew, which is not timed. Root.
#
#   scripts/compare-tools.sh [ROUNDS]         rows of Markdown: medians, and how many times as long as uext4's
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")/.."
rounds=${1:-5}
. scripts/target.sh
uext4=${UEXT4:-$target/release/uext4}
[ "$(id -u)" -eq 0 ] || { echo "compare-tools.sh: needs root (loop and FUSE mounts)"; exit 1; }
for program in mke2fs debugfs fuse2fs fio; do
    command -v "$program" > /dev/null || { echo "compare-tools.sh: needs $program"; exit 1; }
done
[ -n "${UEXT4:-}" ] || build_command
scripts/fio-engine.sh
engine=$target/fio/uext4.so
work=$(mktemp -d /dev/shm/uext4-tools.XXXXXX)
image=$work/image mnt=$work/mnt out=$work/out
# Unmounts, and waits until the daemon of a FUSE mount has let go of the image.
leave() {
    for _ in $(seq 50); do
        if mountpoint -q "$mnt"; then
            umount "$mnt" 2> /dev/null || true
        elif ! pgrep -f "fuse2fs.*$image" > /dev/null; then
            return
        fi
        sleep 0.1
    done
}
trap 'leave; rm -rf "$work"' EXIT
mkdir -p "$mnt" "$work/from/tree"
head -c 512M /dev/urandom > "$work/from/big"
for dir in $(seq 100); do
    mkdir "$work/from/tree/$dir"
    for file in $(seq 100); do head -c $(((dir * file) % 8192)) "$work/from/big" > "$work/from/tree/$dir/$file"; done
done
mke2fs -q -F -t ext4 -d "$work/from" "$image" 1G
rm -r "$work/from"

# by_fio OPTION...: nanoseconds for each read.
by_fio() {
    fio --name=fio --thread=1 --size=512m --direct=1 --bs=4k --rw=randread --norandommap --time_based --runtime=2 \
        --readonly --gtod_reduce=1 --output-format=terse "$@" | cut -d ';' -f 8 | awk '{ printf "%d\n", 1e9 / $1 }'
}

# Runs a command whose output nobody needs, and prints how many nanoseconds it took.
timed() {
    local start=${EPOCHREALTIME/./}
    "$@" > /dev/null 2> "$work/errors" || { cat "$work/errors" >&2; return 1; }
    echo $(((${EPOCHREALTIME/./} - start) * 1000))
}

# run TASK TOOL, with TOOL's mount in place.
run() {
    local taken
    rm -rf "$out"
    case $1.$2 in
        read.uext4) taken=$(timed "$uext4" cat "$image:/big") ;;
        read.debugfs) taken=$(timed debugfs -R 'cat /big' "$image") ;;
        read.*) taken=$(timed dd if="$mnt/big" of=/dev/null bs=1M) ;;
        tree.uext4) taken=$(timed "$uext4" cp -r "$image:/tree" "$out") ;;
        tree.debugfs) mkdir "$out" && taken=$(timed debugfs -R "rdump /tree $out" "$image") ;;
        tree.*) taken=$(timed cp -r "$mnt/tree" "$out") ;;
        random.uext4) taken=$(by_fio --ioengine="external:$engine" --device="$image" --filename=big) ;;
        random.*) taken=$(by_fio --ioengine=psync --filename="$mnt/big") ;;
    esac
    if [ "$1" = tree ] && [ "$(find "$out" -type f | wc -l)" -ne 10000 ]; then
        echo "compare-tools.sh: $2 did not copy 10 000 files" >&2
        return 1
    fi
    echo "$1 $2 $taken"
}

for _ in $(seq "$rounds"); do
    for tool in uext4 debugfs fuse2fs kernel; do
        case $tool in
            fuse2fs) fuse2fs -o ro "$image" "$mnt" ;;
            kernel) mount -o loop,ro "$image" "$mnt" ;;
        esac
        for task in read tree random; do
            # debugfs reads no blocks at random.
            [ "$task.$tool" = random.debugfs ] || run "$task" "$tool"
        done
        leave
    done
done | awk '
    function median(text,   list, count, i, j, t) {
        count = split(text, list, " ")
        for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++)
            if (list[j] + 0 < list[i] + 0) { t = list[i]; list[i] = list[j]; list[j] = t }
        return list[int((count + 1) / 2)]
    }
    function shown(ns) { return ns < 1e6 ? sprintf("%.1f µs", ns / 1e3) : sprintf("%.0f ms", ns / 1e6) }
    { taken[$1 " " $2] = taken[$1 " " $2] " " $3 }
    END {
        split("read tree random", tasks, " "); split("uext4 debugfs fuse2fs kernel", tools, " ")
        print "| task | uext4 | debugfs | fuse2fs | kernel ext4 |\n|---|--:|--:|--:|--:|"
        for (i = 1; i in tasks; i++) {
            row = "| " tasks[i]
            for (j = 1; j in tools; j++) {
                key = tasks[i] " " tools[j]
                if (!(key in taken)) { row = row " | –"; continue }
                time = median(taken[key]); if (j == 1) ours = time
                row = row " | " shown(time) (j == 1 ? "" : sprintf(" (%.2f)", time / ours))
            }
            print row " |"
        }
    }'
