# Sourced by scripts/examples.sh: tests of the key-value store.
# shellcheck shell=bash

# get, put, delete, list, reopening at each step, whatever engine.  basics RUN DEVICE IMAGE
basics() {
    local run=$1 device=$2 image=$3
    volume "$image" 64M
    fallocate -l 64M "$image" # mapped memory takes files without holes only
    fails 1 'kv.log' "$run" "$device" get a
    clean "$image"
    "$run" -l 2097152 "$device" put a one
    "$run" "$device" put b two
    "$run" "$device" put '' x && return 1
    "$run" "$device" put a three
    is "$(printf 'three\ntwo')" "$run" "$device" get a b
    "$run" "$device" del b
    fails 1 'no such key' "$run" "$device" get b
    fails 1 'no such key' "$run" "$device" del b
    head -c 65536 /dev/urandom > "$home/value"
    "$run" "$device" put large - < "$home/value"
    "$run" "$device" get large | head -c 65536 | cmp - "$home/value"
    head -c 65537 /dev/zero > "$home/larger"
    fails 1 'not allowed' "$run" "$device" put larger - < "$home/larger"
    "$run" "$device" put none ''
    is '' "$run" "$device" get none
    is "$(printf '5 a\n65536 large\n0 none')" "$run" "$device" list
    "$run" "$device" checkpoint
    is "$(printf '5 a\n65536 large\n0 none')" "$run" "$device" list
    "$run" "$device" get large | head -c 65536 | cmp - "$home/value"
    "$run" "$device" put after it
    "$run" "$device" del a
    is "$(printf '2 after\n65536 large\n0 none')" "$run" "$device" list
    "$run" "$device" check
    clean "$image"
}

# All of it in few processes, for valgrind.
few() {
    local image=$1
    volume "$image" 64M
    vkv -l 2097152 "$image" load 60 3 > "$home/acks"
    vkv "$image" checkpoint
    vkv "$image" load 10 > "$home/acks"
    is load-00000069 tail -n 1 "$home/acks"
    vkv "$image" check
    clean "$image"
}

# Many rounds of the log, with batches of several sizes, and everything read back through the queue.
rounds() {
    local device=$1 image=$2 batch
    volume "$image" 48M
    kv -l 2097152 "$device" load 10 > "$home/acks"
    for batch in 1 7 1000; do
        kv "$device" load 300 "$batch" >> "$home/acks"
        kv "$device" check | tee "$home/facts"
    done
    is 910 wc -l < "$home/acks"
    kv "$device" list | cut -d ' ' -f 2 | cmp - "$home/acks"
    # Some rounds at least.
    grep '^910 keys, generation \([2-9]\|[1-9][0-9]\),' "$home/facts"
    # A volume that fills up says so, and what was acknowledged stays.
    kv "$device" load 200000 1000 > "$home/more" 2> "$home/said" && return 1
    grep -i 'no.* space\|no room\|ENOSPC\|full' "$home/said"
    cat "$home/more" >> "$home/acks"
    kv "$device" list | cut -d ' ' -f 2 | cmp - "$home/acks"
    kv "$device" check
    clean "$image"
}

# Each commit is one FUA write: no transaction, no flush.
one_write() {
    volume "$home/kv.img" 64M
    kv "$home/kv.img" put a b
    kv -v "$home/kv.img?cache=volatile&fua=on" load 150 2>&1 > /dev/null | tee "$home/counters"
    is "$(printf 'fua_writes 150\nhandles_started 0\ncommits 0\nflushes 0')" cat "$home/counters"
    clean "$home/kv.img"
}

# scribble PATH OFFSET LENGTH SEED: damages a file of the volume.
scribble() { uext4 io "$home/kv.img:$1" -c "pwrite -q -S $4 $2 $3"; }
# Where the log ends: behind two heads of 4096 bytes.
log_end() { kv "$home/kv.img" check | sed -n 's/.* log \([0-9]*\) of .*/\1/p' | awk '{ print $1 + 8192 }'; }
keys() { kv "$home/kv.img" list | cut -d ' ' -f 2 | tr '\n' ' '; }

