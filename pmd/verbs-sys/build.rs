//! Binds the system's rdma-core: flags from pkg-config, declarations from bindgen.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["build.rs", "src/headers.h", "src/layout.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let mut include = Vec::new();
    // libibumad has its own version number, which has been 3 since long before rdma-core 44.
    for (library, version) in [("libibverbs", "1.14.44"), ("libmlx5", "1.24.44"), ("libibumad", "3.2.44")] {
        let found = pkg_config::Config::new().atleast_version(version).probe(library).map_err(|e| {
            format!("{library} of rdma-core 44 or newer was not found: run scripts/setup (as root)\n{e}")
        })?;
        include.extend(found.include_paths.into_iter().map(|path| format!("-I{}", path.display())));
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("bindings.rs");
    bindgen::Builder::default()
        .header("src/headers.h")
        .clang_args(&include)
        .allowlist_function("ibv_(get_device_(list|name|guid)|free_device_list|(open|close)_device)")
        .allowlist_function("ibv_query_(device|port|gid|pkey|qp|srq)|_ibv_query_gid_(ex|table)")
        .allowlist_function("ibv_(alloc|dealloc)_pd|ibv_(reg|dereg)_mr")
        .allowlist_function("ibv_(create|destroy)_(cq|srq|qp|ah)|ibv_modify_(qp|srq)")
        .allowlist_function("ibv_(create|destroy)_comp_channel|ibv_get_cq_event|ibv_ack_cq_events")
        .allowlist_function("ibv_(attach|detach)_mcast|ibv_(get|ack)_async_event|ibv_event_type_str")
        .allowlist_function("ibv_(wc_status|port_state)_str")
        .allowlist_function("mlx5dv_(is_supported|init_obj|open_device|query_device|create_qp)")
        .allowlist_function("mlx5dv_((create|destroy)_mkey|devx_general_cmd)")
        .allowlist_function("umad_(init|done|open_port|close_port|register|unregister|send|recv|poll)")
        .allowlist_function("umad_(get_fd|size|get_mad|status|set_addr|set_grh|set_pkey)")
        .allowlist_type("verbs_context|mlx5_(cqe64|err_cqe|wqe_.*)|mlx5dv_.*|ibv_.*|ib_user_mad|ib_mad_addr")
        .allowlist_type("ib_uverbs_query_port_flags")
        .allowlist_var("(IBV|MLX5|MLX5DV|UMAD)_.*")
        // bindgen loses the two-byte alignment of packed members in it (rust-bindgen issue 2240).
        .opaque_type("mlx5_wqe_ctrl_seg")
        // Not needed for posting, and contains C's flexible arrays in unions.
        .opaque_type("mlx5dv_flow_.*|mlx5dv_dr_.*|ibv_flow_.*|mlx5dv_pp|mlx5dv_sched_.*")
        .constified_enum_module("ibv_(wc_opcode|wr_opcode)")
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate()?
        .write_to_file(out)?;
    Ok(())
}
