// SPDX-License-Identifier: MIT OR Apache-2.0
//! The message of a run when the engine's assertions fail or it hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use crate::wrapped::set_cpu;

/// The present work of each thread.
static CONTEXTS: Mutex<Vec<Arc<Mutex<String>>>> = Mutex::new(Vec::new());

thread_local! {
    static CONTEXT: Arc<Mutex<String>> = {
        let mine = Arc::new(Mutex::new(String::new()));
        CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&mine));
        mine
    };
}

/// Sets the message for a failed assertion or a hang: how to replay the run.
pub fn set_context(text: impl FnOnce() -> String) {
    crate::wrapped::on_failed_assertion(failed);
    CONTEXT.with(|c| *c.lock().unwrap_or_else(PoisonError::into_inner) = text());
    progress();
}

fn context() -> String {
    CONTEXT.with(|c| c.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

fn contexts() -> String {
    let all = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.iter().map(|c| c.lock().unwrap_or_else(PoisonError::into_inner).clone());
    all.filter(|c| !c.is_empty()).collect::<Vec<_>>().join(" or ")
}

static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// Something ended; tells the watchdog that nothing hangs.
pub fn progress() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the process if nothing makes progress for `limit`: an endless loop in
/// the engine would hang the simulator, which has no other way out of it.
pub fn watchdog(limit: Duration) {
    std::thread::spawn(move || {
        let mut seen = PROGRESS.load(Ordering::Relaxed);
        loop {
            std::thread::sleep(limit);
            let now = PROGRESS.load(Ordering::Relaxed);
            if now == seen {
                let at = contexts();
                eprintln!("forebay-sim: no progress for {limit:?}: endless loop; {at}");
                std::process::exit(EXIT_HANG);
            }
            seen = now;
        }
    });
}

pub const EXIT_ASSERTION: i32 = 70;
pub const EXIT_HANG: i32 = 71;

fn failed(condition: &str, file: &str, line: i32) -> ! {
    eprintln!("forebay-sim: assertion {condition} failed ({file}:{line}); {}", context());
    std::process::exit(EXIT_ASSERTION);
}
