// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay exporter`: the status of a pool as Prometheus metrics, over HTTP on
//! a Unix socket of mode 0600, on an address if one is named, or into a file
//! for node_exporter's textfile collector.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay_server::http::{self, Listener};
use forebay_server::metrics::{answer, listen, metrics, up};
use forebay_server::{runtime_dir, usable_socket, PrivateSocket};

use crate::interrupt::{Hangup, Interrupt};
use crate::{args, out, status};

/// For an answer of the server, so that a scrape has its own within its usual 10 s.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(a: &args::Exporter) -> anyhow::Result<u8> {
    if let Some(file) = &a.textfile {
        return textfile(a, file);
    }
    let (listener, place) = match (&a.listen, &a.socket) {
        (Some(address), _) => {
            let listener = listen(address)?;
            // With the port that it got, where any would do.
            let place = format!("http://{}/metrics", listener.local_addr()?);
            (Listener::Tcp(listener), place)
        }
        (None, socket) => {
            let socket = match socket {
                Some(socket) => socket.clone(),
                None => usable_socket(&runtime_dir().join("metrics.sock"))?,
            };
            let place = format!("unix:{}:/metrics", socket.display());
            (Listener::Unix(PrivateSocket::bind(&socket)?), place)
        }
    };
    let (interrupt, hangup) = (Interrupt::watch()?, Hangup::watch()?);
    let stopping = || {
        hangup.tell();
        interrupt.came()
    };
    out::line(format!("metrics of {} at {place}", a.pool.display()))?;
    http::serve(&listener, &stopping, &|target| {
        answer(target, || status::of_pool_within(&a.pool, PATIENCE).map_err(|e| format!("{e:#}")))
    })?;
    Ok(0)
}

/// Again and again, whether the pool answers or not.
fn textfile(a: &args::Exporter, file: &Path) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    loop {
        match (status::of_pool_within(&a.pool, PATIENCE), a.every) {
            (Ok(s), _) => replace(file, &metrics(&s))?,
            (Err(e), Some(_)) => {
                out::warn(format_args!("forebay: {e:#}"));
                replace(file, &up(false))?;
            }
            (Err(e), None) => {
                // What is wrong with the pool is the news, and not the file.
                let _ = replace(file, &up(false));
                return Err(e);
            }
        }
        let Some(every) = a.every else {
            return Ok(0);
        };
        status::sleep_until(Instant::now() + every, &interrupt);
        if interrupt.came() {
            return Ok(0);
        }
    }
}

/// As a whole, as the collector asks.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let new = file.with_extension("prom.new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, file))
        .with_context(|| format!("{}: cannot be written", file.display()))
}
