// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NBD server, byte by byte, over a stream in memory: what a client may ask in the
//! handshake, by the numbers of the protocol, and what each request that is refused
//! is answered.  What clients of others make of it: tests/serve.

use common::*;
use forebay::*;
use forebay_server::nbd::{converse_over, Export};
use wire::*;

#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
mod wire;

const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const SIZE: u64 = 1 << 20;
/// The bits of an export: flags, flush, FUA, trim, write zeroes, several connections, fast zeroes.
const CAN: u16 = 1 + 4 + 8 + 32 + 64 + 256 + 2048;

/// The data of INFO and GO.
fn about(name: &str, asked: &[u16]) -> Vec<u8> {
    let mut bytes = text(name.as_bytes());
    bytes.extend((asked.len() as u16).to_be_bytes());
    bytes.extend(asked.iter().flat_map(|n| n.to_be_bytes()));
    bytes
}

/// Replies to options: number, kind, data.
fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], OPTION_REPLY.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let len = number(16) as usize;
        found.push((number(8), number(12), bytes[20..20 + len].to_vec()));
        bytes = &bytes[20 + len..];
    }
    found
}

/// Error and cookie of each reply to a request that has no data in its answer.
fn errors(bytes: &[u8]) -> Vec<(u32, u64)> {
    let (replies, rest) = bytes.as_chunks::<16>();
    assert!(rest.is_empty());
    let word = |b: &[u8]| u32::from_be_bytes(b.try_into().unwrap());
    replies
        .iter()
        .map(|r| {
            assert_eq!(word(&r[..4]), 0x6744_6698);
            (word(&r[4..8]), u64::from_be_bytes(r[8..].try_into().unwrap()))
        })
        .collect()
}

/// A pool with volumes of these names, each an export.
fn exports(dir: &Dir, names: &[&str]) -> (Pool, Vec<Export>) {
    let pool = open(&dir.pool(24));
    let origin = || MemOrigin::new(SIZE as usize).unwrap();
    let volumes = names.iter().map(|name| attach(&pool, name, &origin()));
    let exports = volumes.map(|volume| Export { volume, read_only: false }).collect();
    (pool, exports)
}

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = 0x8000_0001;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;

#[test]
fn options_by_their_numbers() {
    let dir = Dir::new("nbd-options");
    let (_pool, two) = exports(&dir, &["a", "long"]);
    let listed = |name: &str| {
        let text = format!("{name}{SIZE} bytes, blocks of {}", two[0].volume.block_size());
        (3, SERVER, [&(name.len() as u32).to_be_bytes()[..], text.as_bytes()].concat())
    };
    let answers = replies(&say(
        &two,
        FLAGS,
        &[
            option(3, b""), // LIST
            option(3, b"x"),
            option(5, b"tls"),             // STARTTLS
            option(6, &vec![1; 16 << 10]), // INFO: the longest that is looked at, nonsense
            option(6, &vec![1; (16 << 10) + 1]),
            option(6, &about("none", &[])),
            option(7, &about("", &[])), // GO: of two, none is without a name
            option(2, b""),             // ABORT
            option(3, b""),             // not heard any more
        ],
    ));
    assert_eq!(answers[..3], [listed("a"), listed("long"), (3, ACK, vec![])]);
    let kinds: Vec<_> = answers[3..].iter().map(|(n, kind, _)| (*n, *kind)).collect();
    let wanted = [
        (3, INVALID),
        (5, UNSUPPORTED),
        (6, INVALID),
        (6, TOO_BIG),
        (6, UNKNOWN),
        (7, UNKNOWN),
        (2, ACK),
    ];
    assert_eq!(kinds, wanted);
    let text = String::from_utf8(answers[7].2.clone()).unwrap();
    assert_eq!(text, "export \"none\": no such volume; there are: a, long");
}

#[test]
fn what_is_no_handshake_ends_it() {
    let dir = Dir::new("nbd-nonsense");
    let (_pool, one) = exports(&dir, &["a"]);
    let list = option(3, b"");
    assert_eq!(say(&one, FLAGS | 4, std::slice::from_ref(&list)), b"", "a flag that nobody knows");
    assert_eq!(say(&one, FLAGS, &[b"IHAVEOP!".to_vec(), list.clone()]), b"");
    let long = option(1, &vec![b'a'; (16 << 10) + 1]);
    assert_eq!(say(&one, FLAGS, &[long, list.clone()]), b"", "EXPORT_NAME has no refusal");
    // Up to the length of a request it is read and answered, beyond it is the end.
    let most = option(9, &vec![0; 32 << 20]);
    assert_eq!(replies(&say(&one, FLAGS, &[most, list.clone()]))[0].1, TOO_BIG);
    let more = option(9, &vec![0; (32 << 20) + 1]);
    assert_eq!(say(&one, FLAGS, &[more, list]), b"");
}

