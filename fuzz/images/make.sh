#!/usr/bin/env bash
# Makes the base images of the hostile-input tests again: small volumes that together hold every structure. They are
# kept in the repository (NAME.img.zst), because another version of mke2fs or the kernel would make other bytes.
# Images named dirty-* are copied from under a mounted kernel and need root and loop devices; without, they are kept.
set -euo pipefail
cd "$(dirname "$0")"
export E2FSPROGS_FAKE_TIME=1700000000 LC_ALL=C TZ=UTC PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d)
mounted=
cleanup() {
    [ -z "$mounted" ] || umount "$mounted" || true
    rm -rf "$work"
}
trap cleanup EXIT

# fill DIR BLOCK BLOCKS: a tree with many extents (BLOCKS of BLOCK bytes, every other one), links, a directory of
# several blocks. Data is one repeated byte, so that it compresses and cannot pass for metadata.
fill() {
    local dir=$1 block=$2 blocks=$3 n
    mkdir -p "$dir/deep/er" "$dir/big"
    for ((n = 0; n < 70; n++)); do
        : > "$dir/big/a rather long name for an entry, number $n"
    done
    head -c $((block * blocks)) /dev/zero | tr '\0' '\327' > "$work/data"
    dd if="$work/data" of="$dir/plain" bs=1 count=9000 status=none
    head -c 50 "$work/data" > "$dir/tiny"
    cp "$dir/tiny" "$dir/deep/er/file"
    head -c 30000 "$work/data" > "$dir/deep/another"
    for ((n = 0; n < blocks; n++)); do
        dd if="$work/data" of="$dir/tree" bs="$block" count=1 skip=$n seek=$((2 * n)) conv=notrunc status=none
    done
    # One block behind the reach of double indirection (for blocks of 1 KiB).
    dd if="$work/data" of="$dir/far" bs=1000 count=1 seek=70000 conv=notrunc status=none
    ln -s deep/er "$dir/fast"
    ln -s "$(printf 's%.0s' {1..200})" "$dir/slow"
    ln "$dir/plain" "$dir/deep/linked"
    mkfifo "$dir/pipe"
    find "$dir" -exec touch -h -d @1600000000 {} +
}

# make NAME SIZE TREE ARGUMENTS...
make() {
    local name=$1 size=$2 tree=$3
    shift 3
    truncate -s "$size" "$work/$name.img"
    mke2fs -q -F -U 6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e -d "$tree" "$@" "$work/$name.img" > "$work/log" 2>&1 ||
        { cat "$work/log"; return 1; }
}

# debug NAME: requests on standard input.
debug() {
    debugfs -w -f - "$work/$1.img" > "$work/log" 2>&1
}

# tidy NAME: e2fsck gives directories their hash trees; the volume is clean afterwards.
tidy() {
    e2fsck -fyD -E no_optimize_extents "$work/$1.img" > "$work/log" 2>&1 || true
    e2fsck -fn "$work/$1.img" > "$work/log" 2>&1 || { echo "$1:"; cat "$work/log"; }
}

# keep NAME: `make.sh NAME...` keeps the named ones only.
wanted=" $* "
keep() {
    [ "$wanted" = "  " ] || [[ $wanted == *" $1 "* ]] || return 0
    zstd -q -19 --long=24 -f "$work/$1.img" -o "$1.img.zst"
}

attributes() {
    local n
    printf 'set_current_time 20231114221320\n'
    printf 'ea_set tiny user.short value\n'
    for n in 1 2 3 4 5 6; do
        printf 'ea_set plain user.number-%s %s\n' $n "$(printf 'v%.0s' {1..60})"
    done
    printf 'ea_set deep security.capability %s\n' "abcdefghijkl"
}

hash='hash_seed=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0'
lazy="$hash,lazy_itable_init=0,lazy_journal_init=0"
fill "$work/tree" 1024 100
fill "$work/deep" 1024 345
fill "$work/wide" 4096 90
fill "$work/vast" 65536 6

# simple NAME SIZE TREE ARGUMENTS...: made, given attributes, tidied, kept.
simple() {
    make "$@"
    attributes | debug "$1"
    tidy "$1"
    keep "$1"
}

