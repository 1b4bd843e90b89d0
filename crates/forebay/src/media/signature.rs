// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other content on media that is about to be formatted: a small table of well-known
//! signatures, and a search for anything that is not zero.  It errs towards "in use":
//! formatting needs force then.

use forebay_engine::sys;

use crate::defaults;

/// One signature: bytes at an offset.
struct Signature {
    name: &'static str,
    offset: usize,
    magic: &'static [u8],
}

const fn sig(name: &'static str, offset: usize, magic: &'static [u8]) -> Signature {
    Signature { name, offset, magic }
}

const SIGNATURES: &[Signature] = &[
    sig("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    sig("an LVM physical volume", 512, b"LABELONE"),
    sig("an LVM physical volume", 0, b"LABELONE"),
    sig("an xfs file system", 0, b"XFSB"),
    sig("a btrfs file system", 0x10040, b"_BHRfS_M"),
    sig("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
    sig("an f2fs file system", 0x400, b"\x10\x20\xf5\xf2"),
    sig("a bcachefs file system", 0x1018, b"\xf6\x73\xf6\x4e\x66\x45\xdb\x44"),
    sig("a bcache device", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    sig("a dm-writecache", 0, b"\x23\x87\x96\x23"),
    sig("a squashfs file system", 0, b"hsqs"),
    sig("an ntfs file system", 3, b"NTFS    "),
    sig("an exfat file system", 3, b"EXFAT   "),
    sig("a swap area", 4086, b"SWAPSPACE2"),
    sig("an md RAID member", 4096, b"\xfc\x4e\x2b\xa9"),
    sig("a GPT partition table", 512, b"EFI PART"),
    sig("a GPT partition table", 4096, b"EFI PART"),
    sig("a QEMU qcow2 image", 0, b"QFI\xfb"),
    sig("an NVDIMM namespace info block", 4096, b"NVDIMM_PFN_INFO\0"),
    sig("a reiserfs file system", 0x10034, b"ReIsEr"),
    sig("a reiserfs file system", 0x2034, b"ReIsEr"),
    sig("a UFS2 file system", 0x1055c, b"\x19\x01\x54\x19"),
    sig("a UFS1 file system", 0x255c, b"\x54\x19\x01\x00"),
    // Several of those above have this one as well, so it comes last.
    sig("a partition table or boot sector", 510, b"\x55\xaa"),
];

/// Signatures that lie beyond [`EDGE_BYTES`] from the start.
const FAR: &[Signature] = &[
    sig("a VMFS volume", 0x10_0000, b"\x0d\xd0\x01\xc0"),
    sig("a VMFS file system", 0x20_0000, b"\x5e\xf1\xab\x2f"),
    sig("a UFS2 file system", 0x4_055c, b"\x19\x01\x54\x19"),
];

/// At the last multiple of 64 KiB that has 64 KiB behind it.
const OLD_RAID: &[u8] = b"\xfc\x4e\x2b\xa9";
const OLD_RAID_STEP: usize = 64 << 10;

/// Bytes at each end that are looked at.
pub(crate) const EDGE_BYTES: usize = 64 << 10;

/// Possible places of a chunk header of any pool: each multiple of the smallest chunk size.
const CHUNK_STEP: usize = 64 << 10;
const CHUNK_HEADER_BYTES: usize = 512;

pub(super) const PAGE: usize = 4096;

/// Fills the slice with what is at a place of the media.
type Read<'r, E> = dyn FnMut(usize, &mut [u8]) -> Result<(), E> + 'r;

/// Names what is found on the media, if anything is.  A pool of our own is
/// looked for before.  `read` gets pages of the media; its error ends the look.
pub(super) fn find<E>(len: usize, read: &mut Read<'_, E>) -> Result<Option<String>, E> {
    find_by_steps(len, CHUNK_STEP, read)
}

/// Begins the first block of a run of `forebay media-test`.
pub(crate) const RUN_MAGIC: &[u8; 8] = b"FBYPULL1";

/// The blocks that hold a superblock of a pool, of either kind and any chunk size, the first one
/// last.  A pool can be opened as long as one of them is left.  `block`: bytes of a block.  `read`
/// returns false for a place that cannot be read.
pub(crate) fn superblocks(
    size: u64,
    block: u64,
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> impl Iterator<Item = u64> {
    let sizes = (0..).map(|n| u64::from(defaults::CHUNK_SIZE_BYTES_MIN) << n);
    let sizes = sizes.take_while(|size| *size <= u64::from(defaults::CHUNK_SIZE_BYTES));
    let places = sizes.map(|size| size / 4).chain([4096, 0]);
    places.filter_map(move |at| {
        let (start, mut line) = (at / block * block, [0; 64]);
        let there = start + block <= size && read(at, &mut line);
        (there && line.starts_with(&sys::FBY_MAGIC.to_le_bytes())).then_some(start)
    })
}

/// Content of our own.
const OWN: &[Signature] = &[
    sig("a Forebay pool", 0, &sys::FBY_MAGIC.to_le_bytes()),
    sig("a Forebay pool", 4096, &sys::FBY_MAGIC.to_le_bytes()),
    sig("the blocks of a forebay media-test", 0, RUN_MAGIC),
];

/// Places between the two ends of a disk that are looked at.
const DISK_PLACES: usize = 4096;

/// Names what is found on a disk, also a pool.  Of a large disk only some of the places are read.
pub(crate) fn found_on_disk<E>(len: u64, read: &mut Read<'_, E>) -> Result<Option<String>, E> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    for own in OWN {
        let mut magic = vec![0; own.magic.len()];
        if len >= own.offset + PAGE {
            read(own.offset, &mut magic)?;
        }
        if magic == own.magic {
            return Ok(Some(own.name.into()));
        }
    }
    let step = len.div_ceil(DISK_PLACES).next_multiple_of(CHUNK_STEP).max(CHUNK_STEP);
    find_by_steps(len, step, read)
}

fn find_by_steps<E>(len: usize, step: usize, read: &mut Read<'_, E>) -> Result<Option<String>, E> {
    let mut first = vec![0; (EDGE_BYTES + PAGE).min(len)];
    for (i, page) in first.chunks_mut(PAGE).enumerate() {
        read(i * PAGE, page)?;
    }
    for s in SIGNATURES {
        if first.get(s.offset..s.offset + s.magic.len()) == Some(s.magic) {
            return Ok(Some(s.name.to_string()));
        }
    }
    let mut page = [0; PAGE];
    let old_raid = (len / OLD_RAID_STEP)
        .checked_sub(1)
        .map(|n| sig("an md RAID member (metadata 0.90)", n * OLD_RAID_STEP, OLD_RAID));
    for s in FAR.iter().chain(&old_raid) {
        let start = s.offset / PAGE * PAGE;
        if start + PAGE <= len {
            read(start, &mut page)?;
            if page[s.offset - start..].starts_with(s.magic) {
                return Ok(Some(s.name.to_string()));
            }
        }
    }
    let edge = EDGE_BYTES.min(len);
    for (start, what) in [(0, "first at"), (len - edge, "at")] {
        for at in (start..start + edge).step_by(PAGE) {
            let page = &mut page[..PAGE.min(len - at)];
            read(at, page)?;
            if let Some(nonzero) = page.iter().position(|b| *b != 0) {
                return Ok(Some(format!("data of unknown kind ({what} byte {})", at + nonzero)));
            }
        }
    }
    // The remains of a pool whose start was zeroed are worth a question.
    for at in (0..len).step_by(step) {
        let header = &mut page[..CHUNK_HEADER_BYTES.min(len - at)];
        read(at, header)?;
        if let Some(nonzero) = header.iter().position(|b| *b != 0) {
            return Ok(Some(format!("data of unknown kind (at byte {})", at + nonzero)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(media: &[u8]) -> Option<String> {
        let read = &mut |at: usize, to: &mut [u8]| {
            to.copy_from_slice(&media[at..at + to.len()]);
            Ok::<(), ()>(())
        };
        super::find(media.len(), read).unwrap()
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for bad in [0, 65536, (1 << 20) - 4096] {
            let read = &mut |at: usize, _: &mut [u8]| if at == bad { Err(at) } else { Ok(()) };
            assert_eq!(super::find(1 << 20, read), Err(bad));
        }
    }

    #[test]
    fn each_signature_is_found_and_named() {
        for s in SIGNATURES.iter().chain(FAR) {
            let mut media = vec![0u8; 3 << 20];
            media[s.offset..s.offset + s.magic.len()].copy_from_slice(s.magic);
            assert_eq!(find(&media).as_deref(), Some(s.name));
        }
    }

    /// Formats whose mark is beyond the first 64 KiB, or before the last.
    #[test]
    fn marks_that_lie_far_inside_are_found() {
        let marks: [(usize, usize, &[u8], &str); 6] = [
            (4 << 20, 65536 + 1372, &[0x19, 0x01, 0x54, 0x19], "UFS2"),
            (4 << 20, 65536 + 52, b"ReIsEr2Fs", "reiserfs"),
            (4 << 20, 8192 + 52, b"ReIsErFs", "reiserfs"),
            (4 << 20, 1 << 20, &[0x0d, 0xd0, 0x01, 0xc0], "VMFS"),
            ((4 << 20) + 61440, (4 << 20) - 65536, &[0xfc, 0x4e, 0x2b, 0xa9], "0.90"),
            (4 << 20, (4 << 20) - 65536, &[0xfc, 0x4e, 0x2b, 0xa9], "0.90"),
        ];
        for (len, at, magic, name) in marks {
            let mut media = vec![0u8; len];
            media[at..at + magic.len()].copy_from_slice(magic);
            let found = find(&media).expect(name);
            assert!(found.contains(name), "{name}: {found}");
        }
    }

    #[test]
    fn one_byte_anywhere_we_look_is_enough() {
        let mut media = vec![0u8; 1 << 20];
        assert_eq!(find(&media), None);
        for at in [0, 4095, 65535, 65536, 131072 + 511, (1 << 20) - 65536, (1 << 20) - 1] {
            media[at] = 1;
            assert!(find(&media).unwrap().contains(&at.to_string()), "{at}");
            media[at] = 0;
        }
        assert_eq!(find(&media[..100]), None, "shorter than any signature");
    }
}
