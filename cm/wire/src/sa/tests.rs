use proptest::prelude::*;

use super::*;
use crate::{Gid, Guid, Lid, PKey, QKey, Rate, ServiceLevel};

fn roundtrip<R: Record + PartialEq + std::fmt::Debug>(data: &[u8; DATA_LEN]) {
    let record = R::from_data(data);
    let mut over = *data;
    record.to_data(&mut over);
    assert_eq!(over, *data, "reserved bits do not change");
    let mut fresh = [0; DATA_LEN];
    record.to_data(&mut fresh);
    assert_eq!(R::from_data(&fresh), record);
}

proptest! {
    #[test]
    fn records_read_what_they_wrote(bytes in proptest::collection::vec(any::<u8>(), DATA_LEN)) {
        let mut data = [0; DATA_LEN];
        data.copy_from_slice(&bytes);
        roundtrip::<ClassPortInfo>(&data);
        roundtrip::<InformInfo>(&data);
        roundtrip::<McMemberRecord>(&data);
        roundtrip::<Notice>(&data);
        roundtrip::<PathRecord>(&data);
        roundtrip::<ServiceRecord>(&data);
    }

    #[test]
    fn datagrams_read_what_they_wrote(bytes in proptest::collection::vec(any::<u8>(), MAD_LEN)) {
        let mut mad = [0; MAD_LEN];
        mad.copy_from_slice(&bytes);
        let parsed = SaMad::parse(&mad);
        prop_assert_eq!(SaMad::parse(&parsed.to_bytes()), parsed);
        let mut over = mad;
        parsed.write(&mut over);
        prop_assert_eq!(over, mad);
    }
}

#[test]
fn group_record_bits() {
    let record = McMemberRecord {
        mgid: Gid([0xff; 16]),
        port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(1)),
        qkey: QKey(0xb1b),
        mlid: Lid(0xc001),
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B4096.into(),
        pkey: PKey::DEFAULT,
        rate_selector: Selector::Exactly,
        rate: Rate::new(3),
        sl: ServiceLevel::new(5),
        flow_label: FlowLabel::new(0x12345),
        hop_limit: 7,
        scope: Scope::new(2),
        join_state: JoinState::FULL_MEMBER,
        proxy_join: true,
        ..McMemberRecord::default()
    };
    let mut bytes = [0; 52];
    record.write(&mut bytes);
    assert_eq!(
        bytes[32..52],
        [0, 0, 0x0b, 0x1b, 0xc0, 1, 0x85, 0, 0xff, 0xff, 0x83, 0, 0x51, 0x23, 0x45, 7, 0x21, 0x80, 0, 0]
    );
}

#[test]
fn path_record_bits() {
    let record = PathRecord {
        dlid: Lid(2),
        slid: Lid(1),
        flow_label: FlowLabel::new(0xabcde),
        hop_limit: 9,
        traffic_class: 8,
        reversible: true,
        numb_path: NumbPath::new(1),
        pkey: PKey(0xffff),
        qos_class: QosClass::new(0x123),
        sl: ServiceLevel::new(4),
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B2048.into(),
        rate: Rate::new(7),
        life_time: LifeTime::new(18),
        ..PathRecord::default()
    };
    let mut bytes = [0; 64];
    record.write(&mut bytes);
    assert_eq!(
        bytes[40..58],
        [0, 2, 0, 1, 0x0a, 0xbc, 0xde, 9, 8, 0x81, 0xff, 0xff, 0x12, 0x34, 0x84, 7, 18, 0]
    );
}

#[test]
fn notice_names_its_gid() {
    let gid = Gid::new(0xff12_401b_ffff_0000, Guid(0xffff_ffff));
    let notice = Notice::about_gid(trap::GROUP_CREATED, Lid(1), gid);
    assert_eq!(notice.gid(), Some(gid));
    let mut bytes = [0; 80];
    notice.write(&mut bytes);
    assert_eq!(bytes[..8], [0x83, 0, 0, 4, 0, 66, 0, 1]);
    assert_eq!(bytes[16..32], gid.0);
    assert_eq!(Notice { trap_number: 144, ..notice }.gid(), None);
}

#[test]
fn subscription_bits() {
    let mut bytes = [0; 36];
    InformInfo::trap(trap::GID_OUT_OF_SERVICE, true).write(&mut bytes);
    assert_eq!(
        bytes[16..36],
        [0xff, 0xff, 0, 0, 0, 0, 1, 1, 0xff, 0xff, 0, 65, 0, 0, 1, 19, 0, 0xff, 0xff, 0xff]
    );
}

#[test]
fn capability_mask_keeps_unknown_bits_and_the_response_time() {
    let mut bytes = [0; 72];
    bytes[4..8].copy_from_slice(&(((1u32 << 12 | 1 << 26) << 5) | 18).to_be_bytes());
    let info = ClassPortInfo::parse(&bytes);
    assert!(info.capability_mask2.contains(CapabilityMask2::SEND_ONLY_FULL_MEMBER));
    assert_eq!(info.capability_mask2.bits(), 1 << 12 | 1 << 26);
    assert_eq!(info.response_time.code(), 18);
}
