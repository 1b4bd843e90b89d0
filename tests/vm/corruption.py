#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""
Damage to the media of dm-writecache and of Forebay, side by side; runs in the guest.

Goal: damage is detected, or harmless; nothing is ever wrong without a word.
Method: 16 blocks are written and acknowledged, and stay in the cache; the media
is damaged while nothing has it; then the table is loaded as before, the 16
blocks are read, everything is drained, and the origin is compared, the 240
blocks of it that nobody wrote to as well.  Both are met closed, and as a power
cut leaves them: with the content that the media had while they were in use.

usage: corruption.py MEDIA DISK FOREBAY
"""

import json
import mmap
import os
import random
import re
import struct
import subprocess
import sys
import time

BLOCK = 4096
BLOCKS = 256
MINE = [16 * i + 3 for i in range(16)]  # the blocks written
GUARD = 64  # blocks before and after the origin


def run(*args):
    return subprocess.run(args, capture_output=True, text=True)


def must(*args):
    done = run(*args)
    if done.returncode:
        sys.exit(f"FAIL: {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


# --- blocks --------------------------------------------------------------------------

buffer = mmap.mmap(-1, BLOCK)


def pattern(block, age):
    text = b"%s data of block %4d.\n" % (age, block)
    return (text * (BLOCK // len(text) + 1))[:BLOCK]


def write_block(fd, block, data):
    buffer[:] = data
    os.pwritev(fd, [buffer], block * BLOCK)


def read_block(fd, block):
    """The block, or None on an error."""
    try:
        os.preadv(fd, [buffer], block * BLOCK)
    except OSError:
        return None
    return bytes(buffer)


def direct(path):
    return os.open(path, os.O_RDWR | os.O_DIRECT)


class Media:
    """What lies on the cache device."""

    def __init__(self, path):
        self.path = path

    def load(self, size):
        with open(self.path, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            parts = bytearray()
            while len(parts) < size:
                parts += f.read(size - len(parts))
        return parts

    def snapshot(self, size):
        """As it is now, past the page cache."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        whole = mmap.mmap(-1, size)
        os.preadv(fd, [whole], 0)
        os.close(fd)
        return bytearray(whole)

    def store(self, image):
        fd = direct(self.path)
        whole = mmap.mmap(-1, len(image))
        whole[:] = bytes(image)
        os.pwritev(fd, [whole], 0)
        os.close(fd)


