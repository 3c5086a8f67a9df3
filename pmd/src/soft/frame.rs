//! From an address vector to the headers of a packet. InfiniBand framing only; what RoCE needs comes here.

use ib_wire::Lid;
use ib_wire::packet::{Bth, Extended, Grh, Headers, Lrh, VirtualLane};

use super::port::Port;
use crate::hca::AddressVector;

/// The headers of a packet that leaves `port` for `av`. Data go on lane 0.
pub(crate) fn headers(port: &Port, av: &AddressVector, bth: Bth, extended: Extended) -> Headers {
    let grh = av.grh.map(|route| Grh {
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
        hop_limit: route.hop_limit,
        sgid: port.gids.gid(usize::from(route.sgid_index)),
        dgid: route.dgid,
    });
    let path_mask = (1u16 << port.lmc.min(7)) - 1;
    let slid = Lid(port.lid.0 | u16::from(av.src_path_bits) & path_mask);
    Headers { lrh: Lrh { vl: VirtualLane::new(0), sl: av.sl, dlid: av.dlid, slid }, grh, bth, extended }
}