# A log whose end is torn: what precedes is kept, what is written then stays, and nothing old comes back.
torn() {
    local end byte
    for byte in 30 4 8 16 20 45; do
        volume "$home/kv.img" 64M
        for key in a b c; do kv "$home/kv.img" put $key "value of $key"; done
        is 'a b c ' keys
        end=$(log_end)
        scribble /kv.log $((end - 4096 + byte)) 1 0x58
        is 'a b ' keys
        kv "$home/kv.img" put d "value of d"
        is 'a b d ' keys
    done
    # The middle one is damaged: the one behind it must not come back when the next takes its place.
    volume "$home/kv.img" 64M
    for key in a b c; do kv "$home/kv.img" put $key "value of $key"; done
    end=$(log_end)
    scribble /kv.log $((end - 8192 + 40)) 1 0x58
    is 'a ' keys
    kv "$home/kv.img" put d "value of d"
    is 'a d ' keys
    kv "$home/kv.img" put e "value of e"
    is 'a d e ' keys
    # A long record of which the last part is missing.
    head -c 60000 /dev/urandom | kv "$home/kv.img" put long -
    end=$(log_end)
    scribble /kv.log $((end - 4096)) 4096 0
    is 'a d e ' keys
    kv "$home/kv.img" check
    # A batch is there as a whole or not at all.
    kv "$home/kv.img" load 5 5
    end=$(log_end)
    scribble /kv.log $((end - 4096)) 1 0x58
    is 'a d e ' keys
    clean "$home/kv.img"
}

# Damage that is no torn end is an error, not a loss.
damaged() {
    volume "$home/kv.img" 64M
    kv "$home/kv.img" load 20
    kv "$home/kv.img" checkpoint
    scribble /kv.data.0 40000 1 0x58
    fails 1 damaged kv "$home/kv.img" list
    volume "$home/kv.img" 64M
    kv "$home/kv.img" load 20
    kv "$home/kv.img" checkpoint
    # The newest head is torn, as by a power cut while it was written: the one before counts, with all of its log.
    kv "$home/kv.img" check
    scribble /kv.log 16 1 0x58
    kv "$home/kv.img" list | grep -c load- | grep -x 20
    kv "$home/kv.img" checkpoint
    # But it was in force if the log has gone on.
    kv "$home/kv.img" put a b
    scribble /kv.log 16 1 0x58
    fails 1 'head is damaged' kv "$home/kv.img" list
    scribble /kv.log 4112 1 0x58
    fails 1 'neither head' kv "$home/kv.img" list
    clean "$home/kv.img"
}

kv_tests() {
    check "kv, basics" basics kv "$home/kv.img" "$home/kv.img"
    check "kv, in valgrind" few "$home/kv.img"
    check "kv, in valgrind, io_uring" few "$disk/kv.img"
    check "kv, basics without a ring" basics kv "sync:$disk/kv.img" "$disk/kv.img"
    check "kv, basics in mapped memory" basics kv "dax:$home/kv.img" "$home/kv.img"
    check "kv, rounds of the log" rounds "$home/kv.img" "$home/kv.img"
    check "kv, rounds of the log, io_uring" rounds "$disk/kv.img" "$disk/kv.img"
    check "kv, one write a commit" one_write
    check "kv, torn ends" torn
    check "kv, damage" damaged
}

# killed_load IMAGE BATCH: a load is killed some times; every key that it printed is there with its value.
killed_load() {
    local image=$1 batch=$2 round
    volume "$image" 256M
    kv -l 2097152 "$image" put first one
    : > "$home/acks"
    for round in $(seq "$kills"); do
        killed load- "$(some_time)" "$home/new" "$out/kv.asan" "$image" load 100000 "$batch"
        grep -x 'load-[0-9]\{8\}' "$home/new" >> "$home/acks"
        kv "$image" list | cut -d ' ' -f 2 | sort > "$home/there"
        is '' comm -13 "$home/there" <(sort "$home/acks")
        kv "$image" check
        # Opening for writing recovers the journal of the volume, too.
        kv "$image" put "round" "$round"
        clean "$image"
    done
    wc -l "$home/acks"
    [ -s "$home/acks" ]
}

kv_kill_tests() {
    check "kv, killed" killed_load "$home/kv.img" 1
    check "kv, killed in batches, io_uring" killed_load "$disk/kv.img" 20
}
