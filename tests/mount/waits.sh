#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: whatever waits for the tree's disk, and however many do, keeps nobody who asks for what is
# there without it.  That is names, attributes, bytes in the page cache, lists, `forebay status`,
# and the unmount of another tree of the same server.
# Method: waits.py has more than 200 operations wait, of each kind that may.  Those that change the
# tree wait on a file system that is frozen.  Those that read, and the syncs, wait on a disk that is
# stopped.  Meanwhile each kind that need not wait is to answer within a second.  Then the disk goes
# on, and all that waited end without an error.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
need python3 fsfreeze mkfs.ext4

# shellcheck disable=SC2034 # of volatile.sh
seed=1 bytes=$((512 << 20)) pool_size=512M
truncate -s $bytes "$work/platter"
start_disk ext4
tree=$work/disk/tree other=$work/other
mkdir "$tree" "$other"
python3 "$root/tests/mount/waits.py" prepare "$tree"
# After this the page cache has nothing of the disk.
umount "$work/disk"
mount "$loop" "$work/disk"
at_end 'fsfreeze -u "$work/disk" 2>/dev/null; [ -z "$disk" ] || kill -CONT "$disk"'

for how in freeze stop; do
	start_mount "$tree" --sync-interval 600s
	"$FOREBAY" mount "$pool" "$other" --log other >/dev/null
	at_end 'umount -l "$other" 2>/dev/null || true'
	case $how in
	freeze) stall="fsfreeze -f $work/disk" go_on="fsfreeze -u $work/disk" ;;
	stop) stall="kill -STOP $disk" go_on="kill -CONT $disk" ;;
	esac
	python3 "$root/tests/mount/waits.py" "$how" "$tree" "$other" "$stall" "$go_on" "$FOREBAY" "$pool" ||
		fail "$how: somebody was kept by those who wait"
	stop_mount
done

# Asynchronous writes of one program fill all that the server can hold.  They delay no
# reader.
start_mount "$tree" --sync-interval 600s
python3 - "$tree" "$work/disk" <<'P' || fail "asynchronous writes that wait keep readers"
import ctypes, mmap, os, struct, subprocess, sys, threading
tree, disk = sys.argv[1:]
COUNT, SIZE, SOON = 135, 1 << 20, 20
IO_SETUP, IO_SUBMIT, IO_GETEVENTS = {"x86_64": (206, 209, 208)}.get(os.uname().machine, (0, 2, 4))
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    done = libc.syscall(*args)
    if done < 0:
        raise OSError(ctypes.get_errno(), f"system call {args[0]}")
    return done
path = f"{tree}/asynchronous"
with open(path, "wb") as file:
    file.write(b"-" * (COUNT * SIZE))
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
os.fsync(fd)
page = mmap.mmap(-1, SIZE)
page[:] = b"A" * SIZE
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
context = ctypes.c_ulong(0)
call(IO_SETUP, 256, ctypes.byref(context))
def submit():
    for i in range(COUNT):
        # data, key, flags of this write, PWRITE, priority, descriptor, address, bytes, offset
        block = ctypes.create_string_buffer(struct.pack("QIIHhIQQqQII", i, 0, 0, 1, 0, fd, address, SIZE, i * SIZE, 0, 0, 0))
        call(IO_SUBMIT, context, 1, ctypes.byref(ctypes.c_void_p(ctypes.addressof(block))))
