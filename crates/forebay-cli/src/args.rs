// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: every subcommand, option and help text.  Completions and
//! man pages are made from these definitions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use forebay::{defaults, MediumChoice, Persist, PoolOptions};
use forebay_bench::MountCase;

use crate::units;

/// Text at the end of --help and of the man page: the exit codes that a script can rely on.
fn exit_codes() -> String {
    let lines = forebay::EXIT_CODES.iter().map(|(code, meaning)| format!("\n {code:2}  {meaning}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

const EXAMPLES: &str = "\
Examples:
  forebay create /dev/pmem0                        a pool on persistent memory
  forebay create /dev/shm/pool --size 512M         a stand-in to try things with
  forebay volume add /dev/shm/pool data disk.img   a volume in front of disk.img
  forebay serve /dev/shm/pool                      serve its volumes over NBD
  forebay drain /dev/shm/pool                      write everything to the origins
  forebay demo                                     see it work, in two minutes
";

/// Joins a command's examples and the exit codes, which every --help ends with.
macro_rules! after {
    ($($line:literal),+ $(,)?) => {
        concat!("Examples:\n", $("  ", $line, "\n",)+ "\nExit codes: see forebay --help.")
    };
}

pub mod log;
pub mod map;
mod map_run;
pub mod medium;
pub mod module;
mod mount;
pub mod origin;
mod serve;

pub use log::Log;
pub use map::Map;
pub use map_run::MapRun;
pub use mount::{Mount, MountHow, Replay, Umount, Unmark};
pub use serve::{Attach, Serve, Set, Tuning};

/// Forebay puts a small persistent memory in front of a disk or a directory.  A synchronous write
/// is durable when the memory has it, and the disk keeps its ordinary format
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true)]
#[command(after_help = format!("{EXAMPLES}\n{}", exit_codes()))]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a pool on persistent memory or a file
    Create(Create),
    /// Add, list and remove the volumes of a pool
    #[command(subcommand)]
    Volume(Volume),
    /// List, make, inspect and remove the logs of a pool
    #[command(subcommand)]
    Log(Log),
    /// Make, list and remove the maps of a pool, and recover mapped files after a crash
    #[command(subcommand)]
    Map(Map),
    /// Run a program whose files are mapped onto a pool: a sync writes only stored pages
    ///
    /// The program must be dynamically linked with the GNU C library; it needs no change.  Calls
    /// that the library cannot follow are refused with a message.  docs/manual/map-run.md lists
    /// them.  A sync that reports success is always durable.
    ///
    /// If `forebay serve` has the pool open, any number of programs can use it, each with its own
    /// files.  Without a server, one program at a time can use the pool.  Pages that a crash left
    /// there are first written to their files.
    #[command(after_help = after!(
        "forebay map-run --pool /dev/pmem0 --files data.mdb -- slapd -d 0",
        "forebay map-run --pool /dev/pmem0 --map db --files '/srv/db/*.log' data.mdb -- ./server",
        "forebay serve /dev/pmem0          first, for several programs at a time",
        "forebay map recover /dev/pmem0    after a crash, if the program does not run again",
    ))]
    MapRun(MapRun),
    /// Serve a pool's volumes over NBD on a Unix socket
    Serve(Serve),
    /// Mount a directory tree through FUSE, so that an fsync is one append to a log in the pool
    Mount(Mount),
    /// Unmount a tree, after every logged change is written to it
    Umount(Umount),
    /// Write the changes that a log holds to a tree that is not mounted
    Replay(Replay),
    /// Show or clear the mark of a tree whose pool is lost
    Unmark(Unmark),
    /// Show, without the pool, whether an origin is complete
    #[command(subcommand)]
    Origin(origin::Origin),
    /// Make a volume a block device of the kernel module
    Attach(module::AttachDevice),
    /// Remove a block device of the kernel module
    Detach(module::DetachDevice),
    /// List the kernel module's block devices
    List(module::ListDevices),
    /// Show what a pool holds and what it is doing
    Status(Status),
    /// Watch a pool live in the terminal: rates, space, volumes, latencies
    Top(Top),
    /// Show or change the options of a pool while it is served
    Set(Set),
    /// Export a pool's metrics to Prometheus
    Exporter(Exporter),
    /// Show whether a disk or file suits a pool: its speed, its cache, and doubts
    ///
    /// The exit code is 10 if a pool cannot be there; the output names the reason.
    MediaInfo(medium::MediaInfo),
    /// Test whether a disk keeps what it said is durable, while you pull its plug
    ///
    /// Exit codes of --verify: 0, every acknowledged write is there; 11, writes are lost; 15,
    /// blocks are torn; 16, other blocks are damaged; 17, the test proves nothing.  Without
    /// --verify: 7, the disk failed, as it does when its plug is pulled; 17, the disk did not fail.
    MediaTest(medium::MediaTest),
    /// Verify a pool's structures and every checksum
    Check(Check),
    /// Print what is on the media, field by field
    #[command(subcommand)]
    Dump(Dump),
    /// Write everything in the pool to the origins
    Drain(Drain),
    /// Measure the speed of Forebay on this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Show speed, a kill with recovery, and a drain, in under two minutes
    Demo(Demo),
    /// Print a shell's completion script
    Completions(Completions),
    /// Write the man pages into a directory
    Man(Man),
}

