//! A device: the engine, and the kernel's objects for the engine's objects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ptr::NonNull;
use std::time::Instant;

use connectx::cable::CableEnd;
use connectx::engine::{Engine, EngineConfig};
use connectx::{DeviceEvent, HostMemory, PortConfig, RemoteOperations};
use ib_wire::{Guid, Lid, Mtu, Qpn};
use pmd::hca::{AsyncEvent, LinkLayer, PortNumber};
use uverbs_sys as abi;
use verbs_sys as verbs;

use super::doorbell;

/// The only port.
pub(super) const PORT: PortNumber = PortNumber(1);

/// Settings of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Node GUID. The port GUID is one more.
    pub(crate) guid: u64,
    /// LID of the port.
    pub(crate) lid: u16,
    /// CQE version.
    pub(crate) cqe_version: u8,
    /// Number of doorbell pages.
    pub(crate) pages: usize,
    /// True if the machine supports write-combining.
    pub(crate) write_combining: bool,
    /// True if user-level commands (DEVX) are allowed.
    pub(crate) users: bool,
}

/// A queue pair as described by the library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRecord {
    /// Queue pair number.
    pub(crate) qpn: Qpn,
    /// WQEBBs of the send ring.
    pub(crate) sq_wqebbs: u32,
    /// Number of receive slots, and length of a slot in bytes.
    pub(crate) rq: (u32, u32),
    /// Address of the rings.
    pub(crate) buf: u64,
    /// Address of the doorbell record.
    pub(crate) dbrec: u64,
    /// Flags.
    pub(crate) flags: u32,
    pub(super) user_handle: u64,
    /// Operations permitted to the remote end.
    pub(super) remote: RemoteOperations,
}

impl QpRecord {
    /// Address of the send ring, which follows the receive ring.
    pub(crate) fn sq_buf(&self) -> u64 {
        self.buf + u64::from(self.rq.0 * self.rq.1)
    }
}

/// A completion queue or shared receive queue as described by the library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRecord {
    /// The engine's number.
    pub(crate) number: u32,
    /// Entries of the ring.
    pub(crate) entries: u32,
    /// Length of an entry in bytes.
    pub(crate) stride: u32,
    /// Address of the ring.
    pub(crate) buf: u64,
    /// Address of the doorbell record.
    pub(crate) dbrec: u64,
    pub(super) user_handle: u64,
    /// Event channel, and the consumer index from which an event is armed.
    pub(super) channel: Option<i32>,
    pub(super) armed: Option<u32>,
    /// Number of reported events.
    pub(super) reported: u32,
}

impl QueueRecord {
    /// True if there is a completion at this consumer index (the owner bit flips with each lap).
    fn has(&self, consumer: u32) -> bool {
        let at = self.buf + u64::from(consumer & (self.entries - 1)) * 64 + 63;
        // SAFETY: within a ring that the library keeps.
        let owner = unsafe { (at as *const u8).read_volatile() };
        owner >> 4 != 15 && owner & 1 == u8::from(consumer & self.entries != 0)
    }
}

/// Object behind a handle.
#[derive(Debug)]
pub(super) enum Object {
    Domain,
    Memory(u32),
    Cq(QueueRecord),
    Srq(QueueRecord),
    Qp(QpRecord),
    Address,
    Page,
}

/// A ConnectX.
#[derive(Debug)]
pub(crate) struct Device {
    /// The engine behind the rings.
    pub(crate) engine: Engine,
    pub(super) settings: Settings,
    index: usize,
    pub(super) objects: BTreeMap<u32, Object>,
    next_handle: u32,
    next_page: u32,
    /// Numbers of all queue pairs that ever existed.
    pub(super) made: BTreeSet<u32>,
    /// Completion channels: the library's end and the device's.
    pub(super) channels: Vec<(i32, i32)>,
    /// Mapped doorbell pages: number and address.
    pages: Vec<(u32, usize)>,
    events: VecDeque<abi::ib_uverbs_async_event_desc>,
    /// If true, destroying a queue pair fails.
    pub(crate) keeps_queue_pairs: bool,
    /// If true, destroying a key created by a user-level command fails.
    pub(crate) keeps_keys: bool,
    /// If true, datagram queue pairs have their own receives, as with some adapters.
    pub(crate) shares_no_datagrams: bool,
    /// Number of events of each object that the library has fetched.
    fetched: BTreeMap<u64, u32>,
}

