# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
#
# facts.sh - sourced by lib.sh and map-run.sh: what a result says of the machine.

# machine: its facts, as JSON.
machine() {
	jq -n --arg cpu "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" --arg cpus "$(nproc)" \
		--arg kernel "$(uname -r)" --arg memory "$(sed -n 's/^MemTotal: *//p' /proc/meminfo)" \
		--arg load "$(cut -d' ' -f1-3 /proc/loadavg)" \
		'{cpu: $cpu, cpus: ($cpus | tonumber), memory: $memory, kernel: $kernel, load_at_start: $load}'
}
