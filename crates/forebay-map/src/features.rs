// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds out by trial what this kernel can do for the tracker.
//!
//! Each feature is used as the tracker uses it, on scratch memory, and counts as present only
//! if every answer was right.  A missing feature makes the tracker slower but never weaker: see
//! [`Features`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, MemfdFlags, StatxAttributes, StatxFlags};

use crate::pages::{PageSet, PAGE, SEGMENT, SEGMENT_PAGES};
use crate::system::{feature, Event, Mode, Pagemap, Reservation, Scan, Uffd};

/// Flags of the userfaultfd whose events this process handles.
pub(crate) const FAULTS: u64 = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::POISON;
/// The flags above, with events also for stores to write-protected memory.
pub(crate) const STORES: u64 =
    FAULTS | feature::PAGEFAULT_FLAG_WP | feature::WP_HUGETLBFS_SHMEM | feature::WP_UNPOPULATED;
/// Flags of the userfaultfd with which the kernel records stores itself.
pub(crate) const NOTED: u64 = NOTED_ALONE | feature::EVENT_REMAP | feature::EVENT_REMOVE;
/// The flags for recording stores where no thread reads events.
pub(crate) const NOTED_ALONE: u64 = feature::PAGEFAULT_FLAG_WP
    | feature::WP_HUGETLBFS_SHMEM
    | feature::WP_UNPOPULATED
    | feature::WP_ASYNC;

/// The kernel features that the tracker may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Touching an absent segment is an event.  Without it all segments are brought in when the
    /// tracker is made, and stay.
    pub faults: bool,
    /// Storing to a clean segment is an event.  Without it each sync looks at every segment
    /// that is present.
    pub watch: bool,
    /// The kernel records which pages are stored to.  Without it each sync treats every page of
    /// every present segment as stored to.
    pub scan: bool,
    /// A segment can be prepared elsewhere and moved into place with all pages faulted in and
    /// stores recorded.  Without it each page takes its own fault.
    pub moves: bool,
    /// The missing features and the reasons, in words.
    pub missing: Vec<String>,
}

impl Features {
    /// No features: works everywhere.
    pub fn none() -> Features {
        Features::default()
    }

    /// Tries the features with this memory, a file in which a segment lies at `offset`.  The
    /// segment is mapped but not stored to.
    pub fn detect(memory: BorrowedFd<'_>, offset: u64) -> Features {
        let mut found = Features::default();
        let tries: [(&str, Try); 4] = [
            ("the kernel does not report which pages are stored to", try_scan),
            ("segments cannot be brought in when they are touched", try_faults),
            ("the kernel does not report the first store to a clean segment", try_watch),
            ("segments cannot be prepared before they are mapped", try_moves),
        ];
        for (what, tried) in tries {
            if let Err(e) = tried(&mut found, memory, offset) {
                found.missing.push(format!("{what}: {e}"));
            }
        }
        found
    }
}

type Try = fn(&mut Features, BorrowedFd<'_>, u64) -> io::Result<()>;

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

fn scratch() -> io::Result<(OwnedFd, Reservation)> {
    // The kernel would end the program by SIGXFSZ.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < SEGMENT as u64) {
        return Err(wrong("the limit for the size of files (ulimit -f) is below 2 MiB"));
    }
    let fd = rustix::fs::memfd_create("forebay-self-test", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, SEGMENT as u64)?;
    Ok((fd, Reservation::new(1)?))
}

fn expect(what: &str, found: PageSet, pages: &[usize]) -> io::Result<()> {
    let found: Vec<usize> = found.iter().take(8).collect();
    match found == pages {
        true => Ok(()),
        false => Err(wrong(format!("{what}: pages {found:?}... instead of {pages:?}"))),
    }
}

fn touch(r: &Reservation, page: usize) {
    r.store(page * PAGE, &[1]);
}

/// Kernels before 6.9 lose a page's dirty bit when they write-protect it for a scan.  A page of
/// a mapped file would then not be written to the file.
fn old_kernel() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 9)
}

