#!/usr/bin/env bash
# A Ceph cluster of one node for tests, measurements and the guide: one monitor, one manager, one OSD, all files in
# one directory, listening on 127.0.0.1 only. It needs the packages ceph-mon, ceph-mgr, ceph-osd and ceph-common, and no
# root.
#
#   ceph.sh up DIR [PID]   starts it and makes the pool `rbd`; DIR must not exist. Its configuration is DIR/ceph.conf.
#                          With PID it stops by itself when that process is gone.
#   ceph.sh down DIR       stops it and removes DIR
#   ceph.sh kill-osd DIR   stops the OSD as a crash does; `start-osd DIR` starts it again
#
# Environment: CEPH_OSD_BYTES: size of the sparse file of the OSD (6 GiB). CEPH_WATCH_SECONDS: after how long a client
# that died is forgotten (30). CEPH_AUTH=cephx: users have keys, client.admin in DIR/keyring, others in
# DIR/client.NAME.keyring.
set -eu

say() { echo "ceph.sh: $*" >&2; }
die() { say "$*"; exit 1; }
# What is tried every 100 ms, for at most $1 s.
within() {
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}
# Two free ports: others may run a cluster beside this one.
free_ports() {
    python3 -c 'import socket
taken = [socket.socket() for _ in range(2)]
for one in taken: one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in taken])'
}

configure() {
    local ports v2 v1
    ports=$(free_ports); v2=${ports% *} v1=${ports#* }
    fsid=$(cat /proc/sys/kernel/random/uuid)
    monitors="[v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]"
    cat > "$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = $monitors
public network = 127.0.0.1/32
auth cluster required = $auth
auth service required = $auth
auth client required = $auth
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon warn on insecure global id reclaim allowed = false
run dir = $dir/run
log file = $dir/log/\$name.log
admin socket = $dir/run/\$name.asok
pid file = $dir/run/\$name.pid
keyring = $dir/keyring
[client]
keyring = $dir/\$name.keyring,$dir/keyring
log file =
admin socket =
pid file =
[mon]
mon data = $dir/mon
mon data avail crit = 1
mon data avail warn = 2
mgr initial modules =
[mgr]
mgr data = $dir/mgr
keyring = $dir/mgr/keyring
[osd]
osd data = $dir/osd
keyring = $dir/osd/keyring
osd client watch timeout = ${CEPH_WATCH_SECONDS:-30}
osd objectstore = bluestore
bluestore block size = ${CEPH_OSD_BYTES:-6442450944}
bluestore fsck on mount = false
osd memory target = 939524096
osd class load list = *
osd class default list = *
CONF
}

# Keys of the monitor and of client.admin, before there is a monitor.
first_keys() {
    ceph-authtool --create-keyring "$dir/keyring" --gen-key -n client.admin \
        --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    ceph-authtool --create-keyring "$dir/mon.keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$dir/mon.keyring" --import-keyring "$dir/keyring"
}

# Those of the manager and of the OSD, given by the monitor.
further_keys() {
    ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' -o "$dir/mgr/keyring"
    ceph auth get-or-create osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' \
        -o "$dir/osd/keyring"
}

start_osd() {
    ceph-osd -i 0 >>"$dir/log/start" 2>&1 || die "the OSD does not start: see $dir/log"
}

start() {
    local uuid
    monmaptool --create --fsid "$fsid" --addv a "$monitors" "$dir/monmap" >>"$dir/log/start" 2>&1
    [ $auth = none ] || first_keys >>"$dir/log/start" 2>&1
    ceph-mon -i a --mkfs --monmap "$dir/monmap" --keyring "$dir/mon.keyring" >>"$dir/log/start" 2>&1
    ceph-mon -i a >>"$dir/log/start" 2>&1
    within 30 ceph --connect-timeout 2 quorum_status || die "the monitor does not answer: see $dir/log"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph osd new "$uuid" 0 >>"$dir/log/start" 2>&1
    [ $auth = none ] || further_keys >>"$dir/log/start" 2>&1
    ceph-mgr -i x >>"$dir/log/start" 2>&1
    ceph-osd -i 0 --mkfs --osd-uuid "$uuid" --no-mon-config >>"$dir/log/start" 2>&1
    start_osd
    within 60 osd_is_up || die "the OSD does not come up: see $dir/log"
    ceph osd pool create rbd 8 >>"$dir/log/start" 2>&1
    rbd pool init rbd >>"$dir/log/start" 2>&1
}

osd_is_up() { ceph osd stat -f json | grep -q '"num_up_osds":1'; }

# Ends a daemon of this directory, and no other: the process must have the directory's configuration in its environment.
end() {
    local signal=$1 name=$2 file="$dir/run/$2.pid" pid
    pid=$(cat "$file" 2>/dev/null) || return 0
    if ours "$pid"; then
        kill "-$signal" "$pid" 2>/dev/null || true
        within 10 gone "$pid" || say "$name (process $pid) does not end"
    fi
    rm -f "$file"
}
ours() { tr '\0' '\n' 2>/dev/null < "/proc/$1/environ" | grep -qxF "CEPH_CONF=$dir/ceph.conf"; }
gone() { ! ours "$1"; }

stop() {
    # Nothing of it is needed again: no daemon has to write what it has in memory.
    for name in mgr.x osd.0 mon.a; do end KILL "$name"; done
}

# Stops the cluster when process $1 is gone.
watch_over() {
    setsid bash -c 'while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 1; done; exec "$3" down "$2"' \
        watch "$1" "$dir" "$0" </dev/null >/dev/null 2>&1 &
}

[ $# -ge 2 ] || die "usage: ceph.sh up DIR [PID] | down DIR | kill-osd DIR | start-osd DIR"
dir=$(realpath -m "$2") auth=${CEPH_AUTH:-none}
export CEPH_CONF="$dir/ceph.conf"
case $1 in
up)
    for tool in ceph-mon ceph-mgr ceph-osd ceph rbd; do
        command -v $tool >/dev/null || die "no $tool: apt-get install ceph-mon ceph-mgr ceph-osd ceph-common"
    done
    mkdir "$dir" || die "$dir exists: is a cluster running in it?"
    mkdir "$dir"/mon "$dir"/mgr "$dir"/osd "$dir"/run "$dir"/log
    touch "$dir"/{,mon.,mgr/,osd/}keyring
    trap 'stop' ERR INT TERM
    trap 'code=$?; [ $code = 0 ] || stop' EXIT
    configure
    [ -z "${3:-}" ] || watch_over "$3"
    start
    ;;
down)
    [ -d "$dir" ] || exit 0
    [ -f "$dir/ceph.conf" ] && [ -d "$dir/osd" ] || die "$dir is not a directory of this script"
    stop
    rm -rf "$dir"
    ;;
kill-osd) end KILL osd.0 ;;
start-osd)
    start_osd
    within 60 osd_is_up || die "the OSD does not come up: see $dir/log"
    ;;
*) die "unknown command $1" ;;
esac
