//! The expected packets of a step behind the gateway: rebuilt from a packet's addresses, and compared byte by
//! byte. The sink takes the sample, and its time counts as the sink's.

use std::net::Ipv4Addr;

use prm::DatagramAddress;
use sink::{Inspector, ROOM_BEFORE, Seen};

use crate::frames::{self, Load};
use crate::rig::{self, REMOTE_QKEY, REMOTE_QPN, Transport};

/// Offset of the source address in a message, after the encapsulation header.
const SOURCE: usize = 4 + 12;

/// The packets of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) load: Load,
    pub(crate) transport: Transport,
}

impl Expected {
    /// The flow of a message to InfiniBand: each flow has its own Ethernet host.
    fn flow(&self, message: &[u8]) -> Option<u32> {
        let source: [u8; 4] = *message.get(SOURCE..)?.first_chunk()?;
        let flow = Ipv4Addr::from(source).to_bits().checked_sub(frames::ethernet_host(0).to_bits())?;
        (flow < self.load.flows).then_some(flow)
    }

    fn is_sent_right(
        &self,
        connection: Option<u16>,
        to: Option<&DatagramAddress>,
        message: &[u8],
    ) -> Option<bool> {
        let flow = self.flow(message)?;
        let host = flow % self.load.hosts.max(1);
        let goes_right = match self.transport {
            Transport::Connections => connection == Some(self.load.slot(host)),
            Transport::Datagrams => connection.is_none() && to.is_some_and(|to| is_to(to, rig::lid(host))),
        };
        // The packet follows the frame's header, or the four bytes of a message's header.
        let frame = frames::frame(&self.load, flow);
        let packet = frame.get(frame.len() - self.load.packet..)?;
        let (header, rest) = message.split_at_checked(4)?;
        Some(goes_right && header == [0x08, 0x00, 0, 0] && rest == packet)
    }

    fn is_forwarded_right(&self, message: usize, place: &[u8]) -> Option<bool> {
        let flow = u32::try_from(message).ok().filter(|flow| *flow < self.load.flows)?;
        // Messages rotate over the connections, and these over the segments.
        let connection = match self.transport {
            Transport::Connections => flow % u32::from(self.load.connections.max(1)),
            Transport::Datagrams => 0,
        };
        let tag = match self.load.vlan(connection) {
            0 => Vec::new(),
            vlan => [[0x81, 0x00], vlan.to_be_bytes()].concat(),
        };
        let header =
            [&frames::ethernet_mac(flow), frames::GATEWAY_MAC.as_slice(), &tag, &[0x08, 0x00]].concat();
        let front = place.get((ROOM_BEFORE + 4).checked_sub(header.len())?..)?;
        let (front, packet) = front.split_at_checked(header.len())?;
        Some(front == header && packet == frames::message(&self.load, flow).get(4..)?)
    }
}

/// True if this is the address of the host with this LID: within the subnet, at the normal rate, on service
/// level 0.
fn is_to(to: &DatagramAddress, lid: u16) -> bool {
    let mut whole = DatagramAddress::default();
    whole.qkey.set(REMOTE_QKEY);
    whole.dqp.set(REMOTE_QPN | DatagramAddress::EXTENDED);
    whole.rlid.set(lid);
    *to == whole
}

