#!/usr/bin/env bash
# SQLite inside a volume beside sqlite3 on the kernel's ext4: the same SQL, the same loop device over tmpfs, the journal
# modes DELETE, TRUNCATE and WAL (this one with exclusive locking, which is faster for both), synchronous FULL. Root.
# Prints both times of each mode and the ratio of their medians.
#
#   scripts/sqlite-bench.sh [TRANSACTIONS [ROUNDS]]
#
# Fails if a ratio is below 0.9 (SQLITE_RATIO).
set -euo pipefail
cd "$(dirname "$0")/.."

transactions=${1:-1000}
rounds=${2:-7}
floor=${SQLITE_RATIO:-0.9}
. scripts/bench-bed.sh

bed sqlite-bench 600
UEXT4_REQUIRE= scripts/examples.sh build > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
program=$target/examples/sqlite-uext4.plain
export LD_LIBRARY_PATH=$target/capi

truncate -s 256M "$work/image"
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup --find --show --direct-io=on "$work/image")
mkdir "$work/mnt"

# Five rows of 100 bytes in each transaction.
row="randomblob(100)"
for mode in DELETE TRUNCATE WAL; do
    locking=NORMAL
    [ "$mode" != WAL ] || locking=EXCLUSIVE
    {
        echo "PRAGMA locking_mode=$locking; PRAGMA journal_mode=$mode; PRAGMA synchronous=FULL;"
        echo "CREATE TABLE t(i INTEGER PRIMARY KEY, b);"
        for _ in $(seq "$transactions"); do
            echo "BEGIN; INSERT INTO t(b) VALUES($row),($row),($row),($row),($row); COMMIT;"
        done
        echo "SELECT count(*) FROM t;"
    } > "$work/$mode.sql"
done

# milliseconds NAME COMMAND...: how long it takes; its last line has to be the number of rows.
milliseconds() {
    local name=$1 start end
    shift
    start=$(date +%s%N)
    "$@" > "$work/out"
    end=$(date +%s%N)
    [ "$(tail -n 1 "$work/out")" -eq $((5 * transactions)) ] || { echo "sqlite-bench: $name: wrong answer"; exit 1; }
    echo $(((end - start) / 1000)) | awk '{ printf "%.1f\n", $1 / 1000 }' >> "$work/$name.times"
}
kernel() { sqlite3 "$work/mnt/db" < "$1"; }
ours() { "$program" ${2:+"$2"} "$device" /db < "$1"; }

for _ in $(seq "$rounds"); do
    for mode in DELETE TRUNCATE WAL; do
        mount -t ext4 "$device" "$work/mnt"
        rm -f "$work/mnt"/db*
        sync -f "$work/mnt"
        milliseconds "kernel-$mode" kernel "$work/$mode.sql"
        rm -f "$work/mnt"/db*
        umount "$work/mnt"
        exclusive=-x
        [ "$mode" = WAL ] || exclusive=
        milliseconds "uext4-$mode" ours "$work/$mode.sql" $exclusive
    done
done
e2fsck -fn "$device" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }

status=0
for mode in DELETE TRUNCATE WAL; do
    theirs=$(median "$work/kernel-$mode.times") mine=$(median "$work/uext4-$mode.times")
    ratio=$(awk "BEGIN { printf \"%.2f\", $theirs / $mine }")
    echo "sqlite-bench: $mode, $transactions transactions: kernel $theirs ms, uext4 $mine ms; ratio $ratio"
    awk "BEGIN { exit !($ratio >= $floor) }" || { echo "sqlite-bench: promised: ratio >= $floor"; status=1; }
done
exit "$status"
