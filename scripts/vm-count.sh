#!/usr/bin/env bash
# Counts the instructions of the whole system for each request: in QEMU the guest's clock can count instructions
# instead of time. A minimal ring, the kernel's ext4 and XFS, and uext4 with its switches, on null_blk, NVMe and
# persistent memory. A plugin of QEMU's translator counts too: on NVMe the processor waits, and the clock is no
# measure there. Prints a table and what was promised; keeps target/vm-count.csv.
#
#   scripts/vm-count.sh [--only PATTERN] [--slices N] [--processors N] [--trace]
#
# --only: shapes that match one of the patterns, which commas separate. --trace: a table of instructions by function
# instead, from a plugin of QEMU's translator.
# --processors: a thread on each of them, on the same file; tables are target/vm-count-N.md and .csv.
# KERNEL=backports: the kernel of that suite.
set -eu
cd "$(dirname "$0")/.."
what=vm-count
. scripts/vm-lib.sh
seconds_max=3000
only=
slices=7
processors=1
trace=
while [ $# -gt 0 ]; do
    case "$1" in
        --only) only=$2; shift 2 ;;
        --slices) slices=$2; shift 2 ;;
        --processors) processors=$2; shift 2 ;;
        --trace) trace=uext4.trace; slices=1; shift ;;
        *) say "unknown argument $1"; exit 2 ;;
    esac
done
needs qemu-system-x86_64 gcc busybox modprobe depmod mke2fs dpkg-deb apt-get

exec 9> "$cache/lock"
flock 9
fetch_kernel
release=$(cat "$kernel/complete")
say "building the guest program"
static_cargo build -p uext4-vm-count
root=$cache/count-root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,lib,run}
add_programs "$root" bin busybox
add_programs "$root" sbin mke2fs
command -v mkfs.xfs >/dev/null && add_programs "$root" sbin mkfs.xfs
[ ! -e /etc/mke2fs.conf ] || install -D -m 644 /etc/mke2fs.conf "$root/etc/mke2fs.conf"
install vm/count/init "$root/init"
cp "$cache/cargo/x86_64-unknown-linux-gnu/release/uext4-vm-count" "$root/count"
add_modules "$root" "$release" null_blk nvme crc32c_generic crc32c-intel nd_e820 nd_pmem ext4 xfs loop
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$cache/count.gz"

log=$cache/count.log
gcc -O2 -Wall -Wextra -shared -fPIC -o "$cache/count.so" vm/plugin/count.c
plugin=(-plugin "$cache/count.so,out=$cache/totals.txt")
if [ -n "$trace" ]; then
    plugin=(-plugin "$cache/count.so,traced=1,out=$cache/trace.txt" -serial "file:$cache/symbols.gz")
fi
rm -f "$cache/count-nvme.img"
truncate -s 512M "$cache/count-nvme.img"
# The init starts all but the first: when it counts, QEMU 7.2 does not get past the start of the second one by 6.1. Then
# the kernel takes the clock for unstable unless it is told.
several=
[ "$processors" -eq 1 ] || several="maxcpus=1 tsc=reliable"
say "booting $release"
start=$SECONDS
# One instruction is a nanosecond. Without erms and fsrm the kernel copies by words: `rep movsb` is an instruction a
# byte. memmap: 512 MiB of memory at 1 GiB become /dev/pmem0.
timeout "$seconds_max" qemu-system-x86_64 -accel tcg,thread=single -icount shift=0,sleep=off \
    -cpu max,erms=off,fsrm=off -smp "$processors" -m 2048 \
    -nodefaults -no-reboot -display none -serial stdio -monitor none "${plugin[@]}" \
    -drive "file=$cache/count-nvme.img,if=none,format=raw,cache=unsafe,id=nvme" -device nvme,drive=nvme,serial=uext4 \
    -kernel "$kernel/boot/vmlinuz-$release" -initrd "$cache/count.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr norandmaps memmap=512M!1G $several $trace \
uext4.slices=$slices uext4.only=$only" </dev/null 2>&1 |
    tr -d '\r' | tee "$log" | grep --line-buffered -v -e '^BASE' -e '^PROGRAM' >&2
say "$((SECONDS - start)) s"
grep -q '^COUNT-DONE' "$log" || { say "no end of the guest"; exit 1; }
if [ -z "$trace" ]; then
    table=$target/vm-count
    [ "$processors" -eq 1 ] || table+=-$processors
    status=0
    awk -v csv="$table.csv" -v totals="$cache/totals.txt" -v processors="$processors" -f scripts/vm-count.awk "$log" \
        > "$table.md" || status=$?
    cat "$table.md"
    exit "$status"
fi

# Symbols (0) and counts (1) sorted by address: each count belongs to the symbol before it. With `norandmaps` the
# program is at the same place each time.
program=$cache/cargo/x86_64-unknown-linux-gnu/release/uext4-vm-count
main=$(sed -n 's/^BASE,.*,//p' "$log" | head -n 1)
offset=$(nm -C "$program" | sed -n 's/^\([0-9a-f]*\) . uext4_vm_count::main$/\1/p')
{
    gunzip -c "$cache/symbols.gz" 2>/dev/null | awk '{ print $1, 0, $3 $4 }'
    nm -C "$program" | grep -i ' t ' | while read -r at _ name; do
        printf '%016x 0 %s\n' $((0x$main - 0x$offset + 0x$at)) "${name// /_}"
    done
    awk '$1 == "TRACE" { trace = $2; next } { print $1, 1, trace, $2 }' "$cache/trace.txt"
} | LC_ALL=C sort > "$cache/traced.txt"
grep '^COUNT,' "$log" | awk -v traced="$cache/traced.txt" -f scripts/vm-trace.awk | tee "$target/vm-trace.md"
