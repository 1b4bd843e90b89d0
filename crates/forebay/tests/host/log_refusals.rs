// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a log names what it refuses, and writes nothing.
//!
//! Method: a table with a row for each refusal: the log's state, the call, the engine's error,
//! words of the message.  The test compares the bytes of the pool before and after, except the
//! seal lines, which change now and then anyway.

use std::time::Duration;

use crate::common::*;
use forebay::*;
use forebay_engine::sys;

/// A log that something is asked of.
struct Bed<'a> {
    dir: &'a Dir,
    pool: Pool,
    log: Log,
    claimed: Option<Claimed>,
}

const NAME: &str = "l";

fn options(full_ms: u64) -> LogOptions {
    LogOptions { full_timeout: Some(Duration::from_millis(full_ms)) }
}

fn bed(dir: &Dir, home: LogHome) -> Bed<'_> {
    let pool = open(&dir.pool(12));
    pool.log_add(NAME, home).unwrap();
    let log = pool.log(NAME, &options(20)).unwrap();
    Bed { dir, pool, log, claimed: None }
}

/// In no state.
fn none(dir: &Dir) -> Bed<'_> {
    bed(dir, LogHome::Embedded)
}

/// Txg 5 is synced, and nothing appended yet.
fn empty(dir: &Dir) -> Bed<'_> {
    let b = none(dir);
    b.log.create(5).unwrap();
    b
}

/// Three entries, of txgs 6 and 7.
fn logging(dir: &Dir) -> Bed<'_> {
    let b = empty(dir);
    for (txg, body) in [(6, "a"), (6, "b"), (7, "c")] {
        b.log.append(txg, Generation::New, &[body.as_bytes()]).unwrap();
    }
    b
}

/// The log after a crash.
fn unclaimed(dir: &Dir) -> Bed<'_> {
    crashed(logging(dir))
}

fn crashed(b: Bed<'_>) -> Bed<'_> {
    let copy = b.dir.path("crashed");
    std::fs::copy(b.dir.path("pool"), &copy).unwrap();
    let dir = b.dir;
    drop(b);
    std::fs::rename(copy, dir.path("pool")).unwrap();
    let pool = open(&dir.path("pool"));
    let log = pool.log(NAME, &options(20)).unwrap();
    Bed { dir, pool, log, claimed: None }
}

fn replaying(dir: &Dir) -> Bed<'_> {
    let mut b = unclaimed(dir);
    b.claimed = Some(b.log.claim().unwrap());
    b
}

static BIG: [u8; 30 << 10] = [9; 30 << 10];

fn full(dir: &Dir) -> Bed<'_> {
    let b = empty(dir);
    while b.log.try_append(6, Generation::Same, &[&BIG]).is_ok() {}
    b
}

/// A log in state none, with another log in use.
fn beside_other(dir: &Dir) -> Bed<'_> {
    with_other(none(dir))
}

fn with_other(b: Bed<'_>) -> Bed<'_> {
    b.pool.log_add("other", LogHome::Embedded).unwrap();
    b.pool.log("other", &options(0)).unwrap().create_as(OTHER, 0).unwrap();
    b
}

/// Header with the consumer, not claimed since a crash; another log is in use.
fn consumer(dir: &Dir) -> Bed<'_> {
    let b = bed(dir, LogHome::Consumer);
    b.log.create(5).unwrap();
    b.log.append(6, Generation::New, &[b"a"]).unwrap();
    crashed(with_other(b))
}

const OTHER: Uuid = Uuid(*b"the other's GUID");

fn header_of(guid: [u8; 16], state: u8) -> LogHeader {
    let mut bytes = [0; LOG_HEADER_BYTES];
    bytes[..16].copy_from_slice(&guid);
    bytes[16] = state;
    LogHeader::from_bytes(&bytes).unwrap()
}

fn txg_6_synced(dir: &Dir) -> Bed<'_> {
    let b = logging(dir);
    b.log.sync(6).unwrap();
    b
}

