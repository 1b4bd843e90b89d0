// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay origin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Json;

/// While a pool may hold writes that an origin lacks, the origin has a mark of that pool.
#[derive(Debug, Subcommand)]
pub enum Origin {
    /// Show, without the pool, whether an origin is complete, or what may be missing
    ///
    /// Exit codes: 0, the origin has no mark, so it is complete as far as marks show; 14, the
    /// origin may lack writes; 5, its mark is unreadable, so it may lack writes.
    Status(OriginStatus),
    /// Give up the data of an origin that only a lost pool held, and remove the mark
    ///
    /// The origin stays as it is.  Acknowledged data that only the pool holds is lost: file systems
    /// and databases on the origin are in the state of a disk that lost writes.  If the pool
    /// reappears, Forebay refuses to attach it to the origin.
    AcceptLoss(AcceptLoss),
    /// Accept all marks that this host set before its product UUID changed
    ///
    /// A virtual machine that was moved or restored may get a new product UUID.  So may a machine
    /// with a new mainboard.  To Forebay it looks like a clone: it gets a new host number, and its
    /// old marks refuse it.  This command accepts all marks of the old number.  Never use it on a
    /// clone while the original machine is in use: both would write to the same origins.
    AcceptHost(AcceptHost),
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay origin accept-host 0123456789abcdef0123456789abcdef     the refusal names the number",
))]
pub struct AcceptHost {
    /// The old host number, which the marks name
    #[arg(value_name = "HOST")]
    pub host: String,
    #[command(flatten)]
    pub json: Json,
}

/// The directory of marks that are files: of devices and exports.
#[derive(Args, Clone, Debug, Default)]
pub struct State {
    /// Directory for the marks of origins that cannot store a mark themselves; default:
    /// $FOREBAY_STATE_DIR, or /var/lib/forebay for root
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay origin status /dev/sdb",
    "forebay origin status /srv/vm.img --json | jq .complete",
    "forebay origin status 'nbd://10.0.0.7/export'",
    "forebay origin status /dev/sdb && mount /dev/sdb /mnt",
))]
pub struct OriginStatus {
    /// A block device, file or URI, as for forebay volume add
    pub place: PathBuf,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay origin status /dev/sdb            first: shows what may be missing",
    "forebay origin accept-loss /dev/sdb       acknowledged writes are lost",
))]
pub struct AcceptLoss {
    /// A block device, file or URI, as for forebay volume add; nobody may use it
    pub place: PathBuf,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub json: Json,
}
