// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a service to its manager, sd_notify(3): a datagram to $NOTIFY_SOCKET.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::{system, Result};

/// Does nothing without a manager that asks for it.
pub(crate) fn send(state: &str) -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let sent = address(name.as_bytes()).and_then(|to| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &to)
    });
    let name = name.to_string_lossy();
    sent.map(drop).map_err(system(format!("{name}: cannot tell the service manager {state:?}")))
}

/// A path, or a name that begins with @ and is in no file system.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
    }
}
