//! Offloads of a port.

use dpdk_sys as sys;

/// Work that the port does instead of the software.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EthOffloads {
    /// Strip the VLAN tag of received frames ([`FrameTag::Taken`](crate::mem::FrameTag::Taken)).
    pub strip_tags: bool,
    /// Insert the requested VLAN tag into sent frames ([`Mbuf::wish_tag`](crate::mem::Mbuf::wish_tag)).
    pub insert_tags: bool,
    /// Validate the IPv4 header of received frames.
    pub check_ipv4: bool,
}

/// Drivers that insert tags in their transmit function. Others that offer the feature (net_virtio) insert
/// them in the prepare step, which is not used here.
const INSERTERS: [&str; 7] =
    ["net_af_packet", "net_mlx5", "mlx5_pci", "net_i40e", "net_ice", "net_ixgbe", "net_e1000_igb"];

impl EthOffloads {
    /// Returns all offloads of a port with this driver.
    pub(super) fn of(info: &sys::rte_eth_dev_info, driver: &str) -> Self {
        let inserts = info.tx_offload_capa & sys::SHIM_TX_OFFLOAD_VLAN_INSERT != 0;
        Self {
            strip_tags: info.rx_offload_capa & sys::SHIM_RX_OFFLOAD_VLAN_STRIP != 0,
            insert_tags: inserts && INSERTERS.contains(&driver),
            check_ipv4: info.rx_offload_capa & sys::SHIM_RX_OFFLOAD_IPV4_CKSUM != 0,
        }
    }

    pub(super) const fn ask_for(self, conf: &mut sys::rte_eth_conf) {
        if self.strip_tags {
            conf.rxmode.offloads |= sys::SHIM_RX_OFFLOAD_VLAN_STRIP;
        }
        if self.insert_tags {
            conf.txmode.offloads |= sys::SHIM_TX_OFFLOAD_VLAN_INSERT;
        }
        if self.check_ipv4 {
            conf.rxmode.offloads |= sys::SHIM_RX_OFFLOAD_IPV4_CKSUM;
        }
    }
}
