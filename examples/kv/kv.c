/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The face of the store: opening, commits, getting. */
#include "kv.h"
#include "store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_batch {
    struct kv *kv;
    uint8_t *record; /* aligned, KV_BATCH_MAX bytes */
    uint32_t length;
    uint32_t entries;
};

static _Thread_local char reason[512];

const char *kv_error(void)
{
    return reason;
}

int kv_fail(int code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return code;
}

int kv_fail_io(int code, const char *doing)
{
    return kv_fail(code, "%s: %s", doing, uext4_last_error());
}

int kv_open(const char *device, const struct kv_options *options, struct kv **out)
{
    struct uext4_options how = {.size = sizeof how};
    struct kv *kv = calloc(1, sizeof *kv);
    int error;

    *out = NULL;
    if (!kv)
        return kv_fail(-ENOMEM, "no memory");
    kv->writable = options && options->writable;
    how.flags = kv->writable ? UEXT4_OPEN_WRITE : 0;
    /* Opening for writing also makes durable what is on the device: what the log shows below is there to stay, even if
     * it was written by a process that died before it could acknowledge it. */
    error = uext4_open(device, &how, &kv->volume);
    if (error)
        kv_fail_io(error, "opening the volume");
    else
        error = log_open(kv, options ? options->log_bytes : 0);
    if (error == 0)
        error = log_recover(kv);
    if (error == 0 && kv->writable)
        error = kv_batch_new(kv, &kv->single);
    if (error) {
        char kept[sizeof reason];

        memcpy(kept, reason, sizeof kept);
        kv_close(kv);
        memcpy(reason, kept, sizeof kept);
        return error;
    }
    *out = kv;
    return 0;
}

int kv_close(struct kv *kv)
{
    int error = 0;

    if (!kv)
        return 0;
    transfer_close(kv);
    kv_batch_free(kv->single);
    if (kv->data)
        uext4_file_close(kv->data);
    if (kv->log)
        uext4_file_close(kv->log);
    if (kv->volume && (error = uext4_close(kv->volume)) != 0)
        kv_fail_io(error, "closing the volume");
    index_free(&kv->index);
    free(kv);
    return error;
}

int kv_batch_new(struct kv *kv, struct kv_batch **out)
{
    struct kv_batch *batch = calloc(1, sizeof *batch);

    *out = NULL;
    if (!batch || !(batch->record = aligned_memory(kv, KV_BATCH_MAX))) {
        free(batch);
        return kv_fail(-ENOMEM, "no memory");
    }
    batch->kv = kv;
    batch->length = RECORD_HEADER;
    *out = batch;
    return 0;
}

void kv_batch_free(struct kv_batch *batch)
{
    if (batch)
        free(batch->record);
    free(batch);
}

static int add(struct kv_batch *batch, const struct entry *entry, const void *value)
{
    uint32_t more = ENTRY_HEADER + entry->key_length + entry->value_length;
    uint8_t *at;

    if (batch->length + more > KV_BATCH_MAX)
        return kv_fail(-ENOSPC, "the batch is full");
    at = entry_put(batch->record + batch->length, entry);
    if (value && entry->value_length > 0)
        memcpy(at, value, entry->value_length);
    batch->length += more;
    batch->entries++;
    return 0;
}

int kv_batch_put(struct kv_batch *batch, const void *key, size_t key_length, const void *value, size_t value_length)
{
    struct entry entry = {.key = key, .key_length = (uint32_t)key_length, .value_length = (uint32_t)value_length};

    if (key_length == 0 || key_length > KV_KEY_MAX || value_length > KV_VALUE_MAX)
        return kv_fail(-EINVAL, "a key of %zu bytes or a value of %zu is not allowed", key_length, value_length);
    entry.value_crc = crc32c(0, value, value_length);
    return add(batch, &entry, value);
}

int kv_batch_delete(struct kv_batch *batch, const void *key, size_t key_length)
{
    struct entry entry = {.key = key, .key_length = (uint32_t)key_length, .flags = ENTRY_DELETED};

    if (key_length == 0 || key_length > KV_KEY_MAX)
        return kv_fail(-EINVAL, "a key of %zu bytes is not allowed", key_length);
    return add(batch, &entry, NULL);
}

int kv_batch_commit(struct kv_batch *batch)
{
    struct kv *kv = batch->kv;
    int error = 0;

    if (!kv->writable || kv->failed)
        return kv_fail(kv->failed ? kv->failed : -EROFS, "nothing can be written");
    if (batch->entries == 0)
        return 0;
    if (kv->log_end + up(kv, batch->length) > kv->log_bytes)
        error = kv_checkpoint(kv);
    if (error == 0)
        error = log_append(kv, batch->record, batch->length, batch->entries);
    batch->length = RECORD_HEADER;
    batch->entries = 0;
    return error;
}

