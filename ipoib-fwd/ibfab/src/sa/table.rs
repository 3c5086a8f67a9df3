//! Records in an answer: one for `Get`, any number for `GetTable`.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppType};
use ib_wire::sa::{DATA_LEN, SaMad, attribute, status};

use super::request::{NO_RECORDS, Records, refuse};

/// Bytes of the datagram between RMPP header and data: SM_Key, attribute offset, component mask.
const SA_HEADER_LEN: u32 = 20;

/// Bytes of a record in a table, a multiple of eight.
fn record_len(id: u16) -> usize {
    let len: usize = match id {
        attribute::PATH_RECORD => 64,
        attribute::MC_MEMBER_RECORD => 52,
        attribute::NODE_RECORD => 108,
        attribute::PORT_INFO_RECORD => 68,
        _ => DATA_LEN,
    };
    len.next_multiple_of(8)
}

/// True for packets that control a multi-packet transfer and carry no request.
pub(crate) fn is_control(request: &SaMad) -> bool {
    request.rmpp.flags.contains(RmppFlags::ACTIVE)
        && matches!(request.rmpp.kind, RmppType::Ack | RmppType::Stop | RmppType::Abort)
}

/// Returns the answer with `records`. A table that does not fit one datagram is refused for lack of
/// resources: multi-packet transfers are not supported.
pub(crate) fn answer(request: &SaMad, records: &Records) -> SaMad {
    let is_table = request.header.method == Method::GetTable;
    let len = record_len(request.header.attribute);
    match records.as_slice() {
        [] if !is_table => SaMad::refusal(request, NO_RECORDS),
        [_, _, ..] if !is_table => SaMad::refusal(request, refuse(status::TOO_MANY_RECORDS)),
        [_, _, ..] if records.len() * len > DATA_LEN => SaMad::refusal(request, refuse(status::NO_RESOURCES)),
        all => {
            let mut answer = SaMad::refusal(request, MadStatus::OK);
            answer.attribute_offset = (len / 8) as u16;
            answer.data = [0; DATA_LEN];
            for (to, from) in answer.data.chunks_mut(len).zip(all) {
                let n = to.len();
                to.copy_from_slice(from.get(..n).unwrap_or_default());
            }
            if is_table {
                // One segment that is both the first and the last; its length includes the SA header (IBA
                // 13.6.2).
                answer.rmpp = RmppHeader {
                    version: 1,
                    kind: RmppType::Data,
                    response_time: ib_wire::TimeoutCode::new(31),
                    flags: RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST,
                    status: 0,
                    segment: 1,
                    length: (all.len() * len) as u32 + SA_HEADER_LEN,
                };
            }
            answer
        }
    }
}
