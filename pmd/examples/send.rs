//! The software ConnectX as a library: two devices in this process, a cable between them, a datagram queue
//! pair on each, and one send.
//!
//! It needs no hardware, privileges or running fabric. For an adapter, replace [`SoftHca`] with
//! [`pmd::verbs`]; the calls of the traits [`Control`], [`Backend`] and [`Queues`] stay the same.
//!
//! ```text
//! cargo run -p pmd --example send -- "a message"
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;

use arrayvec::ArrayVec;
use connectx::cable::CableEnd;
use ib_wire::{Guid, Lid, Mtu, PortNumber, Psn, QKey, Qpn, Rate, ServiceLevel};
use pmd::eal::Eal;
use pmd::hca::{
    AddressVector, Backend, Control, QpTransition, Queues, QueuesConfig, QueuesId, RxBurst, UdConfig,
    UdDestination, UdSlot,
};
use pmd::mem::{Pool, PoolConfig};
use pmd::soft::{SoftConfig, SoftHca};

const PORT: PortNumber = PortNumber(1);
const WORKER: QueuesId = QueuesId(0);
const UD: UdSlot = UdSlot(0);
const QKEY: QKey = QKey(0x0b1b);

/// A device with the queues of one worker and one datagram queue pair.
struct Node {
    hca: SoftHca,
    queues: <SoftHca as Backend>::Queues,
    qpn: Qpn,
}

impl Node {
    fn new(number: u64, cable: CableEnd, pool: &Pool) -> Result<Self, Box<dyn Error>> {
        let mut hca = SoftHca::new(&SoftConfig {
            name: format!("soft{number}"),
            node_guid: Guid(0x0200_0000_0000_0100 + number),
            port_guids: vec![Guid(0x0200_0000_0000_1000 + number)],
            max_mtu: Mtu::B4096,
            gid_table: 16,
            seed: number,
        })?;
        // Done by a subnet manager on a real fabric: assign a LID and an MTU, which makes the port active.
        hca.set_cable(PORT, Some(cable))?;
        hca.engine().lock().activate(PORT, Lid(1 + number as u16), Mtu::B4096)?;

        // Buffers must be registered before they are posted.
        hca.register_pool(pool)?;
        let mut queues = hca.create_queues(
            &QueuesConfig {
                id: WORKER,
                ud_recv_depth: 64,
                ud_recv_most: u32::MAX,
                srq_depth: 32,
                srq_message: 4096,
                srq_limit: 0,
                max_ud: 1,
                likely_ud: 1,
                max_rc: 1,
                max_sends: 64,
                signal_every: 8,
            },
            pool,
        )?;
        let pair = hca.create_ud(&UdConfig { queues: WORKER, port: PORT, send_depth: 64 })?;
        let qpn = SoftHca::ud_qpn(&pair);
        queues.insert_ud(UD, pair).map_err(|_| "the slot is taken")?;
        // RESET, INIT, ready to receive, ready to send (IBA 10.3.1).
        for state in [
            QpTransition::UdToInit { pkey_index: 0, qkey: QKEY },
            QpTransition::UdToReceive,
            QpTransition::UdToSend { sq_psn: Psn::new(0) },
        ] {
            hca.modify_qp(qpn, &state)?;
        }
        queues.open_ud(UD);
        queues.refill();
        Ok(Self { hca, queues, qpn })
    }

    /// Runs one iteration of a worker's loop. Returns a received message.
    fn turn(&mut self) -> Option<Vec<u8>> {
        self.queues.turn();
        self.queues.ring();
        let (mut burst, mut faults) = (RxBurst::new(), ArrayVec::new());
        self.queues.poll_receive(&mut burst, &mut faults);
        self.queues.poll_send(&mut faults);
        self.queues.refill();
        burst.pop().map(|received| received.buf.data().to_vec())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let message = std::env::args().nth(1).unwrap_or_else(|| "hello".to_owned());
    let arguments = "send --no-huge --no-shconf --no-pci --no-telemetry --log-level=error -m 64 --lcores 0@0";
    let _eal = Eal::init(arguments.split(' ').map(str::to_owned))?;
    let pool = Pool::create("send", &PoolConfig { count: 512, data_room: 4096, cache: 0, socket: -1 })?;
    let (one_end, other_end) = CableEnd::pair()?;
    let (mut sender, mut receiver) = (Node::new(0, one_end, &pool)?, Node::new(1, other_end, &pool)?);

    let way = AddressVector {
        dlid: receiver.hca.port(PORT)?.lid,
        sl: ServiceLevel::new(0),
        src_path_bits: 0,
        rate: Rate::new(0),
        grh: None,
    };
    let to = UdDestination { av: way, qpn: receiver.qpn, qkey: Some(QKEY) };
    let to = sender.hca.destination(PORT, &to)?;
    let buffer = pool.copy_from_slice(message.as_bytes()).ok_or("the pool is empty")?;
    sender.queues.send_ud(UD, &to, buffer).map_err(|refused| refused.error)?;
    let received = loop {
        sender.turn();
        if let Some(received) = receiver.turn() {
            break received;
        }
    };
    println!(
        "queue pair {} received {} bytes: {}",
        receiver.qpn,
        received.len(),
        String::from_utf8_lossy(&received)
    );

    for mut node in [sender, receiver] {
        node.hca.destroy_queues(node.queues)?;
    }
    println!("{} buffers are in use at the end", pool.in_use());
    Ok(())
}
