// SPDX-License-Identifier: MIT OR Apache-2.0
//! Origins that are files: the right one, the whole one, and ours alone.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::*;
use crate::passing::origin_passes_on;
use forebay::*;
use forebay_test::Loop;

fn add(pool: &Pool, origin: PathBuf, block_size: u32) {
    pool.volume_add(&NewVolume { name: "v".into(), origin, block_size, ..Default::default() })
        .unwrap();
}

fn plain() -> AttachOptions {
    AttachOptions::default()
}

/// With the cache drained the file alone is the disk, written by io_uring or
/// by threads, with O_DIRECT or not.
#[test]
fn drained_files_are_complete() {
    for (dir, bytes) in [(Dir::new("memory"), 1 << 20), (Dir::on_disk("disk"), (1 << 20) + 512)] {
        let pools = Dir::new("file");
        let disk = dir.file("disk", bytes);
        let io_uring = !bytes.is_multiple_of(1024);
        let options = PoolOptions { io_uring, ..Default::default() };
        let pool = Pool::open(&pools.pool(16), &options).unwrap();
        add(&pool, disk.clone(), 0);
        let volume = pool.attach("v", &plain()).unwrap();
        let mut model = vec![0u8; bytes as usize];
        let mut rng = Rng::new(bytes);
        for count in 1..400 {
            let at = rng.below(bytes / 512);
            let n = (1 + rng.below(24)).min(bytes / 512 - at);
            let place = at as usize * 512..(at + n) as usize * 512;
            match rng.below(8) {
                0 => {
                    volume.write_zeroes(at * 512, n * 512).unwrap();
                    model[place].fill(0);
                }
                1 => assert!(read(&volume, at * 512, n as usize * 512) == model[place]),
                _ => {
                    let data: Vec<u8> = (at..at + n).flat_map(|p| sector(1, p, count)).collect();
                    volume.write_at(&data, at * 512).unwrap();
                    model[place].copy_from_slice(&data);
                }
            }
        }
        drain(&volume);
        let info = volume.info().unwrap().origin.unwrap();
        match io_uring {
            true => assert!(info.method.contains("io_uring") || info.note.contains("no io_uring")),
            false => assert!(info.note.contains("switched off"), "{info:?}"),
        }
        volume.detach().unwrap();
        let content = std::fs::read(&disk).unwrap();
        assert!(content == model, "{}", disk.display());
    }
}

#[test]
fn the_wrong_origin_is_refused_and_untouched() {
    let dir = Dir::new("wrong");
    let (right, wrong) = (dir.file("right", 1 << 20), dir.file("wrong", 1 << 20));
    let pool = open(&dir.pool(8));
    add(&pool, right.clone(), 0);
    let volume = pool.attach("v", &plain()).unwrap();
    volume.write_at(&[1; 4096], 0).unwrap();
    volume.detach().unwrap();

    // Another file where the origin was.
    std::fs::rename(&right, dir.path("moved")).unwrap();
    let e = pool.attach("v", &plain()).unwrap_err();
    assert!(e.to_string().contains("is not there"), "{e}");
    std::fs::copy(&wrong, &right).unwrap();
    let e = pool.attach("v", &plain()).unwrap_err();
    assert_eq!(e.exit_code(), 6, "{e}");
    assert!(e.to_string().contains("was made for"), "{e}");
    assert!(std::fs::read(&right).unwrap().iter().all(|b| *b == 0));

    // The right one at its new place, which is remembered.
    let moved = AttachOptions { origin: Some(dir.path("moved")), ..plain() };
    pool.attach("v", &moved).unwrap().detach().unwrap();
    let volume = pool.attach("v", &plain()).unwrap();
    assert_eq!(read(&volume, 0, 4096), [1; 4096]);
    volume.detach().unwrap();

    // A restored copy, by explicit order.
    std::fs::copy(dir.path("moved"), dir.path("restored")).unwrap();
    let restored = AttachOptions { origin: Some(dir.path("restored")), ..plain() };
    assert_eq!(pool.attach("v", &restored).unwrap_err().exit_code(), 6);
    // The order is for another id; that the copy bears no mark is one of its own.
    let order = AttachOptions { accept_changed_origin: true, ..restored };
    let e = pool.attach("v", &order).unwrap_err();
    assert!(e.exit_code() == 6 && e.to_string().contains("--accept-mark"), "{e}");
    let order = AttachOptions { accept_mark: true, ..order };
    let volume = pool.attach("v", &order).unwrap();
    drain(&volume);
    assert_eq!(std::fs::read(dir.path("restored")).unwrap()[..4096], [1; 4096]);
}

