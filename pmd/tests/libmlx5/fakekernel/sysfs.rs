//! The devices as libibverbs finds them: a small tree in a temporary directory, to which `SYSFS_PATH` refers.

use std::fs;
use std::path::{Path, PathBuf};

use super::device::Settings;

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// The tree of this process.
fn root() -> PathBuf {
    std::env::temp_dir().join(format!("fakekernel-{}", std::process::id()))
}

extern "C" fn remove() {
    let _ = fs::remove_dir_all(root());
}

/// Writes an entry of a P_Key table.
pub(super) fn put_pkey(device: usize, index: usize, key: u16) {
    put(
        &root().join(format!("class/infiniband/mlx5_{device}/ports/1/pkeys/{index}")),
        &format!("{key:#06x}"),
    );
}

/// Builds the tree and replaces an earlier one.
pub(super) fn build(settings: &[Settings]) {
    let root = root();
    match fs::remove_dir_all(&root) {
        Ok(()) => {}
        // SAFETY: it may be called at any time. The first tree of this process uses the same path as the last
        // one.
        Err(_) => assert_eq!(unsafe { libc::atexit(remove) }, 0),
    }
    put(&root.join("class/infiniband_verbs/abi_version"), "6");
    for (index, s) in settings.iter().enumerate() {
        let verbs = root.join(format!("class/infiniband_verbs/uverbs{index}"));
        let device = root.join(format!("class/infiniband/mlx5_{index}"));
        // The real character device behind the interface is /dev/null.
        put(&verbs.join("dev"), "1:3");
        put(&verbs.join("ibdev"), &format!("mlx5_{index}"));
        put(&verbs.join("abi_version"), "1");
        put(&device.join("node_type"), "1: CA");
        put(&device.join("node_guid"), &groups(s.guid));
        put(&device.join("fw_ver"), "16.35.2000");
        // A ConnectX-5, by its PCI ID.
        put(&device.join("device/modalias"), "pci:v000015B3d00001017sv000015B3sd00000001bc02sc07i00");
        let port = device.join("ports/1");
        put(&port.join("gids/0"), &format!("fe80:0000:0000:0000:{}", groups(s.guid + 1)));
        put_pkey(index, 0, 0xffff);
    }
    // SAFETY: the tests of this program run one at a time, and nobody else reads the environment meanwhile.
    unsafe {
        std::env::set_var("SYSFS_PATH", &root);
        // Keeps the library from reading /proc/cpuinfo.
        std::env::set_var("MLX5_STALL_CQ_POLL", "0");
    }
}

fn groups(guid: u64) -> String {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (guid >> shift) & 0xffff);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}
