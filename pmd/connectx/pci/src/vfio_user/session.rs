//! A client's session: processes bytes and descriptors, and produces replies.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::message::{
    self, Access, HEADER, Header, How, InterruptSetting, MAX_DMA_MAPS, MAX_FILES, MAX_MESSAGE, MAX_TRANSFER,
    Request, flag,
};
use super::{BAR0, CONFIGURATION, Device, INTERRUPTS, Interrupts, MSIX, REGIONS};

/// Supported major version; the minor number is the client's.
const MAJOR: u16 = 0;
/// Flags of a region accessed by read and write messages.
const READ_WRITE: u32 = 3;
/// Flags of interrupts signaled by eventfd, with a fixed number of vectors.
const EVENTFD_NORESIZE: u32 = 9;
/// Flags of a PCI device that can be reset.
const RESET_PCI: u32 = 3;

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A message is shorter than its header or too long.
    #[error("the client sent a message of {0} bytes; the limits are {HEADER} and {MAX_MESSAGE}")]
    Size(u32),
    /// Too many descriptors.
    #[error("the client sent more than {MAX_FILES} descriptors with one message")]
    Files,
    /// A client with another version.
    #[error("the client uses version {0}.{1} of vfio-user; the supported version is {MAJOR}")]
    Version(u16, u16),
    /// The first message is not a version request.
    #[error("the client's first message is not a version request")]
    NoVersion,
}

/// One client's session.
#[derive(Debug, Default)]
pub struct Session {
    input: Vec<u8>,
    files: Vec<OwnedFd>,
    output: Vec<u8>,
    greeted: bool,
}

impl Session {
    /// Creates a session before the first message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes missing from the current message. Reading more would mix up the descriptors of two messages.
    pub fn wants(&self) -> Result<usize, Violation> {
        Ok(match self.header()? {
            None => HEADER - self.input.len(),
            Some(header) => header.size.get() as usize - self.input.len(),
        })
    }

    fn header(&self) -> Result<Option<Header>, Violation> {
        let Ok((header, _)) = Header::read_from_prefix(&self.input) else { return Ok(None) };
        let size = header.size.get();
        if (HEADER..=MAX_MESSAGE).contains(&(size as usize)) {
            Ok(Some(header))
        } else {
            Err(Violation::Size(size))
        }
    }

    /// Processes received bytes, at most [`Session::wants`]. A complete message is executed; returns true in
    /// this case.
    pub fn handle(
        &mut self,
        bytes: &[u8],
        files: impl IntoIterator<Item = OwnedFd>,
        device: &mut impl Device,
    ) -> Result<bool, Violation> {
        self.input.extend_from_slice(bytes);
        self.files.extend(files);
        if self.files.len() > MAX_FILES {
            return Err(Violation::Files);
        }
        let Some(header) = self.header()? else { return Ok(false) };
        if self.input.len() < header.size.get() as usize {
            return Ok(false);
        }
        let input = std::mem::take(&mut self.input);
        let files = std::mem::take(&mut self.files);
        self.message(&header, input.get(HEADER..).unwrap_or_default(), files, device)?;
        // Reuse the buffer.
        self.input = input;
        self.input.clear();
        Ok(true)
    }

