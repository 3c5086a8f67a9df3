//! Arbitrary send queue entries of a guest that register, bind and free memory keys, and use them from the
//! other end. Nothing outside registered memory is written.

use connectx::cable::CableEnd;

use crate::pci::Guest;

/// Pages of the guest: rings and records.
const RINGS: u64 = 0x10_0000;
/// Ring of 64 completions, and its consumer counter.
const COMPLETIONS: u64 = RINGS + PAGE;
const CONSUMER: u64 = RINGS + 2 * PAGE;
/// Memory that keys may refer to: two pages of a region, between pages that contain [`OTHERS`].
const BEFORE: u64 = 0x18_0000;
pub(crate) const MEMORY: u64 = BEFORE + PAGE;
const BEHIND: u64 = MEMORY + 2 * PAGE;
const PAGE: u64 = 4096;
const OTHERS: u8 = 0xa5;
const DOORBELL: u64 = 0x10 * 4096 + 0x800;
/// The port's LID.
pub(crate) const LID: u16 = 7;
/// A power of two of WQEBBs, in one page.
const WQEBBS: u16 = 64;

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
pub(crate) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// The input of a command: opcode and number.
fn input(opcode: u16, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    put16(&mut bytes, 0, opcode);
    put32(&mut bytes, 8, number);
    bytes
}

fn with_pages(mut bytes: Vec<u8>, pages: &[u64]) -> Vec<u8> {
    bytes.resize(0x110, 0);
    pages.iter().for_each(|page| bytes.extend_from_slice(&page.to_be_bytes()));
    bytes
}

#[derive(Clone, Copy)]
pub(crate) struct QueuePair {
    pub(crate) number: u32,
    ring: u64,
    record: u64,
    posted: u16,
    /// Receives.
    received: u16,
}

pub(crate) struct Program {
    pub(crate) guest: Guest,
    /// Consumed completions.
    pub(crate) taken: u32,
    /// Successful completions among them.
    done: u32,
    /// Entries of all rings.
    pub(crate) posted: u32,
    pub(crate) pairs: [QueuePair; 2],
    /// LID of the other end of each pair.
    peer: u16,
    /// Free keys of lists and of pages, and the region underneath.
    pub(crate) keys: Vec<u32>,
}

impl Program {
    /// Two queue pairs of a program that are connected with each other, a region, and keys without memory.
    fn new() -> Option<Self> {
        Self::at(Guest::new()?, LID)
    }

    /// The same, but each is connected to the other's number at another port, over a cable.
    pub(crate) fn beyond(cable: CableEnd, peer: u16) -> Option<Self> {
        let mut guest = Guest::new()?;
        guest.plug(cable)?;
        Self::at(guest, peer)
    }

    fn at(mut guest: Guest, peer: u16) -> Option<Self> {
        for opcode in [0x104, 0x10a, 0x107, 0x108] {
            guest.ask(&input(opcode, 0, 16))?;
        }
        guest.ask(&input(0x109, 0, 0x1010))?;
        guest.ask(&input(0x102, 0, 16))?;
        guest.ask(&input(0x802, 0, 16))?;
        let mut events = input(0x301, 0, 0x110);
        put32(&mut events, 0x1c, 6 << 24 | 0x10);
        let eq = guest.ask(&with_pages(events, &[RINGS]))?;
        guest.put(COMPLETIONS, &[0xf0; 64 * 64]);
        let mut completions = input(0x400, 0, 0x110);
        put32(&mut completions, 0x1c, 6 << 24 | 0x10);
        put32(&mut completions, 0x24, eq);
        put64(&mut completions, 0x48, CONSUMER);
        let cq = guest.ask(&with_pages(completions, &[RINGS + PAGE]))?;
        let mut program = Self {
            guest,
            taken: 0,
            done: 0,
            posted: 0,
            pairs: [QueuePair { number: 0, ring: 0, record: 0, posted: 0, received: 0 }; 2],
            peer,
            keys: Vec::new(),
        };
        for (n, pair) in program.pairs.iter_mut().enumerate() {
            (pair.ring, pair.record) = (RINGS + (4 + 4 * n as u64) * PAGE, RINGS + (6 + 4 * n as u64) * PAGE);
            let mut bytes = input(0x500, 0, 0x110);
            let context = &mut bytes[0x18..];
            context[9] = 6 << 3 | 1;
            context[10] = 6 << 3;
            put32(context, 0xc, 0x10);
            put32(context, 0x10, 0x123);
            put32(context, 0x7c, cq);
            put32(context, 0x9c, cq);
            put64(context, 0xa0, pair.record);
            pair.number = program.guest.ask(&with_pages(bytes, &[pair.ring, pair.ring + PAGE]))?;
        }
        program.connect()?;
        let mut region = input(0x200, 0, 0x110);
        (region[0x12], region[0x17], region[0x4b]) = (0x0c | 0x30 | 1, 1, 12);
        put64(&mut region, 0x20, MEMORY);
        put64(&mut region, 0x28, 2 * PAGE);
        let number = program.guest.ask(&with_pages(region, &[MEMORY | 3, (MEMORY + PAGE) | 3]))?;
        program.keys.push(number << 8 | 1);
        for kind in [2, 2, 1] {
            let mut free = input(0x200, 0, 0x110);
            (free[0x10], free[0x12]) = (0x40, 0x84 | kind);
            put32(&mut free, 0x14, 0xffff_ff00);
            put32(&mut free, 0x10 + 52, 16);
            program.keys.push(program.guest.ask(&free)? << 8);
        }
        program.guest.put(BEFORE, &[OTHERS; PAGE as usize]);
        program.guest.put(BEHIND, &[OTHERS; PAGE as usize]);
        Some(program)
    }

