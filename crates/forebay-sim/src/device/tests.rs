// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device as its users must see it, and a log on it: with each mistake of a list some cut
//! shows a loss, without any no cut does.

use super::wal::{recover, Io, Mistake, Wal};
use super::*;
use crate::rng::Rng;

const UNIT: usize = 1024;

fn filled(value: u8, blocks: usize) -> Vec<u8> {
    vec![value; blocks * UNIT]
}

fn device(blocks: usize) -> Device {
    Device::new(Disk::new(UNIT, blocks))
}

/// The first byte of each sector of a block, or None if it cannot be read.
fn sectors(disk: &Disk, block: usize) -> Option<Vec<u8>> {
    disk.block(block).map(|b| (0..b.sectors()).map(|n| b.sector(n)[0]).collect())
}

/// All that a cut leaves of these blocks.
fn left(device: &Device, blocks: &[usize]) -> BTreeSet<Vec<Option<Vec<u8>>>> {
    let (mut seen, bounds) = (BTreeSet::new(), Images { complete: 1 << 20, random: 0 });
    let all = device.cut().images(bounds, 1, |image| {
        seen.insert(blocks.iter().map(|b| sectors(&image.disk, *b)).collect());
        Ok::<(), ()>(())
    });
    assert_eq!(all, Ok(()));
    seen
}

/// The contents that one block may have after a cut.
fn one(device: &Device, block: usize) -> BTreeSet<Option<Vec<u8>>> {
    left(device, &[block]).into_iter().map(|mut b| b.remove(0)).collect()
}

fn set(values: &[Option<[u8; 2]>]) -> BTreeSet<Option<Vec<u8>>> {
    values.iter().map(|v| v.map(|v| v.to_vec())).collect()
}

fn write(d: &mut Device, at: usize, data: &[u8]) -> u32 {
    d.send_write((at * UNIT) as u64, data, false, Path::Straight)
}

fn flush(d: &mut Device) {
    let id = d.send_flush();
    assert!(d.end(id, End::Done, None));
}

const TORN: [Option<[u8; 2]>; 5] = [Some([0, 0]), Some([0, 1]), Some([1, 0]), Some([1, 1]), None];

#[test]
fn a_write_is_open_from_its_send_to_the_end_of_a_flush_that_was_sent_after_its_end() {
    let mut d = device(2);
    let id = write(&mut d, 0, &filled(1, 1));
    assert_eq!(one(&d, 0), set(&TORN));
    let early = d.send_flush();
    assert!(d.end(id, End::Done, None));
    assert_eq!(sectors(d.visible(), 0), Some(vec![1, 1]));
    assert!(d.end(early, End::Done, None));
    assert_eq!(one(&d, 0), set(&TORN), "the write had not ended when the flush was sent");
    let late = d.send_flush();
    assert_eq!(one(&d, 0), set(&TORN), "the flush has not ended");
    assert!(d.end(late, End::Done, None));
    assert_eq!(one(&d, 0), set(&[Some([1, 1])]));
    assert!(d.cut().is_settled());
}

#[test]
fn fua_covers_its_own_write_at_its_end() {
    let mut d = device(2);
    let plain = write(&mut d, 0, &filled(1, 1));
    d.end(plain, End::Done, None);
    let fua = d.send_write(UNIT as u64, &filled(1, 1), true, Path::Straight);
    assert_eq!(d.in_flight(), [(fua, Kind::Fua)]);
    assert_eq!(one(&d, 1), set(&TORN));
    d.end(fua, End::Done, None);
    assert_eq!(one(&d, 1), set(&[Some([1, 1])]));
    assert_eq!(one(&d, 0), set(&TORN), "a neighbour is not covered");
}

#[test]
fn of_a_block_written_twice_any_version_stays_but_none_before_a_durable_one() {
    let mut d = device(1);
    for value in [1, 2] {
        let id = write(&mut d, 0, &filled(value, 1));
        d.end(id, End::Done, None);
    }
    let any: BTreeSet<_> = one(&d, 0);
    for whole in [[0, 0], [1, 1], [2, 2], [0, 1], [1, 2], [2, 0]] {
        assert!(any.contains(&Some(whole.to_vec())), "{whole:?}");
    }
    assert!(any.contains(&None));
    let covers_both = d.send_flush();
    let id = write(&mut d, 0, &filled(3, 1));
    d.end(covers_both, End::Done, None);
    assert_eq!(one(&d, 0), set(&[Some([2, 2]), Some([2, 3]), Some([3, 2]), Some([3, 3]), None]));
    d.end(id, End::Done, None);
    flush(&mut d);
    assert_eq!(one(&d, 0), set(&[Some([3, 3])]));
}

