// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * confine PROGRAM [ARGUMENT...]: runs the program without the system calls that container engines
 * refuse by default.  Calls for name spaces, mounts, userfaultfd, io_uring and the like fail with
 * EPERM.  clone3 fails with ENOSYS, because no filter can read its flags.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "the filter knows x86-64 and aarch64"
#endif

#define NAMESPACES \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(errno) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (errno))
#define REFUSED(call, errno) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1), ANSWER(errno)

static struct sock_filter filter[] = {
	LOAD(arch),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
	ANSWER(EPERM),
	LOAD(nr),
	REFUSED(SYS_clone3, ENOSYS),
	REFUSED(SYS_userfaultfd, EPERM),
	REFUSED(SYS_io_uring_setup, EPERM),
	REFUSED(SYS_io_uring_enter, EPERM),
	REFUSED(SYS_io_uring_register, EPERM),
	REFUSED(SYS_mount, EPERM),
	REFUSED(SYS_umount2, EPERM),
	REFUSED(SYS_fsopen, EPERM),
	REFUSED(SYS_open_tree, EPERM),
	REFUSED(SYS_move_mount, EPERM),
	REFUSED(SYS_mount_setattr, EPERM),
	REFUSED(SYS_pivot_root, EPERM),
	REFUSED(SYS_unshare, EPERM),
	REFUSED(SYS_setns, EPERM),
	REFUSED(SYS_quotactl, EPERM),
	REFUSED(SYS_open_by_handle_at, EPERM),
	REFUSED(SYS_bpf, EPERM),
	REFUSED(SYS_perf_event_open, EPERM),
	REFUSED(SYS_add_key, EPERM),
	REFUSED(SYS_keyctl, EPERM),
	REFUSED(SYS_init_module, EPERM),
	REFUSED(SYS_finit_module, EPERM),
	REFUSED(SYS_swapon, EPERM),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
	LOAD(args[0]),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1),
	ANSWER(EPERM),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

int main(int argc, char **argv)
{
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	if (argc < 2) {
		fprintf(stderr, "usage: confine PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) {
		perror("confine: cannot filter system calls");
		return 126;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
