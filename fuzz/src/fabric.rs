//! A hostile host at a port of the fabric: datagrams to the subnet manager, to subnet administration and to
//! another host, and arbitrary packets into the switch. The subnet stays up, unless the host itself manages
//! it, which IBA permits. State that is kept for the host stays bounded.

use std::path::Path;
use std::time::{Duration, Instant};

use connectx::PortConfig;
use connectx::cable::CableEnd;
use connectx::engine::{Engine, EngineConfig};
use hca::{LinkLayer, PortState};
use ib_wire::mad::MAD_LEN;
use ib_wire::packet::{Bth, Deth, Extended, Headers, Lrh, Opcode, VirtualLane};
use ib_wire::{Guid, Lid, Mtu, PKey, PortNumber, Psn, QKey, Qpn, ServiceLevel};
use ibfab::config::{FabricConfig, Place};
use ibfab::fabric::{Fabric, Management};

const PORT: PortNumber = PortNumber(1);
/// The subnet manager's LID.
const MANAGER: Lid = Lid(1);
/// Maximum of groups of the subnet manager, and its own broadcast group.
const MAX_GROUPS: usize = 1 << 14;
/// Iterations after which everything in flight has arrived.
const TURNS: usize = 400;
/// Maximum of records of an input.
const RECORDS: usize = 64;
/// Accepted classes and versions: subnet management by LID and by directed route, subnet administration,
/// communication management, performance management.
const CLASSES: [(u8, u8); 5] = [(0x03, 2), (0x01, 1), (0x81, 1), (0x07, 2), (0x04, 1)];

fn carry(from: &mut CableEnd, to: &mut CableEnd, now: Instant) -> bool {
    from.poll(now);
    from.receive_as_sent(64, |packet, crcs| to.forward(packet, crcs).is_ok()) > 0
}

/// The fabric with two hosts; the fuzz target relays the packets of the second one.
struct World {
    now: Instant,
    fabric: Fabric,
    hosts: [Engine; 2],
    /// The second host's cable: the end of the fabric, and the end of the host's adapter.
    tapped: [CableEnd; 2],
    /// It has sent subnet management packets.
    managed: bool,
}

impl World {
    fn new() -> Option<Self> {
        let now = Instant::now();
        let text = "[[switch]]\nname = \"s\"\nports = 4";
        let config = FabricConfig::parse(Path::new("f.toml"), text).ok()?;
        let mut fabric = Fabric::new(now, &config, 1, Management::Embedded);
        let host = |n: u64| {
            let guid = Guid(n << 32 | 1);
            let port =
                PortConfig { guid, max_mtu: Mtu::B4096, link_layer: LinkLayer::InfiniBand, gid_table: 2 };
            Engine::new(EngineConfig {
                node_guid: Guid(n << 32),
                description: String::new(),
                ports: vec![port],
                seed: n,
            })
        };
        let mut hosts = [host(1), host(2)];
        let (near, far) = CableEnd::pair().ok()?;
        fabric.plug(Place { switch: 0, port: 1 }, "honest", near).ok()?;
        hosts[0].set_cable(PORT, Some(far)).ok()?;
        let (near, outer) = CableEnd::pair().ok()?;
        let (inner, far) = CableEnd::pair().ok()?;
        fabric.plug(Place { switch: 0, port: 2 }, "dishonest", near).ok()?;
        hosts[1].set_cable(PORT, Some(far)).ok()?;
        let mut world = Self { now, fabric, hosts, tapped: [outer, inner], managed: false };
        world.settle();
        assert!(world.is_up(0) && world.is_up(1), "a fabric comes up");
        Some(world)
    }

    fn is_up(&self, host: usize) -> bool {
        let is_active = |port: hca::PortAttributes| port.state == PortState::Active;
        self.hosts[host].port_attributes(PORT).is_ok_and(is_active)
    }

    fn lid(&self, host: usize) -> Lid {
        self.hosts[host].port_attributes(PORT).map(|port| port.lid).unwrap_or_default()
    }

