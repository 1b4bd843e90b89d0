// SPDX-License-Identifier: MIT OR Apache-2.0
//! One image, and what is in flight to it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::ptr::{null, null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::library::{functions, Cluster, Completion, Functions, Handle, IoCtx};
use crate::{Failure, Name};

const LOCK_MODE_EXCLUSIVE: c_int = 0;
const ENOENT: c_int = 2;
/// Bound of a string that librbd writes: its ids have a few dozen bytes.
const ID_MOST: usize = 128;

/// Properties of the image in the cluster.
#[derive(Clone, Debug)]
pub struct Facts {
    pub size_bytes: u64,
    /// Cluster, pool and image, by ids that no other has.
    pub id: String,
}

/// A request to the cluster.
#[derive(Debug)]
pub enum Command {
    /// So many bytes.
    Read(usize),
    Write(Vec<u8>),
    Flush,
    Discard(u64),
    Zero(u64),
}

impl Command {
    /// Does the request change the image's content?
    pub fn changes(&self) -> bool {
        matches!(self, Command::Write(_) | Command::Discard(_) | Command::Zero(_))
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    /// The token given to [`Image::submit`].
    pub token: u64,
    /// The data of a read, or the number of the error.
    pub result: Result<Vec<u8>, i32>,
}

type Tell = dyn Fn(Done) + Send + Sync;

/// A command by the addresses of what it has.
enum Call {
    Read(usize),
    Write(*const c_char, usize),
    Flush,
    Discard(u64),
    Zero(usize),
}

/// State whose address librbd holds until it has called [`ended`].
struct InFlight {
    rbd: &'static Functions,
    token: u64,
    command: Command,
    data: Vec<u8>,
    tell: Arc<Tell>,
}

/// An image that is open.  Dropped, it waits for what is in flight, gives up the lock and ends
/// the connection to the cluster: without an end where that does not answer.
pub struct Image {
    rbd: &'static Functions,
    cluster: NonNull<Cluster>,
    pool: *mut IoCtx,
    handle: *mut Handle,
    watch: Option<u64>,
    locked: bool,
    changed: Arc<AtomicBool>,
    tell: Arc<Tell>,
}

// SAFETY: handles of librados and librbd may be used by any thread, and by several at once.
unsafe impl Send for Image {}
// SAFETY: as above; what `close` needs alone it has alone.
unsafe impl Sync for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("locked", &self.locked).finish_non_exhaustive()
    }
}

/// A function of either library answers with the negative number of an error.
fn checked(doing: &'static str, answer: c_int) -> Result<(), Failure> {
    match answer < 0 {
        true => Err(Failure::Rbd { doing, errno: -answer }),
        false => Ok(()),
    }
}

impl Image {
    /// Connects to the cluster within `limit`, where that is what it lacks, opens the image
    /// and, unless for reading only, takes its exclusive lock.  That waits for a client that
    /// died, half a minute by default, and its writes can no longer land then.  `tell` is
    /// called from threads of librbd, once for each command; it must not wait.
    pub fn open(
        name: &Name,
        read_only: bool,
        limit: Duration,
        tell: Box<Tell>,
    ) -> Result<(Image, Facts), Failure> {
        let rbd = functions()?;
        let mut cluster = null_mut();
        // SAFETY: the place is written to; no id means client.admin, or what CEPH_ARGS says.
        checked("creating a client", unsafe { (rbd.rados_create)(&mut cluster, null()) })?;
        let nothing = Failure::Rbd { doing: "creating a client", errno: 12 };
        let cluster = NonNull::new(cluster).ok_or(nothing)?;
        let mut image = Image {
            rbd,
            cluster,
            pool: null_mut(),
            handle: null_mut(),
            watch: None,
            locked: false,
            changed: Arc::default(),
            tell: tell.into(),
        };
        image.connect(name, limit)?;
        image.open_image(name, read_only)?;
        let facts = Facts { size_bytes: image.size()?, id: image.id()? };
        Ok((image, facts))
    }

    fn connect(&mut self, name: &Name, limit: Duration) -> Result<(), Failure> {
        let (rbd, cluster) = (self.rbd, self.cluster.as_ptr());
        let conf = name.conf.as_ref().map_or(null(), |c| c.as_ptr());
        // SAFETY: the handle is ours, strings end with zero bytes.
        unsafe {
            checked("reading its configuration", (rbd.rados_conf_read_file)(cluster, conf))?;
            checked("reading CEPH_ARGS", (rbd.rados_conf_parse_env)(cluster, null()))?;
        }
        let seconds = limit.as_secs().max(1).to_string();
        for (key, value) in [
            // The pool is the cache.  Without another a write that has ended is on the OSDs.
            (c"rbd_cache", if bug!(CacheLeftOn) { "true" } else { "false" }),
            (c"client_mount_timeout", &seconds),
            // No timeout of an operation: it may land all the same, and a flush then succeeds.
            (c"rados_osd_op_timeout", "0"),
        ] {
            let value = CString::new(value).expect("no zero byte");
            // SAFETY: as above.
            let set = unsafe { (rbd.rados_conf_set)(cluster, key.as_ptr(), value.as_ptr()) };
            checked("setting its configuration", set)?;
        }
        // SAFETY: as above; places are written to.
        unsafe {
            checked("connecting to the cluster", (rbd.rados_connect)(cluster))?;
            let pool = (rbd.rados_ioctx_create)(cluster, name.pool.as_ptr(), &mut self.pool);
            checked("opening the pool", pool)?;
            (rbd.rados_ioctx_set_namespace)(self.pool, name.namespace.as_ptr());
        }
        Ok(())
    }

