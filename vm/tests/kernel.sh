# The guest's kernel as the second opinion: its ext4 on NVMe, what it sends, what dm-log-writes records.

vm_kernel_ext4_round_trip() {
    on_device /dev/nvme0n1 defaults
    fill /mnt
    before=$(sums /mnt)
    clean /dev/nvme0n1
    mount -t ext4 -o ro /dev/nvme0n1 /mnt
    same content "$before" "$(sums /mnt)"
    umount /mnt
}

vm_kernel_mounts_casefold() {
    on_device /dev/nvme0n1 defaults -O casefold
    mkdir /mnt/folded
    chattr +F /mnt/folded
    echo one > /mnt/folded/Straße
    same content one "$(cat /mnt/folded/STRASSE)"
    clean /dev/nvme0n1
}

vm_fua_and_flush_are_told_apart() {
    requests=$(traced dd if=/dev/zero of=/dev/nvme0n1 bs=4096 seek=10 count=1 oflag=direct,dsync)
    echo "$requests"
    echo "$requests" | grep -q '^WFS 80 8$' || fail "no FUA write"
    requests=$(traced dd if=/dev/zero of=/dev/nvme0n1 bs=4096 seek=10 count=1 oflag=direct conv=fsync)
    echo "$requests"
    echo "$requests" | grep -q '^WS 80 8$' || fail "no plain write"
    echo "$requests" | grep -q '^FF\? 0 0$' || fail "no flush"
}

vm_log_writes_records_flags() {
    size=65536
    dmsetup create logged --table "0 $size log-writes /dev/nvme0n1 /dev/nullb0"
    dmsetup mknodes
    dd if=/dev/zero of=/dev/mapper/logged bs=4096 seek=10 count=3 oflag=direct,dsync
    dmsetup message logged 0 mark end
    dmsetup remove logged
    # struct log_write_super: magic "woWsrjv"-like word, version, number of entries, little-endian.
    magic=$(dd if=/dev/nullb0 bs=8 count=1 2>/dev/null | od -An -tx8 | tr -d ' ')
    same magic 006a736677736872 "$magic"
    entries=$(dd if=/dev/nullb0 bs=8 skip=2 count=1 2>/dev/null | od -An -td8 | tr -d ' ')
    [ "$entries" -ge 4 ] || fail "only $entries entries"
}
