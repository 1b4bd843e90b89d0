#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a file system checks for a caller, as a table: one line for each operation, caller and
rule, with the error or what came of it.  Run on a directory and on a mount of one, the lines
have to be the same.

    rights.py TREE PART...

Parts: names (sticky, fs.protected_*), modes (set-ID bits, ACLs, umask), limits (RLIMIT_FSIZE),
xattrs (trusted.*), flags (nosuid, nodev, noexec), reserve (of an ext4 made with blocks kept
for root and for group 3333), quota (limits set for user 2001, group 3001 and project 77).

What is compared is what programs can see: errors, owners, modes, sizes.  Amounts are compared
only as "none left", since where a file system puts its metadata is its own matter.
"""

import ctypes
import errno
import mmap
import os
import resource
import shutil
import signal
import stat
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
SYS_RESOURCE = 1 << 24
ALL = (1 << 64) - 1

USER, OTHER, GROUP, RESERVE_GROUP = 2001, 2002, 3001, 3333
# user, group, further groups, capabilities that are kept (None: as they come)
CALLERS = {
    "root": (0, 0, [], None),
    "root less sys_resource": (0, 0, [], ALL & ~SYS_RESOURCE),
    "user": (USER, GROUP, [], None),
    "other": (OTHER, 3002, [], None),
    "user in the reserve's group": (USER, GROUP, [RESERVE_GROUP], None),
    "user with sys_resource": (USER, GROUP, [], SYS_RESOURCE),
}
BRIEF = ["root", "user", "other"]


def capset(keep):
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

    class Data(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint32) for n in ("effective", "permitted", "inheritable")]

    header, data = Header(0x20080522, 0), (Data * 2)()
    assert libc.capget(ctypes.byref(header), data) == 0
    for i in range(2):
        part = keep >> (32 * i) & 0xFFFFFFFF
        data[i].permitted &= part
        data[i].effective = data[i].permitted
        data[i].inheritable = 0
    assert libc.capset(ctypes.byref(header), data) == 0, os.strerror(ctypes.get_errno())


def become(name):
    uid, gid, groups, keep = CALLERS[name]
    PR_SET_KEEPCAPS = 8
    libc.prctl(PR_SET_KEEPCAPS, 1 if uid and keep else 0, 0, 0, 0)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if keep is not None:
        capset(keep)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def by(caller, operation):
    """In a process of the caller's: the error's name, or what the operation returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            become(caller)
            os.umask(0o022)
            said = operation()
            said = "ok" if said is None else str(said)
        except OSError as e:
            said = errno.errorcode.get(e.errno, str(e.errno))
        except BaseException as e:  # reported, or the table would lack the line
            said = f"broken: {e!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 65536).decode()
    os.close(read)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return said


def cell(what, caller, operation):
    print(f"{what} / {caller}: {by(caller, operation)}", flush=True)


def shown(path):
    s = os.lstat(path)
    return f"{stat.filemode(s.st_mode)} {s.st_uid}:{s.st_gid} {s.st_size if stat.S_ISREG(s.st_mode) else '-'}"


def fresh(path, mode=0o777, uid=0, gid=0):
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    return path


def put(path, mode=0o666, uid=0, gid=0, content=b"x"):
    with open(path, "wb") as f:
        f.write(content)
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    return path


def names(tree):
    for dir_mode in (0o1777, 0o777):
        for caller in BRIEF:
            d = fresh(f"{tree}/d", dir_mode, uid=0)
            where = f"directory {dir_mode:o}"
            mine, his = put(f"{d}/user", uid=USER), put(f"{d}/other", uid=OTHER)
            put(f"{d}/to", uid=OTHER)
            cell(f"{where}, rename user's", caller, lambda: os.rename(mine, f"{d}/new"))
            cell(f"{where}, rename over other's", caller, lambda: os.rename(put_own(f"{d}/own"), his))
            cell(f"{where}, unlink other's", caller, lambda: os.unlink(f"{d}/to"))
            put(f"{d}/read-only", 0o644, uid=OTHER)
            cell(f"{where}, link to other's", caller, lambda: os.link(f"{d}/read-only", f"{d}/link"))
            put(f"{d}/suid", 0o4755, uid=OTHER)
            cell(f"{where}, link to other's suid", caller, lambda: os.link(f"{d}/suid", f"{d}/link2"))
            os.symlink("read-only", f"{d}/symlink")
            os.lchown(f"{d}/symlink", OTHER, OTHER)
            cell(f"{where}, follow other's symlink", caller, lambda: os.close(os.open(f"{d}/symlink", os.O_RDONLY)))
            put(f"{d}/open", 0o666, uid=OTHER)
            cell(f"{where}, O_CREAT of other's file", caller,
                 lambda: os.close(os.open(f"{d}/open", os.O_CREAT | os.O_WRONLY)))
            os.mkfifo(f"{d}/fifo")
            os.chown(f"{d}/fifo", OTHER, OTHER)
            os.chmod(f"{d}/fifo", 0o666)
            cell(f"{where}, O_CREAT of other's fifo", caller,
                 lambda: os.close(os.open(f"{d}/fifo", os.O_CREAT | os.O_RDWR)))


