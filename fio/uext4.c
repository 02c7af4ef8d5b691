/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fio engine for files inside ext4 volumes, through libuext4. `make fio-engine` builds it against the headers of the
 * installed fio, whose licence this file has for that reason. docs/guide/fio.md says how to use it.
 *
 * All jobs of a device share one volume. Each job has a queue of its own; with iodepth=1 it calls synchronously
 * instead.
 */
#include "config-host.h"

#include "fio.h"
#include "optgroup.h"

#include "uext4.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct options {
	void *pad; /* fio takes offset 0 for "no option" */
	char *device;
	char *path;
	char *switches;
	unsigned int prepare;
	unsigned int polled;
	unsigned int registered;
	unsigned int queued;
	unsigned int owner_driven;
};

/* An option. What `otherwise` is NULL for is unset without it. */
#define OPTION(word, kind, otherwise, text)                   \
	{                                                     \
		.name = #word,                                \
		.lname = "uext4 " #word,                      \
		.type = kind,                                 \
		.off1 = offsetof(struct options, word),       \
		.def = otherwise,                             \
		.help = text,                                 \
		.category = FIO_OPT_C_ENGINE,                 \
		.group = FIO_OPT_G_INVALID,                   \
	}

static struct fio_option options[] = {
	OPTION(device, FIO_OPT_STR_STORE, NULL,
	       "Device or image with the volume, as uext4 spells devices"),
	OPTION(path, FIO_OPT_STR_STORE, NULL,
	       "File inside the volume (default: filename); with nrfiles, what names begin with"),
	OPTION(switches, FIO_OPT_STR_STORE, NULL,
	       "Optimisations of this job's files, such as simple-read=off,dax-no-dio-count=off"),
	OPTION(prepare, FIO_OPT_BOOL, "0",
	       "Lay files out as written zeros in few runs, so that every write is a pure overwrite"),
	OPTION(polled, FIO_OPT_BOOL, "0",
	       "Poll for completions (IOPOLL); an error on a device that cannot"),
	OPTION(registered, FIO_OPT_BOOL, "0",
	       "Buffers must be registered with the kernel (default: if it takes them)"),
	OPTION(queued, FIO_OPT_BOOL, "0",
	       "Use a queue with iodepth=1 too, instead of synchronous calls"),
	OPTION(owner_driven, FIO_OPT_BOOL, "1",
	       "Only the job's thread drives its queue (DEFER_TASKRUN)"),
	{ .name = NULL },
};

/* A volume that jobs share. */
struct volume {
	struct volume *next;
	char *device;
	struct uext4_volume *handle;
	unsigned int jobs;
};

/* What a job has of a file. The queue is that of the job that opened it, or none. */
struct opened {
	struct uext4_file *handle;
	struct uext4_queue *queue;
	int slot;
};

struct job {
	struct volume *volume;
	/* None for synchronous calls. */
	struct uext4_queue *queue;
	struct uext4_request *requests;
	struct io_u **waiting;
	unsigned int pushed;
	struct uext4_completion *done;
	/* Requests that were pushed and then refused: they complete with that error. */
	struct uext4_completion *refused;
	unsigned int refusals;
	unsigned int depth;
	bool told;
};

static struct volume *volumes;
static pthread_mutex_t volumes_lock = PTHREAD_MUTEX_INITIALIZER;

/* Tells the reason of a failure. Returns its positive errno. */
static int failed(const char *what, const char *where, long long error)
{
	log_err("uext4: %s %s: %s\n", what, where, uext4_last_error());
	return error < 0 ? (int) -error : EIO;
}

/* The volume of a device: opened by the first job that asks, kept while a job has it. */
static int get_volume(const char *device, struct volume **found)
{
	struct uext4_options how = { .size = sizeof(how), .flags = UEXT4_OPEN_WRITE | UEXT4_OPEN_RESERVED };
	struct volume *volume;
	int error = 0;

	pthread_mutex_lock(&volumes_lock);
	for (volume = volumes; volume; volume = volume->next)
		if (!strcmp(volume->device, device))
			break;
	if (!volume) {
		volume = calloc(1, sizeof(*volume));
		if (volume)
			volume->device = strdup(device);
		if (!volume || !volume->device) {
			free(volume);
			error = ENOMEM;
			goto out;
		}
		if (read_only)
			how.flags = 0;
		error = uext4_open(device, &how, &volume->handle);
		if (error) {
			error = failed("open", device, error);
			free(volume->device);
			free(volume);
			goto out;
		}
		volume->next = volumes;
		volumes = volume;
	}
	volume->jobs++;
	*found = volume;
out:
	pthread_mutex_unlock(&volumes_lock);
	return error;
}

