//! Two connected software devices, or ones with datagram queue pairs: the mlx5 driver at both ends, a link
//! within the process, and one thread that polls everything.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use connectx::cable::CableEnd;
use ib_wire::{Guid, Lid, Mtu, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::eal::{self, Eal};
use pmd::hca::{
    AddressVector, Backend, Control as _, PortNumber, PortState, QpTransition, Queues, QueuesConfig,
    QueuesId, RcConfig, RcSlot, RcToReceive, RcToSend, Refused, RxBurst, UdConfig, UdDestination, UdSlot,
};
use pmd::mem::{Mbuf, Pool};
use pmd::soft::{SoftConfig, SoftHca};

use crate::machine;

const PORT: PortNumber = PortNumber(1);
/// The connection at both ends.
pub(crate) const SLOT: RcSlot = RcSlot(0);
/// The datagram queue pair at both ends, if the service is datagrams.
const DATAGRAMS: UdSlot = UdSlot(0);
const QKEY: QKey = QKey(0x0b1b);
/// Time after which a message counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Sizes of both ends.
#[derive(Clone, Copy)]
pub(crate) struct Depths {
    /// Sends of the connection.
    pub(crate) send: u32,
    /// Posted receives: of the usual sender, and of the other end.
    pub(crate) receive: [u32; 2],
    /// Bytes of the largest message.
    pub(crate) largest: usize,
}

/// Converts cycles of the time-stamp counter to nanoseconds.
pub(crate) fn ns(cycles: u64) -> f64 {
    cycles as f64 * 1e9 / eal::tsc_hz() as f64
}

/// Starts EAL on one lcore.
pub(crate) fn start_eal() -> Result<Eal, String> {
    let words = ["bench", "--no-pci", "--no-telemetry", "--log-level=error", "--lcores"];
    let arguments = words.into_iter().map(str::to_owned).chain([machine::one_lcore()]);
    Eal::init(arguments.chain(machine::memory_arguments())).map_err(text)
}

/// A worker's queues on it.
pub(crate) type DriverQueues = <SoftHca as Backend>::Queues;

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Transport of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// A connection.
    Connection,
    /// Datagrams: a message is a packet.
    Datagrams,
}

/// A device, its queues, and its end of the connection.
pub(crate) struct End {
    pub(crate) hca: SoftHca,
    pub(crate) queues: DriverQueues,
    qpn: Qpn,
    /// Destination of datagrams; none on a connection.
    to: Option<<DriverQueues as Queues>::Destination>,
    pub(crate) burst: RxBurst,
    pub(crate) events: ArrayVec<pmd::hca::QpEvent, { pmd::hca::BURST }>,
}

impl End {
    /// The first or the second one, by its number.
    fn new(
        number: u16,
        link: CableEnd,
        service: Service,
        pools: &[&Pool],
        into: &Pool,
        depths: Depths,
    ) -> Result<Self, String> {
        let mut hca = SoftHca::new(&SoftConfig {
            name: format!("soft{number}"),
            node_guid: Guid(0x1000 + u64::from(number)),
            port_guids: vec![Guid(0x2000 + u64::from(number))],
            max_mtu: Mtu::B4096,
            gid_table: 8,
            seed: number.into(),
        })
        .map_err(text)?;
        hca.set_cable(PORT, Some(link)).map_err(text)?;
        for pool in pools {
            hca.register_pool(pool).map_err(text)?;
        }
        let receive = depths.receive[usize::from(number > 1)];
        let config = QueuesConfig {
            id: QueuesId(0),
            ud_recv_depth: if service == Service::Datagrams { receive } else { 64 },
            ud_recv_most: u32::MAX,
            srq_depth: if service == Service::Datagrams { 0 } else { receive },
            srq_message: depths.largest,
            srq_limit: 0,
            max_ud: u16::from(service == Service::Datagrams),
            likely_ud: 1,
            max_rc: 1,
            max_sends: 4096,
            signal_every: 16,
        };
        let mut queues = hca.create_queues(&config, into).map_err(text)?;
        let id = QueuesId(0);
        let qpn = match service {
            Service::Connection => {
                let (beside, send_depth) = (UdSlot(0), depths.send);
                let rc = RcConfig { queues: id, port: PORT, beside, send_depth, passive: false };
                let rc = hca.create_rc(&rc).map_err(text)?;
                let qpn = SoftHca::rc_qpn(&rc);
                queues.insert_rc(SLOT, rc).map_err(|_| "the slot is taken")?;
                qpn
            }
            Service::Datagrams => {
                let ud = UdConfig { queues: id, port: PORT, send_depth: depths.send };
                let ud = hca.create_ud(&ud).map_err(text)?;
                let qpn = SoftHca::ud_qpn(&ud);
                queues.insert_ud(DATAGRAMS, ud).map_err(|_| "the slot is taken")?;
                qpn
            }
        };
        queues.refill();
        Ok(Self { hca, queues, qpn, to: None, burst: RxBurst::new(), events: ArrayVec::new() })
    }

