# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lines of guest-sustained.sh to figures."""
import statistics
import sys


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
        # The last window may have ended with the load.
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
        "full_before": all_windows[first][2] >= cache_blocks,
        "steady_per_s": mean,
        "steady_over_origin": mean / origin,
        "coefficient_of_variation": statistics.pstdev(steady) / mean if mean else 0.0,
        "slowest_window_per_s": min(steady),
        "windows_with_nothing": sum(blocks == 0 for _, blocks, _ in all_windows),
        "latency": dict(zip(("p50_us", "p99_us", "p999_us", "max_us"), map(float, latency))),
        "cpu_percent": float(next(w for w in by["cpu"] if w[0] == device)[1]),
        "command": next(" ".join(w[1:]) for w in by["command"] if w[0] == device),
        "windows": [[round(at, 3), round(rate, 1)] for at, rate, _ in all_windows],
    }
