//! Our end: a software device on a network interface, its queues and queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use connectx::cable::CableUrl;
use connectx::{Activity, Counters, DropReason};
use ib_wire::packet::{GRH_LEN, RoceNetwork};
use ib_wire::{Gid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, BURST, Backend, Control, GlobalRoute, PortNumber, QpEvent, QpTransition, Queues,
    QueuesConfig, QueuesId, RcConfig, RcSlot, RcToReceive, RcToSend, RxBurst, UdConfig, UdDestination,
    UdSlot,
};
use pmd::mem::{Mbuf, Pool};
use pmd::soft::{RoceConfig, RoceGids, SoftHca};

use crate::exchange::Address;
use crate::{Error, Mode};

type DriverQueues = <SoftHca as Backend>::Queues;
type Destination = <DriverQueues as Queues>::Destination;

const PORT: PortNumber = PortNumber(1);
/// Q_Key of the programs' datagram queue pairs.
const QKEY: QKey = QKey(0x1111_1111);
const RECEIVES: u32 = 64;
const UD_RECEIVES: u32 = 512;

/// Parameters of the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceConfig {
    pub(crate) link: CableUrl,
    pub(crate) gids: RoceGids,
    pub(crate) gid_index: u8,
    pub(crate) mode: Mode,
    pub(crate) queue_pairs: u16,
    /// Largest message, bytes.
    pub(crate) size: usize,
    /// Largest packet on connections.
    pub(crate) mtu: Mtu,
    pub(crate) seed: u64,
}

/// Destination of our queue pairs.
#[derive(Debug)]
enum Way {
    Connections,
    Datagrams(Option<Destination>),
}

/// The device and its queues.
#[derive(Debug)]
pub(crate) struct End {
    hca: SoftHca,
    pub(crate) queues: DriverQueues,
    config: DeviceConfig,
    qpns: Vec<Qpn>,
    way: Way,
    peer: Option<Gid>,
    pub(crate) burst: RxBurst,
    pub(crate) events: ArrayVec<QpEvent, BURST>,
}