int kv_put(struct kv *kv, const void *key, size_t key_length, const void *value, size_t value_length)
{
    int error = kv->writable ? kv_batch_put(kv->single, key, key_length, value, value_length)
                             : kv_fail(-EROFS, "the store is open for reading");

    return error ? error : kv_batch_commit(kv->single);
}

int kv_delete(struct kv *kv, const void *key, size_t key_length)
{
    int error;

    if (!kv->writable)
        return kv_fail(-EROFS, "the store is open for reading");
    if (!index_find(&kv->index, key, key_length))
        return kv_fail(-ENOENT, "no such key");
    error = kv_batch_delete(kv->single, key, key_length);
    return error ? error : kv_batch_commit(kv->single);
}

/* A direct read of the whole units that the value lies in. */
static int64_t read_value(struct kv *kv, const struct place *place, void *value)
{
    uint32_t skip = (uint32_t)(place->pos % kv->unit);
    size_t length = up(kv, skip + (uint64_t)place->length);
    uint8_t *memory = aligned_memory(kv, length);
    int64_t got;

    if (!memory)
        return kv_fail(-ENOMEM, "no memory");
    got = uext4_pread(place->home == HOME_LOG ? kv->log : kv->data, memory, length, place->pos - skip, 0);
    if (got < 0) {
        got = kv_fail_io((int)got, "reading a value");
    } else if (got < skip + (int64_t)place->length || crc32c(0, memory + skip, place->length) != place->crc) {
        got = kv_fail(-EILSEQ, "a value is damaged");
    } else {
        memcpy(value, memory + skip, place->length);
        got = place->length;
    }
    free(memory);
    return got;
}

int64_t kv_get(struct kv *kv, const void *key, size_t key_length, void *value, size_t room)
{
    const struct item *item = index_find(&kv->index, key, key_length);

    if (!item)
        return kv_fail(-ENOENT, "no such key");
    if (item->place.length > room)
        return kv_fail(-ERANGE, "the value has %u bytes", item->place.length);
    return item->place.length == 0 ? 0 : read_value(kv, &item->place, value);
}

int kv_get_many(struct kv *kv, struct kv_get *gets, size_t count)
{
    const struct item **items = calloc(count + 1, sizeof *items);
    int error = items ? transfer_open(kv) : kv_fail(-ENOMEM, "no memory");

    for (size_t index = 0; error == 0 && index < count; index++)
        items[index] = index_find(&kv->index, gets[index].key, gets[index].key_length);
    if (error == 0)
        error = transfer_read(kv, items, gets, count);
    free(items);
    return error;
}

static int by_key(const void *left, const void *right)
{
    const struct item *a = *(struct item *const *)left, *b = *(struct item *const *)right;
    uint32_t shorter = a->key_length < b->key_length ? a->key_length : b->key_length;
    int order = memcmp(a->key, b->key, shorter);

    return order ? order : (a->key_length > b->key_length) - (a->key_length < b->key_length);
}

int kv_list(struct kv *kv, int (*each)(void *context, const void *key, size_t key_length, size_t value_length),
            void *context)
{
    struct item **all = index_all(&kv->index);
    int answer = all ? 0 : kv_fail(-ENOMEM, "no memory");

    if (all)
        qsort(all, kv->index.count, sizeof *all, by_key);
    for (size_t at = 0; answer == 0 && at < kv->index.count; at++)
        answer = each(context, all[at]->key, all[at]->key_length, all[at]->place.length);
    free(all);
    return answer;
}

void kv_stats(const struct kv *kv, struct kv_stats *stats)
{
    *stats = (struct kv_stats){
        .keys = kv->index.count,
        .generation = kv->generation,
        .data_bytes = kv->data_bytes,
        .log_used = kv->log_end - 2 * kv->unit,
        .log_bytes = kv->log_bytes,
        .recovered = kv->recovered,
    };
}

int kv_counters(struct kv *kv, const char *const *names, uint64_t *values, size_t count)
{
    struct uext4_counter all[128];
    int64_t known = uext4_stats(kv->volume, all, 128);

    if (known < 0)
        return kv_fail_io((int)known, "counters");
    for (size_t index = 0; index < count; index++) {
        int64_t at = 0;

        while (at < known && at < 128 && strcmp(all[at].name, names[index]) != 0)
            at++;
        if (at == known || at == 128)
            return kv_fail(-ENOENT, "no counter %s", names[index]);
        values[index] = all[at].value;
    }
    return 0;
}