#[test]
fn blocks_land_in_any_combination() {
    let mut d = device(3);
    write(&mut d, 0, &filled(1, 2));
    write(&mut d, 2, &filled(1, 1));
    assert_eq!(left(&d, &[0, 1, 2]).len(), 5 * 5 * 5);
}

#[test]
fn too_many_images_are_chosen_by_shape_and_at_random() {
    let mut d = device(40);
    write(&mut d, 0, &filled(1, 20));
    write(&mut d, 20, &filled(1, 20));
    let mut seen = Vec::new();
    let bounds = Images { complete: 4096, random: 64 };
    let all = d.cut().images(bounds, 7, |image| {
        seen.push((0..40).map(|b| sectors(&image.disk, b)).collect::<Vec<_>>());
        Ok::<(), ()>(())
    });
    assert_eq!(all, Ok(()));
    let (new, old) = (Some(vec![1, 1]), Some(vec![0, 0]));
    let shape = |lands: &dyn Fn(usize) -> bool| {
        (0..40).map(|b| if lands(b) { new.clone() } else { old.clone() }).collect::<Vec<_>>()
    };
    let has = |lands: &dyn Fn(usize) -> bool| assert!(seen.contains(&shape(lands)));
    has(&|_| false);
    has(&|_| true);
    for b in 0..20 {
        has(&|n| n == b);
        has(&|n| n == 20 + b);
        has(&|n| n != b);
        has(&|n| n < 20 && n != b);
        has(&|n| n <= b);
        has(&|n| n < 20 || n <= 20 + b);
        let missing = |what: &Option<Vec<u8>>| {
            seen.iter().any(|s| &s[b] == what && (0..20).all(|n| n == b || s[n] == new))
        };
        assert!(missing(&None), "block {b} unreadable, all others there");
    }
    assert!(seen.iter().any(|s| s.iter().any(|b| b == &Some(vec![0, 1]))), "some are mixed");
    assert!(seen.len() > 200, "{}", seen.len());
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "none comes twice");
}

#[test]
fn errors_of_writes_leave_nothing_some_or_all_and_no_flush_helps() {
    for (landed, visible, torn) in [
        (Landed::Nothing, [0, 0], false),
        (Landed::First(1), [1, 0], true),
        (Landed::All, [1, 1], true),
        (Landed::Later, [0, 0], true),
    ] {
        let mut d = device(2);
        let id = write(&mut d, 0, &filled(1, 2));
        assert!(!d.end(id, End::WriteFailed(landed), None));
        let shown = [0, 1].map(|b| d.visible().block(b).expect("readable").bytes()[0]);
        assert_eq!(shown, visible, "{landed:?}");
        flush(&mut d);
        let may = if torn { set(&TORN) } else { set(&[Some([0, 0])]) };
        assert_eq!(one(&d, 0), may, "{landed:?}");
        let again = d.send_write(0, &filled(2, 2), true, Path::Straight);
        d.end(again, End::Done, None);
        let after = one(&d, 0);
        assert_eq!(after.contains(&Some(vec![1, 1])), landed == Landed::Later, "{landed:?}");
    }
}

#[test]
fn a_flush_that_fails_keeps_the_cache_or_drops_it_for_good() {
    for (end, helps, visible) in [
        (End::FlushFailed, true, 1),
        (End::CacheDropped { shown: true }, false, 1),
        (End::CacheDropped { shown: false }, false, 0),
    ] {
        let mut d = device(1);
        let id = write(&mut d, 0, &filled(1, 1));
        d.end(id, End::Done, None);
        let failed = d.send_flush();
        assert!(!d.end(failed, end, None));
        assert_eq!(sectors(d.visible(), 0), Some(vec![visible; 2]), "{end:?}");
        flush(&mut d);
        let may = if helps { set(&[Some([1, 1])]) } else { set(&TORN) };
        assert_eq!(one(&d, 0), may, "{end:?}");
    }
}

