#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-destage.sh to a table, and to JSON.

	destage_table.py LINES JSON KEY=VALUE...	KEY=VALUE: what the run was like
"""
import json
import statistics
import sys

import vm_facts
from sustained import read, sustained, windows
from vm_facts import machine

OTHERS = ("writecache", "bcache", "pcache")


def main(lines, out, *facts):
    by = read(lines)
    facts = vm_facts.facts(facts)
    blocks = facts["cache_mib"] * 256
    asked = {name: (int(requests), int(sectors)) for name, requests, sectors in by["asked"]}
    disks, cells = {}, {}
    for name in dict.fromkeys(w[0] for w in by["latency"]):
        kind, rate, *times = name.split("@")
        if not times:
            disks[int(rate)] = statistics.fmean(r for _, r, _ in windows(by, name)[1:])
            continue
        figures = sustained(by, name, blocks, disks[int(rate)])
        requests, sectors = asked[name]
        figures["asked"] = {"requests": requests, "bytes": sectors * 512}
        cells.setdefault((int(rate), int(times[0])), {})[kind] = figures
    result = []
    print(f"{'requests/s':>10}{'data':>6}  {'':<12}{'writes/s':>9}{'over disk':>11}{'CoV':>7}{'slowest':>9}{'empty':>7}"
          f"{'p99.9 ms':>10}{'max ms':>9}{'native over it':>16}")
    for (rate, times), cell in cells.items():
        native = (cell.get("native") or cell["native+crc"])["steady_per_s"]
        row = {"requests_per_s": rate, "data_times": times, "disk_writes_per_s": disks[rate], "devices": cell,
               # There is no ratio if nothing was written.
               "native_over": {k: native / cell[k]["steady_per_s"] for k in OTHERS if k in cell and cell[k]["steady_per_s"]}}
        result.append(row)
        for kind, d in cell.items():
            over = f"{row['native_over'][kind]:>16.2f}" if kind in row["native_over"] else ""
            print(f"{rate:>10}{times:>5}x  {kind:<12}{d['steady_per_s']:>9.0f}{d['steady_per_s'] / disks[rate]:>11.2f}"
                  f"{d['coefficient_of_variation']:>7.2f}{d['slowest_window_per_s']:>9.0f}{d['windows_with_nothing']:>7}"
                  f"{d['latency']['p999_us'] / 1e3:>10.1f}{d['latency']['max_us'] / 1e3:>9.0f}{over}")
    with open(out, "w") as f:
        json.dump({**facts, "machine": machine(), "cells": result}, f, indent=1)
        f.write("\n")


main(*sys.argv[1:])
