//! Management datagrams for communication management, which establishes connections.

use ib_wire::mad::{Mad, MadAddress, MadHeader, Method, MgmtClass, Route};
use ib_wire::{Qpn, ServiceLevel, Tid};
use pmd::hca::{Control, LinkLayer};

use super::Check;
use crate::bench::Bench;
use crate::lab::{Failure, Lab, Need, Outcome, hold, same};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("a datagram arrives intact, and so does its response", there_and_back),
        Check::new("many in order", many),
        Check::new("missing ports are an error", no_port),
    ]
}

fn mad<L: Lab>(b: &Bench<'_, L>, from: usize, grh: bool, n: u8) -> Outcome<Mad> {
    let port = b.ends[1 - from].hca.port(b.lab.port())?;
    let mut peer = MadAddress::gsi(port.lid, ServiceLevel::new(0));
    if grh || port.link_layer == LinkLayer::Ethernet {
        let gid = b.gid(1 - from)?;
        peer.route = Some(Route { gid, sgid_index: 0, flow_label: 0, hop_limit: 64, traffic_class: 0 });
    }
    let mut bytes = Box::new(std::array::from_fn(|i| i as u8 ^ n));
    MadHeader::new(MgmtClass::ComMgt, 2, Method::Send, Tid(n.into()), 0x10).put(&mut bytes);
    Ok(Mad { peer, bytes })
}

fn receive<L: Lab>(b: &mut Bench<'_, L>, at: usize) -> Outcome<Mad> {
    let port = b.lab.port();
    let mut got = Ok(None);
    b.until("a management datagram", |b| {
        got = b.ends[at].hca.receive_mad(port);
        !matches!(got, Ok(None))
    })?;
    got?.ok_or_else(|| Failure::Wrong("nothing".into()))
}

fn there_and_back<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::Management)?;
    let port = b.lab.port();
    for (n, grh) in [(3, false), (4, true)] {
        let sent = mad(b, 0, grh, n)?;
        b.ends[0].hca.send_mad(port, &sent)?;
        let got = receive(b, 1)?;
        // The kernel may change the upper half of the transaction ID.
        same!(got.bytes[..8], sent.bytes[..8], "header");
        same!(got.bytes[12..], sent.bytes[12..], "everything after the upper half of the transaction ID");
        same!((got.peer.qpn, got.peer.pkey_index), (Qpn::GSI, 0), "queue pair and P_Key index of the sender");
        if b.has(Need::SourceLid) {
            same!(got.peer.lid, b.ends[0].hca.port(port)?.lid, "LID of the sender");
        }
        if let Some(route) = got.peer.route {
            same!(route.gid, b.gid(0)?, "GID of the sender");
        }
        let answer = Mad { peer: got.peer.reply(), ..got };
        b.ends[1].hca.send_mad(port, &answer)?;
        same!(receive(b, 0)?.bytes[12..], sent.bytes[12..], "the answer");
    }
    Ok(())
}

fn many<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::Management)?;
    let port = b.lab.port();
    for round in 0..10 {
        for n in 0..20 {
            let sent = mad(b, 0, false, round * 20 + n)?;
            b.ends[0].hca.send_mad(port, &sent)?;
        }
        // Receiving also makes room for more.
        hold!(b.ends[0].hca.receive_mad(port)?.is_none(), "an unexpected datagram");
        for n in 0..20 {
            let got = receive(b, 1)?;
            same!(got.bytes[255], 255 ^ (round * 20 + n), "datagram {n} of round {round}");
        }
    }
    hold!(b.ends[1].hca.receive_mad(port)?.is_none(), "more arrived than were sent");
    Ok(())
}

fn no_port<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::Management)?;
    let sent = mad(b, 0, false, 1)?;
    let nowhere = ib_wire::PortNumber(77);
    hold!(b.ends[0].hca.send_mad(nowhere, &sent).is_err(), "sent");
    hold!(b.ends[0].hca.receive_mad(nowhere).is_err(), "received");
    Ok(())
}