#[test]
fn a_lie_shows_only_in_images_that_lost_what_was_claimed() {
    for fua in [false, true] {
        let mut d = device(1);
        let id = d.send_write(0, &filled(1, 1), fua, Path::Straight);
        assert!(d.end(id, if fua { End::Lie } else { End::Done }, None));
        if !fua {
            let id = d.send_flush();
            assert!(d.end(id, End::Lie, None));
        }
        let mut seen = BTreeSet::new();
        let bounds = Images { complete: 1000, random: 0 };
        let all = d.cut().images(bounds, 1, |image| {
            seen.insert((sectors(&image.disk, 0), image.lied));
            Ok::<(), ()>(())
        });
        assert_eq!(all, Ok(()));
        let expected = set(&TORN).into_iter().map(|s| (s.clone(), s != Some(vec![1, 1])));
        assert_eq!(seen, expected.collect());
        flush(&mut d);
        assert!(d.cut().is_settled(), "an honest flush later still finds it in the cache");
    }
}

#[test]
fn lost_and_misdirected_writes_succeed() {
    let mut d = device(4);
    let lost = d.send_write(0, &filled(1, 1), true, Path::Lost);
    let stray = d.send_write(UNIT as u64, &filled(1, 1), true, Path::Misdirected(3));
    assert!(d.end(lost, End::Done, None) && d.end(stray, End::Done, None));
    let all: Vec<_> = (0..4).map(|b| sectors(d.visible(), b)).collect();
    let (zero, one) = (Some(vec![0, 0]), Some(vec![1, 1]));
    assert_eq!(all, [zero.clone(), zero.clone(), zero, one]);
    assert!(d.cut().is_settled());
}

#[test]
fn reads_fail_once_or_for_good_are_stale_or_unreadable_after_a_cut() {
    let mut d = device(2);
    let first = |d: &mut Device| d.read(0).map(|b| b.bytes()[0]);
    for value in [1, 2] {
        let id = d.send_write(0, &filled(value, 1), true, Path::Straight);
        d.end(id, End::Done, None);
    }
    d.stale_read(0);
    assert_eq!([first(&mut d), first(&mut d)], [Some(1), Some(2)]);
    d.fail_read(0, false);
    assert_eq!([first(&mut d), first(&mut d)], [None, Some(2)]);
    d.fail_read(0, true);
    assert_eq!([first(&mut d), first(&mut d)], [None, None]);
    let id = d.send_write(0, &filled(3, 1), true, Path::Straight);
    d.end(id, End::Done, None);
    assert_eq!(first(&mut d), Some(3), "a write heals the block");
    let mut disk = Disk::new(UNIT, 2);
    disk.set(0, None);
    let mut d = Device::new(disk);
    assert_eq!(first(&mut d), None);
    assert!(d.persist(0, &filled(4, 1)));
    assert_eq!(first(&mut d), Some(4));
}

#[test]
fn a_device_that_goes_fails_all_that_is_in_flight_and_later() {
    let mut d = device(3);
    let ended = write(&mut d, 0, &filled(1, 1));
    d.end(ended, End::Done, None);
    let under_way = write(&mut d, 1, &filled(1, 1));
    let flush = d.send_flush();
    d.go();
    assert!(!d.end(under_way, End::Done, None) && !d.end(flush, End::Done, None));
    assert_eq!([one(&d, 0), one(&d, 1)], [set(&TORN), set(&TORN)]);
    let later = d.send_write(2 * UNIT as u64, &filled(1, 1), true, Path::Straight);
    assert!(!d.end(later, End::Done, None));
    assert_eq!(one(&d, 2), set(&[Some([0, 0])]));
    assert!(d.read(0).is_none() && d.is_gone());
}

#[test]
fn misuse_is_told_once() {
    type Wrong = fn(&mut Device);
    let cases: [(&str, Wrong); 6] = [
        ("half a block", |d| _ = d.send_write(0, &[0; UNIT / 2], false, Path::Straight)),
        ("off a block", |d| _ = d.send_write(512, &[0; UNIT], false, Path::Straight)),
        ("past the end", |d| _ = write(d, 3, &filled(0, 2))),
        ("over one in flight", |d| {
            write(d, 0, &filled(1, 2));
            write(d, 1, &filled(1, 1));
        }),
        ("changed in flight", |d| {
            let id = write(d, 0, &filled(1, 2));
            d.end(id, End::Done, Some(&[filled(1, 1), filled(2, 1)].concat()));
        }),
        ("no such command", |d| _ = d.end(77, End::Done, None)),
    ];
    for (what, wrong) in cases {
        let mut d = device(4);
        wrong(&mut d);
        assert!(d.misuse().is_some(), "{what}");
        assert!(d.misuse().is_none(), "{what}");
    }
    let mut d = device(4);
    let id = write(&mut d, 0, &filled(1, 2));
    write(&mut d, 2, &filled(1, 2));
    d.end(id, End::Done, Some(&filled(1, 2)));
    assert_eq!(d.misuse(), None);
}

