//! A software channel adapter on a fabric.

use connectx::cable::CableEnd;
use ib_wire::{Guid, Mtu};
use pmd::hca::PortNumber;
use pmd::soft::{SoftConfig, SoftHca};

/// Returns adapter `n`; its one port has that cable, if any.
pub(crate) fn adapter(n: u64, cable: Option<CableEnd>) -> SoftHca {
    let guid = 0x0200_0000_0000_0000 + 16 * n;
    let mut hca = SoftHca::new(&SoftConfig {
        name: format!("hca{n}"),
        node_guid: Guid(guid),
        port_guids: vec![Guid(guid + 1)],
        max_mtu: Mtu::B4096,
        gid_table: 8,
        seed: n,
    })
    .unwrap();
    if cable.is_some() {
        hca.set_cable(PortNumber(1), cable).unwrap();
    }
    hca
}
