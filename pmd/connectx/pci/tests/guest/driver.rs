//! The guest's driver: commands, queues, doorbells.

use super::Guest;

/// Address of the command queue.
const QUEUE: u64 = 0x1000;
/// Address of the mailboxes: input, then output.
const INPUT_BOXES: u64 = 0x2_0000;
const OUTPUT_BOXES: u64 = 0x8_0000;

/// Result of a command: delivery status, command status, output.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) delivery: u8,
    pub(crate) status: u8,
    pub(crate) output: Vec<u8>,
}

impl Done {
    pub(crate) fn number(&self) -> u32 {
        u32::from_be_bytes(self.output[8..12].try_into().unwrap())
    }
}

/// The input of a command: header, and room for parameters.
pub(crate) fn input(opcode: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(16)];
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    bytes
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
pub(crate) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn about(opcode: u16, number: u32) -> Vec<u8> {
    let mut bytes = input(opcode, 16);
    put32(&mut bytes, 8, number);
    bytes
}

fn with_pages(mut bytes: Vec<u8>, pages: &[u64]) -> Vec<u8> {
    bytes.resize(0x110, 0);
    for page in pages {
        bytes.extend_from_slice(&page.to_be_bytes());
    }
    bytes
}

/// An event queue of 64 entries.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    pub(crate) number: u32,
    pub(crate) at: u64,
    pub(crate) consumer: u32,
}

/// A completion queue.
#[derive(Clone, Debug)]
pub(crate) struct Completions {
    pub(crate) number: u32,
    pub(crate) pages: Vec<u64>,
    pub(crate) log: u8,
    pub(crate) record: u64,
    pub(crate) consumer: u32,
}

/// A queue pair: 64 receives of 32 bytes and 64 WQEBBs, on two scattered pages.
#[derive(Clone, Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) pages: Vec<u64>,
    pub(crate) record: u64,
    pub(crate) posted: u16,
    pub(crate) received: u16,
}

/// The driver's own doorbell page, the first that it allocates.
pub(crate) const UAR: u32 = 0x10;

/// Offset of a doorbell in BAR 0.
pub(crate) const fn doorbell(page: u32, offset: u64) -> u64 {
    page as u64 * 4096 + offset
}

pub(crate) const RECEIVES: u16 = 64;
pub(crate) const SERVICE_RC: u8 = 0;
pub(crate) const SERVICE_UC: u8 = 1;
pub(crate) const SERVICE_UD: u8 = 2;
pub(crate) const QKEY: u32 = 0x0b1b;

impl Guest {
    /// Writes the address of the command queue to the device.
    pub(crate) fn set_queue(&mut self) {
        self.write(0, 0x10, &0u32.to_be_bytes());
        self.write(0, 0x14, &(QUEUE as u32).to_be_bytes());
    }

    /// Writes a command to an entry.
    pub(crate) fn lay(&mut self, index: u64, bytes: &[u8], room: usize) {
        let mut entry = vec![0; 64];
        entry[0] = 7;
        put32(&mut entry, 4, bytes.len() as u32);
        entry[0x10..0x10 + bytes.len().min(16)].copy_from_slice(&bytes[..bytes.len().min(16)]);
        put32(&mut entry, 0x38, room as u32);
        entry[0x3c] = 0x5a;
        entry[0x3f] = 1;
        let chain = |guest: &Self, at: u64, data: &[u8], len: usize| {
            for block in 0..len.saturating_sub(16).div_ceil(512) {
                let mut mailbox = vec![0; 576];
                let piece = data.chunks(512).nth(block).unwrap_or_default();
                mailbox[..piece.len()].copy_from_slice(piece);
                put64(&mut mailbox, 0x230, at + (block as u64 + 1) * 1024);
                put32(&mut mailbox, 0x238, block as u32);
                mailbox[0x23d] = 0x5a;
                guest.put(at + block as u64 * 1024, &mailbox);
            }
        };
        chain(self, INPUT_BOXES, bytes.get(16..).unwrap_or_default(), bytes.len());
        chain(self, OUTPUT_BOXES, &[], room);
        put64(&mut entry, 8, INPUT_BOXES);
        put64(&mut entry, 0x30, OUTPUT_BOXES);
        self.put(QUEUE + index * 64, &entry);
    }

