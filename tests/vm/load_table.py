#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-load.sh to tables, and to JSON.

	load_table.py LINES JSON KEY=VALUE...	KEY=VALUE: what the run was like
"""
import json
import statistics
import sys

import vm_facts
from vm_facts import machine, spread

CACHES = ("writecache", "bcache", "target", "native")
MIXED = ("writecache", "target", "native")


def read(path):
    """The lines' words by their kind."""
    by = {}
    with open(path) as lines:
        for line in lines:
            word = line.split()
            if len(word) > 2 and word[0] == "load":
                by.setdefault(word[1], []).append(word[2:])
    return by


def windows(by, device):
    """(seconds, blocks a second) of each window, its real length counted."""
    out, before = [], (0, 0)
    for name, us, blocks in by["window"]:
        if name != device:
            continue
        now = (int(us) / 1e6, int(blocks))
        # The last one may have ended with the load.
        if now[0] - before[0] >= 0.25:
            out.append((now[0], (now[1] - before[1]) / (now[0] - before[0]), now[1]))
            before = now
    return out[:-1]


def sustained(by, device, cache_blocks, origin):
    """Steady: from 3 s after as much was written as the cache holds, or from half of the run on."""
    all_windows = windows(by, device)
    begin = 0
    while all_windows and all_windows[0][2] == 0:
        begin = all_windows.pop(0)[0]  # fio was not there yet
    if len(all_windows) < 8:
        sys.exit(f"{device}: {len(all_windows)} windows in which anything was written, too few to judge")
    all_windows = [(at - begin, rate, blocks) for at, rate, blocks in all_windows]
    full = next((i for i, w in enumerate(all_windows) if w[2] >= cache_blocks), len(all_windows))
    first = min(full + 6, len(all_windows) // 2)
    start, steady = all_windows[first][0], [rate for _, rate, _ in all_windows[first:]]
    latency = next(w for w in by["latency"] if w[0] == device)[1:]
    mean = statistics.fmean(steady)
    return {
        "name": device,
        "steady_from_s": start,
        "steady_per_s": mean,
        "steady_over_origin": mean / origin,
        "coefficient_of_variation": statistics.pstdev(steady) / mean,
        "slowest_window_per_s": min(steady),
        "windows_with_nothing": sum(blocks == 0 for _, blocks, _ in all_windows),
        "latency": dict(zip(("p50_us", "p99_us", "p999_us", "max_us"), map(float, latency))),
        "cpu_percent": float(next(w for w in by["cpu"] if w[0] == device)[1]),
        "command": next(" ".join(w[1:]) for w in by["command"] if w[0] == device),
        "windows": [[round(at, 3), round(rate, 1)] for at, rate, _ in all_windows],
    }


def mixes(by):
    cells = {}
    for number, writes, jobs, device, rate in by.get("mix", []):
        cell = cells.setdefault((int(writes), int(jobs)), {d: {} for d in MIXED})
        cell[device][int(number)] = float(rate)
    out = []
    for (writes, jobs), cell in cells.items():
        row = {"write_percent": writes, "jobs": jobs, "per_s": {d: spread(list(cell[d].values())) for d in MIXED}}
        for d in ("target", "native"):
            row[f"{d}_over_writecache"] = spread([cell[d][n] / cell["writecache"][n] for n in cell[d]])
        out.append(row)
    return out


def main(lines, out, *facts):
    by = read(lines)
    facts = vm_facts.facts(facts)
    rate = []
    for name in ("origin-before", "origin-after"):
        rates = [r for _, r, _ in windows(by, name)][1:]
        rate.append(statistics.fmean(rates))
    origin = statistics.fmean(rate)
    blocks = facts["cache_mib"] * 256
    devices = [sustained(by, d, blocks, origin) for d in CACHES if any(w[0] == d for w in by["window"])]
    cells = mixes(by)
    print(f"origin alone, before and after: {rate[0]:.0f} and {rate[1]:.0f} writes/s")
    print(f"{'sustained':<12}{'writes/s':>10}{'/origin':>9}{'CoV':>7}{'slowest':>9}{'empty':>7}{'p99.9 ms':>10}{'max ms':>9}{'CPU %':>7}")
    for d in devices:
        print(f"{d['name']:<12}{d['steady_per_s']:>10.0f}{d['steady_over_origin']:>9.2f}{d['coefficient_of_variation']:>7.2f}"
              f"{d['slowest_window_per_s']:>9.0f}{d['windows_with_nothing']:>7}{d['latency']['p999_us'] / 1e3:>10.1f}{d['latency']['max_us'] / 1e3:>9.0f}"
              f"{d['cpu_percent']:>7.0f}")
    print(f"{'writes %':<10}{'jobs':>5}" + "".join(f"{d:>12}" for d in MIXED) + f"{'target/wc':>20}{'native/wc':>20}")
    for c in cells:
        ratios = "".join(f"{r['median']:>8.2f} ({r['low']:.2f}-{r['high']:.2f})"
                         for r in (c["target_over_writecache"], c["native_over_writecache"]))
        print(f"{c['write_percent']:<10}{c['jobs']:>5}" + "".join(f"{c['per_s'][d]['median']:>12.0f}" for d in MIXED) + ratios)
    with open(out, "w") as f:
        json.dump({**facts, "machine": machine(), "origin_per_s": origin, "origin_per_s_rounds": rate,
                   "devices": devices, "mixes": cells}, f, indent=1)
        f.write("\n")


main(*sys.argv[1:])
