// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files mapped onto a pool, compared with the same files mapped by the kernel.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{sys, Engine, Media, Memory as Mapped, Persist};
use forebay_map::system::Window;
use forebay_map::{Cache, Features, MapFile, Options, PoolStore, PAGE, SEGMENT};
use rustix::fs::MemfdFlags;
use serde::Serialize;

use crate::pool::{failed, failed_open};
use crate::strokes::Random;
use crate::BenchError;

/// Options of [`maps()`].
#[derive(Debug, Clone)]
pub struct MapBenchOptions {
    /// Directory of both files.
    pub dir: PathBuf,
    /// Directory of the pool, a tmpfs; none: anonymous shared memory.
    pub media_dir: Option<PathBuf>,
    /// Sizes of mappings, one after the other.
    pub mapping_mib: Vec<u64>,
    /// Pages dirty at a sync of the whole, in the last mapping.
    pub dirty_pages: Vec<u64>,
    /// Syncs of each, and ten times as many of a page.
    pub rounds: u32,
}

impl Default for MapBenchOptions {
    fn default() -> MapBenchOptions {
        MapBenchOptions {
            dir: std::env::temp_dir(),
            media_dir: None,
            mapping_mib: vec![64, 1024, 4096],
            dirty_pages: vec![1, 16, 256, 4096],
            rounds: 60,
        }
    }
}

/// The result of [`maps()`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MapReport {
    /// A row for each size and number of pages.
    pub sync: Vec<MapSync>,
    /// Writes to random places, each with a sync, by threads, while what is dirty is written
    /// back: figure 5.2 of the thesis.
    pub writes: Vec<MapWrites>,
    /// The first store to a page since it was synced, in a segment that others are stored
    /// to: the median.
    pub store_us: f64,
    /// The first store to a segment that was clean for some time, where few were stored to:
    /// the median.
    pub store_to_clean_segment_us: f64,
    /// A store with many such segments, so that stores there are not noted any more.
    pub store_to_watched_segment_us: f64,
    /// The kernel's first store to a page since it was synced.
    pub kernel_store_us: f64,
    /// A load from each page of a segment that is not there, one segment after the other; the
    /// file is not in the system's cache.  The mean, as for the others of a segment: who reads
    /// ahead has many that are fast, and some that are slow.
    pub segment_us: f64,
    /// Such a load from the kernel's mapping.
    pub kernel_segment_us: f64,
    /// Such a load after removal from the mapping; the file is in the system's cache.
    pub segment_warm_us: f64,
    /// Such a load from the kernel's mapping.
    pub kernel_segment_warm_us: f64,
    /// The first page of `segment_warm_us`.
    pub segment_first_page_us: f64,
    /// Loads of all bytes of a segment that is there: nanoseconds a KiB.
    pub load_ns_per_kib: f64,
    /// Such loads from plain memory.
    pub memory_load_ns_per_kib: f64,
    /// Directory of the files.
    pub dir: PathBuf,
    /// The mapped media.
    pub media: String,
    /// Features that the kernel lacks.
    pub missing: Vec<String>,
}

/// Syncs, in turns with the kernel's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MapSync {
    /// `page`: of the page's range; `whole`: of the whole mapping.
    pub what: &'static str,
    /// Its size.
    pub mapping_mib: u64,
    /// Pages that were stored to before each.
    pub dirty_pages: u64,
    /// The library's median; stores are not counted.
    pub p50_us: f64,
    /// Bound of nine tenths.
    pub p90_us: f64,
    /// msync of the same.
    pub kernel_p50_us: f64,
    /// How many times as long.
    pub ratio: f64,
    /// Time of each page more than one, if there are more.
    pub added_us_a_page: Option<f64>,
}

/// Writes by threads, in turns with the kernel's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MapWrites {
    /// How many.
    pub threads: u32,
    /// Bytes of a write.
    pub block: usize,
    /// All threads together: the median of the turns.
    pub mib_per_s: f64,
    /// By msync of a mapping.
    pub kernel_mib_per_s: f64,
    /// How many times as much.
    pub ratio: f64,
}

fn system(what: &str) -> impl FnOnce(io::Error) -> BenchError + '_ {
    move |source| BenchError::System { what: what.to_owned(), source }
}

fn refused(e: forebay_map::Error) -> BenchError {
    BenchError::Options(e.to_string())
}

