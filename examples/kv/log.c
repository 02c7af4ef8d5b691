/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The log: two heads, a unit each, then records.
 *
 * A head names the generation, and with it the data file that the log goes on from. Generations take turns with the two
 * heads, so writing one never touches the one that is in force; the newest valid head counts. This one write is the
 * moment at which a checkpoint happens. (A store on another file system would write a file beside and rename it.)
 */
#include "store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOG_PATH "/kv.log"
#define HEAD_MAGIC 0x3130474f4c2d564bu /* KV-LOG01 */
#define HEAD_LENGTH 44u
#define LOG_DEFAULT (UINT64_C(16) << 20)
#define LOG_LEAST (UINT64_C(2) << 20)

/*
 * Records begin at whole units and are padded to them: a commit never writes into a block that an acknowledged one is
 * in. A sector of 512 bytes would do for direct I/O on many devices, but inside, they write 4096 bytes at a time, and a
 * power cut may then tear what lies beside.
 */
#define UNIT 4096u

const char *data_path(uint64_t generation)
{
    return generation & 1 ? "/kv.data.1" : "/kv.data.0";
}

void *aligned_memory(const struct kv *kv, size_t length)
{
    void *memory;

    return posix_memalign(&memory, kv->align, length) ? NULL : memory;
}

static void head_encode(const struct kv *kv, uint8_t *at, uint64_t generation, uint64_t data_bytes)
{
    memset(at, 0, kv->unit);
    put64(at, HEAD_MAGIC);
    put32(at + 12, kv->unit);
    put64(at + 16, generation);
    put64(at + 24, kv->log_bytes);
    put64(at + 32, data_bytes);
    put32(at + 8, crc32c(0, at + 12, HEAD_LENGTH - 12));
}

/* 1 if it is a head that is newer than the one that `kv` has. */
static int head_decode(struct kv *kv, const uint8_t *at)
{
    if (get64(at) != HEAD_MAGIC || get32(at + 8) != crc32c(0, at + 12, HEAD_LENGTH - 12))
        return 0;
    if (get32(at + 12) != kv->unit || get64(at + 16) <= kv->generation)
        return 0;
    kv->generation = get64(at + 16);
    kv->log_bytes = get64(at + 24);
    kv->data_bytes = get64(at + 32);
    return 1;
}

int log_write_head(struct kv *kv, uint64_t generation, uint64_t data_bytes)
{
    uint8_t *head = aligned_memory(kv, kv->unit);
    int64_t written;

    if (!head)
        return kv_fail(-ENOMEM, "no memory");
    head_encode(kv, head, generation, data_bytes);
    written = uext4_pwrite(kv->log, head, kv->unit, (generation & 1) * kv->unit, UEXT4_DSYNC);
    free(head);
    return written < 0 ? kv_fail_io((int)written, "writing the head of the log") : 0;
}

/* Makes the log: prepared first and durable as such, then the first head. Until that is written the heads are zeros. */
static int make(struct kv *kv, uint64_t log_bytes)
{
    int error;

    kv->log_bytes = up(kv, log_bytes ? log_bytes : LOG_DEFAULT);
    if (kv->log_bytes < LOG_LEAST)
        return kv_fail(-EINVAL, "a log of %llu bytes is too small", (unsigned long long)kv->log_bytes);
    error = uext4_prepare(kv->log, kv->log_bytes);
    if (error == 0)
        error = uext4_sync(kv->volume); /* of the whole volume: the name is new, too */
    if (error)
        return kv_fail_io(error, "making the log");
    kv->generation = 1;
    return log_write_head(kv, 1, 0);
}

static int is_zero(const uint8_t *at, size_t length)
{
    while (length > 0 && *at == 0)
        at++, length--;
    return length == 0;
}

/* Reads the heads. Returns 1 if there is a store, 0 if none was made yet. */
static int find_head(struct kv *kv)
{
    uint8_t *heads = aligned_memory(kv, 2 * kv->unit);
    int64_t got;
    int found, blank;

    if (!heads)
        return kv_fail(-ENOMEM, "no memory");
    memset(heads, 0, 2 * kv->unit);
    got = uext4_pread(kv->log, heads, 2 * kv->unit, 0, 0);
    found = head_decode(kv, heads) | head_decode(kv, heads + kv->unit);
    blank = is_zero(heads, 2 * kv->unit);
    free(heads);
    if (got < 0)
        return kv_fail_io((int)got, "reading the head of the log");
    if (!found && !blank)
        return kv_fail(-EILSEQ, "%s: neither head is valid", LOG_PATH);
    if (found && (kv->log_bytes < LOG_LEAST || (uint64_t)uext4_file_size(kv->log) < kv->log_bytes))
        return kv_fail(-EILSEQ, "%s: shorter than its head says", LOG_PATH);
    return found;
}

int log_open(struct kv *kv, uint64_t log_bytes)
{
    struct uext4_geometry geometry;
    uint32_t flags = UEXT4_READ;
    int error = uext4_geometry(kv->volume, &geometry);

    if (error)
        return kv_fail_io(error, "the geometry");
    kv->unit = UNIT;
    kv->align = geometry.memory_align > UNIT ? geometry.memory_align : UNIT;
    if (UNIT % geometry.logical_block != 0)
        return kv_fail(-EINVAL, "the device has blocks of %u bytes, more than %u", geometry.logical_block, UNIT);
    if (kv->writable)
        flags |= UEXT4_WRITE | UEXT4_CREATE;
    error = uext4_file_open(kv->volume, LOG_PATH, flags, 0644, NULL, &kv->log);
    if (error)
        return kv_fail_io(error, "opening " LOG_PATH);
    error = find_head(kv);
    if (error < 0)
        return error;
    if (error == 0 && !kv->writable)
        return kv_fail(-ENOENT, "%s: no store was made here", LOG_PATH);
    error = error == 0 ? make(kv, log_bytes) : 0;
    kv->log_end = 2 * kv->unit;
    return error;
}

