//! Management datagrams as they cross between a port and its agents.

use crate::{Gid, Lid, QKey, Qpn, ServiceLevel};

/// Bytes of every management datagram (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// Global routing of a datagram: what its GRH says beyond the local header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The other end's GID (destination on sending, source on receiving).
    pub gid: Gid,
    /// Index of our own GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// The other end of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadAddress {
    /// Its LID (destination on sending, source on receiving).
    pub lid: Lid,
    /// Its queue pair: 0 for SMPs, 1 for general management.
    pub qpn: Qpn,
    /// Q_Key to send with; 0 on receiving.
    pub qkey: QKey,
    /// Service level.
    pub sl: ServiceLevel,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// The GRH, if the datagram has or shall have one.
    pub route: Option<Route>,
}

impl MadAddress {
    /// QP1 of the port at `lid`, default partition.
    #[must_use]
    pub const fn gsi(lid: Lid, sl: ServiceLevel) -> Self {
        Self { lid, qpn: Qpn::GSI, qkey: QKey::GSI, sl, pkey_index: 0, route: None }
    }
}

/// One datagram and the end that it goes to or came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad {
    /// The other end.
    pub peer: MadAddress,
    /// The 256 bytes.
    pub bytes: Box<[u8; MAD_LEN]>,
}
