//! A path between two ports, as used by the rest of the gateway.

use ib_wire::cm::{FlowLabel, PathInfo};
use ib_wire::mad::{MadAddress, Route};
use ib_wire::sa::{LifeTime, PathRecord};
use ib_wire::{Gid, Lid, Mtu, PKey, QKey, Qpn, Rate, ServiceLevel, TimeoutCode};

/// A path from a local port to another port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Local GID.
    pub sgid: Gid,
    /// Remote GID.
    pub dgid: Gid,
    /// Local LID.
    pub slid: Lid,
    /// Remote LID.
    pub dlid: Lid,
    /// Partition.
    pub pkey: PKey,
    /// Service level.
    pub sl: ServiceLevel,
    /// Path MTU.
    pub mtu: Mtu,
    /// Static rate.
    pub rate: Rate,
    /// Packet life time.
    pub life_time: LifeTime,
    /// Flow label, for a GRH.
    pub flow_label: FlowLabel,
    /// Hop limit: 0 or 1 within the subnet. Above 0, packets carry a GRH.
    pub hop_limit: u8,
    /// Traffic class, for a GRH.
    pub traffic_class: u8,
}

impl Path {
    /// Converts an SA record. Returns `None` if its MTU is invalid or its LID is not a unicast LID.
    #[must_use]
    pub fn from_record(r: &PathRecord) -> Option<Self> {
        if r.dlid == Lid(0) || r.dlid.is_multicast() || r.dlid == Lid::PERMISSIVE {
            return None;
        }
        Some(Self {
            sgid: r.sgid,
            dgid: r.dgid,
            slid: r.slid,
            dlid: r.dlid,
            pkey: r.pkey,
            sl: r.sl,
            mtu: r.mtu.mtu()?,
            rate: r.rate,
            life_time: r.life_time,
            flow_label: r.flow_label,
            hop_limit: r.hop_limit,
            traffic_class: r.traffic_class,
        })
    }

    /// True if packets cross a router. Local LIDs then have no meaning at the remote end (`subnet local` of a
    /// REQ, inverted).
    #[must_use]
    pub fn leaves_subnet(&self) -> bool {
        self.hop_limit > 1 || self.sgid.prefix() != self.dgid.prefix()
    }

    /// True if packets on this path need a GRH (IBA 12.7.19). This is possible within the subnet too: virtual
    /// ports share a LID and differ only in the GID.
    #[must_use]
    pub fn needs_grh(&self) -> bool {
        self.hop_limit > 0 || self.leaves_subnet()
    }

    /// Returns the address of the remote QP1. `grh_required` is true if the local port requires a GRH on
    /// every path.
    #[must_use]
    pub fn gsi(&self, pkey_index: u16, sgid_index: u8, grh_required: bool) -> MadAddress {
        MadAddress {
            lid: self.dlid,
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
            sl: self.sl,
            path_bits: 0,
            pkey_index,
            route: (grh_required || self.needs_grh()).then_some(Route {
                gid: self.dgid,
                sgid_index,
                flow_label: self.flow_label.get(),
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            }),
        }
    }

    /// Converts the path to REQ format. If it leaves the subnet, it contains permissive LIDs, as in Linux,
    /// because local LIDs have no meaning there.
    pub(crate) fn to_request(self, ack_timeout: TimeoutCode) -> PathInfo {
        let lid = |lid| if self.leaves_subnet() { Lid::PERMISSIVE } else { lid };
        PathInfo {
            local_lid: lid(self.slid),
            remote_lid: lid(self.dlid),
            local_gid: self.sgid,
            remote_gid: self.dgid,
            flow_label: self.flow_label,
            rate: self.rate,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            subnet_local: !self.leaves_subnet(),
            ack_timeout,
        }
    }

    /// Returns the path to the sender of a REQ that came from `peer_lid`.
    pub(crate) fn of_request(p: &PathInfo, pkey: PKey, mtu: Mtu, peer_lid: Lid) -> Self {
        let dlid = if p.local_lid == Lid::PERMISSIVE || !p.subnet_local { peer_lid } else { p.local_lid };
        Self {
            sgid: p.remote_gid,
            dgid: p.local_gid,
            slid: p.remote_lid,
            dlid,
            pkey,
            sl: p.sl,
            mtu,
            rate: p.rate,
            // The sender added one for the return path.
            life_time: LifeTime::new(p.ack_timeout.code().saturating_sub(1)),
            flow_label: p.flow_label,
            hop_limit: p.hop_limit,
            traffic_class: p.traffic_class,
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Guid;

    use super::*;

    fn path(prefix: u64, hop_limit: u8) -> Path {
        let record = PathRecord {
            sgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(1)),
            dgid: Gid::new(prefix, Guid(2)),
            slid: Lid(1),
            dlid: Lid(2),
            mtu: Mtu::B4096.into(),
            hop_limit,
            ..PathRecord::default()
        };
        Path::from_record(&record).unwrap()
    }

    /// A path with a hop limit of 1 stays in the subnet but carries a GRH: these are independent properties.
    #[test]
    fn a_hop_limit_above_0_needs_a_grh() {
        for (prefix, hop_limit, grh, leaves_subnet) in [
            (Gid::DEFAULT_PREFIX, 0, false, false),
            (Gid::DEFAULT_PREFIX, 1, true, false),
            (Gid::DEFAULT_PREFIX, 64, true, true),
            (7, 0, true, true),
        ] {
            let path = path(prefix, hop_limit);
            let route = |required| path.gsi(0, 3, required).route.map(|r| (r.gid, r.sgid_index, r.hop_limit));
            let global = Some((path.dgid, 3, hop_limit));
            assert_eq!(path.needs_grh(), grh);
            assert_eq!(route(false), global.filter(|_| grh));
            assert_eq!(route(true), global, "the port requires it");
            assert_eq!(path.leaves_subnet(), leaves_subnet);
            let request = path.to_request(TimeoutCode::new(19));
            assert_eq!(request.subnet_local, !leaves_subnet);
            let lids = if leaves_subnet { [Lid::PERMISSIVE; 2] } else { [Lid(1), Lid(2)] };
            assert_eq!([request.local_lid, request.remote_lid], lids);
        }
    }

    #[test]
    fn records_that_lead_nowhere_are_no_paths() {
        let good = PathRecord { dlid: Lid(2), mtu: Mtu::B256.into(), ..PathRecord::default() };
        assert!(Path::from_record(&good).is_some());
        for dlid in [Lid(0), Lid(0xc000), Lid::PERMISSIVE] {
            assert_eq!(Path::from_record(&PathRecord { dlid, ..good }), None);
        }
        assert_eq!(Path::from_record(&PathRecord { mtu: ib_wire::sa::MtuCode::new(6), ..good }), None);
    }

    #[test]
    fn the_way_back_mirrors_the_request() {
        let there = path(Gid::DEFAULT_PREFIX, 0);
        let info = there.to_request(TimeoutCode::new(19));
        let back = Path::of_request(&info, PKey::DEFAULT, Mtu::B2048, Lid(1));
        assert_eq!((back.sgid, back.dgid, back.slid, back.dlid), (there.dgid, there.sgid, Lid(2), Lid(1)));
        assert_eq!(back.life_time.get(), 18);
        // From another subnet, the datagram's LID is that of the local router. The request's LID is not valid
        // here.
        let routed = PathInfo { subnet_local: false, local_lid: Lid(44), ..info };
        assert_eq!(Path::of_request(&routed, PKey::DEFAULT, Mtu::B2048, Lid(3)).dlid, Lid(3));
    }
}