    /// Polls all parts once; true if any had work.
    fn turn(&mut self) -> bool {
        let mut worked = self.fabric.step(self.now);
        for host in &mut self.hosts {
            worked |= host.step(self.now);
        }
        let [outer, inner] = &mut self.tapped;
        worked |= carry(outer, inner, self.now);
        worked | carry(inner, outer, self.now)
    }

    fn settle(&mut self) {
        for _ in 0..TURNS {
            if !self.turn() {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let next = self.fabric.manager().and_then(|manager| manager.poll_timeout());
            self.now = next.unwrap_or(end).clamp(self.now + Duration::from_millis(1), end);
            self.settle();
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let _ = self.tapped[0].send_with(bytes.len(), |out| out.copy_from_slice(bytes));
        self.settle();
    }

    /// Sends a datagram: destination, header and attribute.
    fn datagram(&mut self, class: u8, data: &[u8]) {
        let [to, method, attribute, data @ ..] = data else { return };
        let mut mad = [0; MAD_LEN];
        for (out, byte) in mad[4..].iter_mut().zip(data) {
            *out = *byte;
        }
        let (class, version) = CLASSES[usize::from(class) % CLASSES.len()];
        mad[..4].copy_from_slice(&[1, class, version, *method]);
        mad[16..18].copy_from_slice(&[0, *attribute]);
        let is_management = matches!(class, 0x01 | 0x81);
        self.managed |= is_management;
        let dlid = match to % 4 {
            0 | 1 => MANAGER,
            2 => self.lid(0),
            _ if class == 0x81 => Lid::PERMISSIVE,
            _ => Lid(u16::from(*to)),
        };
        let slid = if class == 0x81 { Lid::PERMISSIVE } else { self.lid(1) };
        let qpn = Qpn::new(u32::from(!is_management));
        let headers = Headers {
            lrh: Lrh {
                vl: if is_management { VirtualLane::MANAGEMENT } else { VirtualLane::new(0) },
                sl: ServiceLevel::new(0),
                dlid,
                slid,
            },
            grh: None,
            bth: Bth {
                opcode: Opcode::UdSendOnly,
                solicited: false,
                migrated: true,
                pkey: PKey::DEFAULT,
                fecn: false,
                becn: false,
                dest_qpn: qpn,
                ack_request: false,
                psn: Psn::new(0),
            },
            extended: Extended::Deth(Deth {
                qkey: if is_management { QKey(0) } else { QKey(0x8001_0000) },
                src_qpn: qpn,
            }),
        };
        let mut packet = vec![0; headers.packet_len(MAD_LEN)];
        headers.write_packet(&mad, &mut packet).expect("fits");
        self.send(&packet);
    }

    fn record(&mut self, kind: u8, data: &[u8]) {
        match kind % 8 {
            0..=4 => self.datagram(kind / 8, data),
            5 => {
                // Arbitrary bytes, which the switch may take for management.
                self.managed = true;
                self.send(data);
            }
            6 => self.pass(Duration::from_millis(u64::from(data.first().copied().unwrap_or_default()) * 40)),
            _ => {
                // Its adapter disappears for a moment.
                let Ok((inner, far)) = CableEnd::pair() else { return };
                self.tapped[1] = inner;
                let _ = self.hosts[1].set_cable(PORT, Some(far));
                self.settle();
            }
        }
    }
}

/// One input: records, each after its kind and length.
pub fn run(bytes: &[u8]) {
    let Some(mut world) = World::new() else { return };
    let mut rest = bytes;
    for _ in 0..RECORDS {
        let Some((&[kind, len], more)) = rest.split_first_chunk::<2>() else { break };
        let (data, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        world.record(kind, data);
        let manager = world.fabric.manager().expect("an embedded one");
        assert!(manager.groups().count() <= MAX_GROUPS && manager.ports().count() <= 3);
    }
    if !world.managed {
        world.pass(Duration::from_secs(30));
        assert!(world.fabric.manager().is_some_and(|manager| manager.is_up()));
        assert!(world.is_up(0) && world.is_up(1) && world.lid(0) != world.lid(1));
    }
}
