#!/usr/bin/env bash
# Random 4 KiB reads and durable writes (FUA) with 64 in flight over a local socket: of a written file in a volume on
# nbdkit's memory, beside a bare loop of libnbd on another nbdkit of the same kind, in turns. Prints both rates and the
# medians of the ratios.
#
#   scripts/nbd-bench.sh [SECONDS [TURNS]]
#
# Fails if a ratio is below 0.85 (NBD_RATIO).
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-0.1}
turns=${2:-150}
floor=${NBD_RATIO:-0.85}

for need in nbdkit gcc; do
    command -v "$need" > /dev/null ||
        { echo "SKIP nbd-bench: needs the program \`$need\`" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"; exit 0; }
done
[ -e /usr/include/libnbd.h ] ||
    { echo "SKIP nbd-bench: needs libnbd's header (libnbd-dev)" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"; exit 0; }

. scripts/target.sh
# Others are for measurements of a build of their own.
library=${UEXT4_LIBRARY:-$target/release/libuext4_capi.a} uext4=${UEXT4:-$target/release/uext4}
[ -n "${UEXT4_LIBRARY:-}" ] || build_library
[ -n "${UEXT4:-}" ] || build_command

work=$(mktemp -d /tmp/uext4-nbd-bench.XXXXXX)
servers=()
unmake() {
    [ "${#servers[@]}" -eq 0 ] || kill "${servers[@]}" 2> /dev/null || true
    wait
    rm -rf "$work"
}
trap unmake EXIT

gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I crates/capi/include -o "$work/nbd-bench" scripts/nbd-bench.c "$library" \
    -lnbd -lpthread -ldl -lm
for name in bare volume; do
    nbdkit --foreground --unix "$work/$name" memory 512M &
    servers+=($!)
done
for name in bare volume; do
    until [ -S "$work/$name" ]; do sleep 0.05; done
done
device="nbd+unix:///?socket=$work/volume"
"$uext4" mkfs "$device" > /dev/null
"$work/nbd-bench" "$device" "$work/bare" "$seconds" "$turns" > "$work/out"
"$uext4" check "$device" > "$work/check" || { cat "$work/check"; exit 1; }

kept=0
while read -r kind bare volume ratio; do
    echo "nbd-bench: $kind of 4 KiB, 64 in flight: libnbd $bare, uext4 $volume a second; ratio $ratio"
    awk "BEGIN { exit !($ratio >= $floor) }" || { echo "nbd-bench: promised: ratio >= $floor"; kept=1; }
done < "$work/out"
exit "$kept"
