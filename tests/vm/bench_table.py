#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-bench.sh to a table of medians with ratios, and to JSON."""
import json
import statistics
import sys

DEVICES = ("pmem", "linear", "writecache", "pcache", "target", "native")  # dm-pcache where the kernel has it
UNSUMMED = ("pmem", "linear", "writecache", "pcache")  # measured once a round, count for both

RATIOS = {"native/pmem": ("native", "pmem"), "native/wc": ("native", "writecache"),
          "target/wc": ("target", "writecache"), "target/linear": ("target", "linear"),
          "pmem/wc": ("pmem", "writecache"), "linear/wc": ("linear", "writecache"),
          "native/pc": ("native", "pcache")}

# The goals with checksums off: rows, ratio, minimum.
REACH = (
    ("write-1 fsync-1 write-2 fsync-2 write-4 fsync-4", "native/pmem", 0.9),
    ("write-1 fsync-1 write-2 fsync-2 write-4 fsync-4", "native/wc", 1.6),
    ("write-1 fsync-1", "target/wc", 1.5),
    ("write-2 fsync-2 write-4 fsync-4", "target/wc", 1.15),
    ("mix_99-2 mix_90-2 mix_70-2 mix_50-2 mix_0-2", "native/wc", 1.3),
    ("mix_99-2 mix_90-2 mix_70-2 mix_50-2 mix_0-2", "target/wc", 1.0),
    ("ext4-fsync-1 ext4-fsync-4 xfs-fsync-1 xfs-fsync-4", "native/wc", 1.15),
    ("ext4-fsync-1 ext4-fsync-4 xfs-fsync-1 xfs-fsync-4", "target/wc", 1.0),
)


def read(text):
    """{(row, checksums): {device: [(kiops, cpu us a request, cpu s a GiB)]}}"""
    figures = {}
    with open(text) as lines:
        for line in lines:
            word = line.split()
            if len(word) != 8 or word[0] != "bench":
                continue
            _, _, row, checksums, device, ios, us, s = word
            figure = (float(ios) / 1000, float(us), float(s))
            figures.setdefault((row, checksums), {}).setdefault(device, []).append(figure)
    for (row, checksums), by in figures.items():
        if checksums == "on":
            by.update({d: figures[row, "off"][d] for d in UNSUMMED if d in figures[row, "off"]})
    return figures


def ratios(kiops):
    return {name: kiops[a] / kiops[b] for name, (a, b) in RATIOS.items() if a in kiops and b in kiops}


def reach(result):
    for rows, name, least in REACH:
        cells = {r["row"]: r["ratio"][name] for r in result
                 if r["checksums"] == "off" and r["row"] in rows.split() and name in r["ratio"]}
        if cells:
            low = min(cells, key=cells.get)
            reached = sum(ratio >= least for ratio in cells.values())
            print(f"checksums off, {name} >= {least}: {reached} of {len(cells)} rows; lowest {cells[low]:.2f} ({low})")


def main(text, out):
    figures = read(text)
    if not figures:
        sys.exit(f"{text} holds no figures")
    present = set.intersection(*(set(by) for by in figures.values()))
    devices = [d for d in DEVICES if d in present]
    names = ratios(dict.fromkeys(devices, 1.0))
    print(f"{'thousand requests/s':<30}" + "".join(f"{d:>12}" for d in devices)
          + "".join(f"{name:>14}" for name in names) + "   CPU s/GiB")
    result = []
    for (row, checksums), by in sorted(figures.items(), key=lambda f: f[0][1]):
        kiops, us, s = ({d: statistics.median(f[i] for f in by[d]) for d in devices} for i in range(3))
        r = ratios(kiops)
        print(f"{row + ', checksums ' + checksums:<30}" + "".join(f"{kiops[d]:>12.1f}" for d in devices)
              + "".join(f"{r[name]:>14.2f}" for name in names) + "   "
              + " ".join(f"{s[d]:.1f}" for d in devices))
        result.append({"row": row, "checksums": checksums, "kiops": kiops, "ratio": r, "cpu_us_per_request": us,
                       "cpu_s_per_gib": s, "rounds": len(by["native"])})
    reach(result)
    with open(out, "w") as f:
        json.dump({"machine": "emulated guest; only ratios of an idle machine count", "rows": result}, f, indent=1)


main(sys.argv[1], sys.argv[2])
