//! Compiles the C and C++ code of these tests into libraries, and loads these libraries.

use std::ffi::{CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, process};

/// Compiles `source` (a file in the parent of this folder, or a path) to a shared library, once per set of compiler
/// options.
pub(crate) fn compile(source: impl AsRef<Path>, options: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/unwind").join(source);
    let text = fs::read(&source).expect("the source is there");
    let mut hasher = DefaultHasher::new();
    (text, options, &source).hash(&mut hasher);
    let stem = source.file_stem().expect("a file").to_string_lossy().into_owned();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{stem}-{:016x}.so", hasher.finish()));
    if !target.exists() {
        let compiler = if source.extension().is_some_and(|ending| ending == "cc") { "g++" } else { "gcc" };
        let fresh = target.with_extension(format!("{}.tmp", process::id()));
        let status = Command::new(compiler)
            .args(["-shared", "-fPIC", "-g0", "-w", "-Wl,--build-id", "-o"])
            .arg(&fresh)
            .args(options)
            .arg(&source)
            .args(["-lpthread", "-ldl"])
            .status()
            .unwrap_or_else(|error| panic!("{compiler} is needed (apt-get install g++): {error}"));
        assert!(status.success(), "{compiler} {options:?} {}", source.display());
        fs::rename(&fresh, &target).expect("the library moves into place");
    }
    target
}

/// A library that stays loaded until `close` is called.
#[derive(Clone, Copy)]
pub(crate) struct Library(pub(crate) *mut c_void);

impl Library {
    pub(crate) fn open(path: &Path) -> Self {
        let name = CString::new(path.to_str().expect("a path in UTF-8")).expect("no NUL");
        // SAFETY: the name is a C string; constructors of these libraries only call the test's callbacks.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot load {}", path.display());
        Self(handle)
    }

    #[allow(dead_code)]
    pub(crate) fn symbol(self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the handle came from dlopen, and the name is a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "no {name:?}");
        symbol
    }

    #[allow(dead_code)]
    pub(crate) fn close(self) {
        // SAFETY: the handle came from dlopen, and no code of the library is running.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}
