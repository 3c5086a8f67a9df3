//! Two ends with one worker's queues each, and their results.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ib_wire::{Gid, Lid, Mtu, PortNumber, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, AsyncEvent, Backend, Checksum, Control, Done, DoneBurst, GlobalRoute, LinkLayer,
    MemoryWork, QpEvent, QpFault, QpState, QpTransition, Queues, QueuesConfig, QueuesId, RcConfig, RcSlot,
    RcToReceive, RcToSend, Received, RemoteAccess, RxBurst, Source, UdConfig, UdDestination, UdSlot,
};
use pmd::mem::{Mbuf, Pool};

use crate::lab::{Failure, Lab, Need, Outcome, same, wrong};

/// Q_Key of the datagram queue pairs.
pub(crate) const QKEY: QKey = QKey(0x0b1b);
/// The worker of the queues.
pub(crate) const WORKER: QueuesId = QueuesId(3);
/// The first datagram queue pair.
pub(crate) const UD: UdSlot = UdSlot(0);
/// Time limit of any working operation.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A received message.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// The 40 bytes in front of it.
    pub(crate) grh: Vec<u8>,
    pub(crate) qpn: Qpn,
    pub(crate) ud: Option<UdSlot>,
    pub(crate) rc: Option<RcSlot>,
    pub(crate) source: Source,
    pub(crate) checksum: Checksum,
}

/// One end.
pub(crate) struct End<B: Backend> {
    /// Finished memory work.
    pub(crate) done: Vec<Done>,
    pub(crate) hca: B,
    pub(crate) queues: B::Queues,
    pub(crate) pool: Pool,
    pub(crate) ud: Qpn,
    pub(crate) messages: Vec<Message>,
    pub(crate) faults: Vec<QpEvent>,
    pub(crate) events: Vec<AsyncEvent>,
    /// Number of buffers returned by send completions.
    pub(crate) freed: usize,
    /// Keep the receive queues full.
    pub(crate) refill: bool,
    /// Receive messages.
    pub(crate) receive: bool,
}

impl<B: Backend<Queues: MemoryWork>> End<B> {
    fn new(mut hca: B, port: PortNumber, config: &QueuesConfig, pool: &Pool) -> Outcome<Self> {
        hca.register_pool(pool)?;
        let mut queues = hca.create_queues(config, pool)?;
        let ud = hca.create_ud(&UdConfig { queues: WORKER, port, send_depth: 64 })?;
        let qpn = B::ud_qpn(&ud);
        if queues.insert_ud(UD, ud).is_err() {
            return wrong("the first slot is taken");
        }
        same!(queues.ud_qpn(UD), Some(qpn), "number of the datagram queue pair");
        Ok(Self {
            ud: qpn,
            hca,
            queues,
            pool: pool.clone(),
            done: Vec::new(),
            messages: Vec::new(),
            faults: Vec::new(),
            events: Vec::new(),
            freed: 0,
            refill: true,
            receive: true,
        })
    }

    /// Runs one iteration of the worker and of the control lcore.
    pub(crate) fn turn(&mut self) -> bool {
        let mut worked = self.queues.turn();
        self.queues.ring();
        let (mut burst, mut faults) = (RxBurst::new(), ArrayVec::new());
        if self.receive {
            self.queues.poll_receive(&mut burst, &mut faults);
        }
        for received in burst {
            let mut bytes = vec![0; received.buf.len()];
            let whole = received.buf.read(0, &mut bytes) == bytes.len();
            assert!(whole, "a chain is shorter than its length field");
            let grh = received.buf.before_data(40).unwrap_or_default().to_vec();
            let Received { qpn, ud, rc, source, checksum, .. } = received;
            self.messages.push(Message { bytes, grh, qpn, ud, rc, source, checksum });
            worked = true;
        }
        let freed = self.queues.poll_send(&mut faults);
        let mut done = DoneBurst::new();
        self.queues.take_done(&mut done);
        worked |= !done.is_empty();
        self.done.extend(done);
        worked |= freed > 0 || !faults.is_empty();
        self.freed += freed;
        self.faults.extend(faults);
        while let Some(event) = self.hca.next_event() {
            self.events.push(event);
            worked = true;
        }
        if self.refill {
            worked |= self.queues.refill() > 0;
        }
        worked
    }

    pub(crate) fn faults_of(&self, qpn: Qpn) -> Vec<QpFault> {
        self.faults.iter().filter(|e| e.qpn == qpn).map(|e| e.fault).collect()
    }

