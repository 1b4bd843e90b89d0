// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGINT and SIGTERM as a flag: whoever works looks at it and ends in order.
//! The second one ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use crate::out;

#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn watch() -> std::io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the shutdown looks at the flag before it is set.
            signal_hook::flag::register_conditional_shutdown(signal, 13, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Interrupt(flag))
    }

    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// SIGHUP as a flag, for what runs as a service: a terminal that goes is no order to end,
/// and there is nothing to reload.
pub struct Hangup(Arc<AtomicBool>);

impl Hangup {
    pub fn watch() -> std::io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, flag.clone())?;
        Ok(Hangup(flag))
    }

    /// Says so, once for each.
    pub fn tell(&self) {
        if self.0.swap(false, Ordering::Relaxed) {
            out::warn("forebay: SIGHUP: there is nothing to reload; options change by forebay set, and SIGTERM ends it");
        }
    }
}

/// As many open files as are allowed: a connection takes two.
pub fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it cannot be, what there is has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// What is written beyond the limit on a file's size then fails, as on a full disk,
/// instead of ending the process.
pub fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
