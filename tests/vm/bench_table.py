#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-bench.sh to a table of medians with ratios, and to JSON."""
import json
import statistics
import sys

DEVICES = ("pmem", "writecache", "target", "native")


def main(text, out):
    figures, cpu = {}, {}
    with open(text) as lines:
        for line in lines:
            word = line.split()
            if len(word) != 6 or word[0] != "bench":
                continue
            _, _, row, device, ios, us = word
            figures.setdefault(row, {}).setdefault(device, []).append(float(ios) / 1000)
            cpu.setdefault(row, {}).setdefault(device, []).append(float(us))
    if not figures:
        sys.exit(f"{text} holds no figures")
    print(f"{'thousand requests/s':<20}" + "".join(f"{d:>12}" for d in DEVICES)
          + f"{'native/pmem':>14}{'native/wc':>11}{'target/wc':>11}   CPU us/request")
    result = []
    for row, by in figures.items():
        m = {d: statistics.median(by[d]) for d in DEVICES}
        c = {d: statistics.median(cpu[row][d]) for d in DEVICES}
        print(f"{row:<20}" + "".join(f"{m[d]:>12.1f}" for d in DEVICES)
              + f"{m['native'] / m['pmem']:>14.2f}{m['native'] / m['writecache']:>11.2f}"
              + f"{m['target'] / m['writecache']:>11.2f}   " + " ".join(f"{c[d]:.0f}" for d in DEVICES))
        result.append({"row": row, "kiops": m, "cpu_us": c, "rounds": len(by["pmem"])})
    with open(out, "w") as f:
        json.dump({"machine": "emulated guest; only ratios of an idle machine count", "rows": result}, f, indent=1)


main(sys.argv[1], sys.argv[2])