/// Commands that only Forebay itself runs: no help, completion or man page lists them.
#[derive(Debug, Parser)]
#[command(name = "forebay", version)]
pub struct Internal {
    #[command(subcommand)]
    pub command: InternalCommand,
}

#[derive(Debug, Subcommand)]
pub enum InternalCommand {
    /// The process that the demo kills
    DemoWriter(DemoWriter),
    /// Asks the server of a mount for its free space: see forebay_mount::asks_by
    Look { path: PathBuf },
    /// Asks the kernel to write back its pages of a mount: see forebay_mount::asks_by
    WriteBack { path: PathBuf },
    /// Ends the mount of a server that was killed and cannot end: see forebay_mount::guards_by
    Guard { server: u32 },
    /// Makes systemd's units from /etc/forebay.d
    SystemdGenerator(module::SystemdGenerator),
}

impl Internal {
    /// None: the first word is one of [`Command`], or an option.
    pub fn asked() -> Option<Internal> {
        let word = std::env::args_os().nth(1)?;
        let known = Internal::command().get_subcommands().any(|c| word == c.get_name());
        known.then(Internal::parse)
    }
}

// --- options that several commands share -----------------------------------

#[derive(Args, Debug, Clone, Default)]
pub struct Json {
    /// Print JSON instead of text; an error is JSON, too
    #[arg(long)]
    pub json: bool,
}

/// Also of a command line that is wrong.
pub fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

/// How the media is written.
#[derive(Args, Debug, Clone, Default)]
pub struct MediaArgs {
    /// How stores are made durable: auto, nt, clwb, eadr or msync
    #[arg(long, value_name = "METHOD", default_value_t, help_heading = "Media")]
    pub persist: Persist,
    /// Name of the routine that copies to the media; default: this CPU's fastest
    #[arg(long, value_name = "NAME", help_heading = "Media")]
    pub kernel: Option<String>,
    /// Accept a --persist method that is weaker than the media needs: a power cut may then lose
    /// acknowledged writes
    #[arg(long, help_heading = "Media")]
    pub allow_weaker: bool,
}

impl MediaArgs {
    pub fn options(&self) -> forebay::MediaOptions {
        forebay::MediaOptions {
            persist: self.persist,
            kernel: self.kernel.clone(),
            allow_weaker: self.allow_weaker,
            ..Default::default()
        }
    }

    pub fn read_write(&self) -> PoolOptions {
        PoolOptions { media: self.options(), ..Default::default() }
    }
}

