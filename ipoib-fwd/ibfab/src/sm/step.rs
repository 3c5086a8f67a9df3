//! The packets of a sweep, each with its purpose.

use ib_wire::smp::{DirectedPath, PKEY_BLOCK_LEN};
use ib_wire::{Guid, PKey};

use crate::subnet::PortId;

/// Purpose of an outstanding packet.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Discovers a node behind the switch port `from`, or the manager's own node.
    NodeInfo { path: DirectedPath, from: Option<PortId> },
    /// Reads a node's name.
    NodeDescription(Guid),
    /// Reads the sizes of a switch's forwarding tables.
    SwitchInfo(Guid),
    /// Reads the state of a port.
    PortInfo(PortId),
    /// Writes a block of P_Keys.
    SetPKeys(PortId, u16, [PKey; PKEY_BLOCK_LEN]),
    /// Configures a port, or changes its state.
    SetPortInfo(PortId),
    /// Writes limits of the forwarding tables, or acknowledges a state change.
    SetSwitchInfo(Guid),
    /// Writes a block of the linear table.
    SetLinear(Guid, u16, [u8; 64]),
    /// Writes a block of the multicast table.
    SetMulticast(Guid, u16, u8, [u16; 32]),
    /// Light sweep: checks whether a port changed.
    Probe,
    /// Reads back a port that was configured.
    ReadPort(PortId),
    /// Reads back a block of P_Keys.
    ReadPKeys(PortId, u16),
    /// Reads back a block of the linear table.
    ReadLinear(Guid, u16),
    /// Reads back a block of the multicast table.
    ReadMulticast(Guid, u16, u8),
}

impl Step {
    pub(super) const fn reads_back(&self) -> bool {
        matches!(
            self,
            Self::ReadPort(_) | Self::ReadPKeys(..) | Self::ReadLinear(..) | Self::ReadMulticast(..)
        )
    }

    /// Returns the port that a step goes to, if it is known; port 0 if the step is for a switch.
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
