// SPDX-License-Identifier: MIT OR Apache-2.0
//! The volumes of a pool as exports over NBD: the service of `forebay serve`.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use forebay::{AttachOptions, Pool, VolumeInfo};
use serde_json::json;

use crate::metrics::{figures, Row};
use crate::nbd::{self, Door, Export};
use crate::service::{Service, ServiceStatus, Stop};
use crate::{system, Error, PrivateSocket, Result};

/// A volume that could not be attached.
#[derive(Debug)]
pub struct Unserved {
    pub name: String,
    pub cause: forebay::Error,
}

/// All volumes of a pool, attached but for those that cannot be.
#[derive(Debug)]
pub struct Exports {
    exports: Vec<Export>,
    unserved: Vec<Unserved>,
}

impl Exports {
    /// Attaches each volume with the options for its name.
    pub fn attach(
        pool: &Pool,
        read_only: bool,
        options: impl Fn(&str) -> AttachOptions,
    ) -> Exports {
        let (mut exports, mut unserved) = (Vec::new(), Vec::new());
        for name in pool.volumes().iter().map(VolumeInfo::label) {
            match pool.attach(&name, &options(&name)) {
                Ok(volume) => exports.push(Export { volume, read_only }),
                Err(cause) => unserved.push(Unserved { name, cause }),
            }
        }
        Exports { exports, unserved }
    }

    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    pub fn unserved(&self) -> &[Unserved] {
        &self.unserved
    }

    /// Detaches all.
    pub fn detach(self) -> forebay::Result<Vec<Unserved>> {
        for export in self.exports {
            export.volume.detach()?;
        }
        Ok(self.unserved)
    }

    /// Takes connections at a socket from now on, each with so many threads.
    pub fn listen(self, path: &Path, threads: u32) -> Result<Arc<Served>> {
        let socket = PrivateSocket::bind(path)?;
        let cannot = || system(format!("{}: cannot serve there", path.display()));
        socket.listener().set_nonblocking(true).map_err(cannot())?;
        let door = Arc::new(Door::default());
        let names = self.exports.iter().map(|e| e.volume.name().to_string()).collect();
        let unserved =
            self.unserved.iter().map(|u| (u.name.clone(), u.cause.to_string())).collect();
        let door_too = door.clone();
        let thread = std::thread::Builder::new().name("fby-nbd".into()).spawn(move || {
            nbd::serve(socket.listener(), &self.exports, threads, &door_too);
            self
        });
        let thread = Mutex::new(Some(thread.map_err(cannot())?));
        let name = path.display().to_string();
        Ok(Arc::new(Served { name, volumes: names, unserved, door, thread }))
    }
}

/// Exports at a socket, which is removed when they stop.
#[derive(Debug)]
pub struct Served {
    name: String,
    volumes: Vec<String>,
    /// With the cause.
    unserved: Vec<(String, String)>,
    door: Arc<Door>,
    /// None: stopped.
    thread: Mutex<Option<JoinHandle<Exports>>>,
}

pub(crate) const FIGURES: &[Row<Door>] = &[
    ("connections", "gauge", "Connections that are open.", |d| d.open() as f64),
    ("connections_total", "counter", "Connections that were taken.", |d| d.taken() as f64),
    ("refused_total", "counter", "Connections that found as many open as there can be.", |d| {
        d.refused() as f64
    }),
];

impl Served {
    fn thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<Exports>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Served {
    fn kind(&self) -> &'static str {
        "exports"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> ServiceStatus {
        let (served, unserved) = (self.volumes.len(), self.unserved.len());
        let told = |(name, why): &(String, String)| format!("volume {name} is not served: {why}");
        ServiceStatus {
            kind: self.kind().into(),
            name: self.name.clone(),
            summary: format!("{served} of {} volumes", served + unserved),
            trouble: self.unserved.iter().map(told).collect(),
            figures: figures(FIGURES, &self.door),
            details: json!({ "volumes": self.volumes }),
        }
    }

    /// What is cached stays in the pool.
    fn stop(&self, how: &Stop) -> Result<()> {
        self.door.close(how.grace);
        let mut thread = self.thread();
        let Some(thread) = thread.take() else { return Ok(()) };
        let panicked = |_| {
            Error::service(
                5,
                format!("{}: its server ended by a panic", self.name),
                "please report it",
            )
        };
        thread.join().map_err(panicked)?.detach()?;
        Ok(())
    }

    fn ended(&self) -> bool {
        self.thread().as_ref().is_none_or(JoinHandle::is_finished)
    }
}
