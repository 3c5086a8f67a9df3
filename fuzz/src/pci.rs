//! A guest of the software ConnectX: commands, contexts, page lists, registers, configuration space, and
//! memory that changes while the device reads it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use connectx::cable::CableEnd;
use ib_wire::{Guid, Lid, Mtu};
use softhca::hca::{Hca, HcaConfig, HcaPort, TableSizes};
use softhca::vfio_user::{BAR0, CONFIGURATION, Device, DmaMap};

/// Bytes of the guest's memory; a part of it appears and disappears.
const MEMORY: u64 = 4 << 20;
const FIXED: u64 = 3 << 20;
const QUEUE: u64 = 0x1000;
const INPUT: u64 = 0x2000;
const OUTPUT: u64 = 0x1_0000;
const TOKEN: u8 = 0x5a;
/// Maximum of output bytes.
const ROOM: u32 = 0x1010;
/// Maximum of input bytes in valid mailboxes.
const MAX_INPUT: usize = 0x2000;

pub(crate) struct Guest {
    hca: Hca,
    memory: File,
    now: Instant,
}

impl Guest {
    pub(crate) fn new() -> Option<Self> {
        let memory = File::from(memfd()?);
        memory.set_len(MEMORY).ok()?;
        let mut hca = Hca::new(HcaConfig {
            node_guid: Guid(1),
            port: HcaPort { guid: Guid(2), cable: None },
            description: String::new(),
            second_port: Some(HcaPort { guid: Guid(3), cable: None }),
            grh_required: false,
            seed: 1,
            tables: TableSizes::default(),
        })
        .ok()?;
        map(&mut hca, &memory, 0, FIXED);
        let mut guest = Self { hca, memory, now: Instant::now() };
        guest.power();
        Some(guest)
    }

    /// Sets up bus mastering, a command queue and active ports.
    fn power(&mut self) {
        self.hca.write(CONFIGURATION, 4, &[6, 0]);
        self.hca.write(BAR0, 0x14, &(QUEUE as u32).to_be_bytes());
        for port in [1, 2] {
            let _ =
                self.hca.engine_mut().activate(hca::PortNumber(port), Lid(6 + u16::from(port)), Mtu::B4096);
        }
    }

    pub(crate) fn put(&self, address: u64, bytes: &[u8]) {
        let end = (MEMORY - address.min(MEMORY)) as usize;
        let _ = self.memory.write_all_at(bytes.get(..bytes.len().min(end)).unwrap_or_default(), address);
    }

    /// Mailboxes for `len` bytes after those in the entry.
    fn chain(&self, at: u64, data: &[u8], len: usize) {
        for block in 0..len.saturating_sub(16).div_ceil(512) as u64 {
            let mut mailbox = [0; 576];
            let piece = data.chunks(512).nth(block as usize).unwrap_or_default();
            mailbox[..piece.len()].copy_from_slice(piece);
            mailbox[0x230..0x238].copy_from_slice(&(at + (block + 1) * 1024).to_be_bytes());
            mailbox[0x238..0x23c].copy_from_slice(&(block as u32).to_be_bytes());
            mailbox[0x23d] = TOKEN;
            self.put(at + block * 1024, &mailbox);
        }
    }

