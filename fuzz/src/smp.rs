//! Subnet management packets: no bit is lost, and no directed route leaves its bounds.

use ib_wire::mad::MAD_LEN;
use ib_wire::sa::Notice;
use ib_wire::smp::{
    Attribute, GuidBlock, LinearForwardingBlock, MulticastForwardingBlock, NodeDescription, NodeInfo,
    NodeType, Origin, PKeyBlock, PortInfo, SmInfo, Smp, SwitchInfo, step,
};

fn survives<A: Attribute>(smp: &Smp) {
    let mut again = *smp;
    again.set_attribute(&A::from_data(&smp.data));
    assert_eq!(again, *smp);
}

/// One input.
pub fn run(bytes: &[u8]) {
    let Some((origin, rest)) = bytes.split_first() else { return };
    let mut mad = [0; MAD_LEN];
    for (to, from) in mad.iter_mut().zip(rest) {
        *to = *from;
    }
    let Ok(smp) = Smp::from_mad(&mad) else { return };
    let mut again = mad;
    smp.write(&mut again);
    assert_eq!(again, mad);
    survives::<NodeInfo>(&smp);
    survives::<NodeDescription>(&smp);
    survives::<PortInfo>(&smp);
    survives::<SwitchInfo>(&smp);
    survives::<GuidBlock>(&smp);
    survives::<PKeyBlock>(&smp);
    survives::<LinearForwardingBlock>(&smp);
    survives::<MulticastForwardingBlock>(&smp);
    survives::<SmInfo>(&smp);
    survives::<Notice>(&smp);
    let origin = if *origin == 0 { Origin::Local } else { Origin::Port(*origin) };
    for node in [NodeType::ChannelAdapter, NodeType::Switch] {
        let _ = step(&mut smp.clone(), node, origin);
    }
}