#[test]
fn an_export_is_chosen() {
    let dir = Dir::new("nbd-choose");
    let (_pool, mut one) = exports(&dir, &["a"]);
    let flush = request(0, 3, 77, 0, 0);
    let chosen = |flags: u16| [&SIZE.to_be_bytes()[..], &flags.to_be_bytes()].concat();
    let done = errors_of_flush;

    // The old way, with zeroes and without, by name and as the only one.
    let told = say(&one, 1, &[option(1, b"a"), flush.clone()]);
    assert_eq!(told[..134], [chosen(CAN), vec![0; 124]].concat());
    done(&told[134..]);
    let told = say(&one, FLAGS, &[option(1, b""), flush.clone()]);
    assert_eq!(told[..10], chosen(CAN));
    done(&told[10..]);
    assert_eq!(say(&one, FLAGS, &[option(1, b"b"), flush.clone()]), b"");

    // The new way: what was asked for besides comes too.
    one[0].read_only = true;
    let told = say(&one, FLAGS, &[option(6, &about("a", &[1, 2])), option(7, &about("a", &[]))]);
    let answers = replies(&told);
    let export = [&[0, 0][..], &chosen(CAN | 2)].concat();
    let block = one[0].volume.block_size();
    let sizes = [block, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    let text = format!("{SIZE} bytes, blocks of {block}");
    let wanted = [
        (6, INFO, export.clone()),
        (6, INFO, [&[0, 3][..], &sizes].concat()),
        (6, INFO, b"\0\x01a".to_vec()),
        (6, INFO, [b"\0\x02", text.as_bytes()].concat()),
        (6, ACK, vec![]),
        (7, INFO, export),
        (7, INFO, [&[0, 3][..], &sizes].concat()),
        (7, ACK, vec![]),
    ];
    assert_eq!(answers, wanted);
}

fn errors_of_flush(bytes: &[u8]) {
    assert_eq!(errors(bytes), [(0, 77)]);
}

/// Requests to the export, and the error of each.
fn ask(exports: &[Export], requests: &[Vec<u8>]) -> Vec<(u32, u64)> {
    let parts = [&[option(1, b"")], requests].concat();
    errors(&say(exports, FLAGS, &parts)[10..])
}

const PERM: u32 = 1;
const IO: u32 = 5;
const INVAL: u32 = 22;
const NOSPC: u32 = 28;
const NOTSUP: u32 = 95;

/// A write with FUA that goes past the cache is on the flushed origin when it is answered; one
/// without waits for a flush.
#[test]
fn fua_past_the_cache_is_flushed() {
    let dir = Dir::new("nbd-fua");
    let pool = open(&dir.pool(24));
    let (origin, faults) = FaultyOrigin::new(Box::new(MemOrigin::new(SIZE as usize).unwrap()));
    add(&pool, "a", &origin);
    let options = AttachOptions { bypass_limit_bytes: 4096, ..Default::default() };
    let volume = pool.attach_origin("a", Box::new(origin), &options).unwrap();
    let one = [Export { volume, read_only: false }];
    const FUA: u16 = 1;
    let write = |flags: u16| {
        let mut head = request(flags, 1, 9, 65536, 65536);
        head.resize(head.len() + 65536, 7);
        assert_eq!(ask(&one, &[head]), [(0, 9)]);
        (one[0].volume.info().unwrap().bypasses, one[0].volume.info().unwrap().flush_owed)
    };
    assert_eq!(write(0), (1, true), "it went past the cache");
    let before = faults.calls(FaultOp::Flush);
    let (bypasses, _) = write(FUA);
    assert_eq!((bypasses, faults.calls(FaultOp::Flush) > before), (2, true));
}

#[test]
fn requests_that_are_refused() {
    let dir = Dir::new("nbd-refused");
    let (_pool, mut one) = exports(&dir, &["a"]);
    let with = |mut head: Vec<u8>, data: usize| {
        head.resize(head.len() + data, 7);
        head
    };
    let answers = ask(
        &one,
        &[
            with(request(0, 1, 1, SIZE - 512, 512), 512),
            with(request(0, 1, 2, SIZE - 511, 512), 512), // beyond the end
            with(request(0, 1, 3, SIZE, 512), 512),
            request(0, 6, 4, SIZE - 512, 1024),
            request(0, 6, 5, SIZE - 512, 512),
            request(0, 4, 6, SIZE - 512, 1024),
            request(0, 0, 7, SIZE - 512, 1024),
            request(0, 0, 8, u64::MAX - 511, 1024),
            request(0, 0, 9, 0, (32 << 20) + 1),
            request(2, 0, 10, 0, 512),           // NO_HOLE of a read
            request(2 + 16 + 1, 6, 11, 0, 4096), // fast zeroes: this origin has none
            request(32, 6, 12, 0, 4096),
            request(0, 5, 13, 0, 0),   // CACHE is none of ours
            request(0, 4, 14, 512, 1), // less than a block: nothing to do
            request(1, 4, 15, 0, 8192),
            request(2 + 1, 6, 16, 0, 4096),
            request(0, 3, 17, 0, 0),
        ],
    );
    let wanted = [
        0, NOSPC, NOSPC, NOSPC, 0, INVAL, INVAL, INVAL, INVAL, INVAL, NOTSUP, INVAL, INVAL, 0, 0,
        0, 0,
    ];
    let wanted: Vec<_> = wanted.into_iter().zip(1..).collect();
    assert_eq!(answers, wanted);

    // After good-bye, or what is no request, nothing is heard.
    let flush = request(0, 3, 1, 0, 0);
    assert_eq!(ask(&one, &[flush.clone(), request(0, 2, 2, 0, 0), flush.clone()]), [(0, 1)]);
    let mut broken = flush.clone();
    broken[0] ^= 1;
    assert_eq!(ask(&one, &[flush.clone(), broken, flush.clone()]), [(0, 1)]);
    let long = request(0, 1, 2, 0, (32 << 20) + 1);
    assert_eq!(ask(&one, &[flush.clone(), long, flush.clone()]), [(0, 1)]);

    one[0].read_only = true;
    let write = with(request(0, 1, 1, 0, 512), 512);
    let all = [write, request(0, 4, 2, 0, 4096), request(0, 6, 3, 0, 4096), request(0, 3, 4, 0, 0)];
    assert_eq!(ask(&one, &all), [(PERM, 1), (PERM, 2), (PERM, 3), (0, 4)]);
}

/// A trim releases whole blocks, and no other byte.
#[test]
fn a_trim_takes_whole_blocks() {
    let dir = Dir::new("nbd-trim");
    let (_pool, exports) = exports(&dir, &["a"]);
    let volume = &exports[0].volume;
    volume.write_at(&[7; 16384], 0).unwrap();
    assert_eq!(ask(&exports, &[request(0, 4, 1, 100, 16384 - 200)]), [(0, 1)]);
    let mut all = vec![0; 16384];
    volume.read_at(&mut all, 0).unwrap();
    assert!(all[..100].iter().chain(&all[16384 - 100..]).all(|b| *b == 7), "beside it");
    assert!(all[4096..3 * 4096].iter().all(|b| *b == 0), "what was trimmed reads as zeroes");
}

/// A client over a stream of its own, past the handshake.
fn connection<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    exports: &'s [Export],
) -> impl FnMut(u64) -> u32 {
    use std::io::{Read, Write};
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    scope.spawn(move || {
        let output = theirs.try_clone().unwrap();
        let _ = converse_over(theirs, output, exports);
    });
    ours.write_all(&[&FLAGS.to_be_bytes()[..], &option(1, b"")].concat()).unwrap();
    ours.read_exact(&mut [0; 28]).unwrap();
    let mut ask = move |command, cookie| {
        ours.write_all(&request(0, command, cookie, 0, 0)).unwrap();
        let mut reply = [0; 16];
        ours.read_exact(&mut reply).unwrap();
        errors(&reply)[0].0
    };
    // A trim of nothing: from its answer on it is one of those who are told.
    assert_eq!(ask(4, 0), 0);
    move |cookie| ask(3, cookie)
}

