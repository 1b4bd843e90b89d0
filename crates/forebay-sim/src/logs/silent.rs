// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log whose consumer has synced everything and fallen silent, and a volume that fills the
//! pool while its origin hangs: the chunks that the log's writers have open are freed.

use forebay_engine::sys;

use super::script::{guid, name};
use crate::engine::{identity, small_attach, volume_spec, Attach, Decision, Engine, Wait};
use crate::hooks;
use crate::media::{Flavour, Media};

const SECTORS: u64 = 8 * 15 * 16;
const SECOND_NS: u64 = 1_000_000_000;

/// Returns what is wrong.
pub fn silent() -> Result<(), String> {
    made().map_err(|e| format!("a log fallen silent: {e}"))
}

fn made() -> Result<(), String> {
    let wrong = |e: crate::engine::Code| e.to_string();
    let mut engine = Engine::new(Media::new(17 << 16, Flavour::NonTemporal));
    engine.format([5; 16], 1 << 16, 2).map_err(wrong)?;
    let options = sys::fby_options { nslots: 3, ..Default::default() };
    engine.open_all(&options).map_err(wrong)?;
    engine.volume_add(&volume_spec("v", 1, SECTORS, 512)).map_err(wrong)?;
    let (id, a) = (identity(1), small_attach(SECTORS, "", 16));
    engine.volume_attach(0, &Attach { identity: &id, ..a }).map_err(wrong)?;
    let log = engine.log_add(&name(0), 0).map_err(wrong)?;
    engine.log_create(log, &guid(0, 1), 0, &mut 0).map_err(wrong)?;
    for cpu in 0..3 {
        hooks::set_cpu(cpu);
        engine.log_append(log, 1 + u64::from(cpu), true, &[b"said"], &mut 0).map_err(wrong)?;
    }
    // Unsynced entries fill a chunk, and begin the next: those two stay.
    engine.log_append(log, 3, true, &[&[7; 40_000]], &mut 0).map_err(wrong)?;
    engine.log_append(log, 3, true, &[&[7; 40_000]], &mut 0).map_err(wrong)?;
    hooks::set_cpu(0);
    engine.log_sync(log, 2, &mut 0).map_err(wrong)?;
    let (mut at, mut now_ns) = (0, 0);
    while let Decision::Done = engine.write(0, at, &[1; 4096], &mut 0, &mut 0).map_err(wrong)? {
        at += 8;
    }
    for _ in 0..8 {
        now_ns += SECOND_NS;
        engine.destage_step(now_ns).map_err(wrong)?;
    }
    let held = engine.log_info(log).map_err(wrong)?.chunks;
    if held != 2 {
        return Err(format!("of four chunks, two with unsynced entries, it holds {held}"));
    }
    match engine.write(0, at, &[1; 4096], &mut 0, &mut 0).map_err(wrong)? {
        Decision::Done => Ok(()),
        Decision::Wait(Wait::Space) => Err("the volume has none of its chunks".into()),
        other => Err(format!("a write: {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn gives_back_what_it_does_not_need() {
        super::silent().unwrap();
    }
}
