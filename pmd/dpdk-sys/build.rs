//! Binds the system's libdpdk: flags from pkg-config, declarations from bindgen, inline functions through a C
//! shim.

use std::error::Error;
use std::path::PathBuf;

/// Libraries with the bound functions. They exclude drivers (PMDs, buses, mempool handlers), except the
/// bonding driver, which has functions of its own. EAL sees that it is linked dynamically and loads all
/// drivers in its plugin directory itself.
const LIBS: [&str; 7] =
    ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_net", "rte_net_bond"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["build.rs", "src/shim.h", "src/shim.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .map_err(|e| {
            format!(
                "libdpdk 22.11 or newer was not found: run scripts/setup (as root), which installs it\n{e}"
            )
        })?;
    // The pkg_config crate drops flags that it does not know (-include, -march), so run the program again.
    let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let cflags = std::process::Command::new(program).args(["--cflags", "libdpdk"]).output()?;
    let cflags = String::from_utf8(cflags.stdout)?;
    let cflags: Vec<&str> = cflags.split_whitespace().collect();

    for dir in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", dir.display());
    }

    let mut shim = cc::Build::new();
    shim.file("src/shim.c").opt_level(3).warnings(false).flag("-fno-strict-aliasing");
    for flag in &cflags {
        shim.flag(flag);
    }
    shim.compile("dpdk_shim");
    // After the shim, which needs these libraries: the linker reads from left to right. EAL's log is a
    // separate library since 23.11.
    let log = dpdk.libs.iter().any(|lib| lib == "rte_log").then_some("rte_log");
    for lib in LIBS.into_iter().chain(log) {
        println!("cargo:rustc-link-lib=dylib={lib}");
    }

    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("bindings.rs");
    bindgen::Builder::default()
        .header("src/shim.h")
        .clang_args(&cflags)
        .allowlist_function("shim_.*")
        .allowlist_var("SHIM_.*")
        .allowlist_function(
            "rte_eal_(alarm_set|cleanup|remote_launch|wait_lcore|mp_wait_lcore|get_lcore_state)",
        )
        .allowlist_function("rte_get_(next_lcore|main_lcore|tsc_hz)|rte_strerror|rte_version")
        .allowlist_function("rte_lcore_(count|to_socket_id|to_cpu_id|is_enabled)")
        .allowlist_function("rte_pktmbuf_(pool_create|free_bulk)|__rte_pktmbuf_linearize")
        .allowlist_function("rte_mempool_(free|avail_count|mem_iter|lookup)")
        .allowlist_function(
            "rte_eth_dev_(configure|start|stop|close|info_get|set_mtu|get_mtu|get_name_by_port)",
        )
        .allowlist_function(
            "rte_eth_dev_(get_port_by_name|is_valid_port|socket_id|adjust_nb_rx_tx_desc|count_avail)",
        )
        .allowlist_function("rte_eth_allmulticast_get|rte_eth_dev_rx_intr_(enable|disable|ctl_q_get_fd)")
        .allowlist_function("rte_eth_(rx|tx)_queue_setup|rte_eth_find_next_owned_by|rte_eth_macaddr_get")
        .allowlist_function(
            "rte_eth_(promiscuous|allmulticast)_enable|rte_eth_link_get_nowait|rte_eth_stats_get",
        )
        .opaque_type("rte_mbuf|rte_arp_.*|rte_l2tpv2_.*|rte_gtp_.*|rte_flow_.*")
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate()?
        .write_to_file(out)?;
    Ok(())
}
