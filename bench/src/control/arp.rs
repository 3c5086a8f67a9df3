//! ARP of Ethernet hosts: each queries the gateway, which learns the host and answers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ib_wire::Qpn;
use ipoib::link::{Arp, Asker, HardwareAddress, WorkerIndex};
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::forward::{GatewayAddress, Settings};
use ipoib_fwd::segment::{Ageing, Fabric, Output, Own, Packet, Segment, SegmentSettings};
use pmd::hca::{UdDestination, UdSource};

use super::Clock;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 255, 254);
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);

/// Packets never wait in this benchmark.
struct NoPacket;

impl Packet for NoPacket {
    fn length(&self) -> usize {
        0
    }

    fn read(&self, _: usize, _: &mut [u8]) -> usize {
        0
    }
}

/// An InfiniBand side without hosts.
struct Nobody;

impl Fabric for Nobody {
    fn is_up(&self) -> bool {
        true
    }
    fn own_addresses(&self) -> &[HardwareAddress] {
        &[]
    }
    fn hardware(&self, _: IpAddr) -> Option<HardwareAddress> {
        None
    }
    fn hosts(&self, _: Instant) -> Vec<IpAddr> {
        Vec::new()
    }
    fn believed(&self, _: &UdSource, sender: HardwareAddress) -> HardwareAddress {
        sender
    }
    fn is_from(&self, _: &UdSource, _: IpAddr) -> bool {
        false
    }
    fn has_room_for_reports(&self) -> bool {
        true
    }
    fn has_way(&self, _: IpAddr) -> bool {
        false
    }
    fn connection_mtu(&self, _: IpAddr, _: WorkerIndex) -> Option<u32> {
        None
    }
    fn is_dialling(&self, _: IpAddr, _: WorkerIndex) -> bool {
        false
    }
    fn neighbour_behind(&self, _: Qpn) -> Option<IpAddr> {
        None
    }
    fn address_behind(&self, _: Qpn) -> Option<HardwareAddress> {
        None
    }
    fn way_back(&self, _: &UdSource) -> Option<UdDestination> {
        None
    }
    fn resolve(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: IpAddr) {}
    fn request(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: IpAddr) -> bool {
        true
    }
    fn ask(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: IpAddr) {}
    fn ask_at(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: IpAddr, _: HardwareAddress) {}
    fn verify(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: IpAddr) {}
    fn set_own_name(&mut self, _: Option<IpAddr>) {}
    fn is_confirmed(&self, _: Instant, _: IpAddr, _: Duration) -> bool {
        false
    }
    fn is_sought(&self, _: IpAddr) -> bool {
        false
    }
    fn is_asked(&self, _: IpAddr) -> bool {
        false
    }
    fn reply(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: Asker, _: IpAddr) {}
    fn answer(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: Asker, _: IpAddr) {}
    fn announce(&mut self, _: Instant, _: WorkerIndex, _: IpAddr) -> bool {
        true
    }
    fn hear(&mut self, _: Instant, _: WorkerIndex, _: &UdSource, _: Arp) {}
    fn meet(&mut self, _: Instant, _: WorkerIndex, _: IpAddr, _: HardwareAddress, _: IpAddr) {}
    fn forget(&mut self, _: Instant, _: IpAddr) {}
}

fn request(number: u32) -> [u8; 60] {
    let [.., high, low] = number.to_be_bytes();
    let arp = EthernetArp {
        operation: ArpOperation::Request,
        sender_mac: MacAddress([2, 1, 0, 0, high, low]),
        sender_ip: Ipv4Addr::from(0x0a4d_0000 + 1 + number),
        target_mac: MacAddress::ZERO,
        target_ip: GATEWAY,
    };
    arp.to_frame(MacAddress::BROADCAST)
}

/// Answered requests per second, from `hosts` hosts in rotation.
pub(super) fn run(seconds: f64, hosts: u32) -> Result<f64, String> {
    let mut now = Instant::now();
    let mut settings = Settings::new(MAC);
    settings.address = GatewayAddress::new(GATEWAY, 16);
    let own = Own { settings, workers: 1 };
    let settings = SegmentSettings { own, ageing: Ageing::default(), most_parked: 64, seed: 1 };
    let mut segment: Segment<NoPacket> = Segment::new(now, &settings);
    let frames: Vec<_> = (0..hosts).map(request).collect();
    let (mut clock, mut asked, mut answered) = (Clock::new(), 0, 0);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        // The number stays below the rate limit: this measures the work, not the limit.
        for frames in frames.chunks(64) {
            now += Duration::from_secs(1);
            answered += clock.measure(|| {
                segment.handle_timeout(now, &mut Nobody);
                for frame in frames {
                    segment.handle_ethernet_arp(now, &mut Nobody, frame);
                }
                std::iter::from_fn(|| segment.poll_output())
                    .filter(|output| matches!(output, Output::Frame { .. }))
                    .count() as u64
            });
            asked += frames.len() as u64;
        }
    }
    if answered < asked {
        return Err(format!("of {asked} ARP requests {answered} were answered"));
    }
    Ok(clock.rate(asked))
}