    fn open_image(&mut self, name: &Name, read_only: bool) -> Result<(), Failure> {
        let (rbd, image) = (self.rbd, name.image.as_ptr());
        let open = if read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        // SAFETY: the pool is open, the place is written to; no snapshot.
        checked("opening the image", unsafe { open(self.pool, image, &mut self.handle, null()) })?;
        if read_only {
            return Ok(());
        }
        if !bug!(LockNotTaken) {
            // SAFETY: the image is open.
            let lock = unsafe { (rbd.rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) };
            checked("taking its exclusive lock", lock)?;
            self.locked = true;
        }
        let flag = Arc::as_ptr(&self.changed).cast_mut().cast::<c_void>();
        let mut watch = 0;
        // SAFETY: the flag lives until `close` has ended the watch.
        let watched = unsafe { (rbd.rbd_update_watch)(self.handle, &mut watch, note_change, flag) };
        checked("watching it", watched)?;
        self.watch = Some(watch);
        Ok(())
    }

    fn id(&self) -> Result<String, Failure> {
        let (mut fsid, mut id) = ([0u8; ID_MOST], [0u8; ID_MOST]);
        // SAFETY: both write at most as many bytes as they are told, with a zero at the end.
        let pool = unsafe {
            let at = fsid.as_mut_ptr().cast::<c_char>();
            checked(
                "asking for the cluster's id",
                (self.rbd.rados_cluster_fsid)(self.cluster.as_ptr(), at, ID_MOST),
            )?;
            let at = id.as_mut_ptr().cast::<c_char>();
            checked("asking for its id", (self.rbd.rbd_get_id)(self.handle, at, ID_MOST))?;
            (self.rbd.rados_ioctx_get_id)(self.pool)
        };
        let text = |bytes: &[u8]| {
            let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
            text.to_string_lossy().into_owned()
        };
        Ok(format!("rbd:{}:{pool}:{}", text(&fsid), text(&id)))
    }

    /// Bytes, as the cluster says now; may wait for it.
    pub fn size(&self) -> Result<u64, Failure> {
        let mut size = 0;
        // SAFETY: the image is open, the place is written to.
        let answer = unsafe { (self.rbd.rbd_get_size)(self.handle, &mut size) };
        checked("asking for its size", answer).map(|()| size)
    }

    /// Has this client the lock, as the cluster says now?  May wait for it.
    pub fn owns_lock(&self) -> Result<bool, Failure> {
        let mut owns = 0;
        // SAFETY: the image is open, the place is written to.
        let answer = unsafe { (self.rbd.rbd_is_exclusive_lock_owner)(self.handle, &mut owns) };
        checked("asking for its lock", answer).map(|()| owns != 0)
    }

    /// The value of a key in the image's metadata; waits for the cluster.  More than `most`
    /// bytes are an error, `ERANGE`.
    pub fn metadata(&self, key: &CStr, most: usize) -> Result<Option<Vec<u8>>, Failure> {
        let mut value = vec![0u8; most + 1];
        let mut size = value.len();
        // SAFETY: the image is open; at most `size` bytes are written.
        let answer = unsafe {
            let at = value.as_mut_ptr().cast();
            (self.rbd.rbd_metadata_get)(self.handle, key.as_ptr(), at, &mut size)
        };
        if answer == -ENOENT {
            return Ok(None);
        }
        checked("reading its metadata", answer)?;
        // It ends with a zero byte, which some versions count.
        let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
        value.truncate(end);
        Ok(Some(value))
    }

    /// Durable when it returns; waits for the cluster, and for the lock if that is not held.
    pub fn set_metadata(&self, key: &CStr, value: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, strings end with zero bytes.
        let answer =
            unsafe { (self.rbd.rbd_metadata_set)(self.handle, key.as_ptr(), value.as_ptr()) };
        checked("writing its metadata", answer)
    }

    /// Removes the key; a missing one is no error.
    pub fn remove_metadata(&self, key: &CStr) -> Result<(), Failure> {
        // SAFETY: as above.
        let answer = unsafe { (self.rbd.rbd_metadata_remove)(self.handle, key.as_ptr()) };
        checked("removing its metadata", if answer == -ENOENT { 0 } else { answer })
    }

