//! Two devices on a connection, of any backend that registers memory from a send queue.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ib_wire::{Psn, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, BURST, Backend, DoneBurst, GlobalRoute, LinkLayer, MemoryWork, Outcome, PortNumber,
    QpEvent, QpTransition, Queues, QueuesConfig, QueuesId, RcConfig, RcSlot, RcToReceive, RcToSend,
    RemoteAccess, RxBurst, UdSlot, WcStatus,
};
use pmd::mem::Pool;

use super::text;

/// The port of each device.
pub(super) const PORT: PortNumber = PortNumber(1);
/// The connection.
pub(super) const SLOT: RcSlot = RcSlot(0);
/// Largest message.
pub(super) const MESSAGE: usize = 64 << 10;
/// Maximum of outstanding RDMA READs.
pub(super) const READS: usize = 4;
const ID: QueuesId = QueuesId(0);
const SRQ_DEPTH: u32 = 64;
/// Time after which work counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// Iterations without an event between two reads of the clock.
const IDLE_TURNS: u32 = 1 << 14;

/// A device, its queues, and its end of the connection.
pub(super) struct End<B: Backend> {
    pub(super) hca: B,
    pub(super) queues: B::Queues,
    qpn: Qpn,
    burst: RxBurst,
    events: ArrayVec<QpEvent, BURST>,
    done: DoneBurst,
    /// Messages that arrived.
    pub(super) messages: u64,
    /// The processor time of a device in this process, if it is measured.
    pub(super) device: Option<Duration>,
}

impl<B: Backend<Queues: MemoryWork>> End<B> {
    fn new(mut hca: B, pools: &[&Pool]) -> Result<Self, String> {
        for pool in pools {
            hca.register_pool(pool).map_err(text)?;
        }
        let config = QueuesConfig {
            id: ID,
            ud_recv_depth: 64,
            ud_recv_most: u32::MAX,
            srq_depth: SRQ_DEPTH,
            srq_message: MESSAGE,
            srq_limit: 0,
            max_ud: 1,
            likely_ud: 1,
            max_rc: 1,
            max_sends: 1024,
            signal_every: 16,
        };
        let pool = pools.first().ok_or("no pool")?;
        let mut queues = hca.create_queues(&config, pool).map_err(text)?;
        let config = RcConfig { queues: ID, port: PORT, beside: UdSlot(0), send_depth: 128, passive: false };
        let rc = hca.create_rc(&config).map_err(text)?;
        let qpn = B::rc_qpn(&rc);
        queues.insert_rc(SLOT, rc).map_err(|_| "the slot is taken")?;
        queues.refill();
        let (burst, events, done) = (RxBurst::new(), ArrayVec::new(), DoneBurst::new());
        Ok(Self { hca, queues, qpn, burst, events, done, messages: 0, device: None })
    }

    fn connect(&mut self, other: &Self) -> Result<(), String> {
        let port = other.hca.port(PORT).map_err(text)?;
        let global =
            |dgid| GlobalRoute { dgid, sgid_index: 0, flow_label: 0, hop_limit: 64, traffic_class: 0 };
        let grh = match port.link_layer {
            LinkLayer::Ethernet => Some(global(other.hca.gid(PORT, 0).map_err(text)?)),
            _ => None,
        };
        let av = AddressVector {
            dlid: port.lid,
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::default(),
            grh,
        };
        let reads = READS as u8;
        let remote = RemoteAccess { write: true, read: true, atomic: false, answered: reads, asked: reads };
        self.hca.set_remote_access(self.qpn, &remote).map_err(text)?;
        let (psn, path_mtu) = (Psn::new(100), port.active_mtu);
        let receive = RcToReceive { av, dest_qpn: other.qpn, rq_psn: psn, path_mtu, min_rnr_timer: 12 };
        let send = RcToSend { sq_psn: psn, timeout: 14, retry_count: 7, rnr_retry: 7 };
        let init = QpTransition::RcToInit { pkey_index: 0 };
        for to in [init, QpTransition::RcToReceive(receive), QpTransition::RcToSend(send)] {
            self.hca.modify_qp(self.qpn, &to).map_err(text)?;
        }
        Ok(())
    }

    /// One iteration, as a worker does it.
    pub(super) fn turn(&mut self) -> Result<(), String> {
        self.queues.ring();
        match &mut self.device {
            Some(device) => {
                let begin = Instant::now();
                self.queues.turn();
                *device += begin.elapsed();
            }
            None => {
                self.queues.turn();
            }
        }
        self.queues.poll_receive(&mut self.burst, &mut self.events);
        self.messages += self.burst.len() as u64;
        self.burst.clear();
        self.queues.poll_send(&mut self.events);
        self.queues.take_done(&mut self.done);
        self.queues.refill();
        match self.events.first() {
            Some(event) => Err(format!("queue pair {}: {:?}", event.qpn, event.fault)),
            None => Ok(()),
        }
    }

    /// Takes the completed work, all of which must have succeeded.
    pub(super) fn take(&mut self, mut each: impl FnMut(Outcome) -> Result<(), String>) -> Result<(), String> {
        for done in self.done.drain(..) {
            if done.status != WcStatus::Success {
                return Err(format!("memory work ended as {:?}: {:?}", done.status, done.what));
            }
            each(done.what)?;
        }
        Ok(())
    }

    fn close(mut self) -> Result<(), String> {
        if let Some(rc) = self.queues.remove_rc(SLOT) {
            self.hca.destroy_rc(rc).map_err(text)?;
        }
        self.hca.destroy_queues(self.queues).map_err(text)
    }
}

/// Both ends.
pub(super) struct Link<B: Backend> {
    pub(super) ends: [End<B>; 2],
}

impl<B: Backend<Queues: MemoryWork>> Link<B> {
    /// Connects two devices with active ports. Receives use the first pool's buffers.
    pub(super) fn new(devices: [B; 2], pools: &[&Pool]) -> Result<Self, String> {
        let [one, other] = devices;
        let mut ends = [End::new(one, pools)?, End::new(other, pools)?];
        let [one, other] = &mut ends;
        one.connect(other)?;
        other.connect(one)?;
        Ok(Self { ends })
    }

    /// Polls both ends until a condition holds.
    pub(super) fn until(
        &mut self,
        mut holds: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let mut patience = Patience::default();
        while !holds(self)? {
            for end in &mut self.ends {
                end.turn()?;
            }
            patience.turn()?;
        }
        Ok(())
    }

    /// Destroys everything.
    pub(super) fn close(self) -> Result<(), String> {
        self.ends.into_iter().try_for_each(End::close)
    }
}

/// Timeout of a wait.
#[derive(Default)]
pub(super) struct Patience {
    turns: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Counts another iteration without the event.
    pub(super) fn turn(&mut self) -> Result<(), String> {
        self.turns += 1;
        if self.turns.is_multiple_of(IDLE_TURNS)
            && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return Err(format!("nothing comes within {PATIENCE:?}"));
        }
        Ok(())
    }
}
