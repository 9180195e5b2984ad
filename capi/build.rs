//! Gives the library its soname and the version of its symbols, and puts the name that programs look for beside it, which is
//! the soname: who is linked against `target/release/libgpuflame.so` finds it there.

use std::env;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

const SONAME: &str = "libgpuflame.so.0";

fn main() -> std::io::Result<()> {
    let mut cargo = std::io::stdout();
    writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}")?;
    writeln!(cargo, "cargo:rustc-check-cfg=cfg(versioned)")?;
    if links_with_lld() {
        let map = format!("{}/versions.map", env!("CARGO_MANIFEST_DIR"));
        writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}")?;
        writeln!(cargo, "cargo:rustc-cfg=versioned")?;
    }
    // target/release/build/NAME/out
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        for folder in [profile.to_owned(), profile.join("deps")] {
            match symlink("libgpuflame.so", folder.join(SONAME)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    writeln!(cargo, "cargo:warning=no {SONAME} in {}: {error}", folder.display())?;
                }
                _ => {}
            }
        }
    }
    writeln!(cargo, "cargo:rerun-if-changed=versions.map")?;
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")
}

/// Whether the linker takes a second version script beside the one that rustc writes: its own does, where it is the
/// default, and GNU's refuses.
fn links_with_lld() -> bool {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_default = env::var_os("RUSTC_LINKER").is_none()
        && !["linker", "fuse-ld", "link-self-contained"].iter().any(|word| flags.contains(word));
    is_default && is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_ENV", "gnu")
}
