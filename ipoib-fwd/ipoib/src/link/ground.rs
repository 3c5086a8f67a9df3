//! State that all parts of a link read: its settings, its port, its own address, and the stage of its
//! shutdown.

use cm::Path;
use cm::port::PathKey;
use hca::{AddressVector, GlobalRoute, PortState, UdDestination};
use ib_wire::ipoib::{AddressFlags, HardwareAddress};
use ib_wire::mad::MadAddress;
use ib_wire::{Gid, PKey, QKey, Qpn};

use super::own_address::OwnAddress;
use super::settings::{LinkSettings, Mode, PortFacts, WorkerIndex};

/// The stage of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// No shutdown was requested.
    Running,
    /// Connections are being closed.
    Closing,
    /// Groups are being left.
    Leaving,
    /// Complete.
    Stopped,
}

/// The shared state of one link, read-only for its parts.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) settings: LinkSettings,
    pub(super) port: PortFacts,
    pub(super) own: OwnAddress,
    pub(super) stage: Stage,
    /// It sends queries on behalf of the hosts that its owner represents.
    pub(super) speaks: bool,
    /// Broadcast group joined, port active.
    pub(super) up: bool,
}

impl Ground {
    /// A link without information about its port.
    pub(super) fn new(settings: LinkSettings) -> Self {
        Self {
            settings,
            port: PortFacts::DOWN,
            own: OwnAddress::default(),
            stage: Stage::Running,
            speaks: true,
            up: false,
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.stage != Stage::Running
    }

    /// True if packets can be sent and received.
    pub(super) fn is_at_work(&self) -> bool {
        self.up && !self.is_shutting_down()
    }

    /// True if management datagrams can be sent and the port has the P_Key.
    pub(super) fn port_usable(&self) -> bool {
        self.port.state == PortState::Active && self.port.pkey_index.is_some()
    }

    /// Indices of all workers.
    pub(super) fn worker_indices(&self) -> impl Iterator<Item = WorkerIndex> + use<> {
        // The count is at most 255, as was checked.
        (0..self.settings.workers.len().min(255) as u8).map(WorkerIndex)
    }

    /// The link-layer address of a worker, with the connected-mode flag if that mode is in force.
    pub(super) fn address(&self, worker: WorkerIndex) -> Option<HardwareAddress> {
        let qpn = self.settings.workers.get(usize::from(worker.0))?.ud_qpn;
        let flags = match self.settings.mode {
            Mode::Datagram => AddressFlags::NONE,
            Mode::Connected => AddressFlags::RC,
        };
        Some(HardwareAddress { flags, qpn, gid: self.port.gid })
    }

    /// True for a link-layer address of one of our workers.
    pub(super) fn is_own(&self, address: HardwareAddress) -> bool {
        self.own.is(address.gid) && self.settings.workers.iter().any(|w| w.ud_qpn == address.qpn)
    }

    /// The address of subnet administration as the port sees it, in the default partition. A port that
    /// requires a GRH addresses it by its well-known GUID, as Linux does.
    pub(super) fn sm(&self) -> MadAddress {
        let gsi = MadAddress::gsi(self.port.sm_lid, self.port.sm_sl);
        let sm = MadAddress { pkey_index: self.port.default_pkey_index, ..gsi };
        let gid = Gid::new(self.port.gid.prefix(), Gid::SUBNET_ADMINISTRATION);
        if self.port.grh_required { sm.with_gid(gid) } else { sm }
    }

    /// The partition's P_Key as paths and groups use it: with the full-membership bit.
    pub(super) fn full_pkey(&self) -> PKey {
        PKey(self.settings.pkey.0 | 0x8000)
    }

    /// The key of the path to a port.
    pub(super) fn path_key(&self, dgid: Gid) -> PathKey {
        PathKey { pkey: self.full_pkey(), dgid }
    }

    /// True if packets need a GRH. After a change of our subnet's prefix, a path within it is used without a
    /// GRH if the port allows that: the peer may have dropped the GID that the path still contains.
    fn needs_grh(&self, path: &Path) -> bool {
        let stale = path.hop_limit <= 1 && self.own.is_left_behind(path.dgid);
        self.port.grh_required || path.needs_grh() && !stale
    }

    /// The address vector of a path.
    pub(super) fn address_vector(&self, path: &Path) -> AddressVector {
        let bits = path.slid.0.wrapping_sub(self.port.lid.0);
        AddressVector {
            dlid: path.dlid,
            sl: path.sl,
            src_path_bits: if bits < 128 { bits as u8 } else { 0 },
            rate: path.rate,
            grh: self.needs_grh(path).then_some(GlobalRoute {
                dgid: path.dgid,
                sgid_index: 0,
                flow_label: path.flow_label.get(),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            }),
        }
    }

    /// A datagram destination at the end of a path.
    pub(super) fn ud_destination(&self, path: &Path, qpn: Qpn, qkey: QKey) -> UdDestination {
        UdDestination { av: self.address_vector(path), qpn, qkey: Some(qkey) }
    }
}
