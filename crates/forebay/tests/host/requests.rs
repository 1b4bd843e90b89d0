// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests by begin and resume: a front end with a thousand of them in flight on one thread.

use std::time::Duration;

use forebay::*;

use crate::common::*;

const IN_FLIGHT: usize = 1000;
/// Blocks that each request of a round has for itself.
const SHARE: u64 = 4;
const BLOCK: u64 = 4096;
const SIZE: usize = IN_FLIGHT * (SHARE * BLOCK) as usize;

/// The operation of a request, and its bytes.
#[derive(Clone, Copy)]
enum Op {
    Read,
    Write,
    Durable,
    Zero,
    Flush,
}

struct Client {
    op: Op,
    offset: u64,
    len: u64,
    memory: Vec<u8>,
}

fn clients(rng: &mut Rng, count: u64) -> Vec<Client> {
    let one = |at: u64, rng: &mut Rng| {
        let op = match rng.below(10) {
            0..=3 => Op::Read,
            4..=6 => Op::Write,
            7 => Op::Durable,
            8 => Op::Zero,
            _ => Op::Flush,
        };
        let first = rng.below(SHARE * 8);
        let sectors = 1 + rng.below(SHARE * 8 - first);
        let (offset, len) = (at * SHARE * BLOCK + first * 512, sectors * 512);
        let memory = match op {
            Op::Read => vec![0xee; len as usize],
            Op::Write | Op::Durable => {
                (0..sectors).flat_map(|n| sector(1, offset / 512 + n, count)).collect()
            }
            Op::Zero | Op::Flush => Vec::new(),
        };
        Client { op, offset, len, memory }
    };
    (0..IN_FLIGHT as u64).map(|at| one(at, rng)).collect()
}

fn request<'a>(volume: &'a Volume, c: &'a mut Client) -> Request<'a> {
    match c.op {
        Op::Read => Request::read(volume, &mut c.memory, c.offset),
        Op::Write => Request::write(volume, &c.memory, c.offset, false),
        Op::Durable => Request::write(volume, &c.memory, c.offset, true),
        Op::Zero => Request::write_zeroes(volume, c.offset, c.len),
        Op::Flush => Request::flush(volume),
    }
    .unwrap()
}

/// All of them are begun before the origin has done anything, and it ends what it is asked
/// for in any order.  Returns how many waited for it at once.
fn round(volume: &Volume, clients: &mut [Client], rng: &mut Rng) -> usize {
    let mut requests: Vec<_> = clients.iter_mut().map(|c| request(volume, c)).collect();
    let mut open: Vec<(usize, Step)> =
        requests.iter_mut().enumerate().map(|(n, r)| (n, r.begin())).collect();
    let asked = open.iter().filter(|(_, step)| matches!(step, Step::Origin(_))).count();
    let mut idle = 0;
    while !open.is_empty() {
        let (n, step) = open.swap_remove(rng.below(open.len() as u64) as usize);
        let request = &mut requests[n];
        let result = match step {
            Step::Done(result) => {
                result.unwrap();
                idle = 0;
                continue;
            }
            Step::Origin(io) => request.perform(&io),
            Step::Wait(..) => {
                // None of those in flight can go on: destage has to.
                idle += 1;
                if idle > open.len() {
                    std::thread::sleep(Duration::from_millis(1));
                    idle = 0;
                }
                Ok(())
            }
        };
        open.push((n, request.resume(result)));
    }
    asked
}

