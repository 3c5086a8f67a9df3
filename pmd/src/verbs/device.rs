//! Device discovery and opening.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;

use ib_wire::{Gid, Guid, Lid, Mtu, PKey, ServiceLevel};
use rustix::fd::BorrowedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_sys as sys;

use super::remedy;
use crate::hca::{DeviceAttributes, HcaError, LinkLayer, PortAttributes, PortNumber, PortState};

/// Vendor ID of soft-RoCE devices, which never raise the last-WQE event.
const SOFT_ROCE: u32 = 0x00ff_ffff;

/// A device of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// True if libmlx5 supports it.
    pub is_mlx5: bool,
}

/// The library's device list.
struct List {
    first: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl List {
    fn read() -> Result<Self, HcaError> {
        let mut len: c_int = 0;
        // SAFETY: the length is written to a local variable.
        let first = unsafe { sys::ibv_get_device_list(&mut len) };
        match NonNull::new(first) {
            Some(first) => Ok(Self { first, len: usize::try_from(len).unwrap_or(0) }),
            None => match io::Error::last_os_error() {
                // The kernel does not support verbs.
                e if e.raw_os_error() == Some(libc::ENOSYS) => Err(remedy::no_device()),
                source => Err(HcaError::Io { what: "listing RDMA devices".into(), source }),
            },
        }
    }

    fn iter(&self) -> impl Iterator<Item = (*mut sys::ibv_device, Device)> + '_ {
        // SAFETY: the library's array has `len` entries and lives as long as the list.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        devices.iter().map(|&device| {
            // SAFETY: a device of the list, whose name is a C string within it.
            let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
            let name = name.to_string_lossy().into_owned();
            // SAFETY: a device of the list.
            let is_mlx5 = unsafe { sys::mlx5dv_is_supported(device) };
            (device, Device { name, is_mlx5 })
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the library's list, freed once; open devices have a reference of their own.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// Lists all RDMA devices of this host. An empty list is not an error.
pub fn devices() -> Result<Vec<Device>, HcaError> {
    let list = match List::read() {
        Ok(list) => list,
        Err(HcaError::Environment(_)) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    Ok(list.iter().map(|(_, device)| device).collect())
}

/// Finds the device with this name, or the first one whose port with this number is InfiniBand.
pub fn find(name: Option<&str>, port: PortNumber) -> Result<Device, HcaError> {
    choose(name, port, |_| Ok(())).map(|(device, _)| device)
}

/// Opens the device with this name, or the first one that passes `check` and whose port with this number is
/// InfiniBand.
pub(super) fn select(
    name: Option<&str>,
    port: PortNumber,
    check: impl Fn(&Device) -> Result<(), HcaError>,
) -> Result<Context, HcaError> {
    choose(name, port, check).map(|(_, context)| context)
}

fn choose(
    name: Option<&str>,
    port: PortNumber,
    check: impl Fn(&Device) -> Result<(), HcaError>,
) -> Result<(Device, Context), HcaError> {
    let list = List::read()?;
    if list.len == 0 {
        return Err(remedy::no_device());
    }
    let mut seen = Vec::new();
    let mut unfit = None;
    for (raw, device) in list.iter() {
        match name {
            Some(name) if name != device.name => {}
            Some(_) => {
                check(&device)?;
                let context = Context::open(raw, device.name.clone())?;
                return Ok((device, context));
            }
            None => {
                let context = Context::open(raw, device.name.clone())?;
                if context.port(port).is_ok_and(|p| p.link_layer == LinkLayer::InfiniBand) {
                    match check(&device) {
                        Ok(()) => return Ok((device, context)),
                        Err(e) => unfit = Some(e),
                    }
                }
            }
        }
        seen.push(device.name);
    }
    Err(match (name, unfit) {
        (Some(name), _) => remedy::no_such_device(name, &seen.join(", ")),
        (None, Some(unfit)) => unfit,
        (None, None) => remedy::no_infiniband(port, &seen.join(", ")),
    })
}

/// Opens the device with this name.
pub(super) fn open(name: &str) -> Result<Context, HcaError> {
    let list = List::read()?;
    if list.len == 0 {
        return Err(remedy::no_device());
    }
    match list.iter().find(|(_, found)| found.name == name) {
        Some((device, found)) => Context::open(device, found.name),
        None => {
            let seen: Vec<_> = list.iter().map(|(_, found)| found.name).collect();
            Err(remedy::no_such_device(name, &seen.join(", ")))
        }
    }
}

/// An open device.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<sys::ibv_context>,
    name: String,
    attributes: sys::ibv_device_attr,
}

// SAFETY: the library's contexts may be used from any thread; objects made from them have rules of their own.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open. Everything created from it holds it, so nothing is left.
        unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
    }
}

impl Context {
    fn open(device: *mut sys::ibv_device, name: String) -> Result<Self, HcaError> {
        // SAFETY: a device of a list that is not freed.
        let raw = NonNull::new(unsafe { sys::ibv_open_device(device) })
            .ok_or_else(|| remedy::open(&name, io::Error::last_os_error()))?;
        let mut context = Self { raw, name, attributes: sys::ibv_device_attr::default() };
        // SAFETY: open; the attributes are a local variable.
        let rc = unsafe { sys::ibv_query_device(raw.as_ptr(), &mut context.attributes) };
        if rc != 0 {
            return Err(remedy::code(format!("querying the attributes of {}", context.name), rc));
        }
        // Events are fetched without blocking.
        let events = context.events();
        fcntl_getfl(events).and_then(|flags| fcntl_setfl(events, flags | OFlags::NONBLOCK)).map_err(|e| {
            HcaError::Io { what: format!("setting up events of {}", context.name), source: e.into() }
        })?;
        Ok(context)
    }