def put_own(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
    return path


def acl(*entries):
    tags = {"u": 1, "U": 2, "g": 4, "G": 8, "m": 16, "o": 32}
    body = b"".join(struct.pack("<HHI", tags[t], p, 0xFFFFFFFF if i is None else i) for t, p, i in entries)
    return struct.pack("<I", 2) + body


DEFAULT, ACCESS = "system.posix_acl_default", "system.posix_acl_access"


def acl_of(path, name):
    try:
        return os.getxattr(path, name).hex()
    except OSError as e:
        return errno.errorcode[e.errno]


def make_all(d):
    os.close(os.open(f"{d}/f", os.O_CREAT | os.O_WRONLY, 0o666))
    os.close(os.open(f"{d}/s", os.O_CREAT | os.O_WRONLY, 0o2775))
    os.mkdir(f"{d}/d", 0o777)
    os.mknod(f"{d}/p", stat.S_IFIFO | 0o666)
    os.symlink("target", f"{d}/l")
    made = [f"{n} {shown(f'{d}/{n}')}" for n in "fsdpl"]
    acls = [acl_of(f"{d}/{n}", a) for n in "fsdp" for a in (ACCESS, DEFAULT)]
    return "; ".join(made + acls)


def modes(tree):
    named = acl(("u", 7, None), ("U", 5, OTHER), ("g", 5, None), ("m", 7, None), ("o", 4, None))
    plain = acl(("u", 7, None), ("g", 5, None), ("o", 1, None))
    unmasked = acl(("u", 6, None), ("g", 6, None), ("o", 6, None))
    for caller in ("root", "user"):
        for default in (None, named, plain, unmasked):
            for mode in (0o777, 0o2777):
                d = fresh(f"{tree}/d", mode, gid=OTHER)
                if default:
                    os.setxattr(d, DEFAULT, default)
                which = {None: "no ACL", named: "ACL", plain: "plain ACL", unmasked: "ACL of 666"}[default]
                cell(f"make in {mode:o}, {which}", caller, lambda: make_all(d))
        for group in (GROUP, OTHER):
            d = fresh(f"{tree}/d")
            for set_ids in (0o2755, 0o2745, 0o6755):
                where = f"of group {'own' if group == GROUP else 'strange'}, {set_ids:o}"
                f = put(f"{d}/f", 0o755, USER, group)
                cell(f"chmod, {where}", caller, lambda: os.chmod(f, set_ids) or shown(f))
                for which, value in (("ACL", named), ("plain ACL", plain)):
                    os.chmod(put(f, 0o755, USER, group), set_ids)
                    cell(f"set {which}, {where}", caller, lambda: os.setxattr(f, ACCESS, value) or shown(f))
                os.chmod(put(f, 0o755, USER, group), set_ids)
                cell(f"write, {where}", caller, lambda: write(f, 4) or shown(f))
                os.chmod(put(f, 0o755, USER, group), set_ids)
                cell(f"truncate, {where}", caller, lambda: os.truncate(f, 0) or shown(f))
                os.chmod(put(f, 0o755, USER, group), set_ids)
                cell(f"chgrp, {where}", caller, lambda: os.chown(f, -1, GROUP) or shown(f))
        os.chmod(put(f"{d}/f", 0o755, OTHER, GROUP), 0o755)
        cell("chmod of other's", caller, lambda: os.chmod(f"{d}/f", 0o700))
        cell("chown of other's", caller, lambda: os.chown(f"{d}/f", USER, -1))
        cell("utime of other's", caller, lambda: os.utime(f"{d}/f", (1, 1)))
        cell("set ACL of other's", caller, lambda: os.setxattr(f"{d}/f", ACCESS, named))


def write(path, length, flags=0):
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        os.write(fd, b"w" * length)
    finally:
        os.close(fd)


def limited(operation, most=65536):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return operation()


def within(path, at, length):
    fd = os.open(path, os.O_WRONLY)
    return f"{os.pwrite(fd, b'w' * length, at)} written"


def limits(tree):
    source = put(f"{tree}/source", content=b"s" * 200000)
    for caller in ("root", "user"):
        f = put(f"{tree}/f", content=b"")
        cell("RLIMIT_FSIZE, write within", caller, lambda: limited(lambda: within(f, 0, 65536)))
        cell("RLIMIT_FSIZE, write across", caller, lambda: limited(lambda: within(f, 60000, 10000)))
        cell("RLIMIT_FSIZE, write beyond", caller, lambda: limited(lambda: within(f, 65536, 1)))
        cell("RLIMIT_FSIZE, truncate beyond", caller, lambda: limited(lambda: os.truncate(f, 65537)))
        cell("RLIMIT_FSIZE, fallocate beyond", caller,
             lambda: limited(lambda: os.posix_fallocate(os.open(f, os.O_WRONLY), 0, 65537)))

        def copy():
            a, b = os.open(source, os.O_RDONLY), os.open(f, os.O_WRONLY)
            return f"{os.copy_file_range(a, b, 100000, 0, 65000)} copied"

        cell("RLIMIT_FSIZE, copy across", caller, lambda: limited(copy))
        print(f"RLIMIT_FSIZE, what is there / {caller}: {shown(f)}")


def xattrs(tree):
    f = put(f"{tree}/f", 0o666, USER)
    os.setxattr(f, "user.a", b"1")
    os.setxattr(f, "trusted.b", b"2")
    for caller in ("root", "user", "user with sys_resource"):
        cell("list xattrs", caller, lambda: sorted(os.listxattr(f)))
        for name in ("user.a", "trusted.b", "trusted.none", "security.c"):
            cell(f"get {name}", caller, lambda: os.getxattr(f, name))
        for name in ("user.new", "trusted.new", "security.new"):
            cell(f"set {name}", caller, lambda: os.setxattr(f, name, b"3"))
            cell(f"remove {name}", caller, lambda: os.removexattr(f, name))
    sticky = fresh(f"{tree}/sticky", 0o1777)
    cell("set user.a of a sticky directory", "user", lambda: os.setxattr(sticky, "user.a", b"1"))


def flags(tree):
    names = ("ST_NOSUID", "ST_NODEV", "ST_NOEXEC", "ST_RDONLY")
    at = os.statvfs(tree).f_flag
    print("flags:", *[n for n in names if at & getattr(os, n)])
    shutil.copy("/bin/true", f"{tree}/program")
    shutil.copy("/usr/bin/id", f"{tree}/suid")
    os.chmod(f"{tree}/program", 0o755)
    os.chown(f"{tree}/suid", OTHER, OTHER)
    os.chmod(f"{tree}/suid", 0o4755)
    if not os.path.exists(f"{tree}/null"):
        os.mknod(f"{tree}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chmod(f"{tree}/null", 0o666)

    def run(program):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            try:
                os.execv(program, [program] + (["-u"] if program.endswith("suid") else []))
            except OSError as e:
                os.write(1, errno.errorcode[e.errno].encode())
                os._exit(126)
        os.close(write)
        said = os.read(read, 100).decode().strip()
        return f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])} {said}"

    for caller in ("root", "user"):
        cell("run a program", caller, lambda: run(f"{tree}/program"))
        cell("run a program of other's with set-user-ID", caller, lambda: run(f"{tree}/suid"))
        cell("open a device", caller, lambda: os.close(os.open(f"{tree}/null", os.O_RDWR)))


