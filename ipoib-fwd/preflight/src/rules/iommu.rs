//! The IOMMU.

use super::listed;
use crate::finding::{Code, Finding};
use crate::machine::PciDevice;
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let machine = subject.machine;
    let allowed = subject.eal.map(|eal| eal.allowed.as_slice()).unwrap_or_default();
    let devices: Vec<(&str, &PciDevice)> =
        allowed.iter().filter_map(|address| Some((address.as_str(), machine.pci.get(address)?))).collect();
    let by_vfio = devices.iter().filter(|(_, device)| device.driver.as_deref() == Some("vfio-pci"));
    let by_vfio: Vec<&str> = by_vfio.map(|(address, _)| *address).collect();
    if !by_vfio.is_empty() {
        if machine.iommu.is_bypassed {
            let what = format!("vfio works without an IOMMU: {} can write to all memory", listed(&by_vfio));
            let help = "enable the IOMMU (firmware setup; intel_iommu=on iommu=pt on the kernel's command line), and disable \
                        enable_unsafe_noiommu_mode";
            found.push(Finding::new(Code::IommuUnsafe, what, help));
        } else if machine.iommu.groups == 0 {
            let what = format!("there is no IOMMU, and vfio needs one for {}", listed(&by_vfio));
            let help = "enable it in the firmware's setup, and with intel_iommu=on iommu=pt on the kernel's command line";
            found.push(Finding::new(Code::IommuOff, what, help));
        }
    }
    // The kernel's domain applies to mappings of kernel drivers; vfio has its own tables.
    let adapters = machine.adapters.iter().filter(|_| !subject.config.infiniband.is_soft());
    let adapters =
        adapters.filter_map(|(name, adapter)| Some((name.as_str(), machine.pci.get(adapter.pci.as_ref()?)?)));
    let translated: Vec<&str> = adapters
        .filter(|(_, device)| device.translation.as_deref().is_some_and(|kind| kind.starts_with("DMA")))
        .map(|(name, _)| name)
        .collect();
    if !translated.is_empty() {
        let what = format!("the IOMMU translates each access to memory of {}", listed(translated));
        found.push(Finding::new(Code::IommuTranslates, what, "use iommu=pt on the kernel's command line"));
    }
}
