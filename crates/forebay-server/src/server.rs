// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open pool that is served until somebody orders the end: its services, and the control
//! socket that answers for it.  Cached data then stays in the pool, which is marked clean.
//!
//! Sockets are made after the pool was locked and removed before it is unlocked, so only one of
//! two servers of a pool ever has them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay::Pool;
use serde_json::Value;

use crate::control::Responder;
use crate::failed::{rescue, Patience, Told};
use crate::service::{Progress, ServerStatus, Service, ServiceStatus, Starter, Stop};
use crate::{notify, warn, Error, ReadyFile, Result};

/// How long requests may go on after a signal to stop, and wait for space in a full
/// cache: without an end they would wait as long as their origin fails.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How soon it is seen that the server is to stop.
const TICK: Duration = Duration::from_millis(20);
/// How often a service tries again what it could not do.
const RETRY: Duration = Duration::from_secs(3);
/// How soon it is seen that the pool's file was deleted.
const LOOK: Duration = Duration::from_secs(1);

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
    /// Volumes of whose changed origin the log tells, and none for the pool itself.
    told: Mutex<HashSet<String>>,
    /// How the server ends, if the pool's disk has failed.
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
            told: Mutex::default(),
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
        let services = self.shared.services().running.clone();
        let what: Vec<_> = services.iter().map(|s| s.status().summary).collect();
        notify::send(&format!("READY=1\nSTATUS=Serving {}", what.join(", ")))?;
        Ok(Ready { server: self, file })
    }

    /// Stops all services, and closes the pool in order.  What failed before it is no
    /// reason not to; the first error is told.
    pub fn close(self) -> Result<()> {
        let stopped = self.shared.stop_all();
        let stopped = stopped.and(self.shared.lost_if_deleted());
        let stopped = stopped.and(self.shared.damaged_if_cut_short());
        // Nobody else has the pool when it closes.
        drop(self.responder);
        let pool = self.shared.pool.path().display().to_string();
        // Whoever else keeps it: its disk has failed, and that is no end in order.
        let failed = self.shared.failed().take();
        let failed = failed.or_else(|| self.shared.pool.failed().map(Error::Pool));
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
        let (mut ended, mut looked, mut deleted) = (Ok(()), Instant::now(), false);
        let (mut retried, mut retry) = (Instant::now(), None::<JoinHandle<()>>);
        let mut told = Told::default();
        let mut watch = None::<JoinHandle<()>>;
        while !stopping() && shared.any_running(&mut ended) {
            std::thread::sleep(TICK);
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                deleted = deleted || shared.warn_if_deleted();
                told.look(&shared.pool);
                if watch.as_ref().is_none_or(JoinHandle::is_finished) {
                    // A file system may hang that an origin lies on.
                    let shared = shared.clone();
                    let look = move || shared.warn_of_changes();
                    watch = Builder::new().name("fby-watch".into()).spawn(look).ok();
                }
            }
            let idle = retry.as_ref().is_none_or(JoinHandle::is_finished);
            if idle && retried.elapsed() >= RETRY {
                retried = Instant::now();
                let lacking = shared.lacking();
                if !lacking.is_empty() {
                    // It may ask an origin that hangs, and the end waits so long for no origin.
                    let shared = shared.clone();
                    let again = move || lacking.iter().for_each(|s| s.retry(&shared.pool));
                    retry = Builder::new().name("fby-retry".into()).spawn(again).ok();
                }
            }
        }
        drop(self.file);
        // Nobody may be there to be told any more.
        let _ = notify::send("STOPPING=1");
        let stopped = shared.stop_all();
        let stopping = Instant::now();
        for thread in retry.iter().chain(&watch) {
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

    fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> ServerStatus {
        let services = self.services().running.clone();
        let control = self.control.get();
        ServerStatus {
            control_socket: control.and_then(|c| c.as_ref().ok()).map(|s| s.display().to_string()),
            control_note: control.and_then(|c| c.as_ref().err()).cloned(),
            services: services.iter().map(|s| s.status()).collect(),
            pool: self.pool.status(),
        }
    }

    /// While something can be done about it.
    fn warn_if_deleted(&self) -> bool {
        let Some(path) = self.pool.deleted() else { return false };
        warn(format_args!(
            "pool {}: its file was deleted, and all that it holds is gone when this process ends: bring it to the origins before (forebay drain {})",
            self.pool.path().display(),
            path.display(),
        ));
        true
    }

    /// Each once, while something can be done about it.
    fn warn_of_changes(&self) {
        let mut changes = self.pool.origins_changed();
        if let Some(now) = self.pool.cut_short() {
            changes.push((String::new(), self.cut_short(now)));
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for (volume, what) in changes.iter().filter(|(volume, _)| !told.contains(volume)) {
            match volume.is_empty() {
                true => warn(what),
                false => warn(format_args!("volume {volume}: its origin {what}")),
            }
        }
        *told = changes.into_iter().map(|(volume, _)| volume).collect();
    }

    fn cut_short(&self, now: u64) -> String {
        let (path, was) = (self.pool.path().display(), self.pool.media().size_bytes);
        format!("pool {path}: its file was cut short to {now} bytes of {was}: it cannot be opened as it is, and what it held there is lost")
    }

    /// The error for a pool that cannot be opened as it is.
    fn damaged_if_cut_short(&self) -> Result<()> {
        let Some(now) = self.pool.cut_short() else { return Ok(()) };
        let was = self.pool.media().size_bytes;
        let way_out = format!("restore its size (truncate -s {was}), then forebay check");
        Err(Error::service(5, self.cut_short(now), &way_out))
    }

    /// The error for a pool that nobody can open again.
    fn lost_if_deleted(&self) -> Result<()> {
        let status = self.pool.status();
        let entries: u64 = status.logs.iter().map(|log| log.entries).sum();
        let of_maps = self.of_maps.load(Ordering::Relaxed);
        if self.pool.deleted().is_none() || status.cached_bytes + entries + of_maps == 0 {
            return Ok(());
        }
        let (bytes, path) = (status.cached_bytes, self.pool.path().display());
        Err(Error::service(
            11,
            format!("pool {path}: its file was deleted, and what it held is lost: {bytes} bytes of volumes, {entries} entries of logs, {of_maps} bytes of mapped files"),
            "restore the origins, and these files, from a backup",
        ))
    }

    fn lacking(&self) -> Vec<Arc<dyn Service>> {
        self.services().running.iter().filter(|s| s.lacks_something()).cloned().collect()
    }

    fn add(&self, service: Arc<dyn Service>) -> Result<()> {
        let mut services = self.services();
        let (kind, name) = (service.kind(), service.name());
        let same = |s: &Arc<dyn Service>| s.kind() == kind && s.name() == name;
        let refused = match (services.stopping, services.running.iter().any(same)) {
            (true, _) => {
                Error::service(13, format!("{kind} {name}: the server stops"), "start it anew")
            }
            (false, true) => {
                Error::service(4, format!("{kind} {name}: runs already"), "see forebay status")
            }
            (false, false) => {
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
        if self.pool.failed().is_some() {
            // One that has ended keeps its volumes attached until the origins have everything.
            return services.running.iter().any(|s| !s.ended());
        }
        let (ended, running): (Vec<_>, _) = services.running.drain(..).partition(|s| s.ended());
        services.running = running;
        let any = !services.running.is_empty();
        drop(services);
        for service in ended {
            let stopped = service.stop(&Stop { grace: Duration::ZERO, must: true, keep: false });
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
        self.rescue();
        stopped
    }

    fn stop_services(&self) -> Result<()> {
        let running = {
            let mut services = self.services();
            services.stopping = true;
            std::mem::take(&mut services.running)
        };
        if self.pool.deleted().is_some() {
            let figures = running.iter().flat_map(|s| s.status().figures);
            let lacking = figures.filter(|f| f.name == "dirty_bytes").map(|f| f.value as u64).sum();
            self.of_maps.fetch_add(lacking, Ordering::Relaxed);
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

    /// Brings home what the pool holds for services, the volumes' data apart.
    pub(crate) fn drain(&self, progress: &mut Progress<'_>) -> Result<()> {
        let running = self.services().running.clone();
        running.iter().filter(|s| !s.ended()).try_for_each(|s| s.drain(progress))
    }

    /// Asks the first service of a kind.
    pub(crate) fn call(
        &self,
        kind: &str,
        request: Value,
        progress: &mut Progress<'_>,
    ) -> Result<Value> {
        let running = self.services().running.clone();
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
        let running = self.services().running.clone();
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
