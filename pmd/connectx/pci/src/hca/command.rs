//! The path of a command: from its entry and mailboxes to its handler, and back.

use hca::HcaError;
use prm::command::{
    COMMAND_INLINE, CommandEntry, CommandStatus, Delivery, InputHeader, MAILBOX_DATA, Mailbox, OutputHeader,
    PAGE_LIST,
};
use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::memory::{GuestMemory, PAGE, Unreachable};

/// Largest input in bytes: the page list of 8 GiB.
const MAX_INPUT: usize = (16 << 20) + 0x1000;
/// Largest output in bytes.
const MAX_OUTPUT: usize = 1 << 16;
/// Size of a mailbox in memory.
const MAILBOX: usize = size_of::<Mailbox>();

/// Why a command failed.
#[derive(Debug)]
pub struct Fault {
    /// Status for the driver.
    pub status: CommandStatus,
    /// Reason for the log.
    pub why: String,
}

impl Fault {
    pub(super) fn new(status: CommandStatus, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    pub(super) fn parameter(why: impl Into<String>) -> Self {
        Self::new(CommandStatus::BadParameter, why)
    }

    pub(super) fn resource(what: &str, number: u32) -> Self {
        Self::new(CommandStatus::BadResource, format!("there is no {what} {number:#x}"))
    }

    pub(super) fn exhausted(what: &str) -> Self {
        Self::new(CommandStatus::NoResources, format!("there are no {what} left"))
    }
}

impl From<HcaError> for Fault {
    fn from(error: HcaError) -> Self {
        let status = match error {
            HcaError::NotFound { .. } => CommandStatus::BadResource,
            HcaError::Exhausted(_) => CommandStatus::NoResources,
            HcaError::BadTransition { .. } => CommandStatus::BadQpState,
            HcaError::Environment(_) => CommandStatus::ResourceBusy,
            _ => CommandStatus::BadParameter,
        };
        Self { status, why: error.to_string() }
    }
}

impl From<Unreachable> for Fault {
    fn from(error: Unreachable) -> Self {
        let status = match error {
            Unreachable::NoMemory => CommandStatus::BadParameter,
            Unreachable::TooMany => CommandStatus::NoResources,
        };
        Self { status, why: error.to_string() }
    }
}

/// Input of a command: a copy, which the guest cannot change any more.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
}

impl Input {
    /// The input of a command that destroys an object.
    pub(super) fn about(number: u32) -> Self {
        let header = InputHeader { number: number.into(), ..InputHeader::default() };
        Self { bytes: header.as_bytes().to_vec() }
    }

    /// Its header.
    pub(super) fn header(&self) -> InputHeader {
        InputHeader::read_from_prefix(&self.bytes)
            .map_or_else(|_| InputHeader::default(), |(header, _)| header)
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of the object that the command is about.
    pub(super) fn number(&self) -> u32 {
        self.header().number.get() & 0xff_ffff
    }

    /// The structure at an offset.
    pub(super) fn view<T: FromBytes>(&self, at: usize) -> Result<T, Fault> {
        let bytes = self.bytes.get(at..).and_then(|bytes| T::read_from_prefix(bytes).ok());
        bytes
            .map(|(view, _)| view)
            .ok_or_else(|| Fault::new(CommandStatus::BadInputLength, "the input is too short"))
    }

    /// An error if this bit places the queue in memory registered by a user (UMEM), which the device does not
    /// support.
    pub(super) fn without_umem(&self, (at, bit): (usize, u8)) -> Result<(), Fault> {
        match self.view::<u8>(at)? & bit {
            0 => Ok(()),
            _ => Err(Fault::parameter("queues in user-registered memory (UMEM) are not supported")),
        }
    }

    /// Addresses of the pages of `page` bytes that hold `len` bytes. Their low bits are flags.
    pub(super) fn pages(&self, len: u64, page: u64) -> Result<Vec<u64>, Fault> {
        let list = self.bytes.get(PAGE_LIST..).unwrap_or_default();
        let short = || Fault::new(CommandStatus::BadInputLength, "the page list is too short");
        let count = usize::try_from(len.div_ceil(page)).map_err(|_| short())?;
        let (list, _) = <[U64]>::ref_from_prefix_with_elems(list, count).map_err(|_| short())?;
        Ok(list.iter().map(|address| address.get() & !(PAGE - 1)).collect())
    }
}

/// Output of a command, with the length of the driver's buffer.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
}

