// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay exporter`: the status of a pool as Prometheus metrics.  It serves them over HTTP on a
//! Unix socket of mode 0600, or on an address if one is named, or writes them into a file for
//! node_exporter's textfile collector.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay_server::http::{self, Listener};
use forebay_server::metrics::{answer, listen, metrics, up};
use forebay_server::{runtime_dir, usable_socket, PrivateSocket, ServerStatus};

use crate::interrupt::{Hangup, Interrupt};
use crate::{args, out, status};

/// The shortest time between two looks at a pool that nobody serves.
const LEAST: Duration = Duration::from_secs(1);
/// The time limit for an answer of the server.  A scraper usually waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(a: &args::Exporter) -> anyhow::Result<u8> {
    out::as_a_service();
    if let Some(file) = &a.textfile {
        return textfile(a, file);
    }
    let (listener, place) = match (&a.listen, &a.socket) {
        (Some(address), _) => {
            let listener = listen(address)?;
            // The listener knows the port if the address left the choice to the system.
            let place = format!("http://{}/metrics", listener.local_addr()?);
            (Listener::Tcp(listener), place)
        }
        (None, socket) => {
            let socket = match socket {
                Some(socket) => socket.clone(),
                None => usable_socket(&runtime_dir().join("metrics.sock"))?,
            };
            let place = format!("unix:{}:/metrics", out::quoted(&socket));
            (Listener::Unix(PrivateSocket::bind(&socket)?), place)
        }
    };
    let (interrupt, hangup) = (Interrupt::watch()?, Hangup::watch()?);
    let stopping = || {
        hangup.tell();
        interrupt.came()
    };
    out::line(format!("metrics of {} at {place}", out::quoted(&a.pool)))?;
    let looks = Looks::default();
    http::serve(&listener, &stopping, &|target| {
        answer(target, || scrape(&a.pool, &looks).map_err(|e| format!("{e:#}")))
    })?;
    Ok(0)
}

/// The server's answer; for a pool that nobody serves, the result of the last look.
fn scrape(pool: &Path, looks: &Looks) -> anyhow::Result<ServerStatus> {
    match status::asked(pool, PATIENCE) {
        Ok(Some(status)) => Ok(status),
        _ => looks.at(|| status::of_pool_within(pool, PATIENCE)),
    }
}

/// Looks at a pool that nobody serves.  A look opens the pool, reads all of its index and needs
/// memory for that, and a server that wants the pool has to wait.  So there is one look at a time,
/// all requests share it, and looks take at most a tenth of the time.
#[derive(Default)]
struct Looks(Mutex<Option<Look>>);

struct Look {
    began: Instant,
    next: Instant,
    found: Result<ServerStatus, Arc<anyhow::Error>>,
}

impl Looks {
    fn at(
        &self,
        look: impl FnOnce() -> anyhow::Result<ServerStatus>,
    ) -> anyhow::Result<ServerStatus> {
        let asked = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A look that began while this request waited is as new as its own would be.
        let fresh = last.as_ref().filter(|l| l.began >= asked || l.next > Instant::now());
        let found = match fresh {
            Some(look) => &look.found,
            None => {
                let began = Instant::now();
                let found = look().map_err(Arc::new);
                let next = Instant::now() + (began.elapsed() * 9).max(LEAST);
                &last.insert(Look { began, next, found }).found
            }
        };
        found.clone().map_err(|e| anyhow::anyhow!("{e:#}"))
    }
}

/// Writes the file repeatedly, whether or not the pool answers.
fn textfile(a: &args::Exporter, file: &Path) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    let (mut first, mut fails) = (true, false);
    loop {
        let found = status::of_pool_within(&a.pool, PATIENCE);
        let written = replace(file, &found.as_ref().map_or_else(|_| up(false), metrics));
        match found {
            // The pool's error is reported, not the file's.
            Err(e) if a.every.is_none() => return Err(e),
            Err(e) => out::warn(format_args!("forebay: {e:#}")),
            Ok(_) => {}
        }
        let Some(every) = a.every else { return written.map(|()| 0) };
        fails = match written {
            Ok(()) => false,
            Err(e) if first => return Err(e),
            // Its file system may be full for a moment.
            Err(e) => {
                if !fails {
                    out::warn(format_args!("forebay: {e:#}; it is tried again"));
                }
                true
            }
        };
        first = false;
        status::sleep_until(Instant::now() + every, &interrupt);
        if interrupt.came() {
            return Ok(0);
        }
    }
}

/// Replaces the file as a whole, as the collector requires.  If that fails, there is no file: an
/// old one would say that all is as it was.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let written = out::replace_file(file, text.as_bytes(), 0o644);
    let is_file = || std::fs::symlink_metadata(file).is_ok_and(|m| m.is_file() || m.is_symlink());
    if written.is_err() && is_file() {
        let _ = std::fs::remove_file(file);
    }
    written.with_context(|| format!("{}: cannot be written", file.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn many_who_ask_share_a_look() {
        let (looks, begun, open) = (Looks::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let look = || {
            assert_eq!(open.fetch_add(1, SeqCst), 0, "two at once");
            begun.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            open.fetch_sub(1, SeqCst);
            Err(anyhow::anyhow!("no pool"))
        };
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| assert_eq!(looks.at(look).unwrap_err().to_string(), "no pool"));
            }
        });
        assert_eq!(begun.load(SeqCst), 1);
        std::thread::sleep(LEAST);
        looks.at(look).unwrap_err();
        assert_eq!(begun.load(SeqCst), 2, "it is looked again");
    }
}
