//! BAR 0: the initialization segment, and decoding of writes to the region.

use std::time::Duration;

use prm::bar::{HealthSyndrome, UAR_PAGE, segment, uar};
use prm::command::CommandEntry;

/// Firmware version that the device reports.
const FIRMWARE: [u16; 3] = [16, 35, 4030];
/// Low byte of the word with the command queue's address: 32 entries of 64 bytes.
const QUEUE_GEOMETRY: u8 = 5 << 4 | 6;
/// Entries of the command queue.
pub const COMMANDS: u32 = 32;
/// First doorbell page that can be allocated.
pub const FIRST_UAR: u32 = 0x10;
/// Number of doorbell pages, including those that cannot be allocated.
pub const UARS: u32 = (crate::pci::BAR / UAR_PAGE as u64) as u32;

/// An error condition of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Illness {
    /// Its syndrome.
    pub syndrome: HealthSyndrome,
    /// Detail: the event queue's number.
    pub detail: u16,
}

/// Severity "error" of the kernel's log levels, marked as valid.
const SEVERITY: u8 = 1 << 3 | 3;

impl Illness {
    /// The end of the health buffer: severity, three reserved bytes, one of the processor, syndrome, detail.
    fn health_buffer(illness: Option<Self>) -> [u8; 8] {
        let Some(Self { syndrome, detail }) = illness else { return [0; 8] };
        let [high, low] = detail.to_be_bytes();
        [SEVERITY, 0, 0, 0, 0, syndrome as u8, high, low]
    }
}

/// Meaning of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None.
    None,
    /// The driver has written the address of the command queue and initializes the device.
    Queue,
    /// Doorbell of these entries of the command queue.
    Commands(u32),
    /// Arms a completion queue.
    ArmCq {
        /// Doorbell page.
        page: u32,
        /// Queue number.
        number: u32,
        /// Consumer index, 24 bits.
        consumer: u32,
        /// For solicited completions only.
        solicited: bool,
    },
    /// Sets an event queue's consumer index.
    Eq {
        /// Doorbell page.
        page: u32,
        /// Queue number.
        number: u32,
        /// Consumer index, 24 bits.
        consumer: u32,
        /// The queue is armed.
        arm: bool,
    },
    /// A send queue's doorbell.
    Send {
        /// Doorbell page.
        page: u32,
        /// The queue pair.
        qpn: u32,
    },
}

/// The registers.
#[derive(Debug)]
pub struct Registers {
    queue: [u8; 8],
    /// First half of a doorbell written as two words.
    half: Option<(u64, [u8; 4])>,
}

impl Default for Registers {
    fn default() -> Self {
        Self::new()
    }
}

