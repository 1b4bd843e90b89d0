// SPDX-License-Identifier: MIT OR Apache-2.0
//! The volumes of a pool as exports over NBD: the service of `forebay serve`.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use forebay::{AttachOptions, Pool, VolumeInfo};
use serde_json::json;

use crate::metrics::{figures, Row};
use crate::nbd::{self, Door, Export};
use crate::service::{Service, ServiceStatus, Stop};
use crate::{system, warn, Error, PrivateSocket, Result};

/// A volume that could not be attached.
#[derive(Debug)]
pub struct Unserved {
    pub name: String,
    pub cause: forebay::Error,
}

type Options = dyn Fn(&str) -> AttachOptions + Send + Sync;

/// All volumes of a pool, attached but for those that cannot be.
pub struct Exports {
    exports: Vec<Export>,
    unserved: Vec<Unserved>,
    read_only: bool,
    /// None: those that could not be attached are not tried again.
    again: Option<Box<Options>>,
}

impl std::fmt::Debug for Exports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (exports, unserved) = (&self.exports, &self.unserved);
        f.debug_struct("Exports").field("exports", exports).field("unserved", unserved).finish()
    }
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
        Exports { exports, unserved, read_only, again: None }
    }

    /// The server tries those that could not be attached again, with these options: an origin
    /// may come late, or be free later.
    pub fn retrying(
        self,
        options: impl Fn(&str) -> AttachOptions + Send + Sync + 'static,
    ) -> Exports {
        Exports { again: Some(Box::new(options)), ..self }
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
        let told = |u: &Unserved| (u.name.clone(), u.cause.to_string());
        let offered = Arc::new(Mutex::new(Offered {
            exports: self.exports.into_iter().map(Arc::new).collect(),
            unserved: self.unserved.iter().map(told).collect(),
        }));
        let (door_too, offered_too) = (door.clone(), offered.clone());
        let thread = std::thread::Builder::new().name("fby-nbd".into()).spawn(move || {
            let exports = || locked(&offered_too).exports.clone();
            nbd::serve(socket.listener(), &exports, threads, &door_too);
        });
        let thread = Mutex::new(Some(thread.map_err(cannot())?));
        let (read_only, again) = (self.read_only, self.again);
        let name = path.display().to_string();
        Ok(Arc::new(Served { name, offered, read_only, again, door, thread }))
    }
}

/// What clients find, and what they do not.
#[derive(Debug)]
struct Offered {
    /// New ones are added; none goes before the end.
    exports: Vec<Arc<Export>>,
    /// With the cause.
    unserved: Vec<(String, String)>,
}

fn locked(offered: &Mutex<Offered>) -> MutexGuard<'_, Offered> {
    offered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exports at a socket, which is removed when they stop.
pub struct Served {
    name: String,
    offered: Arc<Mutex<Offered>>,
    read_only: bool,
    again: Option<Box<Options>>,
    door: Arc<Door>,
    /// None: stopped.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("name", &self.name).field("offered", &self.offered).finish()
    }
}

pub(crate) const FIGURES: &[Row<Door>] = &[
    ("connections", "gauge", "Connections that are open.", |d| d.open() as f64),
    ("connections_total", "counter", "Connections that were taken.", |d| d.taken() as f64),
    ("refused_total", "counter", "Connections that found as many open as there can be.", |d| {
        d.refused() as f64
    }),
];

impl Served {
    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
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
        let offered = locked(&self.offered);
        let volumes: Vec<_> = offered.exports.iter().map(|e| e.volume.name()).collect();
        let (served, unserved) = (volumes.len(), offered.unserved.len());
        let told = |(name, why): &(String, String)| format!("volume {name} is not served: {why}");
        ServiceStatus {
            kind: self.kind().into(),
            name: self.name.clone(),
            summary: format!("{served} of {} volumes", served + unserved),
            trouble: offered.unserved.iter().map(told).collect(),
            figures: figures(FIGURES, &self.door),
            details: json!({ "volumes": volumes }),
        }
    }

    fn lacks_something(&self) -> bool {
        self.again.is_some() && !locked(&self.offered).unserved.is_empty()
    }

    /// What is told again and again is told once.
    fn retry(&self, pool: &Pool) {
        let Some(options) = &self.again else { return };
        let unserved = locked(&self.offered).unserved.clone();
        for (name, before) in unserved {
            let attached = pool.attach(&name, &options(&name));
            let mut offered = locked(&self.offered);
            match attached {
                Ok(volume) => {
                    offered.unserved.retain(|(other, _)| *other != name);
                    let export = Export { volume, read_only: self.read_only };
                    offered.exports.push(Arc::new(export));
                    warn(format_args!("volume {name} is served now"));
                }
                Err(cause) if cause.to_string() != before => {
                    warn(format_args!("volume {name} is not served: {cause}"));
                    let entry = offered.unserved.iter_mut().find(|(other, _)| *other == name);
                    entry.into_iter().for_each(|(_, why)| *why = cause.to_string());
                }
                Err(_) => {}
            }
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
        thread.join().map_err(panicked)?;
        let exports = std::mem::take(&mut locked(&self.offered).exports);
        // The connections have ended, and with them the other handles.
        for export in exports.into_iter().filter_map(Arc::into_inner) {
            export.volume.detach()?;
        }
        Ok(())
    }

    fn ended(&self) -> bool {
        self.thread().as_ref().is_none_or(JoinHandle::is_finished)
    }
}
