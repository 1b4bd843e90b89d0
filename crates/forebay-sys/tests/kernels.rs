// SPDX-License-Identifier: MIT OR Apache-2.0
//! The copy kernels move every byte and sum it right.  Each kernel that this CPU
//! has, with each persist method, copies every length the engine may ask for
//! from and to every alignment that matters; the bytes, their surroundings and
//! the CRC are compared with a bit-by-bit CRC32C.

use std::ptr;

use forebay_sys::{
    crc32c, fby_media, fby_media_ops, posix_crc_kernel, posix_kernels, posix_media_ops,
    FBY_PERSIST_CLWB, FBY_PERSIST_EADR, FBY_PERSIST_MSYNC, FBY_PERSIST_NT,
};

const METHODS: [(u32, &str); 4] = [
    (FBY_PERSIST_NT, "nt"),
    (FBY_PERSIST_CLWB, "clwb"),
    (FBY_PERSIST_EADR, "eadr"),
    (FBY_PERSIST_MSYNC, "msync"),
];
const LONGEST: usize = 8192;
/// Alignments of the side that is not media: around words, vectors, lines and pages.
const ALIGNMENTS: [usize; 9] = [0, 1, 4, 8, 16, 31, 32, 63, 4095];
const GUARD: u8 = 0xa5;

fn slow_crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let mut sum = !crc;
    for &byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ (0x82f6_3b78 & 0u32.wrapping_sub(sum & 1));
        }
    }
    !sum
}

