//! The packets of a sweep, each with what it is for.

use ib_wire::smp::{DirectedPath, PKEY_BLOCK_LEN};
use ib_wire::{Guid, PKey};

use crate::subnet::PortId;

/// What an outstanding packet is for.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Who is there? Found by the port named, or the manager's own node.
    NodeInfo { path: DirectedPath, from: Option<PortId> },
    /// Its name.
    NodeDescription(Guid),
    /// Its forwarding tables' sizes.
    SwitchInfo(Guid),
    /// State of a port.
    PortInfo(PortId),
    /// A block of P_Keys is written.
    SetPKeys(PortId, u16, [PKey; PKEY_BLOCK_LEN]),
    /// A port is configured or brought up.
    SetPortInfo(PortId),
    /// Limits of the forwarding tables are written, or a state change is acknowledged.
    SetSwitchInfo(Guid),
    /// A block of the linear table is written.
    SetLinear(Guid, u16, [u8; 64]),
    /// A block of the multicast table is written.
    SetMulticast(Guid, u16, u8, [u16; 32]),
    /// Light sweep: did a port change?
    Probe,
    /// A port that was configured is read back.
    ReadPort(PortId),
    /// A block of P_Keys that was written is read back.
    ReadPKeys(PortId, u16),
    /// A block of the linear table that was written is read back.
    ReadLinear(Guid, u16),
    /// A block of the multicast table that was written is read back.
    ReadMulticast(Guid, u16, u8),
}

impl Step {
    pub(super) const fn reads_back(&self) -> bool {
        matches!(
            self,
            Self::ReadPort(_) | Self::ReadPKeys(..) | Self::ReadLinear(..) | Self::ReadMulticast(..)
        )
    }

    /// The port that a step goes to, where it is known; of a switch that the step is for, port 0.
    pub(super) const fn target(&self) -> Option<PortId> {
        match *self {
            Self::NodeInfo { .. } | Self::Probe => None,
            Self::PortInfo(id)
            | Self::SetPKeys(id, ..)
            | Self::SetPortInfo(id)
            | Self::ReadPort(id)
            | Self::ReadPKeys(id, _) => Some(id),
            Self::NodeDescription(guid)
            | Self::SwitchInfo(guid)
            | Self::SetSwitchInfo(guid)
            | Self::SetLinear(guid, ..)
            | Self::SetMulticast(guid, ..)
            | Self::ReadLinear(guid, _)
            | Self::ReadMulticast(guid, ..) => Some((guid, 0)),
        }
    }
}
