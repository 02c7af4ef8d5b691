#!/usr/bin/env bash
# A second version of e2fsprogs as a judge: fetches the source of the Debian release SUITE (default: trixie, 1.47.2)
# through apt, builds its programs under target/, and prints the folder that they are in. Exit status 3: the source
# cannot be fetched.
#   UEXT4_E2FSPROGS=$(scripts/e2fsprogs.sh) cargo test -p uext4 --test suite mkfs_sweep::
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:-trixie}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
. scripts/target.sh
home=$target/e2fsprogs-$suite
programs=$home/programs
mkdir -p "$home/lists/partial"

say() { printf 'e2fsprogs: %s\n' "$*" >&2; }

if [ ! -x "$programs/debugfs" ]; then
    say "fetching the source of $suite"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$home/sources.list"
    # With lists of packages of its own, so that those of the machine stay as they are.
    options=(-q -o "Dir::Etc::SourceList=$home/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$home/lists" -o "Dir::Cache=$home" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2 || { say "no package lists of $suite"; exit 3; }
    version=$(apt-cache "${options[@]}" showsrc e2fsprogs 2>/dev/null | sed -n 's/^Version: //p' |
        sort -V | tail -n 1) || version=
    [ -n "$version" ] || { say "no source of $suite"; exit 3; }
    # The mirror may lack the detached signature (.asc). apt checks each file it keeps against the signed lists.
    (cd "$home" && apt-get "${options[@]}" source --download-only "e2fsprogs=$version" >&2) ||
        say "not every file of the source package is there"
    [ -e "$(echo "$home"/e2fsprogs_*.orig.tar.gz)" ] || { say "the source did not arrive"; exit 3; }
    rm -rf "$home/source" "$home/build"
    mkdir "$home/source" "$home/build"
    tar -x --strip-components=1 -C "$home/source" -f "$home"/e2fsprogs_*.orig.tar.gz
    say "building"
    (
        cd "$home/build"
        ../source/configure --quiet --disable-nls --disable-fuse2fs
        make -s -j2 libs
        make -s -C e2fsck e2fsck
        make -s -C misc mke2fs dumpe2fs
        make -s -C debugfs debugfs
    ) > "$home/log" 2>&1 || { tail -n 20 "$home/log" >&2; exit 1; }
    mkdir -p "$programs"
    cp "$home"/build/misc/{mke2fs,dumpe2fs} "$home/build/e2fsck/e2fsck" "$home/build/debugfs/debugfs" "$programs"
fi
"$programs/mke2fs" -V >&2
echo "$programs"