struct Row {
    what: &'static str,
    state: for<'a> fn(&'a Dir) -> Bed<'a>,
    call: fn(&mut Bed<'_>) -> Result<()>,
    /// The engine's error; 0: the pool was full.
    code: i32,
    says: &'static str,
}

fn append(b: &Bed<'_>, txg: u64) -> Result<()> {
    b.log.append(txg, Generation::New, &[b"x"]).map(drop)
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { what: "append of an obsolete txg", state: logging, call: |b| append(b, 5),
          code: sys::FBY_E_LOG_OBSOLETE, says: "txg 5 refused: txg 5 is synced already; append to txg 6 to 8" },
    Row { what: "the same, as the first one", state: empty, call: |b| append(b, 5),
          code: sys::FBY_E_LOG_OBSOLETE, says: "txg 5 refused: txg 5 is synced already; append to txg 6 to 8" },
    Row { what: "append of txg 0", state: empty, call: |b| append(b, 0),
          code: sys::FBY_E_LOG_OBSOLETE, says: "txg 0 refused" },
    Row { what: "append of a txg that was just synced", state: txg_6_synced, call: |b| append(b, 6),
          code: sys::FBY_E_LOG_OBSOLETE, says: "append to txg 7 to 9" },
    Row { what: "append of a skipping txg", state: logging, call: |b| append(b, 9),
          code: sys::FBY_E_LOG_SKIPS, says: "txg 9 refused: it is more than three above 5" },
    Row { what: "the same, as the first one", state: empty, call: |b| append(b, 9),
          code: sys::FBY_E_LOG_SKIPS, says: "txg 9 refused: it is more than three above 5" },
    Row { what: "append of the highest txg", state: empty, call: |b| append(b, u64::MAX),
          code: sys::FBY_E_LOG_SKIPS, says: "more than three above 5" },
    Row { what: "append in no state", state: none, call: |b| append(b, 1),
          code: sys::FBY_E_LOG_STATE, says: "it is in no state: not created, or destroyed; create it first" },
    Row { what: "append while replaying", state: replaying, call: |b| append(b, 7),
          code: sys::FBY_E_LOG_STATE, says: "what is left of it is being replayed; replay it to the end" },
    Row { what: "append while unclaimed", state: unclaimed, call: |b| append(b, 7),
          code: sys::FBY_E_LOG_UNCLAIMED, says: "are to be claimed and replayed first" },
    Row { what: "append of more than the limit", state: empty,
          call: |b| {
              let most = b.log.info()?.largest_entry_bytes as usize;
              b.log.append(6, Generation::New, &[&vec![0; most], b"x"]).map(drop)
          },
          code: sys::FBY_E_LOG_TOO_LARGE, says: "bytes refused: the largest entry has" },
    Row { what: "append to a full pool, no wait", state: full,
          call: |b| b.log.try_append(6, Generation::New, &[&BIG]).map(drop),
          code: 0, says: "log l: no space for an append in " },
    Row { what: "append to a full pool, 20 ms", state: full,
          call: |b| b.log.append(6, Generation::New, &[&BIG]).map(drop),
          code: 0, says: "log l: no space for an append in " },
    Row { what: "sync backwards", state: txg_6_synced, call: |b| b.log.sync(5).map(drop),
          code: sys::FBY_E_LOG_BACKWARDS, says: "a later transaction group is synced already" },
    Row { what: "sync of the highest txg", state: logging, call: |b| b.log.sync(u64::MAX).map(drop),
          code: sys::FBY_E_NUMBERS, says: "log l: " },
    Row { what: "sync in no state", state: none, call: |b| b.log.sync(1).map(drop),
          code: sys::FBY_E_LOG_STATE, says: "it is in no state" },
    Row { what: "sync while unclaimed", state: unclaimed, call: |b| b.log.sync(7).map(drop),
          code: sys::FBY_E_LOG_UNCLAIMED, says: "are to be claimed and replayed first" },
    Row { what: "sync while replaying", state: replaying, call: |b| b.log.sync(7).map(drop),
          code: sys::FBY_E_LOG_STATE, says: "is being replayed" },
    Row { what: "a second claim", state: replaying, call: |b| b.log.claim().map(drop),
          code: sys::FBY_E_LOG_STATE, says: "it is claimed already" },
    Row { what: "a claim of a log in use", state: logging, call: |b| b.log.claim().map(drop),
          code: sys::FBY_E_LOG_STATE, says: "it is claimed already" },
    Row { what: "destroy before the replay's end", state: replaying,
          call: |b| b.claimed.take().expect("a claim").destroy().map(drop),
          code: sys::FBY_E_LOG_STATE, says: "it is not replayed to its end" },
    Row { what: "create in use", state: logging, call: |b| b.log.create(5).map(drop),
          code: sys::FBY_E_LOG_STATE, says: "it is in use, with entries that count" },
    Row { what: "create while unclaimed", state: unclaimed, call: |b| b.log.create(5).map(drop),
          code: sys::FBY_E_LOG_STATE, says: "it is in use, with entries that count" },
    Row { what: "create while replaying", state: replaying, call: |b| b.log.create(5).map(drop),
          code: sys::FBY_E_LOG_STATE, says: "is being replayed" },
    Row { what: "create with the highest txg", state: none, call: |b| b.log.create(u64::MAX).map(drop),
          code: sys::FBY_E_NUMBERS, says: "log l: " },
    Row { what: "create with another log's GUID", state: beside_other,
          call: |b| b.log.create_as(OTHER, 0).map(drop),
          code: sys::FBY_E_LOG_GUID, says: "another log or period has this GUID" },
    Row { what: "create without a GUID", state: none, call: |b| b.log.create_as(Uuid::default(), 0).map(drop),
          code: sys::FBY_E_LOG_GUID, says: "GUID" },
    Row { what: "a consumer's header, of another log", state: consumer,
          call: |b| b.log.claim_with(&header_of(OTHER.0, 1), 0).map(drop),
          code: sys::FBY_E_LOG_GUID, says: "another log or period has this GUID" },
    Row { what: "a consumer's header, of an earlier period", state: consumer,
          call: |b| b.log.claim_with(&header_of([7; 16], 1), 0).map(drop),
          code: sys::FBY_E_LOG_PERIOD, says: "older than the log's newest period: " },
    Row { what: "a consumer's claim, as if there had been no period", state: consumer,
          call: |b| b.log.claim_with(&LogHeader::default(), 0).map(drop),
          code: sys::FBY_E_LOG_PERIOD, says: "and none was brought; bring what was stored by the last call that returned a header" },
    Row { what: "a consumer's claim without the header", state: consumer, call: |b| b.log.claim().map(drop),
          code: sys::FBY_E_LOG_HEADER, says: "its header is with the consumer" },
    Row { what: "a consumer's claim, txg too high", state: consumer,
          call: |b| b.log.claim_with(&header_of([7; 16], 1), u64::MAX).map(drop),
          code: sys::FBY_E_NUMBERS, says: "log l: " },
    Row { what: "a header for a log that keeps it", state: unclaimed,
          call: |b| b.log.claim_with(&header_of([7; 16], 1), 0).map(drop),
          code: sys::FBY_E_LOG_HEADER, says: "its header is in the pool" },
    Row { what: "a consumer's create before the claim", state: consumer, call: |b| b.log.create(5).map(drop),
          code: sys::FBY_E_LOG_UNCLAIMED, says: "are to be claimed and replayed first" },
    Row { what: "a consumer's release before the claim", state: consumer, call: |b| b.log.release(),
          code: sys::FBY_E_LOG_UNCLAIMED, says: "are to be claimed and replayed first" },
    Row { what: "release in use", state: logging, call: |b| b.log.release(),
          code: sys::FBY_E_LOG_STATE, says: "it is in use" },
    Row { what: "remove with handles", state: logging, call: |b| b.pool.log_remove(NAME, true),
          code: sys::FBY_E_BUSY, says: "handles of it are in use" },
    Row { what: "a second log of the name", state: logging,
          call: |b| b.pool.log_add(NAME, LogHome::Embedded).map(drop),
          code: sys::FBY_E_VOLUME_EXISTS, says: "of this name exists" },
];