// --- create ----------------------------------------------------------------

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay create /dev/pmem0",
    "forebay create /mnt/dax/pool --size 16G",
    "forebay create /dev/shm/pool --size 512M --json",
    "forebay create /dev/pmem0 --static 48G   reserves 48 GiB for static volumes",
    "forebay create /dev/pmem0 --force        destroys the data on it",
    "forebay create /dev/nvme0n1p4            on a partition of an SSD, for volumes and logs",
    "forebay create /srv/log.pool --size 1G --medium ssd   in a file on an SSD",
))]
pub struct Create {
    /// Persistent memory device, disk or partition, or path of a file to make
    pub pool: PathBuf,
    /// Size of a new file, in bytes or with K, M, G or T; required for a new file
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub size: Option<u64>,
    #[arg(long, value_name = "SIZE", value_parser = units::parse_chunk_size, default_value = units::size(defaults::CHUNK_SIZE_BYTES))]
    #[arg(help = format!("Chunk size, {}; smaller chunks are for small pools", units::chunk_sizes()))]
    pub chunk_size: u32,
    #[arg(long, value_name = "N", default_value_t = defaults::VOLUMES, value_parser = clap::value_parser!(u32).range(1..=i64::from(defaults::VOLUMES)))]
    #[arg(help = format!("Largest number of volumes, 1 to {}", defaults::VOLUMES))]
    pub volumes: u32,
    /// The medium of the pool:
    ///   - memory: persistent memory or a file, which is mapped
    ///   - ssd: a disk without DAX, or a file on one, for volumes and logs; needs as much RAM
    ///   - auto: ssd for a disk without DAX, memory for everything else
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "MEDIUM", default_value_t)]
    pub medium: MediumChoice,
    /// Reserve this much of the pool for static volumes, a multiple of 64K; default: nothing
    #[arg(long = "static", value_name = "SIZE", value_parser = units::parse_size)]
    pub static_bytes: Option<u64>,
    /// Reserve this much of the pool for maps, a multiple of 2M; default: nothing.  Programs map
    /// files onto a map by forebay map-run or the library forebay-map.  The kernel module refuses a
    /// pool with maps
    #[arg(long = "maps", value_name = "SIZE", value_parser = units::parse_size)]
    pub map_bytes: Option<u64>,
    /// Format the pool even if the device or file has data; the data is destroyed
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

// --- volume ----------------------------------------------------------------

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Put the pool in front of an origin: a block device or file
    ///
    /// The origin's format does not change.  After a drain the origin is a complete disk.
    Add(VolumeAdd),
    /// List the volumes of a pool
    List(VolumeList),
    /// Remove a volume from the pool; refused while the pool holds data of it
    Remove(VolumeRemove),
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay volume add /dev/pmem0 data /dev/sdb",
    "forebay volume add /dev/pmem0 vm1 /srv/vm1.img --block-size 4096",
    "forebay volume add /dev/pmem0 far 'nbd+unix:///export?socket=/run/far.sock'",
    "forebay volume add /dev/pmem0 far nbd://10.0.0.7/export",
    "forebay volume add /dev/pmem0 vm rbd:rbd/vm",
    "forebay volume add /dev/pmem0 archive /dev/sdc --static 32G   needs no index in RAM",
    "forebay volume add /dev/pmem0 log /dev/sdd --static 4G --flush-every 10ms",
))]
pub struct VolumeAdd {
    /// The pool
    pub pool: PathBuf,
    /// Name of the new volume, and of its NBD export
    pub name: String,
    /// The storage behind the volume: a path or file:///PATH of a block device or file;
    /// nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT for an NBD export;
    /// rbd:POOL/IMAGE[@CONF] for an image of a Ceph cluster
    pub origin: PathBuf,
    /// Size of a logical block, 512 or 4096 bytes; default: the origin's
    #[arg(long, value_name = "BYTES", value_parser = units::parse_block_size)]
    pub block_size: Option<u32>,
    /// Accept a disk that the system knows only by its name, such as a virtual disk without a
    /// serial number.  If two such disks swap names, Forebay writes the cached data of one to the
    /// other
    #[arg(long)]
    pub origin_by_name: bool,
    /// Accept an origin that holds a Forebay pool, such as the disk of a guest that uses Forebay.
    /// Writes to the volume overwrite that pool
    #[arg(long)]
    pub accept_pool: bool,
    /// Make a static volume with this much of what create --static reserved, a multiple of 64K.
    /// Each block has a fixed slot, so the volume needs little RAM and opens at once.  Blocks that
    /// have the same slot may wait for each other, unless this size is at least 2.02 times the
    /// origin's
    #[arg(long = "static", value_name = "SIZE", value_parser = units::parse_size)]
    pub static_bytes: Option<u64>,
    /// Write all cached data of a static volume to its origin once in this time, such as 10ms;
    /// default: the --max-age of the server
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, requires = "static_bytes")]
    pub flush_every: Option<Duration>,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
#[command(after_help = after!("forebay volume list /dev/pmem0 --json"))]
pub struct VolumeList {
    /// The pool
    pub pool: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay drain /dev/pmem0 data && forebay volume remove /dev/pmem0 data",
    "forebay volume remove /dev/pmem0 data --discard   loses the cached data",
    "forebay volume remove /dev/pmem0 '#3' --discard   by its number, if its record is damaged",
))]
pub struct VolumeRemove {
    /// The pool
    pub pool: PathBuf,
    /// Name of the volume, or its number as #N
    pub name: String,
    /// Remove the volume even if the pool holds data that the origin lacks.  That data is lost, and
    /// the origin stays marked (forebay origin)
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

// --- status, check, dump, drain --------------------------------------------

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay top /dev/pmem0",
    "forebay top /dev/pmem0 --every 200ms",
))]
pub struct Top {
    /// The pool
    pub pool: PathBuf,
    /// Time between two updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_time)]
    pub every: Duration,
}

