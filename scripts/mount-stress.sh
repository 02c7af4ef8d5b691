#!/usr/bin/env bash
# mount-stress.sh: one mount for a long time under a mixed load: contents and names against models (mount-stress.py),
# the file-system stressors of stress-ng, writes that fio verifies. At the end the server has no more memory and
# descriptors than after the first rounds, e2fsck is content, and a row is added to docs/proof/mount.csv. Root.
# SECONDS_ALL (600): when no new round begins any more. SEED (the time). SIZE (2G) of the volume. WORK: where it is.
# TRANSPORT (dev): how requests come; uring is offered by the kernel while the mount begins.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "mount-stress.sh: needs root (a FUSE mount)"; exit 1; }
# In a mount namespace of its own, so that nobody else keeps the mount.
[ -n "${MOUNT_STRESS:-}" ] || MOUNT_STRESS=1 exec unshare --mount --propagation private "scripts/$(basename "$0")"
for program in mke2fs e2fsck fio stress-ng python3; do
    command -v "$program" > /dev/null || { echo "mount-stress.sh: needs $program"; exit 1; }
done
transport=${TRANSPORT:-dev} all=${SECONDS_ALL:-600} seed=${SEED:-$(date +%s)}
commit=$(git rev-parse --short HEAD)
. scripts/target.sh
[ -n "${UEXT4:-}" ] || build_command
logs=$target/rounds/mount-$transport-$seed
rm -rf "$logs"
mkdir -p "$logs"
cp "${UEXT4:-$target/release/uext4}" "$logs/uext4"
work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/uext4-mount-stress.XXXXXX")
image=$work/image mnt=$work/mnt server=
switch=/sys/module/fuse/parameters/enable_uring before=
leave() {
    if [ -n "$before" ]; then echo "$before" > $switch; fi
    umount -l "$mnt" 2> /dev/null || true
    [ -z "$server" ] || kill "$server" 2> /dev/null || true
    rm -rf "$work"
}
trap leave EXIT
mkdir "$mnt"
mke2fs -q -F -t ext4 -b 4096 "$image" "${SIZE:-2G}"
if [ "$transport" = uring ]; then
    exec 8> /tmp/uext4-fuse-uring.lock
    flock 8
    before=$(cat $switch)
    echo Y > $switch
fi
"$logs/uext4" mount -f -o "allow_other,dev,suid,transport=$transport" "$image" "$mnt" > "$logs/server" 2>&1 8>&- &
server=$!
for _ in $(seq 100); do mountpoint -q "$mnt" && break; sleep 0.1; done
stat -f "$mnt" > /dev/null
if [ -n "$before" ]; then
    echo "$before" > $switch
    before=
    exec 8>&-
fi
mountpoint -q "$mnt" || { cat "$logs/server" >&2; exit 1; }

# Kibibytes of memory and number of descriptors of the server, which the kernel asked to forget what it does not use.
measure() {
    echo 2 > /proc/sys/vm/drop_caches
    sleep 2
    echo "$(sed -n 's/^VmRSS:\s*\([0-9]*\).*/\1/p' "/proc/$server/status") $(find "/proc/$server/fd" -type l | wc -l)"
}

# Stressors that do not use this file system, sync the whole machine, or that FUSE does not let through.
without=bind-mount,binderfs,chattr,eventfd,fiemap,io,ioprio,procfs,verity

# round NUMBER: all loads at once.
round() {
    local number=$1 job failed=0 running=()
    rm -rf "$mnt/round"
    mkdir "$mnt/round" "$mnt/round/stress"
    for kind in data names; do
        for job in 1 2; do
            python3 scripts/mount-stress.py "$kind" "$mnt/round/$kind$job" $((seed + 10 * number + job)) 40 \
                > "$logs/$kind$job" 2>&1 &
            running+=("$!")
        done
    done
    # Every other round has all stressors at once, but one that waits for a bounded time; the others have one by one.
    local how=(--all 1 --timeout 30 -x "$without,inotify")
    [ $((number % 2)) -eq 0 ] || how=(--sequential 1 --timeout 1 -x "$without")
    stress-ng --class filesystem "${how[@]}" --verify --temp-path "$mnt/round/stress" \
        --fallocate-bytes=16m --hdd-bytes=16m --iomix-bytes=16m --sync-file-bytes=16m \
        --symlink-ops=1 --link-ops=1 --dirdeep-inodes=500 > "$logs/stress-ng" 2>&1 &
    running+=("$!")
    fio --name=job --directory="$mnt/round" --size=32m --numjobs=2 --rw=randwrite --bs=4k --ioengine=psync \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --randseed=$((seed + number)) --fsync=64 \
        > "$logs/fio" 2>&1 &
    running+=("$!")
    for job in "${running[@]}"; do wait "$job" || failed=1; done
    if [ "$failed" -ne 0 ] || grep -E ' fail:| error:' "$logs/stress-ng"; then
        echo "round $number failed: $logs" >&2
        tail -n 3 "$logs"/{data1,data2,names1,names2,fio,stress-ng,server} >&2
        return 1
    fi
}

failed=0 rounds=0 steps=0 warm='' SECONDS=0
while [ "$SECONDS" -lt "$all" ]; do
    if ! round "$rounds"; then failed=1; break; fi
    rounds=$((rounds + 1))
    steps=$((steps + $(awk '{ sum += $1 } END { print sum }' "$logs"/{data1,data2,names1,names2})))
    now=$(measure)
    echo "round $rounds, $SECONDS s: memory (KiB) and descriptors: $now"
    [ "$rounds" -ne 2 ] || warm=$now
    end=$now
done
length=$SECONDS
rm -rf "$mnt/round"
umount "$mnt"
wait "$server" || { echo "the server failed: $(cat "$logs/server")" >&2; failed=1; }
server=
e2fsck -fn "$image" > "$logs/e2fsck" 2>&1 || { cat "$logs/e2fsck" >&2; failed=1; }
warm=${warm:-${end:-0 0}} end=${end:-0 0}
# A server that keeps something of every round grows by more than a few mebibytes, or descriptors.
if [ $((${end% *} - ${warm% *})) -gt $((${warm% *} / 4 + 16384)) ] || [ $((${end#* } - ${warm#* })) -gt 8 ]; then
    echo "the server grew: from $warm to $end" >&2
    failed=1
fi
csv=docs/proof/mount.csv
[ -f "$csv" ] || {
    echo -n "date,commit,transport,first seed,rounds,failed,seconds,steps,"
    echo "memory after two rounds (KiB),at the end,descriptors,at the end"
} > "$csv"
sizes=${warm% *},${end% *},${warm#* },${end#* }
echo "$(date +%F),$commit,$transport,$seed,$rounds,$failed,$length,$steps,$sizes" | tee -a "$csv"
[ "$failed" -eq 0 ]
