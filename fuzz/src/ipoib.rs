//! IPoIB messages: encapsulation, ARP, neighbour discovery options.

use ib_wire::ipoib::{
    Arp, HARDWARE_ADDRESS_LEN, HardwareAddress, IpoibGroup, LinkOption, NdOptions, decapsulate, encapsulation,
};

/// One input.
pub fn run(bytes: &[u8]) {
    let Some((ethertype, content)) = decapsulate(bytes) else { return };
    assert_eq!(encapsulation(ethertype)[..2], bytes[..2]);
    if let Ok(arp) = Arp::parse(content) {
        assert_eq!(arp.to_bytes(), content[..arp.to_bytes().len()]);
    }
    for option in NdOptions::new(content) {
        assert!(!option.is_empty());
        if let Some(link) = LinkOption::parse(option) {
            assert_eq!(LinkOption::parse(&link.to_bytes()), Some(link));
        }
    }
    if let Some(address) = content.first_chunk::<HARDWARE_ADDRESS_LEN>() {
        let address = HardwareAddress::from_bytes(address);
        assert_eq!(address.to_bytes(), content[..HARDWARE_ADDRESS_LEN]);
        let _ = IpoibGroup::from_gid(address.gid);
    }
}
