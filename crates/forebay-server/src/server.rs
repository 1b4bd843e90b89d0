// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open pool that is served until somebody orders the end: its services, and the control
//! socket that answers for it.  Cached data then stays in the pool, which is marked clean.
//!
//! Sockets are made after the pool was locked and removed before it is unlocked, so only one of
//! two servers of a pool ever has them.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay::{FileFate, FileTrouble, Pool, RESCUED};
use serde_json::Value;

use crate::control::Responder;
use crate::failed::{rescue, Patience};
use crate::service::{Progress, ServerStatus, Service, ServiceStatus, Starter, Stop};
use crate::{notify, warn, Error, ReadyFile, Result};

/// How long requests may go on after a signal to stop, and wait for space in a full
/// cache: without an end they would wait as long as their origin fails.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How soon it is seen that the server is to stop.
const TICK: Duration = Duration::from_millis(20);

/// A pool, its services, and who answers for them.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    /// None: it could not be made, and status says why.
    responder: Option<Responder>,
}

/// State that the threads of the control socket share with the server.
#[derive(Debug)]
pub(crate) struct Shared {
    pool: Pool,
    starters: Vec<Box<dyn Starter>>,
    services: Mutex<Services>,
    control: OnceLock<std::result::Result<PathBuf, String>>,
    /// Bytes that the pool had of files when its maps were stopped, and the files lack.
    of_maps: AtomicU64,
    /// Maps may have had more.
    maps_unknown: AtomicBool,
    /// Volumes of whose changed origin the log tells.
    told: Mutex<HashSet<String>>,
    /// What the log tells of the pool's file.
    pub(crate) told_of_file: Mutex<Option<FileTrouble>>,
    /// See [`Service::without_log`], of services that were stopped.
    without_log: Mutex<BTreeMap<String, bool>>,
    /// How the server ends, if the pool's disk has failed, or its file is lost.
    failed: Mutex<Option<Error>>,
    patience: OnceLock<Patience>,
}

#[derive(Debug, Default)]
struct Services {
    running: Vec<Arc<dyn Service>>,
    /// No more are taken.
    stopping: bool,
}

impl Server {
    /// Answers on a socket in the directory from now on, and waits for no reader of standard
    /// error ([`forebay::diagnostics`]).  A pool that cannot be asked
    /// about is served all the same: status says why it cannot.
    pub fn new(pool: Pool, control: &Path, starters: Vec<Box<dyn Starter>>) -> Server {
        forebay::diagnostics::never_wait();
        let (services, control_state) = Default::default();
        let shared = Arc::new(Shared {
            pool,
            starters,
            services,
            control: control_state,
            of_maps: AtomicU64::new(0),
            maps_unknown: AtomicBool::new(false),
            told: Mutex::default(),
            told_of_file: Mutex::default(),
            without_log: Mutex::default(),
            failed: Mutex::default(),
            patience: OnceLock::new(),
        });
        let (state, responder) = match Responder::start(control, &shared) {
            Ok(responder) => (Ok(responder.socket().to_path_buf()), Some(responder)),
            Err(e) => (Err(e.to_string()), None),
        };
        let _ = shared.control.set(state);
        Server { shared, responder }
    }

    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub fn status(&self) -> ServerStatus {
        self.shared.status()
    }

    /// For origins that take nothing when the pool's disk has failed; at most once.
    pub fn set_patience(&self, patience: Patience) {
        let _ = self.shared.patience.set(patience);
    }

    /// From now on it is the server's, which stops it.
    pub fn add(&self, service: Arc<dyn Service>) -> Result<()> {
        self.shared.add(service)
    }

