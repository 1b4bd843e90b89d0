// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disk of a pool that is written in groups has failed.
//!
//! Memory has all that was acknowledged, and destage writes it to the origins.  It is gone with this
//! process, so the server ends only when the origins have it, or do not take it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use forebay::{DrainProgress, Pool, RESCUED};

use crate::{warn, Error};

/// An origin that takes nothing for so long is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the log has of it.
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
        let Some(failed) = pool.failed() else { return };
        let attached: Vec<_> = pool.volumes().into_iter().filter(|v| v.attached).collect();
        if attached.is_empty() {
            return;
        }
        if *self == Told::Nothing {
            *self = Told::Failed;
            warn(format_args!(
                "{failed}. What its volumes hold is being written to their origins from memory: keep this server running until it says that this is done"
            ));
        }
        if attached.iter().all(|v| v.rescued) {
            *self = Told::Rescued;
            warn(format_args!(
                "pool {}: the origins of its volumes have all that was acknowledged as durable; end the server, and replace the disk",
                pool.path().display()
            ));
        }
    }
}

/// Waits until the origins have all, and says how the server ends; `None`: the disk has not
/// failed, or no volume is attached.
pub(crate) fn rescue(pool: &Pool) -> Option<Error> {
    pool.failed()?;
    let attached: Vec<_> = pool.volumes().into_iter().filter(|v| v.attached).collect();
    if attached.is_empty() {
        return None;
    }
    let path = pool.path().display();
    if attached.iter().any(|v| !v.rescued) {
        warn(format_args!(
            "pool {path}: its disk has failed, and what only memory has is written to the origins before the server ends; a second signal gives it up"
        ));
    }
    let mut stuck = Stuck::default();
    let drained = pool.drain(None, &mut |volume, progress| stuck.goes_on(volume, progress));
    let judged = drained.or_else(|e| match e {
        forebay::Error::Interrupted { .. } => {
            attached.iter().map(|v| pool.completeness(&v.label())).collect()
        }
        e => Err(e),
    });
    let judged = match judged {
        Ok(judged) => judged,
        Err(e) => return Some(Error::Pool(e)),
    };
    Some(match judged.iter().find(|c| !c.complete) {
        Some(c) => Error::service(
            c.exit_code(),
            format!("pool {path}: its disk has failed; volume {}: {c}", c.volume),
            "if the disk comes back, the pool on it has what was acknowledged as durable",
        ),
        None => Error::service(
            RESCUED,
            format!("pool {path}: its disk has failed, and the origins of its volumes have all that was acknowledged as durable"),
            "replace the disk, and make a new pool there",
        ),
    })
}

/// Since when each origin has taken nothing.
#[derive(Default)]
struct Stuck(HashMap<String, Instant>);

impl Stuck {
    fn goes_on(&mut self, volume: &str, p: &DrainProgress) -> ControlFlow<()> {
        if p.origin_error.is_none() && p.origin_away.is_none() {
            self.0.remove(volume);
            return ControlFlow::Continue(());
        }
        let since = self.0.entry(volume.into()).or_insert_with(Instant::now);
        match since.elapsed() >= PATIENCE {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
