//! The PCI configuration space (little endian), modeled on that of a ConnectX-5.

/// Size in bytes.
pub const LEN: usize = 256;
/// Size of BAR 0 in bytes.
pub const BAR: u64 = 32 << 20;
/// Interrupt vectors.
pub const VECTORS: u16 = 16;
/// Offset of the MSI-X table in BAR 0.
pub const MSIX_TABLE: u32 = 0x2000;
/// Offset of the pending bits in BAR 0.
pub const MSIX_PENDING: u32 = 0x3000;

const VENDOR: u16 = 0x15b3;
const DEVICE: u16 = 0x1017;
const SUBSYSTEM: u16 = 0x0008;
/// InfiniBand controller.
const CLASS: [u8; 3] = [0x00, 0x07, 0x02];
const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const EXPRESS: usize = 0x60;
/// Upper byte of device control, whose bit 7 resets the function.
const RESET: usize = EXPRESS + 0x09;
const MSIX: usize = 0x9c;
/// The vendor-specific capability, through which drivers access address spaces of the device. The device has
/// none and reports every selected space as unsupported, but it implements the semaphore.
const OWN: usize = 0xc0;
const OWN_LEN: usize = 0x18;
/// Selected space, 16 bits, and above them its status: not supported.
const OWN_SPACE: usize = OWN + 0x04;
/// A counter with a new value for each read.
const OWN_COUNTER: usize = OWN + 0x08;
/// The owner of the semaphore: the first number written to it; 0 releases it.
const OWN_SEMAPHORE: usize = OWN + 0x0c;
/// Bit 2 of the command register.
const BUS_MASTER: u8 = 0x04;

/// The configuration space.
#[derive(Debug)]
pub struct ConfigurationSpace {
    bytes: [u8; LEN],
    /// Bits that the guest may change.
    writable: [u8; LEN],
}

impl Default for ConfigurationSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl ConfigurationSpace {
    /// The state after power-on.
    #[must_use]
    pub fn new() -> Self {
        let mut space = Self { bytes: [0; LEN], writable: [0; LEN] };
        let fixed: [(usize, &[u8]); 12] = [
            (0x00, &VENDOR.to_le_bytes()),
            (0x02, &DEVICE.to_le_bytes()),
            // Capability list present.
            (0x06, &[0x10, 0x00]),
            (0x09, &CLASS),
            // 64 bits, prefetchable.
            (BAR0, &[0x0c]),
            (0x2c, &VENDOR.to_le_bytes()),
            (0x2e, &SUBSYSTEM.to_le_bytes()),
            (0x34, &[EXPRESS as u8]),
            // Version 2, endpoint; with a payload of up to 512 bytes, and function-level reset; then 8 GT/s
            // by 16 lanes.
            (EXPRESS, &[0x10, MSIX as u8, 0x02, 0x00, 0x02, 0x80, 0x00, 0x10]),
            (MSIX, &[0x11, OWN as u8]),
            (OWN, &[0x09, 0x00, OWN_LEN as u8, 0x00]),
            (OWN_COUNTER, &1u32.to_le_bytes()),
        ];
        for (at, bytes) in fixed {
            space.put(at, bytes);
        }
        space.put(EXPRESS + 0x0c, &0x0103u32.to_le_bytes());
        space.put(EXPRESS + 0x12, &0x0103u16.to_le_bytes());
        space.put(MSIX + 2, &(VECTORS - 1).to_le_bytes());
        space.put(MSIX + 4, &MSIX_TABLE.to_le_bytes());
        space.put(MSIX + 8, &MSIX_PENDING.to_le_bytes());
        let changeable: [(usize, &[u8]); 8] = [
            // Memory, bus master, parity, SERR, interrupts off.
            (COMMAND, &[0x46, 0x05]),
            (0x0c, &[0xff, 0xff]),
            (BAR0, &(!(BAR - 1)).to_le_bytes()),
            (0x3c, &[0xff]),
            // Device control without its reset bit, link control.
            (EXPRESS + 0x08, &[0xff, 0x7f]),
            (EXPRESS + 0x10, &[0xff, 0x0f]),
            // Enable, and mask all.
            (MSIX + 3, &[0xc0]),
            (OWN_SPACE, &[0xff, 0xff]),
        ];
        for (at, bits) in changeable {
            for (to, from) in space.writable.iter_mut().skip(at).zip(bits) {
                *to = *from;
            }
        }
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }

    fn word(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Reads; bytes behind the end are zero.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) {
        let at = usize::try_from(offset).unwrap_or(LEN);
        out.fill(0);
        for (to, from) in out.iter_mut().zip(self.bytes.iter().skip(at)) {
            *to = *from;
        }
        if at <= OWN_COUNTER && at.saturating_add(out.len()) > OWN_COUNTER {
            // 0 means no owner.
            let next = self.word(OWN_COUNTER).wrapping_add(1).max(1);
            self.put(OWN_COUNTER, &next.to_le_bytes());
        }
    }

