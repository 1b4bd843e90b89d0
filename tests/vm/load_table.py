#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-load.sh to tables, and to JSON.

	load_table.py LINES JSON KEY=VALUE...	KEY=VALUE: what the run was like
"""
import json
import statistics
import sys

import vm_facts
from sustained import read, sustained, windows
from vm_facts import machine, spread

CACHES = ("writecache", "bcache", "pcache", "target", "native")  # dm-pcache where the kernel has it


def mixes(by):
    cells = {}
    for number, writes, jobs, device, rate in by.get("mix", []):
        cells.setdefault((int(writes), int(jobs)), {}).setdefault(device, {})[int(number)] = float(rate)
    out = []
    for (writes, jobs), cell in cells.items():
        row = {"write_percent": writes, "jobs": jobs, "per_s": {d: spread(list(r.values())) for d, r in cell.items()}}
        for d in ("target", "native"):
            for other in ("writecache", "pcache"):
                # There is no ratio if nothing was done in a round.
                if other in cell and all(cell[other].values()):
                    row[f"{d}_over_{other}"] = spread([cell[d][n] / cell[other][n] for n in cell[d]])
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
    mib = {d: facts["pcache_mib" if d == "pcache" else "cache_mib"] for d in CACHES}
    devices = [{**sustained(by, d, mib[d] * 256, origin), "cache_mib": mib[d]}
               for d in CACHES if any(w[0] == d for w in by["window"])]
    cells = mixes(by)
    mixed = [d for d in CACHES if cells and d in cells[0]["per_s"]]
    print(f"origin alone, before and after: {rate[0]:.0f} and {rate[1]:.0f} writes/s")
    print(f"{'sustained':<12}{'writes/s':>10}{'/origin':>9}{'CoV':>7}{'slowest':>9}{'empty':>7}{'p99.9 ms':>10}{'max ms':>9}{'CPU %':>7}")
    for d in devices:
        print(f"{d['name']:<12}{d['steady_per_s']:>10.0f}{d['steady_over_origin']:>9.2f}{d['coefficient_of_variation']:>7.2f}"
              f"{d['slowest_window_per_s']:>9.0f}{d['windows_with_nothing']:>7}{d['latency']['p999_us'] / 1e3:>10.1f}{d['latency']['max_us'] / 1e3:>9.0f}"
              f"{d['cpu_percent']:>7.0f}")
    for d in devices:
        if not d["full_before"]:
            print(f"{d['name']} was not full when its steady windows began: take more seconds")
    over = [f"{d}_over_{other}" for other in ("writecache", "pcache") if other in mixed for d in ("target", "native")]
    heads = [name.replace("_over_writecache", "/wc").replace("_over_pcache", "/pc") for name in over]
    print(f"{'writes %':<10}{'jobs':>5}" + "".join(f"{d:>12}" for d in mixed) + "".join(f"{h:>20}" for h in heads))
    for c in cells:
        ratios = "".join(f"{r['median']:>8.2f} ({r['low']:.2f}-{r['high']:.2f})" if r else f"{'-':>20}"
                         for r in (c.get(name) for name in over))
        print(f"{c['write_percent']:<10}{c['jobs']:>5}" + "".join(f"{c['per_s'][d]['median']:>12.0f}" for d in mixed) + ratios)
    with open(out, "w") as f:
        json.dump({**facts, "machine": machine(), "origin_per_s": origin, "origin_per_s_rounds": rate,
                   "devices": devices, "mixes": cells}, f, indent=1)
        f.write("\n")


main(*sys.argv[1:])
