// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: no text that a user, a configuration file, a socket or an origin can
//! give makes a parser panic, and none is taken for something that it is not.
//! Method: the input to each parser, as a whole or in lines; what was accepted
//! has to survive being printed and read again.  An origin's identity goes
//! through the volume table and back, and another's must be refused.

use std::cell::RefCell;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use forebay::{
    AttachOptions, Holes, MediaOptions, OptionsChange, OptionsInfo, Persist, Pool, PoolOptions,
    PoolStatus, Verify,
};

use crate::image::{good_error, Scratch, CHUNK, CHUNKS};
use crate::nbdkit_config::Config;
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

/// The plugin's parameters, a line each.
fn parameters(data: &[u8]) {
    let mut config = Config::default();
    for line in data.split(|b| *b == b'\n').take(64) {
        let mut parts = line.splitn(2, |b| *b == b'=');
        let (Some(key), Some(value)) = (parts.next(), parts.next()) else { continue };
        let Ok(key) = std::str::from_utf8(key) else { continue };
        if let Err(cause) = config.set(key, value) {
            assert!(cause.starts_with(key) && cause.len() > key.len() + 2, "{cause}");
        }
    }
    // Opened with it there is an error or a pool, and never an abort.
    let o = PoolOptions { control: None, recovery_threads: 1, ..config.pool_options };
    if o.read_only {
        return;
    }
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, closed_pool()).expect("room in shared memory");
    match Pool::open(&scratch.0, &o) {
        Ok(pool) => assert!((1..=64).contains(&pool.options().slots)),
        Err(e) => good_error(&e),
    }
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
    if what % 4 == 0 {
        return parameters(rest);
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match what % 4 {
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