    pub(crate) fn count(&self, event: AsyncEvent) -> usize {
        self.events.iter().filter(|e| **e == event).count()
    }

    /// Moves the queue pair from RESET to RTS and opens it.
    pub(crate) fn open_ud(&mut self, qkey: QKey) -> Outcome {
        for to in [
            QpTransition::UdToInit { pkey_index: 0, qkey },
            QpTransition::UdToReceive,
            QpTransition::UdToSend { sq_psn: Psn::new(0) },
        ] {
            self.hca.modify_qp(self.ud, &to)?;
        }
        self.queues.open_ud(UD);
        Ok(())
    }

    pub(crate) fn state(&self, qpn: Qpn) -> Outcome<QpState> {
        Ok(self.hca.qp_state(qpn)?)
    }

    /// Returns a buffer, or a chain of full buffers, with these bytes.
    pub(crate) fn buffer(&self, bytes: &[u8]) -> Outcome<Mbuf> {
        self.pool.copy_from_slice(bytes).ok_or_else(|| Failure::Wrong("the pool is empty".into()))
    }

    /// Returns a chain whose segments contain `piece` bytes each.
    pub(crate) fn chain(&self, bytes: &[u8], piece: usize) -> Outcome<Mbuf> {
        let mut chain: Option<Mbuf> = None;
        for part in bytes.chunks(piece).rev() {
            let mut buf = self.buffer(part)?;
            if let Some(tail) = chain.take() {
                buf.append_chain(tail);
            }
            chain = Some(buf);
        }
        chain.map_or_else(|| self.buffer(&[]), Ok)
    }
}

/// Parameters of a connection. End 0 is the active one.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) mtu: Mtu,
    /// First PSN of each end.
    pub(crate) psn: [u32; 2],
    /// First PSN that the other end expects, if different.
    pub(crate) expected: Option<[u32; 2]>,
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) depth: u32,
    /// End 1 is passive, as in IPoIB.
    pub(crate) passive: bool,
    /// The datagram queue pair of the link, at both ends.
    pub(crate) beside: UdSlot,
    /// Final state of end 1.
    pub(crate) far: QpState,
    /// Remote access rights of the ends.
    pub(crate) remote: RemoteAccess,
}

impl Default for How {
    fn default() -> Self {
        Self {
            mtu: Mtu::B2048,
            psn: [0xff_fffa, 0x12_3456],
            expected: None,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            depth: 64,
            passive: true,
            beside: UD,
            far: QpState::Rts,
            remote: RemoteAccess::default(),
        }
    }
}

/// Queue pair numbers of the two ends.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) slot: RcSlot,
    pub(crate) qpn: [Qpn; 2],
}

pub(crate) fn rc_to_receive(av: AddressVector, dest_qpn: Qpn, psn: u32, how: &How) -> QpTransition {
    QpTransition::RcToReceive(RcToReceive {
        av,
        dest_qpn,
        rq_psn: Psn::new(psn),
        path_mtu: how.mtu,
        min_rnr_timer: how.rnr_timer,
    })
}

pub(crate) fn rc_to_send(psn: u32, how: &How) -> QpTransition {
    QpTransition::RcToSend(RcToSend {
        sq_psn: Psn::new(psn),
        timeout: how.timeout,
        retry_count: how.retry,
        rnr_retry: how.rnr_retry,
    })
}

/// Default queue sizes of a check.
pub(crate) fn sizes() -> QueuesConfig {
    QueuesConfig {
        id: WORKER,
        ud_recv_depth: 64,
        ud_recv_most: u32::MAX,
        srq_depth: 32,
        srq_message: 65_524,
        srq_limit: 0,
        max_ud: 8,
        likely_ud: 1,
        max_rc: 8,
        max_sends: 1024,
        signal_every: 8,
    }
}

/// Both ends.
pub(crate) struct Bench<'l, L: Lab> {
    pub(crate) lab: &'l mut L,
    pub(crate) ends: [End<L::Hca>; 2],
}

impl<'l, L: Lab> Bench<'l, L> {
    /// Opens the devices and creates queues of these sizes. The datagram queue pairs are in RESET, and
    /// nothing is posted.
    pub(crate) fn new(lab: &'l mut L, sizes: &QueuesConfig, pools: &[Pool; 2]) -> Outcome<Self> {
        let [a, b] = lab.open()?;
        let port = lab.port();
        let ends = [End::new(a, port, sizes, &pools[0])?, End::new(b, port, sizes, &pools[1])?];
        Ok(Self { lab, ends })
    }

