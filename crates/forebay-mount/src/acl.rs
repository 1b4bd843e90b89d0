// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes what a new inode gets from its directory's default ACL, as the kernel does: a log
//! entry has to say so before the file system acts.
//!
//! An ACL is an extended attribute: `version: u32` (2), then for each entry `tag: u16`,
//! `permissions: u16`, `id: u32`, little-endian.

use rustix::io::Errno;

use crate::tree::Result;

const VERSION: [u8; 4] = 2u32.to_le_bytes();
const ENTRY: usize = 8;

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// The mode of a new inode, and its ACL unless the mode expresses all of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Inherited {
    pub mode: u32,
    pub access: Option<Vec<u8>>,
}

/// `mode`: the mode that the caller asks for, without the umask.
pub fn inherited(default: &[u8], mode: u32) -> Result<Inherited> {
    let entries = default.strip_prefix(&VERSION).filter(|e| e.len() % ENTRY == 0);
    let mut access = default.to_vec();
    let mut left = mode;
    let (mut more_than_mode, mut group, mut mask) = (false, None, None);
    for i in 0..entries.ok_or(Errno::INVAL)?.len() / ENTRY {
        let at = VERSION.len() + i * ENTRY;
        let word = |at: usize| u16::from_le_bytes([access[at], access[at + 1]]);
        let (tag, permissions) = (word(at), u32::from(word(at + 2)));
        // The mode and the entry restrict each other.
        let mut cut = |shift: u32| {
            let both = permissions & (mode >> shift) & 7;
            left = left & !(7 << shift) | both << shift;
            access[at + 2..at + 4].copy_from_slice(&(both as u16).to_le_bytes());
        };
        match tag {
            USER_OBJ => cut(6),
            OTHER => cut(0),
            GROUP_OBJ => group = Some(at),
            MASK => mask = Some(at),
            USER | GROUP => more_than_mode = true,
            _ => return Err(Errno::INVAL),
        }
    }
    more_than_mode |= mask.is_some();
    // If there is a mask, the group bits of the mode stand for it.
    let at = mask.or(group).ok_or(Errno::INVAL)?;
    let both = u16::from_le_bytes([access[at + 2], access[at + 3]]) & (mode >> 3) as u16 & 7;
    left = left & !0o70 | u32::from(both) << 3;
    access[at + 2..at + 4].copy_from_slice(&both.to_le_bytes());
    Ok(Inherited { mode: left, access: more_than_mode.then_some(access) })
}

/// The bits of the mode of an inode that has this ACL.
pub fn mode_of(access: &[u8]) -> Option<u32> {
    let entries = access.strip_prefix(&VERSION)?;
    let (mut mode, mut group, mut mask) = (0, None, None);
    for entry in entries.chunks(ENTRY) {
        let &[a, b, c, d, ..] = entry else { return None };
        let permissions = u32::from(u16::from_le_bytes([c, d])) & 7;
        match u16::from_le_bytes([a, b]) {
            USER_OBJ => mode |= permissions << 6,
            OTHER => mode |= permissions,
            GROUP_OBJ => group = Some(permissions),
            MASK => mask = Some(permissions),
            _ => {}
        }
    }
    Some(mode | mask.or(group)? << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// `unix::tests` and tests/mount/rights.sh compare this with the kernel.
    #[test]
    fn the_mode_and_the_acl_take_from_each_other() {
        const ANY: u32 = u32::MAX;
        let plain = acl(&[(USER_OBJ, 7, ANY), (GROUP_OBJ, 5, ANY), (OTHER, 1, ANY)]);
        assert_eq!(inherited(&plain, 0o2666), Ok(Inherited { mode: 0o2640, access: None }));
        let named = |user, mask, other| {
            acl(&[
                (USER_OBJ, user, ANY),
                (USER, 6, 7),
                (GROUP_OBJ, 5, ANY),
                (MASK, mask, ANY),
                (OTHER, other, ANY),
            ])
        };
        let found = inherited(&named(7, 7, 4), 0o620).expect("an ACL");
        assert_eq!(found, Inherited { mode: 0o620, access: Some(named(6, 2, 0)) });
        let modes = [&plain, &named(7, 7, 4), &named(6, 2, 0)].map(|acl| mode_of(acl));
        assert_eq!(modes, [Some(0o751), Some(0o774), Some(0o620)]);
        assert_eq!([mode_of(b""), mode_of(&VERSION), mode_of(b"\x02\0\0\0\x01")], [None; 3]);
        for wrong in [&b""[..], b"\x02\0\0", b"\x02\0\0\0\x01", &acl(&[(3, 0, 0)]), &acl(&[])] {
            assert_eq!(inherited(wrong, 0o777), Err(Errno::INVAL), "{wrong:?}");
        }
    }
}
