//! Management datagrams that real stacks sent: each parses and is rebuilt byte for byte.

#![allow(clippy::unwrap_used, clippy::panic, clippy::vec_box, reason = "a test")]
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::cm::{AttributeId, Message};
use ib_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use ib_wire::sa::{DATA_LEN, McMemberRecord, PathRecord, Record, SaMad};
use ib_wire::{Mtu, Qpn};

/// Packets of a little-endian pcap file.
fn packets(file: &[u8]) -> Vec<&[u8]> {
    assert_eq!(file[..4], 0xa1b2_c3d4u32.to_le_bytes(), "a little-endian pcap");
    let mut rest = &file[24..];
    let mut out = Vec::new();
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (packet, tail) = tail.split_at(len);
        out.push(packet);
        rest = tail;
    }
    out
}

/// The MADs among Ethernet frames with RoCEv2 over IPv6: UD SEND_ONLY to QP1.
fn roce_mads(file: &[u8]) -> Vec<Box<[u8; MAD_LEN]>> {
    packets(file)
        .into_iter()
        .filter(|p| p[12..14] == [0x86, 0xdd] && p[54 + 2..54 + 4] == 4791u16.to_be_bytes())
        .filter(|p| p[62] == 0x64 && p[67..70] == [0, 0, 1])
        .map(|p| Box::new(p[82..82 + MAD_LEN].try_into().unwrap()))
        .collect()
}

/// The MADs among ERF records of whole IB packets.
fn erf_mads(file: &[u8]) -> Vec<Box<[u8; MAD_LEN]>> {
    packets(file)
        .into_iter()
        .filter_map(|p| {
            let ib = &p[16..];
            let bth = if ib[1] & 3 == 3 { 48 } else { 8 };
            let qpn = u32::from_be_bytes([0, ib[bth + 5], ib[bth + 6], ib[bth + 7]]);
            (ib[bth] == 0x64 && qpn <= 1)
                .then(|| Box::new(ib[bth + 20..bth + 20 + MAD_LEN].try_into().unwrap()))
        })
        .collect()
}

fn data_of<R: Record>(mad: &SaMad) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    mad.record::<R>().unwrap().to_data(&mut data);
    data
}

/// Parses one MAD of class CM or SA and builds it again from the parsed values.
fn rebuild(bytes: &[u8; MAD_LEN]) -> Option<Box<[u8; MAD_LEN]>> {
    let mut out = Box::new([0; MAD_LEN]);
    match MadHeader::of(bytes).class {
        MgmtClass::ComMgt => {
            let (header, message) = Message::parse(bytes).unwrap();
            message.write(&header, &mut out);
        }
        MgmtClass::SubnAdm => {
            let mut mad = SaMad::parse(bytes);
            mad.data = match mad.header.attribute {
                PathRecord::ATTRIBUTE => data_of::<PathRecord>(&mad),
                McMemberRecord::ATTRIBUTE => data_of::<McMemberRecord>(&mad),
                other => panic!("attribute {other:#x}"),
            };
            mad.write(&mut out);
        }
        _ => return None,
    }
    Some(out)
}

#[test]
fn linux_mads_come_out_byte_for_byte() {
    let mads = roce_mads(include_bytes!("data/linux-ipoib-cm-rocev2.pcap"));
    assert_eq!(mads.len(), 60);
    for (i, mad) in mads.iter().enumerate() {
        assert_eq!(rebuild(mad).as_deref(), Some(&**mad), "MAD {i}");
    }
}

#[test]
fn linux_handshake_says_what_ib_ipoib_puts_there() {
    let mads = roce_mads(include_bytes!("data/linux-ipoib-cm-rocev2.pcap"));
    let messages: Vec<Message> = mads.iter().filter_map(|m| Message::parse(m).ok()).map(|(_, m)| m).collect();
    let count = |a| messages.iter().filter(|m| m.attribute() == a).count();
    assert_eq!(count(AttributeId::Request), 4);
    assert_eq!(count(AttributeId::Reply), 4);
    assert_eq!(count(AttributeId::ReadyToUse), 4);
    assert_eq!(count(AttributeId::DisconnectRequest), 2);
    assert_eq!(count(AttributeId::DisconnectReply), 2);
    for message in &messages {
        let private = match message {
            Message::Request(r) => {
                let (form, _) = ServiceIdForm::of(r.service_id).unwrap();
                assert_eq!(form, ServiceIdForm::Linux);
                assert_eq!(r.path_mtu.mtu(), Some(Mtu::B4096));
                assert_eq!(r.remote_response_timeout.code(), 20);
                assert_eq!(r.max_cm_retries.get(), 15);
                assert_eq!(r.rnr_retry_count.get(), 0);
                assert!(r.alternate.is_none());
                &r.private_data[..]
            }
            Message::Reply(r) => &r.private_data[..],
            _ => continue,
        };
        let data = PrivateData::from_message(private).unwrap();
        assert_eq!(data.receive_mtu, 65524);
        assert_ne!(data.ud_qpn, Qpn::new(0));
    }
}

#[test]
fn linux_joins_and_path_queries() {
    let mads = roce_mads(include_bytes!("data/linux-ipoib-cm-rocev2.pcap"));
    let sa: Vec<SaMad> =
        mads.iter().filter(|m| m[1] == MgmtClass::SubnAdm.code()).map(|m| SaMad::parse(m)).collect();
    let first: McMemberRecord = sa[0].record().unwrap();
    assert_eq!(sa[0].header.method, Method::Set);
    assert_eq!(sa[0].component_mask, 0x0001_0083, "MGID, PORT_GID, PKEY, JOIN_STATE");
    assert_eq!(first.mgid.to_string(), "ff12:401b:ffff::ffff:ffff");
    let answer: McMemberRecord = sa[1].record().unwrap();
    assert_eq!(answer.mgid, first.mgid);
    assert!(answer.mlid.is_multicast());
    let query = sa.iter().find(|m| m.header.attribute == PathRecord::ATTRIBUTE).unwrap();
    assert_eq!(query.header.method, Method::Get);
    assert_eq!(query.component_mask, 0x340c, "DGID, SGID, TRAFFIC_CLASS, NUMB_PATH, PKEY");
}

#[test]
#[ignore = "reads a recording that is not ours to pass on: IB_CAPTURES names its folder"]
fn hardware_mads_come_out_byte_for_byte() {
    let folder =
        std::env::var_os("IB_CAPTURES").expect("IB_CAPTURES names the folder of wireshark-infiniband.pcap");
    let path = std::path::Path::new(&folder).join("wireshark-infiniband.pcap");
    let file = std::fs::read(path).expect("the recording");
    let rebuilt =
        erf_mads(&file).iter().filter_map(|mad| rebuild(mad).map(|out| assert_eq!(*out, **mad))).count();
    assert_eq!(rebuilt, 11, "9 of the CM and 2 of the SA");
}
