# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies of files that programs have open and have not synced.

    copies.py DIRECTORY ELSEWHERE [plain]

Makes files in DIRECTORY whose last bytes nobody has synced (stored through a mapping, or
written), and copies each by a tool that looks for holes or for allocated blocks, with the file
still open. A copy that is not byte for byte what the program sees is printed. Exit code 1: there
was one.
"""

import fcntl
import mmap
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys

PAGE = 4096
SIZE = 1 << 20
PLAIN = sys.argv[3:] == ["plain"]


class File:
    """An open file, and what it has to be."""

    def __init__(self, path, size, data=()):
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(self.fd, size)
        self.bytes = bytearray(size)
        self.map = None
        for at, length in data:
            self.write(at, length)
        if data:
            os.fsync(self.fd)

    def pattern(self, length):
        return bytes((i * 7 + len(self.path)) % 255 + 1 for i in range(length))

    def write(self, at, length):
        new = self.pattern(length)
        assert os.pwrite(self.fd, new, at) == length
        if len(self.bytes) < at + length:
            self.bytes.extend(bytes(at + length - len(self.bytes)))
        self.bytes[at : at + length] = new

    def store(self, at, length):
        if self.map is None:
            self.map = mmap.mmap(self.fd, len(self.bytes))
        new = self.pattern(length)
        self.map[at : at + length] = new
        self.bytes[at : at + length] = new

    def close(self):
        if self.map is not None:
            self.map.close()
        os.close(self.fd)


def stored_in_a_hole(f):
    f.store(5 * PAGE, 100)


def stored_in_each_hole(f):
    for page in range(1, SIZE // PAGE, 3):
        f.store(page * PAGE + 17, 1)


def stored_at_the_end(f):
    f.store(SIZE - 10, 10)


def written_in_a_hole(f):
    f.write(40 * PAGE, 3 * PAGE)


def written_at_the_end(f):
    f.write(SIZE, 100)


def written_far_behind(f):
    f.write(SIZE + 64 * PAGE, PAGE)


def written_and_stored(f):
    f.write(10 * PAGE, PAGE)
    f.store(30 * PAGE, PAGE)


DATA = [(0, PAGE), (64 * PAGE, 2 * PAGE)]
KINDS = [
    (how, name, size, data)
    for name, size, data in (("sparse", SIZE, DATA), ("hole", SIZE, ()))
    for how in (
        stored_in_a_hole,
        stored_in_each_hole,
        stored_at_the_end,
        written_in_a_hole,
        written_at_the_end,
        written_far_behind,
        written_and_stored,
    )
] + [(lambda f: f.write(0, SIZE), "new", 0, ())]


def run(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)


def tar(path, to):
    archive = to + ".tar"
    directory, name = os.path.split(path)
    # A mount changes a file's times when the kernel writes stores back; tar says so, by exit code 1.
    code = subprocess.run(("tar", "-C", directory, "-cSf", archive, name), stderr=subprocess.DEVNULL).returncode
    if code not in (0, 1):
        raise SystemExit(f"copies.py: tar ended with code {code}")
    os.mkdir(to + ".d")
    run("tar", "-C", to + ".d", "-xSf", archive)
    os.rename(os.path.join(to + ".d", name), to)
    os.rmdir(to + ".d")
    os.unlink(archive)


def seeks(path, to):
    """As programs do that look for data and holes by themselves."""
    source = os.open(path, os.O_RDONLY)
    with open(to, "wb") as copy:
        at = 0
        while True:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(source, at, os.SEEK_HOLE)
            copy.seek(at)
            copy.write(os.pread(source, end - at, at))
            at = end
        copy.truncate(os.fstat(source).st_size)
    os.close(source)


def holes(path, to):
    """By SEEK_HOLE alone: data is what lies before the hole that was found."""
    source = os.open(path, os.O_RDONLY)
    size = os.fstat(source).st_size
    with open(to, "wb") as copy:
        for at in range(0, size, PAGE):
            try:
                hole = os.lseek(source, at, os.SEEK_HOLE)
            except OSError:
                hole = at
            if hole != at:
                copy.seek(at)
                copy.write(os.pread(source, min(PAGE, size - at), at))
        copy.truncate(size)
    os.close(source)


def blocks(path, to):
    """A file without blocks has no data."""
    st = os.stat(path)
    if st.st_blocks:
        shutil.copyfile(path, to)
    else:
        with open(to, "wb") as copy:
            copy.truncate(st.st_size)


def extents(path, to):
    """FIEMAP has to be refused: the kernel gives the server no chance to answer it."""
    request = bytearray(struct.pack("QQIIII", 0, 1 << 63, 0, 1, 0, 0) + bytes(56))
    with open(path, "rb") as source:
        try:
            fcntl.ioctl(source, 0xC020660B, request)
        except OSError:
            return shutil.copyfile(path, to)
    if PLAIN:
        return shutil.copyfile(path, to)
    raise SystemExit("copies.py: FIEMAP is answered, and nothing here looks at what it says")


def ranges(path, to):
    """copy_file_range within the directory."""
    copy = path + ".copy"
    source, target = os.open(path, os.O_RDONLY), os.open(copy, os.O_RDWR | os.O_CREAT, 0o600)
    left = os.fstat(source).st_size
    while left:
        left -= os.copy_file_range(source, target, left)
    os.close(source)
    os.close(target)
    shutil.copyfile(copy, to)
    os.unlink(copy)


def direct(path, to):
    """Past the page cache."""
    source = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, 2 * SIZE)
    length = os.preadv(source, [room], 0)
    os.close(source)
    with open(to, "wb") as copy:
        copy.write(room[:length])


def tools():
    of_command = {
        "cp": ("cp", "{}", "{to}"),
        "cp --sparse=always": ("cp", "--sparse=always", "{}", "{to}"),
        "cp --sparse=never": ("cp", "--sparse=never", "{}", "{to}"),
        "dd conv=sparse": ("dd", "bs=4k", "conv=sparse", "status=none", "if={}", "of={to}"),
        "qemu-img convert": ("qemu-img", "convert", "-U", "-f", "raw", "-O", "raw", "{}", "{to}"),
        "rsync -S": ("rsync", "-S", "{}", "{to}"),
    }
    for name, words in of_command.items():
        yield name, lambda path, to, words=words: run(*(w.format(path, to=to) for w in words))
    yield "tar -S", tar
    for function in (seeks, holes, blocks, extents, ranges, direct):
        yield function.__name__, function


def same(copy, wanted):
    # qemu-img rounds a size up to sectors.
    with open(copy, "rb") as file:
        there = file.read()
    return there[: len(wanted)] == wanted and not any(there[len(wanted) :])


def hold(orders, path):
    """A process of its own: a copier that inherits the descriptor closes it, and a close writes back."""
    for number in iter(orders.recv, None):
        how, _, size, data = KINDS[number]
        f = File(path, size, data)
        os.stat(path)
        how(f)
        orders.send(bytes(f.bytes))
        orders.recv()
        f.close()
        orders.send(None)


def main(directory, elsewhere):
    cells, wrong = 0, 0
    path, copy = os.path.join(directory, "file"), os.path.join(elsewhere, "copy")
    orders, of_holder = multiprocessing.Pipe()
    holder = multiprocessing.Process(target=hold, args=(of_holder, path), daemon=True)
    holder.start()
    for tool, copier in tools():
        for number, (how, state, _, _) in enumerate(KINDS):
            orders.send(number)
            wanted = orders.recv()
            copier(path, copy)
            cells += 1
            if not same(copy, wanted):
                wrong += 1
                print(f"  {tool}: {state}, {how.__name__.replace('_', ' ')}: the copy differs")
            orders.send(None)
            orders.recv()
            os.unlink(path)
            os.unlink(copy)
    orders.send(None)
    holder.join()
    print(f"copies.py: {cells} copies of open files, {wrong} of them wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    sys.exit(main(sys.argv[1], sys.argv[2]))