    /// Posts a message to the other end.
    #[inline]
    pub(crate) fn send(&mut self, message: Mbuf) -> Result<(), Refused> {
        match &self.to {
            None => self.queues.send_rc(SLOT, message),
            Some(to) => self.queues.send_ud(DATAGRAMS, to, message),
        }
    }

    /// The LID from the subnet manager, once it is usable.
    fn lid(&self) -> Option<Lid> {
        let port = self.hca.engine().lock().port_attributes(PORT).ok()?;
        (port.state == PortState::Active).then_some(port.lid)
    }

    /// Creates another connection's queue pair, moves it to RTS towards the other end, and destroys it.
    pub(crate) fn connect_another(&mut self, other: &Self) -> Result<(), String> {
        let config =
            RcConfig { queues: QueuesId(0), port: PORT, beside: UdSlot(0), send_depth: 64, passive: false };
        let rc = self.hca.create_rc(&config).map_err(text)?;
        let lid = other.lid().ok_or("the other port is down")?;
        self.connect_pair(SoftHca::rc_qpn(&rc), lid, other.qpn)?;
        self.hca.destroy_rc(rc).map_err(text)
    }

    fn connect(&mut self, service: Service, lid: Lid, qpn: Qpn) -> Result<(), String> {
        match service {
            Service::Connection => self.connect_pair(self.qpn, lid, qpn),
            Service::Datagrams => self.open_datagrams(lid, qpn),
        }
    }

    fn open_datagrams(&mut self, lid: Lid, qpn: Qpn) -> Result<(), String> {
        let init = QpTransition::UdToInit { pkey_index: 0, qkey: QKEY };
        for to in [init, QpTransition::UdToReceive, QpTransition::UdToSend { sq_psn: Psn::new(100) }] {
            self.hca.modify_qp(self.qpn, &to).map_err(text)?;
        }
        self.queues.open_ud(DATAGRAMS);
        self.queues.refill();
        let to = UdDestination { av: address_vector(lid), qpn, qkey: Some(QKEY) };
        self.to = Some(self.hca.destination(PORT, &to).map_err(text)?);
        Ok(())
    }

    fn connect_pair(&mut self, own: Qpn, lid: Lid, qpn: Qpn) -> Result<(), String> {
        let av = address_vector(lid);
        let path_mtu = Mtu::B4096;
        let receive = RcToReceive { av, dest_qpn: qpn, rq_psn: Psn::new(100), path_mtu, min_rnr_timer: 12 };
        let send = RcToSend { sq_psn: Psn::new(100), timeout: 14, retry_count: 7, rnr_retry: 7 };
        let init = QpTransition::RcToInit { pkey_index: 0 };
        for to in [init, QpTransition::RcToReceive(receive), QpTransition::RcToSend(send)] {
            self.hca.modify_qp(own, &to).map_err(text)?;
        }
        Ok(())
    }

