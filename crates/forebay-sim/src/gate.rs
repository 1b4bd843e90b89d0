// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is told when a flush of the origin fails, step by step: the simulation
//! meets these interleavings as well, but only now and then.

use crate::drains::{Run, EIO, SECTORS};
use crate::engine::{Decision, Past, Ticket, Wait};
use crate::pattern;
use forebay_engine::sys;

/// Runs all cases; returns what is wrong.
pub fn all() -> Result<(), String> {
    destage_tells_at_once()?;
    what_was_not_sent_lost_nothing()?;
    all_are_told()?;
    each_is_told_of_its_own()?;
    what_ends_beside_a_failing_flush_is_told()?;
    a_part_that_is_lost_is_told()?;
    a_flush_aside_hides_nothing()?;
    a_failure_outlives_the_attachment()?;
    each_client_is_told_once()?;
    a_zeroing_past_the_cache_is_claimed()
}

fn want(what: &str, ok: bool) -> Result<(), String> {
    match ok {
        true => Ok(()),
        false => Err(format!("not so: {what}")),
    }
}

/// A run with something past the cache that was not flushed, and nothing else owed.
fn run_past() -> Run {
    let mut run = Run::new();
    run.flush(0).expect("the first flush");
    run.past(7, 48, 8);
    run
}

/// The flush of destage fails, and takes along what went past the cache.  No step
/// comes between that and the flush of a client.
fn destage_tells_at_once() -> Result<(), String> {
    let mut run = run_past();
    let io = run.drain_to_the_flush();
    run.lose();
    run.engine.destage_complete(io.id, EIO);
    want("a client's flush after a failed one of destage's is told", run.flush(0).is_err())?;
    want("it is told once", run.flush(0) == Ok(Decision::Origin))
}

/// A detach gives up the flush of destage before the origin has it.
fn what_was_not_sent_lost_nothing() -> Result<(), String> {
    let mut run = run_past();
    let io = run.drain_to_the_flush();
    run.engine.destage_complete(io.id, sys::FBY_NOT_SENT);
    want("a client's flush is told of no failure", run.flush(0) == Ok(Decision::Origin))?;
    want("and that one was of all", run.flush(0) == Ok(Decision::Done))
}

/// Two flushes overlap, and the origin tells one of them, or destage.
fn all_are_told() -> Result<(), String> {
    for of_destage in [false, true] {
        let mut run = run_past();
        let (mut a, mut b) = (Ticket::default(), Ticket::default());
        let io = of_destage.then(|| run.drain_to_the_flush());
        let first = run.engine.flush_begin(0, &mut a).map_err(|e| e.to_string())?;
        let second = run.engine.flush_begin(0, &mut b).map_err(|e| e.to_string())?;
        want("one flush is in flight at a time", second == Decision::Wait(Wait::Flush))?;
        run.lose();
        match io {
            Some(io) => {
                run.engine.destage_complete(io.id, EIO);
                want("the first waits for destage", first == Decision::Wait(Wait::Flush))?;
                want("the first is told", run.engine.flush_begin(0, &mut a).is_err())?;
            }
            None => {
                want("the first goes to the origin", first == Decision::Origin)?;
                want("the first is told", run.engine.flush_end(&mut a, EIO, &mut 0).is_err())?;
            }
        }
        want("the second is told", run.engine.flush_begin(0, &mut b).is_err())?;
        want("who comes later is not", run.flush(0) == Ok(Decision::Origin))?;
    }
    Ok(())
}

/// A durable write past the cache waits for its own flush, and is not told of an earlier
/// failure; a failure that it is told of, a flush of everything is told of as well.
fn each_is_told_of_its_own() -> Result<(), String> {
    let mut run = run_past();
    let io = run.drain_to_the_flush();
    run.engine.destage_complete(io.id, EIO);
    let mut own = Ticket::default();
    let part = run.engine.bypass_begin(0, 56, 8, 1).ok().and_then(Past::begun);
    let part = part.ok_or("blocks that are not cached")?;
    run.engine.bypass_end(part, 0, Some(&mut own));
    let sent = run.engine.flush_begin(0, &mut own);
    want("its flush goes to the origin", sent == Ok(Decision::Origin))?;
    want("its flush is no failure", run.engine.flush_end(&mut own, 0, &mut 0).is_ok())?;
    want("the failure before it is told to a flush of all", run.flush(0).is_err())?;

    let mut own = Ticket::default();
    let part = run.engine.bypass_begin(0, 56, 8, 1).ok().and_then(Past::begun);
    let part = part.ok_or("blocks that are not cached")?;
    run.engine.bypass_end(part, 0, Some(&mut own));
    let sent = run.engine.flush_begin(0, &mut own);
    want("its flush goes to the origin", sent == Ok(Decision::Origin))?;
    want("its failure is told", run.engine.flush_end(&mut own, EIO, &mut 0).is_err())?;
    want("and to a flush of all", run.flush(0).is_err())
}

