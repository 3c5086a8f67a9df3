//! The key of a UDP cable, which both ends read from a file.

use std::fmt;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use siphasher::sip::SipHasher24;

use super::CableError;

/// Bytes of an authentication code.
pub(super) const CODE_LEN: usize = 8;
/// Most bytes read from a key file: the digits and surrounding whitespace.
const MAX_FILE: u64 = 128;

/// Permission bits of users that are neither the file's owner nor in its group.
const EVERYBODY: u32 = 0o007;

/// A key for authentication codes (SipHash-2-4, a keyed pseudorandom function).
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CableKey([u8; 16]);

// A key must not appear in logs.
impl fmt::Debug for CableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CableKey(…)")
    }
}

impl CableKey {
    #[cfg(test)]
    pub(super) const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Reads a file of 32 hexadecimal digits.
    pub(super) fn read(path: &Path) -> Result<Self, CableError> {
        let failed = |source| CableError::KeyFile { path: path.to_owned(), source };
        // Do not block on a pipe.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        if metadata.mode() & EVERYBODY != 0 {
            return Err(CableError::OpenKey(path.to_owned()));
        }
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
        let digits = text.trim();
        let good = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = u128::from_str_radix(digits, 16).ok().filter(|_| good);
        bits.map(|bits| Self(bits.to_be_bytes())).ok_or_else(|| CableError::Key(path.to_owned()))
    }

    /// The authentication code of the concatenated parts.
    pub(super) fn code(&self, parts: &[&[u8]]) -> [u8; CODE_LEN] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for part in parts {
            hasher.write(part);
        }
        hasher.finish().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_has_thirty_two_digits_and_the_key_is_no_text_for_logs() {
        let path = std::env::temp_dir().join(format!("cable-key-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            CableKey::read(&path)
        };
        let key = read("000102030405060708090a0b0c0d0e0F\n").unwrap();
        assert_eq!(key, CableKey::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(format!("{key:?}"), "CableKey(…)");
        for text in ["", "00", "+00102030405060708090a0b0c0d0e0f", &"0".repeat(33), &"0".repeat(4096)] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("openssl rand -hex 16"), "{error}");
        }
        for mode in [0o644, 0o602, 0o601] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = CableKey::read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod o="), "{mode:o}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(CableKey::read(&path), Err(CableError::KeyFile { .. })));
        assert!(matches!(CableKey::read(Path::new("/dev/null")), Err(CableError::KeyFile { .. })));
    }

    #[test]
    fn a_code_is_siphash_2_4() {
        // The example of the paper that defines it (appendix A): key and message are counting bytes.
        let key = CableKey::new(std::array::from_fn(|at| at as u8));
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(key.code(&[&message[..4], &message[4..]]), 0xa129_ca61_49be_45e5_u64.to_be_bytes());
    }
}