impl Output {
    /// Creates an output of this number of bytes.
    pub(super) fn of(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes.max(COMMAND_INLINE)] }
    }

    /// Writes at an offset. An output that does not fit is an error.
    pub(super) fn put(
        &mut self,
        at: usize,
        value: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Result<(), Fault> {
        let bytes = value.as_bytes();
        let place = at.checked_add(bytes.len()).and_then(|end| self.bytes.get_mut(at..end));
        place
            .ok_or_else(|| Fault::new(CommandStatus::BadOutputLength, "the output buffer is too short"))?
            .copy_from_slice(bytes);
        Ok(())
    }

    /// All bytes from an offset on.
    pub(super) fn rest(&mut self, at: usize) -> &mut [u8] {
        self.bytes.get_mut(at..).unwrap_or_default()
    }

    /// Sets the number of the created object.
    pub(super) fn set_number(&mut self, number: u32) -> Result<(), Fault> {
        self.put(std::mem::offset_of!(OutputHeader, number), &number.to_be_bytes())
    }

    /// The number of the created object.
    pub(super) fn number(&self) -> u32 {
        OutputHeader::read_from_prefix(&self.bytes).map_or(0, |(header, _)| header.number.get())
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A command in progress.
#[derive(Debug)]
pub(super) struct Command {
    at: u64,
    entry: CommandEntry,
    pub(super) input: Input,
}

impl Command {
    /// Copies the command whose entry is at an address. `None` if the device does not own the entry.
    pub(super) fn fetch(memory: &GuestMemory, at: u64) -> Result<Option<Self>, NotFetched> {
        let mut entry = CommandEntry::default();
        if !memory.read(at, entry.as_mut_bytes()) {
            return Err(NotFetched::NoMemory);
        }
        if entry.status_own & CommandEntry::OWNED == 0 {
            return Ok(None);
        }
        let broken = |why| NotFetched::Broken(Broken { at, why });
        Self::input(memory, &entry).map(|input| Some(Self { at, entry, input })).map_err(broken)
    }

    fn input(memory: &GuestMemory, entry: &CommandEntry) -> Result<Input, Delivery> {
        let len = entry.input_len.get() as usize;
        if entry.kind != CommandEntry::TYPE {
            return Err(Delivery::CommandType);
        }
        if !(size_of::<u64>()..=MAX_INPUT).contains(&len) {
            return Err(Delivery::InputLength);
        }
        let room = entry.output_len.get() as usize;
        if !(size_of::<u64>()..=MAX_OUTPUT).contains(&room) {
            return Err(Delivery::OutputLength);
        }
        let mut bytes = entry.input.to_vec();
        let mut next = entry.input_mailbox.get();
        let mut block = 0;
        while bytes.len() < len {
            let mut mailbox = Mailbox::new_zeroed();
            if !memory.read(next, mailbox.as_mut_bytes()) {
                return Err(Delivery::InputPointer);
            }
            check(&mailbox, entry.token, block)?;
            bytes.extend_from_slice(&mailbox.data);
            next = mailbox.next.get();
            block += 1;
        }
        bytes.truncate(len.max(COMMAND_INLINE));
        Ok(Input { bytes })
    }

    /// Creates its output.
    pub(super) fn output(&self) -> Output {
        Output::of(self.entry.output_len.get() as usize)
    }

    /// Returns the output and the entry to the driver.
    pub(super) fn deliver(self, memory: &GuestMemory, mut output: Output, status: CommandStatus) {
        if let Some(first) = output.bytes.first_mut() {
            *first = status as u8;
        }
        let delivery = self.put_output(memory, &output).err().unwrap_or(Delivery::Good);
        finish(memory, self.at, delivery);
    }

    fn put_output(&self, memory: &GuestMemory, output: &Output) -> Result<(), Delivery> {
        let (inline, rest) = output.bytes.split_at(COMMAND_INLINE.min(output.bytes.len()));
        if !memory.write(self.at + CommandEntry::OUTPUT as u64, inline) {
            return Err(Delivery::OutputPointer);
        }
        let mut next = self.entry.output_mailbox.get();
        for (block, data) in rest.chunks(MAILBOX_DATA).enumerate() {
            let mut mailbox = Mailbox::new_zeroed();
            if !memory.read(next, mailbox.as_mut_bytes()) {
                return Err(Delivery::OutputPointer);
            }
            check(&mailbox, self.entry.token, block as u32)?;
            if !memory.write(next, data) {
                return Err(Delivery::OutputPointer);
            }
            next = mailbox.next.get();
        }
        Ok(())
    }
}

/// Checks that a mailbox is the expected one.
fn check(mailbox: &Mailbox, token: u8, block: u32) -> Result<(), Delivery> {
    const { assert!(MAILBOX == 576) };
    if mailbox.token != token {
        return Err(Delivery::Token);
    }
    if mailbox.block.get() != block {
        return Err(Delivery::BlockNumber);
    }
    Ok(())
}

/// Why a command could not be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotFetched {
    /// Its entry is not in memory, so no status can be delivered.
    NoMemory,
    /// It is malformed.
    Broken(Broken),
}

/// A malformed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken {
    at: u64,
    pub(super) why: Delivery,
}

impl Broken {
    /// Returns the entry to the driver.
    pub(super) fn deliver(self, memory: &GuestMemory) {
        finish(memory, self.at, self.why);
    }
}

fn finish(memory: &GuestMemory, at: u64, delivery: Delivery) {
    memory.publish(at + CommandEntry::STATUS_OWN as u64, (delivery as u8) << 1);
}
