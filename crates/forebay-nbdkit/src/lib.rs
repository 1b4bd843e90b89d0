// SPDX-License-Identifier: MIT OR Apache-2.0
//! nbdkit plugin: serves the volumes of a pool over NBD, each as an export of
//! its name.
//!
//! nbdkit's life of a plugin, and what is done where:
//!
//! | nbdkit calls | here |
//! |---|---|
//! | config | parameters ([`config::Config`]) |
//! | after_fork | opens the pool (threads start here, so not earlier), attaches every volume |
//! | list_exports, open, pread, pwrite, ... | from any number of threads at once |
//! | cleanup | all connections are closed: detaches, closes the pool, which marks it clean |
//!
//! Acknowledged is durable, so FUA needs nothing and connections need not be
//! kept apart (multi-conn).  A volume that cannot be attached is reported and
//! left out; the others are served.

mod abi;
mod config;
mod ffi;

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use config::Config;
use forebay::{AttachOptions, Pool, PoolOptions, Volume};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) const CONFIG_HELP: &CStr = config::HELP;

const EINVAL: i32 = 22;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;
const ESHUTDOWN: i32 = 108;

/// The largest request nbdkit accepts.
const REQUEST_MAX_BYTES: u32 = 64 << 20;
/// A page of the cache: less than one has to be merged with what is cached.
const REQUEST_PREFERRED_BYTES: u32 = 4096;

/// How long writes may still wait for space after a signal to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What a failed callback tells nbdkit: the errno for the client, and the
/// message for whoever runs the server (none: reported already).
pub(crate) struct Failure {
    errno: i32,
    message: Option<String>,
}

impl Failure {
    fn new(errno: i32, message: impl Into<String>) -> Self {
        Failure { errno, message: Some(message.into()) }
    }

    fn internal(message: &str) -> Self {
        Failure::new(EIO, format!("forebay: internal error: {message}"))
    }
}

impl From<forebay::Error> for Failure {
    fn from(error: forebay::Error) -> Self {
        Failure::new(error.errno(), format!("forebay: {error}"))
    }
}

/// One connection: nbdkit hands it back at each request.  When it stops while
/// there are connections it never closes their handles, so that they must not
/// keep the volume attached.
pub(crate) struct Handle {
    volume: Weak<Volume>,
    read_only: bool,
    zeroes_fast: bool,
}

impl Handle {
    /// There is one as long as there are requests.
    fn volume(&self) -> Result<Arc<Volume>, Failure> {
        let closed = || Failure::new(ESHUTDOWN, "forebay: the pool is closed");
        self.volume.upgrade().ok_or_else(closed)
    }
}

/// The served pool: set by after_fork, taken by cleanup.
struct Server {
    pool: Pool,
    volumes: Vec<Arc<Volume>>,
    read_only: bool,
}

// nbdkit's callbacks carry no context, and one nbdkit process runs one plugin
// instance: this is that context.
static CONFIG: OnceLock<Mutex<Config>> = OnceLock::new();
static SERVER: RwLock<Option<Server>> = RwLock::new(None);

fn locked_config() -> MutexGuard<'static, Config> {
    let config = CONFIG.get_or_init(Default::default);
    config.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_server<T>(f: impl FnOnce(&Server) -> Result<T, Failure>) -> Result<T, Failure> {
    let server = SERVER.read().unwrap_or_else(PoisonError::into_inner);
    match &*server {
        Some(server) => f(server),
        None => Err(Failure::new(ESHUTDOWN, "forebay: the pool is closed")),
    }
}

// --- start and stop --------------------------------------------------------

fn config(key: &str, value: &[u8]) -> Result<(), Failure> {
    locked_config()
        .set(key, value)
        .map_err(|cause| Failure::new(EINVAL, format!("forebay: {cause}")))
}

fn config_complete() -> Result<(), Failure> {
    if locked_config().pool == PathBuf::new() {
        return Err(Failure::new(EINVAL, "forebay: no pool given; add pool=PATH"));
    }
    Ok(())
}

