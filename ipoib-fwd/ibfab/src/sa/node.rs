//! NodeRecord and PortInfoRecord (IBA 15.2.5.2, 15.2.5.3): the state that the sweep read, by LID. A port sees
//! only ports with which it shares a partition (IBA 15.4.1.2).

use ib_wire::Lid;
use ib_wire::sa::{DATA_LEN, SaMad};
use ib_wire::smp::{NodeInfo, PortInfo};

use super::request::{Context, MAX_RECORDS, Records};
use crate::subnet::EndPort;

/// Component of both records: the LID.
const LID: u64 = 1;
/// Component of a PortInfoRecord: the port's number.
const PORT_NUMBER: u64 = 1 << 1;

fn put(data: &mut [u8; DATA_LEN], at: usize, bytes: &[u8]) {
    if let Some(to) = data.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

/// Returns the LID in the request, if it names one.
fn wanted(request: &SaMad) -> Option<Lid> {
    let [a, b, ..] = request.data;
    (request.component_mask & LID != 0).then_some(Lid(u16::from_be_bytes([a, b])))
}

/// Returns the ports with LIDs that the requester may see.
fn visible<'a>(context: &Context<'a>) -> impl Iterator<Item = EndPort<'a>> {
    let requester = context.requester.port;
    let examined = *context;
    context.subnet.end_ports().inspect(move |_| examined.count(1)).filter(move |e| requester.may_see(e.port))
}

/// Returns the matching nodes, one record for each of their ports that has a LID.
pub(crate) fn nodes(context: &Context<'_>, request: &SaMad) -> Records {
    let lid = wanted(request);
    let found = visible(context).filter(|e| lid.is_none_or(|lid| e.port.lids().contains(lid)));
    found
        .map(|end| {
            let mut data = [0; DATA_LEN];
            let mut info = [0; NodeInfo::LEN];
            NodeInfo { port_guid: end.port.guid, local_port: end.id.1, ..end.port.node }.write(&mut info);
            put(&mut data, 0, &end.port.lid.0.to_be_bytes());
            put(&mut data, 4, &info);
            put(&mut data, 44, &end.node.description.unwrap_or([0; 64]));
            data
        })
        .take(MAX_RECORDS)
        .collect()
}

/// Returns the matching ports; for a switch all of them, under the LID of its port 0.
pub(crate) fn ports(context: &Context<'_>, request: &SaMad) -> Records {
    let lid = wanted(request);
    let number = (request.component_mask & PORT_NUMBER != 0).then_some(request.data[2]);
    let mut records = Records::new();
    for end in visible(context).filter(|e| lid.is_none_or(|lid| e.port.lids().contains(lid))) {
        let of_node = end.node.ports.iter().filter(|(n, _)| end.node.is_switch() || **n == end.id.1);
        for (&n, port) in of_node.filter(|(n, _)| number.is_none_or(|wanted| wanted == **n)) {
            let mut data = [0; DATA_LEN];
            let mut info = [0; PortInfo::LEN];
            // M_Keys are not disclosed (IBA 15.4.1).
            PortInfo { mkey: 0, ..port.info }.write(&mut info);
            put(&mut data, 0, &end.port.lid.0.to_be_bytes());
            data[2] = n;
            put(&mut data, 4, &info);
            records.push(data);
            if records.len() == MAX_RECORDS {
                return records;
            }
        }
    }
    records
}
