# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tables of the guest's benchmarks share."""
import json
import os
import statistics


def machine():
    """The host's facts, as bench/lib.sh and forebay-load record them."""
    def field(path, name):
        with open(path) as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith(name)), "unknown")
    with open("/proc/loadavg") as f:
        load = " ".join(f.read().split()[:3])
    return {
        "cpu": field("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": os.uname().release,
        "load_at_end": load,
    }


def spread(values):
    """Of rounds: the median, the lowest and the highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "rounds": values}


def facts(words):
    """KEY=VALUE, where a value may be JSON."""
    out = {}
    for word in words:
        key, value = word.split("=", 1)
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = value
    return out