/// A file that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path, what: &str, bytes: u64) -> Result<(Scratch, File), BenchError> {
        let path = dir.join(format!("forebay-bench-map-{}-{what}", std::process::id()));
        let mut o = File::options();
        let opened = o.read(true).write(true).create_new(true).open(&path);
        let file = opened.map_err(system("creating a file (name another --dir)"))?;
        let scratch = Scratch(path);
        file.set_len(bytes).map_err(system("its size"))?;
        Ok((scratch, file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A mapping with its pool, and the kernel's mapping.
struct Bed {
    file: MapFile,
    cache: Cache,
    kernel: Window,
    kernel_file: File,
    size: u64,
    _files: [Scratch; 2],
}

fn kernel_mapping(file: &File, size: u64) -> Result<Window, BenchError> {
    Window::new(file.as_fd(), 0, size as usize).map_err(system("mapping the file"))
}

fn pool(o: &MapBenchOptions, share: u64) -> Result<(Arc<Engine>, File), BenchError> {
    let bytes = share + (8 << 20);
    let file = match &o.media_dir {
        Some(dir) => {
            let (scratch, file) = Scratch::new(dir, "pool", bytes)?;
            drop(scratch);
            file
        }
        None => {
            let fd = rustix::fs::memfd_create("forebay-bench", MemfdFlags::CLOEXEC)
                .map_err(|e| system("memory")(e.into()))?;
            let file = File::from(fd);
            file.set_len(bytes).map_err(system("memory"))?;
            file
        }
    };
    // Like a device: on fresh memory the first touch of a page costs much more.
    let zeroes = vec![0; SEGMENT];
    for at in (0..bytes).step_by(SEGMENT) {
        let n = (bytes - at).min(SEGMENT as u64) as usize;
        std::os::unix::fs::FileExt::write_all_at(&file, &zeroes[..n], at)
            .map_err(system("memory"))?;
    }
    let mapped = Mapped::of_file(file.as_fd(), bytes as usize, true, false);
    let mapped = Arc::new(mapped.map_err(system("mapping the pool"))?);
    let media = Media::new(mapped, bytes, Persist::Clwb, None);
    let media = media.ok_or_else(|| BenchError::Options("this CPU has no clwb".into()))?;
    let uuid = *b"forebay-bench 02";
    let format =
        sys::fby_format { uuid, chunk_size: 64 << 10, map_bytes: share, ..Default::default() };
    forebay_engine::format(&media, &format).map_err(failed("format the pool"))?;
    let options = sys::fby_options { nslots: 1, maps: true, ..Default::default() };
    let (engine, _) =
        Engine::open(Arc::new(media), &options).map_err(failed_open("open the pool"))?;
    engine.map_add("bench", uuid, share).map_err(failed("add a map"))?;
    Ok((Arc::new(engine), file))
}

impl Bed {
    fn new(
        o: &MapBenchOptions,
        mib: u64,
        features: &Features,
        with_data: u64,
        by_hand: bool,
    ) -> Result<Bed, BenchError> {
        let size = mib << 20;
        // Room for descriptors and records; a frame for each segment.
        let share = (size + size / 64 + (16 << 20)).next_multiple_of(2 << 20);
        let (engine, memory) = pool(o, share)?;
        let store = PoolStore::attach(&engine, "bench", memory).map_err(refused)?;
        let (ours, our_file) = Scratch::new(&o.dir, "ours", size)?;
        let (theirs, kernel_file) = Scratch::new(&o.dir, "kernel", size)?;
        for file in [&our_file, &kernel_file] {
            fill(file, with_data).map_err(system("writing to a file"))?;
        }
        drop(our_file);
        let options = Options { by_hand, features: Some(features.clone()), ..Default::default() };
        let cache = Cache::new(Arc::new(store), options).map_err(refused)?;
        let file = cache.open(&ours.0, size).map_err(refused)?;
        let kernel = kernel_mapping(&kernel_file, size)?;
        Ok(Bed { file, cache, kernel, kernel_file, size, _files: [ours, theirs] })
    }

    /// All segments there, and all clean for some time.
    fn settle(&self) -> Result<(), BenchError> {
        for at in (0..self.size).step_by(SEGMENT) {
            self.file.load(at, &mut [0]);
        }
        self.rest()
    }

    /// Until nothing changes any more.
    fn rest(&self) -> Result<(), BenchError> {
        self.file.sync(0, self.size).map_err(refused)?;
        let (mut before, mut same) = (self.file.counts(), 0);
        while same < 4 {
            self.cache.round().map_err(refused)?;
            let counts = self.file.counts();
            same = if counts == before { same + 1 } else { 0 };
            before = counts;
        }
        Ok(())
    }

    /// `n` pages, apart, and the same each time: their blocks are there.
    fn places(&self, n: u64) -> Vec<u64> {
        let all = self.size / PAGE as u64;
        let n = n.min(all);
        // Next to each other in runs of 16, as what is written together is.
        (0..n)
            .map(|i| (i / 16) * 512 % all / 512 * 512 + (i / 16) * 512 / all * 16 + i % 16)
            .collect()
    }

    fn row(
        &self,
        what: &'static str,
        mib: u64,
        n: u64,
        rounds: u32,
    ) -> Result<MapSync, BenchError> {
        let places = self.places(n);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let range = match what {
            "page" => (places[0] * PAGE as u64, PAGE as u64),
            _ => (0, self.size),
        };
        for round in 0..rounds + 2 {
            let value = u64::from(round + 1).to_ne_bytes();
            for &page in &places {
                self.file.store(page * PAGE as u64, &value);
            }
            let start = Instant::now();
            self.file.sync(range.0, range.1).map_err(refused)?;
            let us = microseconds(start.elapsed());
            // The kernel's costs much more.
            let kernel = (round % 10 < 2 || what == "whole").then(|| {
                places.iter().for_each(|&p| self.kernel.copy_in(p as usize * PAGE, &value));
                let start = Instant::now();
                let synced = self.kernel.sync(range.0 as usize, range.1 as usize);
                synced.map(|()| microseconds(start.elapsed()))
            });
            // The first two find the blocks.
            if round >= 2 {
                ours.push(us);
                theirs.extend(kernel.transpose().map_err(system("msync"))?);
            }
        }
        let (p50_us, p90_us) = (at(&mut ours, 50), at(&mut ours, 90));
        let kernel_p50_us = at(&mut theirs, 50);
        let ratio = kernel_p50_us / p50_us;
        Ok(MapSync {
            what,
            mapping_mib: mib,
            dirty_pages: n,
            p50_us,
            p90_us,
            kernel_p50_us,
            ratio,
            added_us_a_page: None,
        })
    }
}

fn microseconds(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e3
}

fn at(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * percent / 100).or(values.last()).copied().unwrap_or(0.0)
}

/// Runs the benchmark: some minutes, most of them the kernel's.
pub fn maps(o: &MapBenchOptions) -> Result<MapReport, BenchError> {
    let Some(&last) = o.mapping_mib.last() else {
        return Err(BenchError::Options("no mapping".into()));
    };
    if o.mapping_mib.iter().any(|&m| !(2..=1 << 16).contains(&m)) || o.rounds == 0 {
        return Err(BenchError::Options("mappings of 2 to 65536 MiB; a round at least".into()));
    }
    let probe = pool(o, 16 << 20)?.1;
    let features = Features::detect(probe.as_fd(), 0);
    let mut report = MapReport {
        sync: Vec::new(),
        writes: Vec::new(),
        store_us: 0.0,
        store_to_clean_segment_us: 0.0,
        store_to_watched_segment_us: 0.0,
        kernel_store_us: 0.0,
        segment_us: 0.0,
        kernel_segment_us: 0.0,
        segment_warm_us: 0.0,
        kernel_segment_warm_us: 0.0,
        segment_first_page_us: 0.0,
        load_ns_per_kib: 0.0,
        memory_load_ns_per_kib: 0.0,
        dir: o.dir.clone(),
        media: match &o.media_dir {
            Some(dir) => format!("file in {}", dir.display()),
            None => "memfd".into(),
        },
        missing: features.missing.clone(),
    };
    for &mib in &o.mapping_mib {
        // The others have holes: their measurements need no data.
        let brought = if mib == last { (mib / 2).min(o.rounds.into()) } else { 0 };
        let mut bed = Bed::new(o, mib, &features, brought, true)?;
        if brought > 0 {
            segments(&mut bed, brought, &mut report)?;
        }
        bed.settle()?;
        report.sync.push(bed.row("page", mib, 1, o.rounds * 10)?);
        let one = bed.row("whole", mib, 1, o.rounds)?;
        let one_us = one.p50_us;
        report.sync.push(one);
        if mib == last {
            for &n in o.dirty_pages.iter().filter(|&&n| n > 1) {
                let mut row = bed.row("whole", mib, n, o.rounds)?;
                row.added_us_a_page = Some((row.p50_us - one_us) / (n - 1) as f64);
                report.sync.push(row);
            }
            stores(&bed, o, &mut report)?;
            loads(&bed, &mut report)?;
        }
    }
    report.writes = writes(o, &features)?;
    Ok(report)
}

/// The file and the amount of each write, and the number of turns.
const WRITES_MIB: u64 = 256;
const WRITES: [(u32, usize); 7] = [(1, 4), (2, 4), (4, 4), (8, 4), (1, 16), (1, 64), (1, 128)];
const TURNS: u32 = 3;

fn writes(o: &MapBenchOptions, features: &Features) -> Result<Vec<MapWrites>, BenchError> {
    let bed = Bed::new(o, WRITES_MIB, features, WRITES_MIB * (1 << 20) / SEGMENT as u64, false)?;
    let turn = Duration::from_millis(u64::from(o.rounds).clamp(10, 60) * 10);
    // All pages are there.
    for segment in 0..bed.size / SEGMENT as u64 {
        touched(segment, |at| bed.kernel.copy_out(at as usize, &mut [0]));
        touched(segment, |at| bed.file.load(at, &mut [0]));
    }
    let ours = |at: u64, from: &[u8]| {
        bed.file.store(at, from);
        bed.file.sync(at, from.len() as u64).map_err(refused)
    };
    let theirs = |at: u64, from: &[u8]| {
        bed.kernel.copy_in(at as usize, from);
        bed.kernel.sync(at as usize, from.len()).map_err(system("msync"))
    };
    let mut rows = Vec::new();
    for (threads, kib) in WRITES {
        let block = kib << 10;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            a.push(written(threads, block, bed.size, turn, &ours)?);
            b.push(written(threads, block, bed.size, turn, &theirs)?);
        }
        let (mib_per_s, kernel_mib_per_s) = (at(&mut a, 50), at(&mut b, 50));
        let ratio = mib_per_s / kernel_mib_per_s;
        rows.push(MapWrites { threads, block, mib_per_s, kernel_mib_per_s, ratio });
    }
    Ok(rows)
}