/// As the system shows a disk without a serial number.
#[derive(Debug)]
struct Named(MemOrigin, &'static str);

impl Origin for Named {
    origin_passes_on!(0: size_bytes, logical_block, info, read_at, write_at, flush, discard, write_zeroes);

    fn identity(&self) -> String {
        self.1.into()
    }
}

/// Two virtual disks without serial numbers change places: data cached for one must not be
/// written onto the other because it has the name now.
#[test]
fn a_name_is_an_id_by_order_only() {
    let dir = Dir::new("name");
    let pool = open(&dir.pool(8));
    let (a, b) = (MemOrigin::new(1 << 20).unwrap(), MemOrigin::new(1 << 20).unwrap());
    let vda = |o: &MemOrigin| Box::new(Named(o.clone(), "name:vda|/dev/vda"));
    let order = AttachOptions { origin_by_name: true, ..plain() };
    let refused = |o: &AttachOptions| {
        let e = pool.attach_origin("v", vda(&b), o).unwrap_err();
        assert_eq!(e.exit_code(), 6, "{e}");
        e.to_string()
    };

    // Recorded by a version that took the name without asking.
    pool.volume_add_origin("v", &Named(a.clone(), "blk:vda|/dev/vda"), 0).unwrap();
    assert!(refused(&plain()).contains("--origin-by-name"));
    let volume = pool.attach_origin("v", vda(&a), &order).unwrap();
    volume.write_at(&[1; 4096], 0).unwrap();
    volume.detach().unwrap();
    assert_eq!(pool.volume_info("v").unwrap().identity, "name:vda", "the consent is recorded");
    pool.attach_origin("v", vda(&a), &plain()).unwrap().detach().unwrap();

    // Another name, or a disk that has an id: not the recorded one.
    let vdb = || Box::new(Named(b.clone(), "name:vdb|/dev/vdb"));
    assert_eq!(pool.attach_origin("v", vdb(), &order).unwrap_err().exit_code(), 6);
    let moved = AttachOptions { accept_changed_origin: true, ..plain() };
    let e = pool.attach_origin("v", vdb(), &moved).unwrap_err();
    assert!(e.to_string().contains("--origin-by-name"), "{e}");
    let both = AttachOptions { accept_changed_origin: true, ..order };
    pool.attach_origin("v", vdb(), &both).unwrap().detach().unwrap();
    assert_eq!(pool.volume_info("v").unwrap().identity, "name:vdb");
    assert!(b.content().iter().all(|byte| *byte == 0));
}

/// The path is how the origin is found again: one that the record has no room
/// for is refused when the volume is added, not when it is attached.
#[test]
fn a_path_that_cannot_be_recorded_is_refused_at_once() {
    let dir = Dir::new("long");
    let pool = open(&dir.pool(8));
    let long = dir.path(&"x".repeat(120));
    std::fs::File::create(&long).unwrap().set_len(1 << 20).unwrap();
    let new = |origin| NewVolume { name: "v".into(), origin, ..Default::default() };
    let e = pool.volume_add(&new(long.clone())).unwrap_err();
    assert_eq!(e.exit_code(), 2, "{e}");
    assert!(e.to_string().contains("shorter path"), "{e}");
    assert!(pool.volumes().is_empty());
    let link = dir.path("link");
    std::os::unix::fs::symlink(&long, &link).unwrap();
    pool.volume_add(&new(link)).unwrap();
    pool.attach("v", &plain()).unwrap().detach().unwrap();
}

#[test]
fn a_resized_origin_is_refused_and_growth_accepted_by_order() {
    let dir = Dir::new("resized");
    let disk = dir.file("disk", 1 << 20);
    let pool = open(&dir.pool(8));
    add(&pool, disk.clone(), 4096);
    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.set_len(512 << 10).unwrap();
    let order = AttachOptions { accept_changed_origin: true, ..plain() };
    for o in [&plain(), &order] {
        let e = pool.attach("v", o).unwrap_err();
        assert!(e.to_string().contains("truncated"), "{e}");
        assert_eq!(e.exit_code(), 6);
    }
    file.set_len((2 << 20) + 100).unwrap();
    let e = pool.attach("v", &plain()).unwrap_err();
    assert!(e.to_string().contains("it has grown"), "{e}");
    let volume = pool.attach("v", &order).unwrap();
    assert_eq!(volume.size_bytes(), 2 << 20);
    volume.write_at(&[1; 4096], (2 << 20) - 4096).unwrap();
    drain(&volume);
    let mut end = [0; 4096];
    std::fs::File::open(&disk).unwrap().read_exact_at(&mut end, (2 << 20) - 4096).unwrap();
    assert_eq!(end, [1; 4096]);
}

#[test]
fn an_origin_in_use_is_refused() {
    let (a, b) = (Dir::new("use-a"), Dir::new("use-b"));
    let disk = a.file("disk", 1 << 20);
    let pool = open(&a.pool(8));
    add(&pool, disk.clone(), 0);
    let volume = pool.attach("v", &plain()).unwrap();
    let other = open(&b.pool(8));
    let new = NewVolume { name: "v".into(), origin: disk, block_size: 0, ..Default::default() };
    let e = other.volume_add(&new).unwrap_err();
    assert!(matches!(e, Error::Busy { .. }), "{e}");
    drop(volume);
    other.volume_add(&new).unwrap();
    // The pool's own file is no origin.
    let new = NewVolume {
        name: "self".into(),
        origin: a.path("pool"),
        block_size: 0,
        ..Default::default()
    };
    assert_eq!(pool.volume_add(&new).unwrap_err().exit_code(), 2);
}

/// A block device is claimed for us alone, written with O_DIRECT, zeroed and
/// discarded by the device, and known again by its id.
#[test]
fn block_devices() {
    for (sector, block) in [("512", 512u32), ("4096", 4096)] {
        let dir = Dir::new("loop");
        let backing = dir.file("backing", 4 << 20);
        let device = match Loop::attach(&backing, &["--sector-size", sector]) {
            Ok(device) => device,
            Err(why) => return forebay_test::skipped!("{why}"),
        };
        let pool = open(&dir.pool(16));
        if block == 4096 {
            let new = NewVolume {
                name: "v".into(),
                origin: device.path().into(),
                block_size: 512,
                ..Default::default()
            };
            let e = pool.volume_add(&new).unwrap_err();
            assert!(e.to_string().contains("use a block size of 4096"), "{e}");
        }
        add(&pool, device.path().into(), 0);
        let volume = pool.attach("v", &plain()).unwrap();
        assert_eq!((volume.block_size(), volume.size_bytes()), (block, 4 << 20));
        let info = volume.info().unwrap();
        assert!(info.identity.starts_with("loop:file:"), "{}", info.identity);
        assert!(info.origin.unwrap().method.contains("O_DIRECT"));
        let e = FileOrigin::open(device.path(), false).unwrap_err();
        assert!(matches!(e, Error::Busy { .. }), "{e}");

        let mut model = vec![0u8; 4 << 20];
        let mut rng = Rng::new(u64::from(block));
        let sectors = u64::from(block) / 512;
        for count in 1..300 {
            let at = rng.below(8192 / sectors) * sectors;
            let n = ((1 + rng.below(20)) * sectors).min(8192 - at);
            let place = at as usize * 512..(at + n) as usize * 512;
            if rng.below(4) == 0 {
                volume.write_zeroes(at * 512, n * 512).unwrap();
                model[place].fill(0);
            } else {
                let data: Vec<u8> = (at..at + n).flat_map(|p| pattern(p, count)).collect();
                volume.write_at(&data, at * 512).unwrap();
                model[place].copy_from_slice(&data);
            }
        }
        // Zeroes beyond what is cached, at the device.
        volume.write_zeroes(1 << 20, 1 << 20).unwrap();
        model[1 << 20..2 << 20].fill(0);
        assert!(read(&volume, 0, 4 << 20) == model);
        drain(&volume);
        volume.discard(3 << 20, 512 << 10).unwrap();
        let kept = (0..3 << 20).chain(7 << 19..4 << 20);
        volume.detach().unwrap();
        let mut content = vec![0; 4 << 20];
        FileOrigin::open(device.path(), true).unwrap().read_at(&mut content, 0).unwrap();
        assert!(kept.clone().all(|i| content[i] == model[i]));
        pool.attach("v", &plain()).unwrap();
    }
}

fn pattern(place: u64, count: u64) -> [u8; 512] {
    sector(1, place, count)
}

/// Files by URI are the files that they name; other schemes are refused by name, when a
/// volume is added and when it is attached.
#[test]
fn an_origin_is_named_by_path_or_uri() {
    let dir = Dir::new("uri");
    let disk = dir.file("a disk", 1 << 20);
    let pool = open(&dir.pool(16));
    let uri = format!("file://{}", disk.display()).replace(' ', "%20");
    let new =
        |origin: &str| NewVolume { name: "v".into(), origin: origin.into(), ..Default::default() };
    let refused = pool.volume_add(&new("s3://host/disk")).unwrap_err().to_string();
    assert!(refused.contains("no kind of origin \"s3\""), "{refused}");
    let added = pool.volume_add(&new(&uri)).unwrap();
    assert_eq!(added.origin_path.as_deref(), disk.to_str(), "the path is what is recorded");
    let elsewhere = |origin: &str| {
        let origin = Some(origin.into());
        pool.attach("v", &AttachOptions { origin, ..Default::default() })
    };
    assert!(elsewhere("s3://bucket").is_err());
    elsewhere(&uri).unwrap().detach().unwrap();
    pool.attach("v", &AttachOptions::default()).unwrap().detach().unwrap();
}
