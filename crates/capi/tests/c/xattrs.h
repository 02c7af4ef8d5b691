/* Part of api.c: extended attributes of open files. */

/* Attributes of a file without a name at the end, open for reading only. */
static void open_attributes(void)
{
    struct uext4_file *file = NULL;
    char held[64];

    IS(uext4_mknod(volume, "/t/open", 0600, 0, 0, NULL), 0);
    IS(uext4_file_open(volume, "/t/open", UEXT4_READ, 0, NULL, &file), 0);
    IS(uext4_fsetxattr(file, "user.one", "first", 5, UEXT4_XATTR_REPLACE), -ENODATA);
    IS(uext4_fsetxattr(file, "user.one", "first", 5, UEXT4_XATTR_CREATE), 0);
    IS(uext4_getxattr(volume, "/t/open", "user.one", 1, held, sizeof held), 5);
    IS(uext4_unlink(volume, "/t/open"), 0);
    IS(uext4_fsetxattr(file, "user.one", "x", 1, UEXT4_XATTR_CREATE), -EEXIST);
    IS(uext4_fsetxattr(file, "user.one", "x", 1, 3), -EINVAL);
    IS(uext4_fsetxattr(file, "user.two", NULL, 0, 0), 0);
    IS(uext4_fsetxattr(file, "user.two", NULL, 1, 0), -EFAULT);
    IS(uext4_fsetxattr(file, NULL, "x", 1, 0), -EFAULT);
    IS(uext4_fsetxattr(file, "system.two", "x", 1, 0), -EOPNOTSUPP);
    IS(uext4_fgetxattr(file, "user.one", NULL, 0), 5);
    IS(uext4_fgetxattr(file, "user.one", held, 4), -ERANGE);
    IS(uext4_fgetxattr(file, "user.one", held, sizeof held), 5);
    IS(memcmp(held, "first", 5), 0);
    IS(uext4_fgetxattr(file, "user.none", held, sizeof held), -ENODATA);
    IS(uext4_flistxattr(file, NULL, 0), 18);
    IS(uext4_flistxattr(file, held, 17), -ERANGE);
    IS(uext4_flistxattr(file, held, sizeof held), 18);
    IS(memcmp(held, "user.", 5), 0);
    IS(uext4_fremovexattr(file, "user.one"), 0);
    IS(uext4_fremovexattr(file, "user.one"), -ENODATA);
    IS(uext4_flistxattr(file, held, sizeof held), 9);
    IS(uext4_file_close(file), 0);
    IS(uext4_fremovexattr(file, "user.two"), -EBADF);
}
