//! Whole packets: parsing and writing is lossless, apart from reserved bits and the CRCs.

use ib_wire::crc;
use ib_wire::packet::Packet;

/// One input.
pub fn run(bytes: &[u8]) {
    let _ = crc::verify(bytes);
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut out = vec![0; bytes.len()];
    let len = packet.headers().write_packet(packet.payload(), &mut out).expect("as long as it was");
    assert_eq!(len, bytes.len());
    let again = Packet::parse(&out).expect("what was written is read");
    assert_eq!(again.headers(), packet.headers());
    assert_eq!(again.payload(), packet.payload());
    assert!(crc::verify(&out));
}