    /// Rings for an entry and returns its result; `None` if the device keeps it.
    pub(crate) fn ring(&mut self, index: u64, room: usize) -> Option<Done> {
        self.write(0, 0x18, &(1u32 << index).to_be_bytes());
        let entry = self.get(QUEUE + index * 64, 64);
        if entry[0x3f] & 1 != 0 {
            return None;
        }
        let mut output = entry[0x20..0x30].to_vec();
        for block in 0..room.saturating_sub(16).div_ceil(512) {
            output.extend_from_slice(&self.get(OUTPUT_BOXES + block as u64 * 1024, 512));
        }
        output.truncate(room.max(16));
        Some(Done { delivery: entry[0x3f] >> 1, status: output[0], output })
    }

    pub(crate) fn try_command(&mut self, bytes: &[u8], room: usize) -> Done {
        self.lay(0, bytes, room);
        self.ring(0, room).unwrap()
    }

    pub(crate) fn command(&mut self, bytes: &[u8], room: usize) -> Done {
        let done = self.try_command(bytes, room);
        assert_eq!((done.delivery, done.status), (0, 0), "{:x?}", &bytes[..bytes.len().min(16)]);
        done
    }

    /// The start of a driver.
    pub(crate) fn probe(&mut self) -> Events {
        self.set_queue();
        for op in [0x104, 0x10a, 0x107, 0x108] {
            self.command(&input(op, 16), 0x70);
        }
        self.command(&input(0x109, 0x1010), 16);
        self.command(&input(0x102, 16), 16);
        let uar = self.command(&input(0x802, 16), 16).number();
        assert_eq!(uar, UAR);
        // Events of all types except completions and commands.
        self.create_eq(0, !(1 | 1 << 10))
    }

    pub(crate) fn create_eq(&mut self, vector: u16, mask: u64) -> Events {
        let at = self.pages(1);
        for n in 0..64 {
            self.put(at + n * 64 + 63, &[1]);
        }
        let mut bytes = input(0x301, 0x110);
        put32(&mut bytes, 0x1c, 6 << 24 | UAR);
        put16(&mut bytes, 0x26, vector);
        put64(&mut bytes, 0x58, mask);
        let number = self.command(&with_pages(bytes, &[at]), 16).number();
        Events { number, at, consumer: 0 }
    }

    /// The next event: type, subtype, data.
    pub(crate) fn next_event(&mut self, eq: &mut Events) -> Option<(u8, u8, Vec<u8>)> {
        let entry = self.get(eq.at + u64::from(eq.consumer % 64) * 64, 64);
        if entry[63] != (eq.consumer / 64 % 2) as u8 {
            return None;
        }
        eq.consumer += 1;
        Some((entry[1], entry[3], entry[32..60].to_vec()))
    }

    pub(crate) fn arm_eq(&mut self, eq: &Events) {
        let word = eq.number << 24 | eq.consumer & 0xff_ffff;
        self.write(0, doorbell(UAR, 0x40), &word.to_be_bytes());
    }

    pub(crate) fn cq_input(&mut self, eq: u32, log: u8, pages: &[u64], record: u64) -> Vec<u8> {
        let mut bytes = input(0x400, 0x110);
        put32(&mut bytes, 0x1c, u32::from(log) << 24 | UAR);
        put32(&mut bytes, 0x24, eq);
        put64(&mut bytes, 0x48, record);
        with_pages(bytes, pages)
    }

    /// A completion queue of `1 << log` entries on scattered pages.
    pub(crate) fn create_cq(&mut self, eq: u32, log: u8) -> Completions {
        let pages = self.scattered((64u64 << log).div_ceil(4096));
        let record = self.pages(1);
        for page in &pages {
            for n in 0..64 {
                self.put(page + n * 64 + 63, &[0xf0]);
            }
        }
        let bytes = self.cq_input(eq, log, &pages, record);
        let number = self.command(&bytes, 16).number();
        Completions { number, pages, log, record, consumer: 0 }
    }

