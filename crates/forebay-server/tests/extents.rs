// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structured replies and base:allocation, byte by byte: what a client agrees on, in which
//! order and with which nonsense; and what the extents of an export say of it, whatever the
//! pool and the origin have. What clients of others make of it: tests/serve/sparse.sh.

use common::*;
use forebay::*;
use forebay_server::nbd::Export;
use wire::*;

#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
mod wire;

const SIZE: u64 = 1 << 20;
const ACK: u32 = 1;
const META_CONTEXT: u32 = 4;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const ALLOCATION: &[u8] = b"base:allocation";
const DATA: u32 = 0;
const HOLE: u32 = 3;
const ZERO: u32 = 2;
const INVAL: u32 = 22;

fn queries(export: &str, queries: &[&[u8]]) -> Vec<u8> {
    let mut bytes = text(export.as_bytes());
    bytes.extend((queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|q| text(q)));
    bytes
}

fn go(export: &str) -> Vec<u8> {
    option(7, &[text(export.as_bytes()), vec![0, 0]].concat())
}

/// Kind and data of each answer to an option, and what follows them.
fn option_replies(mut bytes: &[u8]) -> (Vec<(u32, Vec<u8>)>, &[u8]) {
    let mut found = Vec::new();
    while bytes.len() >= 20 && bytes[..8] == 0x0003_e889_0455_65a9u64.to_be_bytes() {
        let len = word(bytes, 16) as usize;
        found.push((word(bytes, 12), bytes[20..20 + len].to_vec()));
        bytes = &bytes[20 + len..];
    }
    (found, bytes)
}

/// Kind, cookie and payload of each chunk; a simple reply is of kind 100 and has its error.
fn chunks(mut bytes: &[u8]) -> Vec<(u16, u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let cookie = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
        if word(bytes, 0) == 0x6744_6698 {
            found.push((100, cookie, bytes[4..8].to_vec()));
            bytes = &bytes[16..];
            continue;
        }
        assert_eq!((word(bytes, 0), &bytes[4..6]), (0x668e_33ef, &[0, 1][..]), "one chunk each");
        let len = word(bytes, 16) as usize;
        found.push((u16::from_be_bytes([bytes[6], bytes[7]]), cookie, bytes[20..][..len].to_vec()));
        bytes = &bytes[20 + len..];
    }
    found
}

/// A pool with volumes of these names on files, which are sparse.
fn exports(dir: &Dir, names: &[&str]) -> (Pool, Vec<Export>) {
    let pool = open(&dir.pool(24));
    let mut made = Vec::new();
    for name in names {
        let file = dir.path(&format!("origin-{name}"));
        std::fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
        let new = NewVolume { name: (*name).into(), origin: file, ..Default::default() };
        pool.volume_add(&new).unwrap();
        let volume = pool.attach(name, &AttachOptions::default()).unwrap();
        made.push(Export { volume, read_only: false });
    }
    (pool, made)
}

fn agreed(export: &str) -> Vec<Vec<u8>> {
    vec![option(8, b""), option(10, &queries(export, &[ALLOCATION])), go(export)]
}

#[test]
fn contexts_by_their_names() {
    let dir = Dir::new("nbd-contexts");
    let (_pool, two) = exports(&dir, &["a", "b"]);
    let kinds = |parts: &[Vec<u8>]| {
        let said = say(&two, FLAGS, parts);
        option_replies(&said).0.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>()
    };
    let set = |export: &str, of: &[&[u8]]| option(10, &queries(export, of));
    let list = |export: &str, of: &[&[u8]]| option(9, &queries(export, of));
    let with = |part: Vec<u8>| kinds(&[option(8, b""), part]);
    assert_eq!(kinds(&[set("a", &[ALLOCATION])]), [INVALID], "before structured replies");
    assert_eq!(kinds(&[list("a", &[])]), [INVALID]);
    assert_eq!(kinds(&[option(8, b"x")]), [INVALID]);
    assert_eq!(with(set("a", &[ALLOCATION])), [ACK, META_CONTEXT, ACK]);
    let twice = [&b"other:x"[..], ALLOCATION, ALLOCATION];
    assert_eq!(with(set("a", &twice)), [ACK, META_CONTEXT, ACK], "once");
    assert_eq!(with(set("a", &[b"base:"])), [ACK, ACK], "a name space is for the list");
    assert_eq!(with(set("a", &[])), [ACK, ACK]);
    assert_eq!(with(list("a", &[])), [ACK, META_CONTEXT, ACK]);
    assert_eq!(with(list("a", &[b"base:"])), [ACK, META_CONTEXT, ACK]);
    assert_eq!(with(list("a", &[b"qemu:"])), [ACK, ACK]);
    assert_eq!(with(set("none", &[ALLOCATION])), [ACK, UNKNOWN]);
    // Nonsense: numbers that the data does not bear out, data after them.
    let whole = queries("a", &[ALLOCATION]);
    for n in 0..whole.len() {
        assert_eq!(with(option(10, &whole[..n])), [ACK, INVALID], "{n} bytes");
    }
    assert_eq!(with(option(10, &[&whole[..], b"x"].concat())), [ACK, INVALID]);
    let many = [text(b"a"), u32::MAX.to_be_bytes().to_vec()].concat();
    assert_eq!(with(option(10, &many)), [ACK, INVALID]);
    let longest = [text(b"a"), 1u32.to_be_bytes().to_vec(), u32::MAX.to_be_bytes().to_vec()];
    assert_eq!(with(option(10, &longest.concat())), [ACK, INVALID]);
    let empty = [text(b"a"), 4000u32.to_be_bytes().to_vec(), vec![0; 16_000]].concat();
    assert_eq!(with(option(10, &empty)), [ACK, ACK], "4,000 queries for nothing");
}

