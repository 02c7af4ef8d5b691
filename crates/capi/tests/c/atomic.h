/* Atomic writes: their shape. */

static void atomic_writes(struct uext4_file *file, const void *block)
{
    IS(uext4_pwrite(file, block, 8192, 0, UEXT4_ATOMIC | UEXT4_DSYNC), 8192);
    IS(uext4_pwrite(file, block, 8192, 4096, UEXT4_ATOMIC), -EINVAL);
    IS(uext4_pwrite_any(file, block, 100, 0, UEXT4_ATOMIC), -EINVAL);
}