    /// One iteration, as a worker does it.
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        self.queues.ring();
        self.queues.turn();
        self.queues.poll_receive(&mut self.burst, &mut self.events);
        self.queues.poll_send(&mut self.events);
        self.queues.refill();
        match self.events.first() {
            Some(event) => Err(format!("queue pair {}: {:?}", event.qpn, event.fault)),
            None => Ok(()),
        }
    }
}

/// The path to a LID.
fn address_vector(dlid: Lid) -> AddressVector {
    let (sl, rate) = (ServiceLevel::new(0), Rate::default());
    AddressVector { dlid, sl, src_path_bits: 0, rate, grh: None }
}

/// One in this number of messages is filled with a pattern and compared byte by byte on arrival; the others
/// have arbitrary content. A prime, so that the sample covers all buffers and ring entries.
const SAMPLE: u64 = 1021;
/// Pattern of sampled messages. It is longer than any packet or buffer, so exchanged segments differ.
const PATTERN: [u8; 4099] = pattern();

const fn pattern() -> [u8; 4099] {
    let (mut bytes, mut at, mut state) = ([0; 4099], 0, 0x9e37_79b9_7f4a_7c15_u64);
    while at < bytes.len() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[at] = (state >> 56) as u8;
        at += 1;
    }
    bytes
}

/// The pattern of message `number` from byte `from` on, in pieces.
fn pieces(number: u64, from: usize) -> impl Iterator<Item = &'static [u8]> {
    static BYTES: [u8; 4099] = PATTERN;
    let at = (number as usize % BYTES.len() + from) % BYTES.len();
    std::iter::once(BYTES.get(at..).unwrap_or_default()).chain(std::iter::repeat(BYTES.as_slice()))
}

/// A message with a number, followed by arbitrary content or, for sampled messages, the pattern.
pub(crate) fn message(pool: &Pool, len: usize, number: u64) -> Option<Mbuf> {
    let mut chain: Option<Mbuf> = None;
    let mut left = len;
    while left > 0 {
        let piece = match left % pool.data_room() {
            0 => pool.data_room(),
            rest => rest,
        };
        let mut one = pool.alloc()?;
        one.append(piece)?;
        left -= piece;
        if let Some(tail) = chain.take() {
            one.append_chain(tail);
        }
        chain = Some(one);
    }
    let mut chain = chain?;
    if number.is_multiple_of(SAMPLE) {
        fill(&mut chain, number);
    }
    chain.data_mut().get_mut(..8)?.copy_from_slice(&number.to_le_bytes());
    Some(chain)
}

#[cold]
fn fill(chain: &mut Mbuf, number: u64) {
    let mut from = 0;
    for mut slice in chain.io_slices_mut() {
        let mut left: &mut [u8] = &mut slice;
        for piece in pieces(number, from) {
            let (now, later) = left.split_at_mut(piece.len().min(left.len()));
            now.copy_from_slice(piece.get(..now.len()).unwrap_or_default());
            from += now.len();
            left = later;
            if left.is_empty() {
                break;
            }
        }
    }
}

/// True if the bytes after the number are those of the pattern.
#[cold]
fn is_filled(chain: &Mbuf, number: u64) -> bool {
    let mut from = 0;
    for slice in chain.io_slices() {
        let mut left: &[u8] = &slice;
        for piece in pieces(number, from) {
            let (now, later) = left.split_at(piece.len().min(left.len()));
            let skipped = 8_usize.saturating_sub(from).min(now.len());
            if now.get(skipped..) != piece.get(skipped..now.len()) {
                return false;
            }
            from += now.len();
            left = later;
            if left.is_empty() {
                break;
            }
        }
    }
    true
}

/// True if this is the complete message `number`; compares sampled messages to the last byte.
pub(crate) fn is_message(buf: &Mbuf, len: usize, number: u64) -> bool {
    buf.len() == len
        && buf.data().first_chunk() == Some(&number.to_le_bytes())
        && (!number.is_multiple_of(SAMPLE) || is_filled(buf, number))
}