    #[cfg(test)]
    pub(super) fn played(raw: NonNull<sys::ibv_context>) -> Self {
        Self { raw, name: "played".into(), attributes: sys::ibv_device_attr::default() }
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a descriptor that is readable when an asynchronous event is pending.
    pub(super) const fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the context's, which is open as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    pub(super) const fn limits(&self) -> &sys::ibv_device_attr {
        &self.attributes
    }

    /// True if datagram completions report IPv4 header checks.
    pub(super) const fn checks_ipv4(&self) -> bool {
        self.attributes.device_cap_flags & sys::IBV_DEVICE_UD_IP_CSUM != 0
    }

    /// False if the device never reports that a queue pair in the error state consumed its last receive.
    pub(super) const fn reports_last_wqe(&self) -> bool {
        self.attributes.vendor_id != SOFT_ROCE
    }

    /// False if completions report an invalidated key with a flag that differs from the library's.
    pub(super) const fn reports_invalidated(&self) -> bool {
        self.attributes.vendor_id != SOFT_ROCE
    }

    /// True if it supports memory windows of type 2A or 2B.
    pub(super) const fn has_windows(&self) -> bool {
        let kinds = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A | sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        self.attributes.device_cap_flags & kinds != 0
    }

    pub(super) fn attributes(&self) -> DeviceAttributes {
        let a = &self.attributes;
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        DeviceAttributes {
            name: self.name.clone(),
            node_guid: Guid(u64::from_be(a.node_guid)),
            ports: a.phys_port_cnt,
            max_qp: number(a.max_qp),
            max_wr: number(a.max_qp_wr),
            max_send_segments: number(a.max_sge),
            max_srq_sge: number(a.max_srq_sge),
            checks_ipv4: self.checks_ipv4(),
            fast_registration: None,
        }
    }

    pub(super) fn port(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        if port.0 == 0 || port.0 > self.attributes.phys_port_cnt {
            return Err(HcaError::NotFound { what: "port", name: format!("{} of {}", port.0, self.name) });
        }
        let mut a = sys::ibv_port_attr::default();
        // SAFETY: open.
        let rc = unsafe { sys::inline::query_port(self.raw(), port.0, &mut a) };
        if rc != 0 {
            return Err(remedy::code(format!("asking {} for port {}", self.name, port.0), rc));
        }
        Ok(PortAttributes {
            state: port_state(a.state),
            link_layer: link_layer(a.link_layer),
            lid: Lid(a.lid),
            lmc: a.lmc,
            sm_lid: Lid(a.sm_lid),
            sm_sl: ServiceLevel::new(a.sm_sl),
            active_mtu: mtu(a.active_mtu),
            max_mtu: mtu(a.max_mtu),
            gid_table_len: u16::try_from(a.gid_tbl_len).unwrap_or(0),
            pkey_table_len: a.pkey_tbl_len,
            guid: self.gid(port, 0)?.id(),
            grh_required: u32::from(a.flags) & sys::IB_UVERBS_QPF_GRH_REQUIRED != 0,
        })
    }

    pub(super) fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        let mut gid = sys::ibv_gid::default();
        // SAFETY: open; the GID is a local variable.
        let rc = unsafe { sys::ibv_query_gid(self.raw(), port.0, index.into(), &mut gid) };
        if rc != 0 {
            return Err(remedy::last(format!("asking {} for GID {index} of port {}", self.name, port.0)));
        }
        // SAFETY: both views of a GID are 16 plain bytes.
        Ok(Gid(unsafe { gid.raw }))
    }

    pub(super) fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        let mut key = 0_u16;
        // SAFETY: open; the key is a local variable.
        let rc = unsafe { sys::ibv_query_pkey(self.raw(), port.0, index.into(), &mut key) };
        if rc != 0 {
            return Err(remedy::last(format!("asking {} for P_Key {index} of port {}", self.name, port.0)));
        }
        Ok(PKey(u16::from_be(key)))
    }
}

const fn port_state(state: sys::ibv_port_state) -> PortState {
    match state {
        sys::IBV_PORT_INIT => PortState::Init,
        sys::IBV_PORT_ARMED => PortState::Armed,
        // Deferred: the link is interrupted briefly and keeps its configuration.
        sys::IBV_PORT_ACTIVE | sys::IBV_PORT_ACTIVE_DEFER => PortState::Active,
        _ => PortState::Down,
    }
}

const fn link_layer(layer: u8) -> LinkLayer {
    // An unspecified link layer means InfiniBand: the field is newer than RoCE.
    if layer as u32 == sys::IBV_LINK_LAYER_ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
}

const fn mtu(mtu: sys::ibv_mtu) -> Mtu {
    match Mtu::from_code(mtu as u8) {
        Some(mtu) => mtu,
        None => Mtu::B256,
    }
}
