# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash disable=SC2154,SC2034 # what programs.sh shares
#
# fio12.sh - sourced by programs.sh: First Responder's dynamic load, as a program `fio-12`.
#
# FIO-12 is twelve files of 1 to 14 GB that make a working set of 100 GB, of which 575 GB are
# read and written; here a GB is `gb` MiB of these.  Each file has its own distribution, unit,
# share of reads, fsyncs (0 to 5 % of its writes) and interval between requests (1 us to 1 ms),
# and a time at which it begins, so that the working set grows and shrinks.  How much of each
# there is of is the talk's table (21 files, of which 12 are drawn in its proportions); which
# file has what was drawn once, and stands in `files` below.  The talk names 1:0 as a share of
# reads to writes.  Requests do not go through this machine's page cache, which would be the
# disk's otherwise: with 100 GB there it is not.
#
# Leaves in `elapsed` the ms until all was done, and in $work/logs what fio has logged each
# 250 ms of each file, in KiB/s.

# GB, distribution, KiB of a request, per cent of reads, fsyncs per cent of writes, us between
# requests, and when it begins, in ms for a GB of the talk's that is 4 MiB
fio12_files='14 zipf:0.2    4  50 1  120    0
13 normal:25   4  95 0   45  400
12 random      8  50 2  700    0
11 pareto:0.5  4  50 5   15 1500
10 zipf:1.2    4  95 3  250  800
 9 random      4  95 4    6 3000
 8 normal:25   8  50 1  900    0
 7 zipf:0.2    4 100 0   30 2200
 6 pareto:0.1  4  95 5  400 4000
 5 zipf:0.2    8  50 2    2 5000
 3 normal:25   4 100 3   70 6000
 2 random      8  95 4    9 7000'
gb=4 elapsed=0

start_fio-12() { own root "$mnt/fio-12"; }
run_fio-12() {
	local n=0 size distribution kib reads syncs us begin job=$work/fio-12.job logs=$work/logs begun
	rm -rf "$logs" && mkdir "$logs"
	{
		printf '[global]\ndirectory=%s\nioengine=psync\ndirect=1\nrandseed=12\nfallocate=none\ngroup_reporting=1\n' "$mnt/fio-12"
		printf 'log_avg_msec=250\nrw=randrw\nrandrepeat=1\nnorandommap=1\n'
		while read -r size distribution kib reads syncs us begin; do
			n=$((n + 1))
			printf '[f%s]\nsize=%sm\nio_size=%sk\nrandom_distribution=%s\nbs=%sk\nrwmixread=%s\nthinktime=%s\n' \
				"$n" $((size * gb)) $((size * gb * 5888)) "$distribution" "$kib" "$reads" "$us"
			printf 'startdelay=%sms\nwrite_bw_log=%s\n' $((begin * gb / 4)) "$logs/f$n"
			[ "$syncs" = 0 ] || printf 'fsync=%s\n' $((100 / syncs))
		done <<<"$fio12_files"
	} >"$job"
	# The files, before the clock.
	quietly fio "${fio_options[@]}" --output="$work/laid" --create_only=1 "$job"
	begun=$(date +%s%N)
	timed fio "${fio_options[@]}" --output-format=json "$job"
	elapsed=$((($(date +%s%N) - begun) / 1000000))
	value=$(sed -n '/^{/,$p' "$work/output" |
		jq --argjson ms "$elapsed" '[.jobs[] | .read.io_bytes + .write.io_bytes] | add / $ms / 1000')
}
