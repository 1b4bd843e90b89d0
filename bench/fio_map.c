// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An engine for fio: files mapped onto a pool by forebay_map.h.
 *
 *	fio --ioengine=external:PATH/fio_map.so --pool=POOL [--map=NAME] --direct=1 ...
 *
 * As fio's own engine `mmap`, with the library's calls in place of the kernel's: a read or
 * write is a copy from or to the mapping; with direct=1 each write is followed by a sync of
 * its range, and fsync=N is a sync of the whole file.
 *
 * Built against the headers of the fio that loads it (bench/fio_headers.sh).
 */
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include "forebay_map.h"

struct fio_map_options {
	void *pad; /* fio takes an option at 0 for none */
	char *pool;
	char *map;
};

static struct fio_option fio_map_option[] = {
	{
		.name = "pool",
		.lname = "Pool",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct fio_map_options, pool),
		.help = "Device or file of the pool",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "map",
		.lname = "Map",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct fio_map_options, map),
		.help = "Name of the map, if the pool has several",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

struct ioengine_ops ioengine;

static int fio_map_failed(struct thread_data *td, int error, const char *what)
{
	log_err("forebay_map: %s: %s\n", what, forebay_map_error());
	td_verror(td, error, "forebay_map");
	return error;
}

static int fio_map_init(struct thread_data *td)
{
	struct fio_map_options *options = td->eo;
	struct forebay_map_pool *pool;

	/* This lies behind all options of fio: it is there if the headers are its own. */
	if (td->io_ops != &ioengine) {
		log_err("forebay_map: built against the headers of another fio\n");
		return 1;
	}
	if (!options->pool) {
		log_err("forebay_map: the option pool is missing\n");
		return 1;
	}
	if (forebay_map_pool_open(options->pool, options->map, NULL, &pool))
		return fio_map_failed(td, EIO, options->pool);
	td->io_ops_data = pool;
	return 0;
}

static void fio_map_cleanup(struct thread_data *td)
{
	if (td->io_ops_data && forebay_map_pool_close(td->io_ops_data))
		fio_map_failed(td, EIO, "close the pool");
	td->io_ops_data = NULL;
}

static int fio_map_open(struct thread_data *td, struct fio_file *f)
{
	struct forebay_map_file *file;

	if (forebay_map_file_open(td->io_ops_data, f->file_name, 0, &file))
		return fio_map_failed(td, EIO, f->file_name);
	FILE_SET_ENG_DATA(f, file);
	return 0;
}

static int fio_map_close(struct thread_data *td, struct fio_file *f)
{
	struct forebay_map_file *file = FILE_ENG_DATA(f);

	FILE_SET_ENG_DATA(f, NULL);
	if (forebay_map_file_close(file))
		return fio_map_failed(td, EIO, f->file_name);
	return 0;
}

/* The pool's memory is what is measured. */
static int fio_map_invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static enum fio_q_status fio_map_queue(struct thread_data *td, struct io_u *io_u)
{
	struct forebay_map_file *file = FILE_ENG_DATA(io_u->file);
	char *mapped = (char *)forebay_map_address(file) + io_u->offset;
	int code = 0;

	fio_ro_check(td, io_u);
	if (io_u->ddir == DDIR_READ) {
		memcpy(io_u->xfer_buf, mapped, io_u->xfer_buflen);
	} else if (io_u->ddir == DDIR_WRITE) {
		memcpy(mapped, io_u->xfer_buf, io_u->xfer_buflen);
		if (td->o.odirect)
			code = forebay_map_sync(file, io_u->offset, io_u->xfer_buflen);
	} else if (ddir_sync(io_u->ddir)) {
		code = forebay_map_sync(file, 0, FOREBAY_MAP_REST);
	} else {
		io_u->error = EOPNOTSUPP;
	}
	if (code)
		io_u->error = fio_map_failed(td, EIO, "sync");
	return FIO_Q_COMPLETED;
}

struct ioengine_ops ioengine = {
	.name = "forebay_map",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_SYNCIO | FIO_NOEXTEND,
	.init = fio_map_init,
	.cleanup = fio_map_cleanup,
	.open_file = fio_map_open,
	.close_file = fio_map_close,
	.invalidate = fio_map_invalidate,
	.get_file_size = generic_get_file_size,
	.queue = fio_map_queue,
	.options = fio_map_option,
	.option_struct_size = sizeof(struct fio_map_options),
};
