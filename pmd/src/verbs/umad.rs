//! Management datagrams through libibumad, with one agent for subnet administration and one for communication
//! management.
//!
//! The kernel writes its agent number into the upper half of every request's transaction ID. It delivers a
//! response only to an agent with a matching outstanding request. This module therefore tracks requests and
//! restores the upper half of the transaction ID in responses. While a request is outstanding the kernel
//! repeats it, and repetitions by the caller are not sent.

use std::ffi::{CString, c_int, c_long};
use std::io;
use std::path::Path;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::mad::{MAD_LEN, Mad, MadAddress, Method, MgmtClass, Route};
use ib_wire::sa::attribute::MC_MEMBER_RECORD;
use ib_wire::{Gid, Lid, QKey, Qpn, ServiceLevel, Tid};
use verbs_sys as sys;

use super::remedy;
use crate::hca::{HcaError, PortNumber};

/// Interval between transmissions of a request, in milliseconds.
const PERIOD_MS: c_int = 1000;
/// Number of retransmissions by the kernel.
const RETRIES: c_int = 2;
/// Upper limit of the time for which the kernel repeats and remembers a request. The sender must not give up
/// sooner.
pub const REQUEST_TIME: Duration = Duration::from_millis((PERIOD_MS * (RETRIES + 1)) as u64);
/// Maximum number of outstanding requests. Cancelled requests stay outstanding until [`REQUEST_TIME`] has
/// passed.
const REQUESTS: usize = 192;
/// Number of these reserved for group memberships. Without a membership a link receives no ARP, while a path
/// query is simply repeated.
const RESERVED: usize = 64;
/// Maximum number of datagrams that one call skips: responses without a request, and requests without a
/// response.
const STRAYS: usize = 64;
/// Class version of subnet administration and communication management.
const CLASS_VERSION: c_int = 2;
/// Length of a 128-bit method mask in longs, and the bits of a long.
const MASK_LONGS: usize = 16 / size_of::<c_long>();
const LONG_BITS: usize = c_long::BITS as usize;

/// Format of a datagram in `/dev/infiniband/umad*`.
#[repr(C)]
struct Buffer {
    head: sys::ib_user_mad,
    bytes: [u8; MAD_LEN],
}

/// Outstanding requests with their destinations.
#[derive(Debug, Default)]
struct Requests(ArrayVec<(Tid, Lid), REQUESTS>);

impl Requests {
    /// Records a request for `attribute`. Returns false if it is already outstanding.
    fn begin(&mut self, tid: Tid, attribute: u16, to: Lid) -> Result<bool, HcaError> {
        if self.0.iter().any(|(known, _)| low(*known) == low(tid)) {
            return Ok(false);
        }
        let reserved = if attribute == MC_MEMBER_RECORD { 0 } else { RESERVED };
        let full = HcaError::Exhausted("outstanding management requests");
        if self.0.remaining_capacity() <= reserved {
            return Err(full);
        }
        self.0.try_push((tid, to)).map_err(|_| full)?;
        Ok(true)
    }

    /// Removes a request. Returns its transaction ID as the sender knows it, and its destination.
    fn end(&mut self, tid: Tid) -> Option<(Tid, Lid)> {
        let at = self.0.iter().position(|(known, _)| low(*known) == low(tid))?;
        Some(self.0.swap_remove(at))
    }
}

const fn low(tid: Tid) -> u32 {
    tid.0 as u32
}

/// The management agents of a port.
#[derive(Debug)]
pub(super) struct ManagementPort {
    device: String,
    port: c_int,
    sa: c_int,
    cm: c_int,
    requests: Requests,
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        // SAFETY: opened by us; its agents end with it.
        unsafe { sys::umad_close_port(self.port) };
    }
}

fn mask(methods: &[Method]) -> [c_long; MASK_LONGS] {
    let mut mask = [0; MASK_LONGS];
    for method in methods {
        let bit = usize::from(method.code());
        if let Some(word) = mask.get_mut(bit / LONG_BITS) {
            *word |= 1 << (bit % LONG_BITS);
        }
    }
    mask
}

