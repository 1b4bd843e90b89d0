// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disk of a pool that is written in groups has failed, or the file of a pool is lost.
//!
//! Memory has all that was acknowledged, and destage writes it to the origins.  It is gone with this
//! process, so the server ends only when the origins have it, or do not take it.  Each volume is waited
//! for by itself, as long as its origin progresses.  One that is not attached is attached for that.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay::{Completeness, Pool, RescueProgress, Verdict, VolumeInfo, RESCUED};

use crate::end::End;
use crate::server::Shared;
use crate::{notify, warn, Error};

/// How long an origin is waited for that takes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// One that answers with errors, or is away.
    pub errors: Duration,
    /// One that does not answer: a flush of a slow disk may take minutes.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { errors: Duration::from_secs(30), silence: Duration::from_secs(120) }
    }
}

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// So often a service manager is told that the end takes longer.
const TELL: Duration = Duration::from_secs(5);
/// The end waits this much longer than for the last silent origin.
const SPARE: Duration = Duration::from_secs(60);
/// Threads whose volumes were judged may detach them for so long.
const DETACH: Duration = Duration::from_secs(5);

/// The message that the log has of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    #[default]
    Nothing,
    Failed,
    Rescued,
}

impl Told {
    /// Says each once.
    pub fn look(&mut self, pool: &Pool) {
        if *self == Told::Rescued {
            return;
        }
        let Some(failed) = pool.failed().filter(|_| pool.lost().is_none()) else { return };
        let at_stake = pool.at_stake();
        if at_stake.is_empty() {
            return;
        }
        let (attached, others): (Vec<_>, Vec<_>) = at_stake.into_iter().partition(|v| v.attached);
        if *self == Told::Nothing {
            *self = Told::Failed;
            warn(format_args!(
                "{failed}. What its volumes hold is being written to their origins from memory: keep this server running until it says that this is done"
            ));
            others.iter().for_each(|v| {
                warn(format_args!(
                    "volume {}: is not attached, and holds {} bytes that its origin may lack: it is attached and written there when this server ends",
                    v.label(),
                    v.cached_bytes
                ))
            });
        }
        if !attached.is_empty() && attached.iter().all(|v| v.rescued) {
            *self = Told::Rescued;
            let rest = match others.is_empty() {
                true => "end the server, and replace the disk",
                false => "end the server, which then writes those that are not attached",
            };
            warn(format_args!(
                "pool {}: the origins of its attached volumes have all that was acknowledged as durable; {rest}",
                pool.path().display()
            ));
        }
    }
}

/// The present state of a volume; `None`: it was removed.
fn present(pool: &Pool, v: &VolumeInfo) -> Option<VolumeInfo> {
    pool.volumes().into_iter().find(|now| now.uuid == v.uuid)
}

/// The end of a volume's rescue.
#[derive(Debug)]
struct Outcome {
    complete: bool,
    code: u8,
    /// With the volume's name.
    text: String,
}

impl Outcome {
    fn judged(c: &Completeness) -> Outcome {
        // Only this verdict says, for a pool that has failed, that the origin has everything.
        let complete = c.complete && matches!(c.verdict, Verdict::Rescued | Verdict::Complete);
        let code = match c.exit_code() {
            0 | RESCUED if !complete => Verdict::Cached.exit_code(),
            code => code,
        };
        Outcome { complete, code, text: format!("volume {}: {c}", c.volume) }
    }

    /// The outcome as it is known without asking the origin.
    fn given_up(pool: &Pool, v: &VolumeInfo, why: &str) -> Outcome {
        let now = present(pool, v);
        let mut c = now.as_ref().unwrap_or(v).completeness();
        c.given_up = !c.complete;
        let outcome = Outcome::judged(&c);
        match outcome.complete {
            true => outcome,
            false => {
                Outcome { text: format!("{}; it was given up: {why}", outcome.text), ..outcome }
            }
        }
    }
}

/// How far the origin of one volume has come.
struct Watch {
    progress: RescueProgress,
    /// When `home` rose.
    risen: RescueProgress,
    /// Bytes that are progress though `home` does not rise: what an origin refuses is tried again
    /// and again, with all that lies behind it.
    most_bytes: u64,
    /// When it last progressed, or was heard of.
    progressed: Instant,
    errors: bool,
}

impl Watch {
    fn new(pages: u64, now: RescueProgress, at: Instant) -> Watch {
        Watch {
            progress: now,
            risen: now,
            most_bytes: 2 * pages * 4096,
            progressed: at,
            errors: false,
        }
    }

