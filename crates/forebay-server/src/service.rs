// SPDX-License-Identifier: MIT OR Apache-2.0
//! The services of a server: the interface between [`crate::Server`], which knows pools,
//! control socket and status, and the kinds of service, which know their clients.
//! [`crate::exports`] is one kind.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use forebay::{Pool, PoolStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// A service that runs: it was started before the server has it.
pub trait Service: Debug + Send + Sync {
    /// A word that is the same for all of its kind, and a part of metrics' names.
    fn kind(&self) -> &'static str;

    /// Clients name it so; the name is unique among those of its kind.
    fn name(&self) -> &str;

    /// For status, top and metrics.  Takes no lock that a request holds.
    fn status(&self) -> ServiceStatus;

    /// Brings home what the pool holds for its clients and only the service knows where
    /// to bring.  The volumes' data is not that: the pool drains them.
    fn drain(&self, _progress: &mut Progress<'_>) -> Result<()> {
        Ok(())
    }

    /// It has failed for good, and no later [`Service::drain`] can succeed.  A stop does not wait
    /// for one then.
    fn has_failed(&self) -> bool {
        false
    }

    /// The pool's file is lost: what the pool holds for its clients, and only the service knows where
    /// to bring, goes there at once.  It acknowledges nothing more that the pool would have to keep.
    fn pool_lost(&self, _cause: &str) {}

    /// The log of the pool that has failed under it, or is lost, and whether everything that the
    /// log held for clients is durable elsewhere.
    fn without_log(&self) -> Option<(String, bool)> {
        None
    }

    /// Does what a client of the control socket asks of its kind; any JSON both ways.
    fn call(&self, _request: Value, _progress: &mut Progress<'_>) -> Result<Value> {
        let what = format!("{} {}: takes no orders", self.kind(), self.name());
        Err(Error::service(2, what, "see forebay --help"))
    }

    /// Takes nothing new, and returns when what was taken is answered and no handle of
    /// the pool is left.  Several may call it at once, and again after it.  When it
    /// fails it runs on, unless it had to end.
    fn stop(&self, how: &Stop) -> Result<()>;

    /// It could do more than it does now, as soon as something comes or mends itself; then
    /// [`Service::retry`] is called every few seconds, on a thread that may wait.
    fn lacks_something(&self) -> bool {
        false
    }

    fn retry(&self, _pool: &Pool) {}

    /// It has volumes attached.  After its end a server whose pool has failed or is lost keeps them
    /// until their origins have everything; a service without volumes is stopped at once.
    fn has_volumes(&self) -> bool {
        true
    }

    /// It came to its end without [`Service::stop`], which is called then.
    fn ended(&self) -> bool;
}

/// Starts services of a kind when a client of the control socket asks for one.
pub trait Starter: Debug + Send + Sync {
    /// As its services'.
    fn kind(&self) -> &'static str;

    /// The options are the client's and any JSON.
    fn start(
        &self,
        pool: &Pool,
        options: Value,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Service>>;
}

/// Told how far something is; when it breaks, the caller gives up.
pub type Progress<'p> = dyn FnMut(&Work) -> ControlFlow<()> + 'p;

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// The work, in a few words.
    pub what: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// The obstacle to its progress, and the way out.
    pub trouble: Option<String>,
}

/// How a service is to stop.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Time for accepted requests; those unanswered at its end are cut off.
    pub grace: Duration,
    /// The server ends, so the service has to.  Otherwise it may refuse, as long as
    /// clients hold something of it.
    pub must: bool,
    /// The pool keeps the service's data; otherwise [`Service::drain`] came before.
    pub keep: bool,
}

/// The status of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub kind: String,
    pub name: String,
    /// A few words, without the name.
    pub summary: String,
    /// Faults of the service, each with its way out.
    pub trouble: Vec<String>,
    pub figures: Vec<Figure>,
    /// Anything of its kind.
    #[serde(default)]
    pub details: Value,
}

/// A number for top and metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Unique among those of its kind; a counter's ends in `_total`.
    pub name: String,
    pub help: String,
    pub value: f64,
}

/// A pool and what a server does with it, or the pool alone where nobody serves it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    #[serde(flatten)]
    pub pool: PoolStatus,
    /// Socket that answers about this pool; `None`: it is not served, or there is a note.
    pub control_socket: Option<String>,
    /// Why there is none though it is served.
    pub control_note: Option<String>,
    #[serde(default)]
    pub services: Vec<ServiceStatus>,
}

impl From<PoolStatus> for ServerStatus {
    fn from(pool: PoolStatus) -> ServerStatus {
        ServerStatus { pool, control_socket: None, control_note: None, services: Vec::new() }
    }
}
