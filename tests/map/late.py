#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A FUSE file system with one file of 4 MiB, full of X, that is slow: late.py DIRECTORY.  It answers
a read after a fifth of a second, and takes no other request meanwhile.  Needs root."""

import ctypes
import errno
import os
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, OPEN, READ, WRITE, FLUSH, INIT, OPENDIR = 1, 2, 3, 14, 15, 16, 25, 26, 27
RELEASE, INTERRUPT, BATCH_FORGET = 18, 36, 42
FILE, SIZE, MOST = 2, 4 << 20, 128 << 10
ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1, 1 << 5, 1 << 15, 1 << 22
content = bytearray(b"X" * SIZE)


def attributes(node):
    mode, size = (0o100666, SIZE) if node == FILE else (0o40755, 0)
    return struct.pack("<6Q10I", node, size, size >> 9, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(what, node, body):
    """An errno, and the bytes of the answer."""
    if what == INIT:
        _, minor, readahead, _ = struct.unpack_from("<4I", body)
        flags = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES
        said = [7, min(minor, 31), readahead, flags, 0, 0, MOST, 1, MOST >> 12, 0]
        return 0, struct.pack("<4I2H2I2H8I", *said, *[0] * 8)
    if what == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return errno.ENOENT, b""
        return 0, struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
    if what == GETATTR:
        return 0, struct.pack("<Q2I", 0, 0, 0) + attributes(node)
    if what in (OPEN, OPENDIR):
        return 0, struct.pack("<Q2I", 0, 0, 0)
    if what == READ:
        at, n = struct.unpack_from("<8xQI", body)
        time.sleep(0.2)
        return 0, bytes(content[at:at + n])
    if what == WRITE:
        at, n = struct.unpack_from("<8xQI", body)
        content[at:at + n] = body[40:40 + n]
        return 0, struct.pack("<2I", n, 0)
    if what in (FLUSH, RELEASE):
        return 0, b""
    return errno.ENOSYS, b""


fuse = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"late", os.fsencode(sys.argv[1]), b"fuse.late", 6, options) != 0:
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
print("mounted", flush=True)
while True:
    try:
        request = os.read(fuse, 1 << 20)
    except OSError as e:
        if e.errno == errno.ENODEV:
            sys.exit(0)
        if e.errno in (errno.EINTR, errno.ENOENT):
            continue
        raise
    what, unique, node = struct.unpack_from("<4xIQQ", request)
    if what in (FORGET, BATCH_FORGET, INTERRUPT):
        continue
    failed, said = answer(what, node, request[40:])
    try:
        os.write(fuse, struct.pack("<IiQ", 16 + len(said), -failed, unique) + said)
    except FileNotFoundError:
        pass # the request was interrupted