    /// `away`: its origin cannot be asked for anything.  Some: it is not to be waited for any more.
    fn look(
        &mut self,
        now: RescueProgress,
        at: Instant,
        away: bool,
        patience: &Patience,
    ) -> Option<String> {
        let before = std::mem::replace(&mut self.progress, now);
        if now.home > self.risen.home || now.written_bytes < self.risen.written_bytes {
            (self.risen, self.progressed, self.errors) = (now, at, false);
        }
        let since = now.written_bytes - self.risen.written_bytes;
        // After two rounds, what is flushed is what was written before, again.
        let flushed = now.rounds != before.rounds && now.rounds - self.risen.rounds <= 2;
        if (now.written_bytes != before.written_bytes && since <= self.most_bytes) || flushed {
            (self.progressed, self.errors) = (at, false);
        }
        self.errors |= now.errors != before.errors || away;
        let silent = at - self.progressed;
        match self.errors {
            true if silent >= patience.errors => {
                Some(format!("its origin took nothing for {} s", silent.as_secs()))
            }
            false if silent >= patience.silence => {
                Some(format!("its origin did not answer for {} s", silent.as_secs()))
            }
            _ => None,
        }
    }
}

/// A volume that is waited for.
struct Waiting {
    info: VolumeInfo,
    watch: Watch,
    given_up: Arc<AtomicBool>,
}

