// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever a crash leaves of a tree, the replay makes of it and of the log what was
//! acknowledged.  Method: bounded workloads as ACE of CrashMonkey has them, run by the
//! live part on a simulated tree; the crash after each event of tree and log, names and
//! attributes as a prefix, data as a subset of sectors; replay, then an oracle; and the
//! replay itself cut after each of its own events, and run again.  The tree has the mark of
//! its mount from its first entry to the replay's end: its log is let at it, and another
//! only where it lacks nothing.

mod at_once;
mod gate;
mod limits;
mod oracle;
pub mod sim;
pub mod workloads;
mod write_back;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use forebay::Uuid;

use super::planted::{plant, Bug, ALL, OF_GROUPS, OF_MARKS, OF_NAMES, OF_WAITS};
use super::{printable, replay, Accept, ReplayError, ReplayOptions, STAGING};
use crate::mark::{self, Verdict};
use crate::record::{Entry, Record};
use crate::recover;
use crate::tree::Tree;
use oracle::{judge, Truth};
use sim::{Disk, Event, SimTree, State, ROOT_INO};
use workloads::{acts, run, run_with, Act, Durable, Ran, PERIOD, POOL};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    pub fn index(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[derive(Debug, Default)]
struct Counts {
    workloads: u64,
    crashes: u64,
    replays: u64,
    cut_replays: u64,
    distinct: HashSet<u64>,
}

fn hash(state: &State, log: &Log) -> u64 {
    let mut h = DefaultHasher::new();
    (state, log).hash(&mut h);
    h.finish()
}

/// The state after a crash: names up to a point, and none, all or some of the data.
fn crash(disk: &Disk, rng: &mut Rng) -> State {
    let point = rng.index(disk.points());
    let how = rng.index(4);
    let mut chance = Rng(rng.next());
    disk.crash(point, &mut || match how {
        0 => false,
        1 => true,
        _ => chance.next() & 1 == 1,
    })
}

/// The log is in a period.
fn is_logging(events: &[Event]) -> bool {
    let last = events.iter().rev().find_map(|e| match e {
        Event::Period(on) => Some(*on),
        _ => None,
    });
    last == Some(true)
}

/// The last group that the log has forgotten.
fn synced_of(events: &[Event]) -> u64 {
    let synced =
        events.iter().filter_map(|e| if let Event::LogSync(t) = e { Some(*t) } else { None });
    synced.max().unwrap_or(0)
}

/// The entries that are left of the log.
pub fn log_of(events: &[Event]) -> Vec<Vec<u8>> {
    log_with(events, 0)
}

/// The log after these events, with so many of the entries that were submitted and are not settled.
fn log_with(events: &[Event], more: usize) -> Vec<Vec<u8>> {
    if !is_logging(events) {
        return Vec::new();
    }
    let (synced, mut there) = (synced_of(events), settled_of(events) + more);
    let left = events.iter().filter_map(|e| match e {
        Event::Append(txg, body) => Some((*txg, body)),
        Event::Submit(txg, body) => {
            let is_there = there > 0;
            there = there.saturating_sub(1);
            is_there.then_some((*txg, body))
        }
        _ => None,
    });
    left.filter(|(txg, _)| *txg > synced).map(|(_, body)| body.clone()).collect()
}

fn settled_of(events: &[Event]) -> usize {
    let settled = events.iter().filter_map(|e| match e {
        Event::Settled(number) => Some(*number as usize),
        _ => None,
    });
    settled.max().unwrap_or(0)
}

/// How many entries were submitted and are not settled.
fn unsettled_of(events: &[Event]) -> usize {
    let submitted = events.iter().filter(|e| matches!(e, Event::Submit(..))).count();
    submitted.saturating_sub(settled_of(events))
}

/// Who replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    /// For whom modes count.
    Owner,
}

