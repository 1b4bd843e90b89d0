# SPDX-License-Identifier: MIT OR Apache-2.0
"""See waits.sh.

    waits.py prepare TREE
    waits.py freeze|stop MOUNT OTHER STALL GO_ON FOREBAY POOL
"""
import ctypes, os, subprocess, sys, threading, time

EACH = 14  # operations of each kind that changes the tree
COLD = 70  # for each kind that reads; and syncs
SOON, TRIES = 1.0, 6
LONG = "x" * 200  # a directory of such names has several blocks


def fill(root):
    def file(path, n):
        with open(path, "wb") as f:
            f.write(b"D" * n)
    for kind in ["mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "replace"]:
        for i in range(EACH):
            os.makedirs(f"{root}/{kind}/{i}")
            file(f"{root}/{kind}/{i}/old", 10)
            file(f"{root}/{kind}/{i}/over", 10)
            os.mkdir(f"{root}/{kind}/{i}/dir")
    for kind in ["chmod", "chown", "utime", "truncate", "write", "append", "direct", "osync", "fallocate",
                 "punch", "copy", "setxattr", "removexattr"]:
        os.mkdir(f"{root}/{kind}")
        for i in range(EACH):
            file(f"{root}/{kind}/{i}", 8192)
            os.setxattr(f"{root}/{kind}/{i}", "user.there", b"v")
    os.mkdir(f"{root}/read")
    os.mkdir(f"{root}/sync")
    for i in range(COLD):
        file(f"{root}/read/{i}", 65536)
        file(f"{root}/sync/{i}", 10)
        for kind in ["list", "lookup"]:
            os.makedirs(f"{root}/{kind}/{i}")
            for name in range(60):
                file(f"{root}/{kind}/{i}/{name}{LONG}", 0)
    os.mkdir(f"{root}/warm")
    for i in range(8):
        file(f"{root}/warm/{i}", 4096)
    os.symlink("target", f"{root}/warm/symlink")
    os.setxattr(f"{root}/warm/0", "user.there", b"v")


def changes(root):
    """Name, and the operation i of the kind."""
    def opened(kind, i, flags=os.O_RDWR):
        return os.open(f"{root}/{kind}/{i}", flags)
    at = lambda kind, i, name: f"{root}/{kind}/{i}/{name}"
    keep = [opened(kind, i) for kind in ["truncate", "write", "append", "fallocate", "punch", "copy"]
            for i in range(EACH)]
    fd = {kind: keep[n * EACH:(n + 1) * EACH]
          for n, kind in enumerate(["truncate", "write", "append", "fallocate", "punch", "copy"])}
    fd["direct"] = [opened("direct", i, os.O_RDWR | os.O_DIRECT) for i in range(EACH)]
    fd["osync"] = [opened("osync", i, os.O_RDWR | os.O_SYNC) for i in range(EACH)]
    libc = ctypes.CDLL(None, use_errno=True)

    def punch(i):
        offset, length = ctypes.c_long(0), ctypes.c_long(4096)
        if libc.fallocate(fd["punch"][i], 3, offset, length):
            raise OSError(ctypes.get_errno(), "fallocate")
    return {
        "mknod": lambda i: os.close(os.open(at("mknod", i, "new"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        "mkdir": lambda i: os.mkdir(at("mkdir", i, "new")),
        "symlink": lambda i: os.symlink("target", at("symlink", i, "new")),
        "link": lambda i: os.link(at("link", i, "old"), at("link", i, "new")),
        "unlink": lambda i: os.unlink(at("unlink", i, "old")),
        "rmdir": lambda i: os.rmdir(at("rmdir", i, "dir")),
        "rename": lambda i: os.rename(at("rename", i, "old"), at("rename", i, "new")),
        "replace": lambda i: os.rename(at("replace", i, "old"), at("replace", i, "over")),
        "chmod": lambda i: os.chmod(f"{root}/chmod/{i}", 0o600),
        "chown": lambda i: os.chown(f"{root}/chown/{i}", 1, 1),
        "utime": lambda i: os.utime(f"{root}/utime/{i}", (1, 1)),
        "truncate": lambda i: os.truncate(fd["truncate"][i], 100),
        "write": lambda i: os.pwrite(fd["write"][i], b"W" * 4096, 0),
        "append": lambda i: os.pwrite(fd["append"][i], b"W" * 70000, 8192),
        "direct": lambda i: os.pwrite(fd["direct"][i], b"W" * 4096, 0),
        "osync": lambda i: os.pwrite(fd["osync"][i], b"W" * 4096, 0),
        "fallocate": lambda i: os.posix_fallocate(fd["fallocate"][i], 0, 100000),
        "punch": punch,
        "copy": lambda i: os.copy_file_range(fd["copy"][i], fd["copy"][(i + 1) % EACH], 4096, 0, 4096),
        "setxattr": lambda i: os.setxattr(f"{root}/setxattr/{i}", "user.new", b"v"),
        "removexattr": lambda i: os.removexattr(f"{root}/removexattr/{i}", "user.there"),
    }


def reads(root):
    files = [os.open(f"{root}/read/{i}", os.O_RDONLY) for i in range(COLD)]
    synced = [os.open(f"{root}/sync/{i}", os.O_RDWR) for i in range(COLD)]
    for i, fd in enumerate(synced):
        # The write is more than a log takes of one sync, or less than a part of that.
        os.pwrite(fd, b"S" * (1200 << 10 if i % 2 else 100), 0)
    lists = [os.open(f"{root}/list/{i}", os.O_RDONLY) for i in range(COLD)]
    for i in range(COLD):
        os.stat(f"{root}/lookup/{i}")

    def lookup(i):
        for name in range(60):
            os.stat(f"{root}/lookup/{i}/{name}{LONG}")
    return {
        "read": lambda i: os.pread(files[i], 4096, 32768),
        "list": lambda i: os.listdir(lists[i]),
        "lookup": lookup,
        "sync": lambda i: os.fsync(synced[2 * (i // 2) + 1]),
    }


def answers(root, other, forebay, pool):
    libc = ctypes.CDLL(None, use_errno=True)
    direct = os.open(f"{root}/warm/1", os.O_RDONLY | os.O_DIRECT)
    plain = os.open(f"{root}/warm/2", os.O_RDONLY)

    def asked_for_attributes():
        AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, BASIC = 0x1000, 0x2000, 0x7ff
        if libc.statx(plain, b"", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, BASIC, ctypes.create_string_buffer(256)):
            raise OSError(ctypes.get_errno(), "statx")

    def status():
        said = subprocess.run([forebay, "status", pool], capture_output=True, text=True)
        assert root in said.stdout and other in said.stdout, (said.stdout, said.stderr)

    def read_again():
        os.posix_fadvise(plain, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(plain, 4096, 0) == b"D" * 4096

    def absent():
        assert not os.path.exists(f"{root}/warm/absent{time.monotonic_ns()}")
    def in_other():
        with open(f"{other}/f{time.monotonic_ns()}", "w") as f:
            f.write("x")
            f.flush()
            os.fsync(f.fileno())
    return {
        "a read past the kernel's cache": lambda: os.pread(direct, 4096, 0),
        "a read": read_again,
        "attributes": asked_for_attributes,
        "an open by name": lambda: os.close(os.open(f"{root}/warm/3", os.O_RDONLY)),
        "a name that is not there": absent,
        "a list": lambda: os.listdir(f"{root}/warm"),
        "the target of a symlink": lambda: os.readlink(f"{root}/warm/symlink"),
        "extended attributes": lambda: (os.getxattr(f"{root}/warm/0", "user.there"),
                                        os.listxattr(f"{root}/warm/0")),
        "the space of the file system": lambda: os.statvfs(f"{root}/warm"),
        "data by lseek": lambda: os.lseek(plain, 0, os.SEEK_DATA),
        "forebay status": status,
        "a write and a sync in another tree": in_other,
    }


class Try(threading.Thread):
    def __init__(self, do):
        super().__init__(daemon=True)
        self.do, self.error, self.took = do, None, None

    def run(self):
        began = time.monotonic()
        try:
            self.do()
        except Exception as e:
            self.error = e
        self.took = time.monotonic() - began


def ask(what, do):
    """How long it took: the shortest of some."""
    best = None
    for _ in range(TRIES):
        attempt = Try(do)
        attempt.start()
        attempt.join(15)
        if attempt.took is None:
            continue
        if attempt.error:
            print(f"{what}: {attempt.error!r}")
            return None
        best = min(best or attempt.took, attempt.took)
        if best <= SOON:
            return best
    print(f"{what}: {'no answer' if best is None else f'{best:.1f} s'}")
    return None


def main():
    what, root = sys.argv[1:3]
    if what == "prepare":
        fill(root)
        return 0
    other, stall, go_on, forebay, pool = sys.argv[3:]
    kinds = changes(root) if what == "freeze" else reads(root)
    each = EACH if what == "freeze" else COLD
    probes = answers(root, other, forebay, pool)
    for probe in probes.values():
        probe()
    subprocess.run(stall.split(), check=True)
    bad, waiting = False, []
    try:
        # The kinds take turns, so that the first operations are of many kinds.
        for i in range(each):
            for kind, do in kinds.items():
                waits = Try(lambda do=do, i=i: do(i))
                waits.kind = kind
                waits.start()
                waiting.append(waits)
        time.sleep(1)
        still = {kind: sum(w.took is None for w in waiting if w.kind == kind) for kind in kinds}
        print(what, "waiting:", sum(still.values()), still)
        if min(still.values()) == 0 or sum(still.values()) < 200:
            print("too few wait")
            bad = True
        took = {probe: ask(probe, do) for probe, do in probes.items()}
        bad |= None in took.values()
        if not bad:
            slow = max(took, key=took.get)
            print(f"the slowest answer: {slow}, {took[slow] * 1000:.0f} ms")
            began = time.monotonic()
            subprocess.run([forebay, "umount", other], check=True, stdout=subprocess.DEVNULL, timeout=60)
            print(f"another tree was unmounted in {time.monotonic() - began:.2f} s")
            bad |= time.monotonic() - began > 20
    finally:
        subprocess.run(go_on.split(), check=True)
    if bad:
        os._exit(1)
    for w in waiting:
        w.join(60)
        if w.took is None or w.error:
            print(f"{w.kind}: {w.error!r}" if w.took else f"{w.kind}: never ended")
            bad = True
    return bad


sys.exit(main())
