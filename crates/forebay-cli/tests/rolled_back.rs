// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever states of a pool and of an origin meet, the pool gets the origin only if nothing
//! that was acknowledged is missing then.  Every refusal changes nothing and names a way out.
//!
//! Method: a pool and a file origin go through several periods; the state of each is kept at
//! four moments.  Then each state of the pool, and of another pool, is drained to each state of
//! the origin, and to another file.  The table is that of docs/manual/origins.md.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::nbd::Served;
use common::Bench;
use forebay::{AttachOptions, Pool, PoolOptions};

const BLOCK: usize = 4096;

/// An origin's content and mark.
#[derive(Clone)]
struct OriginState {
    bytes: Vec<u8>,
    mark: Option<Vec<u8>>,
}

fn mark_of(b: &Bench, place: &str) -> Option<Vec<u8>> {
    let file = fs::File::open(b.path(place)).unwrap();
    let mut bytes = vec![0; 4096];
    let n = rustix::fs::fgetxattr(&file, "user.forebay", &mut bytes[..]).ok()?;
    Some(bytes[..n].to_vec())
}

fn kept(b: &Bench) -> OriginState {
    OriginState { bytes: fs::read(b.path("origin")).unwrap(), mark: mark_of(b, "origin") }
}

/// Restores a state of the origin in place, so that the file is the same one.
fn brought_back(b: &Bench, state: &OriginState) {
    fs::write(b.path("origin"), &state.bytes).unwrap();
    let file = fs::File::open(b.path("origin")).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    match &state.mark {
        Some(mark) => rustix::fs::fsetxattr(&file, "user.forebay", mark, none).unwrap(),
        None => drop(rustix::fs::fremovexattr(&file, "user.forebay")),
    }
}

/// Checks the exit code and the message of one attempt.
fn meets(b: &Bench, words: &[&str], code: i32, says: &str, what: &str) {
    let before = (fs::read(b.path("origin")).unwrap(), mark_of(b, "origin"));
    let out = b.run(words);
    assert_eq!(out.code, Some(code), "{what}: {words:?}: {out:?}");
    let told = format!("{}{}", out.stdout, out.stderr);
    assert!(told.contains(says), "{what}: no \"{says}\": {told}");
    if code != 0 {
        let now = (fs::read(b.path("origin")).unwrap(), mark_of(b, "origin"));
        assert!(now == before, "{what}: refused, and something was changed");
        assert!(!told.contains("alone is complete"), "{what}: {told}");
    }
}

