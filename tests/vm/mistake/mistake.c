// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * mistake.c - a test's module: one mistake at load, which the debugging kernel
 * has to report, or its silence about forebay.ko would mean nothing.
 *
 *	insmod mistake.ko what=beyond|freed|sleep|order|race
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static char *what = "";
module_param(what, charp, 0400);

static DEFINE_SPINLOCK(first_lock);
static DEFINE_SPINLOCK(second_lock);
static unsigned long shared;

static void beyond(void)
{
	char *p = kmalloc(100, GFP_KERNEL);

	if (p)
		WRITE_ONCE(p[100], 1);
	kfree(p);
}

static void freed(void)
{
	char *p = kmalloc(100, GFP_KERNEL);

	kfree(p);
	if (p)
		WRITE_ONCE(p[50], 1);
}

static void sleep_in_atomic(void)
{
	spin_lock(&first_lock);
	msleep(1);
	spin_unlock(&first_lock);
}

static void order(void)
{
	spin_lock(&first_lock);
	spin_lock(&second_lock);
	spin_unlock(&second_lock);
	spin_unlock(&first_lock);
	spin_lock(&second_lock);
	spin_lock(&first_lock);
	spin_unlock(&first_lock);
	spin_unlock(&second_lock);
}

static int racer(void *unused)
{
	while (!kthread_should_stop()) {
		shared++;
		cond_resched();
	}
	return 0;
}

static void race(void)
{
	struct task_struct *a = kthread_run(racer, NULL, "racer"), *b = kthread_run(racer, NULL, "racer");

	msleep(5000);
	if (!IS_ERR(a))
		kthread_stop(a);
	if (!IS_ERR(b))
		kthread_stop(b);
}

static int __init mistake_init(void)
{
	if (!strcmp(what, "beyond"))
		beyond();
	else if (!strcmp(what, "freed"))
		freed();
	else if (!strcmp(what, "sleep"))
		sleep_in_atomic();
	else if (!strcmp(what, "order"))
		order();
	else if (!strcmp(what, "race"))
		race();
	else
		return -EINVAL;
	return 0;
}

static void __exit mistake_exit(void)
{
}

module_init(mistake_init);
module_exit(mistake_exit);

MODULE_DESCRIPTION("Forebay's tests: mistakes that a debugging kernel reports");
MODULE_LICENSE("Dual MIT/GPL");