    fn command(&mut self, input: &[u8]) {
        let input = &input[..input.len().min(MAX_INPUT)];
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&INPUT.to_be_bytes());
        let inline = input.len().min(16);
        entry[0x10..0x10 + inline].copy_from_slice(&input[..inline]);
        entry[0x30..0x38].copy_from_slice(&OUTPUT.to_be_bytes());
        entry[0x38..0x3c].copy_from_slice(&ROOM.to_be_bytes());
        entry[0x3c] = TOKEN;
        entry[0x3f] = 1;
        self.chain(INPUT, input.get(16..).unwrap_or_default(), input.len());
        self.chain(OUTPUT, &[], ROOM as usize);
        self.put(QUEUE, &entry);
        let before = self.hca.counters().commands;
        self.hca.write(BAR0, 0x18, &1u32.to_be_bytes());
        // If the queue has not moved, the driver owns the entry again.
        if self.hca.counters().commands > before {
            let mut queue = [0; 8];
            self.hca.read(BAR0, 0x10, &mut queue);
            let mut own = [1];
            if u64::from_be_bytes(queue) & !0xfff == QUEUE
                && self.memory.read_exact_at(&mut own, QUEUE + 0x3f).is_ok()
            {
                assert_eq!(own[0] & 1, 0, "the device keeps an entry");
            }
        }
    }

    /// Executes a command that must succeed; returns its number.
    pub(crate) fn ask(&mut self, input: &[u8]) -> Option<u32> {
        self.command(input);
        let output = self.get(QUEUE + 0x20, 16);
        (output.first() == Some(&0)).then_some(())?;
        Some(u32::from_be_bytes(*output.get(8..)?.first_chunk()?))
    }

    pub(crate) fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let _ = self.memory.read_exact_at(&mut bytes, address);
        bytes
    }

    /// Connects a cable to the first port, which becomes active.
    pub(crate) fn plug(&mut self, cable: CableEnd) -> Option<()> {
        let engine = self.hca.engine_mut();
        engine.set_cable(hca::PortNumber(1), Some(cable)).ok()?;
        engine.activate(hca::PortNumber(1), Lid(7), Mtu::B4096).ok()
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.turns();
    }

    /// Writes to a register of the device.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.hca.write(BAR0, offset, bytes);
    }

    /// Lets started work finish.
    pub(crate) fn turns(&mut self) {
        for _ in 0..16 {
            if !self.hca.turn(self.now) {
                break;
            }
        }
    }

    fn record(&mut self, kind: u8, data: &[u8]) {
        match (kind % 8, data) {
            (0, input) => self.command(input),
            (1, [a, b, c, d, rest @ ..]) => {
                let offset = u64::from(u32::from_le_bytes([*a, *b, *c, *d])) % self.hca.region_len(BAR0);
                self.hca.write(BAR0, offset, &rest[..rest.len().min(8)]);
            }
            (2, [at, rest @ ..]) => self.hca.write(CONFIGURATION, (*at).into(), rest),
            (3, [a, b, c, rest @ ..]) => self.put(u32::from_le_bytes([*a, *b, *c, 0]).into(), rest),
            (4, entry) => {
                self.put(QUEUE + 64, entry);
                self.hca.write(BAR0, 0x18, &2u32.to_be_bytes());
            }
            (5, [wait, ..]) => self.now += Duration::from_millis((*wait).into()),
            (6, [0, ..]) => {
                let _ = self.hca.unmap(Some((FIXED, MEMORY - FIXED)));
            }
            (6, _) => map(&mut self.hca, &self.memory, FIXED, MEMORY - FIXED),
            (7, [0, ..]) => {
                self.hca.reset();
                self.power();
            }
            _ => {
                let mut out = [0; 64];
                self.hca.read(BAR0, 0, &mut out);
                self.hca.read(CONFIGURATION, 0, &mut out);
            }
        }
        self.turns();
    }
}

fn memfd() -> Option<OwnedFd> {
    rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).ok()
}

fn map(hca: &mut Hca, memory: &File, address: u64, len: u64) {
    if let Ok(file) = memory.try_clone() {
        let _ = hca.map(&DmaMap { offset: address, address, len, writable: true }, Some(file.into()));
    }
}

/// One input: records, each after its kind and its length (two bytes).
pub fn run(bytes: &[u8]) {
    let Some(mut guest) = Guest::new() else { return };
    let mut rest = bytes;
    while let Some((&[kind, low, high], more)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([low, high])).min(more.len());
        let (data, more) = more.split_at(len);
        rest = more;
        guest.record(kind, data);
    }
    // In any case, a driver can initialise the device again.
    guest.hca.reset();
    guest.power();
    let before = guest.hca.counters();
    guest.command(&[&0x104u16.to_be_bytes()[..], &[0; 14]].concat());
    let after = guest.hca.counters();
    assert_eq!((after.commands, after.refused), (before.commands + 1, before.refused));
}