/// An export whose origin fails the next request of this kind.
fn failing_once(dir: &Dir, op: FaultOp) -> (Pool, [Export; 1]) {
    let pool = open(&dir.pool(24));
    let memory = MemOrigin::new(SIZE as usize).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("a", &memory, 0).unwrap();
    let volume = pool.attach_origin("a", Box::new(origin), &AttachOptions::default()).unwrap();
    let one = [Export { volume, read_only: false }];
    faults.fail(op, 1, 1);
    (pool, one)
}

/// A flush that fails is told to each connection, once.
#[test]
fn each_connection_is_told_that_a_flush_failed() {
    let dir = Dir::new("nbd-flush");
    let (_pool, one) = failing_once(&dir, FaultOp::Flush);
    std::thread::scope(|scope| {
        let (mut a, mut b) = (connection(scope, &one), connection(scope, &one));
        assert_eq!([a(1), a(2)], [IO, 0]);
        assert_eq!([b(1), b(2)], [IO, 0], "the second is told as well");
        assert_eq!(connection(scope, &one)(1), 0, "who came later is told what was told before");
    });
}

/// The error of an origin is the client's, and only that request's.
#[test]
fn an_origins_error_is_told() {
    let dir = Dir::new("nbd-origin");
    let (_pool, one) = failing_once(&dir, FaultOp::Read);
    assert_eq!(ask(&one, &[request(0, 0, 1, 0, 4096), request(0, 3, 2, 0, 0)]), [(IO, 1), (0, 2)]);
}
