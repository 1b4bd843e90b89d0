// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: no text that a user, a configuration file, a socket or an origin can
//! give makes a parser panic, and none is taken for something that it is not.
//! Method: the input to each parser, as a whole or in lines; what was accepted
//! has to survive being printed and read again.  An origin's identity goes
//! through the volume table and back, and another's must be refused.  A client of
//! the NBD server may send what it likes: its bytes are answered in whole messages,
//! and the next client finds the server as it was.

use std::cell::RefCell;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use forebay::{
    AttachOptions, Holes, MediaOptions, OptionsChange, OptionsInfo, Persist, Pool, PoolOptions,
    PoolStatus, Verify,
};
use forebay_server::nbd::Export;

use crate::image::{good_error, Scratch, CHUNK, CHUNKS};
use crate::sparse::SparseOrigin;
use crate::units;

/// An accepted word is printed and read back as the same.
fn word<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let again = value.to_string().parse::<T>();
        assert_eq!(again.ok().as_ref(), Some(&value), "{text:?} does not come back");
    }
}

fn units(text: &str) {
    if let Ok(bytes) = units::parse_size(text) {
        assert_eq!(units::parse_size(&bytes.to_string()), Ok(bytes));
        assert!(!units::bytes(bytes).is_empty() && !units::count(bytes).is_empty());
        assert!(!units::nanoseconds(bytes).is_empty());
    }
    if let Ok(bytes) = units::parse_chunk_size(text) {
        assert!(bytes.is_power_of_two());
    }
    if let Ok(bytes) = units::parse_block_size(text) {
        assert!([512, 4096].contains(&bytes), "a block of {bytes}");
    }
    if let Ok(time) = units::parse_time(text) {
        assert!(!time.is_zero());
    }
    if let Ok((name, path)) = units::parse_name_path(text) {
        assert_eq!(format!("{name}={}", path.display()), text);
    }
}

/// A pool's options, a line each, as no command would let them pass.
fn pool_options(text: &str) {
    let mut o = PoolOptions { recovery_threads: 1, ..Default::default() };
    for (key, value) in text.lines().take(64).filter_map(|line| line.split_once('=')) {
        let number = value.parse().unwrap_or(0);
        let time = value.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        match key {
            "slots" => o.slots = number,
            "high-watermark" => o.high_watermark_percent = number,
            "low-watermark" => o.low_watermark_percent = number,
            "max-age" => o.max_age = time,
            "idle" => o.idle = time,
            "kernel" => o.media.kernel = Some(value.into()),
            "persist" => o.media.persist = value.parse().unwrap_or_default(),
            _ => {}
        }
    }
    // Opened with it there is an error or a pool, and never an abort.
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, closed_pool()).expect("room in shared memory");
    match Pool::open(&scratch.0, &o) {
        Ok(pool) => assert!((1..=64).contains(&pool.options().slots)),
        Err(e) => good_error(&e),
    }
}

/// The requests of a well-behaved client: the only export, its first 512 bytes, disconnect.
fn good_client() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    for (command, len) in [(0u16, 512u32), (2, 0)] {
        bytes.extend(0x2560_9513u32.to_be_bytes());
        bytes.extend([&[0; 2][..], &command.to_be_bytes(), &[7; 8], &[0; 8]].concat());
        bytes.extend(len.to_be_bytes());
    }
    bytes
}

/// All bytes that a client sends in one connection, with and without a good handshake before
/// them.
fn nbd(data: &[u8]) {
    with_pool(|pool| {
        let origin = SparseOrigin::new(1 << 20, 512, "id:nbd".into());
        pool.volume_add_origin("n", &origin, 512).expect("a good volume");
        let attached = pool.attach_origin("n", Box::new(origin), &AttachOptions::default());
        let volume = attached.expect("its own origin");
        let exports = [Export { volume, read_only: false }];
        let talk = |input: &[u8]| {
            let mut output = Vec::new();
            let ended = forebay_server::nbd::converse_over(input, &mut output, &exports);
            (ended.is_ok(), output)
        };
        let good = good_client();
        let handshake = &good[..good.len() - 56];
        let (_, output) = talk(data);
        assert!(output.starts_with(b"NBDMAGICIHAVEOPT"));
        talk(&[handshake, data].concat());
        let (ended, output) = talk(&good);
        assert!(ended && output.len() > 16 + 512, "a good client was refused");
        let [reply @ .., _] = &output[output.len() - 512 - 16..] else { unreachable!() };
        assert!(reply.starts_with(b"\x67\x44\x66\x98\0\0\0\0\x07"), "{reply:?}");
        let [export] = exports;
        export.volume.detach().expect("all connections ended");
        pool.volume_remove("n", true).expect("a volume that is not attached");
    });
}

