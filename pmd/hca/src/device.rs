//! Attributes of a device and its ports, and asynchronous events.

use ib_wire::{Guid, Lid, Mtu, PortNumber, Qpn, ServiceLevel};

use crate::{FastRegistration, QueuesId};

/// Attributes of a device.
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    /// Its name: `soft0`, `mlx5_0`, `rxe0`.
    pub name: String,
    /// Node GUID.
    pub node_guid: Guid,
    /// Number of ports.
    pub ports: u8,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most work requests in one queue.
    pub max_wr: u32,
    /// Most segments of a send on a connection.
    pub max_send_segments: u32,
    /// Most scatter elements in one SRQ entry.
    pub max_srq_sge: u32,
    /// True if the device checks the headers of IPv4 packets in datagrams on InfiniBand ports.
    pub checks_ipv4: bool,
    /// How the device registers memory from a send queue; `None` if it cannot.
    pub fast_registration: Option<FastRegistration>,
}

/// Logical state of a port (IBA 14.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortState {
    /// No link.
    Down = 1,
    /// Link up, not yet configured by a subnet manager.
    Init = 2,
    /// Configured; only management packets pass.
    Armed = 3,
    /// Data packets pass.
    Active = 4,
}

/// Link layer of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// Current attributes of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttributes {
    /// Logical state.
    pub state: PortState,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Base LID; 0 before the subnet manager assigns one.
    pub lid: Lid,
    /// LID mask control.
    pub lmc: u8,
    /// LID of the subnet manager, whose QP1 serves subnet administration.
    pub sm_lid: Lid,
    /// Service level to the subnet manager.
    pub sm_sl: ServiceLevel,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// Largest MTU that the port can use.
    pub max_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_table_len: u16,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
    /// Port GUID.
    pub guid: Guid,
    /// It sends packets to other ports, and accepts packets, only with a GRH: a virtual port, which shares
    /// its LID with others (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
}

/// An asynchronous event of a device (IBA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// The port became active.
    PortActive(PortNumber),
    /// The port's link is unavailable.
    PortError(PortNumber),
    /// The port's LID changed.
    LidChange(PortNumber),
    /// The P_Key table changed.
    PKeyChange(PortNumber),
    /// The GID table changed.
    GidChange(PortNumber),
    /// Another subnet manager took over.
    SmChange(PortNumber),
    /// The subnet manager requests that clients register again.
    ClientReregister(PortNumber),
    /// A queue pair on a shared receive queue, in the error state, has consumed its last receive (IBA
    /// 10.3.1).
    LastWqeReached(Qpn),
    /// Data arrived before the RTU.
    CommunicationEstablished(Qpn),
    /// A queue pair failed without a completion.
    QpFatal(Qpn),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(QueuesId),
    /// A completion queue overran or the device failed; only a restart helps.
    Fatal,
}