/// A connection between two ends. One sends from the first pools, the other receives into the last one.
pub(crate) fn pair(from: &[&Pool], into: &Pool, depths: Depths) -> Result<(End, End), String> {
    let cables = CableEnd::pair().map_err(text)?;
    pair_over(cables, Manager::Nobody, Service::Connection, from, into, depths)
}

/// How ports get their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manager {
    /// From this program: a cable directly between both ends.
    Nobody,
    /// From the subnet manager of the fabric at the other ends of the cables.
    Fabric,
}

/// Like [`pair`], over a cable or through a fabric.
pub(crate) fn pair_over(
    (here, there): (CableEnd, CableEnd),
    manager: Manager,
    service: Service,
    from: &[&Pool],
    into: &Pool,
    depths: Depths,
) -> Result<(End, End), String> {
    let pools: Vec<&Pool> = from.iter().copied().chain([into]).collect();
    let mut a = End::new(1, here, service, &pools, from.first().unwrap_or(&into), depths)?;
    let mut b = End::new(2, there, service, &pools, into, depths)?;
    if manager == Manager::Nobody {
        for (this, lid) in [(&a, Lid(1)), (&b, Lid(2))] {
            this.hca.engine().lock().activate(PORT, lid, Mtu::B4096).map_err(text)?;
        }
    }
    let begin = Instant::now();
    let (one, two) = loop {
        if let (Some(one), Some(two)) = (a.lid(), b.lid()) {
            break (one, two);
        }
        a.turn()?;
        b.turn()?;
        if begin.elapsed() > PATIENCE {
            return Err("the subnet manager has not made the ports active".to_owned());
        }
    };
    a.connect(service, two, b.qpn)?;
    b.connect(service, one, a.qpn)?;
    Ok((a, b))
}

/// Releases everything.
pub(crate) fn end(this: End) -> Result<(), String> {
    let End { mut hca, queues, .. } = this;
    dismantle(&mut hca, queues)
}

/// Releases a device's queues, and the connection with them.
pub(crate) fn dismantle(hca: &mut SoftHca, mut queues: DriverQueues) -> Result<(), String> {
    if let Some(rc) = queues.remove_rc(SLOT) {
        hca.destroy_rc(rc).map_err(text)?;
    }
    hca.destroy_queues(queues).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd::mem::PoolConfig;

    #[test]
    fn a_wrong_byte_in_a_message_of_the_sample_is_found_wherever_it_is() {
        eal::for_tests();
        let config = PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 };
        let pool = Pool::create("sampled", &config).unwrap();
        for (len, number) in [(64, 0), (2048, SAMPLE), (9000, 4099 * SAMPLE), (65_524, 77 * SAMPLE)] {
            let mut buf = message(&pool, len, number).unwrap();
            assert!(is_message(&buf, len, number));
            assert!(!is_message(&buf, len, number + SAMPLE) && !is_message(&buf, len - 1, number));
            for at in [0, 7, 8, 63, 2047, 2048, 4098, 4099, 8999, len - 1].into_iter().filter(|at| *at < len)
            {
                damage(&mut buf, at);
                assert!(!is_message(&buf, len, number), "{len} bytes, byte {at}");
                damage(&mut buf, at);
            }
            assert!(is_message(&buf, len, number));
        }
        // For other messages, only length and number are checked.
        let mut buf = message(&pool, 64, 1).unwrap();
        damage(&mut buf, 63);
        assert!(is_message(&buf, 64, 1) && !is_message(&buf, 64, 2));
    }

    fn damage(buf: &mut Mbuf, mut at: usize) {
        for mut slice in buf.io_slices_mut() {
            match slice.get_mut(at) {
                Some(byte) => return *byte ^= 1,
                None => at -= slice.len(),
            }
        }
    }
}
