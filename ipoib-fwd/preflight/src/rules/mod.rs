//! The rules; each file has one subject.

pub(crate) mod access;
pub(crate) mod accounts;
pub(crate) mod configuration;
pub(crate) mod eal;
mod eal_options;
mod eal_prefix;
pub(crate) mod ethernet;
mod firmware;
pub(crate) mod hugepages;
pub(crate) mod infiniband;
pub(crate) mod iommu;
pub(crate) mod limits;
pub(crate) mod modules;
pub(crate) mod nodes;
pub(crate) mod paths;
pub(crate) mod processors;
pub(crate) mod socket;

/// A list of names in a sentence.
pub(crate) fn listed<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Converts bytes to MiB, rounded up.
pub(crate) const fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