/// Replays as [`crate::recover`] does, and says what the tree's durable state comes to, with
/// what happened on the way.
fn replayed(state: &State, log: &Log, who: Who) -> Result<(State, Vec<Event>), String> {
    let tree = match who {
        Who::Root => SimTree::new(state.clone()),
        Who::Owner => SimTree::new(state.clone()).owned(),
    };
    let found = mark::find(&tree).map_err(|e| e.to_string())?;
    let period = log.period.then_some(PERIOD);
    let verdict = mark::judge(&found, POOL, "mount", period).map_err(|e| e.to_string())?;
    if log.period && verdict == Verdict::Replay {
        let all = mark::objections(&tree, &found, log.synced).map_err(|e| e.to_string())?;
        recover::accepted_of(all, &Accept::default()).map_err(|e| e.to_string())?;
    }
    let destroy = || {
        tree.event(Event::Period(false));
        Ok(())
    };
    if !log.period || verdict == Verdict::Complete {
        recover::clear(&tree, destroy).map_err(|e| e.to_string())?;
    } else {
        if verdict == Verdict::Unmarked && !log.entries.is_empty() {
            return Err("entries, and no mark".into());
        }
        let options = ReplayOptions::default();
        replay(&tree, &log.entries, &options, &mut |_, _| {}).map_err(|e| e.to_string())?;
        recover::end(&tree, destroy).map_err(|e| e.to_string())?;
    }
    let (mut disk, trace) = (Disk::new(state.clone()), tree.trace());
    trace.iter().for_each(|e| disk.feed(e));
    let left = tree.names(&ROOT_INO).unwrap();
    if let Some(own) = left.iter().find(|n| mark::is_own(n) || **n == *STAGING) {
        return Err(format!("{} is left in the tree", printable(own)));
    }
    Ok((disk.crash(0, &mut || false), trace))
}

/// Another log may have the tree only if it lacks nothing.
fn another(state: &State, truths: &[&Truth]) -> Result<(), String> {
    let found = mark::find(&SimTree::new(state.clone())).map_err(|e| e.to_string())?;
    match mark::judge(&found, Uuid([9; 16]), "mount", None) {
        Ok(_) => judge(state, truths).map_err(|e| format!("another log may have it, and {e}")),
        Err(_) => Ok(()),
    }
}

/// The log after a crash.
#[derive(Clone, Debug, Hash)]
struct Log {
    period: bool,
    synced: u64,
    entries: Vec<Vec<u8>>,
}

impl Log {
    fn of(events: &[Event]) -> Log {
        Log::with(events, 0)
    }

    fn with(events: &[Event], more: usize) -> Log {
        let entries = log_with(events, more);
        Log { period: is_logging(events), synced: synced_of(events), entries }
    }

    /// The log after these events of a replay.
    fn after(&self, events: &[Event]) -> Log {
        match events.iter().any(|e| matches!(e, Event::Period(false))) {
            true => Log { period: false, synced: 0, entries: Vec::new() },
            false => self.clone(),
        }
    }
}

/// The replay of one in `every` crashes is cut in its turn.
fn explore(
    ran: &Ran,
    who: Who,
    samples: usize,
    every: usize,
    rng: &mut Rng,
    counts: &mut Counts,
) -> Result<(), String> {
    counts.workloads += 1;
    let mut seen = HashSet::new();
    let mut disk = Disk::new(ran.base.clone());
    for at in 0..=ran.trace.len() {
        if at > 0 {
            disk.feed(&ran.trace[at - 1]);
        }
        let truths: Vec<&Truth> = ran.truths(at);
        let unsettled = unsettled_of(&ran.trace[..at]);
        for sample in 0..samples {
            let more = if unsettled == 0 { 0 } else { rng.index(unsettled + 1) };
            let log = Log::with(&ran.trace[..at], more);
            let state = crash(&disk, rng);
            counts.crashes += 1;
            let key = hash(&state, &log);
            counts.distinct.insert(key);
            // The same state may be right before a step has ended and wrong afterwards.
            if !seen
                .insert((key, truths.iter().map(|t| std::ptr::from_ref(*t)).collect::<Vec<_>>()))
            {
                continue;
            }
            let context = |e: String| format!("crash at event {at}, sample {sample}: {e}");
            counts.replays += 1;
            another(&state, &truths).map_err(context)?;
            let (end, trace) = replayed(&state, &log, who).map_err(context)?;
            judge(&end, &truths).map_err(context)?;
            if rng.index(every) != 0 {
                continue;
            }
            let mut again = Disk::new(state.clone());
            for (cut, event) in trace.iter().enumerate() {
                again.feed(event);
                let state = crash(&again, rng);
                counts.cut_replays += 1;
                let context =
                    |e: String| context(format!("replay cut after {cut} and run again: {e}"));
                let log = log.after(&trace[..=cut]);
                another(&state, &truths).map_err(context)?;
                let (end, _) = replayed(&state, &log, who).map_err(context)?;
                judge(&end, &truths).map_err(context)?;
            }
        }
    }
    Ok(())
}