    /// It may have another size since this was asked last.
    pub fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// Sends a command; its end is told with this token, also where it could not be sent.
    pub fn submit(&self, token: u64, command: Command, offset: u64) {
        let (rbd, handle) = (self.rbd, self.handle);
        // Their bytes stay where they are when the vectors move into the box.
        let mut data = match command {
            Command::Read(len) => vec![0; len],
            _ => Vec::new(),
        };
        let read_to: *mut c_char = data.as_mut_ptr().cast();
        let call = match &command {
            Command::Read(len) => Call::Read(*len),
            // The planted bug reuses memory that is never freed: librbd may end the command, and
            // free the box, while the bug writes.
            Command::Write(data) if bug!(BufferReused) => {
                Call::Write(data.clone().leak().as_mut_ptr().cast(), data.len())
            }
            Command::Write(data) => Call::Write(data.as_ptr().cast(), data.len()),
            Command::Flush => Call::Flush,
            Command::Discard(len) => Call::Discard(*len),
            Command::Zero(len) => Call::Zero(*len as usize),
        };
        let tell = self.tell.clone();
        let flight = Box::into_raw(Box::new(InFlight { rbd, token, command, data, tell }));
        let mut completion = null_mut();
        // SAFETY: the box is librbd's until `ended` has it, or it says that it did not take it.
        let mut answer =
            unsafe { (rbd.rbd_aio_create_completion)(flight.cast(), ended, &mut completion) };
        if answer >= 0 {
            // SAFETY: the image is open, and what is written or read to lies in the box.
            answer = unsafe {
                match call {
                    Call::Read(len) => (rbd.rbd_aio_read)(handle, offset, len, read_to, completion),
                    Call::Write(at, len) => {
                        (rbd.rbd_aio_write)(handle, offset, len, at, completion)
                    }
                    Call::Flush => (rbd.rbd_aio_flush)(handle, completion),
                    Call::Discard(len) => (rbd.rbd_aio_discard)(handle, offset, len, completion),
                    Call::Zero(len) => {
                        (rbd.rbd_aio_write_zeroes)(handle, offset, len, completion, 0, 0)
                    }
                }
            };
            if answer < 0 {
                // SAFETY: it is not called then.
                unsafe { (rbd.rbd_aio_release)(completion) };
            } else if let (Call::Write(at, len), true) = (call, bug!(BufferReused)) {
                // SAFETY: they are leaked above.
                unsafe { std::ptr::write_bytes(at.cast_mut(), 0xdd, len) };
            }
        }
        if answer < 0 {
            // SAFETY: librbd did not take it.
            let flight = unsafe { Box::from_raw(flight) };
            if !bug!(RefusalDropped) {
                (flight.tell)(Done { token, result: Err(-answer) });
            }
        }
    }
}

/// librbd calls it once for each command that it took.
unsafe extern "C" fn ended(completion: *mut Completion, flight: *mut c_void) {
    // SAFETY: it is the box that `submit` gave, which nobody else has any more.
    let flight = unsafe { Box::from_raw(flight.cast::<InFlight>()) };
    // SAFETY: the completion is ours until it is released.
    let answer = unsafe {
        let answer = (flight.rbd.rbd_aio_get_return_value)(completion);
        if !bug!(CompletionLeft) {
            (flight.rbd.rbd_aio_release)(completion);
        }
        answer
    };
    let InFlight { token, command, data, tell, .. } = *flight;
    let result = match command {
        _ if answer < 0 && !bug!(ErrorDropped) => Err(i32::try_from(-answer).unwrap_or(5)),
        // A read past the end of an image that has shrunk.
        Command::Read(len) if answer as usize != len && !bug!(ShortReadTaken) => Err(5), // EIO
        _ => Ok(data),
    };
    tell(Done { token, result });
}

unsafe extern "C" fn note_change(flag: *mut c_void) {
    // SAFETY: the image's flag, which outlives the watch.
    unsafe { &*flag.cast::<AtomicBool>() }.store(true, Ordering::Release);
}

impl Drop for Image {
    fn drop(&mut self) {
        let rbd = self.rbd;
        // SAFETY: what is open is closed in turn, once; librbd ends what is in flight first.
        unsafe {
            if !self.handle.is_null() {
                if let Some(watch) = self.watch {
                    (rbd.rbd_update_unwatch)(self.handle, watch);
                }
                if self.locked {
                    (rbd.rbd_lock_release)(self.handle);
                }
                (rbd.rbd_close)(self.handle);
            }
            if !self.pool.is_null() {
                (rbd.rados_ioctx_destroy)(self.pool);
            }
            (rbd.rados_shutdown)(self.cluster.as_ptr());
        }
    }
}