impl Device {
    pub(super) fn new(index: usize, settings: &Settings) -> Self {
        let engine = Engine::new(EngineConfig {
            node_guid: Guid(settings.guid),
            description: format!("mlx5_{index}"),
            ports: vec![PortConfig {
                guid: Guid(settings.guid + 1),
                max_mtu: Mtu::B4096,
                link_layer: LinkLayer::InfiniBand,
                gid_table: 1,
            }],
            seed: settings.guid,
        });
        Self {
            engine,
            settings: *settings,
            index,
            objects: BTreeMap::new(),
            next_handle: 1,
            next_page: 1,
            made: BTreeSet::new(),
            channels: Vec::new(),
            pages: Vec::new(),
            events: VecDeque::new(),
            keeps_queue_pairs: false,
            keeps_keys: false,
            shares_no_datagrams: false,
            fetched: BTreeMap::new(),
        }
    }

    /// Plugs in a link and makes the port active, as a subnet manager would.
    pub(crate) fn plug(&mut self, link: CableEnd) {
        self.engine.set_cable(PORT, Some(link)).unwrap();
        self.activate(Mtu::B2048);
    }

    /// Sets the port's MTU, as the subnet manager would.
    pub(crate) fn activate(&mut self, mtu: Mtu) {
        self.engine.activate(PORT, Lid(self.settings.lid), mtu).unwrap();
    }

    /// Drops the pending events.
    pub(crate) fn calm(&mut self) {
        while self.engine.next_event().is_some() {}
    }

    /// Number of existing objects by kind: domains, regions, completion queues, shared receive queues, queue
    /// pairs, addresses.
    pub(crate) fn census(&self) -> [usize; 6] {
        let mut census = [0; 6];
        for object in self.objects.values() {
            let kind = match object {
                Object::Domain => 0,
                Object::Memory(_) => 1,
                Object::Cq(_) => 2,
                Object::Srq(_) => 3,
                Object::Qp(_) => 4,
                Object::Address => 5,
                // Pages belong to the context.
                Object::Page => continue,
            };
            census[kind] += 1;
        }
        census
    }

    /// Returns the queue pairs.
    pub(crate) fn qps(&self) -> impl Iterator<Item = &QpRecord> {
        self.objects.values().filter_map(|object| if let Object::Qp(qp) = object { Some(qp) } else { None })
    }