/// MiB a second, of all threads.
fn written(
    threads: u32,
    block: usize,
    size: u64,
    turn: Duration,
    write: &(impl Fn(u64, &[u8]) -> Result<(), BenchError> + Sync),
) -> Result<f64, BenchError> {
    let start = Instant::now();
    let one = |thread: u32| -> Result<u64, BenchError> {
        let mut random = Random::new(u64::from(thread) + 1);
        let mut bytes = vec![0; block];
        let mut n = 0;
        while start.elapsed() < turn {
            bytes.fill(random.next() as u8);
            write(random.next() % (size / block as u64) * block as u64, &bytes)?;
            n += 1;
        }
        Ok(n)
    };
    let counts: Result<Vec<u64>, BenchError> = std::thread::scope(|s| {
        let started: Vec<_> = (0..threads).map(|t| s.spawn(move || one(t))).collect();
        started.into_iter().map(|t| t.join().expect("it does not panic")).collect()
    });
    let bytes = counts?.iter().sum::<u64>() as f64 * block as f64;
    Ok(bytes / f64::from(1 << 20) / start.elapsed().as_secs_f64())
}

/// So many segments with data, of which nothing is in the system's cache.
fn fill(file: &File, segments: u64) -> io::Result<()> {
    let mut bytes = vec![0; SEGMENT];
    for segment in 0..segments {
        bytes.fill(segment as u8 + 1);
        std::os::unix::fs::FileExt::write_all_at(file, &bytes, segment * SEGMENT as u64)?;
    }
    file.sync_all()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// A load from each page of a segment; microseconds for all, and for the first.
fn touched(segment: u64, load: impl Fn(u64)) -> (f64, f64) {
    let place = |page: usize| segment * SEGMENT as u64 + (page * PAGE) as u64;
    let start = Instant::now();
    load(place(0));
    let first = microseconds(start.elapsed());
    (1..SEGMENT / PAGE).for_each(|page| load(place(page)));
    (microseconds(start.elapsed()), first)
}

fn segments(bed: &mut Bed, n: u64, report: &mut MapReport) -> Result<(), BenchError> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let run = |bed: &Bed| {
        let (mut ours, mut first, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for segment in 0..n {
            let (all, one) = touched(segment, |at| bed.file.load(at, &mut [0]));
            ours.push(all);
            first.push(one);
            theirs.push(touched(segment, |at| bed.kernel.copy_out(at as usize, &mut [0])).0);
        }
        [mean(&ours), mean(&first), mean(&theirs)]
    };
    [report.segment_us, _, report.kernel_segment_us] = run(bed);
    let (mut warm, mut first, mut kernel_warm) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        bed.file.drop_cache(0, bed.size).map_err(refused)?;
        bed.kernel = kernel_mapping(&bed.kernel_file, bed.size)?;
        let [all, one, kernel] = run(bed);
        warm.push(all);
        first.push(one);
        kernel_warm.push(kernel);
    }
    report.segment_warm_us = at(&mut warm, 50);
    report.segment_first_page_us = at(&mut first, 50);
    report.kernel_segment_warm_us = at(&mut kernel_warm, 50);
    Ok(())
}