/// Each state of the pool meets each state of the origin.
#[test]
fn only_states_that_belong_together_meet() {
    let b = Bench::on_disk();
    b.make_volume();
    b.write("another", &vec![0; 1 << 20]);
    let pool_now = || fs::read(b.path("pool")).unwrap();
    let (mut pools, mut origins) = (Vec::new(), Vec::new());
    // The moments: clean; marked; marked in a later period, with block 1 drained before; drained.
    for moment in 0..4u8 {
        match moment {
            0 => {}
            1 => b.write_to_volume(0, &[1; BLOCK]),
            2 => {
                b.run_ok(&["drain", "pool"]);
                b.write_to_volume(BLOCK as u64, &[2; BLOCK]);
            }
            _ => drop(b.run_ok(&["drain", "pool"])),
        }
        pools.push(pool_now());
        origins.push(kept(&b));
    }
    let (same, newer) = (0, "older copy of the one that marked the origin");
    let (older, gone) = ("the origin is an older state of itself", "whose mark is gone");
    let table: [(usize, usize, i32, &str); 16] = [
        (0, 0, same, "alone is complete"),
        (0, 1, 6, newer),
        (0, 2, 6, newer),
        // This pool holds nothing and claims nothing.
        (0, 3, same, "alone is complete"),
        (1, 0, 6, gone),
        (1, 1, same, "alone is complete"),
        (1, 2, 6, newer),
        (1, 3, 6, gone),
        (2, 0, 6, gone),
        (2, 1, 6, older),
        (2, 2, same, "alone is complete"),
        (2, 3, 6, gone),
        // A complete disk was restored, which is as safe as without Forebay.
        (3, 0, same, "alone is complete"),
        (3, 1, 6, older),
        (3, 2, 6, older),
        (3, 3, same, "alone is complete"),
    ];
    for (pool, origin, code, says) in table {
        let what = format!("pool of moment {pool}, origin of moment {origin}");
        for accept in [&[][..], &["--accept-mark"], &["--accept-changed-origin"]] {
            // Only what is missing can be accepted, and by its own order.
            if says == gone && accept == ["--accept-mark"] {
                continue;
            }
            fs::write(b.path("pool"), &pools[pool]).unwrap();
            brought_back(&b, &origins[origin]);
            let words = [&["drain", "pool"], accept].concat();
            meets(&b, &words, code, says, &what);
        }
        if (pool, origin) == (2, 2) {
            let bytes = kept(&b).bytes;
            assert_eq!((bytes[0], bytes[BLOCK]), (1, 2), "{what}");
        }
    }
    // Another pool, which marked another origin, and another origin.
    fs::rename(b.path("pool"), b.path("mine")).unwrap();
    b.make_pool();
    b.run_ok(&["volume", "add", "pool", "v", "another"]);
    b.write_to_volume(0, &[9; BLOCK]);
    fs::rename(b.path("pool"), b.path("other")).unwrap();
    let to_origin = ["drain", "other", "--origin", "v=origin"];
    for (moment, state) in origins.iter().enumerate() {
        brought_back(&b, state);
        let what = format!("another pool, origin of moment {moment}");
        meets(&b, &to_origin, 6, "the volume was made for", &what);
        let says = if state.mark.is_some() { "of pool" } else { gone };
        for accept in [&["--accept-changed-origin"][..], &["--accept-mark"]] {
            let says = if accept == ["--accept-mark"] { "the volume was made for" } else { says };
            meets(&b, &[&to_origin, accept].concat(), 6, says, &what);
        }
    }
    fs::write(b.path("mine"), &pools[2]).unwrap();
    let to_another = ["drain", "mine", "--origin", "v=another"];
    meets(&b, &to_another, 6, "the volume was made for", "another origin");
    let by_order = [&to_another[..], &["--accept-changed-origin"]].concat();
    meets(&b, &by_order, 6, "of pool", "another origin, which is marked");
}

/// An older origin needs two orders, and each of them states what it gives up.
#[test]
fn an_older_origin_is_taken_by_two_orders() {
    let b = Bench::on_disk();
    b.make_volume();
    b.write_to_volume(0, &[1; BLOCK]);
    let older = kept(&b);
    b.run_ok(&["drain", "pool"]);
    b.write_to_volume(BLOCK as u64, &[2; BLOCK]);
    brought_back(&b, &older);
    let out = b.run(&["drain", "pool", "--accept-mark"]);
    assert_eq!(out.code, Some(6), "{out:?}");
    for words in ["forebay origin accept-loss", "--accept-mark", "newest state"] {
        assert!(out.stderr.contains(words), "{words}: {}", out.stderr);
    }
    // The removal of a volume leaves the mark of another state.
    fs::copy(b.path("pool"), b.path("copy")).unwrap();
    b.run_ok(&["volume", "remove", "copy", "v", "--discard"]);
    assert_eq!(b.run(&["origin", "status", "origin"]).code, Some(14));
    b.run_ok(&["origin", "accept-loss", "origin"]);
    assert_eq!(b.run(&["drain", "pool"]).code, Some(6));
    b.run_ok(&["drain", "pool", "--accept-mark"]);
    let bytes = kept(&b).bytes;
    assert_eq!((bytes[0], bytes[BLOCK]), (0, 2));
}

