//! General management: CM messages and subnet administration.

use ib_wire::cm::Message;
use ib_wire::mad::{MAD_LEN, MadHeader};
use ib_wire::sa::{
    ClassPortInfo, InformInfo, McMemberRecord, Notice, PathRecord, Record, SaMad, ServiceRecord,
};

fn survives<R: Record>(mad: &SaMad) {
    let mut data = mad.data;
    R::from_data(&mad.data).to_data(&mut data);
    assert_eq!(data, mad.data);
}

/// One input.
pub fn run(bytes: &[u8]) {
    let mut mad = [0; MAD_LEN];
    for (to, from) in mad.iter_mut().zip(bytes) {
        *to = *from;
    }
    let mut again = mad;
    MadHeader::of(&mad).put(&mut again);
    assert_eq!(again, mad);
    let sa = SaMad::parse(&mad);
    sa.write(&mut again);
    assert_eq!(again, mad);
    survives::<ClassPortInfo>(&sa);
    survives::<InformInfo>(&sa);
    survives::<McMemberRecord>(&sa);
    survives::<Notice>(&sa);
    survives::<PathRecord>(&sa);
    survives::<ServiceRecord>(&sa);
    if let Ok((header, message)) = Message::parse(&mad) {
        let mut out = [0; MAD_LEN];
        message.write(&header, &mut out);
        assert_eq!(Message::parse(&out).expect("what was written is read").1, message);
    }
}
