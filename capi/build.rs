//! Sets the library's soname and symbol versions, makes the library run on glibc 2.17 and later, and creates two files
//! next to the library. The first created file is a symbolic link whose name is the soname. A program that is linked
//! against `target/release/libgpuflame.so` finds the library through the symbolic link. The second created file is the
//! small library that can be preloaded into a whole shell.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const SONAME: &str = "libgpuflame.so.0";
const PRELOAD: &str = "libgpuflame-preload.so";

/// A stub library, against which this library is linked in place of one of glibc's libraries. Glibc 2.32 and 2.34 moved
/// functions from other libraries into the C library. A stub exports the moved functions with the symbol versions that
/// they had before the move. Without the stubs, the linker would find the moved functions in a newer glibc under newer
/// symbol versions. Like any program with the old symbol versions, a library that is linked against the stubs also runs
/// on newer systems.
struct StubLibrary {
    file: &'static str,
    soname: &'static str,
    versions: &'static [(&'static str, &'static str)],
}

const STUB_LIBRARIES: [StubLibrary; 2] = [
    StubLibrary {
        file: "libdl.so",
        soname: "libdl.so.2",
        versions: &[("GLIBC_2.2.5", "dladdr dlclose dlerror dlopen dlsym"), ("GLIBC_2.3.3", "dladdr1")],
    },
    StubLibrary {
        file: "libpthread.so",
        soname: "libpthread.so.0",
        versions: &[
            (
                "GLIBC_2.2.5",
                "pthread_attr_getguardsize pthread_attr_getstack pthread_attr_setstacksize pthread_create \
                 pthread_detach pthread_getattr_np pthread_getcpuclockid pthread_getspecific pthread_join \
                 pthread_key_create pthread_key_delete pthread_kill pthread_setspecific pthread_sigmask",
            ),
            ("GLIBC_2.12", "pthread_setname_np"),
            // The functions that are listed below have no symbol version. If an older glibc lacks a function without a
            // symbol version, the function's address is null, and the standard library works without the function.
            ("", "__cxa_thread_atexit_impl getrandom gettid statx"),
        ],
    },
];

fn main() -> io::Result<()> {
    let mut cargo = io::stdout();
    writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}")?;
    writeln!(cargo, "cargo:rustc-check-cfg=cfg(versioned)")?;
    if links_with_lld() {
        let map = format!("{}/versions.map", env!("CARGO_MANIFEST_DIR"));
        writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}")?;
        // Merges identical functions. This makes the library 2 % smaller, because each crate has its own instances of
        // generic functions. Merging is safe because Rust does not guarantee that different functions have different
        // addresses.
        writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,--icf=all")?;
        writeln!(cargo, "cargo:rustc-cfg=versioned")?;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if is_target_architecture("x86_64") {
        match STUB_LIBRARIES.iter().try_for_each(|library| library.build(&out)) {
            Ok(()) => writeln!(cargo, "cargo:rustc-cdylib-link-arg=-L{}", out.display())?,
            Err(error) => {
                writeln!(
                    cargo,
                    "cargo:warning=the library will require this machine's glibc or a newer one: {error}"
                )?;
            }
        }
    }
    // `out` is the folder target/release/build/NAME/out.
    if let Some(profile) = out.ancestors().nth(3) {
        for folder in [profile.to_owned(), profile.join("deps")] {
            if let Err(error) = build_preload(&folder) {
                writeln!(cargo, "cargo:warning=cannot create {PRELOAD} in {}: {error}", folder.display())?;
            }
            match symlink("libgpuflame.so", folder.join(SONAME)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    writeln!(cargo, "cargo:warning=cannot create {SONAME} in {}: {error}", folder.display())?;
                }
                _ => {}
            }
        }
    }
    writeln!(cargo, "cargo:rerun-if-changed=versions.map")?;
    writeln!(cargo, "cargo:rerun-if-changed=preload.c")?;
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")
}

impl StubLibrary {
    /// Builds a stub, which is a library that exports the names of functions and contains no code.
    fn build(&self, folder: &Path) -> io::Result<()> {
        let (mut code, mut map) = (String::new(), String::new());
        for (version, symbols) in self.versions {
            for symbol in symbols.split(' ') {
                code += &format!(".globl {symbol}\n.type {symbol}, @function\n{symbol}:\n");
            }
            if !version.is_empty() {
                map += &format!("{version} {{ global: {}; }};\n", symbols.replace(' ', "; "));
            }
        }
        let [assembly, script] = ["s", "map"].map(|kind| folder.join(format!("{}.{kind}", self.file)));
        fs::write(&assembly, code)?;
        fs::write(&script, map)?;
        let mut compiler = c_compiler();
        compiler.args(["-shared", "-nostdlib", &format!("-Wl,-soname,{}", self.soname)]);
        compiler.arg(format!("-Wl,--version-script={}", script.display())).arg(&assembly);
        run_command(compiler.arg("-o").arg(folder.join(self.file)))
    }
}

/// Builds `libgpuflame-preload.so` so that it has as few memory pages as possible.
fn build_preload(folder: &Path) -> io::Result<()> {
    let mut compiler = c_compiler();
    compiler.args([
        "-std=gnu99",
        "-Os",
        "-fPIC",
        "-ffreestanding",
        "-fvisibility=hidden",
        "-fno-stack-protector",
    ]);
    // The compiler must not replace loops with calls to library functions such as `memcpy`, because this library is
    // linked without other libraries.
    compiler.args(["-fno-asynchronous-unwind-tables", "-fno-tree-loop-distribute-patterns"]);
    compiler.args(["-shared", "-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,--hash-style=gnu"]);
    compiler.args(["noseparate-code", "norelro", "noexecstack"].map(|word| format!("-Wl,-z,{word}")));
    compiler.arg(format!("-Wl,-soname,{PRELOAD}"));
    compiler.arg(format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    run_command(compiler.arg("preload.c").arg("-o").arg(folder.join(PRELOAD)))
}

/// Returns the program that rustc uses as its linker. The linker program can also compile C and assembly.
fn c_compiler() -> Command {
    Command::new(env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into()))
}

fn run_command(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
    if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {said}"))) }
}

/// Whether the linker accepts a second version script in addition to the script that rustc writes. LLD, which is the
/// default linker on some targets, accepts a second version script. GNU's linker refuses a second version script.
fn links_with_lld() -> bool {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_default = env::var_os("RUSTC_LINKER").is_none()
        && !["linker", "fuse-ld", "link-self-contained"].iter().any(|word| flags.contains(word));
    is_default && is_target_architecture("x86_64")
}

fn is_target_architecture(architecture: &str) -> bool {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    is("CARGO_CFG_TARGET_ARCH", architecture) && is("CARGO_CFG_TARGET_ENV", "gnu")
}