impl ManagementPort {
    /// Opens a port's management interface and registers both agents.
    pub(super) fn open(device: &str, port: PortNumber) -> Result<Self, HcaError> {
        let name = CString::new(device)
            .map_err(|_| HcaError::NotFound { what: "RDMA device", name: device.to_owned() })?;
        // SAFETY: no arguments. It only looks at the interface's version.
        if unsafe { sys::umad_init() } < 0 {
            return Err(remedy::umad_open(device, port, io::Error::last_os_error()));
        }
        // SAFETY: a C string.
        let id = unsafe { sys::umad_open_port(name.as_ptr(), port.0.into()) };
        if id < 0 {
            return Err(remedy::umad_open(device, port, io::Error::from_raw_os_error(-id)));
        }
        let mut open =
            Self { device: device.to_owned(), port: id, sa: -1, cm: -1, requests: Requests::default() };
        let sa = open.register(MgmtClass::SubnAdm, &[]);
        open.sa = sa.map_err(|source| HcaError::Io {
            what: format!("registering for subnet administration on {device} port {}", port.0),
            source,
        })?;
        // All of communication management uses method Send, also for replies.
        open.cm = open
            .register(MgmtClass::ComMgt, &[Method::Send])
            .map_err(|_| remedy::cm_taken(device, port, Path::new("/sys/module")))?;
        Ok(open)
    }

    fn register(&self, class: MgmtClass, methods: &[Method]) -> Result<c_int, io::Error> {
        let mut mask = mask(methods);
        // SAFETY: the port is open; the mask has 128 bits.
        let agent = unsafe {
            sys::umad_register(self.port, class.code().into(), CLASS_VERSION, 0, mask.as_mut_ptr())
        };
        if agent < 0 { Err(io::Error::from_raw_os_error(-agent)) } else { Ok(agent) }
    }

    /// Sends a datagram. The kernel repeats requests to subnet administration.
    pub(super) fn send(&mut self, mad: &Mad) -> Result<(), HcaError> {
        let header = mad.header();
        let agent = match header.class {
            MgmtClass::SubnAdm => self.sa,
            MgmtClass::ComMgt => self.cm,
            class => {
                return Err(HcaError::Unsupported {
                    what: "management class",
                    value: class.code().into(),
                    limit: "subnet administration and communication management".into(),
                });
            }
        };
        let awaits = header.class == MgmtClass::SubnAdm && !header.method.is_response();
        if awaits && !self.requests.begin(header.tid, header.attribute, mad.peer.lid)? {
            return Ok(());
        }
        let (timeout, retries) = if awaits { (PERIOD_MS, RETRIES) } else { (0, 0) };
        let mut buffer = Buffer { head: sys::ib_user_mad::default(), bytes: *mad.bytes };
        buffer.head.addr = address(&mad.peer);
        // SAFETY: the port is open; the buffer is a head followed by the datagram's bytes.
        let rc = unsafe {
            sys::umad_send(
                self.port,
                agent,
                std::ptr::from_mut(&mut buffer).cast(),
                MAD_LEN as c_int,
                timeout,
                retries,
            )
        };
        if rc < 0 {
            // The library returns -EIO and leaves the kernel's error in errno.
            let source = io::Error::last_os_error();
            self.requests.end(header.tid);
            let what = format!("sending a management datagram of class {:#x}", header.class.code());
            return Err(HcaError::Io { what, source });
        }
        Ok(())
    }

    /// Returns the next received datagram. Does not wait.
    pub(super) fn receive(&mut self) -> Result<Option<Mad>, HcaError> {
        for _ in 0..STRAYS {
            let mut buffer = Buffer { head: sys::ib_user_mad::default(), bytes: [0; MAD_LEN] };
            let mut len = MAD_LEN as c_int;
            // SAFETY: the port is open and nonblocking; the buffer has room for `len` bytes after its head.
            let agent =
                unsafe { sys::umad_recv(self.port, std::ptr::from_mut(&mut buffer).cast(), &mut len, 0) };
            if agent < 0 {
                return match -agent {
                    libc::EWOULDBLOCK | libc::EINTR => Ok(None),
                    // The kernel removed the agents and waits until this process closes the device.
                    libc::EIO | libc::ENODEV | libc::EPIPE => Err(HcaError::Gone(self.device.clone())),
                    errno => {
                        let source = io::Error::from_raw_os_error(errno);
                        Err(HcaError::Io { what: "receiving management datagrams".into(), source })
                    }
                };
            }
            let mut mad = Mad { peer: peer(&buffer.head.addr), bytes: Box::new(buffer.bytes) };
            let mut header = mad.header();
            if header.class == MgmtClass::SubnAdm {
                match self.requests.end(header.tid) {
                    Some((tid, to)) => {
                        header.tid = tid;
                        header.put(&mut mad.bytes);
                        // Soft-RoCE reports source LID 0, which is invalid. The response comes from the
                        // destination of the request.
                        if mad.peer.lid == Lid(0) {
                            mad.peer.lid = to;
                        }
                    }
                    None if header.method.is_response() => continue,
                    None => {}
                }
            }
            // A datagram with an error status is our own request that was not answered.
            if buffer.head.status == 0 {
                return Ok(Some(mad));
            }
        }
        Ok(None)
    }
}

