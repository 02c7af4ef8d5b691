//! The server is killed while a client writes. Whatever was acknowledged as durable is there afterwards, and nothing is
//! there that was never sent. `UEXT4_KILL_ROUNDS` and `UEXT4_KILL_SEED` choose how many kills there are, and of what.

use super::client::{Client, FLUSH, FUA, TRIM, WRITE, WRITE_ZEROES, header};
use super::{SIZE, Serving, image};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::time::Duration;
use uext4::{Volume, VolumeOptions};
use uext4_testkit::{Need, Rng, Scratch, e2fsck_clean, needs};

const ROUNDS: u64 = 12;
const BLOCK: u64 = 4096;
/// Requests that are sent before the first answer is awaited.
const BATCH: u64 = 8;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// What a block may hold: a byte that all of it repeats.
#[derive(Default, Clone)]
struct Block {
    /// Certain since it was acknowledged as durable; anything if it never was.
    durable: Option<u8>,
    /// Acknowledged after that, in order: the next flush makes the last one certain.
    acknowledged: Vec<u8>,
    /// Sent and not answered.
    sent: Option<u8>,
}

struct Ledger {
    blocks: Vec<Block>,
    certain: usize,
}

/// A request of a batch.
struct Sent {
    block: usize,
    byte: u8,
    durable: bool,
}

impl Ledger {
    fn answered(&mut self, sent: &Sent) {
        let block = &mut self.blocks[sent.block];
        block.sent = None;
        if sent.durable {
            block.durable = Some(sent.byte);
            block.acknowledged.clear();
            self.certain += 1;
        } else {
            block.acknowledged.push(sent.byte);
        }
    }

    fn flushed(&mut self) {
        for block in &mut self.blocks {
            if let Some(last) = block.acknowledged.pop() {
                block.durable = Some(last);
                block.acknowledged.clear();
                self.certain += 1;
            }
        }
    }

    /// Compares what was found, and goes on from there.
    fn check(&mut self, found: &[u8]) {
        for (number, (block, bytes)) in self.blocks.iter_mut().zip(found.chunks(BLOCK as usize)).enumerate() {
            let mut allowed: Vec<u8> =
                block.durable.into_iter().chain(block.acknowledged.iter().copied()).collect();
            allowed.extend(block.sent);
            // Sectors of a block may be of different writes.
            let known = |byte: u8| block.durable.is_none() || allowed.contains(&byte);
            for sector in bytes.chunks(512) {
                let first = sector[0];
                if block.durable.is_some() || !block.acknowledged.is_empty() || block.sent.is_some() {
                    assert!(
                        sector.iter().all(|byte| *byte == first) || block.durable.is_none(),
                        "block {number}"
                    );
                }
                assert!(known(first), "block {number} holds {first}, not one of {allowed:?}");
            }
            let same = bytes.iter().all(|byte| *byte == bytes[0]);
            *block = Block { durable: same.then_some(bytes[0]), ..Block::default() };
        }
    }
}

/// Sends batches until the server is gone.
fn work(client: &mut Client, ledger: &mut Ledger, rng: &mut Rng) -> std::io::Result<()> {
    loop {
        let mut batch: HashMap<u64, Sent> = HashMap::new();
        let mut bytes = Vec::new();
        for cookie in 0..1 + rng.below(BATCH) {
            let block = rng.below(SIZE / BLOCK) as usize;
            if batch.values().any(|sent| sent.block == block) {
                continue;
            }
            let (durable, at) = (rng.chance(50), block as u64 * BLOCK);
            let flags = if durable { FUA } else { 0 };
            let byte = 1 + rng.below(255) as u8;
            let byte = if rng.chance(10) {
                bytes.extend(header(*rng.pick(&[WRITE_ZEROES, TRIM]), flags, cookie, at, BLOCK as u32));
                0
            } else {
                bytes.extend(header(WRITE, flags, cookie, at, BLOCK as u32));
                bytes.extend([byte; BLOCK as usize]);
                byte
            };
            ledger.blocks[block].sent = Some(byte);
            batch.insert(cookie, Sent { block, byte, durable });
        }
        client.stream.write_all(&bytes)?;
        while !batch.is_empty() {
            let cookie = answer(client)?;
            ledger.answered(&batch.remove(&cookie).unwrap());
        }
        if rng.chance(20) {
            client.stream.write_all(&header(FLUSH, 0, 99, 0, 0))?;
            assert_eq!(answer(client)?, 99);
            ledger.flushed();
        }
    }
}

fn answer(client: &mut Client) -> std::io::Result<u64> {
    let mut reply = [0; 16];
    client.stream.read_exact(&mut reply)?;
    assert_eq!(reply[4..8], [0; 4], "an error");
    Ok(super::client::number(&reply[8..]))
}

#[test]
fn what_was_durable_is_there_after_kills() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    let (rounds, seed) =
        (number("UEXT4_KILL_ROUNDS").unwrap_or(ROUNDS), number("UEXT4_KILL_SEED").unwrap_or(5));
    println!("replay: UEXT4_KILL_SEED={seed} UEXT4_KILL_ROUNDS={rounds}");
    let mut rng = Rng::new(seed);
    let mut ledger = Ledger { blocks: vec![Block::default(); (SIZE / BLOCK) as usize], certain: 0 };
    // The hole reads as zeros from the start.
    ledger.blocks[512..].iter_mut().for_each(|block| block.durable = Some(0));
    let mut recovered = 0;
    for round in 0..rounds {
        let mut serving = Serving::file(&image, &scratch);
        let (mut client, mut drawn) = (serving.client(), rng.fork(round));
        let worker = std::thread::spawn(move || {
            let ended = work(&mut client, &mut ledger, &mut drawn);
            (ledger, ended.unwrap_err())
        });
        std::thread::sleep(Duration::from_micros(2000 + rng.below(150_000)));
        serving.server.kill().unwrap();
        serving.server.wait().unwrap();
        let (back, _gone) = worker.join().unwrap();
        ledger = back;
        let volume = Volume::open(image.path(), VolumeOptions::read_write()).unwrap();
        recovered += usize::from(volume.recovery().state == uext4::RecoveryState::Replayed);
        ledger.check(&volume.read("/disk").unwrap());
        volume.close().unwrap();
        e2fsck_clean(image.path());
    }
    println!("{rounds} kills, {} blocks certain, {recovered} recoveries", ledger.certain);
    assert!(ledger.certain as u64 > rounds, "the client got nowhere");
    assert!(recovered > 0, "no kill left anything to recover");
}