/* Closes a volume with its last job: all is home then. */
static void put_volume(struct volume *volume)
{
	struct volume **link;
	int error;

	pthread_mutex_lock(&volumes_lock);
	if (--volume->jobs == 0) {
		for (link = &volumes; *link != volume; link = &(*link)->next)
			;
		*link = volume->next;
		error = uext4_close(volume->handle);
		if (error)
			failed("close", volume->device, error);
		free(volume->device);
		free(volume);
	}
	pthread_mutex_unlock(&volumes_lock);
}

/* Jobs that fio never started still have their volumes when the process ends. */
static void __attribute__((destructor)) close_volumes(void)
{
	struct volume *volume;

	for (volume = volumes; volume; volume = volume->next)
		uext4_close(volume->handle);
}

/* The name of a file inside the volume. */
static void path_of(struct thread_data *td, struct fio_file *f, char *path, size_t size)
{
	struct options *o = td->eo;

	if (!o->path)
		snprintf(path, size, "%s%s", f->file_name[0] == '/' ? "" : "/", f->file_name);
	else if (td->o.nr_files > 1)
		snprintf(path, size, "%s%s.%u", o->path[0] == '/' ? "" : "/", o->path, (unsigned int) f->fileno);
	else
		snprintf(path, size, "%s%s", o->path[0] == '/' ? "" : "/", o->path);
}

/*
 * What the engine has of a job, made by whoever asks first. fio calls `setup` first, but after `init` with
 * create_serialize=0, and never for the threads of io_submit_mode=offload.
 */
static struct job *job_of(struct thread_data *td)
{
	struct options *o = td->eo;
	struct job *job = td->io_ops_data;
	int error;

	if (job)
		return job;
	if (!td->o.use_thread) {
		log_err("uext4: set thread=1: jobs in processes of their own cannot share a volume\n");
		return NULL;
	}
	if (!o->device || !*o->device) {
		log_err("uext4: set device= to the device or image with the volume\n");
		return NULL;
	}
	job = calloc(1, sizeof(*job));
	if (!job)
		return NULL;
	error = get_volume(o->device, &job->volume);
	if (error) {
		free(job);
		td_verror(td, error, "uext4_open");
		return NULL;
	}
	td->io_ops_data = job;
	return job;
}

static int setup(struct thread_data *td)
{
	struct job *job = job_of(td);
	struct uext4_stat facts;
	struct fio_file *f;
	char path[PATH_MAX];
	unsigned int i;
	int error;

	if (!job)
		return 1;
	for_each_file(td, f, i) {
		f->fileno = i;
		path_of(td, f, path, sizeof(path));
		error = uext4_stat(job->volume->handle, path, 1, &facts);
		if (error && error != -ENOENT) {
			td_verror(td, failed("look at", path, error), "uext4_stat");
			return 1;
		}
		f->filetype = FIO_TYPE_FILE;
		f->real_file_size = error ? 0 : facts.size;
		fio_file_set_size_known(f);
	}
	return 0;
}

static int fallocate_as_told(struct thread_data *td, struct uext4_file *file, uint64_t size)
{
	switch (td->o.fallocate_mode) {
	case FIO_FALLOCATE_NATIVE:
	case FIO_FALLOCATE_POSIX:
		return uext4_fallocate(file, UEXT4_FALLOC_ALLOCATE, 0, size);
	case FIO_FALLOCATE_KEEP_SIZE:
		return uext4_fallocate(file, UEXT4_FALLOC_KEEP_SIZE, 0, size);
	case FIO_FALLOCATE_TRUNCATE:
		return uext4_ftruncate(file, size);
	default:
		return 0;
	}
}

