//! GID tables of real devices, which the kernel maintains and returns as a whole.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use gidcache::{Attributes, Entry, GidType, IfIndex, Key, PortSetup, VlanId};
use ib_wire::Gid;
use verbs_sys as sys;

use super::device::Context;
use super::{device, remedy};
use crate::gids::kind_of;
use crate::hca::{HcaError, LinkLayer, PortNumber};

/// Kernel directory that maps nodes to devices (`uverbs0/ibdev`).
const NODES: &str = "/sys/class/infiniband_verbs";
/// Kernel list of VLAN interfaces. This path also exists if /proc is mounted with `ProcSubset=pid`, where
/// /proc/net does not.
const VLANS: &str = "/proc/self/net/vlan/config";

impl Context {
    /// Returns all entries of all ports with one call.
    pub(super) fn gids(&self) -> Result<Vec<Entry>, HcaError> {
        let mut len = 0_usize;
        for port in 1..=self.attributes().ports {
            len += usize::from(self.port(PortNumber(port))?.gid_table_len);
        }
        let mut entries = vec![sys::ibv_gid_entry::default(); len.max(1)];
        // SAFETY: open; the array has the passed number of entries, each of the passed size.
        let count = unsafe {
            sys::_ibv_query_gid_table(
                self.raw(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<sys::ibv_gid_entry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let what = format!("querying the GID table of {}", self.name());
            return Err(remedy::code(what, i32::try_from(count).unwrap_or(libc::EIO)));
        };
        let vlans = Vlans::read();
        Ok(entries.iter().take(count).filter_map(|entry| entry_of(entry, &vlans)).collect())
    }

    /// Returns one entry with all attributes, or `None` if the slot is empty.
    pub(super) fn gid_entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        let mut entry = sys::ibv_gid_entry::default();
        // SAFETY: open; the entry is a local variable of the passed size.
        let rc = unsafe {
            let (port, index) = (port.0.into(), index.into());
            sys::_ibv_query_gid_ex(self.raw(), port, index, &mut entry, 0, size_of::<sys::ibv_gid_entry>())
        };
        match rc {
            0 => Ok(entry_of(&entry, &Vlans::read())),
            // Some kernels also return this for an index beyond the table.
            libc::ENODATA if index < self.port(port)?.gid_table_len => Ok(None),
            rc => {
                Err(remedy::code(format!("querying {} for GID {index} of port {}", self.name(), port.0), rc))
            }
        }
    }
}

/// Converts the library's entry if it is valid: a GID of an interface.
fn entry_of(entry: &sys::ibv_gid_entry, vlans: &Vlans) -> Option<Entry> {
    let port = PortNumber(u8::try_from(entry.port_num).ok()?);
    let index = u16::try_from(entry.gid_index).ok()?;
    // SAFETY: both views of a GID are 16 plain bytes.
    let gid = Gid(unsafe { entry.gid.raw });
    let gid_type = match entry.gid_type {
        sys::IBV_GID_TYPE_IB => GidType::Ib,
        sys::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
        sys::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
        _ => return None,
    };
    // Skip a GID without an interface; the others stay usable.
    if gid == Gid::ZERO || gid.is_multicast() {
        return None;
    }
    let ifindex = if gid_type == GidType::Ib { None } else { IfIndex::new(entry.ndev_ifindex) };
    let vlan = ifindex.and_then(|ifindex| vlans.of(ifindex));
    let attributes = Attributes { key: Key { gid, gid_type, ifindex }, vlan };
    Some(Entry { port, index, attributes, default: gid_type == GidType::Ib && index == 0 })
}

/// VLAN IDs of interfaces by name. The GID table does not contain them.
#[derive(Default, Debug)]
struct Vlans(BTreeMap<String, VlanId>);

impl Vlans {
    fn read() -> Self {
        // The file does not exist without VLANs.
        std::fs::read_to_string(VLANS).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Parses lines of the form `name | id | interface below`.
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut fields = line.split('|').map(str::trim);
            let (name, id) = (fields.next()?, fields.next()?);
            Some((name.to_owned(), VlanId::new(id.parse().ok()?)?))
        };
        Self(text.lines().filter_map(line).collect())
    }

    fn of(&self, ifindex: IfIndex) -> Option<VlanId> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&interface_name(ifindex)?).copied()
    }
}

