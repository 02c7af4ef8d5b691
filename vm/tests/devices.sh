# What the guest's devices must offer, or the other tests prove nothing.

vm_nvme_polls_and_has_fua_and_a_volatile_cache() {
    same io_poll 1 "$(attribute nvme0n1 io_poll)"
    same fua 1 "$(attribute nvme0n1 fua)"
    same write_cache "write back" "$(attribute nvme0n1 write_cache)"
    [ -c /dev/ng0n1 ] || fail "no passthrough device"
}

vm_null_blk_polls_with_small_sectors() {
    same io_poll 1 "$(attribute nullb0 io_poll)"
    same logical_block_size 512 "$(attribute nullb0 logical_block_size)"
    echo remembered | dd of=/dev/nullb0 bs=512 conv=sync 2>/dev/null
    same content remembered "$(head -c 10 /dev/nullb0)"
}

vm_pmem_is_dax() {
    same dax 1 "$(attribute pmem0 dax)"
    on_device /dev/pmem0 dax=always -b 4096
    grep -q ' /mnt ext4 .*dax=always' /proc/mounts || fail "$(grep /mnt /proc/mounts)"
    fill /mnt
    clean /dev/pmem0
}
