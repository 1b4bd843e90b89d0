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

/// A small persistent memory in front of a large block device: synchronous
/// writes become durable in about a microsecond, and the disk stays an
/// ordinary disk.
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
    /// Logs of a pool: list, make, look at and remove them
    #[command(subcommand)]
    Log(Log),
    /// Maps of a pool: make and list them, and write to its files what a crash left
    #[command(subcommand)]
    Map(Map),
    /// Run a program whose files are mapped onto a pool: a sync writes only stored pages
    ///
    /// The program is any dynamic one of the GNU C library; it is not changed.  Actions that
    /// cannot be followed are refused with a message, and nothing is acknowledged that is not
    /// durable.  docs/manual/map-run.md lists them.
    ///
    /// Any number of programs can use a pool that `forebay serve` has open, each with files of
    /// its own.  One program at a time can use another pool; pages that a crash left there are
    /// written to its files first.
    #[command(after_help = after!(
        "forebay map-run --pool /dev/pmem0 --files data.mdb -- slapd -d 0",
        "forebay map-run --pool /dev/pmem0 --map db --files '/srv/db/*.log' data.mdb -- ./server",
        "forebay serve /dev/pmem0          first, for several programs at a time",
        "forebay map recover /dev/pmem0    after a crash, if it is not run again",
    ))]
    MapRun(MapRun),
    /// Serve a pool's volumes over NBD on a Unix socket
    Serve(Serve),
    /// Show a directory tree through FUSE: an fsync there is an append to a log of a pool
    Mount(Mount),
    /// Unmount a tree, after everything is written to it
    Umount(Umount),
    /// Replay a log onto a tree that is not mounted
    Replay(Replay),
    /// Show or clear the mark of a tree whose pool is lost
    Unmark(Unmark),
    /// Show, without the pool, whether an origin is complete
    #[command(subcommand)]
    Origin(origin::Origin),
    /// Make a volume a block device, by the kernel module
    Attach(module::AttachDevice),
    /// Remove such a block device
    Detach(module::DetachDevice),
    /// List the kernel module's block devices
    List(module::ListDevices),
    /// Show what a pool holds and does
    Status(Status),
    /// Watch a pool live in the terminal: rates, space, volumes, latencies
    Top(Top),
    /// Show and change the options of a pool that is served
    Set(Set),
    /// Give a pool's status to Prometheus
    Exporter(Exporter),
    /// Show what a disk or file is worth as the medium of a pool: speed, cache, doubts
    ///
    /// Exit code 10: it is refused, for a reason that is named.
    MediaInfo(medium::MediaInfo),
    /// Test, by pulling the plug, whether a disk keeps what it said is durable
    ///
    /// Exit code of --verify: 0, everything that was acknowledged is there; 11, writes are lost;
    /// 15, blocks are torn; 16, other blocks are damaged; 17, nothing can be said.  Without
    /// --verify: 7, the disk failed, as it does when its plug is pulled; 17, it did not.
    MediaTest(medium::MediaTest),
    /// Verify a pool: its invariants and every checksum
    Check(Check),
    /// Print what is on the media, field by field
    #[command(subcommand)]
    Dump(Dump),
    /// Write everything cached to the origins
    Drain(Drain),
    /// Measure this machine: the engine, recovery, reads
    #[command(subcommand)]
    Bench(Bench),
    /// Show speed, safety and the drained disk, in under two minutes
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
    /// Print JSON instead of text, of an error too
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
    /// Copy kernel, instead of this CPU's fastest
    #[arg(long, value_name = "NAME", help_heading = "Media")]
    pub kernel: Option<String>,
    /// Accept a persist method weaker than the media needs: acknowledged
    /// writes may then be lost at a power cut
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
    "forebay create /dev/pmem0 --static 48G   of it, with room for static volumes",
    "forebay create /dev/pmem0 --force        destroys what is on it",
    "forebay create /dev/nvme0n1p4            on a partition of an SSD, for volumes and logs",
    "forebay create /srv/log.pool --size 1G --medium ssd   in a file on an SSD",
))]
pub struct Create {
    /// Persistent memory device, disk, partition, or file to make
    pub pool: PathBuf,
    /// Size of a new file: bytes, or with K, M, G, T
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub size: Option<u64>,
    #[arg(long, value_name = "SIZE", value_parser = units::parse_chunk_size, default_value = units::size(defaults::CHUNK_SIZE_BYTES))]
    #[arg(help = format!("Chunk size, {}; smaller ones are for small pools", units::chunk_sizes()))]
    pub chunk_size: u32,
    #[arg(long, value_name = "N", default_value_t = defaults::VOLUMES, value_parser = clap::value_parser!(u32).range(1..=i64::from(defaults::VOLUMES)))]
    #[arg(help = format!("Most volumes the pool can hold, 1 to {}", defaults::VOLUMES))]
    pub volumes: u32,
    /// The medium: memory, mapped; ssd, a disk without DAX or a file on one, for volumes and logs,
    /// with an image of the pool in memory; auto: ssd for such a disk, memory for all else
    #[arg(long, value_name = "MEDIUM", default_value_t)]
    pub medium: MediumChoice,
    /// Leave so much of the pool to static volumes, a multiple of 64K
    #[arg(long = "static", value_name = "SIZE", value_parser = units::parse_size)]
    pub static_bytes: Option<u64>,
    /// Leave so much of the pool to maps, onto which programs map files by the library
    /// forebay-map; a multiple of 2M.  The kernel module does not know such pools
    #[arg(long = "maps", value_name = "SIZE", value_parser = units::parse_size)]
    pub map_bytes: Option<u64>,
    /// Format even if there is data; the data is destroyed
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
    /// The origin's format does not change: drained, it is a complete disk.
    Add(VolumeAdd),
    /// List the volumes of a pool
    List(VolumeList),
    /// Take a volume out of the pool; refused while it holds data
    Remove(VolumeRemove),
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay volume add /dev/pmem0 data /dev/sdb",
    "forebay volume add /dev/pmem0 vm1 /srv/vm1.img --block-size 4096",
    "forebay volume add /dev/pmem0 far 'nbd+unix:///export?socket=/run/far.sock'",
    "forebay volume add /dev/pmem0 far nbd://10.0.0.7/export",
    "forebay volume add /dev/pmem0 vm rbd:rbd/vm",
    "forebay volume add /dev/pmem0 archive /dev/sdc --static 32G                      no index in memory",
    "forebay volume add /dev/pmem0 log /dev/sdd --static 4G --flush-every 10ms",
))]
pub struct VolumeAdd {
    /// The pool
    pub pool: PathBuf,
    /// Name of the new volume, which is also its export's
    pub name: String,
    /// The origin to cache: a block device or file, by its path or file:///PATH, an export of
    /// an NBD server, by nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT, or an
    /// image of a Ceph cluster, by rbd:POOL/IMAGE[@CONF]
    pub origin: PathBuf,
    /// Logical block: 512 or 4096; default: the origin's own
    #[arg(long, value_name = "BYTES", value_parser = units::parse_block_size)]
    pub block_size: Option<u32>,
    /// Take a disk that the system knows by its name alone, such as a virtual
    /// one without a serial number.  Should disks change places, what is cached
    /// for one is written onto the other
    #[arg(long)]
    pub origin_by_name: bool,
    /// Make it a static volume with this share of the pool, a multiple of 64K, of the room
    /// that create --static left.  Each block has a fixed slot there, so the volume needs little
    /// memory and opens at once.  Blocks of one slot may wait for each other, unless the share
    /// is at least 2.02 times as large as the origin
    #[arg(long = "static", value_name = "SIZE", value_parser = units::parse_size)]
    pub static_bytes: Option<u64>,
    /// Period after which everything cached of a static volume goes to its origin; default: as
    /// --max-age says
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
    "forebay volume remove /dev/pmem0 data --discard   loses what is cached",
    "forebay volume remove /dev/pmem0 '#3' --discard   whose record is damaged, by its number",
))]
pub struct VolumeRemove {
    /// The pool
    pub pool: PathBuf,
    /// The volume, or #N: the one of this number, whatever its name
    pub name: String,
    /// Remove it even if it holds data that is not on the origin; it is lost, and the
    /// origin stays marked (forebay origin)
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
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_time)]
    pub every: Duration,
}

