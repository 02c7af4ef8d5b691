#!/usr/bin/env bash
# Volumes made with their files: `uext4 mkfs -d` beside mke2fs -d, for a tree of 30 000 files in 1 GiB and for one
# directory of many names, beside tar into a loop mount of the kernel, and the smallest size beside resize2fs -M. All on
# tmpfs. Root. Prints times and the ratios of their medians.
#
#   scripts/image-bench.sh [ROUNDS]
#
# Fails if a ratio is below its floor: IMAGE_TREE (1.3), IMAGE_NAMES (20), IMAGE_TAR (0.8), IMAGE_SIZE (1.0).
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-3}
. scripts/bench-bed.sh

bed image-bench 6000
mkdir "$work/mnt"
python3 - "$work" <<'MAKE'
import os, random, sys, tarfile, io
work = sys.argv[1]
random.seed(31)
block = os.urandom(4 << 20)
def contents(size):
    start = random.randrange(len(block) - size)
    return block[start:start + size]
def size():
    return random.randint(100, 20000) if random.random() < 0.9 else random.randint(20000, 500000)
for number in range(30000):
    folder = f"{work}/tree/d{number % 300:03}/e{number % 7}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/file-{number:05}.txt", "wb") as file:
        file.write(contents(size()))
os.makedirs(f"{work}/names/names")
for number in range(120000):
    open(f"{work}/names/names/a name like many others {number}", "w").close()
with tarfile.open(f"{work}/tree.tar", "w", format=tarfile.PAX_FORMAT) as tar:
    for number in range(20000):
        data = contents(random.randint(1000, 49000))
        info = tarfile.TarInfo(f"d{number % 200:03}/file-{number:05}")
        info.size, info.mtime = len(data), 1700000000
        tar.addfile(info, io.BytesIO(data))
MAKE

# compared NAME FLOOR THEIRS OURS: medians of the two, and whether the ratio is what is promised.
failed=0
compared() {
    local ratio
    ratio=$(awk "BEGIN { printf \"%.2f\", $3 / $4 }")
    echo "image-bench: $1: theirs $3, uext4 $4; ratio $ratio"
    awk "BEGIN { exit !($ratio >= $2) }" || { echo "image-bench: $1: promised: ratio >= $2"; failed=1; }
}
image=$work/image
fresh() { rm -f "$image"; truncate -s "$1" "$image"; }
mke2fs_of() { mke2fs -q -F -t ext4 -b 4096 -E lazy_itable_init=1 "${@:2}" -d "$1" "$image"; sync "$image"; }
uext4_of() { "$uext4" mkfs -q -F -b 4096 "${@:2}" -d "$1" "$image"; }
kernel_tar() {
    mount -t ext4 "$device" "$work/mnt"
    tar -xf "$work/tree.tar" -C "$work/mnt"
    sync -f "$work/mnt"
    umount "$work/mnt"
}
clean() { e2fsck -fn "$image" > "$work/fsck" 2>&1 || { cat "$work/fsck"; exit 1; }; }

for _ in $(seq "$rounds"); do
    fresh 2G; milliseconds tree.theirs mke2fs_of "$work/tree"
    fresh 2G; milliseconds tree.ours uext4_of "$work/tree"
    clean
    fresh 1G; milliseconds tar.ours uext4_of "$work/tree.tar"
    clean
    fresh 1G
    mke2fs -q -F -t ext4 -b 4096 -E lazy_itable_init=1 "$image"
    device=$(losetup --find --show --direct-io=on "$image")
    milliseconds tar.theirs kernel_tar
    losetup -d "$device"
    device=
done
# mke2fs takes many minutes here. It is stopped after two, which is more than the floor needs.
slow() { timeout 120 mke2fs -q -F -t ext4 -b 4096 -N 200000 -d "$work/names" "$image" || [ $? -eq 124 ]; }
fresh 1G; milliseconds names.theirs slow
for _ in $(seq "$rounds"); do
    fresh 1G; milliseconds names.ours uext4_of "$work/names" -N 200000
    clean
done
# At its best: from the smallest size that holds the tree. From 2 GiB, resize2fs -M leaves 1.9 GB.
mib=$(($(du -sm "$work/tree" | cut -f 1) * 105 / 100))
fresh "${mib}M"
until mke2fs_of "$work/tree" -m 0 -N 33000 2> "$work/out"; do
    mib=$((mib + 20))
    fresh "${mib}M"
done
e2fsck -fy "$image" > "$work/fsck" 2>&1 || true
resize2fs -M "$image" > "$work/fsck" 2>&1
theirs=$(stat -c %s "$image")
rm "$image"
"$uext4" mkfs -q --size auto -d "$work/tree" "$image"
clean
compared "tree of 30 000 files (ms, mke2fs -d)" "${IMAGE_TREE:-1.3}" \
    "$(median "$work/tree.theirs.times")" "$(median "$work/tree.ours.times")"
compared "directory of 120 000 names (ms, mke2fs -d)" "${IMAGE_NAMES:-20}" \
    "$(median "$work/names.theirs.times")" "$(median "$work/names.ours.times")"
compared "tar of 20 000 files (ms, tar into a loop mount)" "${IMAGE_TAR:-0.8}" \
    "$(median "$work/tar.theirs.times")" "$(median "$work/tar.ours.times")"
compared "smallest size (bytes, resize2fs -M)" "${IMAGE_SIZE:-1.0}" "$theirs" "$(stat -c %s "$image")"
exit "$failed"