/// Polls the device from another thread while this one waits for something else: the other end's kernel
/// queries our MAC address before its program answers.
#[derive(Debug)]
pub(crate) struct Attendant {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    pub(crate) fn of(end: &End) -> Self {
        let (engine, stop) = (Arc::clone(end.hca.engine()), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                engine.lock().step(Instant::now());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It contains nothing that a panic could leave inconsistent.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Splitmix64.
pub(crate) const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl End {
    pub(crate) fn new(config: DeviceConfig, pool: &Pool) -> Result<Self, Error> {
        let mut hca = SoftHca::roce(&RoceConfig {
            name: "soft0".to_owned(),
            cable: config.link.clone(),
            gids: config.gids.clone(),
            seed: config.seed,
        })?;
        hca.register_pool(pool)?;
        let datagrams = config.mode == Mode::Ud;
        let most = hca.port(PORT)?.max_mtu;
        if config.mtu > most || datagrams && config.size > most.bytes() {
            return Err(Error::Mtu(most.bytes()));
        }
        let mut queues = hca.create_queues(
            &QueuesConfig {
                id: QueuesId(0),
                ud_recv_depth: if datagrams { UD_RECEIVES } else { 1 },
                ud_recv_most: u32::MAX,
                srq_depth: if datagrams { 0 } else { RECEIVES },
                srq_message: config.size.max(1),
                srq_limit: 0,
                max_ud: 1,
                likely_ud: 1,
                max_rc: config.queue_pairs.into(),
                max_sends: 4096,
                signal_every: 1,
            },
            pool,
        )?;
        let mut qpns = Vec::new();
        if datagrams {
            let ud = hca.create_ud(&UdConfig { queues: QueuesId(0), port: PORT, send_depth: 64 })?;
            qpns.push(SoftHca::ud_qpn(&ud));
            queues.insert_ud(UdSlot(0), ud).map_err(|_| Error::Slot)?;
        } else {
            for slot in 0..config.queue_pairs {
                let rc = RcConfig {
                    queues: QueuesId(0),
                    port: PORT,
                    beside: UdSlot(0),
                    send_depth: 4,
                    passive: false,
                };
                let rc = hca.create_rc(&rc)?;
                qpns.push(SoftHca::rc_qpn(&rc));
                queues.insert_rc(RcSlot(slot), rc).map_err(|_| Error::Slot)?;
            }
        }
        queues.refill();
        let way = if datagrams { Way::Datagrams(None) } else { Way::Connections };
        Ok(Self {
            hca,
            queues,
            config,
            qpns,
            way,
            peer: None,
            burst: RxBurst::new(),
            events: ArrayVec::new(),
        })
    }

    /// The addresses of our queue pairs.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, Error> {
        // An index beyond the table is an empty entry.
        let gid = self.hca.gid(PORT, self.config.gid_index.into()).unwrap_or(Gid::ZERO);
        if gid == Gid::ZERO {
            return Err(Error::GidIndex(self.config.gid_index));
        }
        let psn = |i: usize| Psn::new(mix(self.config.seed ^ (i as u64 + 1)) as u32);
        let address = |(i, qpn): (usize, &Qpn)| Address { lid: Lid(0), qpn: *qpn, psn: psn(i), gid };
        Ok(self.qpns.iter().enumerate().map(address).collect())
    }

    /// The index of one of our queue pairs.
    pub(crate) fn index(&self, qpn: Qpn) -> Option<usize> {
        self.qpns.iter().position(|q| *q == qpn)
    }

    /// Connects each queue pair to the other end's.
    pub(crate) fn ready(&mut self, ours: &[Address], theirs: &[Address]) -> Result<(), Error> {
        self.peer = theirs.first().map(|them| them.gid);
        for (us, them) in ours.iter().zip(theirs) {
            let grh = GlobalRoute {
                dgid: them.gid,
                sgid_index: self.config.gid_index,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
            };
            let av = AddressVector {
                dlid: them.lid,
                sl: ServiceLevel::new(0),
                src_path_bits: 0,
                rate: Rate::default(),
                grh: Some(grh),
            };
            let path = if let Way::Datagrams(destination) = &mut self.way {
                let to = UdDestination { av, qpn: them.qpn, qkey: Some(QKEY) };
                *destination = Some(self.hca.destination(PORT, &to)?);
                vec![
                    QpTransition::UdToInit { pkey_index: 0, qkey: QKEY },
                    QpTransition::UdToReceive,
                    QpTransition::UdToSend { sq_psn: us.psn },
                ]
            } else {
                let (rq_psn, path_mtu) = (them.psn, self.config.mtu);
                let receive = RcToReceive { av, dest_qpn: them.qpn, rq_psn, path_mtu, min_rnr_timer: 12 };
                let send = RcToSend { sq_psn: us.psn, timeout: 14, retry_count: 7, rnr_retry: 7 };
                vec![
                    QpTransition::RcToInit { pkey_index: 0 },
                    QpTransition::RcToReceive(receive),
                    QpTransition::RcToSend(send),
                ]
            };
            for to in path {
                self.hca.modify_qp(us.qpn, &to)?;
            }
        }
        if matches!(self.way, Way::Datagrams(_)) {
            self.queues.open_ud(UdSlot(0));
        }
        Ok(())
    }

    /// Posts a message.
    pub(crate) fn send(&mut self, index: usize, message: Mbuf) -> Result<(), Error> {
        match &self.way {
            Way::Connections => self.queues.send_rc(RcSlot(index as u16), message),
            Way::Datagrams(Some(to)) => self.queues.send_ud(UdSlot(0), to, message),
            Way::Datagrams(None) => return Err(Error::Slot),
        }
        .map_err(|refused| Error::Post(refused.error))
    }

    /// True if no work of this queue pair is outstanding after `done` sends completed in this iteration.
    pub(crate) fn is_done(&self, index: usize, done: usize) -> bool {
        match &self.way {
            Way::Connections => self.queues.rc_outstanding(RcSlot(index as u16)) == 0,
            // At most one is outstanding.
            Way::Datagrams(_) => done > 0,
        }
    }

    /// True if the GRH before a datagram is from the other end to us.
    pub(crate) fn came_from_there(&self, area: &[u8; GRH_LEN]) -> bool {
        let us = self.hca.gid(PORT, self.config.gid_index.into()).ok();
        RoceNetwork::of_area(area).is_some_and(|n| Some(n.sgid()) == self.peer && Some(n.dgid()) == us)
    }

    /// One iteration, as a worker does it. Returns whether there was work, and the number of completed sends.
    pub(crate) fn turn(&mut self) -> (bool, usize) {
        self.hca.follow_gids(Instant::now());
        self.queues.ring();
        let worked = self.queues.turn();
        self.queues.poll_receive(&mut self.burst, &mut self.events);
        let done = self.queues.poll_send(&mut self.events);
        self.queues.refill();
        (worked || done > 0 || !self.burst.is_empty(), done)
    }

    /// Counters that are not zero.
    pub(crate) fn counters(&self) -> String {
        let counters: Counters = self.hca.counters();
        let did = Activity::ALL.iter().map(|&a| (a.name(), counters.activity(a)));
        let dropped = DropReason::ALL.iter().map(|&r| (r.name(), counters.drops(r)));
        let shown = did.chain(dropped).filter(|&(_, n)| n > 0);
        shown.map(|(label, n)| format!("{label} {n}")).collect::<Vec<_>>().join(", ")
    }
}