/// Converts a destination to the kernel's format: network byte order.
fn address(peer: &MadAddress) -> sys::ib_mad_addr {
    let mut addr = sys::ib_mad_addr {
        qpn: peer.qpn.get().to_be(),
        qkey: peer.qkey.0.to_be(),
        lid: peer.lid.0.to_be(),
        sl: peer.sl.get(),
        path_bits: peer.path_bits,
        pkey_index: peer.pkey_index,
        ..Default::default()
    };
    if let Some(route) = &peer.route {
        addr.grh_present = 1;
        addr.gid_index = route.sgid_index;
        addr.hop_limit = route.hop_limit;
        addr.traffic_class = route.traffic_class;
        addr.flow_label = route.flow_label.to_be();
        addr.__bindgen_anon_1.gid = route.gid.0;
    }
    addr
}

/// Converts the source of a datagram.
fn peer(addr: &sys::ib_mad_addr) -> MadAddress {
    let route = (addr.grh_present != 0).then(|| Route {
        // SAFETY: all views of a GID are 16 plain bytes.
        gid: Gid(unsafe { addr.__bindgen_anon_1.gid }),
        sgid_index: addr.gid_index,
        flow_label: u32::from_be(addr.flow_label),
        hop_limit: addr.hop_limit,
        traffic_class: addr.traffic_class,
    });
    MadAddress {
        lid: Lid(u16::from_be(addr.lid)),
        qpn: Qpn::new(u32::from_be(addr.qpn)),
        qkey: QKey(0),
        sl: ServiceLevel::new(addr.sl),
        path_bits: addr.path_bits & 0x7f,
        pkey_index: addr.pkey_index,
        route,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::sa::attribute::PATH_RECORD;

    #[test]
    fn an_answer_gets_its_transaction_id_back() {
        let mut requests = Requests::default();
        let (ours, other) = (Tid(0xaaaa_bbbb_0000_0001), Tid(0xaaaa_bbbb_0000_0002));
        assert!(requests.begin(ours, PATH_RECORD, Lid(5)).unwrap());
        assert!(!requests.begin(ours, PATH_RECORD, Lid(5)).unwrap(), "the kernel does the repetition");
        assert!(requests.begin(other, PATH_RECORD, Lid(5)).unwrap());
        assert_eq!(requests.end(Tid(0x0000_0007_0000_0001)), Some((ours, Lid(5))));
        assert_eq!(requests.end(Tid(0x0000_0007_0000_0001)), None, "answered once");
        assert!(requests.begin(ours, PATH_RECORD, Lid(5)).unwrap(), "the query may be repeated");
    }

    #[test]
    fn lookups_of_paths_leave_room_for_memberships() {
        let mut requests = Requests::default();
        let lookups = (0..).take_while(|n| requests.begin(Tid(*n), PATH_RECORD, Lid(5)).is_ok()).count();
        assert_eq!(lookups, REQUESTS - RESERVED);
        let joins =
            (1000..).take_while(|n| requests.begin(Tid(*n), MC_MEMBER_RECORD, Lid(5)).is_ok()).count();
        assert_eq!(joins, RESERVED);
        assert_eq!(requests.end(Tid(0)), Some((Tid(0), Lid(5))));
        assert!(requests.begin(Tid(1000 + RESERVED as u64), PATH_RECORD, Lid(5)).is_err());
        assert!(requests.begin(Tid(1000 + RESERVED as u64), MC_MEMBER_RECORD, Lid(5)).unwrap());
    }

    #[test]
    fn addresses_survive_the_way_through_the_kernel() {
        let mut there = MadAddress {
            lid: Lid(0x1234),
            qpn: Qpn::new(1),
            qkey: QKey(0),
            sl: ServiceLevel::new(5),
            path_bits: 6,
            pkey_index: 3,
            route: None,
        };
        assert_eq!(peer(&address(&there)), there);
        assert_eq!(address(&there).lid.to_ne_bytes(), [0x12, 0x34]);
        there.route = Some(Route {
            gid: Gid(std::array::from_fn(|i| i as u8)),
            sgid_index: 2,
            flow_label: 0x1_2345,
            hop_limit: 64,
            traffic_class: 9,
        });
        assert_eq!(peer(&address(&there)), there);
    }

    #[test]
    fn the_mask_names_methods() {
        assert_eq!(mask(&[Method::Send])[0], 1 << 3);
        assert_eq!(mask(&[]).iter().copied().sum::<c_long>(), 0);
        assert_eq!(size_of::<Buffer>() - MAD_LEN, 64, "the header length that umad_size() returns");
    }
}
