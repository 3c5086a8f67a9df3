//! Checks that a ConnectX's firmware is recent enough for the vendor's drivers.

use crate::finding::{Code, Finding};
use crate::machine::Adapter;

/// A firmware version. Its first number is the generation of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Version(u16, u16, u16);

impl Version {
    /// Parses `fw_ver`: three numbers separated by dots.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }

    /// Formats the version as the vendor does: the last number has four digits.
    fn text(self) -> String {
        format!("{}.{}.{:04}", self.0, self.1, self.2)
    }
}

/// The oldest firmware of each generation that DPDK's mlx5 drivers support: "NVIDIA MLX5 Common Driver"
/// (doc/guides/platform/mlx5.rst, "minimal supported versions"), in a version with BlueField-3. A version
/// without it has the same values for the others. Nothing is known of the gateway's own driver on any
/// adapter; it needs less than those drivers do. They do not support the Connect-IB, so it is not checked.
const OLDEST: [(&str, Version); 10] = [
    ("ConnectX-4", Version(12, 21, 1000)),
    ("ConnectX-4 Lx", Version(14, 21, 1000)),
    ("ConnectX-5", Version(16, 21, 1000)),
    ("BlueField", Version(18, 25, 1010)),
    ("ConnectX-6", Version(20, 27, 90)),
    ("ConnectX-6 Dx", Version(22, 27, 90)),
    ("BlueField-2", Version(24, 28, 1002)),
    ("ConnectX-6 Lx", Version(26, 27, 90)),
    ("ConnectX-7", Version(28, 33, 2028)),
    ("BlueField-3", Version(32, 36, 3126)),
];

/// Checks a device of the kernel's mlx5 driver.
pub(super) fn check(name: &str, adapter: &Adapter) -> Option<Finding> {
    let has = Version::parse(adapter.firmware.as_deref()?)?;
    let (generation, oldest) = OLDEST.iter().find(|(_, oldest)| oldest.0 == has.0)?;
    if has >= *oldest {
        return None;
    }
    let what = format!(
        "{name}, a {generation}, has firmware {}: the vendor's drivers support {} and later",
        has.text(),
        oldest.text()
    );
    let device = adapter.pci.as_deref().unwrap_or(name);
    let board = adapter.board.as_deref().map(|board| format!(" for board {board}")).unwrap_or_default();
    let help = format!(
        "update it: mlxfwmanager -d {device} --online -u, or mstflint -d {device} -i IMAGE burn with its vendor's image{board}; then \
         mlxfwreset -d {device} reset, or a cold start"
    );
    Some(Finding::new(Code::FirmwareOld, what, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_has_its_own_oldest_firmware() {
        let found = |firmware: &str| {
            let adapter = Adapter { firmware: Some(firmware.to_owned()), ..Adapter::default() };
            check("mlx5_0", &adapter)
        };
        for (generation, oldest) in OLDEST {
            assert_eq!(found(&oldest.text()), None, "{generation}");
            let Version(first, second, third) = oldest;
            for older in
                [Version(first, second, third - 1), Version(first, second - 1, 9999), Version(first, 0, 0)]
            {
                let finding = found(&older.text()).unwrap();
                assert_eq!(finding.code, Code::FirmwareOld);
                let expected = [format!("a {generation},"), older.text(), oldest.text()];
                assert!(expected.iter().all(|word| finding.what.contains(word)), "{}", finding.what);
            }
            assert_eq!(found(&Version(first, second + 1, 0).text()), None, "{generation}");
        }
        // In the vendor's format, and compared as numbers, not as text.
        assert!(
            found("20.27.0089").is_some() && found("20.27.0090").is_none() && found("20.100.1").is_none()
        );
        // An unknown generation or an invalid version is not checked.
        for other in [
            "",
            "10.16.1200",
            "2.42.5000",
            "99.0.1",
            "16",
            "16.20",
            "16.20.1010.3",
            "16.x.1",
            "-16.1.1",
            "16.20.99999",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn the_first_number_is_the_generation() {
        assert!(OLDEST.windows(2).all(|pair| pair[0].1.0 < pair[1].1.0));
    }
}