#[test]
fn each_event_is_recorded_as_a_cut() {
    let mut d = device(2);
    d.record();
    assert!(d.persist(0, &filled(1, 1)));
    let settled: Vec<bool> = d.events().iter().map(Cut::is_settled).collect();
    assert_eq!(settled, [false, false, false, true], "send, end, flush sent, flush ended");
    assert!(d.events().is_empty());
    let counts = Counts { writes: 1, fua: 0, flushes: 1, bytes: UNIT as u64 };
    assert_eq!(d.counts(), counts);
}

// --- a log on the device ---------------------------------------------------------------

/// The events that the driver may cause, and how often in a run.
#[derive(Clone, Copy)]
struct World {
    records: u64,
    fua: bool,
    faults: u32,
    lies: bool,
}

#[derive(Default)]
struct Seen {
    runs: u64,
    cuts: u64,
    images: u64,
    distinct: std::collections::HashSet<u64>,
}

enum Step {
    Append,
    Send,
    End(u32, End),
}

fn steps(device: &Device, wal: &Wal, world: World, faults: u32, idle: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    if wal.appended() < world.records {
        steps.push(Step::Append);
    }
    if !idle {
        steps.push(Step::Send);
    }
    for (id, kind) in device.in_flight() {
        let done = if world.lies && kind != Kind::Write { End::Lie } else { End::Done };
        steps.push(Step::End(id, done));
        if faults < world.faults {
            steps.extend(match kind {
                Kind::Flush => {
                    vec![
                        Step::End(id, End::FlushFailed),
                        Step::End(id, End::CacheDropped { shown: true }),
                    ]
                }
                _ => vec![
                    Step::End(id, End::WriteFailed(Landed::Nothing)),
                    Step::End(id, End::WriteFailed(Landed::First(1))),
                    Step::End(id, End::WriteFailed(Landed::All)),
                ],
            });
        }
    }
    steps
}

/// One run: nothing that was acknowledged is ever missing from what a cut leaves, and what is
/// there is a beginning of what was appended.
fn run(
    choices: &mut Choices,
    world: World,
    mistake: Mistake,
    seen: &mut Seen,
) -> Result<(), String> {
    const BLOCKS: usize = 24;
    let mut device = Device::new(Disk::new(UNIT, BLOCKS));
    let mut wal = Wal::new(UNIT, UNIT * BLOCKS, world.fua, mistake);
    let (mut faults, mut number, mut names) = (0, 0u32, BTreeMap::new());
    seen.runs += 1;
    // Nothing to send: nothing has changed since it was asked.
    let mut idle = true;
    loop {
        let steps = steps(&device, &wal, world, faults, idle);
        if steps.is_empty() {
            return match wal.acknowledged() == world.records && wal.idle() {
                true => Ok(()),
                false => Err("the log does not go on".into()),
            };
        }
        match steps[choices.choose(steps.len())] {
            Step::Append => {
                wal.append();
                idle = false;
            }
            Step::Send => {
                number += 1;
                match wal.next(number) {
                    None => idle = true,
                    Some(Io::Flush) => drop(names.insert(device.send_flush(), (number, None))),
                    Some(Io::Write { at, len, fua }) => {
                        let data = &wal.image[at..][..len];
                        let id = device.send_write(at as u64, data, fua, Path::Straight);
                        names.insert(id, (number, Some(at..at + len)));
                    }
                }
            }
            Step::End(id, end) => {
                let (name, bytes) = names.remove(&id).expect("a command in flight");
                let ok = device.end(id, end, bytes.map(|b| &wal.image[b]));
                faults += u32::from(!ok);
                wal.end(name, ok);
                idle = false;
            }
        }
        if let Some(misuse) = device.misuse() {
            return Err(misuse);
        }
        if !choices.fresh() {
            continue;
        }
        seen.cuts += 1;
        let bounds = Images { complete: 700, random: 8 };
        device.cut().images(bounds, seen.cuts, |image| {
            seen.images += 1;
            seen.distinct.insert(image.disk.hash());
            let found = recover(&image.disk, mistake);
            let right = found.iter().zip(1..).all(|(id, n)| *id == n);
            let n = found.len() as u64;
            if !right || n > wal.appended() {
                return Err(format!("{found:?} is no beginning of what was appended"));
            }
            match n < wal.acknowledged() && !image.lied {
                true => Err(format!("{} are acknowledged, {n} are there", wal.acknowledged())),
                false => Ok(()),
            }
        })?;
    }
}