warm = os.open(f"{tree}/warm/2", os.O_RDONLY)
direct = os.open(f"{tree}/warm/1", os.O_RDONLY | os.O_DIRECT)
def again():
    os.posix_fadvise(warm, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(warm, 4096, 0) == b"D" * 4096
asked = {
    "a read": again,
    "a read past the kernel's cache": lambda: os.preadv(direct, [mmap.mmap(-1, 4096)], 0),
    "a name that is not there": lambda: os.path.exists(f"{tree}/warm/no-such-name"),
    "the space of the file system": lambda: os.statvfs(tree),
    "a list": lambda: os.listdir(f"{tree}/warm"),
}
for ask in asked.values():
    ask()
late = []
subprocess.run(["fsfreeze", "-f", disk], check=True)
try:
    submits = threading.Thread(target=submit, daemon=True)
    submits.start()
    submits.join(SOON)
    for what, ask in asked.items():
        reader = threading.Thread(target=ask, daemon=True)
        reader.start()
        reader.join(SOON)
        if reader.is_alive():
            late.append(what)
            break
finally:
    subprocess.run(["fsfreeze", "-u", disk], check=True)
submits.join()
events = ctypes.create_string_buffer(32 * COUNT)
done = call(IO_GETEVENTS, context, COUNT, COUNT, events, None)
written = [struct.unpack_from("QQqq", events.raw, 32 * i)[2] for i in range(done)]
assert written == [SIZE] * COUNT, written
assert not late, f"no answer within {SOON} s beside {COUNT} writes that wait: {late}"
print(f"{COUNT} asynchronous writes of 1 MiB wait, {len(asked)} kinds of answers come")
P
stop_mount
rm "$tree/asynchronous"

# The server holds large writes that wait, each as a whole, because the kernel's loop driver loses a
# short count.  Requests that need no disk are answered nevertheless.
start_mount "$tree" --sync-interval 600s
python3 - "$tree" "$server" "$work/disk" "$FOREBAY" "$pool" <<'P' || fail "writes that wait take the server's memory, or keep readers"
import os, subprocess, sys, threading, time
tree, server, disk, forebay, pool = sys.argv[1:]
COUNT, SIZE, MOST, SOON = 300, 1 << 20, 332 << 20, 20  # these, and what else a server takes
def anonymous():
    lines = open(f"/proc/{server}/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])
# The file's earlier bytes are in the kernel's cache, and a write begins within a page.
AT, OLD = 100, b"O" * 4096
content = lambda i: bytes([65 + i % 26]) * SIZE
files = [os.open(f"{tree}/large-{i}", os.O_RDWR | os.O_CREAT) for i in range(COUNT)]
for fd in files:
    os.pwrite(fd, OLD * (SIZE // 4096 + 1), 0)
    os.pread(fd, SIZE + 4096, 0)
before, counts = anonymous(), []
def write(fd, bytes):
    told, at = [], 0
    while at < SIZE:
        told.append(os.pwrite(fd, bytes[at:], AT + at))
        at += told[-1]
    counts.append(told)
warm = os.open(f"{tree}/warm/2", os.O_RDONLY)
def again():
    os.posix_fadvise(warm, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(warm, 4096, 0) == b"D" * 4096
asked = {
    "a read": again,
    "a name that is not there": lambda: os.path.exists(f"{tree}/warm/no-such-name"),
    "attributes": lambda: os.stat(f"{tree}/warm/0"),
    "the space of the file system": lambda: os.statvfs(tree),
    "a list": lambda: os.listdir(f"{tree}/warm"),
    "forebay status": lambda: subprocess.run([forebay, "status", pool], check=True, stdout=subprocess.DEVNULL),
}
for ask in asked.values():
    ask()
threads = [threading.Thread(target=write, args=(fd, content(i))) for i, fd in enumerate(files)]
late = []
subprocess.run(["fsfreeze", "-f", disk], check=True)
try:
    for thread in threads:
        thread.start()
    most, last = 0, time.monotonic()
    # Waits until the server takes no more.
    while time.monotonic() - last < 2:
        if anonymous() > most + (1 << 20):
            most, last = anonymous(), time.monotonic()
        time.sleep(0.05)
    for what, ask in asked.items():
        reader = threading.Thread(target=ask, daemon=True)
        reader.start()
        reader.join(SOON)
        if reader.is_alive():
            late.append(what)
            break
finally:
    subprocess.run(["fsfreeze", "-u", disk], check=True)
for thread in threads:
    thread.join()
assert not late, f"no answer within {SOON} s beside {COUNT} writes that wait: {late}"
assert len(counts) == COUNT, f"{len(counts)} of {COUNT} are written"
assert all(told == [SIZE] for told in counts), counts
for i, fd in enumerate(files):
    wanted = OLD[:AT] + content(i) + OLD[AT:]
    assert os.pread(fd, SIZE + 4096, 0) == wanted, f"large-{i} is not what was written"
print(f"{COUNT} MiB of writes wait, {most - before >> 20} MiB of them in the server; "
      f"{len(asked)} kinds of answers come")
assert most - before < MOST, f"{most - before} bytes are held"
P
stop_mount

# What follows needs room on the disk.
rm -rf "$tree"

# A user's leases of files of his own, taken next to the mount, hold up who changes or reads those
# files.  They hold up nobody else, however many there are, and however full the log is.
saved=$pool pool=$shm/small.pool
"$FOREBAY" create "$pool" --size 32M >/dev/null
mkdir "$work/disk/leased" "$work/at"
chmod 777 "$work/disk/leased"
chmod 755 "$work"
start_mount "$work/disk/leased" "$work/at"
mounted=$work/at
python3 - "$work/disk/leased" "$work/at" <<'P' || fail "a lease of one user holds up another"
import fcntl, os, signal, sys, threading, time
tree, at = sys.argv[1:]
MANY = 300  # helpers of a kind: 256
LIMIT = 20  # fs.lease-break-time is 45 s
def as_nobody(act):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            act()
        finally:
            os._exit(0)
    return pid
told, tell = os.pipe()
def lease():
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    names = ["own", "renamed", "linked", "moded"]
    for name in names + [f"read{n}" for n in range(MANY)] + [f"written{n}" for n in range(MANY)]:
        own = os.open(f"{tree}/{name}", os.O_CREAT | os.O_RDWR, 0o600)
        os.write(own, b"x" * 100)
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    os.write(tell, b"x")
    time.sleep(300)
def read(name):
    try:
        with open(f"{at}/{name}", "rb") as file:
            file.read()
    except OSError:
        pass  # too many wait
def write(name):
    try:
        with open(f"{at}/{name}", "r+b") as file:
            file.write(b"y")
    except OSError:
        pass
def many():
    threads = [threading.Thread(target=read, args=(name,)) for name in ("renamed", "linked")]
    for n in range(MANY):
        threads.append(threading.Thread(target=read, args=(f"read{n}",)))
        threads.append(threading.Thread(target=write, args=(f"written{n}",)))
    os.chmod(f"{at}/moded", 0o640)
    threads.append(threading.Thread(target=read, args=("moded",)))
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    os.rename(f"{at}/renamed", f"{at}/renamed-now")
    os.link(f"{at}/linked", f"{at}/linked-now")
    os.write(tell, b"l")
    time.sleep(300)
children = [as_nobody(lease)]
try:
    assert os.read(told, 1) == b"x"
    children.append(as_nobody(lambda: os.truncate(f"{at}/own", 10)))
    children.append(as_nobody(many))
    assert os.read(told, 1) == b"l", "the names were not changed"
    time.sleep(0.5)
    most = 0
    with open(f"{at}/of-root", "wb") as file:
        for i in range(1500):
            begun = time.monotonic()
            file.write(bytes([i % 251]) * (64 << 10))
            file.flush()
            os.fsync(file)
            if i % 100 == 0:
                os.listdir(at)
            most = max(most, time.monotonic() - begun)
            if i == 10:
                waiting = os.waitpid(children[1], os.WNOHANG) == (0, 0)
            if most > LIMIT:
                break
finally:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
assert waiting, "the lease held up nobody"
print(f"{i + 1} syncs next to a change that waits for a lease, {most:.2f} s at most")
assert most <= LIMIT
P
stop_mount

# With --write-back the kernel's own writes wait, too.  Those of one user that wait refuse none of
# another, and who is refused is told by his next fsync.
start_mount "$work/disk/leased" "$work/at" --write-back
mounted=$work/at
python3 - "$work/disk/leased" "$work/at" <<'P' || fail "a write-back of one user is refused for another's"
import errno, fcntl, os, select, signal, sys, threading, time, traceback
tree, at = sys.argv[1:]
MANY = 100
def as_user(uid, act):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid
told, tell = os.pipe()
def hear(n):
    assert select.select([told], [], [], 100)[0], "a process that holds leases or writes says nothing"
    return os.read(told, n)
def lease(names, seconds):
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = []
    for name in names:
        own = os.open(f"{tree}/{name}", os.O_CREAT | os.O_RDWR, 0o600)
        os.write(own, b"x" * 100)
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        held.append(own)
    os.write(tell, b"x")
    while fcntl.fcntl(held[0], fcntl.F_GETLEASE) == fcntl.F_WRLCK:
        time.sleep(0.01)
    time.sleep(seconds)  # one of them is asked for
    for own in held:
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    time.sleep(300)
answers = []
def write(name):
    step = "open"
    try:
        file = os.open(f"{at}/{name}", os.O_RDWR)
        step = "write"
        os.pwrite(file, b"y" * 4096, 0)  # of a whole page nothing is read
        step = "fsync"
        os.fsync(file)
        answers.append(0)
    except OSError as e:
        answers.append(f"{step}: {os.strerror(e.errno)}")
def many():
    threads = [threading.Thread(target=write, args=(f"back{n}",)) for n in range(MANY)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    os.write(tell, bytes([len(answers), answers.count(0)]))
    time.sleep(300)
def one():
    write("other")
    if answers != [0]:
        print(f"another user's fsync: {answers}", flush=True)
        os._exit(1)
children = [as_user(65534, lambda: lease([f"back{n}" for n in range(MANY)], 300))]
children.append(as_user(65533, lambda: lease(["other"], 3)))
try:
    assert hear(1) + hear(1) == b"xx"
    children.append(as_user(65534, many))
    refused, acknowledged = hear(2)
    other = as_user(65533, one)
    code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
finally:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
print(f"of {MANY} fsyncs of one user {refused} were refused at once; another's waits for his own lease")
assert code == 0
assert acknowledged == 0, "an fsync of what the tree did not take"
assert refused >= MANY - 40, "nobody is refused: nothing was tested"
with open(f"{tree}/other", "rb") as file:
    assert file.read(10) == b"y" * 10, "acknowledged, and not in the tree"
P
stop_mount
rm "$pool"
pool=$saved