/// Whether the memory is on a DAX file system, or may be.
fn is_dax(memory: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = rustix::fs::statx(memory, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let cached = stat.stx_attributes_mask.contains(StatxAttributes::DAX)
        && !stat.stx_attributes.contains(StatxAttributes::DAX);
    let kind = FileType::from_raw_mode(stat.stx_mode.into());
    Ok(!cached || !matches!(kind, FileType::RegularFile | FileType::BlockDevice))
}

fn try_scan(found: &mut Features, memory: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    if old_kernel() {
        return Err(wrong("kernels before 6.9 lose stores to files in a scan"));
    }
    if is_dax(memory)? {
        return Err(wrong("it is on DAX, where stores to huge pages are not recorded"));
    }
    let uffd = Uffd::new(NOTED_ALONE, false)?;
    let pagemap = Pagemap::new()?;
    let (fd, r) = scratch()?;
    let all = 0..SEGMENT_PAGES;
    let scan = |how| pagemap.scan(&r, 0, all.clone(), how);

    r.map(0, fd.as_fd(), 0)?;
    uffd.register(&r, 0..1, Mode::WriteProtect)?;
    touch(&r, 7);
    let before = scan(Scan::Arm)?;
    if !before.contains(7) || before.len() > 64 {
        return Err(wrong(format!("a page was touched, and {} are told", before.len())));
    }
    expect("nothing was stored", scan(Scan::Take)?, &[])?;

    touch(&r, 3);
    if r.store_by_kernel(5 * PAGE, &File::open("/dev/zero")?, 16)? != 16 {
        return Err(wrong("read(2) was short"));
    }
    r.load(9 * PAGE, &mut [0]);
    expect("stores to two pages", scan(Scan::Look)?, &[3, 5])?;
    expect("the same", scan(Scan::Take)?, &[3, 5])?;
    expect("no more stores", scan(Scan::Take)?, &[])?;
    touch(&r, 3);
    let one = pagemap.scan(&r, 0, 3..4, Scan::Take)?;
    expect("a page stored to once more", one, &[3])?;
    expect("and taken", scan(Scan::Take)?, &[])?;

    // The caller's memory is only registered, to see whether that works.
    r.map(0, memory, offset)?;
    uffd.register(&r, 0..1, Mode::WriteProtect)?;
    found.scan = true;
    Ok(())
}

fn next_event(uffd: &Uffd) -> io::Result<Event> {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        if let Some(event) = uffd.read()? {
            return Ok(event);
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = poll(&mut [PollFd::new(uffd, PollFlags::IN)], Some(&wait));
    }
    Err(wrong("no event within five seconds"))
}

fn try_faults(found: &mut Features, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
    let uffd = Uffd::new(FAULTS, true)?;
    let (fd, r) = scratch()?;
    uffd.register(&r, 0..1, Mode::Missing)?;
    let memory = File::from(fd);
    rustix::io::pwrite(&memory, b"there", 0)?;
    for _ in 0..2 {
        std::thread::scope(|s| {
            let loads = s.spawn(|| {
                let mut bytes = [0; 5];
                r.load(0, &mut bytes);
                bytes
            });
            let event = next_event(&uffd);
            let mapped = r.map(0, memory.as_fd(), 0);
            uffd.wake(&r, 0);
            let bytes = loads.join().map_err(|_| wrong("a thread ended"))?;
            match event? {
                Event::Missing(at) if r.segment_of(at) == Some(0) => drop(mapped?),
                other => return Err(wrong(format!("{other:?} instead of a fault"))),
            }
            match &bytes == b"there" {
                true => Ok(()),
                false => Err(wrong("other bytes than were mapped")),
            }
        })?;
        std::thread::scope(|s| {
            let moves = s.spawn(|| r.take_away(0, &uffd));
            let event = next_event(&uffd);
            moves.join().map_err(|_| wrong("a thread ended"))??;
            event.map(drop)
        })?;
    }
    found.faults = true;
    Ok(())
}

/// A segment whose pages are present and write-protected, ready to be moved into place.
pub(crate) fn ready(
    noted: &Uffd,
    pagemap: &Pagemap,
    memory: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<Reservation> {
    let r = Reservation::new(1)?;
    if !r.map(0, memory, offset)? {
        return Err(wrong("children would have it"));
    }
    // If this fails, the pages are faulted in when they are touched.
    let _ = r.populate(0);
    noted.register(&r, 0..1, Mode::WriteProtect)?;
    pagemap.scan(&r, 0, 0..SEGMENT_PAGES, Scan::Arm)?;
    Ok(r)
}

fn try_moves(found: &mut Features, memory: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    if !found.scan || !found.faults {
        return Err(wrong("it needs both of the others"));
    }
    let noted = Uffd::new(NOTED, false)?;
    let pagemap = Pagemap::new()?;
    let (fd, r) = scratch()?;
    let (uffd, file) = (Uffd::new(FAULTS, true)?, File::from(fd));
    uffd.register(&r, 0..1, Mode::Missing)?;
    rustix::io::pwrite(&file, b"there", 0)?;
    std::thread::scope(|s| {
        let moves = s.spawn(|| {
            let ready = ready(&noted, &pagemap, file.as_fd(), 0)?;
            r.move_here(0, ready)
        });
        let event = next_event(&noted);
        moves.join().map_err(|_| wrong("a thread ended"))??;
        event.map(drop)
    })?;
    let scan = |how| pagemap.scan(&r, 0, 0..SEGMENT_PAGES, how);
    expect("nothing was stored", scan(Scan::Look)?, &[])?;
    let mut bytes = [0; 5];
    r.load(0, &mut bytes);
    if &bytes != b"there" {
        return Err(wrong("other bytes than were mapped"));
    }
    touch(&r, 3);
    touch(&r, SEGMENT_PAGES - 2);
    expect("stores after the move", scan(Scan::Take)?, &[3, SEGMENT_PAGES - 2])?;
    touch(&r, 3);
    expect("and one more", scan(Scan::Take)?, &[3])?;
    drop(ready(&noted, &pagemap, memory, offset)?);
    found.moves = true;
    Ok(())
}

fn try_watch(found: &mut Features, memory: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    if !found.scan || !found.faults {
        return Err(wrong("it needs both of the others"));
    }
    let uffd = Uffd::new(STORES, true)?;
    let noted = Uffd::new(NOTED_ALONE, false)?;
    let pagemap = Pagemap::new()?;
    let (fd, r) = scratch()?;
    r.map(0, fd.as_fd(), 0)?;
    uffd.register(&r, 0..1, Mode::WriteProtect)?;
    uffd.protect(&r, 0)?;
    r.load(4 * PAGE, &mut [0]);
    if uffd.read()?.is_some() {
        return Err(wrong("a load was told as a store"));
    }
    std::thread::scope(|s| {
        let stores = s.spawn(|| touch(&r, 4));
        let event = next_event(&uffd);
        let armed = (|| {
            r.map(0, fd.as_fd(), 0)?;
            noted.register(&r, 0..1, Mode::WriteProtect)?;
            pagemap.scan(&r, 0, 0..SEGMENT_PAGES, Scan::Arm)
        })();
        uffd.wake(&r, 0);
        stores.join().map_err(|_| wrong("a thread ended"))?;
        match event? {
            Event::Store(at) if r.segment_of(at) == Some(0) => armed,
            other => Err(wrong(format!("{other:?} instead of a store"))),
        }
    })?;
    expect("after the event", pagemap.scan(&r, 0, 0..SEGMENT_PAGES, Scan::Take)?, &[4])?;

    r.map(0, memory, offset)?;
    uffd.register(&r, 0..1, Mode::WriteProtect)?;
    found.watch = true;
    Ok(())
}