/// All runs, or as many as there is patience for.
fn all(world: World, mistake: Mistake, most: u64) -> (Seen, Result<(), String>) {
    let (mut seen, mut choices) = (Seen::default(), Choices::all());
    loop {
        if let Err(e) = run(&mut choices, world, mistake, &mut seen) {
            return (seen, Err(e));
        }
        if !choices.advance() {
            return (seen, Ok(()));
        }
        assert!(seen.runs < most, "{mistake:?}: more than {most} runs");
    }
}

const PLAIN: World = World { records: 2, fua: false, faults: 0, lies: false };

#[test]
fn no_cut_of_any_schedule_loses_what_the_log_has_acknowledged() {
    for (world, at_least) in [
        (World { records: 3, ..PLAIN }, 100),
        (World { records: 3, fua: true, ..PLAIN }, 30),
        (World { faults: 1, ..PLAIN }, 100),
        (World { faults: 1, fua: true, ..PLAIN }, 30),
        (World { lies: true, ..PLAIN }, 10),
    ] {
        let (seen, result) = all(world, Mistake::None, 100_000);
        println!(
            "{} runs, {} cuts, {} images, {} distinct",
            seen.runs,
            seen.cuts,
            seen.images,
            seen.distinct.len()
        );
        assert_eq!(result, Ok(()));
        assert!(seen.runs >= at_least, "{} runs", seen.runs);
    }
}

#[test]
fn nor_of_long_ones_with_faults() {
    let world = World { records: 8, faults: 2, ..PLAIN };
    let mut seen = Seen::default();
    for seed in 0..60 {
        let world = World { fua: seed % 2 == 1, ..world };
        let result = run(&mut Choices::drawn(seed), world, Mistake::None, &mut seen);
        assert_eq!(result, Ok(()), "seed {seed}");
    }
    assert!(seen.distinct.len() > 10_000, "{}", seen.distinct.len());
}

/// Each mistake with the smallest world in which it can show.
#[test]
fn each_mistake_of_the_log_is_found() {
    use Mistake::*;
    let fua = World { fua: true, ..PLAIN };
    let faulty = World { faults: 1, ..PLAIN };
    for (mistake, world) in [
        (AcknowledgedWhenSent, PLAIN),
        (NoFlush, PLAIN),
        (FuaAsWrite, fua),
        (FlushCoversSent, PLAIN),
        (FlushErrorForgotten, faulty),
        (SentTrusted, faulty),
        (BlockShared, PLAIN),
        (WriteErrorIgnored, faulty),
        (ChangedInFlight, PLAIN),
        (TornTaken, PLAIN),
        (GapEndsWalk, faulty),
        (TwoInFlight, fua),
    ] {
        let (seen, result) = all(world, mistake, 200_000);
        println!("{mistake:?}: {} runs, {} images: {result:?}", seen.runs, seen.images);
        assert!(result.is_err(), "{mistake:?} was not found in {} runs", seen.runs);
    }
}

/// A log cannot find out that the device lies.  The images say where it shows.
#[test]
fn a_device_that_lies_about_flushes_loses_what_was_acknowledged() {
    let mut device = device(4);
    let mut wal = Wal::new(UNIT, 4 * UNIT, false, Mistake::None);
    wal.append();
    let Some(Io::Write { at, len, fua }) = wal.next(1) else { panic!("a write") };
    let write = device.send_write(at as u64, &wal.image[at..][..len], fua, Path::Straight);
    let ok = device.end(write, End::Done, None);
    wal.end(1, ok);
    assert_eq!(wal.next(2), Some(Io::Flush));
    let flush = device.send_flush();
    let ok = device.end(flush, End::Lie, None);
    wal.end(2, ok);
    assert_eq!(wal.acknowledged(), 1);
    let (mut rng, mut lost) = (Rng::new(1), 0);
    for _ in 0..100 {
        let image = device.cut().draw(&mut rng);
        let gone = recover(&image.disk, Mistake::None).is_empty();
        assert!(!gone || image.lied);
        lost += u32::from(gone);
    }
    assert!((1..100).contains(&lost), "{lost} of 100");
}