    /// Moves both queue pairs from any state to RTS.
    pub(crate) fn connect(&mut self) -> Option<()> {
        let [a, b] = self.pairs;
        for (pair, other) in [(a, b), (b, a)] {
            self.guest.put(pair.record, &[0; 8]);
            for opcode in [0x50a, 0x502, 0x503, 0x504] {
                let mut bytes = input(opcode, pair.number, 0x110);
                let context = &mut bytes[0x18..];
                context[0x18 + 0x25] = 1;
                (context[8], context[0x91], context[0x92]) = (4 << 5, 1 << 5, 0xc0);
                put32(context, 0x14, other.number);
                put16(context, 0x18 + 6, self.peer);
                context[0x18 + 8] = 14 << 3;
                (context[0x71], context[0x72], context[0x94]) = (2 << 5 | 7, 7 << 5, 12);
                self.guest.ask(&bytes)?;
            }
        }
        self.pairs.iter_mut().for_each(|pair| (pair.posted, pair.received) = (0, 0));
        Some(())
    }

    /// Posts a receive of this length within the region.
    pub(crate) fn receive(&mut self, which: usize, room: u16) {
        let pair = &mut self.pairs[which];
        let mut entry = [0; 32];
        put32(&mut entry, 0, u32::from(room) % (2 * PAGE as u32));
        put32(&mut entry, 4, self.keys[0]);
        put64(&mut entry, 8, MEMORY);
        put32(&mut entry, 20, 0x100);
        self.guest.put(pair.ring + u64::from(pair.received % WQEBBS) * 32, &entry);
        pair.received = pair.received.wrapping_add(1);
        self.posted += 1;
        self.guest.put(pair.record, &u32::from(pair.received).to_be_bytes());
    }

    /// Asserts that memory outside of the keys is unchanged.
    pub(crate) fn check_others(&self) {
        for page in [BEFORE, BEHIND] {
            let whole = self.guest.get(page, PAGE as usize).iter().all(|byte| *byte == OTHERS);
            assert!(whole, "a write outside registered memory");
        }
    }

    /// Posts an entry and rings the doorbell.
    pub(crate) fn post(&mut self, which: usize, opcode: u8, key: u32, body: &[u8]) {
        self.posted += 1;
        let pair = &mut self.pairs[which];
        let mut entry = (u32::from(pair.posted) << 8 | u32::from(opcode)).to_be_bytes().to_vec();
        entry.extend_from_slice(&(pair.number << 8 | (1 + body.len() as u32 / 16).min(63)).to_be_bytes());
        entry.extend_from_slice(&[0, 0, 0, 8]);
        entry.extend_from_slice(&key.to_be_bytes());
        entry.extend_from_slice(body);
        entry.resize(entry.len().next_multiple_of(64), 0);
        for (n, block) in entry.chunks(64).enumerate() {
            let at = 2048 + u64::from((pair.posted + n as u16) % WQEBBS) * 64;
            self.guest.put(pair.ring + at, block);
        }
        pair.posted = pair.posted.wrapping_add((entry.len() / 64) as u16);
        let (record, posted) = (pair.record, u32::from(pair.posted));
        self.guest.put(record + 4, &posted.to_be_bytes());
        self.guest.write(DOORBELL, &entry[..8]);
    }

    /// Consumes completions to make room for more.
    pub(crate) fn reap(&mut self) {
        loop {
            let entry = self.guest.get(COMPLETIONS + u64::from(self.taken % 64) * 64, 64);
            let kind = entry[63] >> 4;
            if kind == 15 || u32::from(entry[63] & 1) != self.taken / 64 % 2 {
                return;
            }
            self.done += u32::from(kind == 0);
            self.taken += 1;
            self.guest.put(CONSUMER, &self.taken.to_be_bytes());
        }
    }