/// Who has not agreed on it, or on it for another export, or asks for what there is not.
#[test]
fn a_status_that_is_refused() {
    let dir = Dir::new("nbd-status-refused");
    let (_pool, two) = exports(&dir, &["a", "b"]);
    let end = SIZE - 4096;
    let asked = |parts: &[Vec<u8>], r: Vec<u8>| {
        let said = say(&two, FLAGS, &[parts, &[r]].concat());
        chunks(option_replies(&said).1).remove(0)
    };
    let status = |flags, offset, len| request(flags, 7, 5, offset, len);
    let simple = (100, 5, INVAL.to_be_bytes().to_vec());
    assert_eq!(asked(&[go("a")], status(0, 0, 4096)), simple, "no structured replies");
    let error = (0x8001, 5, [&INVAL.to_be_bytes()[..], &[0, 0]].concat());
    let structured = [option(8, b""), go("a")];
    assert_eq!(asked(&structured, status(0, 0, 4096)), error, "no context");
    let other = [option(8, b""), option(10, &queries("b", &[ALLOCATION])), go("a")];
    assert_eq!(asked(&other, status(0, 0, 4096)), error, "the context of another export");
    let given_up = [&agreed("a")[..2], &[option(10, &queries("a", &[])), go("a")]].concat();
    assert_eq!(asked(&given_up, status(0, 0, 4096)), error, "it was given up");
    for (flags, offset, len) in [
        (0, 0, 0),
        (0, SIZE, 4096),
        (0, end, 8192),
        (0, u64::MAX - 4095, 4096),
        (0, 1, 4096),
        (0, 0, 100),
        (1, 0, 4096),
        (2, 0, 4096),
        (4, 0, 4096),
    ] {
        assert_eq!(
            asked(&agreed("a"), status(flags, offset, len)),
            error,
            "{flags} {offset} {len}"
        );
    }
    assert_eq!(asked(&agreed("a"), status(0, end, 4096)).0, 5);
}

/// Extents of the whole export.
fn extents(one: &[Export], flags: u16, offset: u64, len: u32) -> Vec<(u32, u32)> {
    let said = say(one, FLAGS, &[agreed("a"), vec![request(flags, 7, 1, offset, len)]].concat());
    let (kind, _, payload) = chunks(option_replies(&said).1).remove(0);
    assert_eq!((kind, word(&payload, 0)), (5, 1), "{payload:?}");
    payload[4..].chunks(8).map(|e| (word(e, 0), word(e, 4))).collect()
}

const ALL: u32 = SIZE as u32;

