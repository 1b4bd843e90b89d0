#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-ssd-bench.sh to a table of medians, and to JSON."""
import json
import statistics
import sys


def main(text, out):
    figures = {}
    with open(text) as lines:
        for line in lines:
            word = line.split()
            if len(word) == 8 and word[0] == "ssd-bench":
                figures.setdefault(int(word[2]), {}).setdefault(word[3], []).append([float(x) for x in word[4:]])
    rows = []
    print(f"{'jobs':>4} {'device':<13} {'writes/s':>9} {'of bare':>8} {'of writecache':>14} {'drive writes':>13} {'KiB':>6} {'flushes':>8}")
    for jobs, by in figures.items():
        medians = {device: [statistics.median(column) for column in zip(*rounds)] for device, rounds in by.items()}
        for device, (iops, writes, kib, flushes) in medians.items():
            ratio = {other: iops / medians[other][0] for other in ("bare", "writecache-s", "bcache") if other in medians}
            rows.append({"jobs": jobs, "device": device, "writes_per_second": iops, "ratio": ratio,
                         "drive_writes": writes, "drive_kib": kib, "drive_flushes": flushes, "rounds": by[device]})
            print(f"{jobs:>4} {device:<13} {iops:>9.0f} {ratio['bare']:>8.2f} {ratio.get('writecache-s', 0):>14.2f}"
                  f" {writes:>13.2f} {kib:>6.2f} {flushes:>8.2f}")
    if not rows:
        sys.exit("ssd-bench: no figures")
    with open(out, "w") as file:
        json.dump({"per_write_of_4_kib": rows}, file, indent=1)


main(*sys.argv[1:])
