//! The file of known hosts, as read at the start.

use ipoib_fwd::kept::{KeptFile, MOST, signed};

/// One input: a file, and the same with a correct checksum.
pub fn run(bytes: &[u8]) {
    let read = |bytes: &[u8]| {
        if let Ok(file) = KeptFile::parse(bytes) {
            assert_eq!(file.to_text().as_bytes(), bytes);
            for segment in &file.segments {
                assert!(segment.hosts.len() <= MOST && segment.hosts.is_sorted_by_key(|host| host.age));
                assert!(
                    segment.hosts.iter().all(|host| !host.ip.is_multicast() && !host.ip.is_unspecified())
                );
            }
        }
    };
    read(bytes);
    if let Ok(text) = str::from_utf8(bytes) {
        read(signed(text.to_owned()).as_bytes());
        // Without its previous checksum.
        let body = text.rfind("sum ").map_or(text, |at| text.split_at(at).0);
        read(signed(body.to_owned()).as_bytes());
    }
}