fn stores(bed: &Bed, o: &MapBenchOptions, report: &mut MapReport) -> Result<(), BenchError> {
    let (mut ours, mut theirs, mut quiet) = (Vec::new(), Vec::new(), Vec::new());
    let mut random = Random::new(7);
    // The rest of the segment is being stored to.
    for _ in 0..o.rounds * 10 {
        let at = (random.next() % (SEGMENT / PAGE) as u64) * PAGE as u64;
        bed.file.store(SEGMENT as u64 - 8, &[1]);
        bed.file.load(at, &mut [0]);
        bed.file.sync(0, SEGMENT as u64).map_err(refused)?;
        let start = Instant::now();
        bed.file.store(at, &[1]);
        ours.push(microseconds(start.elapsed()));
    }
    for _ in 0..o.rounds {
        let at = (random.next() % (SEGMENT / PAGE) as u64) as usize * PAGE;
        bed.kernel.copy_in(at, &[1]);
        bed.kernel.sync(at, PAGE).map_err(system("msync"))?;
        let start = Instant::now();
        bed.kernel.copy_in(at, &[1]);
        theirs.push(microseconds(start.elapsed()));
    }
    // The first four were stored to last, the last four before more than are kept.
    let many = (bed.size / SEGMENT as u64).min(64);
    let mut watched = Vec::new();
    for _ in 0..o.rounds.min(20) {
        for segments in [4..many, 0..4] {
            segments.for_each(|s| bed.file.store(s * SEGMENT as u64, &[1]));
            bed.file.sync(0, bed.size).map_err(refused)?;
            bed.cache.round().map_err(refused)?;
        }
        bed.rest()?;
        let stored = |segment: u64| {
            let start = Instant::now();
            bed.file.store(segment * SEGMENT as u64, &[1]);
            microseconds(start.elapsed())
        };
        quiet.extend((0..4).map(stored));
        watched.extend((many - 4..many).map(stored));
    }
    report.store_us = at(&mut ours, 50);
    report.kernel_store_us = at(&mut theirs, 50);
    report.store_to_clean_segment_us = at(&mut quiet, 50);
    report.store_to_watched_segment_us = at(&mut watched, 50);
    Ok(())
}

fn loads(bed: &Bed, report: &mut MapReport) -> Result<(), BenchError> {
    let plain = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC)
        .map_err(|e| system("memory")(e.into()))?;
    rustix::fs::ftruncate(&plain, SEGMENT as u64).map_err(|e| system("memory")(e.into()))?;
    let plain = Window::new(plain.as_fd(), 0, SEGMENT).map_err(system("memory"))?;
    let mut to = vec![0; SEGMENT];
    plain.copy_in(0, &to);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let start = Instant::now();
        bed.file.load(0, &mut to);
        ours.push(microseconds(start.elapsed()));
        let start = Instant::now();
        plain.copy_out(0, &mut to);
        theirs.push(microseconds(start.elapsed()));
    }
    let per_kib = 1e3 / (SEGMENT / 1024) as f64;
    report.load_ns_per_kib = at(&mut ours, 50) * per_kib;
    report.memory_load_ns_per_kib = at(&mut theirs, 50) * per_kib;
    Ok(())
}
