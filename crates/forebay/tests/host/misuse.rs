// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input: a message that names it, a fitting exit code, nothing written.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::*;
use forebay::*;

/// Calls f, which must fail so and leave the file as it was.
fn refused<T: std::fmt::Debug>(
    path: &Path,
    exit_code: u8,
    text: &str,
    f: impl FnOnce() -> Result<T>,
) {
    let before = std::fs::read(path).ok();
    let e = f().expect_err(text);
    assert_eq!(e.exit_code(), exit_code, "{e}");
    assert!(e.to_string().contains(text), "{text}: {e}");
    assert!(e.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{e}");
    assert!(std::fs::read(path).ok() == before, "{text}: it was changed");
}

fn reopen(path: &Path) -> Result<Pool> {
    Pool::open(path, &PoolOptions::default())
}

#[test]
fn creating() {
    let dir = Dir::new("create");
    let at = |name| dir.path(name);
    let make = |path: &Path, o: &CreateOptions| create(path, o);
    let o = small(8);

    let p = at("no-size");
    refused(&p, 2, "--size", || make(&p, &CreateOptions::default()));
    let p = at("tiny");
    refused(&p, 8, "too small", || make(&p, &small(3)));
    let p = at("chunk");
    let bad = CreateOptions { chunk_size_bytes: 100_000, ..o.clone() };
    let e = make(&p, &bad).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains("power of two"), "{e}");
    let e = make(&p, &CreateOptions { max_volumes: 65, ..o.clone() }).unwrap_err();
    assert!(e.to_string().contains("1 to 64"), "{e}");
    assert!(!p.exists());
    let p = at("nowhere").join("pool");
    let e = make(&p, &o).unwrap_err();
    assert!(e.exit_code() == 3 && e.to_string().contains("nowhere"), "{e}");

    // Existing content stays.
    let p = at("data");
    std::fs::write(&p, vec![7; 1 << 20]).unwrap();
    let existing = CreateOptions { size_bytes: None, ..o.clone() };
    refused(&p, 12, "--force", || make(&p, &existing));
    refused(&p, 2, "not", || make(&p, &small(9)));
    let p = at("ext4");
    let mut image = vec![0; 1 << 20];
    image[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(&p, image).unwrap();
    refused(&p, 12, "ext4", || make(&p, &existing));
    let p = at("empty");
    std::fs::write(&p, []).unwrap();
    refused(&p, 2, "--size", || make(&p, &existing));
    let p = at("directory");
    std::fs::create_dir(&p).unwrap();
    refused(&p, 2, "a directory", || make(&p, &o));
    let p = at("link");
    std::os::unix::fs::symlink(at("data"), &p).unwrap();
    refused(&p, 12, "--force", || make(&p, &existing));

    // A pool is never taken for blank; with force it is gone.
    let p = dir.pool(8);
    refused(&p, 12, "a Forebay pool", || make(&p, &existing));
    let pool = reopen(&p).unwrap();
    let uuid = pool.uuid();
    refused(&p, 4, "in use by process", || {
        make(&p, &CreateOptions { force: true, ..existing.clone() })
    });
    drop(pool);
    make(&p, &CreateOptions { force: true, ..existing }).unwrap();
    assert_ne!(reopen(&p).unwrap().uuid(), uuid);
    let p = at("data");
    make(&p, &CreateOptions { force: true, size_bytes: None, ..o }).unwrap();
    assert!(reopen(&p).unwrap().volumes().is_empty());
}

/// One of ours or of root's is followed; another user's could lead anywhere.
#[test]
fn symbolic_links_to_a_pool() {
    let dir = Dir::new("links");
    let p = dir.pool(8);
    let link = dir.path("link");
    std::os::unix::fs::symlink(&p, &link).unwrap();
    let uuid = reopen(&p).unwrap().uuid();
    assert_eq!(reopen(&link).unwrap().uuid(), uuid);
    if std::os::unix::fs::lchown(&link, Some(4242), None).is_err() {
        forebay_test::skipped!("a link of another user is not tried: not root");
        return;
    }
    refused(&link, 2, "a symbolic link of user 4242", || reopen(&link));
}

/// On a disk that is full there is an error and no file.
#[test]
fn creating_on_a_full_disk() {
    let dir = Dir::new("diskfull");
    let p = dir.path("pool");
    let o = CreateOptions { size_bytes: Some(1 << 50), ..Default::default() };
    let e = create(&p, &o).unwrap_err();
    assert_eq!(e.exit_code(), 8, "{e}");
    assert_eq!(std::fs::read_dir(p.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn opening() {
    let dir = Dir::new("open");
    let p = dir.path("none");
    refused(&p, 3, "no such file", || reopen(&p));
    let p = dir.path("text");
    std::fs::write(&p, vec![b'x'; 1 << 20]).unwrap();
    refused(&p, 3, "not a Forebay pool", || reopen(&p));
    let p = dir.file("blank", 1 << 20);
    refused(&p, 3, "blank", || reopen(&p));
    let p = dir.path("short");
    std::fs::write(&p, "x").unwrap();
    refused(&p, 8, "too small", || reopen(&p));

    let p = dir.pool(8);
    let good = std::fs::read(&p).unwrap();
    let write = |bytes: &[u8], at: u64| {
        std::fs::write(&p, &good).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&p).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file
    };
    // Two at once.
    let pool = reopen(&p).unwrap();
    let e = reopen(&p).unwrap_err();
    assert!(matches!(e, Error::Busy { holder: Some(_), .. }), "{e}");
    assert_eq!(inspect(&p).unwrap().state, InspectionState::Pool);
    drop(pool);
    // Both superblocks zeroed, or damaged: never a new media.
    write(&[0; 8192], 0);
    refused(&p, 5, "superblock", || reopen(&p));
    refused(&p, 12, "damaged Forebay pool", || {
        create(&p, &CreateOptions { size_bytes: None, ..small(8) })
    });
    assert_eq!(inspect(&p).unwrap().state, InspectionState::Damaged);
    write(&[1; 4], 100).write_all_at(&[1; 4], 4096 + 100).unwrap();
    refused(&p, 5, "superblock", || reopen(&p));
    // One of them: the other counts, and opening repairs.
    for at in [0, 4096] {
        write(&[0xff; 64], at);
        assert!(inspect(&p).unwrap().text.contains("damaged"));
        reopen(&p).unwrap();
        let sb = inspect(&p).unwrap().superblock.unwrap();
        assert!(sb.primary_valid && sb.copy_valid);
    }
    // From the future.
    let mut sb = good[..512].to_vec();
    sb[8] = 99;
    let crc = forebay_engine::sys::crc32c(0, &sb[..508]);
    sb[508..].copy_from_slice(&crc.to_le_bytes());
    write(&sb, 0).write_all_at(&sb, 4096).unwrap();
    refused(&p, 10, "version", || reopen(&p));
    assert_eq!(inspect(&p).unwrap().state, InspectionState::PoolUnusable);
    // Cut short.
    write(&[], 0).set_len(5 * u64::from(CHUNK)).unwrap();
    refused(&p, 5, "smaller", || reopen(&p));
    std::fs::write(&p, &good).unwrap();
    let o = PoolOptions { slots: 65, ..Default::default() };
    assert_eq!(Pool::open(&p, &o).unwrap_err().exit_code(), 2);
}

/// A weaker persist method than the media needs is refused unless allowed, and
/// then status says what that means.
#[test]
fn weaker_persist_methods() {
    let dir = Dir::on_disk("weaker");
    let p = dir.pool(8);
    let mut o = PoolOptions::default();
    let kind = Pool::open(&p, &o).unwrap().media().kind;
    if kind == MediaKind::File {
        o.media.persist = Persist::Nt;
        let e = Pool::open(&p, &o).unwrap_err();
        assert!(matches!(e, Error::WeakerPersist { .. }), "{e}");
        o.media.allow_weaker = true;
        let pool = Pool::open(&p, &o).unwrap();
        assert!(!pool.media().durable && pool.media().note.contains("can be lost"));
    }
}

#[test]
fn words_of_options() {
    let verify = |word: &str| word.parse::<Verify>();
    assert!(matches!(verify("always"), Ok(Verify::Always)));
    assert!(matches!(verify("first"), Ok(Verify::First)));
    assert!(matches!(verify("never"), Ok(Verify::Never)));
    assert_eq!(Error::from(verify("often").unwrap_err()).exit_code(), 2);
    let holes = |word: &str| word.parse::<Holes>();
    assert!(matches!(holes("fail"), Ok(Holes::Fail)));
    assert!(matches!(holes("isolate"), Ok(Holes::Isolate)));
    assert!(matches!(holes("accept"), Ok(Holes::Accept)));
    assert_eq!(Error::from(holes("some").unwrap_err()).exit_code(), 2);
    let full = |word: &str| word.parse::<WhenFull>();
    assert!(matches!(full("wait"), Ok(WhenFull::Wait)));
    assert!(matches!(full("bypass"), Ok(WhenFull::Bypass)));
    assert_eq!(Error::from(full("stop").unwrap_err()).exit_code(), 2);
}

/// A process that only reads a pool does not keep the pool's server from starting.
#[test]
fn a_writer_waits_for_readers() {
    let dir = Dir::new("readers");
    let path = dir.pool(8);
    let reader = PoolOptions { read_only: true, ..Default::default() };
    let reader = Pool::open(&path, &reader).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(500));
            reader.close().unwrap();
        });
        open(&path).close().unwrap();
    });
}

#[test]
fn paths_that_cannot_be() {
    let dir = Dir::new("paths");
    let long = dir.path(&"x".repeat(300));
    refused(&long, 2, "too long", || reopen(&long));
    refused(&long, 2, "too long", || create(&long, &small(8)));
}
