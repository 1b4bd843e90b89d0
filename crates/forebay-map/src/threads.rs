// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of the library.  Programs depend on them in ways that cannot return an error, such
//! as a store to an absent segment or a write-back.  So a panic in one of them ends the
//! process: otherwise programs would wait forever, and stores would go unnoticed.

use std::io;
use std::thread::{Builder, JoinHandle};

struct EndsProcess(String);

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = format!(
                "forebay: thread {} of the library has panicked: the process ends, since stores \
                 would go unnoticed; what was synced is kept in the pool, and a recovery \
                 writes it back\n",
                self.0
            );
            forebay_engine::stderr::say(text.as_bytes());
            std::process::abort();
        }
    }
}

pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let ends = EndsProcess(name.to_owned());
    Builder::new().name(name.to_owned()).spawn(move || {
        let _ends = ends;
        work();
    })
}