simple ext2-rev0 1M "$work/tree" -t ext2 -r 0 -b 1024 -N 120 -O none -E "$hash"
simple ext2 1M "$work/tree" -t ext2 -b 1024 -N 120 -I 128 -E "$hash"
simple ext3 3M "$work/deep" -t ext3 -b 1024 -N 120 -J size=1 -E "$lazy"
simple deep 1M "$work/deep" -t ext4 -b 1024 -N 128 -O ^has_journal,metadata_csum,64bit,^resize_inode -E "$lazy"
simple bare 1M "$work/deep" -t ext4 -b 1024 -N 128 -O ^has_journal,^metadata_csum,^64bit,uninit_bg -E "$lazy"
simple groups 1M "$work/tree" -t ext4 -b 1024 -g 256 -N 128 -G 2 -O ^has_journal,metadata_csum -E "$lazy"
simple meta-bg 1M "$work/tree" -t ext4 -b 1024 -g 256 -N 128 \
    -O ^has_journal,metadata_csum,metadata_csum_seed,meta_bg,^resize_inode,sparse_super2 -E "$lazy"
simple journal 9M "$work/wide" -t ext4 -b 4096 -N 128 -J size=4 -O metadata_csum,orphan_file,64bit -E "$lazy"
simple blocks-2k 2M "$work/tree" -t ext4 -b 2048 -N 128 -I 1024 -O ^has_journal,metadata_csum -E "$lazy"
simple blocks-64k 4M "$work/vast" -t ext4 -b 65536 -N 128 -O ^has_journal,metadata_csum -E "$lazy"
simple bigalloc 2M "$work/tree" -t ext4 -b 1024 -C 4096 -N 128 -O ^has_journal,bigalloc,metadata_csum -E "$lazy"
simple mmp 1M "$work/tree" -t ext4 -b 1024 -N 128 -O ^has_journal,mmp,metadata_csum -E "$lazy"
simple quota 1M "$work/tree" -t ext4 -b 1024 -N 128 -O ^has_journal,quota,project,metadata_csum -E "$lazy"

# Inline data and attribute values in inodes of their own.
make inline 1M "$work/tree" -t ext4 -b 1024 -N 128 -I 256 \
    -O ^has_journal,inline_data,ea_inode,metadata_csum -E "$lazy"
head -c 3000 "$work/data" > "$work/value"
{ attributes; echo "ea_set -f $work/value plain user.big"; } | debug inline
tidy inline
keep inline

# A directory that ignores case, and one that claims to be encrypted.
make casefold 1M "$work/tree" -t ext4 -b 1024 -N 128 -O ^has_journal,casefold,metadata_csum -E "$lazy"
debug casefold << 'END'
mkdir folded
sif folded flags 0x40080000
cd folded
symlink Name target
symlink OTHER target
END
tidy casefold
keep casefold
make encrypt 1M "$work/tree" -t ext4 -b 1024 -N 128 -O ^has_journal,encrypt,verity,metadata_csum -E "$lazy"
printf 'sif deep flags 0x80800\nsif plain flags 0x80800\nsif tiny flags 0x180000\n' | debug encrypt
keep encrypt

# A directory whose index has two levels.
mkdir -p "$work/index/wide"
: > "$work/index/one"
for ((n = 0; n < 420; n++)); do
    ln "$work/index/one" "$work/index/wide/$(printf '%0250d' $n)"
done
simple index 1M "$work/index" -t ext4 -b 1024 -N 32 -O ^has_journal,metadata_csum,^resize_inode -E "$lazy"

# A log by debugfs: a block that is journaled again right behind its revoke, and one that is not.
make dirty-revoke 3M "$work/tree" -t ext4 -b 1024 -N 128 -J size=1 -O metadata_csum,64bit,^orphan_file -E "$lazy"
tidy dirty-revoke
plain() { debugfs -R "bmap plain $1" "$work/dirty-revoke.img" 2> /dev/null; }
for letter in A B; do
    head -c 2048 /dev/zero | tr '\0' "$letter" > "$work/$letter"
