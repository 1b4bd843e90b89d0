#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A FUSE file system with one empty file, whose attributes the kernel asks for each time:
silent.py DIRECTORY [SUBTYPE].  While it is stopped, it is like one whose server does not answer.
With a subtype it reads each request for its free space and never answers it.  Needs root."""

import ctypes
import errno
import os
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, STATFS, INIT, OPENDIR, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 17, 26, 27, 36, 42
FILE = 2


def attributes(node):
    mode = 0o100666 if node == FILE else 0o40755
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(what, node, body):
    """An errno, and the bytes of the answer."""
    if what == INIT:
        _, minor, readahead, _ = struct.unpack_from("<4I", body)
        return 0, struct.pack("<4I2H2I2H8I", 7, min(minor, 31), readahead, 0, 0, 0, 65536, 1, 1, 0, *[0] * 8)
    if what == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return errno.ENOENT, b""
        return 0, struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
    if what == GETATTR:
        return 0, struct.pack("<Q2I", 0, 0, 0) + attributes(node)
    if what in (OPEN, OPENDIR):
        return 0, struct.pack("<Q2I", 0, 0, 0)
    return errno.ENOSYS, b""


fuse = os.open("/dev/fuse", os.O_RDWR)
subtype = os.fsencode(sys.argv[2]) if len(sys.argv) > 2 else b"silent"
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"silent", os.fsencode(sys.argv[1]), b"fuse." + subtype, 6, options) != 0:
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
    if what in (FORGET, BATCH_FORGET, INTERRUPT) or (what == STATFS and len(sys.argv) > 2):
        continue
    failed, said = answer(what, node, request[40:])
    try:
        os.write(fuse, struct.pack("<IiQ", 16 + len(said), -failed, unique) + said)
    except FileNotFoundError:
        pass # the request was interrupted
