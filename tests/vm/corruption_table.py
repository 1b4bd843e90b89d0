#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""From a guest's console to one table and JSON: corruption_table.py CONSOLE OUT.json"""

import json
import sys

MARK = "corruption-json: "


def cell(row, name):
    if name not in row:
        return "-"
    c = row[name]
    tries = f" ({c['wrong']} of {c['tries']})" if c["verdict"] == "WRONG" and c["tries"] > 1 else ""
    return f"{c['verdict']}{tries}: {c['what']}"


def main():
    with open(sys.argv[1], errors="replace") as f:
        lines = [line.rstrip("\r\n") for line in f if MARK in line]
    if not lines:
        sys.exit("corruption: the guest printed no table")
    table = json.loads(lines[-1].split(MARK, 1)[1])
    with open(sys.argv[2], "w") as f:
        json.dump(table, f, indent=1)
        f.write("\n")
    names = ("dm-writecache", "Forebay")
    print("| state | damage | " + " | ".join(names) + " |")
    print("|---|---|---|---|")
    for row in table["rows"]:
        print(f"| {row['state']} | {row['damage']} | " + " | ".join(cell(row, n) for n in names) + " |")
    rows = table["rows"]
    for name in names:
        there = [r[name] for r in rows if name in r]
        wrong = sum(c["verdict"] == "WRONG" for c in there)
        print(f"{name}: {wrong} of {len(there)} rows wrong without a word, {len(there) - wrong} detected or harmless")


if __name__ == "__main__":
    main()
