//! Gives the library its soname and the version of its symbols, has it run on glibc 2.17 and later, and puts beside it
//! the name that programs look for, which is the soname (who is linked against `target/release/libgpuflame.so` finds it
//! there), and the small library that is preloaded into a whole shell.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const SONAME: &str = "libgpuflame.so.0";
const PRELOAD: &str = "libgpuflame-preload.so";

/// A library that is linked to in the place of one of glibc's: functions by the version that they had in it before the
/// C library took them in (2.32 and 2.34), where newer linkers find them under newer versions. A program that was
/// linked then runs today, and so does what is linked to these.
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
            // Of no version: what an older one lacks is null there, and the standard library does without.
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
        // Equal functions become one, which makes the library 2 % smaller. Each crate has its own instances of generic
        // functions, and Rust promises no function an address of its own.
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
    // target/release/build/NAME/out
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
    /// Builds a library that exports these names and contains no code.
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

/// Makes the library that is preloaded, as few pages as can be.
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
    // Loops stay loops: no function of a library is called for them.
    compiler.args(["-fno-asynchronous-unwind-tables", "-fno-tree-loop-distribute-patterns"]);
    compiler.args(["-shared", "-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,--hash-style=gnu"]);
    compiler.args(["noseparate-code", "norelro", "noexecstack"].map(|word| format!("-Wl,-z,{word}")));
    compiler.arg(format!("-Wl,-soname,{PRELOAD}"));
    compiler.arg(format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    run_command(compiler.arg("preload.c").arg("-o").arg(folder.join(PRELOAD)))
}

/// What rustc links with, which compiles too.
fn c_compiler() -> Command {
    Command::new(env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into()))
}

fn run_command(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
    if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {said}"))) }
}

/// Whether the linker takes a second version script beside the one that rustc writes: its own does, where it is the
/// default, and GNU's refuses.
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