    /// Makes the file, and tells a service manager: what was added can be reached.
    pub fn ready(&self, file: Option<ReadyFile>) -> Result<Ready<'_>> {
        let file = file.map(ReadyFile::make).transpose()?;
        let services = self.shared.running();
        let what: Vec<_> = services.iter().map(|s| s.status().summary).collect();
        notify::send(&format!("READY=1\nSTATUS=Serving {}", what.join(", ")))?;
        Ok(Ready { server: self, file })
    }

    /// Stops all services, and closes the pool in order.  What failed before it is no
    /// reason not to; the first error is told.
    pub fn close(self) -> Result<()> {
        let stopped = self.shared.stop_all();
        // Nobody else has the pool when it closes.
        drop(self.responder);
        let pool = self.shared.pool.path().display().to_string();
        // Whoever else keeps it: its disk has failed, and that is no end in order.
        let failed = self.shared.failed().take();
        let failed = failed.or_else(|| self.shared.pool.failed().map(Error::Pool));
        let rescued = failed.as_ref().is_some_and(|failed| failed.exit_code() == RESCUED);
        let failed = match self.shared.end_of_file(rescued) {
            None if rescued && !self.shared.trees_are_complete() => Some(Error::service(
                7,
                format!("pool {pool}: the origins of its volumes have everything, but the tree of a mount lacks what its log has"),
                "see the messages before this one",
            )),
            None => failed,
            lost => {
                failed.iter().for_each(warn);
                lost
            }
        };
        let left = |why: &str| {
            warn(format_args!(
                "pool {pool}: {why}, so the pool is not closed in order: nothing is lost, and it is recovered when it is opened"
            ));
            Ok(())
        };
        let shared = match (Arc::into_inner(self.shared), failed) {
            (shared, Some(failed)) => {
                drop(shared.map(|shared| shared.pool.close()));
                if let Err(e) = stopped {
                    warn(e);
                }
                return Err(failed);
            }
            (None, None) => {
                return stopped.and(left("an origin that is tried again does not answer"));
            }
            (Some(shared), None) => shared,
        };
        stopped.and(match shared.pool.close() {
            // All services have stopped.  What is left of them ends with this process.
            Err(forebay::Error::PoolInUse { volumes, .. }) if volumes.is_empty() => {
                left("a thread that waits for a disk still uses it")
            }
            closed => closed.map_err(Error::Pool),
        })
    }
}

/// A server whose file is there, if it has one.
#[derive(Debug)]
pub struct Ready<'s> {
    server: &'s Server,
    file: Option<ReadyFile>,
}

impl Ready<'_> {
    /// Until `stopping` says so, or no service is left; then stops all of them.
    pub fn run(self, stopping: &dyn Fn() -> bool) -> Result<()> {
        let shared = &self.server.shared;
        let mut ended = Ok(());
        let looks = shared.begin_to_look();
        while !stopping() && shared.any_running(&mut ended) {
            std::thread::sleep(TICK);
        }
        let looks = looks.end();
        drop(self.file);
        // Nobody may be there to be told any more.
        let _ = notify::send("STOPPING=1");
        let stopped = shared.stop_all();
        let stopping = Instant::now();
        for thread in &looks {
            while !thread.is_finished() && stopping.elapsed() < STOP_GRACE {
                std::thread::sleep(TICK);
            }
        }
        let done = ended.and(stopped);
        if shared.failed().is_some() {
            // The close says how it ends.
            done.unwrap_or_else(warn);
            return Ok(());
        }
        done
    }
}

impl Shared {
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    fn failed(&self) -> MutexGuard<'_, Option<Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once: the disk has failed, and the origins get what memory has.
    fn rescue(self: &Arc<Self>) {
        let mut failed = self.failed();
        if failed.is_none() {
            *failed = rescue(self, self.patience.get_or_init(Patience::default));
        }
    }

    /// The services that run now.
    pub(crate) fn running(&self) -> Vec<Arc<dyn Service>> {
        self.services().running.clone()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.services().stopping
    }

    fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> ServerStatus {
        let services = self.running();
        let control = self.control.get();
        ServerStatus {
            control_socket: control.and_then(|c| c.as_ref().ok()).map(|s| s.display().to_string()),
            control_note: control.and_then(|c| c.as_ref().err()).cloned(),
            services: services.iter().map(|s| s.status()).collect(),
            pool: self.pool.status(),
        }
    }

    /// Each once, while something can be done about it.
    pub(crate) fn warn_of_changes(&self) {
        let changes = self.pool.origins_changed();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for (volume, what) in changes.iter().filter(|(volume, _)| !told.contains(volume)) {
            warn(format_args!("volume {volume}: its origin {what}"));
        }
        *told = changes.into_iter().map(|(volume, _)| volume).collect();
    }