/* Takes the entries of a record at `pos` of its file into the index. */
static int apply(struct kv *kv, enum home home, const uint8_t *data, const struct record *record, uint64_t pos)
{
    uint32_t at = RECORD_HEADER, count = 0;
    struct entry entry;
    int error = 0;

    for (; error == 0 && entry_next(data, record, &at, &entry); count++) {
        struct place place = {pos + entry.value_at, entry.value_length, entry.value_crc, home};

        if (entry.flags & ENTRY_DELETED)
            index_delete(&kv->index, entry.key, entry.key_length);
        else
            error = index_put(&kv->index, entry.key, entry.key_length, &place);
    }
    if (error)
        return kv_fail(error, "no memory");
    /* The crc was right, so it was written like this. */
    return count == record->entries && at == record->length
               ? 0
               : kv_fail(-EILSEQ, "a record has entries that are none, at byte %llu", (unsigned long long)pos);
}

/*
 * Reads records from `*pos` on, up to `end` or the first one that is not valid, and leaves `*pos` behind the last. A
 * window of the file is in memory; it moves when it ends inside a record.
 */
static int scan(struct kv *kv, enum home home, uint64_t *pos, uint64_t end, uint32_t *crc, uint64_t *records)
{
    struct uext4_file *file = home == HOME_LOG ? kv->log : kv->data;
    uint8_t *window = aligned_memory(kv, KV_BATCH_MAX);
    uint64_t from = *pos;
    int64_t got = 0;
    int error = window ? 0 : kv_fail(-ENOMEM, "no memory");

    while (error == 0 && *pos < end) {
        struct record record;
        int valid = -1;

        if (*pos < from + (uint64_t)got)
            valid = record_check(window + (*pos - from), from + (uint64_t)got - *pos, kv->generation, *crc, &record);
        if (valid == 0 || (valid < 0 && *pos == from && got > 0))
            break; /* not valid, or longer than the file */
        if (valid < 0) {
            from = *pos;
            got = uext4_pread(file, window, end - from < KV_BATCH_MAX ? end - from : KV_BATCH_MAX, from, 0);
            if (got <= 0)
                error = got < 0 ? kv_fail_io((int)got, "reading records") : kv_fail(-EILSEQ, "a file is too short");
            continue;
        }
        error = apply(kv, home, window + (*pos - from), &record, *pos);
        *crc = record.crc;
        *pos += up(kv, record.length);
        ++*records;
    }
    free(window);
    return error;
}

/* Whether the log begins with a record of the next generation. Then its head was in force, and is damaged: going on
 * from the one before would lose what was acknowledged since. */
static int is_head_lost(struct kv *kv)
{
    uint8_t *first = aligned_memory(kv, kv->unit);
    int64_t got = first ? uext4_pread(kv->log, first, kv->unit, 2 * kv->unit, 0) : -ENOMEM;
    int lost = got == kv->unit ? record_generation(first) == kv->generation + 1 : 0;

    free(first);
    if (got < 0)
        return kv_fail_io((int)got, "reading records");
    return lost ? kv_fail(-EILSEQ, "%s: a head is damaged", LOG_PATH) : 0;
}

/* Every record of the data file has to be valid: the head was written when they were durable. What is not valid in the
 * log is its end, a commit that was never acknowledged. */
int log_recover(struct kv *kv)
{
    uint64_t pos = 0, records = 0;
    uint32_t crc = 0;
    int error = 0;

    if (kv->data_bytes > 0) {
        const char *path = data_path(kv->generation);

        error = uext4_file_open(kv->volume, path, UEXT4_READ, 0, NULL, &kv->data);
        if (error)
            return kv_fail_io(error, "opening the data file");
        error = scan(kv, HOME_DATA, &pos, kv->data_bytes, &crc, &records);
        if (error == 0 && pos != kv->data_bytes)
            error = kv_fail(-EILSEQ, "%s: the record at byte %llu is damaged", path, (unsigned long long)pos);
    }
    if (error == 0)
        error = scan(kv, HOME_LOG, &kv->log_end, kv->log_bytes, &kv->crc, &kv->recovered);
    if (error == 0 && kv->recovered == 0)
        error = is_head_lost(kv);
    return error;
}

/*
 * Makes a commit durable: one write over blocks that are written already, with UEXT4_DSYNC. No transaction, no flush,
 * no size that moves. If it fails nobody knows what is on the device, so nothing more may be written behind it: the
 * next opening finds out.
 */
int log_append(struct kv *kv, uint8_t *record, uint32_t length, uint32_t entries)
{
    uint32_t crc = record_seal(record, length, entries, kv->generation, kv->crc);
    uint64_t bytes = up(kv, length), pos = kv->log_end;
    struct record facts = {length, entries, crc};
    int64_t written;
    int error;

    memset(record + length, 0, bytes - length);
    written = uext4_pwrite(kv->log, record, bytes, pos, UEXT4_DSYNC);
    if (written < 0) {
        kv->failed = (int)written;
        return kv_fail_io((int)written, "writing the log");
    }
    kv->log_end += bytes;
    kv->crc = crc;
    error = apply(kv, HOME_LOG, record, &facts, pos);
    if (error)
        kv->failed = error;
    return error;
}
