# SPDX-License-Identifier: MIT OR Apache-2.0
# [ITEM...]: an origin that hangs holds up no other volume; flush during writes, limits, names, the cache unbound; moments that a module which pauses there makes long.
part() {
	[ $# -gt 0 ] || set -- ranges waiting tags flush slots limits names control unbind pause broken
	# Destage pauses before the request that it sends to an origin counts; clear_stats fails an
	# assertion of the engine's about the volume's pool.
	build_planted neighbours-pause kernel/origin_io.c \
		's/^#include <linux.mm.h>/#include <linux\/delay.h>\n&/; s/^\tatomic_inc\(&v->in_flight\);/\tmsleep(30000);\n&/' || return
	build_planted neighbours-broken kernel/setup.c 's/c = kzalloc\(sizeof\(\*c\), GFP_KERNEL\);/FBY_ASSERT(s->volume.pool->engine, !argv);\n\t\t&/' || return
	show='^FAIL|^neighbours|ok:' guest neighbours 1200 guest-neighbours.sh "$@"
}
