//! Parsing of messages.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DmaMap;
use rustix::io::Errno;

/// Size of a header in bytes.
pub const HEADER: usize = size_of::<Header>();
/// Most bytes that one message reads or writes.
pub const MAX_TRANSFER: usize = 1 << 16;
/// Largest message in bytes.
pub const MAX_MESSAGE: usize = HEADER + 64 + MAX_TRANSFER;
/// Most descriptors of a message; QEMU supports no more.
pub const MAX_FILES: usize = 16;

/// Most memory regions that a client may map.
pub const MAX_DMA_MAPS: usize = 1024;

/// The header of every message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The client's message ID, which the reply repeats.
    pub id: U16,
    /// See [`command`].
    pub command: U16,
    /// Bytes of the message including this header.
    pub size: U32,
    /// See [`flag`].
    pub flags: U32,
    /// Error number, in replies.
    pub error: U32,
}

/// Commands.
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_INFO: u16 = 4;
    pub const REGION_INFO: u16 = 5;
    pub const INTERRUPT_INFO: u16 = 7;
    pub const SET_INTERRUPTS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
    pub const REGION_WRITE_MULTIPLE: u16 = 15;
}

/// Flags of a header.
pub mod flag {
    /// Low four bits: the type of message.
    pub const TYPE: u32 = 0xf;
    /// A reply.
    pub const ANSWER: u32 = 1;
    /// The client wants no reply.
    pub const NO_ANSWER: u32 = 0x10;
    /// The reply is an error.
    pub const ERROR: u32 = 0x20;
}

/// Flags of an interrupt setting.
mod interrupt {
    pub(super) const DATA_NONE: u32 = 0x1;
    pub(super) const DATA_EVENTFD: u32 = 0x4;
    pub(super) const TRIGGER: u32 = 0x20;
}

/// Flag of a memory mapping: the device may write.
const WRITABLE: u32 = 2;
/// Flag of an unmapping: all memory.
const UNMAP_ALL: u32 = 2;

/// A part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Offset.
    pub offset: u64,
    /// Region.
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

/// A change of interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptSetting {
    /// Interrupt type.
    pub index: u32,
    /// First vector.
    pub first: u32,
    /// Number of vectors.
    pub count: u32,
    /// Data of the change.
    pub how: How,
}

/// Data of a change of interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Eventfds to signal.
    Eventfds,
    /// None: raise the vectors, or with a count of 0 disable all.
    Nothing,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// The client's version.
    Version {
        /// Major.
        major: u16,
        /// Minor.
        minor: u16,
    },
    /// Maps memory.
    Map(DmaMap),
    /// Unmaps a range; `None` for all memory.
    Unmap(Option<(u64, u64)>),
    /// Queries the device.
    DeviceInfo,
    /// Queries a region.
    RegionInfo(u32),
    /// Queries an interrupt type.
    InterruptInfo(u32),
    /// Changes interrupts.
    SetInterrupts(InterruptSetting),
    /// Reads a region.
    Read(Access),
    /// Writes a region.
    Write(Access, &'a [u8]),
    /// Several writes.
    WriteMultiple(&'a [WriteRecord]),
    /// Resets the device.
    Reset,
}

/// One of several writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteRecord {
    offset: U64,
    region: U32,
    count: U32,
    data: [u8; 8],
}

impl WriteRecord {
    /// Target and data of the write.
    #[must_use]
    pub fn parts(&self) -> Option<(Access, &[u8])> {
        let access = Access { offset: self.offset.get(), region: self.region.get(), count: self.count.get() };
        Some((access, self.data.get(..access.count as usize)?))
    }
}

/// Splits a fixed-size structure off the start of a body.
fn head<T: FromBytes + Unaligned + Immutable + KnownLayout>(body: &[u8]) -> Result<(&T, &[u8]), Errno> {
    T::ref_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// Parses the body of a request.
pub fn parse(code: u16, body: &[u8]) -> Result<Request<'_>, Errno> {
    Ok(match code {
        command::VERSION => {
            let ([major, minor], _) = head::<[U16; 2]>(body)?;
            Request::Version { major: major.get(), minor: minor.get() }
        }
        command::DMA_MAP => {
            #[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            struct Map(U32, U32, U64, U64, U64);
            let (Map(_, flags, offset, address, len), _) = head::<Map>(body)?;
            Request::Map(DmaMap {
                offset: offset.get(),
                address: address.get(),
                len: len.get(),
                writable: flags.get() & WRITABLE != 0,
            })
        }
        command::DMA_UNMAP => {
            #[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            struct Unmap(U32, U32, U64, U64);
            let (Unmap(_, flags, address, len), _) = head::<Unmap>(body)?;
            let all = flags.get() & UNMAP_ALL != 0;
            Request::Unmap((!all).then(|| (address.get(), len.get())))
        }
        command::DEVICE_INFO => Request::DeviceInfo,
        command::REGION_INFO => Request::RegionInfo(head::<[U32; 3]>(body)?.0[2].get()),
        command::INTERRUPT_INFO => Request::InterruptInfo(head::<[U32; 3]>(body)?.0[2].get()),
        command::SET_INTERRUPTS => {
            let ([_, flags, index, first, count], _) = head::<[U32; 5]>(body)?;
            let flags = flags.get();
            let how = match flags & !interrupt::TRIGGER {
                interrupt::DATA_EVENTFD => How::Eventfds,
                interrupt::DATA_NONE => How::Nothing,
                _ => return Err(Errno::INVAL),
            };
            if flags & interrupt::TRIGGER == 0 {
                return Err(Errno::INVAL);
            }
            let setting =
                InterruptSetting { index: index.get(), first: first.get(), count: count.get(), how };
            Request::SetInterrupts(setting)
        }
        command::REGION_READ => Request::Read(access(body)?.0),
        command::REGION_WRITE => {
            let (access, data) = access(body)?;
            Request::Write(access, data.get(..access.count as usize).ok_or(Errno::INVAL)?)
        }
        command::REGION_WRITE_MULTIPLE => {
            let (count, records) = head::<U64>(body)?;
            let (records, _) = <[WriteRecord]>::ref_from_prefix_with_elems(
                records,
                usize::try_from(count.get()).map_err(|_| Errno::INVAL)?,
            )
            .map_err(|_| Errno::INVAL)?;
            Request::WriteMultiple(records)
        }
        command::RESET => Request::Reset,
        _ => return Err(Errno::NOSYS),
    })
}

fn access(body: &[u8]) -> Result<(Access, &[u8]), Errno> {
    #[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    struct Head(U64, U32, U32);
    let (Head(offset, region, count), rest) = head::<Head>(body)?;
    let access = Access { offset: offset.get(), region: region.get(), count: count.get() };
    if access.count as usize > MAX_TRANSFER {
        return Err(Errno::INVAL);
    }
    Ok((access, rest))
}