fn closed_pool() -> &'static [u8] {
    include_bytes!("../base/closed.img")
}

fn json(text: &str) {
    if let Ok(change) = serde_json::from_str::<OptionsChange>(text) {
        let again = serde_json::to_string(&change).expect("it can be written");
        serde_json::from_str::<OptionsChange>(&again).expect("and read again");
        with_pool(|pool| match pool.set_options(&change) {
            Ok(OptionsInfo {
                high_watermark_percent: high, low_watermark_percent: low, ..
            }) => {
                assert!(low <= high && (1..=100).contains(&high), "{change:?} was taken");
            }
            Err(e) => good_error(&e),
        });
    }
    if let Ok(status) = serde_json::from_str::<PoolStatus>(text) {
        let again = serde_json::to_string(&status).expect("it can be written");
        serde_json::from_str::<PoolStatus>(&again).expect("and read again");
    }
}

thread_local! {
    /// Open as long as the thread runs.
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

fn with_pool(f: impl FnOnce(&Pool)) {
    POOL.with(|kept| {
        let mut kept = kept.borrow_mut();
        let pool = kept.get_or_insert_with(|| {
            let scratch = Scratch::new();
            let size = CHUNK * (CHUNKS + 1);
            let o = forebay::CreateOptions {
                size_bytes: Some(size as u64),
                chunk_size_bytes: CHUNK as u32,
                max_volumes: 4,
                ..Default::default()
            };
            forebay::create(&scratch.0, &o).expect("room in shared memory");
            let o = PoolOptions { media: MediaOptions::default(), slots: 1, ..Default::default() };
            Pool::open(&scratch.0, &o).expect("a new pool")
        });
        f(pool);
    });
}

/// A volume's name and its origin's identity, a line each.
fn identity(text: &str) {
    let (name, identity) = text.split_once('\n').unwrap_or(("v", text));
    with_pool(|pool| {
        let origin = SparseOrigin::new(1 << 20, 512, identity.to_string());
        let info = match pool.volume_add_origin(name, &origin, 512) {
            Ok(info) => info,
            Err(e) => return good_error(&e),
        };
        assert_eq!(info.name, name);
        let full = info.identity.clone() + "|" + info.origin_path.as_deref().unwrap_or("");
        assert!(full.trim_end_matches('|') == identity.trim_end_matches('|'), "{full:?} recorded");
        let o = AttachOptions::default();
        match pool.attach_origin(name, Box::new(origin), &o) {
            Ok(volume) => volume.detach().expect("nothing is in flight"),
            Err(e) => panic!("its own origin is refused: {e}"),
        }
        let other = SparseOrigin::new(1 << 20, 512, format!("x{identity}"));
        match pool.attach_origin(name, Box::new(other), &o) {
            Ok(_) => panic!("another origin was taken for {identity:?}"),
            Err(e) => good_error(&e),
        }
        pool.volume_remove(name, true).expect("a volume that is not attached");
        assert!(pool.volumes().is_empty());
    });
}

/// One input.  Panics are findings.
pub fn run(data: &[u8]) {
    let [what, rest @ ..] = data else { return };
    if what % 8 == 4 {
        return nbd(rest);
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match what % 4 {
        0 => pool_options(text),
        1 => {
            word::<Persist>(text);
            word::<Verify>(text);
            word::<Holes>(text);
            units(text);
        }
        2 => json(text),
        _ => identity(text),
    }
}