impl Inspector for Expected {
    fn is_right(&self, seen: &Seen<'_>) -> bool {
        match *seen {
            Seen::Sent { connection, to, message } => self.is_sent_right(connection, to, message),
            Seen::Forwarded { message, place } => self.is_forwarded_right(message, place),
        }
        .unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: [Load; 3] = [
        Load::PLAIN,
        Load { tagged: true, segments: 16, ..Load::PLAIN },
        Load { flows: 300, hosts: 100, connections: 7, packet: 1500, ..Load::PLAIN },
    ];

    fn all_of(load: Load, transport: Transport) -> impl Iterator<Item = (u16, DatagramAddress, Vec<u8>)> {
        (0..load.flows).map(move |flow| {
            let host = flow % load.hosts;
            let packet = frames::udp_packet(
                frames::ethernet_host(flow),
                frames::infiniband_host(host),
                flow,
                load.packet,
            );
            let to = match transport {
                Transport::Connections => DatagramAddress::default(),
                Transport::Datagrams => *rig::destination(rig::lid(host)).address(),
            };
            (load.slot(host), to, [[8, 0, 0, 0].as_slice(), &packet].concat())
        })
    }

    #[test]
    fn every_byte_of_a_send_counts_and_where_it_goes() {
        for (load, transport) in
            LOADS.into_iter().flat_map(|l| [(l, Transport::Connections), (l, Transport::Datagrams)])
        {
            let expected = Expected { load, transport };
            for (slot, to, message) in all_of(load, transport) {
                let (connection, to) = match transport {
                    Transport::Connections => (Some(slot), None),
                    Transport::Datagrams => (None, Some(&to)),
                };
                assert!(expected.is_right(&Seen::Sent { connection, to, message: &message }));
            }
            let (slot, to, message) = all_of(load, transport).nth(5).unwrap();
            let is_right = |connection, to: Option<&DatagramAddress>, message: &[u8]| {
                expected.is_right(&Seen::Sent { connection, to, message })
            };
            let (connection, to) = match transport {
                Transport::Connections => (Some(slot), None),
                Transport::Datagrams => (None, Some(to)),
            };
            let to = to.as_ref();
            for at in 0..message.len() {
                let mut wrong = message.clone();
                wrong[at] ^= 1;
                assert!(!is_right(connection, to, &wrong), "byte {at}");
            }
            let long = [message.as_slice(), &[0]].concat();
            assert!(!is_right(connection, to, &long));
            for len in [0, 3, 10, message.len() - 1] {
                assert!(!is_right(connection, to, &message[..len]), "{len} bytes");
            }
            assert!(!is_right(Some(slot + 1), None, &message));
            assert!(!is_right(None, None, &message));
            if let Some(right) = to {
                let change = |change: fn(&mut DatagramAddress)| {
                    let mut to = *right;
                    change(&mut to);
                    expected.is_right(&Seen::Sent { connection: None, to: Some(&to), message: &message })
                };
                assert!(change(|_| ()));
                assert!(!change(|to| to.rlid.set(0x55)));
                assert!(!change(|to| to.qkey.set(1)));
                assert!(!change(|to| to.dqp.set(REMOTE_QPN)));
                assert!(!change(|to| to.rate_sl = 1));
                assert!(!change(|to| to.rgid[15] = 1));
            }
        }
    }

    #[test]
    fn every_byte_of_a_frame_counts_and_none_in_front_of_it() {
        let plain = Load::PLAIN;
        let tagged = Load { tagged: true, segments: 3, connections: 4, ..plain };
        for (load, tag_len) in [(plain, 0), (Load { packet: 1500, ..plain }, 0), (tagged, 4)] {
            let expected = Expected { load, transport: Transport::Connections };
            let in_front = 14 - 4 + tag_len;
            let frame = |flow: u32| {
                let packet = frames::message(&load, flow).split_off(4);
                let header = [frames::ethernet_mac(flow), frames::GATEWAY_MAC].concat();
                // The fourth connection belongs to the first segment again.
                let tag = [0x81, 0, 0, 100 + (flow % 4 % 3) as u8];
                let tag = tag.get(..tag_len).unwrap().to_vec();
                [vec![0xa5; ROOM_BEFORE - in_front], header, tag, vec![8, 0], packet].concat()
            };
            for flow in 0..load.flows {
                let place = &frame(flow)[..];
                assert!(expected.is_right(&Seen::Forwarded { message: flow as usize, place }));
                let other = (flow as usize + 1) % 256;
                assert!(!expected.is_right(&Seen::Forwarded { message: other, place }));
            }
            for at in 0..frame(3).len() {
                let mut place = frame(3);
                place[at] ^= 0x10;
                let right = expected.is_right(&Seen::Forwarded { message: 3, place: &place });
                assert_eq!(right, at < ROOM_BEFORE - in_front, "byte {at}");
            }
        }
    }
}
