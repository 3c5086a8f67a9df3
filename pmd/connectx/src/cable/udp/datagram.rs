//! Datagrams of a UDP cable, version 2.
//!
//! | datagram | bytes |
//! |---|---|
//! | packet | the packet, then the trailer: session of the sender (u64), session of the receiver (u64), code |
//! | hello | magic and version (8), session of the sender (u64), session received by the sender (u64), 1 if it leaves (u8), code |
//!
//! Numbers are big endian. The code is present if the ends have a key: SipHash-2-4 over all bytes before it
//! (8 bytes). A hello begins with 0xff, which no packet does: the low half of a packet's first byte is the
//! link version, 0 (IBA 7.7.3). There is no sequence number: a recorded datagram can be replayed in the same
//! session.

use arrayvec::ArrayVec;

use super::super::key::{CODE_LEN, CableKey};

/// Magic of all versions; the version follows.
const MAGIC: [u8; 7] = *b"\xffIBLINK";
const VERSION: u8 = 2;
const HELLO_LEN: usize = 25;
const SESSIONS_LEN: usize = 16;
/// Longest trailer of a packet in bytes.
pub(in super::super) const MAX_TRAILER: usize = SESSIONS_LEN + CODE_LEN;

/// Content of a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// The sender's session: a random number, drawn at start and whenever it declares the other end dead.
    pub(super) session: u64,
    /// The session that the sender has received from us; 0 for none.
    pub(super) heard: u64,
    /// The sender is about to leave.
    pub(super) bye: bool,
}

/// Why a datagram is not a hello of this cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadHello {
    /// Neither a packet nor a hello.
    NoHello,
    /// A hello of another protocol version.
    OtherVersion,
    /// Its code is missing, wrong, or not expected.
    OtherKey,
}

/// Session numbers of a packet's sender and receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sessions {
    pub(super) sender: u64,
    pub(super) receiver: u64,
}

impl Sessions {
    /// The session numbers of the other direction.
    pub(super) const fn reversed(self) -> Self {
        Self { sender: self.receiver, receiver: self.sender }
    }

    fn to_bytes(self) -> [u8; SESSIONS_LEN] {
        ((u128::from(self.sender) << 64) | u128::from(self.receiver)).to_be_bytes()
    }
}

/// True if a datagram is a packet with its trailer, according to its first byte.
pub(super) fn is_packet(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|byte| byte & 0xf == 0)
}

/// Encodes and checks datagrams, with or without a key.
#[derive(Debug)]
pub(super) struct Codec {
    key: Option<CableKey>,
}

impl Codec {
    pub(super) const fn new(key: Option<CableKey>) -> Self {
        Self { key }
    }

    fn code(&self, parts: &[&[u8]]) -> Option<[u8; CODE_LEN]> {
        self.key.as_ref().map(|key| key.code(parts))
    }