    /// A key by number, with one of a few tags.
    fn key(&self, choice: u8) -> u32 {
        let key = self.keys[usize::from(choice & 3)];
        if choice & 0x80 != 0 { key } else { key & !0xff | u32::from(choice >> 2 & 3) }
    }

    /// Posts a valid registration with changed bytes: pairs of an offset and an addend.
    fn umr(&self, choice: u8, changes: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 48 + 64 + 64];
        let free = choice & 0x10 != 0;
        (body[0], body[5]) = (0x80, if free { 0 } else { 4 });
        // Length, start, tag, queue pair, rights, and whether it is free.
        put64(&mut body, 8, 1 | 1 << 6 | 1 << 13 | 1 << 14 | 0xf << 17 | 1 << 29);
        (body[48], body[50]) = (if free { 0x40 } else { 0 }, 0x3c);
        put32(&mut body, 52, 0xffff_ff00 | u32::from(choice >> 2 & 3));
        put64(&mut body, 48 + 16, 0);
        put64(&mut body, 48 + 24, 3000);
        put32(&mut body, 112, 3000);
        put32(&mut body, 116, self.keys[0]);
        put64(&mut body, 120, MEMORY + 1000);
        for change in changes.chunks_exact(2) {
            let at = usize::from(change[0]) % body.len();
            body[at] = body[at].wrapping_add(change[1]);
        }
        body
    }

    fn step(&mut self, what: u8, data: &[u8]) -> Option<()> {
        let byte = |at: usize| data.get(at).copied().unwrap_or_default();
        let which = usize::from(what >> 7);
        match what % 8 {
            // As a driver does it, except for some bytes, or anything.
            0..=2 => {
                let (key, body) = (self.key(byte(0)), self.umr(byte(0), data.get(1..).unwrap_or_default()));
                self.post(which, 0x25, key, &body);
            }
            3 => self.post(which, 0x25, self.key(byte(0)), data.get(1..).unwrap_or_default()),
            // The other end writes and reads it.
            4 | 5 => {
                let mut body = vec![0; 32];
                let address =
                    u64::from(u16::from_le_bytes([byte(1), byte(2)])) ^ (MEMORY * u64::from(byte(3) & 1));
                put64(&mut body, 0, address);
                put32(&mut body, 8, self.key(byte(0)));
                put32(&mut body, 16, u32::from(u16::from_le_bytes([byte(4), byte(5) & 0x1f])));
                // Writes take their data from the region, reads store it there.
                put32(&mut body, 20, self.keys[0]);
                put64(&mut body, 24, MEMORY + u64::from(byte(6)));
                self.post(which, if what % 8 == 4 { 0x08 } else { 0x10 }, 0, &body);
            }
            // SEND with invalidate, without a receive.
            6 => self.post(which, 0x01, self.key(byte(0)), &[]),
            _ => self.connect()?,
        }
        self.guest.turns();
        self.reap();
        Some(())
    }
}

/// One input: records, each after its kind and length.
pub fn run(bytes: &[u8]) {
    if let Some(program) = play(bytes) {
        program.check_others();
    }
}

fn play(bytes: &[u8]) -> Option<Program> {
    let mut program = Program::new()?;
    let mut rest = bytes;
    while let Some((&[what, len], more)) = rest.split_first_chunk::<2>() {
        let (data, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        program.step(what, data)?;
    }
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_is_written_and_what_is_free_is_not() {
        // A list key gets memory, with tag 1; eight bytes from the start of the region are written to it.
        let register = [0, 1, 5];
        let write = [0x84, 7, 5, 16, 0, 0, 8, 0, 0];
        let free = [0, 1, 0x15];
        let played = |records: &[&[u8]]| {
            let mut program = Program::new().unwrap();
            program.guest.put(MEMORY, b"the word");
            for record in records {
                program.step(record[0], &record[2..]).unwrap();
            }
            (program.guest.get(MEMORY + 1016, 8) == b"the word", program.done, program.taken)
        };
        assert_eq!(played(&[&register, &write]), (true, 2, 2));
        assert_eq!(played(&[&write]), (false, 0, 1));
        assert_eq!(played(&[&register, &free, &write]), (false, 2, 3));
        // Far more than the completions of the ring.
        let many: Vec<&[u8]> = [&register[..], &write, &write, &free].repeat(50);
        assert_eq!(played(&many), (true, 200, 200));
    }
}