def fill(path):
    """To the last block that this caller may have."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
    size, step = 0, 4 << 20
    while step >= 1024:
        try:
            os.posix_fallocate(fd, size, step)
            size += step
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            step //= 2
    return "full"


def mapped(path):
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 1 << 16)
    m = mmap.mmap(fd, 1 << 16)
    m[:] = b"m" * (1 << 16)
    m.flush()


def space(tree, what, callers, owner=None):
    """Each operation that takes space, where there is none for an ordinary user; on files of the
    owner's, or of each caller's own."""
    d = f"{tree}/space"
    source = f"{tree}/source"
    for i, caller in enumerate(callers):
        uid, gid = owner or CALLERS[caller][:2]
        f = lambda name: put(f"{d}/{name}{i}", uid=uid, gid=gid, content=b"")

        def copy(to=f("copy")):
            a, b = os.open(source, os.O_RDONLY), os.open(to, os.O_WRONLY)
            return f"{os.copy_file_range(a, b, 8192, 0, 0)} copied"

        def direct(to=f("direct")):
            fd = os.open(to, os.O_WRONLY | os.O_DIRECT)
            m = mmap.mmap(-1, 8192)
            return f"{os.write(fd, m)} written"

        to = f("write")
        cell(f"{what}, write", caller, lambda: write(to, 65536))
        to2 = f("sync")
        cell(f"{what}, write with O_SYNC", caller, lambda: write(to2, 65536, os.O_SYNC))
        to3 = f("allocate")
        cell(f"{what}, fallocate", caller, lambda: os.posix_fallocate(os.open(to3, os.O_WRONLY), 0, 65536))
        cell(f"{what}, copy_file_range", caller, copy)
        cell(f"{what}, write with O_DIRECT", caller, direct)
        to4 = f("hole")
        os.truncate(to4, 1 << 20)
        cell(f"{what}, write into a hole", caller, lambda: within(to4, 65536, 8192))
        to5 = f("xattr")
        cell(f"{what}, a large xattr", caller, lambda: os.setxattr(to5, "user.large", b"v" * 900))
        cell(f"{what}, mkdir", caller, lambda: os.mkdir(f"{d}/mkdir{i}"))
        cell(f"{what}, a long symlink", caller, lambda: os.symlink("t" * 500, f"{d}/symlink{i}"))
        print(f"{what}, what is there / {caller}:",
              *[os.path.getsize(f"{d}/{n}{i}") for n in ("write", "sync", "allocate", "copy", "direct")])


def reserve(tree):
    put(f"{tree}/source", content=b"s" * 8192)
    fresh(f"{tree}/space")
    cell("reserve, fill", "user", lambda: fill(f"{tree}/fill"))
    s = os.statvfs(tree)
    print("reserve, left for users:", "none" if s.f_bavail * s.f_frsize < 65536 else s.f_bavail)
    print("reserve, left for root:", "some" if s.f_bfree * s.f_frsize > 1 << 20 else "none")
    space(tree, "reserve", CALLERS)


def quota(tree):
    put(f"{tree}/source", content=b"s" * 8192)
    d = fresh(f"{tree}/quota")
    for kind in ("user", "group"):
        fresh(f"{tree}/space")
        caller = "user" if kind == "user" else "other of the group"
        cell(f"quota of the {kind}, fill", caller, lambda: fill(f"{d}/fill-{kind}"))
        size = os.path.getsize(f"{d}/fill-{kind}") >> 10
        print(f"quota of the {kind}, had: {'as much as allowed' if 3900 <= size <= 4096 else size}")
        users = [caller, "root", "root less sys_resource"] + (["user with sys_resource"] if kind == "user" else [])
        space(tree, f"quota of the {kind}", users, (USER, GROUP) if kind == "user" else (OTHER, GROUP))
        if kind == "user":
            to = put(f"{d}/large", uid=OTHER, content=b"l" * 100000)
            cell("quota, chown to the user", "root", lambda: os.chown(to, USER, -1))
            os.chown(to, OTHER, 3002)
            cell("quota, chown to the user", "root less sys_resource", lambda: os.chown(to, USER, -1))
        os.unlink(f"{d}/fill-{kind}")
        shutil.rmtree(f"{tree}/space")
        # A mount gives the space of removed files back when it has synced the tree.
        time.sleep(4)

    def many():
        made = 0
        try:
            for made in range(200):
                os.close(os.open(f"{d}/many-{made}", os.O_CREAT | os.O_WRONLY))
        except OSError as e:
            return f"{made} files, {errno.errorcode[e.errno]}"

    cell("quota, files", "user", many)
    cell("quota, mkdir", "user", lambda: os.mkdir(f"{d}/mkdir"))
    cell("quota, a device", "user", lambda: os.mkfifo(f"{d}/fifo"))
    cell("quota, a symlink", "user", lambda: os.symlink("s", f"{d}/symlink"))
    cell("quota, files", "root", lambda: put_own(f"{d}/of-root") and None)
    if os.path.isdir(f"{tree}/project"):
        cell("quota of the project, fill", "other", lambda: fill(f"{tree}/project/fill"))
        size = os.path.getsize(f"{tree}/project/fill") >> 10
        print(f"quota of the project, had: {'as much as allowed' if 1900 <= size <= 2048 else size}")
        cell("quota of the project, create", "other", lambda: put_own(f"{tree}/project/f") and write(f"{tree}/project/f", 9999))
        cell("quota of the project, write", "root", lambda: put(f"{tree}/project/r", content=b"r" * 9999) and None)


CALLERS["other of the group"] = (OTHER, GROUP, [], None)


def set_limits(device):
    """KiB and files that user, group and project may have."""
    SETQUOTA, BLOCKS, INODES = 0x800008, 1, 4
    for kind, who, blocks, inodes in ((0, USER, 4096, 120), (1, GROUP, 4096, 0), (2, 77, 2048, 0)):
        limits = struct.pack("QQQQQQQQI4x", blocks, 0, 0, inodes, 0, 0, 0, 0, BLOCKS | INODES)
        if libc.quotactl(SETQUOTA << 8 | kind, device.encode(), who, limits):
            raise OSError(ctypes.get_errno(), f"quotactl: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    os.umask(0)
    if sys.argv[1] == "--limits":
        sys.exit(set_limits(sys.argv[2]))
    for part in sys.argv[2:]:
        at = f"{sys.argv[1]}/{part}"
        if not os.path.isdir(at):
            fresh(at)
        {f.__name__: f for f in (names, modes, limits, xattrs, flags, reserve, quota)}[part](at)