/// Returns the current name of an interface in this network namespace.
#[must_use]
pub fn interface_name(ifindex: IfIndex) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the memory is as long as the call demands.
    let found = unsafe { libc::if_indextoname(ifindex.get(), name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Returns the name in a sysfs file if it differs from `name`.
fn other_name(text: &str, name: &str) -> Option<String> {
    let now = text.trim_end();
    (!now.is_empty() && now != name).then(|| now.to_owned())
}

/// A real device, opened only to read its GID table and receive change events.
#[derive(Debug)]
pub struct GidDevice {
    context: Context,
}

impl GidDevice {
    /// Opens a device by name.
    pub fn open(name: &str) -> Result<Self, HcaError> {
        Ok(Self { context: device::open(name)? })
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.context.name()
    }

    /// Returns the kernel's current name of the device if it has changed. The library keeps the name from
    /// when this process first saw the device.
    #[must_use]
    pub fn renamed(&self) -> Option<String> {
        // SAFETY: the context is open and has its device, whose name is a C string within it.
        let node = unsafe { CStr::from_ptr((*(*self.context.raw()).device).dev_name.as_ptr()) };
        let file = Path::new(NODES).join(node.to_str().ok()?).join("ibdev");
        // If the file cannot be read, the name is unknown. The removal of a device is reported by an event.
        other_name(&std::fs::read_to_string(file).ok()?, self.name())
    }

    /// Returns its ports and their link layers.
    pub fn ports(&self) -> Result<Vec<(PortNumber, LinkLayer)>, HcaError> {
        let port = |n| Ok((PortNumber(n), self.context.port(PortNumber(n))?.link_layer));
        (1..=self.context.attributes().ports).map(port).collect()
    }

    /// Returns the layout of its tables.
    pub fn setups(&self) -> Result<Vec<PortSetup>, HcaError> {
        let port = |number| {
            let port = self.context.port(number)?;
            Ok(PortSetup { number, len: port.gid_table_len.max(1), kind: kind_of(port.link_layer) })
        };
        (1..=self.context.attributes().ports).map(PortNumber).map(port).collect()
    }

    /// Returns all entries of all ports with one call.
    pub fn entries(&self) -> Result<Vec<Entry>, HcaError> {
        self.context.gids()
    }

    /// Returns one entry with all attributes, or `None` if the slot is empty.
    pub fn entry(&self, port: PortNumber, index: u16) -> Result<Option<Entry>, HcaError> {
        self.context.gid_entry(port, index)
    }

    /// Consumes the pending events without waiting. Returns true if one may indicate a table change.
    ///
    /// # Errors
    ///
    /// Fails if the device was removed.
    pub fn take_events(&self) -> Result<bool, HcaError> {
        let mut concerned = false;
        loop {
            let mut event = sys::ibv_async_event::default();
            // SAFETY: the context is open and its events are nonblocking; the event is a local variable.
            if unsafe { sys::ibv_get_async_event(self.context.raw(), &mut event) } != 0 {
                return Ok(concerned);
            }
            let what: c_int = c_int::try_from(event.event_type).unwrap_or(-1);
            // SAFETY: fetched above, acknowledged once.
            unsafe { sys::ibv_ack_async_event(&mut event) };
            if what == c_int::try_from(sys::IBV_EVENT_DEVICE_FATAL).unwrap_or(0) {
                let source = io::Error::from_raw_os_error(libc::ENODEV);
                return Err(HcaError::Io { what: format!("following {}", self.name()), source });
            }
            concerned = true;
        }
    }
}

impl AsFd for GidDevice {
    /// Readable when an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.events()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_makes_no_sense_is_left_out_alone() {
        let good = sys::ibv_gid_entry {
            gid: sys::ibv_gid { raw: gidcache::gid_of_address([10, 0, 0, 1].into()).0 },
            gid_index: 3,
            port_num: 1,
            gid_type: sys::IBV_GID_TYPE_ROCE_V2,
            ..Default::default()
        };
        let entry = entry_of(&good, &Vlans::default()).unwrap();
        assert_eq!((entry.port, entry.index, entry.gid_type()), (PortNumber(1), 3, GidType::RoceV2));
        let mut multicast = [0; 16];
        multicast[0] = 0xff;
        for gid in [[0; 16], multicast] {
            let bad = sys::ibv_gid_entry { gid: sys::ibv_gid { raw: gid }, ..good };
            assert_eq!(entry_of(&bad, &Vlans::default()), None);
        }
        for bad in [
            sys::ibv_gid_entry { gid_type: 9, ..good },
            sys::ibv_gid_entry { port_num: 256, ..good },
            sys::ibv_gid_entry { gid_index: 65_536, ..good },
        ] {
            assert_eq!(entry_of(&bad, &Vlans::default()), None);
        }
    }

    #[test]
    fn vlans_are_listed_by_name() {
        let text = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                    eth1.100       | 100  | eth1\nbackup         | 4095  | bond0\nbad | 4096 | eth1\n";
        let vlans = Vlans::parse(text);
        let ids: Vec<_> = vlans.0.iter().map(|(name, id)| (name.as_str(), id.get())).collect();
        assert_eq!(ids, [("backup", 4095), ("eth1.100", 100)]);
    }

    #[test]
    fn a_device_of_another_name_is_noticed() {
        assert_eq!(other_name("mlx5_0\n", "mlx5_0"), None);
        assert_eq!(other_name("\n", "mlx5_0"), None);
        assert_eq!(other_name("ibp1s0\n", "mlx5_0").as_deref(), Some("ibp1s0"));
    }

    #[test]
    fn interfaces_have_names() {
        assert_eq!(interface_name(IfIndex::new(1).unwrap()).as_deref(), Some("lo"));
        assert_eq!(interface_name(IfIndex::new(u32::MAX >> 1).unwrap()), None);
    }
}
