//! Linker options: the library gets the soname and the symbol version node of the real library, and is never unmapped.
//! The library resolves calls of its own functions to itself, because libcuda and libcudart both export `gpusim_site`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let map = format!("--version-script={}/versions.map", env!("CARGO_MANIFEST_DIR"));
    let mut cargo = std::io::stdout();
    for arg in ["-soname,libcuda.so.1", "-z,nodelete", "-Bsymbolic", &map] {
        writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,{arg}")?;
    }
    writeln!(cargo, "cargo:rerun-if-changed=versions.map")
}
