// SPDX-License-Identifier: MIT OR Apache-2.0
//! The volumes of a pool as exports over NBD: the service of `forebay serve`.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay::{AttachOptions, Pool, VolumeInfo};
use serde_json::json;

use crate::metrics::{figures, Row};
use crate::nbd::{self, Door, Export};
use crate::service::{Service, ServiceStatus, Stop};
use crate::{system, warn, Error, PrivateSocket, Result};

/// How long after an attach that failed the next one is tried; twice as long after each.
const PAUSE_FIRST: Duration = Duration::from_secs(3);
const PAUSE_MOST: Duration = Duration::from_secs(30);
/// After one that failed for a cause that somebody has to mend.
const PAUSE_BY_HAND: Duration = Duration::from_secs(60);

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
        let offered = Arc::new(Mutex::new(Offered {
            exports: self.exports.into_iter().map(Arc::new).collect(),
            unserved: self.unserved.iter().map(Lacking::of).collect(),
            stopped: false,
        }));
        let (door_too, offered_too) = (door.clone(), offered.clone());
        let thread = std::thread::Builder::new().name("fby-nbd".into()).spawn(move || {
            let exports = || locked(&offered_too).exports.clone();
            nbd::serve(socket.listener(), &exports, threads, &door_too);
        });
        let thread = Mutex::new(Some(thread.map_err(cannot())?));
        let (read_only, again) = (self.read_only, self.again);
        let name = forebay::path_in_text(path);
        Ok(Arc::new(Served { name, offered, read_only, again, door, thread }))
    }
}

/// The exports that clients find, and those that are missing.
#[derive(Debug)]
struct Offered {
    /// New ones are added; none goes before the end.
    exports: Vec<Arc<Export>>,
    unserved: Vec<Lacking>,
    /// The service stops, and offers nothing new.
    stopped: bool,
}

/// A volume that is not served, and when it is tried again.
#[derive(Clone, Debug)]
struct Lacking {
    name: String,
    cause: String,
    /// By whom it is mended.
    by_hand: bool,
    tried: Instant,
    pause: Duration,
}

impl Lacking {
    fn of(Unserved { name, cause }: &Unserved) -> Lacking {
        let mut lacking = Lacking {
            name: name.clone(),
            cause: String::new(),
            by_hand: false,
            tried: Instant::now(),
            pause: Duration::ZERO,
        };
        lacking.failed(cause);
        lacking
    }

    fn is_due(&self) -> bool {
        self.tried.elapsed() >= self.pause
    }

    /// Whether there is news in that.
    fn failed(&mut self, cause: &forebay::Error) -> bool {
        let by_hand = cause.needs_a_person();
        self.pause = match (self.pause.is_zero() || by_hand != self.by_hand, by_hand) {
            (_, true) => PAUSE_BY_HAND,
            (true, false) => PAUSE_FIRST,
            (false, false) => (self.pause * 2).min(PAUSE_MOST),
        };
        (self.by_hand, self.tried) = (by_hand, Instant::now());
        let cause = cause.to_string();
        let news = cause != self.cause;
        self.cause = cause;
        news
    }
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
        let told = |l: &Lacking| format!("volume {} is not served: {}", l.name, l.cause);
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
        let offered = locked(&self.offered);
        self.again.is_some() && !offered.stopped && offered.unserved.iter().any(Lacking::is_due)
    }

    /// A repeated failure with the same cause is reported once.
    fn retry(&self, pool: &Pool) {
        let Some(options) = &self.again else { return };
        let unserved = locked(&self.offered).unserved.clone();
        for name in unserved.into_iter().filter(Lacking::is_due).map(|l| l.name) {
            if locked(&self.offered).stopped {
                return;
            }
            let attached = pool.attach(&name, &options(&name));
            // Before a client finds it.
            let attached = attached.and_then(|v| pool.set_as_all(&name).map(|()| v));
            let mut offered = locked(&self.offered);
            if offered.stopped {
                // Its handle goes when nothing is locked.
                drop(offered);
                return;
            }
            match attached {
                Ok(volume) => {
                    offered.unserved.retain(|other| other.name != name);
                    let export = Export { volume, read_only: self.read_only };
                    offered.exports.push(Arc::new(export));
                    warn(format_args!("volume {name} is served now"));
                }
                Err(cause) => {
                    let entry = offered.unserved.iter_mut().find(|other| other.name == name);
                    if entry.is_some_and(|entry| entry.failed(&cause)) {
                        warn(format_args!("volume {name} is not served: {cause}"));
                    }
                }
            }
        }
    }

    /// Cached data stays in the pool.
    fn stop(&self, how: &Stop) -> Result<()> {
        self.door.close(how.grace);
        locked(&self.offered).stopped = true;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(lacking: &mut Lacking, e: impl Fn() -> forebay::Error, times: usize) -> Vec<u64> {
        let pause = |l: &mut Lacking| {
            l.failed(&e());
            l.pause.as_secs()
        };
        (0..times).map(|_| pause(lacking)).collect()
    }

    /// An origin that may come by itself is tried soon, and then less often.  A fault that a person
    /// has to mend is looked at once a minute.
    #[test]
    fn what_fails_is_tried_less_and_less_often() {
        let wrong = |cause: &str| forebay::Error::WrongOrigin {
            name: "v".into(),
            origin: "o".into(),
            cause: cause.into(),
            way_out: "w".into(),
        };
        let (absent, other) = (|| wrong("is not there"), || wrong("it is another"));
        let mut lacking = Lacking::of(&Unserved { name: "v".into(), cause: absent() });
        assert!(!lacking.is_due() && lacking.pause == PAUSE_FIRST);
        assert_eq!(pauses(&mut lacking, absent, 5), [6, 12, 24, 30, 30]);
        assert_eq!(pauses(&mut lacking, other, 2), [60, 60]);
        // It was mended, and now the right one is away.
        assert_eq!(pauses(&mut lacking, absent, 2), [3, 6]);
        // Told once for each cause.
        assert!(lacking.failed(&other()) && !lacking.failed(&other()) && lacking.failed(&absent()));
        lacking.pause = Duration::ZERO;
        assert!(lacking.is_due());
    }
}