    /// Writes the writable bits. Returns true if the guest requests a function-level reset.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let at = usize::try_from(offset).unwrap_or(LEN);
        let reset = RESET.checked_sub(at).and_then(|n| data.get(n)).is_some_and(|byte| byte & 0x80 != 0);
        if at == OWN_SEMAPHORE
            && let Ok(owner) = <[u8; 4]>::try_from(data)
            && (self.word(OWN_SEMAPHORE) == 0 || owner == [0; 4])
        {
            self.put(OWN_SEMAPHORE, &owner);
        }
        let places = self.bytes.iter_mut().zip(&self.writable).skip(at);
        for ((to, mask), from) in places.zip(data) {
            *to = *to & !mask | from & mask;
        }
        reset
    }

    /// True if the device may use the guest's memory.
    #[must_use]
    pub fn is_master(&self) -> bool {
        self.bytes.get(COMMAND).is_some_and(|command| command & BUS_MASTER != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<const N: usize>(space: &mut ConfigurationSpace, at: u64) -> [u8; N] {
        let mut out = [0; N];
        space.read(at, &mut out);
        out
    }

    #[test]
    fn capabilities_are_a_list_with_an_end() {
        let mut space = ConfigurationSpace::new();
        assert_eq!(read(&mut space, 0), [0xb3, 0x15, 0x17, 0x10]);
        let mut at = read::<1>(&mut space, 0x34)[0];
        let mut kinds = Vec::new();
        while at != 0 {
            let [kind, next] = read(&mut space, at.into());
            kinds.push(kind);
            at = next;
        }
        assert_eq!(kinds, [0x10, 0x11, 0x09]);
    }

    #[test]
    fn the_size_of_the_region_is_in_the_bits_that_stay() {
        let mut space = ConfigurationSpace::new();
        space.write(0x10, &[0xff; 8]);
        assert_eq!(u64::from_le_bytes(read(&mut space, 0x10)), !(BAR - 1) | 0xc);
        space.write(0x10, &0x1_2600_0000u64.to_le_bytes());
        assert_eq!(u64::from_le_bytes(read(&mut space, 0x10)), 0x1_2600_000c);
    }

    #[test]
    fn the_identity_of_a_device_does_not_change() {
        let (mut space, mut new) = (ConfigurationSpace::new(), ConfigurationSpace::new());
        for at in 0..LEN as u64 + 8 {
            space.write(at, &[0xff; 5]);
        }
        for at in [
            0, 1, 2, 3, 6, 8, 9, 10, 11, 14, 0x2c, 0x2d, 0x2e, 0x34, 0x60, 0x61, 0x9c, 0x9d, 0x9e, 0xa0,
            0xa4, 0xc0, 0xc1, 0xc2, 0xc3, 0xc7, 0xd0, 0xd4,
        ] {
            assert_eq!(read::<1>(&mut space, at), read::<1>(&mut new, at), "byte {at:#x}");
        }
        assert!(space.is_master() && !new.is_master());
        // Reads behind the end return zero.
        assert_eq!(read(&mut space, LEN as u64 - 1), [0, 0]);
        assert_eq!(read(&mut space, u64::MAX), [0, 0]);
        assert!(!space.write(u64::MAX, &[1, 2]));
    }

    #[test]
    fn a_function_is_reset_by_its_device_control() {
        let mut space = ConfigurationSpace::new();
        assert!(
            space.write(0x68, &[0, 0x80]) && space.write(0x69, &[0x80]) && space.write(0x60, &[0x80; 12])
        );
        assert!(!space.write(0x68, &[0x80, 0x7f]) && !space.write(0x6a, &[0x80]));
        assert_eq!(read::<1>(&mut space, 0x69)[0] & 0x80, 0, "and the bit reads as zero");
    }

    #[test]
    fn the_semaphore_of_the_vendors_capability_belongs_to_the_first_owner() {
        let mut space = ConfigurationSpace::new();
        let word = |space: &mut ConfigurationSpace, at| u32::from_le_bytes(read(space, at));
        // Each reader gets another number.
        let (first, second) = (word(&mut space, 0xc8), word(&mut space, 0xc8));
        assert!(first != second && first != 0 && second != 0);
        assert_eq!(word(&mut space, 0xcc), 0);
        for (owner, has) in [(first, first), (second, first), (0, 0), (second, second)] {
            space.write(0xcc, &owner.to_le_bytes());
            assert_eq!(word(&mut space, 0xcc), has);
        }
        // No space is supported.
        for kind in [2u32, 7, 0xa] {
            space.write(0xc4, &(0xe000_0000 | kind).to_le_bytes());
            assert_eq!(word(&mut space, 0xc4), kind);
        }
    }
}