    fn without_log(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.without_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No mount whose log has failed has ended without its tree.
    fn trees_are_complete(&self) -> bool {
        self.without_log().values().all(|complete| *complete)
    }

    /// The end of a server whose pool's file is lost, if that alone has something still.
    fn end_of_file(&self, rescued: bool) -> Option<Error> {
        let lost = self.pool.lost()?;
        let (path, status) = (self.pool.path().display(), self.pool.status());
        // A pool that is written in groups cannot record any more what its origins have.
        let bytes = if rescued { 0 } else { status.cached_bytes };
        let without_log = self.without_log();
        let is_needed = |name: &str| without_log.get(name) != Some(&true);
        let needed = status.logs.iter().filter(|log| is_needed(&log.name));
        let entries: u64 = needed.map(|log| log.entries).sum();
        let of_maps = self.of_maps.load(Ordering::Relaxed);
        let unknown = self.maps_unknown.load(Ordering::Relaxed);
        let held = bytes + entries + of_maps > 0 || unknown;
        let perhaps = if unknown { ", perhaps more" } else { "" };
        let how = match lost.what {
            FileFate::Removed => "deleted",
            _ => "overwritten",
        };
        match lost.what {
            // What its volumes read there may be old.
            FileFate::SetBack if self.pool.is_set_back() && !self.pool.read_only() => Some(Error::service(
                11,
                format!("pool {path}: {}; an origin may have got old data since", lost.cause),
                "compare the origins with a backup, or restore them",
            )),
            FileFate::Removed | FileFate::Overwritten | FileFate::SetBack if held => Some(Error::service(
                11,
                format!("pool {path}: its file was {how}, and what it held is lost: {bytes} bytes of volumes, {entries} entries of logs, {of_maps} bytes of mapped files{perhaps}"),
                "restore the origins, and these files, from a backup",
            )),
            FileFate::CutShort if held || !(rescued || without_log.values().any(|all| *all)) => Some(Error::service(
                5,
                format!("pool {path}: {}", lost.cause),
                format!("restore its size (truncate -s {}), then forebay check", status.media.size_bytes),
            )),
            _ => None,
        }
    }

    pub(crate) fn lacking(&self) -> Vec<Arc<dyn Service>> {
        self.services().running.iter().filter(|s| s.lacks_something()).cloned().collect()
    }

    fn add(&self, service: Arc<dyn Service>) -> Result<()> {
        let mut services = self.services();
        let (kind, name) = (service.kind(), service.name());
        let same = |s: &Arc<dyn Service>| s.kind() == kind && s.name() == name;
        let same = services.running.iter().any(same);
        let refused = match (self.pool.lost_error(), services.stopping, same) {
            // The service would not be told of the loss, which was before it.
            (Some(lost), ..) => Error::Pool(lost),
            (None, true, _) => {
                Error::service(13, format!("{kind} {name}: the server stops"), "start it anew")
            }
            (None, false, true) => {
                Error::service(4, format!("{kind} {name}: runs already"), "see forebay status")
            }
            (None, false, false) => {
                services.running.push(service);
                return Ok(());
            }
        };
        drop(services);
        service.stop(&Stop { grace: Duration::ZERO, must: true, keep: false })?;
        Err(refused)
    }

    /// Takes away those that have ended by themselves.
    fn any_running(&self, outcome: &mut Result<()>) -> bool {
        let mut services = self.services();
        let without_pool = self.pool.failed().or_else(|| self.pool.lost_error()).is_some();
        // The volumes stay attached until the origins have everything.  A tree is completed now.
        let over = |s: &Arc<dyn Service>| s.ended() && !(without_pool && s.has_volumes());
        let (ended, running): (Vec<_>, _) = services.running.drain(..).partition(over);
        services.running = running;
        let any = services.running.iter().any(|s| !s.ended());
        drop(services);
        for service in ended {
            let stopped = service.stop(&Stop { grace: Duration::ZERO, must: true, keep: false });
            // The file may have been lost meanwhile.
            self.without_log().extend(service.without_log());
            if outcome.is_ok() {
                *outcome = stopped;
            }
        }
        any
    }

    /// All at once.
    fn stop_all(self: &Arc<Self>) -> Result<()> {
        // While the origins are attached.
        self.rescue();
        let stopped = self.stop_services();
        // It may have failed since, or before, while nothing was written.
        self.pool.touch_disk();
        self.pool.look_for_loss();
        self.rescue();
        stopped
    }

    fn stop_services(&self) -> Result<()> {
        let running = {
            let mut services = self.services();
            services.stopping = true;
            std::mem::take(&mut services.running)
        };
        if let Some(lost) = self.pool.look_for_loss() {
            let figures = running.iter().flat_map(|s| s.status().figures);
            let lacking: Vec<_> = figures.filter(|f| f.name == "dirty_bytes").collect();
            let sum = lacking.iter().map(|f| f.value as u64).sum();
            self.of_maps.fetch_add(sum, Ordering::Relaxed);
            // The record of the dirty pages was overwritten, too.
            let unknown = lost.what.is_foreign() && !lacking.is_empty();
            self.maps_unknown.fetch_or(unknown, Ordering::Relaxed);
        }
        let stop = |service: &Arc<dyn Service>| {
            service.stop(&Stop { grace: STOP_GRACE, must: true, keep: false })
        };
        std::thread::scope(|scope| {
            let start = Instant::now();
            let (mut stops, mut others) = (Vec::new(), Vec::new());
            for service in &running {
                match Builder::new().spawn_scoped(scope, move || stop(service)) {
                    Ok(thread) => stops.push(thread),
                    Err(_) => others.push(service),
                }
            }
            while start.elapsed() < STOP_GRACE && stops.iter().any(|s| !s.is_finished()) {
                std::thread::sleep(TICK);
            }
            // While one is stopped by this thread nobody looks how long that takes.
            if !others.is_empty() || stops.iter().any(|s| !s.is_finished()) {
                self.pool.abort_waits();
            }
            let stopped = stops.into_iter().map(|s| s.join().expect("a stop does not panic"));
            let results: Vec<_> = stopped.chain(others.into_iter().map(stop)).collect();
            self.without_log().extend(running.iter().filter_map(|s| s.without_log()));
            results.into_iter().collect()
        })
    }

    // --- for clients of the control socket ---------------------------------

    /// A client may stop only services that it may start.
    fn starter(&self, kind: &str) -> Result<&dyn Starter> {
        let starter = self.starters.iter().find(|s| s.kind() == kind);
        starter.map(AsRef::as_ref).ok_or_else(|| {
            let known: Vec<_> = self.starters.iter().map(|s| s.kind()).collect();
            let known = match known.is_empty() {
                true => "it starts and stops none for others".into(),
                false => format!("it knows {}", known.join(", ")),
            };
            Error::service(
                2,
                format!("this server does not start or stop services of kind {kind:?}"),
                &known,
            )
        })
    }

    pub(crate) fn start(
        &self,
        kind: &str,
        options: Value,
        progress: &mut Progress<'_>,
    ) -> Result<ServiceStatus> {
        let service = self.starter(kind)?.start(&self.pool, options, progress)?;
        self.add(service.clone())?;
        Ok(service.status())
    }

    /// Brings home what the pool holds for services, the volumes' data apart: for each of them,
    /// whatever becomes of the others.
    pub(crate) fn drain(&self, progress: &mut Progress<'_>) -> Result<()> {
        let running = self.running();
        let mut first = Ok(());
        for service in running.iter().filter(|s| !s.ended()) {
            first = first.and(service.drain(progress));
        }
        first
    }

    /// Asks the first service of a kind.
    pub(crate) fn call(
        &self,
        kind: &str,
        request: Value,
        progress: &mut Progress<'_>,
    ) -> Result<Value> {
        let running = self.running();
        let service = running.iter().find(|s| s.kind() == kind && !s.ended());
        let service = service.ok_or_else(|| {
            let what = format!("this server has no service of kind {kind:?}");
            Error::service(3, what, "see forebay status for what it has")
        })?;
        service.call(request, progress)
    }

    /// `keep`: the pool keeps the service's data.
    pub(crate) fn stop(
        &self,
        kind: &str,
        name: &str,
        keep: bool,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        self.starter(kind)?;
        let running = self.running();
        let service = running.iter().find(|s| s.kind() == kind && s.name() == name);
        let service = service.ok_or_else(|| {
            Error::service(3, format!("{kind} {name}: is not served"), "see forebay status")
        })?;
        if !keep {
            // Otherwise nothing could end a service that has failed: its stop tells the failure.
            match service.drain(progress) {
                Err(_) if service.has_failed() => {}
                drained => drained?,
            }
        }
        service.stop(&Stop { grace: STOP_GRACE, must: false, keep })?;
        self.services().running.retain(|s| !Arc::ptr_eq(s, service));
        Ok(())
    }
}
