#!/usr/bin/env bash
# `make examples`: builds examples/ against the C library, plain and with sanitizers, and tests them: the plain
# programs under valgrind with little work, the others with more. Programs are killed at work, and what they had
# acknowledged has to be there. e2fsck looks at every volume after every part.
#   scripts/examples.sh [PART...]     parts: build kv kv-kill vfs sql sql-kill
set -u
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
. scripts/target.sh
out=$target/examples
kills=${KILLS:-3}

skip() {
    echo "SKIP examples: $1" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
    [ "${UEXT4_REQUIRE:-}" != all ]
    exit
}
for program in cc mke2fs e2fsck valgrind sqlite3; do
    command -v "$program" >/dev/null || skip "needs \`$program\` (scripts/setup.sh as root installs it)"
done
echo '#include <sqlite3.h>' | cc -E - >/dev/null 2>&1 || skip "needs sqlite3.h (libsqlite3-dev)"

home=$(mktemp -d -p "${TMPDIR:-/dev/shm}" uext4-examples.XXXXXX)
# A file system with io_uring queues, which the one in memory has not.
disk=$(mktemp -d -p "$target" examples.XXXXXX)
running=
trap '[ -z "$running" ] || kill -9 $running; rm -rf "$home" "$disk"' EXIT
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:exitcode=99 UBSAN_OPTIONS=print_stacktrace=1
. scripts/examples-lib.sh
. scripts/examples-kv.sh
. scripts/examples-sqlite.sh

build() {
    scripts/capi.sh && build_command || return 1
    mkdir -p "$out"
    local kind
    for kind in plain asan; do
        compile "$kind" kv examples/kv/*.c &&
            compile "$kind" sqlite-uext4 examples/sqlite/{main,uext4_vfs,vfs_file,vfs_lock}.c -lsqlite3 -lpthread &&
            compile "$kind" vfs-test examples/sqlite/{test,uext4_vfs,vfs_file,vfs_lock}.c -lsqlite3 -lpthread ||
            return 1
    done
}

parts=${*:-build kv kv-kill vfs sql sql-kill}
for part in $parts; do
    case $part in
        build) build || { echo "examples: the build FAILED"; exit 1; } ;;
        kv) kv_tests ;;
        kv-kill) kv_kill_tests ;;
        vfs) vfs_tests ;;
        sql) sql_tests ;;
        sql-kill) sql_kill_tests ;;
        *) echo "no part is named $part" >&2; exit 2 ;;
    esac
done
# As cargo prints it, so that `make test` adds it up.
echo "test result: $([ "$failed" -eq 0 ] && echo ok || echo FAILED). $passed passed; $failed failed; 0 ignored"
[ "$failed" -eq 0 ]