# --- the two ---------------------------------------------------------------------------

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def crc32c(crc, data):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Writecache:
    """struct wc_memory_superblock and wc_memory_entry of drivers/md/dm-writecache.c"""

    name = "dm-writecache"

    def __init__(self, media, origin, sectors, _forebay):
        self.media, self.origin, self.sectors = media, origin, sectors

    def make(self):
        must("dd", "if=/dev/zero", f"of={self.media.path}", "bs=64k", "count=1", "oflag=direct", "status=none")

    def attach(self, device, consent=False):
        # Nothing is written back unless it is requested.
        table = f"0 {self.sectors} writecache p {self.origin} {self.media.path} {BLOCK} 4 high_watermark 95 low_watermark 90"
        return None if consent else create(device, table)

    def places(self, image):
        """Of each block: its data, its metadata."""
        magic, _version, size, _pad, blocks = struct.unpack_from("<IIIIQ", image, 0)
        if magic != 0x23489321 or size != BLOCK:
            sys.exit("FAIL: that is not dm-writecache's superblock")
        data = (64 + 16 * blocks + BLOCK - 1) // BLOCK * BLOCK
        found = {}
        for i in range(blocks):
            sector, seq = struct.unpack_from("<QQ", image, 64 + 16 * i)
            if sector < 2**63 and seq < 2**63 and sector // 8 in MINE:
                found[sector // 8] = (data + i * BLOCK, 64 + 16 * i)
        return found

    # Bytes of the superblock, of its copies, and of the fields of an entry.
    superblock, superblocks, record = (0, 32), [(0, 32)], None
    block_field, seq_field, entry_bytes = (0, 8), (8, 8), 16
    block_unit = 8

    def sum_entry(self, image, at):
        pass


class Forebay:
    """core/format/format.h"""

    name = "Forebay"

    def __init__(self, media, origin, sectors, forebay):
        self.media, self.origin, self.sectors, self.forebay = media, origin, sectors, forebay

    def make(self):
        must(self.forebay, "create", "--force", "--volumes", "4", self.media.path)

    def attach(self, device, consent=False):
        options = "origin_id c create high_watermark 95 low_watermark 90" + (" holes isolate" if consent else "")
        table = f"0 {self.sectors} forebay {self.origin} {self.media.path} v {len(options.split())} {options}"
        return create(device, table)

    def places(self, image):
        data, size, chunks = struct.unpack_from("<QII", image, 72)
        found, newest = {}, {}
        for chunk in range(chunks):
            for page in range(8, size // BLOCK):
                at = data + chunk * size + page * 64
                seq, block = struct.unpack_from("<QQ", image, at)
                kind = image[at + 43]
                if kind == 1 and block in MINE and seq > newest.get(block, 0):
                    newest[block] = seq
                    found[block] = (data + chunk * size + page * BLOCK, at)
        return found

    superblock, superblocks, record = (0, 512), [(0, 512), (4096, 512)], (8192, 256)
    block_field, seq_field, entry_bytes = (8, 8), (0, 8), 64
    block_unit = 1

    def sum_entry(self, image, at):
        seed = crc32c(0, image[40:56])
        struct.pack_into("<I", image, at + 60, crc32c(seed, image[at : at + 60]))


def create(device, table):
    """Loads a table; None, or what the kernel says against it."""
    run("dmesg", "-C")
    done = run("dmsetup", "create", "--noudevsync", "--noudevrules", device, "--table", table)
    if done.returncode == 0:
        must("dmsetup", "mknodes", device)
        return None
    said = run("dmesg").stdout
    why = re.search(r"forebay: volume \w+: (.*)", said) or re.search(r"table: \S+ (?:forebay|writecache): (.*)", said)
    return why.group(1) if why else done.stderr.strip()


def remove(device):
    run("dmsetup", "remove", "--noudevsync", "--retry", device)


# --- damage ------------------------------------------------------------------------------

rng = random.Random(4)


def flip(image, at, length):
    bit = rng.randrange(8 * length)
    image[at + bit // 8] ^= 1 << bit % 8


def zero(image, at, length):
    image[at : at + length] = bytes(length)


def some_entry(target, places):
    block = rng.choice(MINE[2:-2])
    return block, *places[block]


def superblock_start(target, image, places):
    zero(image, 0, 8)


def superblock_bit(target, image, places):
    flip(image, *target.superblock)


def superblock_page(target, image, places):
    zero(image, 0, BLOCK)


def superblocks_all(target, image, places):
    for at, length in target.superblocks:
        zero(image, at, length)


def data_bit(target, image, places):
    flip(image, some_entry(target, places)[1], BLOCK)


def data_page(target, image, places):
    at = some_entry(target, places)[1]
    image[at : at + BLOCK] = rng.randbytes(BLOCK)


def sector_bit(target, image, places):
    # One of the low bits, so that the block stays within the origin.
    at = some_entry(target, places)[2] + target.block_field[0]
    unit = target.block_unit.bit_length() - 1
    bit = unit + rng.randrange(8)
    image[at + bit // 8] ^= 1 << bit % 8


def sector_high_bit(target, image, places):
    at = some_entry(target, places)[2] + target.block_field[0]
    image[at + 4] ^= 1 << rng.randrange(8)


def seq_bit(target, image, places):
    flip(image, some_entry(target, places)[2] + target.seq_field[0], 4)


def out_of_range(target, image, places):
    at = some_entry(target, places)[2]
    struct.pack_into("<Q", image, at + target.block_field[0], (BLOCKS + GUARD // 2) * target.block_unit)
    return at


def out_of_range_forged(target, image, places):
    target.sum_entry(image, out_of_range(target, image, places))


def other_block(target, image, places):
    first, second = places[MINE[4]][1], places[MINE[9]][1]
    field = target.block_field[0]
    image[first + field : first + field + 8] = image[second + field : second + field + 8]


def entry_zeroed(target, image, places):
    zero(image, some_entry(target, places)[2], target.entry_bytes)


def entries_noise(target, image, places):
    at = places[MINE[7]][1]
    image[at : at + 4 * target.entry_bytes] = rng.randbytes(4 * target.entry_bytes)


def record_bit(target, image, places):
    flip(image, *target.record)


def record_zeroed(target, image, places):
    at, length = target.record
    zero(image, at, 2 * length)


# text, function, how often
CASES = [
    ("first 8 bytes zeroed", superblock_start, 1),
    ("superblock: one bit", superblock_bit, 6),
    ("first 4 KiB zeroed", superblock_page, 1),
    ("superblock and copy zeroed", superblocks_all, 1),
    ("data: one bit", data_bit, 4),
    ("data: a page of noise", data_page, 1),
    ("block number: one low bit", sector_bit, 4),
    ("block number: one high bit", sector_high_bit, 3),
    ("sequence number: one bit", seq_bit, 4),
    ("block number beyond the origin", out_of_range, 1),
    ("the same, its checksum forged", out_of_range_forged, 1),
    ("two entries of one block", other_block, 1),
    ("an entry zeroed", entry_zeroed, 2),
    ("four entries of noise", entries_noise, 1),
    ("volume record: one bit", record_bit, 4),
    ("volume record, both zeroed", record_zeroed, 1),
]


# --- one try -------------------------------------------------------------------------------

DEVICE = "corrupt"


def prepare(target, disk, state, size):
    """Origin old, 16 blocks new in the cache: returns what the media holds."""
    for block in range(-GUARD, BLOCKS + GUARD):
        write_block(disk, GUARD + block, pattern(block, b"old"))
    target.make()
    why = target.attach(DEVICE)
    if why:
        sys.exit(f"FAIL: {target.name} does not load: {why}")
    fd = direct(f"/dev/mapper/{DEVICE}")
    for block in MINE:
        write_block(fd, block, pattern(block, b"new"))
    os.fsync(fd)
    os.close(fd)
    if state == "cut":
        time.sleep(3)
        image = target.media.snapshot(size)
    remove(DEVICE)
    return image if state == "cut" else target.media.snapshot(size)


def judge_reads(result):
    """What the 16 blocks read as."""
    fd = direct(f"/dev/mapper/{DEVICE}")
    for block in MINE:
        data = read_block(fd, block)
        kind = "eio" if data is None else "right" if data == pattern(block, b"new") else "wrong"
        result[kind] += 1
        if kind == "eio":
            result["known"].add(block)
    os.close(fd)


def judge_origin(disk, result, drained):
    """Blocks that nobody wrote to, and after a drain those that are said to be well."""
    for block in range(-GUARD, BLOCKS + GUARD):
        data = read_block(disk, GUARD + block)
        if data == pattern(block, b"old"):
            stale = block in MINE and drained and block not in result["known"]
            result["origin_wrong"] += stale
        elif block not in MINE or data != pattern(block, b"new"):
            result["origin_wrong"] += 1


def attempt(target, disk, image, damage):
    result = {"refused": None, "right": 0, "eio": 0, "wrong": 0, "origin_wrong": 0, "known": set()}
    image = bytearray(image)
    damage(target, image, target.places(image))
    target.media.store(image)
    why = target.attach(DEVICE)
    if why:
        result["refused"] = why
        # A forced attach shows the data that is still available.
        if not hasattr(target, "forebay") or target.attach(DEVICE, consent=True):
            judge_origin(disk, result, drained=False)
            return result
    judge_reads(result)
    drained = run("dmsetup", "message", DEVICE, "0", "flush").returncode == 0
    remove(DEVICE)
    judge_origin(disk, result, drained)
    return result


def verdict(r):
    if r["wrong"] or r["origin_wrong"]:
        return "WRONG"
    if r["refused"]:
        return "refused"
    return "EIO" if r["eio"] else "harmless"


def worst(results):
    order = ["harmless", "EIO", "refused", "WRONG"]
    return max(results, key=lambda r: (order.index(verdict(r)), r["wrong"] + r["origin_wrong"], r["eio"]))


def told(r):
    parts = [f"{r[k]} {k}" for k in ("right", "eio", "wrong") if r[k]]
    if r["origin_wrong"]:
        parts.append(f"{r['origin_wrong']} of the origin")
    text = ", ".join(parts)
    if r["refused"]:
        text = r["refused"] + (f"; when told to: {text}" if text else "")
    return text


def main():
    media, disk_path, forebay = Media(sys.argv[1]), sys.argv[2], sys.argv[3]
    size = int(must("blockdev", "--getsize64", media.path))
    sectors = BLOCKS * 8
    must("dmsetup", "create", "--noudevsync", "--noudevrules", "origin", "--table",
         f"0 {sectors + GUARD * 8} linear {disk_path} {GUARD * 8}")
    must("dmsetup", "mknodes", "origin")
    disk = direct(disk_path)
    rows, bad = [], 0
    targets = [t(media, "/dev/mapper/origin", sectors, forebay) for t in (Writecache, Forebay)]
    for state in ("closed", "cut"):
        fresh = [prepare(t, disk, state, size) for t in targets]
        for text, damage, times in CASES:
            row = {"state": state, "damage": text}
            for target, image in zip(targets, fresh):
                if text.startswith("volume") and target.record is None:
                    continue
                results = []
                for _ in range(times):
                    for block in range(-GUARD, BLOCKS + GUARD):
                        write_block(disk, GUARD + block, pattern(block, b"old"))
                    results.append(attempt(target, disk, image, damage))
                w = worst(results)
                row[target.name] = {"tries": times, "wrong": sum(verdict(r) == "WRONG" for r in results),
                                    "verdict": verdict(w), "what": told(w)}
            bad += row["Forebay"]["verdict"] == "WRONG"
            rows.append(row)
            print(f"{state}, {text}: {row}", file=sys.stderr, flush=True)
    print("corruption-json: " + json.dumps({"blocks": len(MINE), "rows": rows}), flush=True)
    # A judge that finds nothing wrong with dm-writecache proves nothing.
    caught = sum(r.get("dm-writecache", {}).get("verdict") == "WRONG" for r in rows)
    if not caught:
        print("FAIL: corruption: nothing was found wrong with dm-writecache, where it is known to be")
    return 1 if bad or not caught else 0


if __name__ == "__main__":
    sys.exit(main())