/// Metrics are listed by `curl --unix-socket SOCKET http://localhost/metrics`.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay exporter /dev/pmem0                              on a private Unix socket",
    "forebay exporter /dev/pmem0 --listen 127.0.0.1:9757      over TCP, for this machine",
    "forebay exporter /dev/pmem0 --textfile /var/lib/node_exporter/forebay.prom --every 15s",
))]
pub struct Exporter {
    /// The pool
    pub pool: PathBuf,
    /// Unix socket to answer on, of mode 0600; default: metrics.sock in the
    /// runtime directory
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "textfile"])]
    pub socket: Option<PathBuf>,
    /// Answer over TCP instead, to whoever can reach that address
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "textfile")]
    pub listen: Option<String>,
    /// Write them into a file instead, for node_exporter's textfile collector
    #[arg(long, value_name = "PATH")]
    pub textfile: Option<PathBuf>,
    /// With --textfile: again and again; default: once
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, requires = "textfile", conflicts_with_all = ["socket", "listen"])]
    pub every: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay status /dev/pmem0",
    "forebay status /dev/pmem0 --watch          again each second",
    "forebay status /dev/pmem0 --json | jq .volumes",
))]
pub struct Status {
    /// The pool; while it is served, the server answers
    pub pool: PathBuf,
    /// Again and again, until interrupted
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
    /// Leave out the checksums of the data
    #[arg(long)]
    pub no_data: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Subcommand)]
