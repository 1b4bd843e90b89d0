// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine's port asks of the machine, answered by the simulator; the
//! linker puts these in place (build.rs).

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, CStr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What each thread is at.
static CONTEXTS: Mutex<Vec<Arc<Mutex<String>>>> = Mutex::new(Vec::new());

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static CONTEXT: Arc<Mutex<String>> = {
        let mine = Arc::new(Mutex::new(String::new()));
        CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&mine));
        mine
    };
}

/// The CPU that the engine believes to run on, for this thread.
pub fn set_cpu(cpu: u32) {
    CPU.set(cpu);
}

/// What to say if the engine's assertions fail or it hangs: how to replay.
pub fn set_context(text: impl FnOnce() -> String) {
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

#[no_mangle]
extern "C" fn __wrap_fby_cpu() -> c_uint {
    CPU.get()
}

/// # Safety
/// Called by FBY_ASSERT with string constants.
#[no_mangle]
unsafe extern "C" fn __wrap_fby_assert_failed(
    condition: *const c_char,
    file: *const c_char,
    line: c_int,
) -> ! {
    // SAFETY: string constants of the C code.
    let (condition, file) = unsafe { (CStr::from_ptr(condition), CStr::from_ptr(file)) };
    let (condition, file) = (condition.to_string_lossy(), file.to_string_lossy());
    let file = file.rsplit('/').next().unwrap_or("").to_owned();
    eprintln!("forebay-sim: assertion {condition} failed ({file}:{line}); {}", context());
    std::process::exit(EXIT_ASSERTION);
}
