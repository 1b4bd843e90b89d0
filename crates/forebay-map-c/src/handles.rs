// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: numbers of open objects.  No number is used twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use forebay_map::{MapFile, Session};

use crate::error::{Code, Failure};

/// The objects behind the handles of one kind.
pub struct Table<T> {
    of: RwLock<Option<HashMap<usize, Arc<T>>>>,
}

/// The next handle of any kind: a multiple of 16, like a pointer.
static NEXT: AtomicUsize = AtomicUsize::new(16);

pub static POOLS: Table<Session> = Table { of: RwLock::new(None) };
static FILES: Table<File> = Table { of: RwLock::new(None) };

/// An open file.
pub struct File {
    pub path: PathBuf,
    pub map: MapFile,
    pool: usize,
    /// Keeps the pool open until the file is closed.
    _session: Arc<Session>,
}

impl<T> Table<T> {
    pub fn put(&self, value: T) -> usize {
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        let mut of = self.of.write().unwrap_or_else(PoisonError::into_inner);
        of.get_or_insert_default().insert(handle, Arc::new(value));
        handle
    }

    pub fn get(&self, handle: usize, kind: &str) -> Result<Arc<T>, Failure> {
        let of = self.of.read().unwrap_or_else(PoisonError::into_inner);
        match of.as_ref().and_then(|of| of.get(&handle)) {
            Some(value) => Ok(Arc::clone(value)),
            None => Err(Failure::new(
                Code::Handle,
                match handle {
                    0 => format!("the {kind} is NULL: what opens it gives one"),
                    _ => format!("the {kind} is closed, or its handle was never given"),
                },
            )),
        }
    }

    /// Removes a handle if no other thread uses it.  Otherwise fails with the message `busy`.
    fn take(&self, handle: usize, kind: &str, busy: &str) -> Result<T, Failure> {
        // This call only reports an invalid handle.
        drop(self.get(handle, kind)?);
        let mut of = self.of.write().unwrap_or_else(PoisonError::into_inner);
        let of = of.get_or_insert_default();
        let Some(value) = of.remove(&handle) else {
            return Err(Failure::new(Code::Handle, format!("the {kind} was closed meanwhile")));
        };
        Arc::try_unwrap(value).map_err(|value| {
            of.insert(handle, value);
            Failure::new(Code::InUse, format!("the {kind} {busy}"))
        })
    }
}

pub fn file(handle: usize) -> Result<Arc<File>, Failure> {
    FILES.get(handle, "file")
}

pub fn open_file(
    pool: usize,
    session: Arc<Session>,
    path: &Path,
    room: u64,
    shared: bool,
) -> Result<usize, Failure> {
    let map = match shared {
        true => session.map_shared(path, room)?,
        false => session.map(path, room)?,
    };
    Ok(FILES.put(File { path: path.to_owned(), map, pool, _session: session }))
}

pub fn close_file(handle: usize) -> Result<(), Failure> {
    let File { map, .. } = FILES.take(handle, "file", "is in a call of another thread")?;
    Ok(map.close()?)
}

pub fn close_pool(handle: usize) -> Result<(), Failure> {
    let session = POOLS.take(handle, "pool", "has files that are open: close them first");
    let session = session.map_err(|e| match e.code {
        Code::InUse => Failure::new(Code::InUse, format!("{}{}", e.text, open_files(handle))),
        _ => e,
    })?;
    Ok(session.close()?)
}

fn open_files(pool: usize) -> String {
    let of = FILES.of.read().unwrap_or_else(PoisonError::into_inner);
    let names = of.iter().flat_map(HashMap::values).filter(|f| f.pool == pool);
    names.map(|f| format!(" {}", f.path.display())).collect()
}

static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child of the one that opened something.
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Ensures that children of this process know that they are children.
pub fn know_children() -> Result<(), Failure> {
    static KNOWN: OnceLock<i32> = OnceLock::new();
    let failed = *KNOWN.get_or_init(|| {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
    });
    match failed {
        0 => Ok(()),
        errno => Err(Failure { code: Code::System, errno, text: "pthread_atfork failed".into() }),
    }
}