    /// Bytes to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Removes bytes that were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.output.drain(..bytes.min(self.output.len()));
    }

    fn message(
        &mut self,
        header: &Header,
        body: &[u8],
        files: Vec<OwnedFd>,
        device: &mut impl Device,
    ) -> Result<(), Violation> {
        // A reply is invalid, because the server sends no requests.
        if header.flags.get() & flag::TYPE == flag::ANSWER {
            return Ok(());
        }
        let request = message::parse(header.command.get(), body);
        match request {
            Ok(Request::Version { major, minor }) if major != MAJOR => {
                return Err(Violation::Version(major, minor));
            }
            Ok(Request::Version { .. }) => self.greeted = true,
            _ if !self.greeted => return Err(Violation::NoVersion),
            _ => {}
        }
        let result = request.and_then(|request| carry_out(&request, body, files, device));
        if header.flags.get() & flag::NO_ANSWER != 0 {
            return Ok(());
        }
        let (answer, error) = match result {
            Ok(answer) => (answer, 0),
            Err(error) => (Vec::new(), error.raw_os_error() as u32),
        };
        let mut head = *header;
        head.size.set((HEADER + answer.len()) as u32);
        head.flags.set(if error == 0 { flag::ANSWER } else { flag::ANSWER | flag::ERROR });
        head.error.set(error);
        self.output.extend_from_slice(head.as_bytes());
        self.output.extend_from_slice(&answer);
        Ok(())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Executes a request and returns the body of the reply.
fn carry_out(
    request: &Request<'_>,
    body: &[u8],
    files: Vec<OwnedFd>,
    device: &mut impl Device,
) -> Result<Vec<u8>, Errno> {
    let echo = |len: usize| body.get(..len).map(<[u8]>::to_vec).ok_or(Errno::INVAL);
    match *request {
        Request::Version { minor, .. } => {
            let capabilities = serde_json::json!({ "capabilities": {
                "max_msg_fds": MAX_FILES,
                "max_data_xfer_size": MAX_TRANSFER,
                "max_dma_maps": MAX_DMA_MAPS,
                "pgsizes": 4096,
                "write_multiple": true,
            }});
            let mut answer = [MAJOR.to_le_bytes(), minor.to_le_bytes()].concat();
            answer.extend_from_slice(capabilities.to_string().as_bytes());
            answer.push(0);
            Ok(answer)
        }
        Request::Map(map) => device.map(&map, files.into_iter().next()).map(|()| Vec::new()),
        Request::Unmap(range) => device.unmap(range).and_then(|()| echo(24)),
        Request::DeviceInfo => Ok(words(&[16, RESET_PCI, REGIONS, INTERRUPTS])),
        Request::RegionInfo(index) => {
            if index >= REGIONS {
                return Err(Errno::INVAL);
            }
            let len = device.region_len(index);
            let flags = if len > 0 { READ_WRITE } else { 0 };
            let mut answer = words(&[32, flags, index, 0]);
            answer.extend_from_slice(&len.to_le_bytes());
            answer.extend_from_slice(&0u64.to_le_bytes());
            Ok(answer)
        }
        Request::InterruptInfo(index) => {
            if index >= INTERRUPTS {
                return Err(Errno::INVAL);
            }
            let vectors = device.vectors(index);
            Ok(words(&[16, if vectors > 0 { EVENTFD_NORESIZE } else { 0 }, index, vectors]))
        }
        Request::SetInterrupts(setting) => {
            set_interrupts(&setting, files, device)?;
            Ok(Vec::new())
        }
        Request::Read(access) => {
            within(&access, device)?;
            let mut answer = echo(16)?;
            answer.resize(16 + access.count as usize, 0);
            if let Some(out) = answer.get_mut(16..) {
                device.read(access.region, access.offset, out);
            }
            Ok(answer)
        }
        Request::Write(access, data) => {
            within(&access, device)?;
            device.write(access.region, access.offset, data);
            echo(16)
        }
        Request::WriteMultiple(records) => {
            for record in records {
                let (access, data) = record.parts().ok_or(Errno::INVAL)?;
                within(&access, device)?;
                device.write(access.region, access.offset, data);
            }
            echo(8)
        }
        Request::Reset => {
            device.reset();
            Ok(Vec::new())
        }
    }
}

/// Checks that an access lies within an existing region.
fn within(access: &Access, device: &impl Device) -> Result<(), Errno> {
    let end = access.offset.checked_add(access.count.into()).ok_or(Errno::INVAL)?;
    let known = matches!(access.region, BAR0 | CONFIGURATION);
    if known && end <= device.region_len(access.region) { Ok(()) } else { Err(Errno::INVAL) }
}

fn set_interrupts(
    setting: &InterruptSetting,
    files: Vec<OwnedFd>,
    device: &mut impl Device,
) -> Result<(), Errno> {
    let &InterruptSetting { index, first, count, how } = setting;
    let all = device.vectors(index);
    let end = first.checked_add(count).ok_or(Errno::INVAL)?;
    if end > all {
        return Err(Errno::INVAL);
    }
    if index != MSIX {
        // An empty change has no effect.
        return Ok(());
    }
    device.set_interrupts(match how {
        How::Nothing if count == 0 => Interrupts::Off,
        How::Nothing => Interrupts::Raise { first, count },
        How::Eventfds => {
            let mut files = files.into_iter();
            Interrupts::Signal { first, eventfds: (0..count).map(|_| files.next()).collect() }
        }
    })
}
