# Sourced by scripts/examples.sh: tests of the VFS for SQLite.
# shellcheck shell=bash

# vfs IMAGE ROUNDS RUN...: the methods, one by one. The device claims a cache, so that flushes are counted.
vfs() {
    local image=$1 rounds=$2
    shift 2
    mkdir -p "$home/tree/dir"
    ln -sf dir/real.db "$home/tree/link.db"
    ln -sf loop.db "$home/tree/loop.db"
    volume "$image" 32M -d "$home/tree"
    is ok "$@" "$image?cache=volatile" "$rounds"
    clean "$image"
}

vfs_tests() {
    check "vfs" vfs "$home/vfs.img" 100 "$out/vfs-test.asan"
    check "vfs, io_uring" vfs "$disk/vfs.img" 20 "$out/vfs-test.asan"
    check "vfs in valgrind" vfs "$home/vfs.img" 3 grind "$out/vfs-test.plain"
}

# What a run has to know of a journal mode: the words in front of its SQL, and the option of the program.
words_of() {
    case $1 in
        wal) echo "PRAGMA journal_mode=WAL;" ;;
        *) echo "PRAGMA locking_mode=NORMAL; PRAGMA journal_mode=$1;" ;;
    esac
}
option_of() { [ "$1" != wal ] || echo -x; }

# out_is_well MODE IMAGE DB: the stock sqlite3 takes what is copied out, by both ways of copying.
out_is_well() {
    local wanted
    # shellcheck disable=SC2046  # none or one
    wanted=$(sql $(option_of "$1") "$2" "$3" "SELECT count(*), sum(length(b)), max(i) FROM t")
    uext4 cat "$2:$3" > "$home/out.db"
    is "$(printf 'ok\n%s' "$wanted")" sqlite3 "$home/out.db" \
        "PRAGMA integrity_check; SELECT count(*), sum(length(b)), max(i) FROM t"
    rm -f "$home"/copied.db*
    uext4 cp "$2:$3" "$home/copied.db"
    cmp "$home/out.db" "$home/copied.db"
    rm -f "$home"/out.db* "$home"/copied.db*
}

# series FIRST LAST: rows.
series() {
    echo "WITH RECURSIVE n(x) AS (VALUES($1) UNION ALL SELECT x+1 FROM n WHERE x<$2)"
    echo "INSERT INTO t SELECT x, randomblob(x % 400) FROM n;"
}

# statements RUN IMAGE MODE ROWS: a schema, many rows, roll-backs, savepoints, VACUUM, reopening.
statements() {
    local run=$1 image=$2 mode=$3 rows=$4 words option half
    words=$(words_of "$mode") option=$(option_of "$mode") half=$(($4 / 2))
    # shellcheck disable=SC2086  # none or one
    ask() { "$run" $option "$image" /s.db "$words" "$@" | tail -n +$(($(grep -o PRAGMA <<< "$words" | wc -l) + 1)); }
    volume "$image" 64M
    ask "CREATE TABLE t(i INTEGER PRIMARY KEY, b); CREATE INDEX tb ON t(b)"
    # shellcheck disable=SC2086
    is "$mode" "$run" $option "$image" /s.db "PRAGMA journal_mode=$mode"
    ask "BEGIN; $(series 1 $half) COMMIT; BEGIN; $(series $((half + 1)) "$rows") COMMIT;"
    is "$rows" ask "SELECT count(*) FROM t"
    is "$rows" ask "BEGIN; DELETE FROM t WHERE i % 2; UPDATE t SET b = NULL; ROLLBACK; SELECT count(*) FROM t"
    is "$rows" ask "PRAGMA cache_size=10; BEGIN; UPDATE t SET b = randomblob(300); ROLLBACK;
        SELECT sum(length(b) = max(i % 400, 1)) FROM t"
    ask "BEGIN; SAVEPOINT one; DELETE FROM t WHERE i > $half; SAVEPOINT two; DELETE FROM t; ROLLBACK TO two;
        RELEASE one; COMMIT"
    is $half ask "SELECT count(*) FROM t"
    ask "DELETE FROM t WHERE i % 3 = 0; VACUUM; $(series $((rows + 1)) $((rows + half)))"
    is ok ask "PRAGMA integrity_check"
    is $((half - half / 3 + half)) ask "SELECT count(*) FROM t"
    clean "$image"
    out_is_well "$mode" "$image" /s.db
}

# The same in one process, for valgrind, and once more to open what it left.
few_statements() {
    local image=$1 mode=$2 option
    option=$(option_of "$mode")
    volume "$image" 64M
    # shellcheck disable=SC2086
    vsql $option "$image" /s.db "$(words_of "$mode") CREATE TABLE t(i INTEGER PRIMARY KEY, b)" \
        "BEGIN; $(series 1 60) COMMIT; BEGIN; DELETE FROM t; ROLLBACK; SAVEPOINT a; DELETE FROM t; ROLLBACK TO a" \
        "RELEASE a; UPDATE t SET b = randomblob(900) WHERE i > 30; VACUUM"
    # shellcheck disable=SC2086
    is "$(printf '60\nok')" vsql $option "$image" /s.db "SELECT count(*) FROM t; PRAGMA integrity_check"
    clean "$image"
    out_is_well "$mode" "$image" /s.db
}

