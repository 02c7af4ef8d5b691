/* A volume with quota of users: its limits, for a user and for an open file. */

static int quotas(const char *image)
{
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE, .name_budget = UINT64_MAX};
    struct uext4_caller user = {.uid = 1000, .gid = 1000};
    struct uext4_quota quota, limits = {.space_hard = 10000, .inodes_soft = 1, .inodes_hard = 2};
    struct uext4_file *file = NULL;
    static char data[65536];

    IS(uext4_open(image, &options, &volume), 0);
    IS(uext4_quota_set(volume, UEXT4_QUOTA_USER, 1000, NULL), -EFAULT);
    IS(uext4_quota_set(volume, 3, 1000, &limits), -EINVAL);
    IS(uext4_quota_set(volume, UEXT4_QUOTA_GROUP, 1000, &limits), -EOPNOTSUPP);
    IS(uext4_quota_set(volume, UEXT4_QUOTA_USER, 1000, &limits), 0);
    IS(uext4_quota_set_grace(volume, UEXT4_QUOTA_USER, 60, 60), 0);
    IS(uext4_mkdir(volume, "/one", 0755, &user), 0);
    IS(uext4_mknod(volume, "/two", 0644, 0, 0, &user), 0);
    IS(uext4_mknod(volume, "/three", 0644, 0, 0, &user), -EDQUOT);
    IS(uext4_file_open(volume, "/two", UEXT4_WRITE | UEXT4_LIMITED, 0, NULL, &file), 0);
    IS(uext4_pwrite_any(file, data, sizeof data, 0, 0), -EDQUOT);
    IS(uext4_file_close(file), 0);
    IS(uext4_quota_get(volume, UEXT4_QUOTA_USER, 1000, NULL), -EFAULT);
    IS(uext4_quota_get(volume, UEXT4_QUOTA_USER, 1000, &quota), 0);
    IS(quota.id, 1000);
    IS(quota.space, 4096);
    IS(quota.space_hard, 10240);
    IS(quota.inodes, 2);
    CHECK(quota.inodes_until > 0 && quota.space_until == 0);
    IS(uext4_quota_next(volume, UEXT4_QUOTA_USER, 1, &quota), 0);
    IS(quota.id, 1000);
    IS(uext4_quota_next(volume, UEXT4_QUOTA_USER, 1001, &quota), -ENOENT);
    IS(uext4_close(volume), 0);
    return 0;
}
