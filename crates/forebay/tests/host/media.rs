// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of media, told apart by what is really there.  Shared memory and
//! files are met by the other tests; tests/vm/media runs the one here in a
//! guest that has persistent memory.

use std::path::Path;

use crate::common::*;
use forebay::*;

/// The checksums of a pool's lines begin with its salt, so nobody else may know it.
#[test]
fn each_pool_has_a_salt_that_nothing_shows() {
    let dir = Dir::new("salt");
    let salts = ["a", "b"].map(|name| {
        let path = dir.path(name);
        create(&path, &small(8)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let salt = u32::from_le_bytes(bytes[140..144].try_into().unwrap());
        let pool = open(&path);
        let shown = [
            serde_json::to_string(&inspect(&path).unwrap()).unwrap(),
            serde_json::to_string(&pool.status()).unwrap(),
            format!("{:?}", pool.superblock().unwrap()),
            format!("{:?}", inspect(&path).unwrap()),
        ];
        for of in shown {
            assert!(of.contains("chunk") && !of.contains(&salt.to_string()), "{salt}: {of}");
        }
        pool.close().unwrap();
        salt
    });
    assert!(salts[0] != salts[1] && !salts.contains(&0), "{salts:?}");
}

/// FOREBAY_TEST_MEDIA="PATH KIND PERSIST [BYTES]": the content of the path is overwritten.
#[test]
#[ignore = "overwrites the media that FOREBAY_TEST_MEDIA names"]
fn on_the_media_named() {
    let Ok(words) = std::env::var("FOREBAY_TEST_MEDIA") else {
        return;
    };
    let words: Vec<&str> = words.split_whitespace().collect();
    let (path, kind, persist) = (Path::new(words[0]), words[1], words[2]);
    let size_bytes = words.get(3).map(|n| n.parse().unwrap());
    let summary =
        create(path, &CreateOptions { size_bytes, force: true, ..Default::default() }).unwrap();
    println!("{}: {}, {}", path.display(), summary.media.kind, summary.media.note);
    assert_eq!(serde_json::to_value(summary.media.kind).unwrap(), kind);
    assert_eq!(summary.media.persist.to_string(), persist);
    assert!(summary.media.durable);
    assert_eq!(inspect(path).unwrap().state, InspectionState::Pool);

    let origin = MemOrigin::new(1 << 20).unwrap();
    for round in 1..4u8 {
        let pool = open(path);
        assert_eq!(pool.media(), &MediaInfo { path: path.into(), ..summary.media.clone() });
        let e = Pool::open(path, &PoolOptions::default()).unwrap_err();
        assert!(matches!(e, Error::Busy { .. }), "{e}");
        let volume = match round {
            1 => attach(&pool, "v", &origin),
            _ => reattach(&pool, "v", &origin),
        };
        assert!(read(&volume, 0, 1 << 20).iter().all(|b| *b == round - 1));
        std::thread::scope(|s| {
            for t in 0..2u64 {
                let volume = &volume;
                s.spawn(move || {
                    for b in (t..256).step_by(2) {
                        volume.write_at(&[round; 4096], b * 4096).unwrap();
                    }
                });
            }
        });
        if round == 2 {
            drain(&volume);
            assert!(origin.content().iter().all(|b| *b == 2));
        }
        volume.detach().unwrap();
        assert_sound(&pool);
        pool.close().unwrap();
    }
    let force = CreateOptions { size_bytes, ..Default::default() };
    assert_eq!(create(path, &force).unwrap_err().exit_code(), 12);
    // Nothing weaker by mistake.
    let weaker = PoolOptions {
        media: MediaOptions { persist: Persist::Eadr, ..Default::default() },
        ..Default::default()
    };
    let e = Pool::open(path, &weaker).unwrap_err();
    assert!(matches!(e, Error::WeakerPersist { .. }), "{e}");
}

/// By force: signatures at the start and at the end, which identify file systems and partition
/// tables, are gone.
#[test]
fn force_leaves_nothing_that_is_known() {
    let dir = Dir::new("force");
    let (path, o) = (dir.path("pool"), CreateOptions { force: true, ..small(16) });
    let size = o.size_bytes.unwrap() as usize;
    std::fs::write(&path, vec![0x5a; size]).unwrap();
    create(&path, &o).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let old = |part: &[u8]| part.chunks(64).filter(|line| line.iter().all(|b| *b == 0x5a)).count();
    assert_eq!(
        (bytes.len(), old(&bytes[..64 << 10]), old(&bytes[size - (64 << 10)..])),
        (size, 0, 0)
    );
    let status = open(&path).status();
    assert!(status.destage_failure.is_none(), "{status:?}");
}