    /// Moves both datagram queue pairs to RTS and posts all receives, after [`Bench::new`].
    pub(crate) fn start(&mut self) -> Outcome {
        for end in &mut self.ends {
            end.open_ud(QKEY)?;
            end.queues.refill();
        }
        Ok(())
    }

    /// Destroys everything. All buffers must have returned then.
    pub(crate) fn close(self) -> Outcome {
        for end in self.ends {
            let End { mut hca, mut queues, pool, .. } = end;
            for slot in 0..sizes().max_rc as u16 {
                if let Some(rc) = queues.remove_rc(RcSlot(slot)) {
                    hca.destroy_rc(rc)?;
                }
            }
            hca.destroy_queues(queues)?;
            if pool.in_use() > 0 {
                return wrong(format!(
                    "{} buffers are missing after everything was destroyed",
                    pool.in_use()
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn need(&self, need: Need) -> Outcome {
        self.lab.lacks(need).map_or(Ok(()), |why| Err(Failure::Lacks(need, why)))
    }

    pub(crate) fn has(&self, need: Need) -> bool {
        self.lab.lacks(need).is_none()
    }

    pub(crate) fn turn(&mut self) -> bool {
        let [a, b] = &mut self.ends;
        a.turn() | b.turn()
    }

    /// Runs iterations until a condition holds, for at most [`LIMIT`].
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) -> Outcome {
        let end = Instant::now() + LIMIT;
        loop {
            let worked = self.turn();
            if holds(self) {
                return Ok(());
            }
            if Instant::now() >= end {
                let states: Vec<_> = self
                    .ends
                    .iter()
                    .map(|e| {
                        let received = e.messages.len();
                        format!("{received} messages, {} sent, {:?}, {:?}", e.freed, e.faults, e.events)
                    })
                    .collect();
                return wrong(format!("not within {LIMIT:?}: {what}; ends: {}", states.join(" | ")));
            }
            if !worked {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Runs iterations for a while, so that forbidden events have time to occur.
    pub(crate) fn linger(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if !self.turn() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    pub(crate) fn gid(&self, of: usize) -> Outcome<Gid> {
        Ok(self.ends[of].hca.gid(self.lab.port(), 0)?)
    }

    /// Returns the path from one end to the other, with a GRH if requested or required by the link layer.
    pub(crate) fn way(&self, from: usize, grh: bool) -> Outcome<AddressVector> {
        let far = self.ends[1 - from].hca.port(self.lab.port())?;
        let global = GlobalRoute {
            dgid: self.gid(1 - from)?,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        };
        Ok(AddressVector {
            dlid: far.lid,
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::new(0),
            grh: (grh || far.link_layer == LinkLayer::Ethernet).then_some(global),
        })
    }

    /// Returns a destination for the other end's datagram queue pair, with a given Q_Key or the sender's own.
    pub(crate) fn to(
        &mut self,
        from: usize,
        grh: bool,
        qkey: impl Into<Option<QKey>>,
    ) -> Outcome<Destination<L>> {
        let qpn = self.ends[1 - from].ud;
        let to = UdDestination { av: self.way(from, grh)?, qpn, qkey: qkey.into() };
        Ok(self.ends[from].hca.destination(self.lab.port(), &to)?)
    }

    /// Returns a destination for a multicast group.
    pub(crate) fn destination_of_group(
        &mut self,
        from: usize,
        mgid: Gid,
        mlid: Lid,
    ) -> Outcome<Destination<L>> {
        let mut av = self.way(from, true)?;
        av.dlid = mlid;
        if let Some(grh) = &mut av.grh {
            grh.dgid = mgid;
        }
        Ok(self.ends[from]
            .hca
            .destination(self.lab.port(), &UdDestination { av, qpn: Qpn::MULTICAST, qkey: Some(QKEY) })?)
    }

    /// Makes end 1's port join a group, if the fabric routes only to members, and waits until the group's
    /// datagrams arrive. Returns the group's LID; `mlid` if nothing routes.
    pub(crate) fn join(&mut self, mgid: Gid, mlid: Lid) -> Outcome<Lid> {
        let Some(mlid) = self.lab.join(&mut self.ends[1].hca, mgid)? else { return Ok(mlid) };
        let ud = self.ends[1].ud;
        self.ends[1].hca.attach_multicast(ud, mgid, mlid)?;
        let (to_group, to) = (self.destination_of_group(0, mgid, mlid)?, self.to(0, false, QKEY)?);
        let (mut next, mut sent) = (Instant::now(), Ok(()));
        self.until("a datagram of a joined group", |b| {
            if Instant::now() >= next {
                next += Duration::from_millis(20);
                sent = b.send_ud(0, &to_group, b"?");
            }
            sent.is_err() || !b.ends[1].messages.is_empty()
        })?;
        sent?;
        // All earlier datagrams have arrived too.
        self.send_ud(0, &to, b".")?;
        self.until("the last one", |b| b.ends[1].messages.last().is_some_and(|m| m.bytes == b"."))?;
        self.ends[1].messages.clear();
        self.ends[1].hca.detach_multicast(ud, mgid, mlid)?;
        Ok(mlid)
    }

    /// Reverts [`Bench::join`].
    pub(crate) fn leave(&mut self, mgid: Gid) -> Outcome {
        self.lab.leave(&mut self.ends[1].hca, mgid)
    }

    pub(crate) fn send_ud(&mut self, from: usize, to: &Destination<L>, bytes: &[u8]) -> Outcome {
        let buf = self.ends[from].buffer(bytes)?;
        Ok(self.ends[from].queues.send_ud(UD, to, buf)?)
    }

    pub(crate) fn send_rc(&mut self, from: usize, link: &Link, bytes: &[u8]) -> Outcome {
        let buf = self.ends[from].buffer(bytes)?;
        Ok(self.ends[from].queues.send_rc(link.slot, buf)?)
    }

    /// Creates both ends of a connection, in the workers' tables.
    pub(crate) fn connect(&mut self, slot: u16, how: How) -> Outcome<Link> {
        let slot = RcSlot(slot);
        let mut rcs = Vec::new();
        for (end, passive) in self.ends.iter_mut().zip([false, how.passive]) {
            let send_depth = if passive { 1 } else { how.depth };
            let port = self.lab.port();
            rcs.push(end.hca.create_rc(&RcConfig {
                queues: WORKER,
                port,
                beside: how.beside,
                send_depth,
                passive,
            })?);
        }
        let qpn = [L::Hca::rc_qpn(&rcs[0]), L::Hca::rc_qpn(&rcs[1])];
        for (which, rc) in rcs.into_iter().enumerate() {
            let expected = how.expected.unwrap_or(how.psn);
            let far = which == 1;
            let steps = [
                QpTransition::RcToInit { pkey_index: 0 },
                rc_to_receive(self.way(which, false)?, qpn[1 - which], expected[1 - which], &how),
                rc_to_send(how.psn[which], &how),
            ];
            let count = match how.far {
                QpState::Reset if far => 0,
                QpState::Init if far => 1,
                QpState::Rtr if far => 2,
                _ => 3,
            };
            self.ends[which].hca.set_remote_access(qpn[which], &how.remote)?;
            for to in &steps[..count] {
                self.ends[which].hca.modify_qp(qpn[which], to)?;
            }
            if self.ends[which].queues.insert_rc(slot, rc).is_err() {
                return wrong(format!("slot {} is taken", slot.0));
            }
        }
        Ok(Link { slot, qpn })
    }

    /// Waits until this number of messages has arrived at an end, and takes them.
    pub(crate) fn messages(&mut self, at: usize, count: usize) -> Outcome<Vec<Message>> {
        self.until(&format!("{count} messages at end {at}"), |b| b.ends[at].messages.len() >= count)?;
        Ok(self.ends[at].messages.drain(..).collect())
    }

    /// Waits until an end's sends have returned this number of buffers since its creation.
    pub(crate) fn freed(&mut self, at: usize, count: usize) -> Outcome {
        self.until(&format!("{count} sent buffers returned at end {at}"), |b| b.ends[at].freed >= count)?;
        if self.ends[at].freed > count {
            return wrong(format!("{} of {count} sent buffers returned", self.ends[at].freed));
        }
        Ok(())
    }
}

/// A prepared destination of a lab's device.
pub(crate) type Destination<L> = <<<L as Lab>::Hca as Backend>::Queues as Queues>::Destination;

/// Returns bytes that identify their origin.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    })
    .take(len)
    .collect()
}
