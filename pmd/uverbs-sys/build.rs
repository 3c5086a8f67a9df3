//! Binds the kernel headers of the verbs interface.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["build.rs", "src/headers.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("bindings.rs");
    bindgen::Builder::default()
        .header("src/headers.h")
        .allowlist_type("ib_uverbs_.*|mlx5_ib_.*|uverbs_.*|ib_user_verbs_.*|mlx5_user_.*")
        .allowlist_var("(IB_USER_VERBS|UVERBS|MLX5_IB|MLX5_USER|REQUEST)_.*")
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate()?
        .write_to_file(out)?;
    Ok(())
}
