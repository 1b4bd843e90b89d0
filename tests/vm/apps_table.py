#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-apps.sh to a table, and to JSON.

	apps_table.py LINES JSON KEY=VALUE...	KEY=VALUE: what the run was like; units={PROGRAM: UNIT}
"""
import json
import sys

from vm_facts import facts, machine, spread

SIDES = ("origin", "writecache", "native", "static")


def main(lines, out, *words):
    run, cells = facts(words), {}
    units = run.pop("units")
    with open(lines) as f:
        for line in f:
            word = line.split()
            if word[:2] == ["apps", "command"]:
                cell = cells.setdefault((word[2], word[3]), {"rate": {}, "command": {}})
                cell["command"][word[4]] = " ".join(word[5:])
            elif len(word) == 6 and word[0] == "apps":
                cell = cells.setdefault((word[1], word[2]), {"rate": {}, "command": {}})
                cell["rate"].setdefault(word[3], []).append(float(word[5]))
    if not cells:
        sys.exit(f"{lines} holds no figures")
    rows = []
    sides = [s for s in SIDES if all(s in cell["rate"] for cell in cells.values())]
    ratios = [(ours, other) for ours in sides[2:] for other in sides[:2]]
    print(f"{'disk':<6}{'program':<12}" + "".join(f"{s:>12}" for s in sides) + f"  {'unit':<16}"
          + "".join(f"{ours + '/' + other:<20}" for ours, other in ratios))
    for (disk, app), cell in cells.items():
        rate = cell["rate"]
        row = {"disk": disk, "app": app, "unit": units[app], "commands": cell["command"]}
        row.update({s: spread(rate[s]) for s in sides})
        for ours, other in ratios:
            row[f"{ours}_over_{other}"] = spread([a / b for a, b in zip(rate[ours], rate[other])])
        rows.append(row)
        over = [row[f"{ours}_over_{other}"] for ours, other in ratios]
        said = [f"{r['median']:.2f} ({r['low']:.2f}-{r['high']:.2f})" for r in over]
        print(f"{disk:<6}{app:<12}" + "".join(f"{row[s]['median']:>12.0f}" for s in sides) + f"  {units[app]:<16}"
              + "".join(f"{s:<20}" for s in said))
    with open(out, "w") as f:
        json.dump({**run, "machine": machine(), "cells": rows}, f, indent=1)
        f.write("\n")


main(*sys.argv[1:])
