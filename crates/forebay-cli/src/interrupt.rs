// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGINT and SIGTERM as a flag: whoever works looks at it and ends in order.
//! A signal that comes later, when nobody seems to look, ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::out;

/// A signal that follows the first within this time belongs to the same order. timeout(1) sends its
/// signal to the process and to its group, and a terminal sends its signal to all foreground
/// processes.
const ANOTHER: Duration = Duration::from_millis(500);

/// The exit code of a command that ended in order after a signal.
pub const INTERRUPTED: u8 = 13;

/// The exit code of a command that a later signal ended before it had ended in order.  A unit
/// treats it as a failure and starts the command again.
const CUT_OFF: u8 = 19;

#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn watch() -> std::io::Result<Self> {
        Interrupt::of(&[SIGINT, SIGTERM])
    }

    /// Like `watch`, and the end of the terminal is an order to end too, as for a session on
    /// another machine.
    pub fn watch_with_hangup() -> std::io::Result<Self> {
        Interrupt::of(&[SIGINT, SIGTERM, SIGHUP])
    }

    fn of(all: &[i32]) -> std::io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new(all)?;
        let set = flag.clone();
        let watching = std::thread::Builder::new().name("fby-signals".into()).spawn(move || {
            let mut first = None;
            for _ in signals.forever() {
                set.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() >= ANOTHER {
                    report_cut_off();
                    signal_hook::low_level::exit(CUT_OFF.into());
                }
            }
        });
        if watching.is_err() {
            // If no thread can be started, only the first signal is handled.
            for signal in all {
                signal_hook::flag::register(*signal, flag.clone())?;
            }
        }
        Ok(Interrupt(flag))
    }

    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reports it, if the reader of standard error takes that soon: such a reader may be the reason
/// why the process does not end.
fn report_cut_off() {
    let (tell, told) = mpsc::channel();
    let report = move || {
        out::warn(
            "forebay: cut off by a second signal, before it had ended in order; a pool that it had \
             open is recovered when it is opened again",
        );
        forebay::diagnostics::flush(out::PATIENCE);
        tell.send(())
    };
    if std::thread::Builder::new().spawn(report).is_ok() {
        let _ = told.recv_timeout(out::PATIENCE);
    }
}

/// SIGHUP as a flag, for a command that runs as a service.  The end of a terminal is no order to
/// end, and there is nothing to reload.
pub struct Hangup(Arc<AtomicBool>);

impl Hangup {
    pub fn watch() -> std::io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, flag.clone())?;
        Ok(Hangup(flag))
    }

    /// Reports the signal, once for each.
    pub fn tell(&self) {
        if self.0.swap(false, Ordering::Relaxed) {
            out::warn("forebay: SIGHUP: there is nothing to reload; options change by forebay set, and SIGTERM ends it");
        }
    }
}

/// A write beyond the limit on a file's size then fails, as on a full disk, instead of ending
/// the process.
pub fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
