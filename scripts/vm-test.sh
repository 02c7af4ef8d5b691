#!/usr/bin/env bash
# Boots the distribution's stock kernel in QEMU (software emulation) with NVMe, null_blk and persistent
# memory, and runs vm/tests/*.sh, the test files crates/*/tests/vm_*.rs and the guest program (vm/guest)
# there. Functional evidence only: no speeds.
#
#   scripts/vm-test.sh [--no-guest] [--dry] [--power-cut] [--boot]
#
# A second boot is killed in the middle of a load; crates/ext4/tests/power_cut.rs looks at the volumes it leaves. A
# third one is from a volume that uext4 made.
#
# --no-guest leaves the Rust programs out, --power-cut the first boot, --boot all but the third; --dry stops before the
# boot. Downloads are kept in target/vm.
set -eu
cd "$(dirname "$0")/.."
what=vm-test
. scripts/vm-lib.sh
seconds_max=150
# Nothing is measured here, so the programs are not optimised across crates.
profile=vm
# Both processors in one thread. With a thread for each, two boots of kernel 6.1.0-50 never ended: a soft lockup of a
# processor, each time in another place. In one thread it takes ten to twenty seconds longer.
accel=tcg,thread=single
needs qemu-system-x86_64 busybox modprobe depmod mke2fs dmsetup fsverity dpkg-deb apt-get