/// Data acknowledged while a flush is in flight may be lost by the flush's failure.  That
/// flush, or one that waits for it, does not stand for the data: the next flush of everything
/// is told as well.  A write that was in flight then is told itself.
fn what_ends_beside_a_failing_flush_is_told() -> Result<(), String> {
    for (of_destage, in_flight) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut run = run_past();
        let mut a = Ticket::default();
        let io = of_destage.then(|| run.drain_to_the_flush());
        let first = run.engine.flush_begin(0, &mut a).map_err(|e| e.to_string())?;
        let part = run.engine.bypass_begin(0, 56, 8, 1).ok().and_then(Past::begun);
        let (mut part, mut b) = (part, Ticket::default());
        want("blocks that are not cached", part.is_some())?;
        if !in_flight {
            run.engine.bypass_end(part.take().expect("it has begun"), 0, Some(&mut b));
            want("it may be acknowledged", run.engine.flush_later(&mut b).is_ok())?;
        }
        run.lose();
        match io {
            Some(io) => {
                run.engine.destage_complete(io.id, EIO);
                want("it waits for destage", first == Decision::Wait(Wait::Flush))?;
                want("who waited is told", run.engine.flush_begin(0, &mut a).is_err())?;
            }
            None => {
                want("its failure is told", run.engine.flush_end(&mut a, EIO, &mut 0).is_err())?
            }
        }
        match part {
            Some(part) => {
                run.engine.bypass_end(part, 0, Some(&mut b));
                want("what was in flight then is told", run.engine.flush_later(&mut b).is_err())?;
            }
            None => want("what ended beside it is told to the next", run.flush(0).is_err())?,
        }
        want("and once", run.flush(0) == Ok(Decision::Origin))?;
        run.past(9, 48, 8);
        want("what is written then is well", run.flush(0) == Ok(Decision::Origin))?;
    }
    Ok(())
}

/// A write past the cache in two parts: between them a flush of all that began after the
/// first is told of a failure.  It stands for no write that was not acknowledged.
fn a_part_that_is_lost_is_told() -> Result<(), String> {
    for before in [true, false] {
        let mut run = run_past();
        let (mut write, mut a) = (Ticket::default(), Ticket::default());
        let part = run.engine.bypass_begin(0, 56, 8, 1).ok().and_then(Past::begun);
        let part = part.ok_or("blocks that are not cached")?;
        run.engine.bypass_end(part, 0, Some(&mut write));
        want("it is sent", run.engine.flush_begin(0, &mut a) == Ok(Decision::Origin))?;
        if before {
            run.lose();
            want("it is told", run.engine.flush_end(&mut a, EIO, &mut 0).is_err())?;
            want("so is the write", run.engine.flush_later(&mut write).is_err())?;
        } else {
            // The rest went through the cache.
            want("it may be acknowledged", run.engine.flush_later(&mut write).is_ok())?;
            run.lose();
            want("it is told", run.engine.flush_end(&mut a, EIO, &mut 0).is_err())?;
            want("so is the next, for the write", run.flush(0).is_err())?;
        }
        want("once", run.flush(0) == Ok(Decision::Origin))?;
    }
    Ok(())
}

/// A host's own flush is told, and hides nothing from those who have written.
fn a_flush_aside_hides_nothing() -> Result<(), String> {
    for destage in [false, true] {
        let mut run = run_past();
        let mut own = Ticket::aside();
        let io = destage.then(|| run.drain_to_the_flush());
        let begun = run.engine.flush_begin(0, &mut own).map_err(|e| e.to_string())?;
        run.lose();
        match io {
            Some(io) => {
                run.engine.destage_complete(io.id, EIO);
                want("it waits for destage", begun == Decision::Wait(Wait::Flush))?;
                want("it is told", run.engine.flush_begin(0, &mut own).is_err())?;
            }
            None => want("it is told", run.engine.flush_end(&mut own, EIO, &mut 0).is_err())?,
        }
        want("and again", run.engine.flush_begin(0, &mut Ticket::aside()).is_err())?;
        want("so are those who have written", run.flush(0).is_err())?;
        want("once", run.flush(0) == Ok(Decision::Origin))?;
        let after = run.engine.flush_begin(0, &mut Ticket::aside());
        want("and then it is not told any more", after == Ok(Decision::Done))?;
    }
    Ok(())
}

