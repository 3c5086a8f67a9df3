//! Exchange of addresses between the two ends: over TCP, in the format of the `ibv_*_pingpong` programs. Each
//! queue pair is one message `LID:QPN:PSN:GID` in hexadecimal digits with a terminating zero. The client
//! sends first, and finishes with `done`.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use ib_wire::{Gid, Lid, Psn, Qpn};

/// Bytes of a message.
const MESSAGE_LEN: usize = 52;
/// Timeout for a message of the other end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Address of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) lid: Lid,
    pub(crate) qpn: Qpn,
    /// First PSN that it sends.
    pub(crate) psn: Psn,
    pub(crate) gid: Gid,
}

impl Address {
    /// The value for an unused queue pair.
    pub(crate) const NONE: Self = Self { lid: Lid(0), qpn: Qpn::SMI, psn: Psn::new(0), gid: Gid::ZERO };

    fn to_message(self) -> [u8; MESSAGE_LEN] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", self.lid.0, self.qpn.get(), self.psn.get());
        let mut message = [0; MESSAGE_LEN];
        message.iter_mut().zip(text.as_bytes()).for_each(|(to, from)| *to = *from);
        message
    }

    fn parse(message: &[u8; MESSAGE_LEN]) -> Option<Self> {
        let text = std::str::from_utf8(message.strip_suffix(&[0])?).ok()?;
        let mut fields = text.split(':');
        let mut number = |digits: usize| {
            let field = fields.next()?;
            let good = field.len() == digits && field.bytes().all(|b| b.is_ascii_hexdigit());
            good.then(|| u128::from_str_radix(field, 16).ok()).flatten()
        };
        let (lid, qpn, psn, gid) = (number(4)?, number(6)?, number(6)?, number(32)?);
        if fields.next().is_some() {
            return None;
        }
        Some(Self {
            lid: Lid(lid as u16),
            qpn: Qpn::new(qpn as u32),
            psn: Psn::new(psn as u32),
            gid: Gid(gid.to_be_bytes()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {}, QPN {}, PSN {}, GID {}", self.lid, self.qpn, self.psn, self.gid)
    }
}

fn send(stream: &mut TcpStream, ours: &[Address]) -> io::Result<()> {
    let messages: Vec<u8> = ours.iter().flat_map(|address| address.to_message()).collect();
    stream.write_all(&messages)
}

fn receive(stream: &mut TcpStream, count: usize) -> io::Result<Vec<Address>> {
    let one = |_| {
        let mut message = [0; MESSAGE_LEN];
        stream.read_exact(&mut message)?;
        Address::parse(&message).ok_or_else(|| {
            let text = String::from_utf8_lossy(&message).into_owned();
            io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no address of a queue pair"))
        })
    };
    (0..count).map(one).collect()
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// The client's side. Returns the addresses of the server, whose queue pairs are then ready.
pub(crate) fn connect(host: &str, port: u16, ours: &[Address]) -> io::Result<Vec<Address>> {
    let mut stream = TcpStream::connect((host, port))?;
    set_up(&stream)?;
    send(&mut stream, ours)?;
    let theirs = receive(&mut stream, ours.len())?;
    stream.write_all(b"done\0")?;
    Ok(theirs)
}

/// The server's side; `ready` prepares the queue pairs for the client's.
pub(crate) fn accept<E: From<io::Error>>(
    listener: &TcpListener,
    ours: &[Address],
    ready: impl FnOnce(&[Address]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut stream, _) = listener.accept()?;
    set_up(&stream)?;
    let theirs = receive(&mut stream, ours.len())?;
    ready(&theirs)?;
    send(&mut stream, ours)?;
    // The client's `done` means that it has read our message.
    stream.read_exact(&mut [0; 4])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        let gid = Gid(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
        Address { lid: Lid(0x1a), qpn: Qpn::new(0x11), psn: Psn::new(0xabcdef), gid }
    }

    #[test]
    fn messages_are_those_of_the_field() {
        let message = address().to_message();
        assert_eq!(&message, b"001a:000011:abcdef:00000000000000000000ffff0a000001\0");
        assert_eq!(Address::parse(&message), Some(address()));
        assert_eq!(Address::parse(&Address::NONE.to_message()), Some(Address::NONE));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let good = address().to_message();
        for (at, byte) in [(0, b'g'), (0, b'+'), (4, b' '), (51, b'0'), (20, 0xff), (30, b':')] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Address::parse(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn both_ends_learn_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let theirs = [Address { lid: Lid(7), ..address() }, Address::NONE];
        let client = std::thread::spawn(move || connect("127.0.0.1", port, &theirs).unwrap());
        let ours = [address(), Address::NONE];
        let mut seen = Vec::new();
        accept(&listener, &ours, |theirs| {
            seen.extend_from_slice(theirs);
            Ok::<(), io::Error>(())
        })
        .unwrap();
        assert_eq!(seen, theirs);
        assert_eq!(client.join().unwrap(), ours);
    }
}