fn after_fork() -> Result<(), Failure> {
    let config = std::mem::take(&mut *locked_config());
    let started = start(&config);
    if let Some(to) = &config.ready {
        print_ready(&started, to);
    }
    let (server, _) = started.map_err(|e| match config.ready {
        // Said already, to the one who asked for it.
        Some(_) => Failure { errno: e.errno, message: None },
        None => e.into(),
    })?;
    *SERVER.write().unwrap_or_else(PoisonError::into_inner) = Some(server);
    watch_for_stop()
}

/// A write that waits for space in a full cache would wait as long as its
/// origin fails, and nbdkit with it: some time after it was told to stop, such
/// waits end with an error.  nbdkit's own signal handlers run as before.
fn watch_for_stop() -> Result<(), Failure> {
    let cannot = |e| Failure::new(EIO, format!("forebay: cannot watch for signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGQUIT]).map_err(cannot)?;
    let watch = move || {
        if signals.forever().next().is_some() {
            std::thread::sleep(STOP_GRACE);
            // Closed by now: nothing to do.
            let abort = |server: &Server| {
                server.pool.abort_waits();
                Ok(())
            };
            with_server(abort).ok();
        }
    };
    let thread = std::thread::Builder::new().name("forebay-stop".into());
    thread.spawn(watch).map_err(cannot)?;
    Ok(())
}

/// A volume that is not served, and why.
type Unserved = (String, String);

/// The exit code of the command goes with the message, for `forebay serve`.
struct StartError {
    error: String,
    errno: i32,
    exit_code: u8,
}

impl From<forebay::Error> for StartError {
    fn from(error: forebay::Error) -> Self {
        StartError { errno: error.errno(), exit_code: error.exit_code(), error: error.to_string() }
    }
}

impl From<StartError> for Failure {
    fn from(e: StartError) -> Self {
        Failure::new(e.errno, format!("forebay: {}", e.error))
    }
}

fn start(config: &Config) -> Result<(Server, Vec<Unserved>), StartError> {
    let options = PoolOptions {
        control: Some(forebay::control::runtime_dir()),
        ..config.pool_options.clone()
    };
    let pool = Pool::open(&config.pool, &options)?;
    let mut volumes = Vec::new();
    let mut unserved = Vec::new();
    let mut first_error = None;
    for info in pool.volumes() {
        let options = AttachOptions {
            origin: config.origins.get(&info.name).cloned(),
            ..config.attach_options.clone()
        };
        match pool.attach(&info.name, &options) {
            Ok(volume) => volumes.push(Arc::new(volume)),
            Err(error) => {
                unserved.push((info.name.clone(), error.to_string()));
                first_error.get_or_insert(error);
            }
        }
    }
    for (name, error) in &unserved {
        ffi::report(&format!("forebay: volume {name} is not served: {error}"));
    }
    if volumes.is_empty() {
        let pool_name = config.pool.display();
        let error = match first_error {
            Some(error) => error.into(),
            None => StartError {
                error: format!(
                    "{pool_name}: the pool has no volume to serve; \
                     add one: forebay volume add {pool_name} NAME ORIGIN"
                ),
                errno: ENOENT,
                exit_code: 3,
            },
        };
        pool.close()?;
        return Err(error);
    }
    let server = Server { pool, volumes, read_only: config.pool_options.read_only };
    Ok((server, unserved))
}

/// One line for the process that started nbdkit with ready=json.  Nobody may be
/// reading it: that is no reason to fail.
fn print_ready(started: &Result<(Server, Vec<Unserved>), StartError>, mut to: &File) {
    let line = match started {
        Ok((server, unserved)) => json!({
            "ready": true,
            "pid": std::process::id(),
            "media": server.pool.media(),
            "recovery": server.pool.recovery().to_string(),
            "volumes": server.volumes.iter().map(|v| json!({
                "name": v.name(),
                "size_bytes": v.size_bytes(),
                "block_size": v.block_size(),
            })).collect::<Vec<_>>(),
            "unserved": unserved.iter().map(|(name, error)| json!({
                "name": name,
                "error": error,
            })).collect::<Vec<_>>(),
        }),
        Err(e) => json!({ "ready": false, "error": e.error, "exit_code": e.exit_code }),
    };
    to.write_all(format!("{line}\n").as_bytes()).ok();
}

/// Does not drain: what is cached stays cached, and the pool is marked clean.
fn cleanup() -> Result<(), Failure> {
    let server = SERVER.write().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Server { pool, volumes, .. }) = server else {
        return Ok(());
    };
    for volume in volumes {
        // No connection's thread is left, so nobody else holds it.
        if let Some(volume) = Arc::into_inner(volume) {
            volume.detach()?;
        }
    }
    Ok(pool.close()?)
}

// --- exports ---------------------------------------------------------------

fn list_exports() -> Result<Vec<(String, String)>, Failure> {
    with_server(|server| {
        let describe = |v: &Arc<Volume>| {
            let description = format!("{} bytes, blocks of {}", v.size_bytes(), v.block_size());
            (v.name().to_owned(), description)
        };
        Ok(server.volumes.iter().map(describe).collect())
    })
}

/// The only volume; of several, none is the default, and nbdkit then asks for
/// the empty name, which `open` refuses with the list.
fn default_export() -> Result<String, Failure> {
    with_server(|server| match &server.volumes[..] {
        [only] => Ok(only.name().to_owned()),
        _ => Ok(String::new()),
    })
}

fn open(name: &str, read_only: bool) -> Result<Handle, Failure> {
    with_server(|server| {
        let found = match &server.volumes[..] {
            [only] if name.is_empty() => Some(only),
            volumes => volumes.iter().find(|v| v.name() == name),
        };
        let Some(volume) = found else {
            let names: Vec<_> = server.volumes.iter().map(|v| v.name()).collect();
            let message = format!(
                "forebay: export {name:?}: no such volume; there are: {}",
                names.join(", ")
            );
            return Err(Failure::new(ENOENT, message));
        };
        Ok(Handle {
            volume: Arc::downgrade(volume),
            read_only: read_only || server.read_only,
            zeroes_fast: volume.write_zeroes_is_fast(),
        })
    })
}

fn get_size(handle: &Handle) -> Result<i64, Failure> {
    i64::try_from(handle.volume()?.size_bytes())
        .map_err(|_| Failure::internal("a volume larger than NBD can tell"))
}

fn can_write(handle: &Handle) -> bool {
    !handle.read_only
}

pub(crate) struct BlockSizes {
    pub minimum: u32,
    pub preferred: u32,
    pub maximum: u32,
}

fn block_size(handle: &Handle) -> Result<BlockSizes, Failure> {
    Ok(BlockSizes {
        minimum: handle.volume()?.block_size(),
        preferred: REQUEST_PREFERRED_BYTES,
        maximum: REQUEST_MAX_BYTES,
    })
}

// --- requests --------------------------------------------------------------

fn pread(handle: &Handle, buffer: &mut [u8], offset: u64) -> Result<(), Failure> {
    Ok(handle.volume()?.read_at(buffer, offset)?)
}

/// Durable when it returns, so FUA asks for nothing more, but where writes go past
/// the cache.
fn pwrite(handle: &Handle, buffer: &[u8], offset: u64, fua: bool) -> Result<(), Failure> {
    let volume = handle.volume()?;
    match fua {
        true => Ok(volume.write_at_durably(buffer, offset)?),
        false => Ok(volume.write_at(buffer, offset)?),
    }
}

fn flush(handle: &Handle) -> Result<(), Failure> {
    Ok(handle.volume()?.flush()?)
}

/// A discard is a hint: only the whole blocks of the range are discarded.
fn trim(handle: &Handle, count: u32, offset: u64, fua: bool) -> Result<(), Failure> {
    let volume = handle.volume()?;
    let block = u64::from(volume.block_size());
    let start = offset.next_multiple_of(block);
    let end = (offset + u64::from(count)) / block * block;
    if start < end {
        volume.discard(start, end - start)?;
    }
    if fua {
        volume.flush()?;
    }
    Ok(())
}

/// Always zeroes, never a mere discard: a discarded range of an origin may read
/// as anything.  A client that allows holes (may_trim) gets them where the
/// origin makes them.  A fast-only request is refused where zeroing may be as
/// slow as writing, so that the client writes data that it has anyway.
fn zero(handle: &Handle, count: u32, offset: u64, fast_only: bool) -> Result<(), Failure> {
    if fast_only && !handle.zeroes_fast {
        return Err(Failure { errno: EOPNOTSUPP, message: None });
    }
    Ok(handle.volume()?.write_zeroes(offset, u64::from(count))?)
}
