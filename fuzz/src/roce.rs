//! RoCEv2 packets: parsing and writing is lossless, apart from reserved bits, the UDP checksum and the ICRC.

use ib_wire::packet::RocePacket;

/// One input.
pub fn run(bytes: &[u8]) {
    let Ok(packet) = RocePacket::parse(bytes) else { return };
    let _ = packet.icrc_is_right();
    let mut out = vec![0; bytes.len()];
    let len = packet.headers().write_packet(packet.transport().payload, &mut out).expect("as long as it was");
    assert_eq!(len, packet.bytes().len());
    let again = RocePacket::parse(&out[..len]).expect("what was written is read");
    assert_eq!(again.headers(), packet.headers());
    assert_eq!(again.transport().payload, packet.transport().payload);
    assert!(again.icrc_is_right());
}