/// The workloads of a length: all, or one in `every`.
fn sweep(
    length: u32,
    every: u64,
    samples: usize,
    seed: u64,
    counts: &mut Counts,
) -> Option<String> {
    let acts = acts();
    let total = (acts.len() as u64).pow(length);
    let mut rng = Rng(seed);
    let mut n = seed % every;
    while n < total {
        let (mut rest, mut workload) = (n, Vec::new());
        for _ in 0..length {
            workload.extend(acts[(rest % acts.len() as u64) as usize].clone());
            rest /= acts.len() as u64;
        }
        for (i, durable) in Durable::ALL.into_iter().enumerate() {
            // A longer workload runs with one of them.
            if length > 1 && (n / every) % Durable::ALL.len() as u64 != i as u64 {
                continue;
            }
            let ran = run_with(durable, &workload, None);
            if let Err(e) = explore(&ran, Who::Root, samples, 3, &mut rng, counts) {
                return Some(format!(
                    "{workload:?} (length {length}, number {n}, seed {seed}, {durable:?}): {e}"
                ));
            }
        }
        n += every;
    }
    None
}

fn told(counts: &Counts, what: &str) {
    println!(
        "{what}: {} workloads, {} crashes, {} distinct states, {} replays, {} of them cut and run again",
        counts.workloads,
        counts.crashes,
        counts.distinct.len(),
        counts.replays + counts.cut_replays,
        counts.cut_replays
    );
}

/// `MOUNT_MODEL=whole`: length 2 whole and more of length 3, in minutes.
pub fn whole() -> bool {
    std::env::var("MOUNT_MODEL").is_ok_and(|v| v == "whole")
}

#[test]
fn bounded_workloads() {
    let (two, three) = if whole() { (1, 1009) } else { (151, 40009) };
    for (length, every, samples) in [(1, 1, 6), (2, two, 3), (3, three, 2)] {
        let mut counts = Counts::default();
        let violation = sweep(length, every, samples, 1, &mut counts);
        told(&counts, &format!("length {length}"));
        assert_eq!(violation, None);
    }
}

/// `MOUNT_MODEL_SECONDS=n`, `MOUNT_MODEL_SEED=first`: workloads of length 2 to 5, a seed
/// each, for so long.
#[test]
fn random_workloads() {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let limit = Duration::from_secs(number("MOUNT_MODEL_SECONDS").unwrap_or(0));
    let (start, acts, mut counts) = (Instant::now(), acts(), Counts::default());
    for seed in number("MOUNT_MODEL_SEED").unwrap_or(1).. {
        let mut rng = Rng(seed);
        let length = 2 + rng.index(4);
        let workload: Vec<Act> =
            (0..length).flat_map(|_| acts[rng.index(acts.len())].clone()).collect();
        let durable = Durable::ALL[(seed % Durable::ALL.len() as u64) as usize];
        let ran = run_with(durable, &workload, None);
        let violation = explore(&ran, Who::Root, 4, 3, &mut rng, &mut counts).err();
        assert_eq!(violation, None, "{workload:?} (seed {seed}, {durable:?})");
        if start.elapsed() >= limit {
            break;
        }
    }
    told(&counts, "length 2 to 5");
}