/// The four bytes at an offset.
fn word(at: usize, bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Registers {
    /// The registers after power-on.
    #[must_use]
    pub const fn new() -> Self {
        Self { queue: [0, 0, 0, 0, 0, 0, 0, QUEUE_GEOMETRY], half: None }
    }

    /// Address of the command queue, if the driver has written it.
    #[must_use]
    pub fn queue(&self) -> Option<u64> {
        let address = u64::from_be_bytes(self.queue) & !0xfff;
        (address != 0).then_some(address)
    }

    /// Address of an entry of the command queue.
    #[must_use]
    pub fn entry(&self, index: u32) -> Option<u64> {
        self.queue()?.checked_add(u64::from(index) * size_of::<CommandEntry>() as u64)
    }

    /// Reads registers. `age` is the value of the device's clock and of its health counter.
    pub fn read(&self, offset: u64, out: &mut [u8], age: Duration, illness: Option<Illness>) {
        out.fill(0);
        let counter = (age.as_millis() as u32 & 0xff_ffff).to_be_bytes();
        let ticks = connectx::ticks(age).to_be_bytes();
        let [major, minor, third] = FIRMWARE.map(u16::to_be_bytes);
        let health = Illness::health_buffer(illness);
        let known: [(usize, &[u8]); 9] = [
            (segment::FIRMWARE, &minor),
            (segment::FIRMWARE + 2, &major),
            (segment::INTERFACE, &segment::INTERFACE_REVISION.to_be_bytes()),
            (segment::INTERFACE + 2, &third),
            (segment::QUEUE_HIGH, &self.queue),
            (segment::HEALTH + segment::HEALTH_SEVERITY, &health),
            (segment::TIMER, &ticks),
            (segment::HEALTH_COUNTER, &counter),
            (segment::LEN, &[]),
        ];
        for (at, bytes) in known {
            for (n, byte) in bytes.iter().enumerate() {
                let place = ((at + n) as u64).checked_sub(offset).and_then(|n| usize::try_from(n).ok());
                if let Some(to) = place.and_then(|place| out.get_mut(place)) {
                    *to = *byte;
                }
            }
        }
    }

    /// Handles a write and returns its meaning.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let Ok(at) = usize::try_from(offset) else { return Effect::None };
        let page = (at / UAR_PAGE) as u32;
        if (FIRST_UAR..UARS).contains(&page) {
            return self.doorbell(page, at % UAR_PAGE, offset, data);
        }
        match at {
            segment::QUEUE_HIGH | segment::QUEUE_LOW => {
                let from = at - segment::QUEUE_HIGH;
                for (to, byte) in self.queue.iter_mut().skip(from).zip(data) {
                    *to = *byte;
                }
                // The device defines the queue's geometry, and the interface has one state.
                self.queue[6] &= 0xf0;
                self.queue[7] = QUEUE_GEOMETRY;
                // The lower word, which contains the interface's state, is written last.
                if from + data.len() > size_of::<u32>() { Effect::Queue } else { Effect::None }
            }
            segment::DOORBELL => word(0, data).map_or(Effect::None, Effect::Commands),
            _ => Effect::None,
        }
    }

    fn doorbell(&mut self, page: u32, place: usize, offset: u64, data: &[u8]) -> Effect {
        // A 32-bit host writes two words.
        let joined;
        let before = self.half.take();
        let (place, data) = match (before, <[u8; 4]>::try_from(data)) {
            (_, Err(_)) => (place, data),
            (Some((at, first)), Ok(second)) if at + 4 == offset && place % 8 == 4 => {
                joined = [first, second].concat();
                (place - 4, &joined[..])
            }
            (_, Ok(_)) if matches!(place, uar::EQ_ARM | uar::EQ_UPDATE) => (place, data),
            (_, Ok(first)) => {
                self.half = Some((offset, first));
                return Effect::None;
            }
        };
        let Some(first) = word(0, data) else { return Effect::None };
        match (place, word(4, data)) {
            (uar::CQ_ARM, Some(second)) => Effect::ArmCq {
                page,
                number: second & 0xff_ffff,
                consumer: first & 0xff_ffff,
                solicited: first & prm::ARM_SOLICITED != 0,
            },
            (uar::EQ_ARM | uar::EQ_UPDATE, _) => Effect::Eq {
                page,
                number: first >> 24,
                consumer: first & 0xff_ffff,
                arm: place == uar::EQ_ARM,
            },
            (uar::SEND.., Some(second)) => Effect::Send { page, qpn: second >> 8 },
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(registers: &Registers, at: u64, milliseconds: u64) -> u32 {
        let mut out = [0xee; 4];
        registers.read(at, &mut out, Duration::from_millis(milliseconds), None);
        u32::from_be_bytes(out)
    }

    #[test]
    fn the_initialization_segment_has_the_fields_that_drivers_read() {
        let mut r = Registers::new();
        assert_eq!(read(&r, 0, 0), 35 << 16 | 16);
        assert_eq!(read(&r, 4, 0), 5 << 16 | 4030);
        assert_eq!(read(&r, 0x14, 0) & 0xff, 0x56);
        assert_eq!(read(&r, 0x1fc, 0) >> 31, 0);
        assert_eq!(r.queue(), None);
        assert_eq!(r.write(0x10, &0x12u32.to_be_bytes()), Effect::None);
        assert_eq!(r.write(0x14, &0x3456_7300u32.to_be_bytes()), Effect::Queue);
        assert_eq!(r.queue(), Some(0x12_3456_7000));
        assert_eq!(r.entry(31), Some(0x12_3456_77c0));
        // A reloaded driver finds the geometry.
        assert_eq!(read(&r, 0x14, 0), 0x3456_7056);
        assert_eq!(r.write(0x18, &[0x80, 0, 0, 1]), Effect::Commands(0x8000_0001));
    }

    #[test]
    fn the_health_counter_advances() {
        let r = Registers::new();
        assert_ne!(read(&r, 0x1010, 1000), read(&r, 0x1010, 3000));
        assert_eq!(read(&r, 0x1010, 0x0100_0007), 7);
        // One tick is a nanosecond.
        assert_eq!([0x1000, 0x1004].map(|at| read(&r, at, 5_000)), [1, 705_032_704]);
        // A read across the end of a register.
        assert_eq!(read(&r, 0x1012, 0x1_0203), 0x0203_0000);
        for at in [0x200, 0x23c, 0x2000, 0x4000, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(read(&r, at, 5), 0, "{at:#x}");
        }
    }

    #[test]
    fn an_illness_is_in_the_health_buffer() {
        let illness = Illness { syndrome: HealthSyndrome::AsyncEqOverrun, detail: 0x102 };
        let mut out = [0xee; 0x40];
        Registers::new().read(0x200, &mut out, Duration::ZERO, Some(illness));
        assert_eq!(out[0x38..], [0x0b, 0, 0, 0, 0, 0x0c, 1, 2]);
        assert_eq!(out[..0x38], [0; 0x38]);
    }

    #[test]
    fn doorbells() {
        let mut r = Registers::new();
        let at = 0x12 * 4096;
        let arm = [0x31, 0, 0, 7, 0, 0, 4, 0];
        let armed = Effect::ArmCq { page: 0x12, number: 0x400, consumer: 7, solicited: true };
        assert_eq!(r.write(at + 0x20, &arm), armed);
        // As two words.
        assert_eq!(r.write(at + 0x20, &arm[..4]), Effect::None);
        assert_eq!(r.write(at + 0x24, &arm[4..]), armed);
        // Two words that are not halves of a doorbell, on both sides of a page boundary.
        assert_eq!(r.write(at - 2, &arm[..4]), Effect::None);
        assert_eq!(r.write(at + 2, &arm[4..]), Effect::None);
        // Only the second of two words.
        assert_eq!(r.write(at + 0x24, &arm[4..]), Effect::None);
        let eq = Effect::Eq { page: 0x12, number: 3, consumer: 0x010203, arm: true };
        assert_eq!(r.write(at + 0x40, &[3, 1, 2, 3]), eq);
        assert!(matches!(r.write(at + 0x48, &[3, 1, 2, 3]), Effect::Eq { arm: false, .. }));
        let send = Effect::Send { page: 0x12, qpn: 0x80_0001 };
        assert_eq!(r.write(at + 0xa00, &[0, 0, 1, 10, 0x80, 0, 1, 3]), send);
        assert_eq!(r.write(at + 0x800, &[0, 0, 1, 10, 0x80, 0, 1, 3]), send);
        for (at, data) in
            [(at + 0x60, &arm[..]), (at + 0x800, &[1, 2, 3]), (at + 0x20, &[]), (5 * 4096 + 0x20, &arm)]
        {
            assert_eq!(r.write(at, data), Effect::None);
        }
        assert_eq!(r.write(u64::MAX, &arm), Effect::None);
    }
}
