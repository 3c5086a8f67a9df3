use proptest::prelude::*;

use super::ipoib::{PrivateData, ServiceIdForm};
use super::*;
use crate::mad::MAD_LEN;
use crate::{CommId, Mtu, Psn, Qpn, ServiceId, Tid, TimeoutCode};

/// The header of a CM message with this attribute, followed by arbitrary bytes.
fn arbitrary_message() -> impl Strategy<Value = Box<[u8; MAD_LEN]>> {
    (0x10u8..=0x1a, proptest::collection::vec(any::<u8>(), MAD_LEN)).prop_map(|(attribute, bytes)| {
        let mut mad = Box::new([0; MAD_LEN]);
        mad.copy_from_slice(&bytes);
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, attribute]);
        mad
    })
}

proptest! {
    #[test]
    fn writing_over_the_original_changes_nothing(bytes in arbitrary_message()) {
        let (header, message) = Message::parse(&bytes).unwrap();
        let mut again = bytes.clone();
        message.write(&header, &mut again);
        prop_assert_eq!(&again, &bytes);
    }

    #[test]
    fn a_fresh_datagram_says_the_same(bytes in arbitrary_message()) {
        let (header, message) = Message::parse(&bytes).unwrap();
        let fresh = message.to_bytes(header.tid);
        let (header2, message2) = Message::parse(&fresh).unwrap();
        prop_assert_eq!(message2, message);
        prop_assert_eq!(header2.tid, header.tid);
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), MAD_LEN)) {
        let mut mad = [0; MAD_LEN];
        mad.copy_from_slice(&bytes);
        let _ = Message::parse(&mad);
    }
}

#[test]
fn request_bits_lie_where_the_specification_has_them() {
    let request = Request {
        local_comm_id: CommId(0x0102_0304),
        service_id: ServiceId(0x1000_0000_0000_0048),
        local_qpn: Qpn::new(0x11_2233),
        responder_resources: 4,
        remote_response_timeout: TimeoutCode::new(20),
        starting_psn: Psn::new(0xabcdef),
        local_response_timeout: TimeoutCode::new(20),
        retry_count: RetryCount::new(5),
        path_mtu: Mtu::B2048.into(),
        rnr_retry_count: RnrRetry::new(3),
        max_cm_retries: MaxCmRetries::new(15),
        srq: true,
        ..Request::default()
    };
    let bytes = Message::from(request).to_bytes(Tid(9));
    let body = &bytes[24..];
    assert_eq!(body[0..4], [1, 2, 3, 4]);
    assert_eq!(body[8..16], [0x10, 0, 0, 0, 0, 0, 0, 0x48]);
    assert_eq!(body[32..36], [0x11, 0x22, 0x33, 4]);
    assert_eq!(body[43], 20 << 3);
    assert_eq!(body[44..48], [0xab, 0xcd, 0xef, 20 << 3 | 5]);
    assert_eq!(body[50..52], [4 << 4 | 3, 15 << 4 | 8]);
}

#[test]
fn reply_and_reject_bits() {
    let reply = Reply {
        target_ack_delay: TimeoutCode::new(15),
        failover: Failover::NotSupported,
        flow_control: true,
        rnr_retry_count: RnrRetry::new(7),
        srq: true,
        ..Reply::default()
    };
    let bytes = Message::from(reply).to_bytes(Tid(1));
    assert_eq!(bytes[24 + 26..24 + 28], [15 << 3 | 1 << 1 | 1, 7 << 5 | 1 << 4]);

    let reject = Reject {
        message: MessageRejected::Reply,
        info_length: InfoLength::new(127),
        reason: RejectReason::Consumer,
        ..Reject::default()
    };
    let bytes = Message::from(reject).to_bytes(Tid(1));
    assert_eq!(bytes[24 + 8..24 + 12], [1 << 6, 127 << 1, 0, 28]);
    assert_eq!(reject.used_info().len(), 72, "a length beyond the field is cut");
}

#[test]
fn other_envelopes_are_refused() {
    let good = Message::from(Request::default()).to_bytes(Tid(1));
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Message::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(0, 1), Ok(()));
    assert_eq!(with(0, 2), Err(CmError::BaseVersion(2)));
    assert_eq!(with(1, 3), Err(CmError::Class(crate::mad::MgmtClass::SubnAdm)));
    assert_eq!(with(2, 1), Err(CmError::ClassVersion(1)));
    assert_eq!(with(3, 1), Err(CmError::Method(crate::mad::Method::Get)));
    assert_eq!(with(17, 0x1b), Err(CmError::Attribute(AttributeId::Other(0x1b))));
}

#[test]
fn service_ids_of_both_forms() {
    let qpn = Qpn::new(0x00_0048);
    assert_eq!(ServiceIdForm::Linux.service_id(qpn), ServiceId(0x1000_0000_0000_0048));
    assert_eq!(ServiceIdForm::Rfc4755.service_id(qpn), ServiceId(0x0100_0000_0000_0048));
    for form in [ServiceIdForm::Linux, ServiceIdForm::Rfc4755] {
        assert_eq!(ServiceIdForm::of(form.service_id(qpn)), Some((form, qpn)));
        assert_ne!(form.other(), form);
    }
    assert_eq!(ServiceIdForm::of(ServiceId(0x1000_0001_0000_0048)), None);
}

#[test]
fn private_data_ignores_its_reserved_octet() {
    let bytes = [0xff, 0, 0, 0x48, 0, 0, 0xff, 0xf4, 1, 2, 3];
    let data = PrivateData::from_message(&bytes).unwrap();
    assert_eq!(data, PrivateData { ud_qpn: Qpn::new(0x48), receive_mtu: 65524 });
    assert_eq!(data.to_bytes(), [0, 0, 0, 0x48, 0, 0, 0xff, 0xf4]);
    assert_eq!(PrivateData::from_message(&bytes[..7]), None);
}

#[test]
fn reject_reasons_are_the_33_of_the_specification() {
    let codes: Vec<u16> = RejectReason::NAMED.iter().map(|r| r.code()).collect();
    assert_eq!(codes, (1..=33).collect::<Vec<_>>());
    assert_eq!(RejectReason::from_code(34), RejectReason::Other(34));
}
