/* Requests of any bytes over pages, and of a file that is open for direct ones. Part of api.c. */

static uint64_t counted(const char *name)
{
    struct uext4_counter counters[256];
    int64_t count = uext4_stats(volume, counters, 256);

    for (int64_t index = 0; index < count; index++)
        if (strcmp(counters[index].name, name) == 0)
            return counters[index].value;
    fprintf(stderr, "no counter %s\n", name);
    exit(1);
}

/* `tail` is open for appending to `file`, "/file". */
static void buffered(struct uext4_file *file, struct uext4_file *tail)
{
    uint64_t written = counted("page_writes");
    struct uext4_file *direct;
    char bytes[4] = "";

    IS(uext4_append(tail, "end", 3, 0), 8192);
    IS(uext4_file_size(file), 8195);
    CHECK(counted("buffered_writes") > 0);
    CHECK(counted("fast_commits") == 0 && counted("full_commits_area") == 0); /* a volume without them */
    IS(uext4_file_open(volume, "/file", UEXT4_READ | UEXT4_WRITE | UEXT4_DIRECT, 0, NULL, &direct), 0);
    IS(uext4_pread_any(direct, bytes, 3, 8192), 3);
    CHECK(memcmp(bytes, "end", 3) == 0 && counted("page_writes") == written);
    IS(uext4_pwrite_any(direct, "E", 1, 8192, 0), 1);
    CHECK(counted("page_writes") == written + 1);
    IS(uext4_pread_any(direct, bytes, 3, 8192), 3);
    CHECK(memcmp(bytes, "End", 3) == 0);
    IS(uext4_append(tail, "", 0, 0), 8195);
    IS(uext4_file_close(direct), 0);
    IS(uext4_file_open(volume, "/file", UEXT4_READ | UEXT4_DIRECT << 1, 0, NULL, &direct), -EINVAL);
}