/// For each mistake the workload that shows it.
fn shown_by(bug: Bug) -> &'static [Act] {
    use Act::*;
    match bug {
        Bug::ByName => &[Link("foo", "bar")],
        Bug::UnlinkForgotten => &[Unlink("A/bar"), Fsync("A")],
        Bug::RenameOverWithoutData => &[Write("foo", 0, 600), Rename("foo", "A/bar")],
        Bug::SyncedWithoutEntry | Bug::SyncedIgnored => {
            &[Write("foo", 0, 600), Fsync("foo"), Write("foo", 0, 1200), Fsync("foo")]
        }
        Bug::CheckpointTooEarly => &[Rename("foo", "A/bar"), Fsync("A/bar")],
        Bug::SizeNotRestored => &[Truncate("foo", 700), Fsync("foo")],
        Bug::VoidIgnored => &[Create("full")],
        Bug::OldIdentityTaken => &[Unlink("foo"), Create("foo"), Fsync("foo")],
        Bug::StagingForgotten => &[Create("bar")],
        Bug::LinkIsACopy => &[Link("foo", "bar"), Fsync("foo")],
        Bug::ExchangeHalf => &[Exchange("foo", "A/bar")],
        Bug::KeptTooLong => &[
            Write("foo", 0, 600),
            Allocate("foo", crate::record::Allocate::Punch, 0, 512),
            Fsync("foo"),
        ],
        Bug::ReplacedOnItsWay => &[Rename("foo", "A/bar")],
        // The staging directory and its list are the first two of what is made.
        Bug::GoneForgotten => &[
            Create("a"),
            Chmod("a", 0o600),
            Create("b"),
            Chmod("b", 0o600),
            Create("c"),
            Write("c", 0, 600),
            Fsync("c"),
        ],
        Bug::UnlinkInsteadOfStaging => &[Rename("foo", "bar")],
        Bug::AttributesForgotten => &[Chmod("A", 0o700), Fsync("A")],
        Bug::RefusedRmdirDone => &[Rmdir("A")],
        // At its old name it is an inode that nothing knows.
        Bug::LeftOutForgotten => &[Create("bar"), Rename("bar", "foo"), Rename("foo", "A/long")],
        Bug::MarkNotSynced
        | Bug::MarkRemovedAtOnce
        | Bug::PeriodEndsFirst
        | Bug::MarkOfAnyPeriod => &[Write("foo", 0, 600), Fsync("foo")],
        Bug::LeftOutLosesName => &[Rename("foo", "A/long")],
        Bug::TreeBeforeWait => &[Write("foo", 0, 600), Fsync("foo"), Unlink("foo"), Create("foo")],
        Bug::NamesNotWaited => &[Rename("foo", "bar"), Fsync("bar")],
        // The log has the first name, and the tree has the second.
        Bug::NamesTwice | Bug::ReachedTooLate => &[Create("bar"), Rename("bar", "A/foo")],
        Bug::ContentForgotten => &[Write("foo", 0, 600), Fsync("foo"), Rename("foo", "bar")],
        Bug::ReplacedTooEarly => &[Write("foo", 0, 600), Rename("foo", "A/bar")],
        Bug::LinkReplacedTooEarly => {
            &[Symlink("B/s"), Sync, Write("foo", 0, 600), Rename("foo", "B/s")]
        }
        Bug::SizesTooEarly => &[Truncate("foo", 700)],
        Bug::SyncOfContentAlone => &[Create("bar"), Fsync("A")],
        // The rename is durable, and the tree lacks it.
        Bug::OutOfOrder => &[Beside(&Rename("foo", "A/bar"), &Create("B/x"), 0)],
        Bug::GroupBeforeTree | Bug::GroupAfterLog | Bug::GroupIgnored | Bug::GroupNotSynced => {
            &[Write("foo", 0, 600), Fsync("foo"), Sync, Create("bar"), Sync, Unlink("A/bar")]
        }
        // The bugs for super::beside.
        _ => &[],
    }
}

#[test]
fn planted_bugs_are_caught() {
    let mut missed = Vec::new();
    for bug in ALL.into_iter().chain(OF_MARKS).chain(OF_WAITS).chain(OF_NAMES) {
        let workload = shown_by(bug);
        let durable = match (OF_WAITS.contains(&bug), OF_NAMES.contains(&bug)) {
            (true, _) => Durable::AtWait,
            (_, true) => Durable::BeforeWait,
            _ => Durable::AtOnce,
        };
        let explored = |bug| {
            let ran = run_with(durable, workload, bug);
            plant(bug);
            let found = explore(&ran, Who::Root, 40, 1, &mut Rng(1), &mut Counts::default());
            plant(None);
            found.err()
        };
        assert_eq!(explored(None), None, "{workload:?}, and no mistake");
        match explored(Some(bug)) {
            Some(by) => {
                println!("{bug:?}: {workload:?}: {}", by.chars().take(400).collect::<String>())
            }
            None => missed.push(bug),
        }
    }
    assert_eq!(missed, []);
}

