#!/usr/bin/env bash
# Builds the Debian package (scripts/deb.sh), then installs, uses and removes it in a bare Debian: what debootstrap
# calls minbase, and man. The bare system is made once through apt and kept as target/deb/bare-CODENAME.tar. lintian
# looks at the package if it is installed. DEB_BUILT=1 takes the package that is there.
set -eu
cd "$(dirname "$0")/.."
. scripts/target.sh
out=$target/deb
say() { echo "deb-test: $*" >&2; }
skip() {
    echo "SKIP deb_test: $1" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
    [ "${UEXT4_REQUIRE:-}" != all ]
    exit
}

[ "$(id -u)" -eq 0 ] || skip "needs root, to change into a bare Debian"
for program in mmdebstrap dpkg-deb dpkg-shlibdeps cc pkg-config unshare; do
    command -v "$program" >/dev/null || skip "needs \`$program\` (scripts/setup.sh as root installs it)"
done
# shellcheck source=/dev/null
. /etc/os-release
[ "$ID" = debian ] || skip "needs a Debian, to make a bare one of"

# make_bare TAR: the release of this machine, from where its apt fetches it.
make_bare() {
    # shellcheck disable=SC2016  # apt's variables
    local new=$out/new.tar format='$(RELEASE) $(COMPONENT) $(REPO_URI)' from
    from=$(apt-get indextargets --format "$format" 'Created-By: Packages' |
        sed -n "s/^$VERSION_CODENAME main //p" | head -n 1)
    [ -n "$from" ] || skip "apt knows no place of $VERSION_CODENAME"
    say "making a bare $VERSION_CODENAME (kept in $out)"
    # Without perl, which a merged /usr costs otherwise.
    local options=(--quiet --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr
        --include=man-db,usr-is-merged --aptopt='APT::Install-Recommends "false"')
    mmdebstrap "${options[@]}" "$VERSION_CODENAME" "$new" "$from" > "$out/bare.log" 2>&1 || {
        tail -n 20 "$out/bare.log" >&2
        rm -f "$new"
        skip "apt cannot fetch a bare $VERSION_CODENAME"
    }
    mv "$new" "$1"
}

# Every file of the bare system, without what dpkg, apt and man note for themselves.
files() {
    (cd "$bare" && find . -mindepth 1 -path ./proc -prune -o -path ./tmp -prune -o -path ./var/log -prune \
        -o -path ./var/cache -prune -o -path ./var/lib/apt -prune -o -name '*-old' -path './var/lib/dpkg/*' -prune \
        -o -print | sort)
}

inside() {
    # The mount of /proc goes with its name space.
    unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' - "$bare" \
        /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}

passed=0 failed=0
# check WHAT COMMAND...: runs it, keeps its output for a failure.
check() {
    local what=$1
    shift
    if "$@" > "$home/log" 2>&1; then
        passed=$((passed + 1))
        echo "deb-test: $what: ok"
    else
        failed=$((failed + 1))
        echo "deb-test: $what: FAILED ($*)"
        tail -n 20 "$home/log"
    fi
}

install_package() {
    inside dpkg -i "/tmp/$package" || inside apt-get -y -f install || return 1
    inside dpkg -s uext4 | grep '^Status: install ok installed$' && [ -z "$(inside dpkg -V uext4)" ]
}

use_command() {
    inside uext4 --version && inside sh -euxc '
        cd /tmp
        truncate -s 64M disk.img
        uext4 mkfs disk.img
        uext4 cp /usr/bin/uext4 disk.img:/copy
        uext4 cp disk.img:/copy back
        cmp back /usr/bin/uext4
        uext4 check disk.img'
}

# The bare system has no fuse3: the helper of the package mounts.
use_mount() {
    [ -e /dev/fuse ] || { echo "no /dev/fuse here"; return 0; }
    inside sh -euxc '
        mkdir /tmp/mnt
        mknod -m 600 /dev/fuse c 10 229
        echo "/tmp/disk.img /tmp/mnt uext4 noauto,nosuid 0 0" > /tmp/fstab
        mount --fstab /tmp/fstab /tmp/mnt
        cmp /tmp/mnt/copy /usr/bin/uext4
        echo mounted > /tmp/mnt/mounted
        umount /tmp/mnt
        # The last one is the table of mount(8).
        rm -rf /dev/fuse /run/mount
        uext4 cat /tmp/disk.img:/mounted
        test -e /usr/lib/systemd/system/uext4-mount@.service'
}

# The program is compiled here against the files of the package, and runs there.
use_library() {
    dpkg-deb -x "$out/$package" "$home/files"
    local pc
    pc=$(echo "$home"/files/usr/lib/*/pkgconfig)
    # shellcheck disable=SC2046  # words
    cc -Wall -Werror -o "$bare/tmp/program" scripts/deb-test.c \
        $(PKG_CONFIG_SYSROOT_DIR=$home/files PKG_CONFIG_LIBDIR=$pc pkg-config --cflags --libs uext4) || return 1
    inside /tmp/program /tmp/disk.img && [ "$(inside uext4 cat /tmp/disk.img:/from-c)" = hello ] || return 1
    # shellcheck disable=SC2046  # words
    cc -Wall -Werror -static -o "$bare/tmp/static" scripts/deb-test.c $(PKG_CONFIG_SYSROOT_DIR=$home/files \
        PKG_CONFIG_LIBDIR=$pc pkg-config --static --cflags --libs uext4) || return 1
    inside /tmp/static /tmp/disk.img && inside uext4 check /tmp/disk.img
}

use_pages() {
    inside man -w uext4 uext4-cp && inside man uext4-cp | grep -q "^SYNOPSIS"
}

use_completions() {
    inside bash -c 'complete() { :; }; . /usr/share/bash-completion/completions/uext4 && declare -F _uext4' &&
        inside test -s /usr/share/zsh/vendor-completions/_uext4 -a -s /usr/share/fish/vendor_completions.d/uext4.fish
}

remove_package() {
    inside dpkg -P uext4 || return 1
    files | diff "$home/before" -
}

[ -n "${DEB_BUILT:-}" ] || scripts/deb.sh
package=$(basename "$(echo "$out"/uext4_*.deb)")
tar=$out/bare-$VERSION_CODENAME.tar
[ -e "$tar" ] || make_bare "$tar"
home=$(mktemp -d -p "${TMPDIR:-/dev/shm}" uext4-deb.XXXXXX)
trap 'rm -rf "$home"' EXIT
bare=$home/bare
mkdir "$bare"
tar -x --xattrs -C "$bare" -f "$tar"
files > "$home/before"
cp "$out/$package" "$bare/tmp/"

check installed install_package
check command use_command
check mount use_mount
check library use_library
check pages use_pages
check completions use_completions
check removed remove_package
! command -v lintian >/dev/null || check lintian lintian --fail-on error --allow-root "$out/$package"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