/// `curl --unix-socket SOCKET http://localhost/metrics` shows the metrics.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay exporter /dev/pmem0                              on a private Unix socket",
    "forebay exporter /dev/pmem0 --listen 127.0.0.1:9757      over TCP, for this machine",
    "forebay exporter /dev/pmem0 --textfile /var/lib/node_exporter/forebay.prom --every 15s",
))]
pub struct Exporter {
    /// The pool
    pub pool: PathBuf,
    /// Unix socket to answer on, with mode 0600; default: metrics.sock in the runtime directory,
    /// see forebay serve --socket
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "textfile"])]
    pub socket: Option<PathBuf>,
    /// Answer over TCP instead; everybody who can reach that address can read the metrics
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "textfile")]
    pub listen: Option<String>,
    /// Write the metrics to a file instead, for node_exporter's textfile collector
    #[arg(long, value_name = "PATH")]
    pub textfile: Option<PathBuf>,
    /// With --textfile: write the file again after each such time, such as 15s; default: write it
    /// once
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, requires = "textfile", conflicts_with_all = ["socket", "listen"])]
    pub every: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay status /dev/pmem0",
    "forebay status /dev/pmem0 --watch          repeats it each second",
    "forebay status /dev/pmem0 --json | jq .volumes",
))]
pub struct Status {
    /// The pool; while it is served, the server answers
    pub pool: PathBuf,
    /// Repeat after this time, until Ctrl-C; without TIME: each second
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", value_parser = units::parse_time)]
    pub watch: Option<Duration>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay check /dev/pmem0                   0: no errors; 5: damaged; 11: lost data",
    "forebay check /dev/pmem0 --no-data         structures only",
))]
pub struct Check {
    /// The pool; it must not be served
    pub pool: PathBuf,
    /// Verify the structures only, and not the checksums of the data
    #[arg(long)]
    pub no_data: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Subcommand)]
pub enum Dump {
    /// Print the valid superblock
    #[command(after_help = after!("forebay dump superblock /dev/pmem0"))]
    Superblock(DumpPool),
    /// Print the records of the volume table
    #[command(after_help = after!("forebay dump volumes /dev/pmem0 --json"))]
    Volumes(DumpPool),
    /// Print the state, epoch, fill and live pages of each chunk
    #[command(after_help = after!("forebay dump chunks /dev/pmem0 --used"))]
    Chunks(DumpChunks),
    /// Print the entries of a chunk
    #[command(after_help = after!("forebay dump entries /dev/pmem0 17 --data"))]
    Entries(DumpEntries),
    /// Print every entry of one block that is still readable, oldest first
    #[command(after_help = after!("forebay dump block /dev/pmem0 data 4711"))]
    Block(DumpBlock),
}

