# What the benchmarks beside the kernel's tools need, to be sourced: `bed NAME` ends the script where it cannot run
# (with a line that says so), takes the lock under which loop devices and mounts are used, builds the program unless
# UEXT4 names one, and makes $work, a folder on tmpfs. $device, if it is set, is torn down with it at the end.

PATH=$PATH:/usr/sbin:/sbin

# bed NAME MIBS: MIBS of tmpfs are needed.
bed() {
    local room
    if [ "$(id -u)" -ne 0 ]; then
        echo "SKIP $1: needs root (loop device and mount)" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
        exit 0
    fi
    room=$(df --output=avail -m /dev/shm | tail -n 1)
    if [ "$room" -lt "$2" ]; then
        echo "SKIP $1: needs $2 MiB of /dev/shm, $room are free" | tee -a "${UEXT4_SKIP_LOG:-/dev/null}"
        exit 0
    fi
    . scripts/target.sh
    # Always: a program that is older than its sources would be measured in their name.
    [ -n "${UEXT4:-}" ] || build_command
    uext4=${UEXT4:-$target/release/uext4}
    # That of the tests (crates/testkit, guard/lock.rs).
    local locks=/tmp
    [ ! -d /run/lock ] || locks=/run/lock
    exec 9> "$locks/uext4-test.lock"
    flock 9
    work=$(mktemp -d "/dev/shm/uext4-$1.XXXXXX")
    device=
    trap unmake EXIT
}

unmake() {
    ! mountpoint -q "$work/mnt" || umount "$work/mnt"
    [ -z "$device" ] || losetup -d "$device"
    rm -rf "$work"
}

# milliseconds NAME COMMAND...: runs it, and adds its time to $work/NAME.times. A failure ends the script.
milliseconds() {
    local name=$1 start end
    shift
    start=$(date +%s%N)
    "$@" > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
    end=$(date +%s%N)
    echo $(((end - start) / 1000000)) >> "$work/$name.times"
}

# median FILE: of the numbers in its lines.
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