# Builds the guest program and the test programs with modules vm_… into $cache/programs.
build_programs() {
    say "building the guest programs"
    local tests package built
    rm -rf "$cache/programs"
    mkdir -p "$cache/programs/tests/rust"
    static_cargo build -p uext4-vm-guest
    cp "$cache/cargo/x86_64-unknown-linux-gnu/$profile/uext4-vm-guest" "$cache/programs/guest"
    for tests in $(dirname crates/*/tests/vm_*.rs | sort -u); do
        package=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$tests/../Cargo.toml" | head -n 1)
        built=$(static_cargo test --no-run -p "$package" --test suite --message-format=json |
            sed -n 's/.*"executable":"\([^"]*\/suite-[^"]*\)".*/\1/p')
        [ -x "$built" ] || { say "no test program of $package"; exit 1; }
        cp "$built" "$cache/programs/tests/rust/$package"
    done
}

build_initramfs() {
    local root=$cache/root release=$1
    rm -rf "$root"
    mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,tests,lib,usr/bin,usr/sbin}
    add_programs "$root" bin busybox
    install vm/init "$root/init"
    cp vm/tests/* "$root/tests/"
    # busybox has some of them as well, but with fewer options (dd: no synchronous writes).
    add_programs "$root" sbin mke2fs e2fsck debugfs dumpe2fs tune2fs chattr dmsetup fsverity dd
    [ -e /etc/mke2fs.conf ] && install -D -m 644 /etc/mke2fs.conf "$root/etc/mke2fs.conf"
    add_modules "$root" "$release" nvme null_blk crc32c_generic nd_e820 nd_pmem ext4 quota_v2 loop \
        dm-log-writes dm-verity sha512_generic fuse zram
    if [ "$with_guest" = yes ]; then
        cp -r "$cache/programs/." "$root/"
    fi
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$cache/initramfs.gz"
}

boot() {
    local release=$1 small
    small="driver=blkdebug,node-name=small,discard=unmap,image.driver=file,image.discard=unmap"
    small+=",image.filename=$cache/nvme-4k.img"
    small+=",inject-error.0.event=none,inject-error.0.sector=98304,inject-error.0.errno=5"
    rm -f "$cache"/nvme*.img
    truncate -s 1G "$cache/nvme.img"
    truncate -s 64M "$cache/nvme-4k.img"
    # The second namespace has blocks of 4096 bytes, and fails transfers of its sector 98304 (byte 48 Mi).
    # memmap=512M!1G: 512 MiB of memory at 1 GiB become /dev/pmem0.
    timeout "$seconds_max" qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m 2048 \
        -nodefaults -no-reboot -display none -serial stdio -monitor none \
        -kernel "$kernel/boot/vmlinuz-$release" -initrd "$cache/initramfs.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off memmap=512M!1G" \
        -drive "file=$cache/nvme.img,if=none,format=raw,cache=unsafe,discard=unmap,id=nvme" \
        -blockdev "$small" \
        -device nvme,id=nvme,serial=uext4 -device nvme-ns,drive=nvme,bus=nvme,nsid=1 \
        -device nvme-ns,drive=small,bus=nvme,nsid=2,logical_block_size=4096,physical_block_size=4096 \
        </dev/null 2>&1 | tr -d '\r' | tee "$cache/console.log"
    [ "${PIPESTATUS[0]}" -ne 124 ] || say "stopped after $seconds_max s"
    rm -f "$cache"/nvme*.img
}

# Options of mke2fs for the volumes of the power cut, in the order of vm/guest/src/power_cut.rs.
cut_volumes=("-b 4096 -O ^orphan_file" "-b 1024 -O ^extent,^metadata_csum,^64bit,^orphan_file"
    "-b 1024 -J size=1 -O ^orphan_file" "-b 1024 -J size=8,fast_commit_size=2048 -O casefold,fast_commit,^orphan_file")

# Boots once more with a load on volumes of the host, kills the machine in the middle of it, and looks at what is
# left: crates/ext4/tests/power_cut.rs.
power_cut() {
    local release=$1 number=0 options pid waited=0 devices=()
    rm -f "$cache"/cut-*
    for options in "${cut_volumes[@]}"; do
        truncate -s 64M "$cache/cut-$number.img"
        # shellcheck disable=SC2086 # several options
        mke2fs -q -F -t ext4 $options "$cache/cut-$number.img"
        devices+=(-drive "file=$cache/cut-$number.img,if=none,format=raw,cache=unsafe,id=cut$number"
            -device "nvme-ns,drive=cut$number,bus=cut,nsid=$((number + 1))")
        number=$((number + 1))
    done
    # Looked at from now on, and the process in the background may be late.
    : > "$cache/cut-console.log"
    qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m 1024 \
        -nodefaults -no-reboot -display none -serial stdio -monitor none \
        -kernel "$kernel/boot/vmlinuz-$release" -initrd "$cache/initramfs.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off uext4.power_cut" \
        -device nvme,id=cut,serial=uext4 "${devices[@]}" </dev/null >"$cache/cut-console.log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null && [ "$waited" -lt 900 ] &&
        [ "$(grep -c '^SYNCED ' "$cache/cut-console.log")" -lt 250 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    # With the packages for which `make test` has built everything.
    UEXT4_POWER_CUT=$cache cargo test --quiet --workspace --test suite -- power_cut::vm_ --nocapture --test-threads=1
}

# Boots from a volume that uext4 made, with a kernel and an initramfs of its own: crates/cli/tests/boot.rs.
boot_volume() {
    local release=$1 root=$cache/boot-root
    rm -rf "$root" "$cache/boot"
    mkdir -p "$root"/{bin,dev,proc,lib} "$cache/boot"
    add_programs "$root" bin busybox
    install vm/boot-init "$root/init"
    add_modules "$root" "$release" nvme crc32c_generic ext4
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$cache/boot/2-initramfs"
    cp "$kernel/boot/vmlinuz-$release" "$cache/boot/1-kernel"
    UEXT4_BOOT=$cache/boot cargo test --quiet --workspace --test suite -- boot::vm_ --nocapture
}

with_guest=yes
dry=no
only_cut=no
only_boot=no
for argument in "$@"; do
    case "$argument" in
        --no-guest) with_guest=no ;;
        --dry) dry=yes ;;
        --power-cut) only_cut=yes ;;
        --boot) only_boot=yes ;;
        *) say "unknown argument $argument"; exit 2 ;;
    esac
done

# One at a time: the cache and the serial log are shared.
exec 9> "$cache/lock"
flock 9
fetch_kernel
release=$(cat "$kernel/complete")
if [ "$only_boot" = yes ]; then
    boot_volume "$release"
    exit
fi
[ "$with_guest" = no ] || build_programs
build_initramfs "$release"
[ "$dry" = no ] || exit 0
# What the power cut leaves is looked at by the host.
cut_and_look() {
    local start=$SECONDS status=0
    power_cut "$release" || status=1
    say "power cut: $(grep -c '^SYNCED ' "$cache/cut-console.log" || true) files synced, $((SECONDS - start)) s"
    return "$status"
}

if [ "$only_cut" = yes ]; then
    cut_and_look
    exit
fi
say "booting $release"
start=$SECONDS
boot "$release"
passed=$(grep -c '^GUEST-PASS ' "$cache/console.log" || true)
failed=$(grep -c '^GUEST-FAIL ' "$cache/console.log" || true)
say "$passed passed, $failed failed, $((SECONDS - start)) s"
grep -q '^GUEST-DONE' "$cache/console.log" || { echo "GUEST-FAIL run: no end of the guest"; exit 1; }
[ "$with_guest" = no ] || cut_and_look || failed=$((failed + 1))
[ "$with_guest" = no ] || boot_volume "$release" || failed=$((failed + 1))
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
