// SPDX-License-Identifier: MIT OR Apache-2.0
//! The volumes of an open pool, served until somebody says stop.  What is cached then
//! stays in the pool, which is marked clean.
//!
//! The socket is made after the pool was locked and removed before it is let go, so
//! of two servers of one pool only one ever has it.

use std::path::Path;
use std::time::Duration;

use forebay::{AttachOptions, Pool, PrivateSocket, VolumeInfo};

use crate::nbd::{self, Export, Stop};
use crate::{notify, system, ReadyFile, Result};

/// How long requests may go on after a signal to stop, and wait for space in a full
/// cache: without an end they would wait as long as their origin fails.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A volume that could not be attached.
#[derive(Debug)]
pub struct Unserved {
    pub name: String,
    pub cause: forebay::Error,
}

/// A pool with all its volumes attached, but for those that cannot be.
#[derive(Debug)]
pub struct Server {
    pool: Pool,
    exports: Vec<Export>,
    unserved: Vec<Unserved>,
}

impl Server {
    /// Attaches each volume with the options for its name.
    pub fn attach(pool: Pool, read_only: bool, options: impl Fn(&str) -> AttachOptions) -> Server {
        let (mut exports, mut unserved) = (Vec::new(), Vec::new());
        for name in pool.volumes().iter().map(VolumeInfo::label) {
            match pool.attach(&name, &options(&name)) {
                Ok(volume) => exports.push(Export { volume, read_only }),
                Err(cause) => unserved.push(Unserved { name, cause }),
            }
        }
        Server { pool, exports, unserved }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    pub fn unserved(&self) -> &[Unserved] {
        &self.unserved
    }

    /// Makes the socket and then the file, and tells a service manager.
    pub fn listen(&self, path: &Path, ready: Option<ReadyFile>) -> Result<Listening<'_>> {
        let socket = PrivateSocket::bind(path)?;
        let ready = ready.map(ReadyFile::make).transpose()?;
        let (served, all) = (self.exports.len(), self.exports.len() + self.unserved.len());
        notify::send(&format!("READY=1\nSTATUS=Serving {served} of {all} volumes"))?;
        Ok(Listening { server: self, _ready: ready, socket })
    }

    /// Detaches all, and closes the pool in order.  A failure to serve before it is no
    /// reason not to.
    pub fn close(self) -> forebay::Result<Vec<Unserved>> {
        for export in self.exports {
            export.volume.detach()?;
        }
        self.pool.close()?;
        Ok(self.unserved)
    }
}

/// A server whose socket is there; it is removed when this is dropped, after the file.
#[derive(Debug)]
pub struct Listening<'s> {
    server: &'s Server,
    _ready: Option<ReadyFile>,
    socket: PrivateSocket,
}

impl Listening<'_> {
    pub fn socket(&self) -> &Path {
        self.socket.path()
    }

    /// Takes connections until `stopping` says so, each with so many threads; returns
    /// when what was taken is answered.
    pub fn run(&self, threads: u32, stopping: &dyn Fn() -> bool) -> Result<()> {
        let (server, socket) = (self.server, &self.socket);
        let stop = Stop { grace: STOP_GRACE, abort: &|| server.pool.abort_waits() };
        let served = nbd::serve(socket.listener(), &server.exports, threads, stopping, stop);
        // Nobody may be there to be told any more.
        let _ = notify::send("STOPPING=1");
        served.map_err(system(format!("{}: cannot serve there", socket.path().display())))
    }
}
