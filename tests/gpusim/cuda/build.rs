//! Gives the library the real one's soname and version node, and keeps it mapped for ever.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let map = format!("--version-script={}/versions.map", env!("CARGO_MANIFEST_DIR"));
    let mut cargo = std::io::stdout();
    for arg in ["-soname,libcuda.so.1", "-z,nodelete", &map] {
        writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,{arg}")?;
    }
    writeln!(cargo, "cargo:rerun-if-changed=versions.map")
}