/// A failure that nobody was told of yet is told after a detach and an attach, and not
/// to the first flush of a volume that is new.
fn a_failure_outlives_the_attachment() -> Result<(), String> {
    for told in [false, true] {
        let mut run = run_past();
        let io = run.drain_to_the_flush();
        run.lose();
        run.engine.destage_complete(io.id, EIO);
        if told {
            want("it is told", run.flush(0).is_err())?;
        }
        let step = run.engine.destage_step(0).map_err(|e| e.to_string())?;
        want("destage waits before it tries again", step.io.is_none())?;
        run.engine.volume_detach(0).map_err(|e| e.to_string())?;
        run.attach();
        if !told {
            want("it is told after the attach", run.flush(0).is_err())?;
        }
        want("the first flush goes to the origin", run.flush(0) == Ok(Decision::Origin))?;
        want("and the next need not", run.flush(0) == Ok(Decision::Done))?;
    }
    Ok(())
}

/// Each client is told, whoever was before, and once; one that is new is told of what
/// nobody was told of, and not of older.
fn each_client_is_told_once() -> Result<(), String> {
    let mut run = run_past();
    let begin = |run: &mut Run, told: u32| {
        let mut ticket = Ticket::client(told);
        let begun = run.engine.flush_begin(0, &mut ticket);
        (begun.map_err(|e| e.to_string()), ticket.told())
    };
    let first = run.engine.flush_told(0);
    let io = run.drain_to_the_flush();
    run.lose();
    run.engine.destage_complete(io.id, EIO);
    let new = run.engine.flush_told(0);
    let mut told = Vec::new();
    for before in [first, first, new] {
        let (begun, after) = begin(&mut run, before);
        want("a client that nobody told is told", begun.is_err() && after != before)?;
        told.push(after);
    }
    for client in told {
        let mut ticket = Ticket::client(client);
        let begun = run.engine.flush_begin(0, &mut ticket).map_err(|e| e.to_string())?;
        want("it is not told again", begun != Decision::Wait(Wait::Flush))?;
        if begun == Decision::Origin {
            run.engine.flush_end(&mut ticket, 0, &mut 0).map_err(|e| e.to_string())?;
        }
    }
    let late = run.engine.flush_told(0);
    let (begun, after) = begin(&mut run, late);
    want("one that is new is not told what was told", begun.is_ok() && after == late)
}

/// A zeroing (or discard) and a write of one block: the second to come waits.
fn a_zeroing_past_the_cache_is_claimed() -> Result<(), String> {
    for kind in [sys::FBY_KIND_ZERO, sys::FBY_KIND_DISCARD] {
        let run = run_past();
        let past = match run.engine.range(0, kind, 40, SECTORS - 40, &mut 0, &mut 0) {
            Ok(Past::Origin(past)) => past,
            other => return Err(format!("a range that is not cached: {other:?}")),
        };
        want("it ends at a cached block", past.nsectors() == 24)?;
        let data = vec![0; 8 * pattern::SECTOR];
        let through = run.engine.write(0, 40, &data, &mut 0, &mut 0);
        want("a write through the cache waits", through == Ok(Decision::Wait(Wait::Block)))?;
        let over = run.engine.bypass_begin(0, 48, 8, 1);
        want("a write past it waits", matches!(over, Ok(Past::Wait(Wait::Block))))?;
        run.engine.bypass_end(past, 0, None);
        let through = run.engine.write(0, 40, &data, &mut 0, &mut 0);
        want("then no more", through == Ok(Decision::Done))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate() {
        all().unwrap();
    }

    /// A client's write past the cache fails before each request of destage's: that
    /// says nothing of destage's blocks.
    #[test]
    fn failing_writes_past_the_cache_do_not_hold_up_a_drain() {
        let requests = Run::new().drain_beside(|_, _| {}).unwrap();
        let mut run = Run::new();
        let beside = run.drain_beside(|run, _| {
            let part = run.engine.bypass_begin(0, 48, 8, 1).unwrap().begun();
            run.engine.bypass_end(part.unwrap(), EIO, None);
        });
        assert_eq!(beside, Ok(requests));
        run.assert_drained();
    }

    /// A client's flush fails before each request of destage's, as far as it gets to
    /// the origin: a round is done again once, and then holds the gate.
    #[test]
    fn failing_flushes_do_not_hold_up_a_drain() {
        let requests = Run::new().drain_beside(|_, _| {}).unwrap();
        let (mut run, mut failed, mut waited) = (Run::new(), 0, 0);
        let beside = run.drain_beside(|run, _| {
            run.past(1, 48, 8);
            match run.flush(EIO) {
                Err(_) => {
                    failed += 1;
                    run.lose();
                }
                Ok(d) => waited += u32::from(d == Decision::Wait(Wait::Flush)),
            }
        });
        let beside = beside.unwrap();
        assert!(failed > 2 && waited > 2, "{failed} failed, {waited} waited");
        assert!(beside <= 3 * requests, "{beside} requests, {requests} without");
        run.lose();
        run.assert_drained();
    }
}
