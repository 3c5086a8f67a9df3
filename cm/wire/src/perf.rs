//! Performance management (IBA 16.1): the counters of a port.

use crate::layout::layout;

/// Offset of attributes in a datagram of this class.
pub const DATA: usize = 64;
/// Bytes of an attribute.
pub const DATA_LEN: usize = 192;
/// Version of the class's format.
pub const CLASS_VERSION: u8 = 1;

/// Attribute ids.
pub mod attribute {
    /// ClassPortInfo.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    /// PortCounters.
    pub const PORT_COUNTERS: u16 = 0x0012;
    /// PortCountersExtended.
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x001d;
}

/// Bit of ClassPortInfo's capability mask: PortCountersExtended is supported.
pub const EXTENDED_WIDTH: u16 = 0x0200;

layout! {
    /// Counters that saturate at their largest value (IBA 16.1.3.5). A Set writes the counters that `select`
    /// names.
    pub struct PortCounters[DATA_LEN] {
        /// Port; 255 for all.
        port: u8 = 1 @ 0, 8;
        /// A bit for each counter.
        select: u16 = 2 @ 0, 16;
        /// Link errors that were recovered from.
        link_recovered: u8 = 6 @ 0, 8;
        /// Times the link went down.
        link_downed: u8 = 7 @ 0, 8;
        /// Packets with errors.
        receive_errors: u16 = 8 @ 0, 16;
        /// Packets for which a switch had no route.
        relay_errors: u16 = 12 @ 0, 16;
        /// Packets that could not be sent.
        send_discards: u16 = 14 @ 0, 16;
        /// Packets discarded on sending because of their partition.
        send_constraint_errors: u8 = 16 @ 0, 8;
        /// Packets discarded on receiving because of their partition.
        receive_constraint_errors: u8 = 17 @ 0, 8;
        /// Packets of the management lane (VL15) dropped for lack of buffers.
        vl15_dropped: u16 = 22 @ 0, 16;
        /// Words of four bytes sent.
        send_data: u32 = 24 @ 0, 32;
        /// Words of four bytes received.
        receive_data: u32 = 28 @ 0, 32;
        /// Packets sent.
        send_packets: u32 = 32 @ 0, 32;
        /// Packets received.
        receive_packets: u32 = 36 @ 0, 32;
        /// Ticks during which there was data to send but no credit.
        send_wait: u32 = 40 @ 0, 32;
    }
}

layout! {
    /// Counters of 64 bits (IBA 16.1.4.11).
    pub struct PortCountersExtended[DATA_LEN] {
        /// Port; 255 for all.
        port: u8 = 1 @ 0, 8;
        /// A bit for each counter.
        select: u16 = 2 @ 0, 16;
        /// Words of four bytes sent.
        send_data: u64 = 8 @ 0, 64;
        /// Words of four bytes received.
        receive_data: u64 = 16 @ 0, 64;
        /// Packets sent.
        send_packets: u64 = 24 @ 0, 64;
        /// Packets received.
        receive_packets: u64 = 32 @ 0, 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_lie_where_the_tables_say() {
        let counters = PortCounters {
            port: 1,
            link_downed: 2,
            send_data: 3,
            receive_packets: 4,
            ..PortCounters::parse(&[0; DATA_LEN])
        };
        let mut bytes = [0; DATA_LEN];
        counters.write(&mut bytes);
        assert_eq!((bytes[1], bytes[7], bytes[27], bytes[39]), (1, 2, 3, 4));
        assert_eq!(PortCounters::parse(&bytes), counters);
        let counters = PortCountersExtended {
            receive_data: 5,
            receive_packets: 6,
            ..PortCountersExtended::parse(&[0; DATA_LEN])
        };
        let mut bytes = [0; DATA_LEN];
        counters.write(&mut bytes);
        assert_eq!((bytes[23], bytes[39]), (5, 6));
    }
}