/* Fills a file with what fio's writes carry. */
static int fill(struct thread_data *td, struct uext4_file *file, uint64_t size)
{
	uint64_t pos, length, step = td->o.max_bs[DDIR_WRITE];
	int64_t written = 0;
	char *data;

	if (step < 1 << 20)
		step = 1 << 20;
	if (posix_memalign((void **) &data, 4096, step))
		return -ENOMEM;
	for (pos = 0; pos < size && !td->terminate; pos += length) {
		length = size - pos < step ? size - pos : step;
		fill_io_buffer(td, data, length, length);
		written = uext4_pwrite_any(file, data, length, pos, 0);
		if (written < 0)
			break;
	}
	free(data);
	return written < 0 ? (int) written : 0;
}

/* As fio lays out files of the host: those that are read or overwritten are filled, others begin anew. */
static int layout(struct thread_data *td, struct fio_file *f)
{
	struct options *o = td->eo;
	struct job *job = td->io_ops_data;
	uint64_t size = f->file_offset + f->io_size;
	bool fills = td_read(td) || td_trim(td) ||
		     (td_write(td) && td->o.overwrite && !td->o.file_append);
	uint32_t flags = UEXT4_READ | UEXT4_WRITE;
	struct uext4_file *file;
	char path[PATH_MAX];
	int error;

	if (!td->o.fill_device && size <= f->real_file_size && !o->prepare)
		return 0;
	if (read_only || td->o.create_on_open)
		return 0;
	path_of(td, f, path, sizeof(path));
	if (td->o.allow_create)
		flags |= UEXT4_CREATE;
	if (!o->prepare && !td->o.file_append)
		flags |= UEXT4_TRUNCATE;
	error = uext4_file_open(job->volume->handle, path, flags, 0644, NULL, &file);
	if (error)
		return failed("make", path, error);
	if (o->prepare) {
		error = uext4_prepare(file, size);
	} else {
		error = fallocate_as_told(td, file, size);
		if (!error && fills)
			error = fill(td, file, size);
	}
	if (!error && td->o.create_fsync)
		error = uext4_fsync(file);
	if (error)
		error = failed("lay out", path, error);
	uext4_file_close(file);
	if (!error && f->real_file_size < size)
		f->real_file_size = size;
	return error;
}

static int init(struct thread_data *td)
{
	struct options *o = td->eo;
	struct job *job = job_of(td);
	uint32_t flags = 0;
	size_t bytes, wanted;
	int error;

	if (!job)
		return 1;
	job->depth = td->o.iodepth;
	if (job->depth == 1 && !o->queued && !o->polled && !o->registered) {
		/* Done when queue() returns: its latency counts from the call, as of other engines of synchronous calls. */
		td->flags |= (unsigned long long) FIO_SYNCIO << TD_ENG_FLAG_SHIFT;
		return 0;
	}
	if (o->owner_driven)
		flags |= UEXT4_QUEUE_OWNER_DRIVEN;
	if (o->polled)
		flags |= UEXT4_QUEUE_POLLED;
	if (o->registered)
		flags |= UEXT4_QUEUE_REGISTERED;
	/* What fio asks `memory` for in one piece; the library has pieces of powers of two. */
	wanted = (size_t) td_max_bs(td) * job->depth + page_mask + 1 + td->o.mem_align;
	for (bytes = 1 << 16; bytes < wanted; bytes <<= 1)
		;
	error = uext4_queue_open(job->volume->handle, job->depth, bytes, flags, &job->queue);
	if (error) {
		td_verror(td, failed("make a queue on", job->volume->device, error), "uext4_queue_open");
		return 1;
	}
	job->requests = calloc(job->depth, sizeof(*job->requests));
	job->waiting = calloc(job->depth, sizeof(*job->waiting));
	job->done = calloc(job->depth, sizeof(*job->done));
	job->refused = calloc(job->depth, sizeof(*job->refused));
	if (!job->requests || !job->waiting || !job->done || !job->refused) {
		td_verror(td, ENOMEM, "calloc");
		return 1;
	}
	return 0;
}

static void cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	if (job->queue)
		uext4_queue_close(job->queue);
	put_volume(job->volume);
	free(job->requests);
	free(job->waiting);
	free(job->done);
	free(job->refused);
	free(job);
	td->io_ops_data = NULL;
}

static int memory(struct thread_data *td, size_t bytes)
{
	struct job *job = td->io_ops_data;

	if (job->queue) {
		td->orig_buffer = uext4_queue_alloc(job->queue, bytes);
		if (!td->orig_buffer)
			failed("reserve memory for", td->o.name, -ENOMEM);
	} else if (posix_memalign((void **) &td->orig_buffer, 4096, bytes)) {
		td->orig_buffer = NULL;
	}
	return td->orig_buffer == NULL;
}

