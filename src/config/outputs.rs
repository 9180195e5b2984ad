//! Makes the names of output files from the user's path prefix. A name that is chosen never belongs to an existing
//! file.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::python_program::python_program;
use gpuflame_model::sorting;

/// Values that replace the macros in a path prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixMacros {
    /// `%p`: the process id.
    pub process: u32,
    /// `%h`: the host name.
    pub host: String,
    /// `%e`: the program's file name; for a Python program, the name of its script or module.
    pub program: OsString,
    /// `%t`: the time at which gpuflame was loaded into the process, in seconds since 1970.
    pub time: u64,
    /// Environment variables of the process. `%r` and `%q{NAME}` are replaced by the values of environment variables.
    pub environment: BTreeMap<OsString, OsString>,
}

/// Environment variables in which launchers (torchrun, Open MPI, PMIx, MPICH and Slurm) store a process's rank. Each
/// rank variable is paired with the launcher's variable for the number of ranks, if the launcher has such a variable.
/// The rank comes from the first of these rank variables that is set. `LOCAL_RANK` is last, because it contains only
/// the rank within the machine.
const RANK_VARIABLES: [(&str, Option<&str>); 6] = [
    ("RANK", Some("WORLD_SIZE")),
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE")),
    ("PMIX_RANK", None),
    ("PMI_RANK", Some("PMI_SIZE")),
    ("SLURM_PROCID", Some("SLURM_NTASKS")),
    ("LOCAL_RANK", None),
];

impl PrefixMacros {
    /// Returns the values of the macros for the current process.
    pub fn from_process() -> Self {
        let file = Self::from_executable();
        let command_line = || std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let program = python_program(&file.program, command_line).unwrap_or_else(|| file.program.clone());
        Self { program, environment: sorting::into_map(std::env::vars_os()), ..file }
    }

    /// Returns only the macro values that the user who starts the process cannot choose. This function reads neither
    /// the environment nor the command line, because the user controls both.
    pub fn from_executable() -> Self {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(Path::file_name);
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            process: std::process::id(),
            host: host(),
            program: program.unwrap_or(OsStr::new("unknown")).to_owned(),
            time: since_1970.map_or(0, |time| time.as_secs()),
            environment: BTreeMap::new(),
        }
    }

    /// Rank of the process within its job, as text. `None` if no launcher has set a rank.
    pub fn launcher_rank(&self) -> Option<&OsStr> {
        self.launcher_variables().map(|(rank, _)| rank)
    }

    /// Number of ranks in the job, as text. `None` if the launcher has set the rank but not the number of ranks.
    pub fn launcher_world_size(&self) -> Option<&OsStr> {
        self.launcher_variables()?.1
    }

    fn launcher_variables(&self) -> Option<(&OsStr, Option<&OsStr>)> {
        let get = |name: &str| self.environment.get(OsStr::new(name)).map(OsString::as_os_str);
        RANK_VARIABLES.iter().find_map(|(rank, size)| Some((get(rank)?, size.and_then(get))))
    }

    fn rank(&self) -> &OsStr {
        self.launcher_rank().unwrap_or(OsStr::new("0"))
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// Replaces the macros in `prefix`, which may be non-UTF-8. Unknown macros are left unchanged. The macros `%n` and `%w`
/// are also left unchanged. [`Outputs`] replaces `%n` and `%w` later, when the existing files and the window are known.
/// A `/` in the value of a macro is replaced by `_`, because a value is a part of a file name and cannot contain
/// folders.
pub fn expand(prefix: &OsStr, macros: &PrefixMacros) -> OsString {
    let mut out = Vec::with_capacity(prefix.len() + 32);
    let mut rest = prefix.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.extend(&rest[..at]);
        rest = &rest[at + 1..];
        match expand_macro(rest, macros) {
            Some((value, used)) => {
                out.extend(value.iter().map(|byte| if *byte == b'/' { b'_' } else { *byte }));
                rest = &rest[used..];
            }
            None => out.push(b'%'),
        }
    }
    out.extend(rest);
    OsString::from_vec(out)
}

/// Returns the value of the macro at the start of `text` (after the `%`), and the length of the macro in bytes.
fn expand_macro(text: &[u8], macros: &PrefixMacros) -> Option<(Vec<u8>, usize)> {
    let value = match text.first()? {
        b'p' => macros.process.to_string().into_bytes(),
        b'h' => macros.host.clone().into_bytes(),
        b'e' => macros.program.clone().into_vec(),
        b't' => macros.time.to_string().into_bytes(),
        b'r' => macros.rank().as_bytes().to_vec(),
        b'%' => b"%".to_vec(),
        b'q' => {
            let name = text.strip_prefix(b"q{")?;
            let name = &name[..name.iter().position(|byte| *byte == b'}')?];
            let value = macros.environment.get(OsStr::from_bytes(name)).cloned();
            return Some((value.unwrap_or_default().into_vec(), name.len() + 3));
        }
        _ => return None,
    };
    Some((value, 1))
}