# A volume that is full: the statement fails, and the database is as it was.
no_room() {
    volume "$home/sql.img" 16M
    sql "$home/sql.img" /s.db "CREATE TABLE t(i INTEGER PRIMARY KEY, b); $(series 1 100)"
    fails 1 'full' sql "$home/sql.img" /s.db "INSERT INTO t VALUES (1000, zeroblob(30000000))"
    is "$(printf 'ok\n100')" sql "$home/sql.img" /s.db "PRAGMA integrity_check; SELECT count(*) FROM t"
    clean "$home/sql.img"
}

sql_tests() {
    local mode
    for mode in delete truncate persist wal; do
        check "sqlite, $mode" statements sql "$home/sql.img" $mode 6000
    done
    check "sqlite, wal, io_uring" statements sql "$disk/sql.img" wal 2000
    check "sqlite, delete, io_uring" statements sql "$disk/sql.img" delete 2000
    check "sqlite in valgrind, wal" few_statements "$home/sql.img" wal
    check "sqlite in valgrind, delete, io_uring" few_statements "$disk/sql.img" delete
    check "sqlite, a full volume" no_room
}

# Transactions without end. Each adds three rows, changes old ones, and keeps the sum; then it says how far it is. The
# cache is small, so that pages reach the database in the middle of a transaction.
transactions() {
    echo "$1 PRAGMA cache_size=20; CREATE TABLE IF NOT EXISTS t(i INTEGER PRIMARY KEY, b);"
    echo "CREATE TABLE IF NOT EXISTS total(n);"
    echo "INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT * FROM total);"
    while :; do
        echo "BEGIN;"
        for _ in 1 2 3; do echo "INSERT INTO t(b) VALUES (randomblob(abs(random()) % 6000));"; done
        echo "UPDATE t SET b = randomblob(length(b)) WHERE i % 20 = (SELECT n / 3 % 20 FROM total);"
        echo "UPDATE total SET n = n + 3; COMMIT;"
        echo "SELECT 'done ' || n FROM total;"
    done
}

# The last number that was acknowledged, in lines that are whole.
last_done() { sed -n 's/^done \([0-9][0-9]*\)$/\1/p' "$1" | tail -n 1; }

# killed_transactions IMAGE MODE: a load is killed some times. What was acknowledged is there, and all or nothing of
# the transaction that was cut.
killed_transactions() {
    local image=$1 mode=$2 round words acked found option
    words=$(words_of "$mode") option=$(option_of "$mode")
    volume "$image" 128M
    for round in $(seq "$kills"); do
        # shellcheck disable=SC2086
        killed done "$(some_time)" "$home/new" "$out/sqlite-uext4.asan" $option "$image" /k.db \
            < <(transactions "$words" 2>/dev/null)
        acked=$(last_done "$home/new")
        # shellcheck disable=SC2086
        is ok sql $option "$image" /k.db "PRAGMA integrity_check"
        # shellcheck disable=SC2086
        found=$(sql $option "$image" /k.db "SELECT n, (SELECT count(*) FROM t), (SELECT max(i) FROM t) FROM total")
        echo "round $round: $acked acknowledged, $found found"
        is "${found%%|*}|${found%%|*}|${found%%|*}" echo "$found"
        [ "${found%%|*}" -ge "$acked" ]
        clean "$image"
    done
    out_is_well "$mode" "$image" /k.db
}

# A transaction that is cut after it has changed the database: its journal rolls it back.
hot_journal() {
    local image=$home/sql.img mode=$1 before
    volume "$image" 64M
    sql "$image" /k.db "$(words_of "$mode") CREATE TABLE t(i INTEGER PRIMARY KEY, b); $(series 1 3000)"
    before=$(sql "$image" /k.db "SELECT sum(length(b)) FROM t; SELECT quote(b) FROM t WHERE i = 2000")
    uext4 cat "$image:/k.db" | cksum > "$home/before"
    killed changed 0 "$home/new" "$out/sqlite-uext4.asan" -d "$image" /k.db < <(
        echo "$(words_of "$mode") PRAGMA cache_size=10; BEGIN; UPDATE t SET b = zeroblob(400);"
        echo "SELECT 'changed';"
        exec sleep 10)
    grep -x changed "$home/new"
    # Without pages in memory the volume has what SQLite wrote before the kill.
    # The journal is there and has something in it; the database has changed.
    uext4 stat "$image:/k.db-journal" | grep -i size
    [ "$(uext4 cat "$image:/k.db-journal" | wc -c)" -gt 512 ]
    uext4 cat "$image:/k.db" | cksum | cmp -s - "$home/before" && { echo "nothing was changed"; return 1; }
    is "$before" sql "$image" /k.db "SELECT sum(length(b)) FROM t; SELECT quote(b) FROM t WHERE i = 2000"
    is ok sql "$image" /k.db "PRAGMA integrity_check"
    clean "$image"
}

sql_kill_tests() {
    local mode
    for mode in delete truncate persist; do
        check "sqlite, $mode, a hot journal" hot_journal $mode
    done
    for mode in delete truncate persist wal; do
        check "sqlite, $mode, killed" killed_transactions "$home/sql.img" $mode
    done
    check "sqlite, wal, killed, io_uring" killed_transactions "$disk/sql.img" wal
    check "sqlite, delete, killed, io_uring" killed_transactions "$disk/sql.img" delete
}
