# Sourced by scripts/examples.sh: compiling, running, telling.
# shellcheck shell=bash

passed=0 failed=0

# compile KIND PROGRAM SOURCE... [LIBRARY...]
compile() {
    local kind=$1 program=$2 flags=-O2
    shift 2
    [ "$kind" = plain ] || flags="-O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
    # shellcheck disable=SC2086  # a list of words
    cc -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Werror $flags -I "$target/capi" -o "$out/$program.$kind" "$@" \
        -Wl,-rpath,"$target/capi" -L "$target/capi" -luext4
}

# The programs: with sanitizers, or the plain ones under valgrind (`v…`). Memory that the Rust runtime keeps for the
# main thread is only "possibly lost"; what is lost for certain is an error.
grind() {
    valgrind -q --error-exitcode=98 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite "$@"
}
kv() { "$out/kv.asan" "$@"; }
vkv() { grind "$out/kv.plain" "$@"; }
sql() { "$out/sqlite-uext4.asan" "$@"; }
vsql() { grind "$out/sqlite-uext4.plain" "$@"; }
uext4() { "$target/release/uext4" "$@"; }

# volume FILE SIZE [OPTION...]
volume() {
    local file=$1 size=$2
    shift 2
    rm -f "$file"
    truncate -s "$size" "$file"
    mke2fs -q -F -t ext4 "$@" "$file"
}

clean() { e2fsck -fn "$1" > "$home/e2fsck" 2>&1 || { cat "$home/e2fsck"; return 1; }; }

# is WANTED COMMAND...: the command succeeds and prints that.
is() {
    local wanted=$1 found status=0
    shift
    found=$("$@") || status=$?
    [ "$status" -eq 0 ] && [ "$found" = "$wanted" ] && return
    printf 'status %s of: %s\n wanted: %s\n found:  %s\n' "$status" "$*" "$wanted" "$found"
    return 1
}

# fails STATUS WORDS COMMAND...: the command ends with the status and says the words.
fails() {
    local wanted=$1 words=$2 said status=0
    shift 2
    said=$("$@" 2>&1) || status=$?
    [ "$status" -eq "$wanted" ] && grep -q -e "$words" <<< "$said" && return
    printf 'status %s, not %s with "%s", of: %s\n%s\n' "$status" "$wanted" "$words" "$*" "$said"
    return 1
}

# check NAME FUNCTION...: a test. In a shell of its own that ends with the first failure.
check() {
    local name=$1 status start=$SECONDS
    shift
    (
        set -e
        "$@"
    ) > "$home/log" 2>&1 &
    # Not in an `if`, where `set -e` means nothing.
    wait $!
    status=$?
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        echo "examples: $name: ok, $((SECONDS - start)) s"
    else
        failed=$((failed + 1))
        echo "examples: $name: FAILED"
        tail -n 40 "$home/log"
    fi
}

# killed WORD SECONDS OUTPUT COMMAND...: runs it, and kills it so long after it has printed the word for the first
# time, or after a minute. Fails if it ended before.
killed() {
    local word=$1 seconds=$2 output=$3 status tries
    shift 3
    : > "$output"
    "$@" <&0 > "$output" &
    running=$!
    for ((tries = 0; tries < 1200; tries++)); do
        ! grep -q "$word" "$output" || break
        sleep 0.05
    done
    sleep "$seconds"
    kill -9 "$running" || { echo "it ended before it was killed"; return 1; }
    status=0
    wait "$running" 2>/dev/null || status=$?
    running=
    [ "$status" -eq 137 ] || { echo "it ended with $status before it was killed"; return 1; }
}

# Seconds, from 0.100 to 0.599.
some_time() { echo "0.$((RANDOM % 500 + 100))"; }