/// A file that could not be created under its intended name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedOutput {
    /// The intended name, which already belonged to another file.
    pub intended: PathBuf,
    /// The name under which the file was created instead.
    pub actual: PathBuf,
}

/// Path prefix of all outputs of this process, absolute and with macros replaced. The path prefix may be non-UTF-8.
#[derive(Clone, Debug)]
pub struct Outputs {
    prefix: OsString,
}

impl Outputs {
    /// Replaces the macros in `prefix`, and makes the prefix absolute, because the application may later change its
    /// current directory.
    pub fn new(prefix: impl AsRef<OsStr>, macros: &PrefixMacros) -> Self {
        let expanded = PathBuf::from(expand(prefix.as_ref(), macros));
        Self { prefix: std::path::absolute(&expanded).unwrap_or(expanded).into_os_string() }
    }

    /// Whether each window has its own output files. If each window has its own files, the window's number replaces the
    /// `%w` in the prefix.
    pub fn has_windows(&self) -> bool {
        has(&self.prefix, "%w")
    }

    /// Returns the prefix for the output files of the window with this number.
    pub fn for_window(&self, number: u64) -> Self {
        Self { prefix: replaced(&self.prefix, "%w", &number.to_string()) }
    }

    /// Returns the prefix for the outputs that cover all windows.
    pub fn for_all_windows(&self) -> Self {
        Self { prefix: replaced(&self.prefix, "%w", "all") }
    }

    /// Chooses the file names for a set of outputs, one for each item of `suffixes`. A chosen name must not belong to
    /// an existing file. All file names of the set contain the same number. `claim` returns true if no other process is
    /// about to create files with the names that `claim` receives. Returns the names, and a [`RenamedOutput`] for each
    /// output whose intended name already belonged to another file.
    pub fn choose_names(
        &self,
        suffixes: &[&str],
        exists: impl Fn(&Path) -> bool,
        mut claim: impl FnMut(&[PathBuf]) -> bool,
    ) -> (Vec<PathBuf>, Vec<RenamedOutput>) {
        self.choose_names_by(suffixes, &exists, &mut claim)
    }

    /// Implements `choose_names`. `choose_names_by` is not generic, so that it is compiled only once for all callers.
    fn choose_names_by(
        &self,
        suffixes: &[&str],
        exists: &dyn Fn(&Path) -> bool,
        claim: &mut dyn FnMut(&[PathBuf]) -> bool,
    ) -> (Vec<PathBuf>, Vec<RenamedOutput>) {
        let named = |number: u32| -> Vec<PathBuf> {
            suffixes.iter().map(|suffix| PathBuf::from(self.name(number, suffix))).collect()
        };
        let first = named(0);
        let mut are_taken: Vec<_> = first.iter().map(|path| exists(path)).collect();
        if !are_taken.contains(&true) {
            if claim(&first) {
                return (first, Vec::new());
            }
            are_taken.fill(true);
        }
        let is_free = |names: &[PathBuf]| !names.iter().any(|path| exists(path));
        let mut number = 1;
        while number < u32::MAX && !(is_free(&named(number)) && claim(&named(number))) {
            number += 1;
        }
        let names = named(number);
        if has(&self.prefix, "%n") {
            return (names, Vec::new());
        }
        let renames = first
            .into_iter()
            .zip(names.iter().cloned())
            .zip(are_taken)
            .filter(|(_, is_taken)| *is_taken)
            .map(|((intended, actual), _)| RenamedOutput { intended, actual })
            .collect();
        (names, renames)
    }

    fn name(&self, number: u32, suffix: &str) -> OsString {
        let mut name = replaced(&self.prefix, "%n", &number.to_string());
        if number > 0 && !has(&self.prefix, "%n") {
            name.push(format!(".{number}"));
        }
        name.push(suffix);
        name
    }
}

fn has(text: &OsStr, word: &str) -> bool {
    text.as_bytes().windows(word.len()).any(|bytes| bytes == word.as_bytes())
}