/// Attaches it if that is needed, and waits until its origin has everything.  It may hang with the
/// origin.
fn save(pool: &Pool, v: &VolumeInfo, given_up: &AtomicBool, tell: impl FnOnce(Outcome)) {
    let name = v.label();
    let attached = match v.attached {
        true => None,
        false => match pool.attach_for_rescue(&name, given_up) {
            Ok(volume) => Some(volume),
            Err(e) => {
                let mut c = v.completeness();
                c.not_attached(&e);
                c.given_up = true;
                tell(Outcome::judged(&c));
                return;
            }
        },
    };
    let drained = pool.drain(Some(&name), &mut |_, _| match given_up.load(Ordering::Acquire) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    tell(match drained.map(|judged| judged.into_iter().next()) {
        Ok(Some(c)) => Outcome::judged(&c),
        Ok(None) => {
            Outcome { complete: true, code: 0, text: format!("volume {name}: was removed") }
        }
        Err(e) => Outcome { complete: false, code: e.exit_code(), text: e.to_string() },
    });
    // Its mark goes, if the origin has everything.
    drop(attached);
}

/// Waits until the origins have all, and says how the server ends; `None`: neither has the disk failed
/// nor is the file lost, or no volume has anything.
pub(crate) fn rescue(shared: &Arc<Shared>, patience: &Patience) -> Option<Error> {
    let pool = shared.pool();
    let lost = pool.lost();
    match &lost {
        // A server that only reads the pool has put nothing into it.
        Some(_) if pool.read_only() => return None,
        // Nobody knows which of it is the newest.
        Some(_) if pool.is_set_back() => return None,
        Some(_) => {}
        None => drop(pool.failed()?),
    }
    let at_stake = pool.at_stake();
    if at_stake.is_empty() {
        return None;
    }
    let (path, end) = (pool.path().display(), End::of(lost.as_ref(), pool.media().size_bytes));
    let cause = end.cause;
    if at_stake.iter().any(|v| !v.rescued) {
        warn(format_args!(
            "pool {path}: {cause}, and what only this process has is written to the origins before the server ends; a second signal gives it up"
        ));
    }
    let outcomes = wait_for_all(shared, at_stake, patience);
    let left: Vec<_> = outcomes.iter().filter(|o| !o.complete).collect();
    Some(match left.first() {
        Some(first) => {
            let texts: Vec<_> = left.iter().map(|o| o.text.as_str()).collect();
            Error::service(
                end.code.unwrap_or(first.code),
                format!("pool {path}: {cause}; {}", texts.join("; ")),
                &end.way_out,
            )
        }
        None => Error::service(
            RESCUED,
            format!("pool {path}: {cause}, and the origins of its volumes have all that was acknowledged as durable"),
            end.rescued,
        ),
    })
}

fn wait_for_all(
    shared: &Arc<Shared>,
    at_stake: Vec<VolumeInfo>,
    patience: &Patience,
) -> Vec<Outcome> {
    let pool = shared.pool();
    let (sender, ended) = mpsc::channel();
    let (mut waiting, mut outcomes) = (Vec::new(), Vec::new());
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for (n, info) in at_stake.into_iter().enumerate() {
        let given_up = Arc::new(AtomicBool::new(false));
        let (sender, shared) = (sender.clone(), shared.clone());
        let (v, stop) = (info.clone(), given_up.clone());
        let work = move || save(shared.pool(), &v, &stop, |o| drop(sender.send((n, o))));
        match Builder::new().name("fby-rescue".into()).spawn(work) {
            Ok(thread) => threads.push(thread),
            Err(e) => {
                outcomes.push(Outcome::given_up(pool, &info, &format!("no thread: {e}")));
                continue;
            }
        }
        let now = pool.rescue_progress(&info).unwrap_or_default();
        waiting.push((
            n,
            Waiting { watch: Watch::new(info.pages, now, Instant::now()), info, given_up },
        ));
    }
    let mut told = None::<Instant>;
    while !waiting.is_empty() {
        if told.is_none_or(|at| at.elapsed() >= TELL) {
            told = Some(Instant::now());
            more_time(patience.silence + SPARE);
        }
        if let Ok((n, outcome)) = ended.recv_timeout(LOOK) {
            if waiting.iter().any(|(of, _)| *of == n) {
                waiting.retain(|(of, _)| *of != n);
                if !outcome.complete {
                    warn(&outcome.text);
                }
                outcomes.push(outcome);
            }
        }
        waiting.retain_mut(|(_, w)| {
            let Ok(now) = pool.rescue_progress(&w.info) else { return true };
            let away = present(pool, &w.info).is_some_and(|now| now.origin_away.is_some());
            let Some(why) = w.watch.look(now, Instant::now(), away, patience) else { return true };
            w.given_up.store(true, Ordering::Release);
            let outcome = Outcome::given_up(pool, &w.info, &why);
            warn(&outcome.text);
            outcomes.push(outcome);
            false
        });
    }
    let begun = Instant::now();
    while begun.elapsed() < DETACH && threads.iter().any(|t| !t.is_finished()) {
        std::thread::sleep(LOOK);
    }
    outcomes
}

/// A service manager ends what takes too long to end.
fn more_time(time: Duration) {
    // Nobody may be there to be told.
    let _ = notify::send(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 10;
    const PATIENCE: Patience =
        Patience { errors: Duration::from_secs(30), silence: Duration::from_secs(120) };

    /// The second in which an origin is given up that makes this of its progress in each second;
    /// `None`: it is waited for.
    fn given_up(each: impl Fn(u64, &mut RescueProgress)) -> Option<u64> {
        let (start, mut now) = (Instant::now(), RescueProgress::default());
        let mut watch = Watch::new(PAGES, now, start);
        (1..1000).find(|&second| {
            each(second, &mut now);
            let at = start + Duration::from_secs(second);
            watch.look(now, at, false, &PATIENCE).is_some()
        })
    }

    /// A page that is written or flushed again and again is no progress, whoever flushes.
    #[test]
    fn an_origin_is_waited_for_as_long_as_it_progresses() {
        assert_eq!(given_up(|_, _| ()), Some(120), "it is silent");
        assert_eq!(given_up(|_, now| now.errors += 1), Some(30), "it refuses all");
        let risen =
            |_, now: &mut RescueProgress| (now.home, now.errors) = (now.home + 1, now.errors + 1);
        assert_eq!(given_up(risen), None, "more is home");
        let flushes = |_, now: &mut RescueProgress| {
            (now.rounds, now.errors) = (now.rounds + 1, now.errors + 1)
        };
        assert_eq!(given_up(flushes), Some(2 + 30), "two rounds, and nothing more is home");
        assert_eq!(given_up(|_, now| now.rounds += 1), Some(2 + 120));
        // All that it lacks is written twice.
        let writes = |_, now: &mut RescueProgress| {
            (now.written_bytes, now.errors) = (now.written_bytes + 4096, now.errors + 1)
        };
        assert_eq!(given_up(writes), Some(2 * PAGES + 30));
        // A page in time is waited for.
        let slow = |second, now: &mut RescueProgress| now.home = second / 100;
        assert_eq!(given_up(slow), None);
        // An error of long ago does not count against an origin that progressed since.
        let once =
            |second, now: &mut RescueProgress| (now.errors, now.home) = (1, u64::from(second > 1));
        assert_eq!(given_up(once), Some(2 + 120));
    }
}