/// Each state that a crash may leave of the tree, with the log as it was then, before that,
/// and later, in the same period.  `true`: it was refused.
fn pairs(ran: &Ran, rng: &mut Rng) -> Result<[u64; 2], String> {
    let mut counts = [0; 2];
    let mut disk = Disk::new(ran.base.clone());
    for at in 0..ran.worked.end {
        disk.feed(&ran.trace[at]);
        // Before the mark is durable it is a tree that any log without entries may have.
        for _ in 0..if at + 1 < ran.worked.start { 0 } else { 3 } {
            let state = crash(&disk, rng);
            for of in ran.worked.start..ran.worked.end {
                let log = Log::of(&ran.trace[..of]);
                let older_pool = synced_of(&ran.trace[..=at]) > log.synced;
                let context = |e: String| format!("tree of event {at}, log of {of}: {e}");
                let refused = match replayed(&state, &log, Who::Root) {
                    // Within a group the log has what the tree lacks, be it older or not.
                    Ok((end, _)) if of > at => {
                        judge(&end, &ran.truths(of)).map_err(context)?;
                        false
                    }
                    Ok(_) => false,
                    Err(e) if of == at + 1 => return Err(context(format!("refused: {e}"))),
                    Err(_) => true,
                };
                if older_pool && of < at && !refused && log.synced + 1 < synced_of(&ran.trace[..at])
                {
                    return Err(context("an older pool is let at it".into()));
                }
                counts[usize::from(refused)] += 1;
            }
        }
    }
    Ok(counts)
}

#[test]
fn an_older_tree_or_pool_is_refused_or_lacks_nothing() {
    use Act::*;
    let workloads: [&[Act]; 3] = [
        shown_by(Bug::GroupIgnored),
        &[Create("bar"), Fsync("bar"), Sync, Rename("foo", "bar"), Sync, Truncate("A/bar", 10)],
        &[
            Mkdir("C"),
            Sync,
            Write("A/bar", 0, 900),
            Fsync("A/bar"),
            Sync,
            Chmod("foo", 0o600),
            Sync,
        ],
    ];
    let (mut taken, mut refused) = (0, 0);
    for workload in workloads {
        let pairs = pairs(&run(workload, None), &mut Rng(1)).unwrap();
        taken += pairs[0];
        refused += pairs[1];
    }
    println!("{taken} pairs of tree and log replayed, {refused} refused");
    assert!(taken > 100 && refused > 100);
}

#[test]
fn planted_bugs_of_the_number_are_caught() {
    for bug in OF_GROUPS {
        let ran = run(shown_by(bug), Some(bug));
        plant(Some(bug));
        let crashed = explore(&ran, Who::Root, 40, 1, &mut Rng(1), &mut Counts::default());
        let paired = (0..20).try_for_each(|seed| pairs(&ran, &mut Rng(seed)).map(drop));
        plant(None);
        println!("{bug:?}: {crashed:?}, {paired:?}");
        assert!(crashed.is_err() || paired.is_err(), "{bug:?} is not caught");
    }
}

/// At the first event the log has the entry and no Void yet.
#[test]
fn an_operation_under_way_is_left_out_if_that_is_accepted() {
    use Act::*;
    let accept = ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() };
    let replay_of = |log: &[Vec<u8>], state: &State, options: &ReplayOptions| {
        let tree = SimTree::new(state.clone());
        (replay(&tree, log, options, &mut |_, _| {}), tree.now())
    };
    let ran = run(&[Create("quota")], None);
    let log = log_of(&ran.trace[..ran.worked.start + 1]);
    assert_eq!(log.len(), 1);
    let (refused, _) = replay_of(&log, &ran.base, &ReplayOptions::default());
    assert!(matches!(refused, Err(ReplayError::UnderWay { .. })), "{refused:?}");
    let (done, end) = replay_of(&log, &ran.base, &accept);
    assert_eq!(done.unwrap().left_out, ["put in place quota (Disk quota exceeded (os error 122))"]);
    let truth = ran.truths(0)[0];
    judge(&end, &[truth]).unwrap();

    // A later change of the same directory was begun: the first one was over.
    let ran = run(&[Create("quota"), Create("bar")], None);
    let mut log = ran.log();
    log.retain(|body| {
        let is_void = |r: Record<'_>| matches!(r, Record::Void { .. });
        !Entry::parse(body).unwrap().records().any(|r| is_void(r.unwrap()))
    });
    assert_eq!(log.len(), 2);
    let (refused, _) = replay_of(&log, &ran.base, &accept);
    assert!(matches!(refused, Err(ReplayError::Tree { .. })), "{refused:?}");
}

