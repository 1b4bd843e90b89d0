// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * poison.c - a test's module: lines of the media whose loads fail.
 *
 * An emulated machine has no memory that fails, so the machine check is put where the module meets
 * it. fby_port_read_crc() answers what it does when copy_mc_to_kernel() met one.  A store that
 * covers a poisoned line whole heals it, as the hardware does. forebay.ko itself is the one that is
 * shipped.
 *
 *	echo OFFSET >/sys/module/poison/parameters/add	(bytes from the pool's start)
 *	cat /sys/module/poison/parameters/lines	how many are left
 *	cat /sys/module/poison/parameters/hits	reads that failed
 *	cat /sys/module/poison/parameters/missed	calls that no probe saw; must be 0
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/spinlock.h>

#define LINES_MAX 512u
#define LINE 64u

/* core/medium/port.h, port/linux.h */
struct fby_media {
	u8 *base;
	u64 size;
};

static DEFINE_SPINLOCK(poison_lock);
static u64 poisoned[LINES_MAX];
static unsigned int lines, hits;

/* A probe may count as an interrupt like a machine check, where lockdep allows no lock to be waited
 * for.  Here it can be: nothing that is probed runs under this lock.
 */
#define lock_poison(flags)                                         \
	do {                                                       \
		while (!spin_trylock_irqsave(&poison_lock, flags)) \
			cpu_relax();                               \
	} while (0)

static bool overlaps(u64 at, u64 n)
{
	unsigned long flags;
	bool found = false;
	u32 i;

	lock_poison(flags);
	for (i = 0; i < lines && !found; i++)
		found = poisoned[i] + LINE > at && poisoned[i] < at + n;
	hits += found;
	spin_unlock_irqrestore(&poison_lock, flags);
	return found;
}

static void heal(u64 at, u64 n)
{
	unsigned long flags;
	u32 i = 0;

	lock_poison(flags);
	while (i < lines) {
		if (poisoned[i] >= at && poisoned[i] + LINE <= at + n)
			poisoned[i] = poisoned[--lines];
		else
			i++;
	}
	spin_unlock_irqrestore(&poison_lock, flags);
}

/* fby_port_read_crc(m, dst, at, n, crc): 1 is no business of the return handler. */
static int read_begins(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	return !overlaps(regs_get_kernel_argument(regs, 2), regs_get_kernel_argument(regs, 3));
}

static int read_ends(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	regs_set_return_value(regs, 1);
	return 0;
}

/* fby_port_write(m, at, src, n), fby_port_write_crc(m, at, src, n, crc) */
static int write_begins(struct kprobe *p, struct pt_regs *regs)
{
	heal(regs_get_kernel_argument(regs, 1), regs_get_kernel_argument(regs, 3));
	return 0;
}

static struct kretprobe read_probe = {
	.kp.symbol_name = "fby_port_read_crc",
	.entry_handler = read_begins,
	.handler = read_ends,
	.maxactive = 64,
};

static struct kprobe write_probe = { .symbol_name = "fby_port_write", .pre_handler = write_begins };
static struct kprobe write_crc_probe = { .symbol_name = "fby_port_write_crc", .pre_handler = write_begins };

static int add_set(const char *text, const struct kernel_param *unused)
{
	unsigned long flags;
	u64 at;
	int rc = kstrtou64(text, 0, &at);

	if (rc)
		return rc;
	lock_poison(flags);
	if (lines < LINES_MAX)
		poisoned[lines++] = at & ~(u64)(LINE - 1);
	else
		rc = -ENOSPC;
	spin_unlock_irqrestore(&poison_lock, flags);
	return rc;
}

static int missed_get(char *text, const struct kernel_param *unused)
{
	return sysfs_emit(text, "%lu\n", read_probe.nmissed + read_probe.kp.nmissed + write_probe.nmissed +
						 write_crc_probe.nmissed);
}

static const struct kernel_param_ops add_ops = { .set = add_set };
static const struct kernel_param_ops missed_ops = { .get = missed_get };

module_param_cb(add, &add_ops, NULL, 0200);
module_param_cb(missed, &missed_ops, NULL, 0400);
module_param(lines, uint, 0400);
module_param(hits, uint, 0400);

static int __init poison_init(void)
{
	int rc = register_kretprobe(&read_probe);

	if (rc)
		return rc;
	rc = register_kprobe(&write_probe);
	if (rc)
		goto no_write;
	rc = register_kprobe(&write_crc_probe);
	if (rc)
		goto no_write_crc;
	return 0;
no_write_crc:
	unregister_kprobe(&write_probe);
no_write:
	unregister_kretprobe(&read_probe);
	return rc;
}

static void __exit poison_exit(void)
{
	unregister_kprobe(&write_crc_probe);
	unregister_kprobe(&write_probe);
	unregister_kretprobe(&read_probe);
}

module_init(poison_init);
module_exit(poison_exit);

MODULE_DESCRIPTION("Forebay's tests: memory whose loads fail");
MODULE_LICENSE("Dual MIT/GPL");
