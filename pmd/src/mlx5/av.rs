//! Datagram destinations, prepared for posting.

use ib_wire::Rate;

use crate::hca::{AddressVector, UdDestination};
use prm::DatagramAddress;

/// A datagram destination: the 48 bytes that go into each send to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination(DatagramAddress);

impl Destination {
    /// Prepares a destination.
    #[must_use]
    pub fn new(to: &UdDestination) -> Self {
        let mut address = address_vector(&to.av);
        address.qkey.set(to.request_qkey().0);
        address.dqp.set(to.qpn.get() | DatagramAddress::EXTENDED);
        Self(address)
    }

    /// Returns the encoded address.
    #[must_use]
    pub const fn address(&self) -> &DatagramAddress {
        &self.0
    }
}

/// Encodes the address without the remote queue pair number and Q_Key.
#[must_use]
pub fn address_vector(av: &AddressVector) -> DatagramAddress {
    let mut address = DatagramAddress {
        rate_sl: (static_rate(av.rate) << 4) | av.sl.get(),
        path_bits: av.src_path_bits & 0x7f,
        ..DatagramAddress::default()
    };
    address.rlid.set(av.dlid.0);
    if let Some(grh) = &av.grh {
        address.traffic_class = grh.traffic_class;
        address.hop_limit = grh.hop_limit;
        let index = u32::from(grh.sgid_index) << 20;
        address.gid_flow.set(DatagramAddress::GRH | index | (grh.flow_label & 0xf_ffff));
        address.rgid = grh.dgid.0;
    }
    address
}

/// Encodes a static rate as mlx5's four-bit code.
///
/// mlx5 supports 2.5 to 120, 200 and 300 Gb/s. Rates in between are rounded up to the next supported rate.
/// Faster rates become 0, unlimited.
const fn static_rate(rate: Rate) -> u8 {
    match rate.code() {
        // 2.5, 10, 30, 5, 20, 40, 60, 80 and 120 Gb/s.
        code @ 2..=10 => code + 5,
        // 14 Gb/s: 20.
        11 => 11,
        // 56 Gb/s: 60.
        12 => 13,
        // 112 Gb/s: 120.
        13 => 15,
        // 25 Gb/s: 30.
        15 => 9,
        // 100 Gb/s: 120.
        16 => 15,
        // 28 Gb/s: 30.
        19 => 9,
        // 50 Gb/s: 60.
        20 => 13,
        _ => 0,
    }
}
