//! Arbitrary packets for connected queue pairs with sends, receives, reads and writes. Nothing outside
//! registered memory is written, and no work completes more than once.

use std::time::Duration;

use connectx::cable::{CableEnd, Crcs, MAX_PACKET};
use ib_wire::packet::Opcode;

use crate::umr::{LID, MEMORY, Program, put16, put32, put64};

/// LID of the other ends.
const PEER: u16 = 9;
/// Maximum of records of an input: fewer than the entries of a ring.
const RECORDS: usize = 60;
/// Local and base transport header, and both CRCs.
const HEADERS: usize = 8 + 12;
const CRCS: usize = 6;

struct World {
    wire: CableEnd,
    program: Program,
}

impl World {
    fn new() -> Option<Self> {
        let (wire, far) = CableEnd::pair().ok()?;
        Some(Self { wire, program: Program::beyond(far, PEER)? })
    }

    fn turns(&mut self) {
        self.wire.flush();
        self.program.guest.turns();
        self.wire.receive(64, |_| ());
        self.program.reap();
    }

    /// Sends a packet: queue pair, opcode, PSN, flags, length of generated payload, and the bytes after its
    /// header.
    fn packet(&mut self, data: &[u8]) {
        let [which, opcode, psn, flags, more, data @ ..] = data else { return };
        let pair = self.program.pairs[usize::from(which & 1)];
        let opcode = match which >> 6 {
            0 => *opcode,
            _ => Opcode::KNOWN[usize::from(*opcode) % Opcode::KNOWN.len()].to_byte(),
        };
        let body =
            (data.len() + usize::from(*more) * 16).next_multiple_of(4).min(MAX_PACKET - HEADERS - CRCS);
        let mut bytes = vec![0; HEADERS + body + CRCS];
        (bytes[0], bytes[1]) = (flags & 0xf0, 2);
        put16(&mut bytes, 2, if which & 2 == 0 { LID } else { u16::from(*flags) });
        put16(&mut bytes, 4, ((HEADERS + body + 4) / 4) as u16);
        put16(&mut bytes, 6, if which & 4 == 0 { PEER } else { u16::from(*flags) });
        (bytes[8], bytes[9]) = (opcode, flags << 4 | 0x40);
        put16(&mut bytes, 10, if which & 8 == 0 { 0xffff } else { u16::from(*psn) });
        put32(&mut bytes, 12, if which & 16 == 0 { pair.number } else { u32::from(*psn) });
        put32(&mut bytes, 16, u32::from(*flags & 1) << 31 | u32::from(*psn));
        for (to, from) in bytes[HEADERS..HEADERS + body].iter_mut().zip(data) {
            *to = *from;
        }
        // Half of the memory accesses are valid.
        if which & 32 == 0 && body >= 16 && data.len() >= 12 {
            let key = self.program.keys[usize::from(data[8]) % self.program.keys.len()];
            put32(&mut bytes, HEADERS + 8, key);
            put64(&mut bytes, HEADERS, MEMORY + u64::from(u16::from_le_bytes([data[0], data[1]])) - 0x1000);
        }
        let _ = self.wire.forward(&bytes, Crcs::Absent);
        self.turns();
    }

    /// Posts SEND, WRITE, READ, or COMPARE & SWAP.
    fn work(&mut self, data: &[u8]) {
        let [what, length, ..] = data else { return };
        let (which, atomic) = (usize::from(what & 1), what >> 1 & 3 == 3);
        let mut body = Vec::new();
        if what >> 1 & 3 != 0 {
            let mut remote = [0; 16];
            put64(&mut remote, 0, MEMORY);
            put32(&mut remote, 8, self.program.keys[0]);
            body.extend_from_slice(&remote);
        }
        if atomic {
            body.extend_from_slice(&[*length; 16]);
        }
        let mut local = [0; 16];
        put32(&mut local, 0, if atomic { 8 } else { u32::from(*length) * 31 });
        put32(&mut local, 4, self.program.keys[0]);
        put64(&mut local, 8, MEMORY);
        body.extend_from_slice(&local);
        self.program.post(which, [0x0a, 0x08, 0x10, 0x11][usize::from(what >> 1 & 3)], 0, &body);
        self.turns();
    }

    fn record(&mut self, kind: u8, data: &[u8]) {
        let first = data.first().copied().unwrap_or_default();
        match kind % 8 {
            0..=3 => self.packet(data),
            4 => self.program.receive(usize::from(kind >> 7), u16::from(first) * 32),
            5 => self.work(data),
            6 => self.program.guest.pass(Duration::from_millis(u64::from(first) * 20)),
            _ => {
                self.program.connect();
            }
        }
        self.turns();
    }
}

/// One input: records, each after its kind and length.
pub fn run(bytes: &[u8]) {
    if let Some(world) = play(bytes) {
        world.program.check_others();
        assert!(world.program.taken <= world.program.posted, "a completion without work");
    }
}

fn play(bytes: &[u8]) -> Option<World> {
    let mut world = World::new()?;
    let mut rest = bytes;
    for _ in 0..RECORDS {
        let Some((&[kind, len], more)) = rest.split_first_chunk::<2>() else { break };
        let (data, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        world.record(kind, data);
    }
    Some(world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_received_and_a_write_is_written() {
        let send = [0, 15, 0x40, 4, 0, 0, 0, b'h', b'e', b'r', b'e', 0, 0, 0, 0, 0, 0];
        let mut send = send.to_vec();
        send[3] = Opcode::RcSendOnly.to_byte();
        send[2] = 0x20;
        let receive = [4, 1, 4];
        let world = play(&[&receive[..], &send[..]].concat()).unwrap();
        assert_eq!(world.program.taken, 1);
        assert_eq!(world.program.guest.get(MEMORY, 4), b"here");
        // The device refuses it without a receive.
        assert_eq!(play(&send).unwrap().program.taken, 0);
        // Key, address and length of a RETH, and a word, which is written to the start of the region.
        let mut write = vec![0, 25, 0, 0, 0, 0, 0];
        write[3] = Opcode::RcWriteOnly.to_byte();
        write.extend_from_slice(&[0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
        write.extend_from_slice(b"word");
        let world = play(&write).unwrap();
        assert_eq!(world.program.guest.get(MEMORY, 4), b"word");
        // A send without an acknowledgement completes with an error.
        let (work, wait) = ([5, 2, 0, 3], [6, 1, 255]);
        let mut records = work.to_vec();
        (0..50).for_each(|_| records.extend_from_slice(&wait));
        assert_eq!(play(&records).unwrap().program.taken, 1);
    }
}