done
debug dirty-revoke << END
jo -c -v 3
jw -b $(plain 0),$(plain 1) $work/A
jw -r $(plain 0),$(plain 1)
jw -b $(plain 0) $work/B
jc
END
keep dirty-revoke

[ "$(id -u)" -eq 0 ] || { echo "not root: dirty-* are kept as they are"; exit 0; }

# dirty NAME OPTIONS COMMANDS [REQUESTS]: mounts, runs the commands inside, copies the image as a crash would leave it,
# and lets debugfs do requests on that.
dirty() {
    local name=$1 options=$2
    tidy "$name"
    mkdir -p "$work/mnt"
    mount -o "loop,commit=300,$options" "$work/$name.img" "$work/mnt"
    mounted=$work/mnt
    (cd "$mounted" && eval "$3")
    # The log went through the loop device to the file; what is not synced stays in memory, as in a crash.
    cp "$work/$name.img" "$work/$name.copy"
    exec 7<&- 8<&-
    umount "$mounted"
    mounted=
    mv "$work/$name.copy" "$work/$name.img"
    [ $# -lt 4 ] || debug "$name" <<< "$4"
    keep "$name"
}

changes='
    mkdir new; for n in $(seq 20); do : > "new/file-$n"; done; sync -f .
    rm -r big; rm slow; sync -f .
    head -c 9000 "$work/data" > new/data; mv deep/another new/moved; sync -f .
    exec 7< plain 8< tree; rm plain deep/linked tree; mkdir again; : > again/x; sync -f .
'
make dirty-v3 3M "$work/tree" -t ext4 -b 1024 -N 128 -J size=1 -O metadata_csum,64bit,orphan_file -E "$lazy"
dirty dirty-v3 data=ordered "$changes"
make dirty-list 3M "$work/tree" -t ext4 -b 1024 -N 128 -J size=1 -O metadata_csum,^64bit,^orphan_file -E "$lazy"
dirty dirty-list data=journal "$changes"
make dirty-old 3M "$work/tree" -t ext3 -b 1024 -N 120 -J size=1 -E "$lazy"
dirty dirty-old data=ordered "$changes"
make dirty-fast 6M "$work/tree" -t ext4 -b 1024 -N 128 -J size=2,fast_commit_size=256 \
    -O metadata_csum,64bit,fast_commit -E "$lazy"
dirty dirty-fast data=ordered '
    sync -f .
    : > first; sync first; ln first second; sync second
    mkdir dir; head -c 5000 "$work/data" > dir/data; sync dir/data
    mv second third; sync third; rm first; sync third; truncate -s 100 plain; sync plain
'

# Fast commits of files with block pointers, and names in a directory that folds them. (Most kernels cannot mount the
# latter; its flag is set behind the kernel's back.)
make dirty-fast-pointers 6M "$work/tree" -t ext3 -b 1024 -N 120 -I 256 -J size=2,fast_commit_size=256 \
    -O fast_commit -E "$lazy"
dirty dirty-fast-pointers data=ordered '
    : > first; rm plain; sync -f .
    head -c 40000 "$work/data" > deep/data; sync deep/data
    for n in $(seq 12); do ln first "deep/$(printf '%0120d' $n)"; done; sync first
    dd if="$work/data" of=deep/data bs=1000 count=1 seek=700 conv=notrunc status=none; sync deep/data
    mv first second; sync second; rm deep/another tiny; chmod 600 second; sync second
'
make dirty-fast-folded 6M "$work/tree" -t ext4 -b 1024 -N 128 -J size=2,fast_commit_size=256 \
    -O metadata_csum,64bit,fast_commit -E "$lazy"
dirty dirty-fast-folded data=ordered '
    # Emptied (EXT4_IOC_CHECKPOINT), the log holds no superblock and no inode of the directory, so that they can be
    # changed at home.
    : > deep/First; sync -f .
    python3 -c "import fcntl, os, struct; fcntl.ioctl(os.open(\".\", os.O_RDONLY), 0x4004662b, struct.pack(\"I\", 0))"
    touch tiny; sync -f .; ln deep/First deep/Straße; sync deep/First
    rm deep/another; mv deep/Straße deep/ÉTÉ; sync deep/First
' 'feature casefold
set_super_value encoding 1
sif deep flags 0x40080000'