static void free_memory(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	/* A queue's memory goes with the queue: fio may be done with either first. */
	if (job && job->queue)
		uext4_queue_free(job->queue, td->orig_buffer);
	else if (job)
		free(td->orig_buffer);
}

static int open_file(struct thread_data *td, struct fio_file *f)
{
	struct options *o = td->eo;
	struct job *job = td->io_ops_data;
	uint32_t flags = UEXT4_READ;
	struct opened *opened;
	char path[PATH_MAX];
	int error;

	if (!read_only && (td_write(td) || td_trim(td))) {
		flags |= UEXT4_WRITE;
		if (td->o.allow_create)
			flags |= UEXT4_CREATE;
	}
	path_of(td, f, path, sizeof(path));
	opened = calloc(1, sizeof(*opened));
	if (!opened)
		return 1;
	error = uext4_file_open(job->volume->handle, path, flags, 0644, o->switches, &opened->handle);
	if (error) {
		free(opened);
		td_verror(td, failed("open", path, error), "uext4_file_open");
		return 1;
	}
	if (job->queue) {
		opened->slot = uext4_queue_attach(job->queue, opened->handle);
		if (opened->slot < 0) {
			td_verror(td, failed("attach", path, opened->slot), "uext4_queue_attach");
			uext4_file_close(opened->handle);
			free(opened);
			return 1;
		}
		opened->queue = job->queue;
	}
	FILE_SET_ENG_DATA(f, opened);
	return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f)
{
	struct job *job = td->io_ops_data;
	struct opened *opened = FILE_ENG_DATA(f);

	if (!opened)
		return 0;
	FILE_SET_ENG_DATA(f, NULL);
	if (job && job->queue && opened->queue == job->queue)
		uext4_queue_detach(job->queue, opened->slot);
	uext4_file_close(opened->handle);
	free(opened);
	return 0;
}

static int unlink_file(struct thread_data *td, struct fio_file *f)
{
	struct job *job = td->io_ops_data;
	char path[PATH_MAX];
	int error;

	path_of(td, f, path, sizeof(path));
	error = uext4_unlink(job->volume->handle, path);
	return error == -ENOENT ? ENOENT : error ? failed("remove", path, error) : 0;
}

static uint16_t write_flags(struct thread_data *td)
{
	uint16_t atomic = td->o.oatomic ? UEXT4_ATOMIC : 0;

	if (td->o.sync_io == O_DSYNC)
		return atomic | UEXT4_DSYNC;
	return atomic | (td->o.sync_io ? UEXT4_SYNC : 0);
}

/* Takes over what became of a request. */
static void over(struct thread_data *td, struct io_u *io_u, int64_t result)
{
	bool moves = io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE;

	io_u->error = result < 0 ? -result : 0;
	io_u->resid = moves && result >= 0 ? io_u->xfer_buflen - result : 0;
}

/* Says once per job why requests are refused: fio's own message has the errno only. */
static void tell(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;

	if (!job->told)
		log_err("uext4: %s of %llu bytes at %llu: %s\n", io_ddir_name(io_u->ddir),
			(unsigned long long) io_u->xfer_buflen, (unsigned long long) io_u->offset,
			uext4_last_error());
	job->told = true;
}

