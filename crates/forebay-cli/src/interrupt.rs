// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGINT and SIGTERM as a flag: whoever works looks at it and ends in order.
//! The second one ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

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

/// What is written beyond the limit on a file's size then fails, as on a full disk,
/// instead of ending the process.
pub fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