fn replaced(text: &OsStr, word: &str, with: &str) -> OsString {
    let mut out = Vec::with_capacity(text.len() + with.len());
    let mut rest = text.as_bytes();
    while let Some(at) = rest.windows(word.len()).position(|bytes| bytes == word.as_bytes()) {
        out.extend(&rest[..at]);
        out.extend(with.as_bytes());
        rest = &rest[at + word.len()..];
    }
    out.extend(rest);
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn macros() -> PrefixMacros {
        PrefixMacros {
            process: 42,
            host: "node7".to_owned(),
            program: "llm".into(),
            time: 1_700_000_000,
            environment: [("SLURM_PROCID", "3"), ("RANK", "5"), ("JOB", "a/b")]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
        }
    }

    #[test]
    fn every_macro_is_replaced() {
        assert_eq!(
            expand(OsStr::new("/out/%h/%e.%p-%t-r%r-%q{JOB}%%"), &macros()),
            "/out/node7/llm.42-1700000000-r5-a_b%"
        );
    }

    #[test]
    fn text_that_is_not_a_macro_is_unchanged() {
        for (prefix, expected) in [("a%z%q{x%é%", "a%z%q{x%é%"), ("run%n", "run%n"), ("%q{UNSET}x", "x")] {
            assert_eq!(expand(OsStr::new(prefix), &macros()), expected);
        }
    }

    #[test]
    fn the_rank_is_read_from_each_launchers_variable() {
        for name in ["RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"] {
            let macros =
                PrefixMacros { environment: [(name.into(), "3".into())].into(), ..PrefixMacros::default() };
            assert_eq!(expand(OsStr::new("%r"), &macros), "3", "{name}");
            assert_eq!(macros.launcher_rank(), Some(OsStr::new("3")), "{name}");
        }
    }

    #[test]
    fn the_number_of_ranks_is_read_from_the_launcher_that_gave_the_rank() {
        for (environment, size) in [
            (&[("RANK", "3"), ("WORLD_SIZE", "8"), ("SLURM_NTASKS", "2")][..], Some("8")),
            (&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")], Some("2")),
            (&[("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")], None),
            (&[("WORLD_SIZE", "8")], None),
        ] {
            let environment = environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let macros = PrefixMacros { environment, ..PrefixMacros::default() };
            assert_eq!(macros.launcher_world_size(), size.map(OsStr::new), "{macros:?}");
        }
    }

    #[test]
    fn the_rank_is_zero_if_unset() {
        assert_eq!(expand(OsStr::new("%r"), &PrefixMacros::default()), "0");
    }

    #[test]
    fn a_name_that_exists_gets_a_number_before_its_suffix() {
        let outputs = Outputs::new("/out/x", &macros());
        let taken = ["/out/x.svg", "/out/x.1.folded"].map(PathBuf::from);
        let (names, renames) =
            outputs.choose_names(&[".folded", ".svg"], |path| taken.contains(&path.to_owned()), |_| true);
        assert_eq!(names, ["/out/x.2.folded", "/out/x.2.svg"].map(PathBuf::from));
        assert_eq!(renames, [RenamedOutput { intended: "/out/x.svg".into(), actual: "/out/x.2.svg".into() }]);
    }

    #[test]
    fn a_number_macro_takes_the_first_free_number_without_a_warning() {
        let outputs = Outputs::new("/out/run%n", &macros());
        let taken = ["/out/run0.svg", "/out/run1.svg"].map(PathBuf::from);
        let (names, renames) =
            outputs.choose_names(&[".svg"], |path| taken.contains(&path.to_owned()), |_| true);
        assert_eq!(names, [PathBuf::from("/out/run2.svg")]);
        assert_eq!(renames, []);
    }

    #[test]
    fn non_utf_8_bytes_in_a_prefix_are_unchanged() {
        let bytes = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let environment = [(bytes(b"\xfe"), bytes(b"\xc3/"))].into();
        let macros = PrefixMacros { program: bytes(b"caf\xe9"), environment, ..macros() };
        let prefix = bytes(b"/out/\xff%p/\xe9t\xe9%n%w%e%q{\xfe}");
        let (names, _) =
            Outputs::new(prefix, &macros).for_window(3).choose_names(&[".svg"], |_| false, |_| true);
        assert_eq!(names[0].as_os_str().as_bytes(), b"/out/\xff42/\xe9t\xe903caf\xe9\xc3_.svg");
    }

    #[test]
    fn a_relative_prefix_is_resolved_against_the_initial_directory() {
        let outputs = Outputs::new("x", &macros());
        let (names, _) = outputs.choose_names(&[".svg"], |_| false, |_| true);
        assert_eq!(names, [std::env::current_dir().unwrap().join("x.svg")]);
    }

    #[test]
    fn names_claimed_by_another_process_count_as_taken() {
        let outputs = Outputs::new("/x/out", &PrefixMacros::default());
        let mut asked = Vec::new();
        let (names, renames) = outputs.choose_names(
            &[".svg", ".csv"],
            |path| path.ends_with("out.1.csv"),
            |names| {
                asked.push(names[0].clone());
                asked.len() > 1
            },
        );
        assert_eq!(asked, [Path::new("/x/out.svg"), Path::new("/x/out.2.svg")]);
        assert_eq!((names[1].as_path(), renames.len()), (Path::new("/x/out.2.csv"), 2));
    }
}