#[derive(Args, Debug)]
pub struct DumpPool {
    /// The pool
    pub pool: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct DumpChunks {
    /// The pool
    pub pool: PathBuf,
    /// Leave out free chunks
    #[arg(long)]
    pub used: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct DumpEntries {
    /// The pool
    pub pool: PathBuf,
    /// Number of the chunk
    pub chunk: u32,
    /// Verify the data's checksums
    #[arg(long)]
    pub data: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct DumpBlock {
    /// The pool
    pub pool: PathBuf,
    /// The volume
    pub volume: String,
    /// Number of the block, in units of 4 KiB
    pub block: u64,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay drain /dev/pmem0                   all volumes; the origins are then complete",
    "forebay drain /dev/pmem0 data vm1 --json",
    "forebay check /dev/pmem0                   shows what is lost, before it is given up:",
    "forebay drain /dev/pmem0 data --accept-lost",
))]
pub struct Drain {
    /// The pool.  If it is served, the server drains it and syncs the trees that it mounts
    pub pool: PathBuf,
    /// The volumes to drain; default: all volumes, and the pages of mapped files.  Only its
    /// consumer can replay a log.  If a log still has entries, or a file still has pages in the
    /// pool, the command names it and exits with 14
    pub volumes: Vec<String>,
    /// Give up blocks whose newest data is lost: they keep the older data of the origin.  Refused
    /// while the pool is served
    #[arg(long)]
    pub accept_lost: bool,
    /// Stop after this time even if data is left, for example because an origin fails.  Requests
    /// that were sent to an origin on the network get 10 s more
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub attach: Attach,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

// --- bench -----------------------------------------------------------------

/// A benchmark makes files of its own, in memory or in --dir, and touches no data of yours.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Measure writes: a raw copy with a fence, the least that a safe write needs, and the engine
    ///
    /// The three alternate on the same memory, so that their ratios hold on a noisy machine.
    #[command(after_help = after!(
        "forebay bench engine",
        "forebay bench engine --threads 1,2,4 --json",
        "forebay bench engine --dir /mnt/dax --pool-size 1G",
    ))]
    Engine(BenchArgs),
    /// Measure how long a pool full of dirty pages takes to open, as after a crash
    #[command(after_help = after!("forebay bench recovery --json"))]
    Recovery(BenchRecovery),
    /// Measure reads of cached blocks, with verified checksums
    #[command(after_help = after!("forebay bench read --threads 1,2 --json"))]
    Read(BenchArgs),
    /// Measure static volumes: lookups, writes, RAM, and the time to open
    #[command(after_help = after!(
        "forebay bench static --json",
        "forebay bench static --dir /dev/shm --pool-size 8G   opens a mapped pool",
    ))]
    Static(BenchArgs),
    /// Measure writes with different numbers of commit slots, on media of low bandwidth
    ///
    /// If more writers come than the media can serve, few slots let writers sleep instead
    /// of wait on the CPU.  The throughput is the same, and a write takes less CPU time.
    #[command(after_help = after!(
        "forebay bench slots",
        "forebay bench slots --media-rate 2G --threads 4,16 --slots 1,2,3,4,8 --json",
        "forebay bench slots --media-rate 0 --dir /mnt/disk --persist msync",
        "forebay bench slots --log",
    ))]
    Slots(BenchSlots),
    /// Measure appends to logs, the least that a safe append needs, claim and replay
    ///
    /// All threads append to one log, and then each thread to its own.  libpmemlog has no
    /// checksums, and one lock for each log.  bench/pmemlog.c says how to build the program for
    /// --pmemlog.
    #[command(after_help = after!(
        "forebay bench log",
        "forebay bench log --bytes 128,4K --threads 1,2 --json",
        "forebay bench log --pmemlog ./pmemlog",
    ))]
    Log(BenchLog),
    /// Measure appends to a log on a disk: a pool made for an SSD, and a mapped file
    ///
    /// The two alternate.  The result has the rates, and the writes, flushes and bytes that an
    /// append costs the disk.
    #[command(after_help = after!(
        "forebay bench ssd --dir /srv",
        "forebay bench ssd --dir /srv --threads 1,4,16 --bytes 4096 --json",
    ))]
    Ssd(medium::BenchSsd),
    /// Measure clients that wait for fsync, in a plain directory and in a mounted one
    ///
    /// The two alternate, on the same disk.  This needs FUSE and root.
    #[command(after_help = after!(
        "forebay bench mount",
        "forebay bench mount --dir /srv --clients 1,4 --bytes 4096 --json",
        "forebay bench mount --what replace --clients 1",
    ))]
    Mount(BenchMount),
    /// Measure a sync of a file mapped onto a pool, and the kernel's msync
    ///
    /// The two alternate.  This measures the library that forebay map-run uses.
    #[command(after_help = after!(
        "forebay bench map --json",
        "forebay bench map --dir /mnt/disk --mapping 64M,1G --pages 1,64 --rounds 20",
    ))]
    Map(BenchMap),
}

#[derive(Args, Debug)]
pub struct BenchMap {
    /// Directory for the mapped files; default: $TMPDIR, or /tmp
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory for the pool, on a tmpfs; default: in memory
    #[arg(long, value_name = "DIR")]
    pub media_dir: Option<PathBuf>,
    /// Sizes of the mappings, measured one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "64M,1G,4G", value_parser = units::parse_size)]
    pub mapping: Vec<u64>,
    /// Numbers of pages that are dirty before a sync of the whole mapping, in the last mapping
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16,256,4096", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub pages: Vec<u64>,
    /// Number of syncs of each kind; a sync of one page is done ten times as often
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    #[command(flatten)]
    pub json: Json,
}

fn what_of_mount(name: &str) -> Result<MountCase, String> {
    let found = MountCase::ALL.into_iter().find(|case| case.name() == name);
    found.ok_or_else(|| "append, in-place or replace".into())
}

