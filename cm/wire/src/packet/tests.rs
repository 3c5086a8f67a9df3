use proptest::prelude::*;

use super::*;
use crate::{Gid, Lid, PKey, Psn, QKey, Qpn, Rkey, ServiceLevel};

fn lrh() -> impl Strategy<Value = Lrh> {
    (0u8..16, 0u8..16, any::<u16>(), any::<u16>()).prop_map(|(vl, sl, dlid, slid)| Lrh {
        vl: VirtualLane::new(vl),
        sl: ServiceLevel::new(sl),
        dlid: Lid(dlid),
        slid: Lid(slid),
    })
}

fn grh() -> impl Strategy<Value = Grh> {
    (any::<u8>(), 0u32..1 << 20, any::<u8>(), any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(
        |(traffic_class, flow_label, hop_limit, s, d)| Grh {
            traffic_class,
            flow_label,
            hop_limit,
            sgid: Gid(s),
            dgid: Gid(d),
        },
    )
}

fn extended(layout: Layout) -> impl Strategy<Value = Extended> {
    (any::<[u8; 32]>()).prop_map(move |b| {
        let (extended, _) = Extended::split(layout, &b).unwrap();
        // The value in the reserved byte of the DETH is not kept.
        extended
    })
}

fn headers() -> impl Strategy<Value = Headers> {
    (any::<u8>(), any::<[bool; 5]>(), any::<[u32; 3]>()).prop_flat_map(|(code, flags, numbers)| {
        let bth = Bth {
            opcode: Opcode::from_byte(code),
            solicited: flags[0],
            migrated: flags[1],
            pkey: PKey(numbers[0] as u16),
            fecn: flags[2],
            becn: flags[3],
            dest_qpn: Qpn::new(numbers[1]),
            ack_request: flags[4],
            psn: Psn::new(numbers[2]),
        };
        (lrh(), proptest::option::of(grh()), Just(bth), extended(bth.opcode.layout()))
            .prop_map(|(lrh, grh, bth, extended)| Headers { lrh, grh, bth, extended })
    })
}

proptest! {
    #[test]
    fn packets_of_a_series_are_what_each_would_be(h in headers(), len in 0usize..300, numbers in any::<[(u32, bool); 3]>()) {
        let h = Headers { bth: Bth { opcode: Opcode::RcSendMiddle, ..h.bth }, extended: Extended::Bare, ..h };
        let payload = vec![0x5a; len];
        let series = Series::new(&h, len).unwrap();
        for (psn, ack_request) in numbers {
            let bth = Bth { psn: Psn::new(psn), ack_request, ..h.bth };
            let (mut one, mut other) = ([0xaau8; 512], [0xaau8; 512]);
            let len = Headers { bth, ..h }.write_packet(&payload, &mut one).unwrap();
            prop_assert_eq!(series.packet_len(), len);
            let mut frame = series.write(bth.psn, ack_request, &mut other).unwrap();
            frame.payload_mut().copy_from_slice(&payload);
            prop_assert_eq!(frame.seal(), len);
            prop_assert!(one == other);
            prop_assert!(series.write(bth.psn, ack_request, &mut other[..len - 1]).is_none());
        }
        let deth = Deth { qkey: QKey(1), src_qpn: Qpn::new(2) };
        let extended = Headers { bth: Bth { opcode: Opcode::UdSendOnly, ..h.bth }, extended: Extended::Deth(deth), ..h };
        prop_assert!(Series::new(&extended, len).is_err() && Series::new(&h, 8193).is_err());
    }

    #[test]
    fn what_is_written_is_read_back(h in headers(), payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut out = [0xaau8; 512];
        let len = h.write_packet(&payload, &mut out).unwrap();
        prop_assert_eq!(len, h.packet_len(payload.len()));
        let packet = Packet::parse(&out[..len]).unwrap();
        prop_assert_eq!(packet.headers(), h);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert!(packet.icrc_is_right() && packet.vcrc_is_right());
        prop_assert!(out[len..].iter().all(|&b| b == 0xaa));
    }

    #[test]
    fn a_bare_packet_lacks_its_crcs_and_nothing_else(
        h in headers(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (mut whole, mut bare) = ([0xaau8; 512], [0x55u8; 512]);
        let len = h.write_packet(&payload, &mut whole).unwrap();
        let mut frame = h.write(payload.len(), &mut bare).unwrap();
        frame.payload_mut().copy_from_slice(&payload);
        prop_assert_eq!(frame.leave_bare(), len);
        prop_assert_eq!(&bare[len - 6..len], &[0; 6]);
        prop_assert_eq!(&bare[..len - 6], &whole[..len - 6]);
        crate::crc::seal(&mut bare[..len]);
        prop_assert_eq!(&bare[..len], &whole[..len]);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Packet::parse(&bytes);
        let _ = Transport::parse(&bytes);
        let _ = RocePacket::parse(&bytes);
        let _ = crate::crc::verify(&bytes);
        let _ = crate::crc::verify_icrc_rocev2(&bytes);
        let _ = crate::crc::Icrc::new(&bytes);
    }

    #[test]
    fn a_changed_byte_is_noticed(at in 0usize..100, flip in 1u8..=255) {
        let mut out = [0u8; 256];
        let len = rc_send().write_packet(&[7; 78], &mut out).unwrap();
        let at = at % len;
        out[at] ^= flip;
        prop_assert!(!crate::crc::verify_vcrc(&out[..len]));
    }
}

fn rc_send() -> Headers {
    Headers {
        lrh: Lrh { dlid: Lid(4), slid: Lid(3), ..Lrh::default() },
        grh: None,
        bth: Bth {
            opcode: Opcode::RcSendOnly,
            solicited: false,
            migrated: true,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: Qpn::new(0x5b),
            ack_request: true,
            psn: Psn::new(0xabcd),
        },
        extended: Extended::Bare,
    }
}

#[test]
fn every_opcode_keeps_its_code() {
    for code in 0..=255u8 {
        assert_eq!(Opcode::from_byte(code).to_byte(), code);
    }
    for &opcode in Opcode::KNOWN {
        assert_eq!(Opcode::from_byte(opcode.to_byte()), opcode);
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    let mut out = [0u8; 256];
    let mut h = rc_send();
    h.grh = Some(Grh::default());
    let len = h.write_packet(&[1; 5], &mut out).unwrap();
    let good = &out[..len];
    assert!(Packet::parse(good).is_ok());
    assert!(matches!(Packet::parse(&good[..len - 4]), Err(ParseError::Length { .. })));
    assert!(matches!(Packet::parse(&good[..20]), Err(ParseError::TooShort(20))));
    let broken = |at: usize, value: u8| {
        let mut b = good.to_vec();
        b[at] = value;
        Packet::parse(&b).unwrap_err()
    };
    assert!(matches!(broken(5, 0xff), ParseError::Length { .. }));
    assert_eq!(broken(0, 1), ParseError::LinkVersion(1));
    assert_eq!(broken(1, 0), ParseError::Raw(Lnh::Raw));
    assert_eq!(broken(8, 0x40), ParseError::GrhVersion(4));
    assert_eq!(broken(14, 6), ParseError::GrhNextHeader(6));
    assert!(matches!(broken(13, 0xff), ParseError::GrhLength { .. }));
    assert_eq!(broken(49, 0x31), ParseError::TransportVersion(1));
    assert_eq!(broken(48, 0x64), ParseError::Pad { pad: 3, have: 0 });
    assert_eq!(broken(48, 0x0c), ParseError::Truncated { opcode: 0x0c });
}

#[test]
fn what_cannot_be_a_packet_is_not_written() {
    let h = rc_send();
    let mut out = [0u8; 9000];
    assert!(matches!(h.write(8, &mut out[..33]), Err(EncodeError::NoRoom { need: 34, have: 33 })));
    assert!(matches!(h.write(0x7ff * 4 - 20, &mut out), Err(EncodeError::TooLong(_))));
    assert!(h.write(0x7ff * 4 - 24, &mut out).is_ok());
    assert!(matches!(h.write(usize::MAX, &mut out), Err(EncodeError::TooLong(_))));
    let wrong = Headers { extended: Extended::Ieth(Rkey(1)), ..h };
    assert!(matches!(wrong.write(8, &mut out), Err(EncodeError::Layout { opcode: 4 })));
}

#[test]
fn syndromes_and_timers() {
    assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(Credit::INVALID));
    assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::SequenceError));
    assert_eq!(Syndrome::from_byte(0x2c), Syndrome::RnrNak(RnrTimer::new(12)));
    for b in 0..=255u8 {
        assert_eq!(Syndrome::from_byte(b).to_byte(), b);
    }
    let micros = |code| RnrTimer::new(code).duration().as_micros();
    assert_eq!([0, 1, 2, 3, 4, 5, 12, 14, 31].map(micros), [655_360, 10, 20, 30, 40, 60, 640, 1280, 491_520]);
    let deth = Deth { qkey: QKey(0xb1b), src_qpn: Qpn::new(0x4a) };
    assert_eq!(Deth::from_bytes(&deth.to_bytes()), deth);
}