/// The origin's holes, what is cached above them, and zeroes in either.
#[test]
fn extents_are_those_of_pool_and_origin() {
    let dir = Dir::new("nbd-extents");
    let (_pool, one) = exports(&dir, &["a"]);
    let volume = &one[0].volume;
    assert_eq!(extents(&one, 0, 0, ALL), [(ALL, HOLE)]);
    volume.write_at(&[7; 8192], 64 << 10).unwrap();
    let cached = [(64 << 10, HOLE), (8192, DATA), (ALL - (72 << 10), HOLE)];
    assert_eq!(extents(&one, 0, 0, ALL), cached, "in the pool alone");
    assert_eq!(extents(&one, 8, 0, ALL), [(64 << 10, HOLE)], "one, if one is asked for");
    assert_eq!(extents(&one, 0, 60 << 10, 8192), [(4096, HOLE), (4096, DATA)]);
    volume.write_at(&[0; 4096], 256 << 10).unwrap();
    let found = extents(&one, 0, 252 << 10, 12 << 10);
    assert_eq!(found, [(4096, HOLE), (4096, ZERO), (4096, HOLE)], "zeroes that were written");
    volume.drain(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let found = extents(&one, 0, 0, 128 << 10);
    assert_eq!(found, [(64 << 10, HOLE), (8192, DATA), (56 << 10, HOLE)], "on the origin alone");
    // Data is never told as a hole, part of a block neither.
    volume.write_at(&[9; 512], (512 << 10) + 512).unwrap();
    let found = extents(&one, 0, 508 << 10, 12 << 10);
    assert_eq!(found, [(4096, HOLE), (4096, DATA), (4096, HOLE)]);
}

/// Random writes, zeroings, trims and drains: ranges reported as zeroes read as zeroes.
#[test]
fn what_is_told_as_zeroes_reads_as_zeroes() {
    let dir = Dir::new("nbd-extents-random");
    let (_pool, one) = exports(&dir, &["a"]);
    let volume = &one[0].volume;
    let mut state = 1u64;
    let mut below = |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..300 {
        let offset = below(SIZE / 512) * 512;
        let len = ((below(32) + 1) * 512).min(SIZE - offset);
        match below(6) {
            0 => volume.write_zeroes(offset, len).unwrap(),
            1 => volume.allocate_zeroes(offset, len).unwrap(),
            2 => volume.discard(offset / 4096 * 4096, 4096).unwrap(),
            3 if round % 30 == 0 => {
                volume.drain(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
            }
            _ => volume.write_at(&vec![below(255) as u8 + 1; len as usize], offset).unwrap(),
        }
        let (mut at, mut all) = (0, vec![0; SIZE as usize]);
        volume.read_at(&mut all, 0).unwrap();
        for (len, state) in extents(&one, 0, 0, ALL) {
            let bytes = &all[at..at + len as usize];
            assert!(state & 2 == 0 || bytes.iter().all(|b| *b == 0), "round {round}, at {at}");
            at += len as usize;
        }
        assert_eq!(at as u64, SIZE, "round {round}");
    }
}

/// A read's answer, and that of one that is refused.
#[test]
fn reads_are_answered_in_chunks() {
    let dir = Dir::new("nbd-chunks");
    let (_pool, one) = exports(&dir, &["a"]);
    one[0].volume.write_at(&[7; 4096], 4096).unwrap();
    let requests = [
        request(0, 0, 1, 4096, 4096),
        request(4, 0, 2, 0, 512), // in one piece, please
        request(0, 0, 3, SIZE, 512),
        request(0, 0, 4, 0, 0),
        request(0, 3, 5, 0, 0),
    ];
    let said = say(&one, FLAGS, &[&[option(8, b""), go("a")], &requests[..]].concat());
    let (options, rest) = option_replies(&said);
    let flags = u16::from_be_bytes(options[1].1[10..12].try_into().unwrap());
    assert_eq!(flags & 128, 128, "it says that it may be asked for one piece");
    let error = |cookie| (0x8001, cookie, [&INVAL.to_be_bytes()[..], &[0, 0]].concat());
    let data =
        |cookie, offset: u64, data: &[u8]| (1, cookie, [&offset.to_be_bytes()[..], data].concat());
    let wanted = [
        data(1, 4096, &[7; 4096]),
        data(2, 0, &[0; 512]),
        error(3),
        error(4),
        (100, 5, vec![0; 4]),
    ];
    assert_eq!(chunks(rest), wanted);
}

/// Zeroes give blocks back where the client allows that, and have blocks where it does not.
#[test]
fn zeroes_are_thin_unless_the_client_wants_blocks() {
    use std::os::unix::fs::MetadataExt;
    // On a disk: some other file systems cannot do both.
    let dir = Dir::on_disk("nbd-thin");
    let (_pool, one) = exports(&dir, &["a"]);
    let blocks = || std::fs::metadata(dir.path("origin-a")).unwrap().blocks() * 512;
    let ask = |r: Vec<u8>| {
        let said = say(&one, FLAGS, &[go("a"), r]);
        assert_eq!(chunks(option_replies(&said).1), [(100, 1, vec![0; 4])]);
    };
    let before = blocks();
    ask(request(0, 6, 1, 0, ALL));
    assert!(blocks() <= before, "zeroes on a hole have made {} bytes", blocks());
    ask(request(2, 6, 1, 0, ALL));
    assert!(blocks() >= SIZE, "{} bytes have blocks", blocks());
    ask(request(0, 6, 1, 0, ALL));
    assert!(blocks() <= before, "{} bytes are kept", blocks());
}