/// All but the lines that seal chunks.
fn unsealed(dir: &Dir) -> Vec<u8> {
    let mut bytes = std::fs::read(dir.path("pool")).unwrap();
    for chunk in bytes.chunks_mut(CHUNK as usize).skip(1) {
        chunk[128..512].fill(0);
    }
    bytes
}

fn code_of(e: &Error) -> i32 {
    match e {
        Error::Log { code, .. } => *code,
        Error::LogFull { .. } => 0,
        e => panic!("{e:?}"),
    }
}

#[test]
fn what_is_refused_is_named_and_writes_nothing() {
    for row in ROWS {
        let dir = Dir::new("log-refusals");
        let mut b = (row.state)(&dir);
        let (before, info) = (unsealed(&dir), b.log.info().unwrap());
        let e = (row.call)(&mut b).expect_err(row.what);
        assert_eq!(code_of(&e), row.code, "{}: {e}", row.what);
        assert!(e.to_string().contains(row.says), "{}: {e}", row.what);
        assert!(e.exit_code() != 0 && e.errno() != 0, "{}: {e}", row.what);
        assert!(unsealed(&dir) == before, "{}: something was written", row.what);
        assert_eq!(b.log.info().unwrap(), info, "{}", row.what);
    }
}

// --- records -------------------------------------------------------------------------------

