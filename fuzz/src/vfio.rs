//! Messages of a vfio-user client.

use ib_wire::Guid;
use softhca::hca::{Hca, HcaConfig, HcaPort, TableSizes};
use softhca::vfio_user::session::Session;

/// One input: bytes of a stream, perhaps after a valid first message.
pub fn run(bytes: &[u8]) {
    let config = HcaConfig {
        node_guid: Guid(1),
        port: HcaPort { guid: Guid(2), cable: None },
        description: String::new(),
        second_port: None,
        grh_required: false,
        seed: 1,
        tables: TableSizes::default(),
    };
    let Ok(mut hca) = Hca::new(config) else { return };
    let mut session = Session::new();
    let (greet, mut rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    if greet != 0 {
        let version = [1, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        for half in [&version[..16], &version[16..]] {
            assert!(session.handle(half, [], &mut hca).is_ok());
        }
    }
    while !rest.is_empty() {
        let Ok(wants) = session.wants() else { return };
        assert!(wants > 0);
        let (now, later) = rest.split_at(wants.min(rest.len()));
        rest = later;
        let before = session.output().len();
        match session.handle(now, [], &mut hca) {
            // The header of an answer has its length.
            Ok(_) => {
                let answer = &session.output()[before..];
                if let Some(size) = answer.get(4..8) {
                    assert_eq!(
                        u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize,
                        answer.len()
                    );
                }
            }
            Err(_) => return,
        }
    }
}