pub enum Dump {
    /// The superblock that counts
    #[command(after_help = after!("forebay dump superblock /dev/pmem0"))]
    Superblock(DumpPool),
    /// The records of the volume table
    #[command(after_help = after!("forebay dump volumes /dev/pmem0 --json"))]
    Volumes(DumpPool),
    /// The chunks: state, epoch, fill, live pages
    #[command(after_help = after!("forebay dump chunks /dev/pmem0 --used"))]
    Chunks(DumpChunks),
    /// The entries of a chunk
    #[command(after_help = after!("forebay dump entries /dev/pmem0 17 --data"))]
    Entries(DumpEntries),
    /// Every entry of one block that is still readable, oldest first
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
    "forebay drain /dev/pmem0                   all of it: then nothing needs the pool any more",
    "forebay drain /dev/pmem0 data vm1 --json",
    "forebay drain /dev/pmem0 data --accept-lost     gives up what is lost, after a look at forebay check",
))]
pub struct Drain {
    /// The pool; while it is served, the server drains, and syncs the trees that it mounts
    pub pool: PathBuf,
    /// Volumes; default: all, and what maps have of files.  Logs with entries, which only their
    /// consumers replay, and files whose pages stay are not drained: they are named, with exit
    /// code 14
    pub volumes: Vec<String>,
    /// Give up blocks whose newest data is lost: the origin's older data takes
    /// their place.  Not while the pool is served
    #[arg(long)]
    pub accept_lost: bool,
    /// End after so long, drained or not, as while an origin fails.  What an origin on the
    /// network was sent has ten seconds to end
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

/// All of it runs in memory and on nothing of yours.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Writes: raw copy and fence, the least a safe write needs, the engine
    ///
    /// In alternating rounds on the same memory, so that their ratios hold
    /// where the machine is noisy.
    #[command(after_help = after!(
        "forebay bench engine",
        "forebay bench engine --threads 1,2,4 --json",
        "forebay bench engine --dir /mnt/dax --pool-size 1G",
    ))]
    Engine(BenchArgs),
    /// Opening a pool full of dirty pages, as after a crash
    #[command(after_help = after!("forebay bench recovery --json"))]
    Recovery(BenchRecovery),
    /// Reads of cached blocks, verified
    #[command(after_help = after!("forebay bench read --threads 1,2 --json"))]
    Read(BenchArgs),
    /// Static volumes: a lookup next to the index, writes over the floor, memory, open
    #[command(after_help = after!(
        "forebay bench static --json",
        "forebay bench static --dir /dev/shm --pool-size 8G   an open that maps the pool",
    ))]
    Static(BenchArgs),
    /// Writes through more and fewer commit slots, on media of little bandwidth
    ///
    /// With more writers than the media serves, slots move their waiting off the
    /// CPU: the same throughput for less CPU time a write.
    #[command(after_help = after!(
        "forebay bench slots",
        "forebay bench slots --media-rate 2G --threads 4,16 --slots 1,2,3,4,8 --json",
        "forebay bench slots --media-rate 0 --dir /mnt/disk --persist msync",
        "forebay bench slots --log",
    ))]
    Slots(BenchSlots),
    /// Appends to logs, next to the least that a safe append needs; claim and replay
    ///
    /// To one log, and to one for each thread.  libpmemlog has no checksums and one
    /// lock for each log; bench/pmemlog.c says how its program is made.
    #[command(after_help = after!(
        "forebay bench log",
        "forebay bench log --bytes 128,4K --threads 1,2 --json",
        "forebay bench log --pmemlog ./pmemlog",
    ))]
    Log(BenchLog),
    /// Appends to a log on a disk: a pool written in groups, in turns with a mapped file
    ///
    /// Rates, and what an append costs the disk: writes, flushes and bytes.
    #[command(after_help = after!(
        "forebay bench ssd --dir /srv",
        "forebay bench ssd --dir /srv --threads 1,4,16 --bytes 4096 --json",
    ))]
    Ssd(medium::BenchSsd),
    /// Programs that wait for fsync, on a directory and on a mount of one next to it
    ///
    /// In turns, on the disk that the directory is on.  Needs FUSE and root.
    #[command(after_help = after!(
        "forebay bench mount",
        "forebay bench mount --dir /srv --clients 1,4 --bytes 4096 --json",
        "forebay bench mount --what replace --clients 1",
    ))]
    Mount(BenchMount),
    /// Files mapped onto a pool: the time of a sync, in turns with the kernel's msync
    ///
    /// No command offers such mappings yet: this is for developers who build on them.
    #[command(after_help = after!(
        "forebay bench map --json",
        "forebay bench map --dir /mnt/disk --mapping 64M,1G --pages 1,64 --rounds 20",
    ))]
    Map(BenchMap),
}