/// Edits both copies of the log's record in the second place of the table.
fn edit_record(dir: &Dir, edit: impl Fn(&mut [u8])) {
    let path = dir.path("pool");
    let mut bytes = std::fs::read(&path).unwrap();
    for at in [8192, 8192 + 256] {
        edit(&mut bytes[at..at + 256]);
    }
    std::fs::write(&path, bytes).unwrap();
}

/// A log whose record cannot be read may be of any name: none is made in its place, and
/// nobody is told that there is none.
#[test]
fn a_damaged_record_is_not_taken_for_no_log() {
    let dir = Dir::new("log-record");
    drop(logging(&dir));
    edit_record(&dir, |record| record[40] ^= 1);
    let before = std::fs::read(dir.path("pool")).unwrap();
    let pool =
        Pool::open(&dir.path("pool"), &PoolOptions { read_only: true, ..Default::default() })
            .unwrap();
    for e in [pool.log(NAME, &options(0)).unwrap_err(), pool.log_info(NAME).unwrap_err()] {
        assert!(matches!(e, Error::Damaged { .. }), "{e:?}");
        assert!(e.to_string().contains("forebay volume remove POOL '#0' --discard"), "{e}");
    }
    assert!(pool.logs().is_empty() && pool.volumes()[0].damaged);
    pool.close().unwrap();
    assert!(std::fs::read(dir.path("pool")).unwrap() == before);
    // No log is made, and none of its entries are freed.
    let pool = open(&dir.path("pool"));
    let e = pool.log_add(NAME, LogHome::Embedded).unwrap_err();
    assert_eq!((matches!(e, Error::Damaged { .. }), e.exit_code()), (true, 5), "{e:?}");
    pool.close().unwrap();
    edit_record(&dir, |record| record[40] ^= 1);
    let pool = open(&dir.path("pool"));
    let mut claimed = pool.log(NAME, &options(0)).unwrap().claim().unwrap();
    let report = claimed.replay(|_, _| Effect::Durable).unwrap();
    assert_eq!((report.replayed, report.end), (3, ReplayEnd::Complete));
    // If it is lost for good, an explicit order makes room.
    drop((claimed, pool));
    edit_record(&dir, |record| record[40] ^= 1);
    let pool = open(&dir.path("pool"));
    pool.volume_remove("#0", true).unwrap();
    pool.log_add(NAME, LogHome::Embedded).unwrap();
}
