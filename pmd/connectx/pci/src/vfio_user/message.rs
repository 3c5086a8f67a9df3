//! Messages taken apart.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DmaMap;
use rustix::io::Errno;

/// Bytes of a header.
pub const HEADER: usize = size_of::<Header>();
/// Most bytes that one message reads or writes.
pub const MAX_TRANSFER: usize = 1 << 16;
/// Most bytes of a message.
pub const MAX_MESSAGE: usize = HEADER + 64 + MAX_TRANSFER;
/// Most descriptors that come with a message; QEMU knows no more.
pub const MAX_FILES: usize = 16;

/// Most pieces of memory that a client hands over.
pub const MAX_DMA_MAPS: usize = 1024;

/// What every message begins with.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The client's number of the message; stands in the answer.
    pub id: U16,
    /// See [`command`].
    pub command: U16,
    /// Bytes of the message with this header.
    pub size: U32,
    /// See [`flag`].
    pub flags: U32,
    /// Number of an error, in answers.
    pub error: U32,
}

/// Commands.
#[expect(missing_docs, reason = "the names say it")]
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
    /// Low four bits: what the message is.
    pub const TYPE: u32 = 0xf;
    /// An answer.
    pub const ANSWER: u32 = 1;
    /// The client wants no answer.
    pub const NO_ANSWER: u32 = 0x10;
    /// The answer is an error.
    pub const ERROR: u32 = 0x20;
}

/// Flags of an interrupt setting.
mod interrupt {
    pub(super) const DATA_NONE: u32 = 0x1;
    pub(super) const DATA_EVENTFD: u32 = 0x4;
    pub(super) const TRIGGER: u32 = 0x20;
}

/// Bit of the flags of memory: the device may write.
const WRITABLE: u32 = 2;
/// Bit of the flags of an unmapping: everything.
const UNMAP_ALL: u32 = 2;

/// A part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Where.
    pub offset: u64,
    /// Region.
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

/// What is set of interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptSetting {
    /// Kind.
    pub index: u32,
    /// First vector.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// What comes with it.
    pub how: How,
}

/// What comes with an interrupt setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Descriptors to signal by.
    Eventfds,
    /// Nothing: raise them, or with a count of 0 let all be.
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
    /// Memory.
    Map(DmaMap),
    /// No memory any more; `None` for nowhere.
    Unmap(Option<(u64, u64)>),
    /// What is the device?
    DeviceInfo,
    /// What is this region?
    RegionInfo(u32),
    /// What are these interrupts?
    InterruptInfo(u32),
    /// Interrupts.
    SetInterrupts(InterruptSetting),
    /// Read.
    Read(Access),
    /// Write.
    Write(Access, &'a [u8]),
    /// Several writes.
    WriteMultiple(&'a [WriteRecord]),
    /// Reset.
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
    /// What is written where.
    #[must_use]
    pub fn parts(&self) -> Option<(Access, &[u8])> {
        let access = Access { offset: self.offset.get(), region: self.region.get(), count: self.count.get() };
        Some((access, self.data.get(..access.count as usize)?))
    }
}

/// A fixed part at the begin of a body.
fn head<T: FromBytes + Unaligned + Immutable + KnownLayout>(body: &[u8]) -> Result<(&T, &[u8]), Errno> {
    T::ref_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// Takes the body of a request apart.
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