    /// The next completion: its 64 bytes.
    pub(crate) fn poll(&mut self, cq: &mut Completions) -> Option<Vec<u8>> {
        let entries = 1u32 << cq.log;
        let at = cq.consumer % entries * 64;
        let entry = self.get(cq.pages[at as usize / 4096] + u64::from(at % 4096), 64);
        if entry[63] >> 4 == 15 || u32::from(entry[63] & 1) != cq.consumer / entries % 2 {
            return None;
        }
        cq.consumer += 1;
        self.put(cq.record, &cq.consumer.to_be_bytes());
        Some(entry)
    }

    pub(crate) fn arm_cq(&mut self, cq: &Completions) {
        let mut bytes = cq.consumer.to_be_bytes().to_vec();
        bytes.extend_from_slice(&cq.number.to_be_bytes());
        self.write(0, doorbell(UAR, 0x20), &bytes);
    }

    /// A key for all memory.
    pub(crate) fn whole_key(&mut self, tag: u8) -> u32 {
        let mut bytes = input(0x200, 0x110);
        bytes[0x12] = 0x0c;
        bytes[0x17] = tag;
        bytes[0x1c] = 0x80;
        self.command(&bytes, 16).number() << 8 | u32::from(tag)
    }

    /// A key for pages of 4096 bytes.
    pub(crate) fn key_input(&self, tag: u8, start: u64, len: u64, pages: &[u64]) -> Vec<u8> {
        let mut bytes = input(0x200, 0x110);
        bytes[0x12] = 0x0c | 0x30 | 1;
        bytes[0x17] = tag;
        put64(&mut bytes, 0x20, start);
        put64(&mut bytes, 0x28, len);
        bytes[0x4b] = 12;
        // The low bits are flags.
        with_pages(bytes, &pages.iter().map(|page| page | 3).collect::<Vec<_>>())
    }

    pub(crate) fn key(&mut self, tag: u8, start: u64, len: u64, pages: &[u64]) -> u32 {
        let bytes = self.key_input(tag, start, len, pages);
        self.command(&bytes, 16).number() << 8 | u32::from(tag)
    }

    pub(crate) fn qp_input(&self, service: u8, cq: u32, pages: &[u64], record: u64) -> Vec<u8> {
        let mut bytes = input(0x500, 0x110);
        let c = &mut bytes[0x18..];
        c[1] = service;
        c[9] = 6 << 3 | 1;
        c[10] = 6 << 3;
        put32(c, 0xc, UAR);
        put32(c, 0x10, 0x123);
        put32(c, 0x7c, cq);
        put32(c, 0x9c, cq);
        put64(c, 0xa0, record);
        with_pages(bytes, pages)
    }

    pub(crate) fn create_qp(&mut self, service: u8, cq: &Completions) -> QueuePair {
        let pages = self.scattered(2);
        let record = self.pages(1);
        let bytes = self.qp_input(service, cq.number, &pages, record);
        let number = self.command(&bytes, 16).number();
        QueuePair { number, pages, record, posted: 0, received: 0 }
    }

    /// RESET to RTS; `remote` is the LID and queue pair of a connection's peer.
    pub(crate) fn open(&mut self, qp: &QueuePair, remote: Option<(u16, u32)>) {
        self.move_on(qp.number, remote, &[0x502, 0x503, 0x504]);
    }

    /// Transitions in order, at port 1.
    pub(crate) fn move_on(&mut self, qp: u32, remote: Option<(u16, u32)>, transitions: &[u16]) {
        for &op in transitions {
            let bytes = self.transition(op, qp, 1, remote);
            self.command(&bytes, 16);
        }
    }