/// The replay refuses a log that speaks of its own directory.
#[test]
fn no_program_can_have_the_replays_own_name() {
    use Act::*;
    const OWN: &str = ".forebay-replay";
    let acts = [
        Create(OWN),
        Mkdir(OWN),
        Symlink(OWN),
        Link("foo", OWN),
        Rename("foo", OWN),
        Rename("A", OWN),
        Exchange("foo", OWN),
    ];
    for act in acts {
        let ran = run(&[act], None);
        let log = ran.log();
        assert!(log.is_empty(), "{act:?}");
        judge(&ran.last, &ran.truths(0)).unwrap();
    }
}

/// A sync of the file that came after it shows that the change of its size was done.
#[test]
fn an_operation_before_a_sync_was_not_under_way() {
    use Act::*;
    let ran = run(&[Truncate("foo", 2 << 20), Write("foo", 0, 600), Fsync("foo")], None);
    let mut log = ran.log();
    let is_void = |body: &Vec<u8>| {
        let mut records = Entry::parse(body).unwrap().records();
        records.any(|r| matches!(r.unwrap(), Record::Void { .. }))
    };
    let voids = log.iter().filter(|body| is_void(body)).count();
    assert_eq!(voids, 1, "the tree refuses such a size");
    log.retain(|body| !is_void(body));
    for accept in [Accept::default(), Accept::all()] {
        let options = ReplayOptions { accept, ..ReplayOptions::default() };
        let tree = SimTree::new(ran.base.clone());
        let done = replay(&tree, &log, &options, &mut |_, _| {});
        assert!(matches!(done, Err(ReplayError::Tree { .. })), "{accept}: {done:?}");
    }
}

/// An owner who is not root: files that he may not write and directories that he may not
/// change are replayed like others, and have their modes at the end, also when the replay
/// was cut on the way.
#[test]
fn an_owner_replays_what_its_modes_forbid() {
    use Act::*;
    let workloads: &[&[Act]] = &[
        &[Write("foo", 0, 600), Fsync("foo"), Chmod("foo", 0o400)],
        &[Chmod("foo", 0o400), Xattr("foo")],
        // Its mode was set before the log began.
        &[Chmod("foo", 0o400), Sync, Write("foo", 0, 600), Fsync("foo")],
        &[Chmod("foo", 0o400), Sync, Xattr("foo"), Truncate("foo", 700)],
        &[
            Create("A/foo"),
            Write("A/foo", 0, 800),
            Fsync("A/foo"),
            Chmod("A/foo", 0),
            Chmod("A", 0o500),
        ],
        &[Chmod("A", 0o500), Sync, Unlink("A/bar"), Create("A/foo"), Link("foo", "A/D")],
        &[Chmod("A", 0o500), Sync, Rename("foo", "A/bar"), Rename("A/bar", "B/foo")],
        &[Mkdir("C"), Create("C/x"), Chmod("C", 0o500)],
        &[Chmod("B", 0o500), Sync, Rename("B", "A/D"), Chmod("A", 0o500)],
        &[Chmod("B", 0o500), Chmod("A", 0o500), Sync, Exchange("foo", "A/bar"), Rmdir("B")],
    ];
    let mut counts = Counts::default();
    for workload in workloads {
        let ran = run(workload, None);
        let explored = explore(&ran, Who::Owner, 20, 1, &mut Rng(1), &mut counts);
        assert_eq!(explored, Ok(()), "{workload:?}");
    }
    told(&counts, "as an owner");
}

#[test]
fn acts_are_many() {
    assert!(acts().len() > 60);
    let _: &[Act] = &acts()[0];
}