/// Zeroed memory whose first byte is 4 KiB aligned, as media is.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start }
    }

    fn slice(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - 4096 + self.start;
        &mut self.bytes[self.start..end]
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Every usable kernel with every method, on memory that is the media's.
fn each(memory: *mut u8, size: usize, mut test: impl FnMut(&str, *mut fby_media)) {
    for kernel in posix_kernels() {
        for (persist, method) in METHODS {
            let Some(ops) = posix_media_ops(persist, Some(kernel)) else { continue };
            let size = size as u64;
            let device = ptr::null_mut();
            let mut media = fby_media { base: memory, size, ops, host: ptr::null_mut(), device };
            test(&format!("{kernel} {method}"), &raw mut media);
        }
    }
}

fn ops(media: *mut fby_media) -> fby_media_ops {
    // SAFETY: each() passes a media whose ops are a static table.
    unsafe { *(*media).ops }
}

fn fence(media: *mut fby_media, at: usize, len: usize) {
    // SAFETY: the range is mapped memory, all that msync asks for.
    unsafe { (ops(media).fence)(media, at as u64, len) }
}

#[test]
fn writes_of_every_length_and_alignment() {
    let data = noise(LONGEST + 4096);
    let mut space = Aligned::new(LONGEST + 256);
    let memory = space.slice().as_mut_ptr();
    // Media starts on a line and not on a page, with room to see an overrun.
    let sums: Vec<Vec<u32>> = ALIGNMENTS.iter().map(|&a| line_sums(&data[a..], 0x1234)).collect();

    each(memory, LONGEST + 256, |name, media| {
        for (a, &align) in ALIGNMENTS.iter().enumerate() {
            for (lines, &sum) in sums[a].iter().enumerate() {
                let len = lines * 64;
                let src = &data[align..align + len];
                for crc in [false, true] {
                    let area = &mut space.slice()[..len + 192];
                    area.fill(GUARD);
                    // SAFETY: src and the media from byte 64 on have len bytes.
                    unsafe {
                        if crc {
                            let write = ops(media).write_crc;
                            let got = write(media, 64, src.as_ptr().cast(), len, 0x1234);
                            assert_eq!(got, sum, "{name} align {align} len {len}");
                        } else {
                            (ops(media).write)(media, 64, src.as_ptr().cast(), len);
                        }
                    }
                    fence(media, 64, len + 128);
                    assert!(area[64..64 + len] == *src, "{name} align {align} len {len}");
                    let around = area[..64].iter().chain(&area[64 + len..]);
                    assert!(around.clone().all(|&b| b == GUARD), "{name} align {align} len {len}");
                }
            }
        }
    });
}

#[test]
fn reads_of_every_length_and_alignment() {
    let mut space = Aligned::new(LONGEST + 64);
    let memory = space.slice().as_mut_ptr();
    let media_bytes = &mut space.slice()[64..];
    media_bytes.copy_from_slice(&noise(LONGEST));
    let sums = line_sums(media_bytes, 0);

    each(memory, LONGEST + 64, |name, media| {
        let mut area = vec![GUARD; LONGEST + 4096 + 64];
        for align in ALIGNMENTS {
            for (lines, &sum) in sums.iter().enumerate() {
                let len = lines * 64;
                let mut crc = 0;
                area[..align + len + 64].fill(GUARD);
                let dst = area[align..].as_mut_ptr().cast();
                // SAFETY: dst and the media have len bytes, the media's are on a line.
                let r = unsafe { (ops(media).read_crc)(media, dst, 64, len, &mut crc) };
                assert_eq!((r, crc), (0, sum), "{name} align {align} len {len}");
                assert!(area[align..align + len] == media_bytes[..len], "{name} {align} {len}");
                let around = area[..align].iter().chain(&area[align + len..align + len + 64]);
                assert!(around.clone().all(|&b| b == GUARD), "{name} align {align} len {len}");
            }
        }
        for (lines, &sum) in sums.iter().enumerate() {
            let mut crc = 0;
            // SAFETY: dst NULL asks for the checksum only.
            let r =
                unsafe { (ops(media).read_crc)(media, ptr::null_mut(), 64, lines * 64, &mut crc) };
            assert_eq!((r, crc), (0, sum), "{name} checksum only, {lines} lines");
        }
    });
}

/// CRCs of the first 0, 1, 2, ... lines, continued from `crc`.
fn line_sums(bytes: &[u8], crc: u32) -> Vec<u32> {
    let mut sums = vec![crc];
    for line in bytes[..LONGEST].chunks(64) {
        sums.push(slow_crc32c(sums[sums.len() - 1], line));
    }
    sums
}

#[test]
fn sums_continue_across_pieces() {
    let data = noise(4096);
    let whole = slow_crc32c(0, &data);
    let mut space = Aligned::new(4096);
    let memory = space.slice().as_mut_ptr();
    each(memory, 4096, |name, media| {
        for cut in (0..=4096).step_by(512) {
            // SAFETY: both pieces lie within the 4096 bytes of data and of space.
            let crc = unsafe {
                let write = ops(media).write_crc;
                let crc = write(media, 0, data.as_ptr().cast(), cut, 0);
                write(media, cut as u64, data[cut..].as_ptr().cast(), 4096 - cut, crc)
            };
            assert_eq!(crc, whole, "{name} cut at {cut}");
        }
    });
}

/// RFC 3720, B.4, and the check value of the CRC catalogue.
#[test]
fn crc32c_of_known_vectors() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    let vectors: [(&[u8], u32); 6] = [
        (b"", 0),
        (b"123456789", 0xe306_9283),
        (&[0; 32], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&ascending, 0x46dd_794e),
        (&descending, 0x113f_db5c),
    ];
    for (bytes, crc) in vectors {
        assert_eq!(crc32c(0, bytes), crc, "{bytes:?} by {}", posix_crc_kernel());
        assert_eq!(slow_crc32c(0, bytes), crc, "{bytes:?}");
    }
}

#[test]
fn crc32c_of_every_short_length() {
    let data = noise(300);
    for start in 0..9 {
        for end in start..data.len() {
            let bytes = &data[start..end];
            assert_eq!(crc32c(77, bytes), slow_crc32c(77, bytes), "[{start}, {end})");
        }
    }
}

#[test]
fn kernels_are_chosen_by_name() {
    let names = posix_kernels();
    assert_eq!(names.last(), Some(&"generic"), "any CPU can run it");
    assert!(posix_media_ops(FBY_PERSIST_NT, Some("no such kernel")).is_none());
    assert!(posix_media_ops(99, None).is_none());
    let best = posix_media_ops(FBY_PERSIST_MSYNC, None).unwrap();
    let named = posix_media_ops(FBY_PERSIST_MSYNC, Some(names[0])).unwrap();
    assert!(ptr::eq(best, named));
}
