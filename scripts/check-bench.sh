#!/usr/bin/env bash
# `uext4 check` beside `e2fsck -fn` on the same sparse 10 GiB image on tmpfs: mke2fs defaults, DIRECTORIES of FILES each
# of 0 to 9 KB, made by the kernel through a loop mount. Root. Prints the medians and ranges of wall time, of processor
# time and of peak memory, and e2fsck's wall time divided by ours.
#
#   scripts/check-bench.sh [ROUNDS [DIRECTORIES [FILES]]]
#
# In every round each program has its turn; one more round before them does not count. Fails if the ratio is below
# CHECK_RATIO (1), or if one of them does not call the image clean.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-7}
directories=${2:-500}
files=${3:-200}
floor=${CHECK_RATIO:-1}
. scripts/bench-bed.sh

[ -x /usr/bin/time ] || { echo "check-bench: needs /usr/bin/time"; exit 1; }
bed check-bench "$((directories * files * 9 / 1024 + 256))"

truncate -s 10G "$work/image"
mke2fs -q -F -t ext4 "$work/image"
device=$(losetup --find --show "$work/image")
mkdir "$work/mnt"
# Otherwise the kernel zeroes inode tables for as long as the mount lasts: how many would depend on its speed.
mount -t ext4 -o noinit_itable "$device" "$work/mnt"
# The sizes are the same in every run: 0 to 9000 bytes, in an order that does not follow the names.
awk -v directories="$directories" -v files="$files" -v root="$work/mnt" 'BEGIN {
    ORS = ""
    for (text = "contents"; length(text) < 9000;) text = text text
    for (d = 1; d <= directories; d++) {
        directory = sprintf("%s/directory-%04d", root, d)
        system("mkdir " directory)
        for (f = 1; f <= files; f++) {
            name = sprintf("%s/file-%05d.txt", directory, f)
            print substr(text, 1, (d * files + f) * 7919 % 9001) > name
            close(name)
        }
    }
}'
umount "$work/mnt"
losetup -d "$device"
device=
e2fsck -fn "$work/image" > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
echo "check-bench: $(tail -n 1 "$work/out")"

fsck() { e2fsck -fn "$work/image"; }
two() { "$uext4" check "$work/image"; }
one() { "$uext4" check --threads 1 "$work/image"; }
arms='fsck two one'
# Peak memory is that of a run of its own: the program that reads it would be timed with the others.
memory() {
    case $1 in
        fsck) set -- e2fsck -fn "$work/image" ;;
        two) set -- "$uext4" check "$work/image" ;;
        one) set -- "$uext4" check --threads 1 "$work/image" ;;
    esac
    /usr/bin/time -f %M -o "$work/peak" "$@" > /dev/null 2>&1
    tail -n 1 "$work/peak"
}

TIMEFORMAT='%3R %3U %3S'
for round in $(seq 0 "$rounds"); do
    for arm in $arms; do
        times=$( { time "$arm" > "$work/out" 2>&1; } 2>&1) || { cat "$work/out"; exit 1; }
        peak=$(memory "$arm")
        [ "$round" -eq 0 ] || echo "$times $peak" >> "$work/$arm.rounds"
    done
done

# summary ARM NAME: medians in milliseconds and MiB, the range of the wall time.
column() { awk -v n="$2" '{ print n == 2 ? $2 + $3 : $n }' "$work/$1.rounds" | sort -n; }
median() { awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
summary() {
    local wall cpu peak low high
    wall=$(column "$1" 1 | median)
    low=$(column "$1" 1 | head -n 1)
    high=$(column "$1" 1 | tail -n 1)
    cpu=$(column "$1" 2 | median)
    peak=$(column "$1" 4 | median)
    awk -v name="$2" -v w="$wall" -v l="$low" -v h="$high" -v c="$cpu" -v p="$peak" 'BEGIN {
        printf "check-bench: %-26s %5.0f ms (%.0f to %.0f), processor %5.0f ms, peak %5.1f MiB\n",
            name, w * 1000, l * 1000, h * 1000, c * 1000, p / 1024 }'
}
summary fsck 'e2fsck -fn'
summary two 'uext4 check'
summary one 'uext4 check --threads 1'
ratio() { awk -v a="$(column fsck 1 | median)" -v b="$(column "$1" 1 | median)" 'BEGIN { printf "%.2f", a / b }'; }
both=$(ratio two)
single=$(ratio one)
echo "check-bench: medians of $rounds rounds: $both times as fast, with one thread $single"
awk "BEGIN { exit !($both >= $floor) }" || { echo "check-bench: promised: at least $floor"; exit 1; }