    /// A transition of a queue pair at a port. Drivers of datagram queue pairs name the port only in the
    /// first one.
    pub(crate) fn transition(&self, op: u16, qp: u32, port: u8, remote: Option<(u16, u32)>) -> Vec<u8> {
        let mut bytes = about(op, qp);
        bytes.resize(0x110, 0);
        let c = &mut bytes[0x18..];
        if op == 0x502 || remote.is_some() {
            c[0x18 + 0x25] = port;
        }
        put32(c, 0xa8, QKEY);
        c[8] = 4 << 5;
        // Four reads out, two in; the peer may read and write.
        c[0x71] = 2 << 5;
        c[0x91] = 1 << 5;
        c[0x92] = 0xc0;
        if let Some((lid, number)) = remote {
            put32(c, 0x14, number);
            put16(c, 0x18 + 6, lid);
            c[0x18 + 8] = 14 << 3;
            c[0x71] |= 7;
            c[0x72] = 7 << 5;
            c[0x94] = 12;
        }
        bytes
    }

    pub(crate) fn state(&mut self, qp: u32) -> u8 {
        let done = self.command(&about(0x50b, qp), 0x110);
        done.output[0x18] >> 4
    }

    /// Posts a receive of one segment.
    pub(crate) fn receive(&mut self, qp: &mut QueuePair, piece: [u8; 16]) {
        let at = u64::from(qp.received % RECEIVES) * 32;
        self.put(qp.pages[0] + at, &piece);
        let mut end = [0; 16];
        put32(&mut end, 4, 0x100);
        self.put(qp.pages[0] + at + 16, &end);
        qp.received = qp.received.wrapping_add(1);
        self.put(qp.record, &u32::from(qp.received).to_be_bytes());
    }

    /// Posts a send with the body behind its control segment, and rings.
    pub(crate) fn post_send(&mut self, qp: &mut QueuePair, opcode: u8, body: &[u8]) {
        let first = self.lay_send(qp, opcode, body);
        self.ring_send(first);
    }

    /// Rings for posted requests.
    pub(crate) fn ring_send(&mut self, first: [u8; 8]) {
        self.write(0, doorbell(UAR, 0x800), &first);
    }

    /// Writes a send without ringing; returns the doorbell value.
    pub(crate) fn lay_send(&mut self, qp: &mut QueuePair, opcode: u8, body: &[u8]) -> [u8; 8] {
        self.lay_request(qp, opcode, 0, body)
    }

    /// As `lay_send`, with an immediate or a key.
    pub(crate) fn lay_request(&mut self, qp: &mut QueuePair, opcode: u8, imm: u32, body: &[u8]) -> [u8; 8] {
        let mut wqe = (u32::from(qp.posted) << 8 | u32::from(opcode)).to_be_bytes().to_vec();
        wqe.extend_from_slice(&(qp.number << 8 | (1 + body.len() as u32 / 16)).to_be_bytes());
        wqe.extend_from_slice(&[0, 0, 0, 8]);
        wqe.extend_from_slice(&imm.to_be_bytes());
        wqe.extend_from_slice(body);
        for (n, block) in wqe.chunks(64).enumerate() {
            // Behind 2048 bytes of receives.
            let at = 2048 + (u64::from(qp.posted) + n as u64) % 64 * 64;
            self.put(qp.pages[at as usize / 4096] + at % 4096, block);
        }
        qp.posted = qp.posted.wrapping_add(wqe.len().div_ceil(64) as u16);
        self.put(qp.record + 4, &u32::from(qp.posted).to_be_bytes());
        wqe[..8].try_into().unwrap()
    }
}

/// Opcode of a completion, and the syndrome of a failure: others have the time there.
pub(crate) fn outcome(cqe: &[u8]) -> (u8, u8) {
    let opcode = cqe[63] >> 4;
    (opcode, if opcode < 0xd { 0 } else { cqe[55] })
}

pub(crate) fn piece(len: u32, key: u32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    put32(&mut bytes, 0, len);
    put32(&mut bytes, 4, key);
    put64(&mut bytes, 8, address);
    bytes
}

/// The address segment of a datagram.
pub(crate) fn datagram(lid: u16, qpn: u32) -> [u8; 48] {
    let mut bytes = [0; 48];
    put32(&mut bytes, 0, QKEY);
    put32(&mut bytes, 8, qpn | 0x8000_0000);
    put16(&mut bytes, 14, lid);
    bytes
}
