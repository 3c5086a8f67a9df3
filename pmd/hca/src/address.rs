//! Addresses of packets: address vectors.

use ib_wire::{Gid, Lid, QKey, Qpn, Rate, ServiceLevel};

/// The part of an address vector that becomes a GRH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Path to a port (IBA 11.2.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressVector {
    /// Destination LID, unicast or multicast.
    pub dlid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the source LID, 7 bits.
    pub src_path_bits: u8,
    /// Static rate; code 0 = the port's own.
    pub rate: Rate,
    /// The GRH; always present for multicast.
    pub grh: Option<GlobalRoute>,
}

/// A datagram queue pair at the end of an address vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdDestination {
    /// The path.
    pub av: AddressVector,
    /// Its queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// Its Q_Key. `None`, or one with the top bit set, selects the sending queue pair's own (IBA 10.2.5).
    pub qkey: Option<QKey>,
}

impl UdDestination {
    /// Selects the sending queue pair's own Q_Key in a work request: any key with the top bit set (IBA
    /// 10.2.5).
    const OWN: QKey = QKey(0x8000_0000);

    /// The Q_Key in the work request.
    #[must_use]
    pub const fn request_qkey(&self) -> QKey {
        match self.qkey {
            Some(qkey) => qkey,
            None => Self::OWN,
        }
    }
}