    /// Returns the completion queues.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &QueueRecord> {
        self.objects.values().filter_map(|object| if let Object::Cq(cq) = object { Some(cq) } else { None })
    }

    /// Returns the shared receive queues.
    pub(crate) fn srqs(&self) -> impl Iterator<Item = &QueueRecord> {
        self.objects
            .values()
            .filter_map(|object| if let Object::Srq(srq) = object { Some(srq) } else { None })
    }

    pub(super) const fn index(&self) -> usize {
        self.index
    }

    pub(super) fn add(&mut self, object: Object) -> u32 {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.objects.insert(handle, object);
        handle
    }

    /// Allocates a doorbell page and returns its number.
    pub(super) fn new_page(&mut self) -> Option<u32> {
        let number = self.next_page;
        (number as usize <= self.settings.pages).then(|| {
            self.next_page += 1;
            number
        })
    }

    /// Maps the page whose number is in the offset.
    pub(super) fn map_page(&mut self, offset: u64) -> Option<usize> {
        let number = u32::try_from(offset >> 12).ok().filter(|number| *number < self.next_page)?;
        let page = doorbell::new_page(true);
        self.pages.push((number, page));
        Some(page)
    }

    /// Removes an unmapped page.
    pub(super) fn unmap_page(&mut self, page: usize) {
        self.pages.retain(|(_, known)| *known != page);
    }

    pub(super) fn has_page(&self, page: usize) -> bool {
        self.pages.iter().any(|(_, known)| *known == page)
    }

    /// Arms a completion queue.
    pub(super) fn arm(&mut self, cqn: u32, consumer: u32) {
        for object in self.objects.values_mut() {
            if let Object::Cq(cq) = object
                && cq.number == cqn
            {
                cq.armed = Some(consumer);
            }
        }
    }

    fn report_completions(&mut self) {
        for object in self.objects.values_mut() {
            let Object::Cq(cq) = object else { continue };
            let (Some(channel), Some(consumer)) = (cq.channel, cq.armed) else { continue };
            if cq.has(consumer) {
                cq.armed = None;
                cq.reported += 1;
                let event = abi::ib_uverbs_comp_event_desc { cq_handle: cq.user_handle };
                // SAFETY: the event is a local variable; the channel's other end is open as long as a queue
                // uses it.
                let sent = unsafe { libc::write(channel, (&raw const event).cast(), size_of_val(&event)) };
                assert_eq!(sent, size_of_val(&event) as isize);
            }
        }
    }

    /// A destroyed queue pair may have a doorbell from before.
    pub(super) fn ring(&mut self, qpn: u32) {
        assert!(self.made.contains(&qpn), "a doorbell of queue pair {qpn:#x}, which never existed");
        self.engine.ring(Qpn::new(qpn));
    }

    pub(super) fn turn(&mut self, now: Instant) -> bool {
        let worked = self.engine.step(now);
        self.report_completions();
        while let Some(event) = self.engine.next_event() {
            if let Some(event) = self.describe(event) {
                self.events.push_back(event);
            }
        }
        worked
    }

    fn describe(&self, event: DeviceEvent) -> Option<abi::ib_uverbs_async_event_desc> {
        let of_qp = |qpn: Qpn| self.qps().find(|qp| qp.qpn == qpn).map(|qp| qp.user_handle);
        let of_srq = |number| self.srqs().find(|srq| srq.number == number).map(|srq| srq.user_handle);
        let (event_type, element) = match event {
            DeviceEvent::SrqLimit(number) => (verbs::IBV_EVENT_SRQ_LIMIT_REACHED, of_srq(number)?),
            DeviceEvent::Async(AsyncEvent::LastWqeReached(qpn)) => {
                (verbs::IBV_EVENT_QP_LAST_WQE_REACHED, of_qp(qpn)?)
            }
            DeviceEvent::Async(AsyncEvent::QpFatal(qpn)) => (verbs::IBV_EVENT_QP_FATAL, of_qp(qpn)?),
            DeviceEvent::Async(AsyncEvent::PortActive(port)) => (verbs::IBV_EVENT_PORT_ACTIVE, port.0.into()),
            DeviceEvent::Async(AsyncEvent::PortError(port)) => (verbs::IBV_EVENT_PORT_ERR, port.0.into()),
            DeviceEvent::SrqError(number) => (verbs::IBV_EVENT_SRQ_ERR, of_srq(number)?),
            DeviceEvent::QpRequestError(qpn) => (verbs::IBV_EVENT_QP_REQ_ERR, of_qp(qpn)?),
            DeviceEvent::QpAccessError(qpn) => (verbs::IBV_EVENT_QP_ACCESS_ERR, of_qp(qpn)?),
            DeviceEvent::SqDrained(qpn) => (verbs::IBV_EVENT_SQ_DRAINED, of_qp(qpn)?),
            DeviceEvent::CqOverrun(_) => panic!("the device has overrun a completion queue"),
            DeviceEvent::Async(_) => return None,
        };
        Some(abi::ib_uverbs_async_event_desc { element, event_type, reserved: 0 })
    }

    /// Returns the next event for the library.
    pub(super) fn take_event(&mut self) -> Option<abi::ib_uverbs_async_event_desc> {
        let event = self.events.pop_front()?;
        *self.fetched.entry(event.element).or_default() += 1;
        Some(event)
    }

    /// Removes the unfetched events of a destroyed object. Returns the number of fetched events: the library
    /// waits until that number is acknowledged.
    pub(super) fn end_events(&mut self, user_handle: u64) -> u32 {
        self.events.retain(|event| event.element != user_handle);
        self.fetched.remove(&user_handle).unwrap_or(0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for (_, ours) in &self.channels {
            // SAFETY: opened by us, and closed once.
            unsafe { libc::close(*ours) };
        }
    }
}

/// Returns the program's memory at an address that it passed.
pub(super) fn host(address: u64, len: usize) -> HostMemory {
    let base = NonNull::new(address as *mut u8).expect("an address");
    // SAFETY: the library keeps this memory until the object is destroyed, as with the real kernel, which
    // pins it.
    unsafe { HostMemory::new(base, len) }
}