#[test]
fn a_thousand_requests_in_flight_on_one_thread() {
    let dir = Dir::new("requests");
    // A tenth of the volume fits.
    let pool = Pool::open(&dir.pool(50), &unthrottled()).unwrap();
    let origin = MemOrigin::new(SIZE).unwrap();
    let volume = attach(&pool, "v", &origin);
    let mut model = vec![0; SIZE];
    let mut rng = Rng::new(5);
    let mut asked = 0;
    for count in 1..=12 {
        let when_full = if count % 2 == 0 { WhenFull::Wait } else { WhenFull::Bypass };
        volume.set(&VolumeChange {
            bypass_limit_bytes: Some([0, 8192][(count as usize / 2) % 2]),
            when_full: Some(when_full),
            ..Default::default()
        });
        let mut clients = clients(&mut rng, count);
        asked += round(&volume, &mut clients, &mut rng);
        for c in &clients {
            let at = c.offset as usize..(c.offset + c.len) as usize;
            match c.op {
                Op::Read => {
                    assert!(c.memory == model[at], "round {count}: {} bytes at {}", c.len, c.offset)
                }
                Op::Write | Op::Durable => model[at].copy_from_slice(&c.memory),
                Op::Zero => model[at].fill(0),
                Op::Flush => {}
            }
        }
    }
    assert!(asked > IN_FLIGHT, "{asked} requests had the origin work for them at once");
    assert!(read(&volume, 0, SIZE) == model);
    assert_sound(&pool);
    drain(&volume);
    assert!(origin.content() == model);
}

/// A request abandoned while the origin is busy holds nothing: others write the same blocks.
#[test]
fn a_request_that_is_dropped_lets_go_of_its_blocks() {
    let dir = Dir::new("dropped");
    let pool = Pool::open(&dir.pool(8), &unthrottled()).unwrap();
    let origin = MemOrigin::new(1 << 20).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.set(&VolumeChange { bypass_limit_bytes: Some(4096), ..Default::default() });
    let data = [7; 65536];
    for _ in 0..100 {
        let mut request = Request::write(&volume, &data, 0, true).unwrap();
        let Step::Origin(io) = request.begin() else { panic!("it goes past the cache") };
        assert_eq!((io.op, io.offset, io.len), (OriginOp::Write, 0, 65536));
        assert_eq!(request.data(&io), data);
        let mut other = Request::write(&volume, &[8; 4096], 4096, false).unwrap();
        assert!(matches!(other.begin(), Step::Wait(Why::Busy, _)));
    }
    volume.set(&VolumeChange { bypass_limit_bytes: Some(0), ..Default::default() });
    volume.write_at(&[8; 4096], 4096).unwrap();
    assert_eq!(read(&volume, 4096, 4096), [8; 4096]);
}

/// A write to the origin has its data, a read its place, and a flush neither.
#[test]
fn what_the_origin_is_asked_for_has_its_memory() {
    const LEN: usize = 256 << 10;
    let dir = Dir::new("memory-of-requests");
    let pool = open(&dir.pool(16));
    let origin = MemOrigin::new(4 * LEN).unwrap();
    pool.volume_add_origin("v", &origin, 0).unwrap();
    let past = AttachOptions { bypass_limit_bytes: 64 << 10, ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin.clone()), &past).unwrap();
    let (data, mut back) = (vec![7; LEN], vec![0; LEN]);

    let mut write = Request::write(&volume, &data, LEN as u64, true).unwrap();
    let Step::Origin(io) = write.begin() else { panic!("it goes past the cache") };
    assert_eq!((io.op, io.offset, io.len), (OriginOp::Write, LEN as u64, LEN as u64));
    assert!(write.data(&io) == data && write.place(&io).is_none());
    let done = write.perform(&io);
    let Step::Origin(io) = write.resume(done) else { panic!("it is to be durable") };
    assert_eq!(io.op, OriginOp::Flush);
    assert!(write.data(&io).is_empty() && write.place(&io).is_none());
    assert!(matches!(write.resume(Ok(())), Step::Done(Ok(()))));
    drop(write);

    let mut read = Request::read(&volume, &mut back, LEN as u64).unwrap();
    let Step::Origin(io) = read.begin() else { panic!("nothing is cached") };
    assert_eq!((io.op, io.offset, io.len), (OriginOp::Read, LEN as u64, LEN as u64));
    assert!(read.data(&io).is_empty());
    read.place(&io).unwrap().copy_from_slice(&origin.content()[LEN..2 * LEN]);
    assert!(matches!(read.resume(Ok(())), Step::Done(Ok(()))));
    drop(read);
    assert!(back == data);
}
