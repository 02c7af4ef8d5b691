#!/usr/bin/env bash
# `make sqlite-tests`: SQLite's own tests, of the version that is installed, on databases inside volumes. Their source
# comes from Debian's source package; SQLITE_SOURCE names an unpacked one instead. What does not apply is named with the
# reason in examples/sqlite/suite/left-out.txt. Every setting has a volume of its own, which has to be clean afterwards.
#   scripts/sqlite-tests.sh [SETTING[:FILE]...]     settings: those of `all` below, and all that SQLite has
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
. scripts/target.sh
out=$target/sqlite-tests
suite=$PWD/examples/sqlite/suite
limit=${SECONDS_EACH:-300}
all=(plain wal_alone exclusive_wal journaltest truncate_journal persistent_journal persistent_journal_error exclusive
    exclusive-truncate)
say() { echo "sqlite-tests: $*" >&2; }
. scripts/apt-source.sh
. scripts/sqlite-tests-lib.sh

skip() {
    echo "SKIP sqlite-tests: $1" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
    [ "${UEXT4_REQUIRE:-}" != all ]
    exit
}
for program in cc make mke2fs e2fsck sqlite3; do
    command -v "$program" >/dev/null || skip "needs \`$program\` (scripts/setup.sh as root installs it)"
done
# The tests are written in Tcl. Nothing else needs it, so it is not among the packages of setup.sh.
find_tcl() { find /usr/lib /usr/local/lib -name tclConfig.sh 2>/dev/null | sort | tail -n 1; }
if [ -z "$(find_tcl)" ]; then
    [ "$(id -u)" -eq 0 ] || skip "needs Tcl (as root: apt-get install --no-install-recommends tcl-dev)"
    say "installing tcl-dev"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends tcl-dev >&2
fi
tcl=$(dirname "$(find_tcl)")

# The source of the installed SQLite.
version=$(sqlite3 --version | cut -d' ' -f1)
source=${SQLITE_SOURCE:-$out/sqlite-$version}
if [ ! -e "$source/test/tester.tcl" ]; then
    [ -z "${SQLITE_SOURCE:-}" ] || { say "$source is not the source of SQLite"; exit 1; }
    package=$(dpkg-query -W -f '${source:Version}' sqlite3 2>/dev/null) ||
        skip "needs the source of SQLite $version (SQLITE_SOURCE)"
    say "fetching the source of SQLite $package through apt"
    mkdir -p "$out"
    apt_source sqlite3 "$package" "$out/apt" "$source.new"
    mv "$source.new" "$source"
fi

# Compiled once; only what is ours is compiled again.
build() {
    local dir=$out/build object name libraries
    if [ ! -e "$dir/configured" ]; then
        say "configuring and compiling SQLite's tests (a minute)"
        mkdir -p "$dir"
        (cd "$dir" && "$source/configure" --enable-all --disable-debug --with-tcl="$tcl" > configure.log 2>&1) ||
            { tail "$dir/configure.log" >&2; return 1; }
        touch "$dir/configured"
    fi
    make -s -C "$dir" -f "$suite/fixture.mk" objects > "$dir/make.log" 2>&1 || { tail "$dir/make.log" >&2; return 1; }
    mkdir -p "$dir/ours"
    . "$tcl/tclConfig.sh"
    for name in uext4_vfs vfs_file vfs_lock suite/suite suite/suite_tcl; do
        object=$dir/ours/$(basename "$name").o
        # shellcheck disable=SC2086  # a list of words
        cc -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -I "$target/capi" -I "$dir" $TCL_INCLUDE_SPEC \
            -c -o "$object" "examples/sqlite/$name.c" || return 1
    done
    libraries=$(make -s -C "$dir" -f "$suite/fixture.mk" print)
    # shellcheck disable=SC2086  # a list of words
    (cd "$dir" && cc -o testfixture ours/*.o $libraries "$target/capi/libuext4.a" -lpthread -ldl -lm -lgcc_s \
        -Wl,--wrap=fopen,--wrap=fopen64,--wrap=Sqliteconfig_Init)
}

scripts/capi.sh
build_command
build
home=$(mktemp -d -p "${TMPDIR:-/dev/shm}" uext4-sqlite.XXXXXX)
trap 'rm -rf "$home"' EXIT
rm -rf "$out/logs"
mkdir -p "$out/logs" "$home/host"
# The C library makes no directories; these are what the tests make.
deep=$(printf 'd123456789012345678901234567890/%.0s' {1..16})
mkdir -p "$home"/tree/uext4/{tempdir/t1/t2/t3,quota2a/x1,quota2a/x2,quota2b,quota2c,"$deep"}
read_list
for setting in "${@:-${all[@]}}"; do
    run_setting "$setting"
done
tell
