// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * ticks.c - prints how many thousand ticks the host's time-stamp counter makes in a second.
 *
 * An emulated guest reads the host's counter, and a guest's kernel finds its rate by a timer that
 * the emulator serves late on a busy machine.  Its clock was seen to run 14 times too fast.  Here
 * each of two readings is the closest of many, so other work does not count.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

struct reading {
	uint64_t ticks, ns;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct reading closest(void)
{
	uint64_t least = UINT64_MAX;
	struct reading best = { 0 };

	for (int i = 0; i < 1000; i++) {
		uint64_t before = __rdtsc(), ns = now_ns(), after = __rdtsc();

		if (after - before < least) {
			least = after - before;
			best = (struct reading){ before + least / 2, ns };
		}
	}
	return best;
}

int main(void)
{
	struct reading a = closest(), b;

	usleep(200000);
	b = closest();
	printf("%.0f\n", (double)(b.ticks - a.ticks) * 1e6 / (double)(b.ns - a.ns));
	return 0;
}