/// A state of the origin from within one attachment lacks the pages that the pool has released
/// since.
#[test]
fn a_state_from_before_destage_is_older() {
    let b = Bench::on_disk();
    b.make_volume();
    let at_once = PoolOptions { max_age: Some(Duration::from_millis(1)), ..Default::default() };
    let pool = Pool::open(&b.path("pool"), &at_once).unwrap();
    let volume = pool.attach("v", &AttachOptions::default()).unwrap();
    let destaged = || {
        let end = Instant::now() + Duration::from_secs(60);
        while volume.info().unwrap().pages > 0 {
            assert!(Instant::now() < end, "nothing is destaged");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Numbers are reserved for a part of the time only.
        std::thread::sleep(Duration::from_millis(500));
    };
    volume.write_at(&[1; BLOCK], 0).unwrap();
    destaged();
    let (older, older_pool) = (kept(&b), fs::read(b.path("pool")).unwrap());
    volume.write_at(&[2; BLOCK], BLOCK as u64).unwrap();
    destaged();
    // A kill leaves both in this state.
    let (newest, killed) = (kept(&b), fs::read(b.path("pool")).unwrap());
    volume.detach().unwrap();
    pool.close().unwrap();
    assert!(older.mark.is_some() && newest.mark.is_some() && older.mark != newest.mark);

    let try_with = |pool: &[u8], origin: &OriginState, code: i32, says: &str| {
        fs::write(b.path("pool"), pool).unwrap();
        brought_back(&b, origin);
        meets(&b, &["drain", "pool"], code, says, "within one attachment");
    };
    try_with(&killed, &older, 6, "the origin is an older state of itself");
    try_with(&older_pool, &newest, 6, "older copy of the one that marked the origin");
    let clean = OriginState { mark: None, ..older };
    try_with(&killed, &clean, 6, "whose mark is gone");
    try_with(&killed, &newest, 0, "alone is complete");
    assert_eq!(kept(&b).bytes[..2 * BLOCK], [[1; BLOCK], [2; BLOCK]].concat());
}

/// Marks of versions 1 and 2 state no last number, so they are judged by the least one.
#[test]
fn a_mark_of_a_version_before_says_the_least_number_alone() {
    let b = Bench::on_disk();
    b.make_volume();
    b.write_to_volume(0, &[1; BLOCK]);
    let state = kept(&b);
    let mark = String::from_utf8(state.mark.clone().unwrap()).unwrap();
    assert!(mark.starts_with("forebay-mark 3 "), "{mark}");
    let mut json: serde_json::Value = serde_json::from_str(mark.lines().nth(1).unwrap()).unwrap();
    for (version, absent) in [(2, "exact"), (1, "volume_uuid")] {
        json.as_object_mut().unwrap().remove(absent).unwrap();
        json["least"] = 2.into();
        let json = json.to_string();
        let crc = common::crc32c(json.as_bytes());
        let older = format!("forebay-mark {version} {crc:08x}\n{json}\n").into_bytes();
        brought_back(&b, &OriginState { mark: Some(older), ..state.clone() });
        assert_eq!(b.run(&["origin", "status", "origin"]).code, Some(14));
        // After an attach the mark has the present version.
        b.write_to_volume(0, &[version; BLOCK]);
        assert!(mark_of(&b, "origin").unwrap().starts_with(b"forebay-mark 3 "));
    }
    b.run_ok(&["drain", "pool"]);
    assert_eq!(kept(&b).bytes[..BLOCK], [1; BLOCK]);
}

/// The option applies to origins that somebody has examined.  An origin that appears while the
/// server runs may be another one.
#[test]
fn what_is_accepted_is_there_when_the_server_starts() {
    let b = Bench::new();
    b.make_volume();
    b.write("other", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "w", "other"]);
    b.write_to_volume(0, &[1; BLOCK]);
    fs::rename(b.path("origin"), b.path("away")).unwrap();
    let options = ["--accept-changed-origin", "--accept-mark", "--origin-by-name"];
    let mut server = Served::start(&b, &options);
    b.write("origin", &[7; 1 << 20]);
    let why = || {
        let status = b.run_ok(&["status", "pool", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["services"][0]["trouble"][0].as_str().map(String::from)
    };
    let start = Instant::now();
    while why().is_some_and(|why| why.contains("is not there")) {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not tried again");
        std::thread::sleep(Duration::from_millis(200));
    }
    let told = why().expect("another file was taken for the origin");
    assert!(told.contains("--accept-changed-origin"), "{told}");
    assert_eq!(server.stop(), Some(0));
    assert!(fs::read(b.path("origin")).unwrap() == [7; 1 << 20]);
    // An operator who starts the server again has examined the origin.
    fs::rename(b.path("away"), b.path("origin")).unwrap();
    b.run_ok(&["drain", "pool"]);
    assert!(fs::read(b.path("origin")).unwrap()[..BLOCK] == [1; BLOCK]);
}