static int64_t call(struct thread_data *td, struct io_u *io_u)
{
	struct opened *opened = FILE_ENG_DATA(io_u->file);

	switch (io_u->ddir) {
	case DDIR_READ:
		return uext4_pread(opened->handle, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, 0);
	case DDIR_WRITE:
		return uext4_pwrite(opened->handle, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset,
				    write_flags(td));
	case DDIR_TRIM:
		return uext4_fallocate(opened->handle, UEXT4_FALLOC_PUNCH, io_u->offset, io_u->xfer_buflen);
	case DDIR_SYNC:
		return uext4_fsync(opened->handle);
	case DDIR_DATASYNC:
		return uext4_fdatasync(opened->handle);
	default:
		return -EOPNOTSUPP;
	}
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	struct opened *opened = FILE_ENG_DATA(io_u->file);
	struct uext4_request *request;
	int64_t result;

	fio_ro_check(td, io_u);
	/* A thread of io_submit_mode=offload has files that its job opened: it waits for each request anyway. */
	if (!job->queue || opened->queue != job->queue) {
		result = call(td, io_u);
		if (result < 0)
			tell(td, io_u);
		over(td, io_u, result);
		if (io_u->error)
			td_verror(td, io_u->error, "xfer");
		return FIO_Q_COMPLETED;
	}
	if (job->pushed == job->depth)
		return FIO_Q_BUSY;
	/* A sync covers what completed before. What is only pushed goes first. */
	if (ddir_sync(io_u->ddir) && job->pushed)
		return FIO_Q_BUSY;
	request = &job->requests[job->pushed];
	*request = (struct uext4_request) {
		.tag = (uintptr_t) io_u,
		.pos = io_u->offset,
		.length = io_u->xfer_buflen,
		.data = io_u->xfer_buf,
		.file = opened->slot,
	};
	switch (io_u->ddir) {
	case DDIR_READ:
		request->op = UEXT4_OP_READ;
		break;
	case DDIR_WRITE:
		request->op = UEXT4_OP_WRITE;
		request->flags = write_flags(td);
		break;
	case DDIR_TRIM:
		request->op = UEXT4_OP_DISCARD;
		break;
	case DDIR_SYNC:
		request->op = UEXT4_OP_FSYNC;
		break;
	case DDIR_DATASYNC:
		request->op = UEXT4_OP_FDATASYNC;
		break;
	default:
		io_u->error = EOPNOTSUPP;
		return FIO_Q_COMPLETED;
	}
	job->waiting[job->pushed++] = io_u;
	return FIO_Q_QUEUED;
}

/* Sends what was pushed. A request that is refused completes with the error: fio waits for each that it pushed. */
static int commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	unsigned int sent = 0, i;
	struct timespec now;
	int taken;

	while (sent < job->pushed) {
		taken = uext4_queue_submit(job->queue, job->requests + sent, job->pushed - sent);
		if (taken < 0) {
			tell(td, job->waiting[sent]);
			job->refused[job->refusals++] = (struct uext4_completion) {
				.tag = job->requests[sent].tag,
				.result = taken,
			};
			taken = 1;
		}
		if (fio_fill_issue_time(td)) {
			fio_gettime(&now, NULL);
			for (i = sent; i < sent + taken; i++) {
				job->waiting[i]->issue_time = now;
				io_u_queued(td, job->waiting[i]);
			}
		}
		io_u_mark_submit(td, taken);
		sent += taken;
	}
	job->pushed = 0;
	return 0;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	int timeout = t ? t->tv_sec * 1000 + t->tv_nsec / 1000000 : -1;
	int given;

	if (!job->queue)
		return 0;
	if (max > job->depth)
		max = job->depth;
	if (job->refusals) {
		given = job->refusals < max ? job->refusals : max;
		job->refusals -= given;
		memcpy(job->done, job->refused + job->refusals, given * sizeof(*job->done));
		return given;
	}
	if (min > max)
		min = max;
	given = uext4_queue_reap(job->queue, job->done, min, max, min ? timeout : 0);
	if (given < 0)
		td_verror(td, failed("reap", job->volume->device, given), "uext4_queue_reap");
	return given;
}

static struct io_u *event(struct thread_data *td, int number)
{
	struct job *job = td->io_ops_data;
	struct uext4_completion *done = &job->done[number];
	struct io_u *io_u = (struct io_u *) (uintptr_t) done->tag;

	over(td, io_u, done->result);
	if (done->result < 0)
		tell(td, io_u);
	return io_u;
}

struct ioengine_ops ioengine = {
	.name = "uext4",
	.version = FIO_IOOPS_VERSION,
	/* Files are not the host's: no directories are made for them, and layout is `layout`'s. */
	.flags = FIO_DISKLESSIO | FIO_MEMALIGN | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = setup,
	.prepopulate_file = layout,
	.init = init,
	.cleanup = cleanup,
	.iomem_alloc = memory,
	.iomem_free = free_memory,
	.open_file = open_file,
	.close_file = close_file,
	.unlink_file = unlink_file,
	.queue = queue,
	.commit = commit,
	.getevents = getevents,
	.event = event,
	.options = options,
	.option_struct_size = sizeof(struct options),
};