    /// Splits off the code; `None` if it is missing or wrong.
    fn verified<'d>(&self, datagram: &'d [u8]) -> Option<&'d [u8]> {
        if self.key.is_none() {
            return Some(datagram);
        }
        let (rest, code) = datagram.split_last_chunk()?;
        (self.code(&[rest]).as_ref() == Some(code)).then_some(rest)
    }

    /// The trailer of a packet.
    pub(super) fn trailer(&self, packet: &[u8], sessions: Sessions) -> ArrayVec<u8, MAX_TRAILER> {
        let sessions = sessions.to_bytes();
        sessions.into_iter().chain(self.code(&[packet, &sessions]).into_iter().flatten()).collect()
    }

    /// The packet of a datagram, if the trailer is correct.
    pub(super) fn open<'d>(&self, datagram: &'d [u8], sessions: Sessions) -> Option<&'d [u8]> {
        // The sessions first: they are cheaper to check.
        let code_len = if self.key.is_some() { CODE_LEN } else { 0 };
        let (before_code, _) = datagram.split_at_checked(datagram.len().checked_sub(code_len)?)?;
        let packet = before_code.strip_suffix(&sessions.to_bytes())?;
        self.verified(datagram).map(|_| packet)
    }

    /// Encodes a hello.
    pub(super) fn hello(&self, hello: Hello) -> ArrayVec<u8, { HELLO_LEN + CODE_LEN }> {
        let mut bytes = ArrayVec::new();
        bytes.extend(MAGIC.into_iter().chain([VERSION]));
        bytes.extend(hello.session.to_be_bytes());
        bytes.extend(hello.heard.to_be_bytes());
        bytes.push(u8::from(hello.bye));
        let code = self.code(&[&bytes]);
        bytes.extend(code.into_iter().flatten());
        bytes
    }

    /// Decodes a hello.
    pub(super) fn parse_hello(&self, datagram: &[u8]) -> Result<Hello, BadHello> {
        let (&version, rest) =
            datagram.strip_prefix(&MAGIC).and_then(<[u8]>::split_first).ok_or(BadHello::NoHello)?;
        if version != VERSION {
            return Err(BadHello::OtherVersion);
        }
        if ![HELLO_LEN, HELLO_LEN + CODE_LEN].contains(&datagram.len()) {
            return Err(BadHello::NoHello);
        }
        let expected = if self.key.is_some() { HELLO_LEN + CODE_LEN } else { HELLO_LEN };
        if datagram.len() != expected || self.verified(datagram).is_none() {
            return Err(BadHello::OtherKey);
        }
        let parsed = rest.split_first_chunk().and_then(|(session, rest)| {
            let (heard, rest) = rest.split_first_chunk()?;
            let bye = matches!(rest.first(), Some(1));
            let session = u64::from_be_bytes(*session);
            let known = rest.first().is_some_and(|bye| *bye <= 1) && session != 0;
            known.then_some(Hello { session, heard: u64::from_be_bytes(*heard), bye })
        });
        parsed.ok_or(BadHello::NoHello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codecs() -> [Codec; 2] {
        [Codec::new(None), Codec::new(Some(CableKey::new([7; 16])))]
    }

    #[test]
    fn a_hello_round_trips_and_is_no_packet() {
        for codec in codecs() {
            for bye in [false, true] {
                let hello = Hello { session: 0x0102_0304_0506_0708, heard: 9, bye };
                let bytes = codec.hello(hello);
                assert_eq!(codec.parse_hello(&bytes), Ok(hello));
                assert!(!is_packet(&bytes));
                for len in 0..bytes.len() {
                    assert!(codec.parse_hello(&bytes[..len]).is_err());
                }
            }
            let nobody = codec.hello(Hello { session: 0, heard: 0, bye: false });
            assert_eq!(codec.parse_hello(&nobody), Err(BadHello::NoHello));
        }
    }

    #[test]
    fn a_hello_of_another_version_or_key_is_named_as_such() {
        let hello = Hello { session: 5, heard: 9, bye: false };
        let [plain, keyed] = codecs();
        let other = Codec::new(Some(CableKey::new([8; 16])));
        for (from, to) in [(&plain, &keyed), (&keyed, &plain), (&other, &keyed)] {
            assert_eq!(to.parse_hello(&from.hello(hello)), Err(BadHello::OtherKey));
        }
        let mut first = plain.hello(hello);
        first[7] = 1;
        assert_eq!(plain.parse_hello(&first), Err(BadHello::OtherVersion));
        assert_eq!(keyed.parse_hello(&first), Err(BadHello::OtherVersion));
    }

    #[test]
    fn a_packet_opens_with_its_sessions_alone() {
        let sessions = Sessions { sender: 3, receiver: 4 };
        for codec in codecs() {
            let packet = [0x70; 40];
            let datagram = [&packet[..], &codec.trailer(&packet, sessions)].concat();
            assert_eq!(codec.open(&datagram, sessions), Some(&packet[..]));
            assert_eq!(codec.open(&datagram, sessions.reversed()), None);
            assert_eq!(codec.open(&datagram, Sessions { sender: 3, receiver: 5 }), None);
            for len in 0..datagram.len() {
                assert_eq!(codec.open(&datagram[..len], sessions), None);
            }
        }
    }

    #[test]
    fn with_a_key_no_bit_of_a_datagram_can_be_changed() {
        let [_, codec] = codecs();
        let sessions = Sessions { sender: 3, receiver: 4 };
        let packet = [0x70; 40];
        let datagram = [&packet[..], &codec.trailer(&packet, sessions)].concat();
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(codec.open(&changed, sessions), None, "bit {bit}");
        }
    }
}