#[derive(Args, Debug)]
pub struct BenchMap {
    /// Directory for the mapped files; default: the one for temporary files
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory for the pool, on a tmpfs; default: in memory
    #[arg(long, value_name = "DIR")]
    pub media_dir: Option<PathBuf>,
    /// Sizes of mappings, one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "64M,1G,4G", value_parser = units::parse_size)]
    pub mapping: Vec<u64>,
    /// Pages to be dirty before a sync of the whole, in the last mapping
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16,256,4096", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub pages: Vec<u64>,
    /// Syncs of each, and ten times as many of a page
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
    /// Directory for both trees; default: the one for temporary files
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory for the pool
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub media_dir: PathBuf,
    /// Size of the pool
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::parse_size)]
    pub pool_size: u64,
    /// What the pool is made for, as in `forebay create`: ssd for a directory on a disk
    #[arg(long, value_name = "MEDIUM", default_value_t)]
    pub medium: MediumChoice,
    /// Bytes of a write, one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128,4096", value_parser = units::parse_size)]
    pub bytes: Vec<u64>,
    /// Numbers of clients, one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub clients: Vec<u32>,
    /// Rounds of each case
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// How long each of both has its turn in a round
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = units::parse_time)]
    pub turn: Duration,
    /// Measure a mount with --write-back
    #[arg(long)]
    pub write_back: bool,
    /// Measure a mount with --log-writes
    #[arg(long)]
    pub log_writes: bool,
    /// Measure these alone
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',', default_value = "append,in-place,replace", value_parser = what_of_mount)]
    pub what: Vec<MountCase>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct BenchMedia {
    /// Use a file in this directory, on a tmpfs or DAX file system, instead of
    /// what is usual for the benchmark
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the pool
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub pool_size: Option<u64>,
    /// Rounds; more give steadier figures
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Numbers of threads to measure with, one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Vec<u32>,
    #[command(flatten)]
    pub media: BenchMedia,
}

#[derive(Args, Debug)]
pub struct BenchSlots {
    /// Bandwidth of the media in bytes a second; 0: not limited
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = units::parse_size)]
    pub media_rate: u64,
    /// Numbers of commit slots, a pool for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub slots: Vec<u32>,
    /// Append entries of 4 KiB to a log instead of writing to a volume
    #[arg(long, conflicts_with = "blocks")]
    pub log: bool,
    /// Blocks of 4 KiB to write at random; default: few, so that destage is idle
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u64).range(..1 << 28))]
    pub blocks: u64,
    /// Length of a turn of each pair of threads and slots
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
    /// Bytes of an entry, one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::parse_size)]
    pub bytes: Vec<u64>,
    /// Bytes of entries to claim and replay; 0: none
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::parse_size)]
    pub replay: u64,
    /// A program that appends to PMDK's libpmemlog, to be measured in turn
    #[arg(long, value_name = "PROGRAM")]
    pub pmemlog: Option<PathBuf>,
    #[command(flatten)]
    pub bench: BenchArgs,
}

#[derive(Args, Debug)]
pub struct BenchRecovery {
    /// Threads that scan the pool
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
    /// An eighth of everything, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Seconds of each speed measurement; default: 6, quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub seconds: Option<u64>,
    /// How often the writer is killed; default: 12, quick 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub kills: Option<u32>,
    /// Seed of the blocks, contents and moments; default: from the clock
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
