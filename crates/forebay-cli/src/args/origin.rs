// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay origin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Json;

/// A pool that may hold what an origin lacks has marked it.
#[derive(Debug, Subcommand)]
pub enum Origin {
    /// Show, without the pool, whether it is complete, or what may be missing
    ///
    /// Exit code 0: it bears no mark, and is complete as far as marks tell; 14: it may lack
    /// writes; 5: its mark cannot be read, and it may lack writes.
    Status(OriginStatus),
    /// Give up data that a lost pool held of it, and remove the mark
    ///
    /// The origin stays as it is: acknowledged data that is only in that pool is lost, and file
    /// systems and databases on the origin are as after a disk that lost writes.  If the pool
    /// reappears, it is not attached to the origin any more.
    AcceptLoss(AcceptLoss),
    /// Accept the marks of a number that this host had before its product UUID changed
    ///
    /// A virtual machine that is moved or restored, and a machine with another mainboard, may get
    /// another product UUID.  It looks like a clone then, gets a number of its own, and is refused at
    /// the marks of the old one.  This accepts all of these at once.  Never do it on a clone of a
    /// machine that goes on: both would use the same origins.
    AcceptHost(AcceptHost),
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay origin accept-host 0123456789abcdef0123456789abcdef     the number is in the refusal",
))]
pub struct AcceptHost {
    /// The number of the host that the marks name
    #[arg(value_name = "HOST")]
    pub host: String,
    #[command(flatten)]
    pub json: Json,
}

/// The directory of marks that are files: of devices and exports.
#[derive(Args, Clone, Debug, Default)]
pub struct State {
    /// Marks of origins that cannot bear their own are in this directory; default:
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
    "forebay origin status /dev/sdb            first: what may be missing?",
    "forebay origin accept-loss /dev/sdb       acknowledged writes are lost",
))]
pub struct AcceptLoss {
    /// A block device, file or URI, which nobody uses
    pub place: PathBuf,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub json: Json,
}