#[derive(Args, Debug)]
pub struct BenchMount {
    /// Directory for both trees; default: $TMPDIR, or /tmp
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory for the pool
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub media_dir: PathBuf,
    /// Size of the pool
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::parse_size)]
    pub pool_size: u64,
    /// The medium of the pool, as for `forebay create`; use ssd if --media-dir is on a disk
    #[arg(long, value_name = "MEDIUM", default_value_t)]
    pub medium: MediumChoice,
    /// Sizes of a write, measured one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128,4096", value_parser = units::parse_size)]
    pub bytes: Vec<u64>,
    /// Numbers of clients, measured one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub clients: Vec<u32>,
    /// Rounds of each case
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Length of a turn; in each round the directory and the mount have one turn
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = units::parse_time)]
    pub turn: Duration,
    /// Measure a mount with --write-back
    #[arg(long)]
    pub write_back: bool,
    /// Measure a mount with --log-writes
    #[arg(long)]
    pub log_writes: bool,
    /// Work of the clients: append, in-place or replace
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',', default_value = "append,in-place,replace", value_parser = what_of_mount)]
    pub what: Vec<MountCase>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct BenchMedia {
    /// Make the pool as a file in this directory, on a tmpfs or a DAX file system; default: the
    /// benchmark chooses
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the pool; default: the benchmark chooses
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub pool_size: Option<u64>,
    /// Number of rounds; more rounds give steadier figures
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Numbers of threads, measured one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Vec<u32>,
    #[command(flatten)]
    pub media: BenchMedia,
}

#[derive(Args, Debug)]
pub struct BenchSlots {
    /// Bandwidth of the media per second, such as 400M; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = units::parse_size)]
    pub media_rate: u64,
    /// Numbers of commit slots; each is measured with a pool of its own
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub slots: Vec<u32>,
    /// Append entries of 4 KiB to a log instead of writing to a volume
    #[arg(long, conflicts_with = "blocks")]
    pub log: bool,
    /// Number of blocks of 4 KiB to write at random; default: so few that nothing is written back
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u64).range(..1 << 28))]
    pub blocks: u64,
    /// Length of a turn; each pair of threads and slots has one in each round
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::parse_time)]
    pub turn: Duration,
    /// How stores are made durable: auto, nt, clwb, eadr or msync
    #[arg(long, value_name = "METHOD", default_value_t)]
    pub persist: Persist,
    #[command(flatten)]
    pub bench: BenchArgs,
}

#[derive(Args, Debug)]
pub struct BenchLog {
    /// Sizes of an entry, measured one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::parse_size)]
    pub bytes: Vec<u64>,
    /// Size of all entries to claim and replay; 0: none
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::parse_size)]
    pub replay: u64,
    /// A program that appends to PMDK's libpmemlog; it takes turns with Forebay
    #[arg(long, value_name = "PROGRAM")]
    pub pmemlog: Option<PathBuf>,
    #[command(flatten)]
    pub bench: BenchArgs,
}

#[derive(Args, Debug)]
pub struct BenchRecovery {
    /// Number of threads that scan the pool; default: the engine chooses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    #[command(flatten)]
    pub media: BenchMedia,
}

// --- demo, completions, man ------------------------------------------------

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay demo",
    "forebay demo --dir /mnt/disk/demo --seconds 10",
))]
pub struct Demo {
    /// Directory for the origin file, the log and the plot
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    pub dir: PathBuf,
    /// Directory for the pool; default: /dev/shm
    #[arg(long, value_name = "PATH")]
    pub pool: Option<PathBuf>,
    /// Run an eighth of everything, for a first impression
    #[arg(long)]
    pub quick: bool,
    /// Seconds that each speed measurement takes; default: 6, or 1 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub seconds: Option<u64>,
    /// How often the writer is killed; default: 12, or 4 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub kills: Option<u32>,
    /// Seed for the random choices of blocks, contents and moments; default: from the clock
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Keep the pool and the origin file
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct DemoWriter {
    pub pool: PathBuf,
    pub volume: String,
    pub origin: PathBuf,
    pub seed: u64,
    /// The first write of each thread
    pub first: Vec<u64>,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay completions bash > /usr/share/bash-completion/completions/forebay",
))]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
#[command(after_help = after!("forebay man /usr/local/share/man/man1"))]
pub struct Man {
    /// The directory; it is made if it does not exist
    pub directory: PathBuf,
}
