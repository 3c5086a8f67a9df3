//! PCI devices and the IOMMU.

use std::collections::BTreeMap;

use super::files::{Root, is_pci_address};

/// A PCI device.
#[derive(Clone, Default, Debug)]
pub struct PciDevice {
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Its NUMA node.
    pub node: Option<u16>,
    /// True for an Ethernet controller.
    pub is_ethernet: bool,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// The IOMMU's domain type as the kernel prints it: `DMA`, `DMA-FQ`, `identity`.
    pub translation: Option<String>,
}

impl PciDevice {
    /// True if a program can use it: with vfio or uio, or because its driver serves programs and the kernel
    /// at the same time.
    #[must_use]
    pub fn is_for_programs(&self) -> bool {
        let drivers = ["vfio-pci", "igb_uio", "uio_pci_generic", "mlx5_core", "mlx4_core"];
        self.driver.as_deref().is_some_and(|driver| drivers.contains(&driver))
    }
}

/// The IOMMU.
#[derive(Clone, Copy, Default, Debug)]
pub struct Iommu {
    /// Number of IOMMU groups; 0 without an IOMMU.
    pub groups: usize,
    /// True if vfio is configured to work without an IOMMU.
    pub is_bypassed: bool,
}

pub(super) fn read(root: &Root) -> BTreeMap<String, PciDevice> {
    let names = root.entries("sys/bus/pci/devices").into_iter().filter(|name| is_pci_address(name));
    names.map(|address| (address.clone(), device(root, &address))).collect()
}

fn device(root: &Root, address: &str) -> PciDevice {
    let of = |name: &str| format!("sys/bus/pci/devices/{address}/{name}");
    let class = root.text(&of("class")).unwrap_or_default();
    PciDevice {
        driver: root.link(&of("driver")),
        // -1 means no node.
        node: root.number(&of("numa_node")),
        is_ethernet: class.starts_with("0x0200"),
        group: root.link(&of("iommu_group")).and_then(|group| group.parse().ok()),
        translation: root.text(&of("iommu_group/type")),
    }
}

pub(super) fn iommu(root: &Root) -> Iommu {
    let bypass = root.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    Iommu {
        groups: root.entries("sys/kernel/iommu_groups").len(),
        is_bypassed: bypass.is_some_and(|text| text == "Y" || text == "1"),
    }
}
