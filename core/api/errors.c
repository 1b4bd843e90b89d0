// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* errors.c - names, errno numbers and messages of the engine's errors. */
#include "api/forebay.h"
#include "medium/planted.h"

static const struct {
	const char *name;
	const char *message;
	int parent;
} errors[FBY_E_COUNT] = {
	[FBY_E_NONE] = { "NONE", "no error", 0 },
#define FBY_ERROR_ROW(name, parent, message) [FBY_E_##name] = { #name, message, parent },
	FBY_ERRORS(FBY_ERROR_ROW)
#undef FBY_ERROR_ROW
};

static u32 row(int error)
{
	return error < 0 && -error < FBY_E_COUNT ? (u32)-error : FBY_E_NONE;
}

int fby_error_errno(int error)
{
	return errors[row(error)].parent;
}

const char *fby_error_message(int error)
{
	return errors[row(error)].message;
}

const char *fby_error_name(int error)
{
	return errors[row(error)].name;
}

#ifdef FBY_PLANTED_BUGS
u32 fby_planted;

static const char *const planted[][2] = {
	[FBY_BUG_NONE] = { "NONE", "no bug" },
#define FBY_PLANTED_ROW(name, what) [FBY_BUG_##name] = { #name, what },
	FBY_PLANTED(FBY_PLANTED_ROW)
#undef FBY_PLANTED_ROW
};

const char *fby_planted_name(u32 id)
{
	return id < FBY_BUG_COUNT ? planted[id][0] : NULL;
}

const char *fby_planted_what(u32 id)
{
	return id < FBY_BUG_COUNT ? planted[id][1] : NULL;
}
#endif
