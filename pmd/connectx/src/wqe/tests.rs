use std::ptr::NonNull;

use super::*;
use crate::object::mr::{Access, Member, MrTable};

const BASE: u64 = 0x10_0000;
const AT: usize = size_of::<ControlSegment>();

/// A data segment of an entry: inline bytes, or a length of memory from an offset on.
enum Given {
    Inline(Vec<u8>),
    Host(u64, u32),
}

fn entry(key: u32, segments: &[Given]) -> Wqe {
    let mut wqe = Wqe::default();
    let mut bytes = vec![0; AT];
    for segment in segments {
        match segment {
            Given::Inline(data) => {
                bytes.extend((INLINE_DATA | data.len() as u32).to_be_bytes());
                bytes.extend(data);
                bytes.resize(bytes.len().next_multiple_of(DS_UNIT), 0);
            }
            Given::Host(offset, n) => bytes.extend(DataSegment::new(BASE + offset, *n, key).as_bytes()),
        }
    }
    wqe.len = bytes.len();
    wqe.bytes[..bytes.len()].copy_from_slice(&bytes);
    wqe
}

#[test]
fn packets_of_a_message_have_the_right_data_in_any_order() {
    let content: Vec<u8> = (0..1u32 << 16).map(|i| (i ^ i >> 8) as u8).collect();
    let mut lent = content.clone();
    // SAFETY: the memory lives until the end of the test, and nothing else accesses it meanwhile.
    let memory = unsafe { HostMemory::new(NonNull::new(lent.as_mut_ptr()).unwrap(), lent.len()) };
    let mut mrs = MrTable::default();
    let key = mrs.register(BASE, memory.into(), Access::LOCAL).unwrap();
    let mut dice = 0x9e37_79b9_7f4a_7c15u64;
    let mut roll = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    let (mut packets, mut again) = (0, 0);
    for _ in 0..300 {
        let mut whole: Vec<u8> = Vec::new();
        let segments: Vec<Given> = (0..1 + roll(20))
            .map(|_| match roll(4) {
                0 => {
                    let data: Vec<u8> = (0..roll(30)).map(|_| roll(256) as u8).collect();
                    whole.extend(&data);
                    Given::Inline(data)
                }
                kind => {
                    let n = if kind == 1 { roll(8) } else { roll(5000) };
                    let offset = roll((1 << 16) - n);
                    whole.extend(&content[offset as usize..(offset + n) as usize]);
                    Given::Host(offset, n as u32)
                }
            })
            .collect();
        let mut wqe = entry(key, &segments);
        assert_eq!(wqe.data_len(AT), Ok(whole.len() as u64));
        let mtu = [256, 1024, 4096][roll(3) as usize];
        let mut pieces = Pieces::new();
        let (mut offset, mut left) = (0, 60);
        while offset < whole.len() && left > 0 {
            left -= 1;
            let len = (whole.len() - offset).min(mtu);
            wqe.gather(mrs.of(Member::default()), AT, offset as u64, len, &mut pieces).unwrap();
            let mut out = vec![0; len];
            wqe.copy(&pieces, &mut out);
            assert_eq!(out, whole[offset..offset + len], "from {offset}");
            packets += 1;
            // The next offset, the same, or one that was sent before.
            offset = match roll(8) {
                0 => roll(offset as u64 / mtu as u64 + 1) as usize * mtu,
                _ => offset + mtu,
            };
            again += usize::from(offset < whole.len());
        }
        // Nothing exists behind the end.
        let end = whole.len() as u64;
        let behind = wqe.gather(mrs.of(Member::default()), AT, end, 1, &mut pieces);
        assert_eq!(behind, Err(WcStatus::LocalLength));
        let nothing = wqe.gather(mrs.of(Member::default()), AT, 0, 0, &mut pieces);
        assert_eq!((nothing, pieces.len()), (Ok(()), 0));
    }
    assert!(packets > 2000 && again > 1000, "{packets} {again}");
}
