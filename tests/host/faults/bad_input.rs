//! Bad conditions and bad input (a machine without CUPTI, a full disk, nonsensical records) never change how the
//! application ends. The program returns its own exit code, one line on stderr names the problem, and files on disk are
//! complete.
//!
//! The program, `tests/programs/odd.c`, returns 7. The program alternately launches 50 kernels of 1,200 ns and 50
//! kernels of 301 ns, and a fill after every tenth kernel.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, compile, gpuflame, scratch, skip, stage};

/// The program's own exit code.
const CODE: Option<i32> = Some(7);
/// Total duration in ns of the program's kernels `add` and `mul`.
const ADDS: u64 = 50 * 301;
const MULS: u64 = 50 * 1200;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/odd.c", &["-O2"]))
}

fn odd(how: &str) -> Run {
    Run::new(program(), Way::Injected).arg(how)
}

/// Runs the program with these environment variables, and asserts that it returns its own exit code.
fn run(how: &str, variables: &[(&str, &str)]) -> Done {
    let done = variables.iter().fold(odd(how), |run, (name, value)| run.env(name, value)).done();
    assert_eq!(done.code, CODE, "{}", done.stderr);
    assert_no_remains(&done.folder);
    done
}

fn with_faults(faults: &str) -> Done {
    run("plain", &[("GPUSIM_FAULTS", faults)])
}

/// Returns the names of the files in `folder`, except the truth file.
fn files(folder: &Path) -> Vec<String> {
    let listing = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = listing.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "truth.json");
    names.sort();
    names
}

fn assert_no_remains(folder: &Path) {
    assert!(!files(folder).iter().any(|name| name.contains(".part")), "{:?}", files(folder));
}

/// Asserts that the program continued, and that one line from gpuflame explains why there are no outputs. This line
/// contains all texts in `parts`.
fn assert_refused(done: &Done, parts: &[&str]) {
    assert_eq!(done.code, CODE, "{}", done.stderr);
    let lines = done.ledger("");
    let [line] = lines[..] else { panic!("one line, not\n{}", done.stderr) };
    assert!(line.starts_with("not recording: "), "{line}");
    for part in parts {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
    assert_eq!(files(&done.folder), [""; 0]);
}

/// Returns the count after `word` in the line `lost:` of the ledger.
fn lost(done: &Done, word: &str) -> u64 {
    let lines = done.ledger("lost: ");
    let mut parts = lines[0].split(", ").map(|part| part.rsplit_once(' ').unwrap());
    let (_, count) = parts.find(|(name, _)| *name == word).unwrap_or_else(|| panic!("{word}: {lines:?}"));
    count.parse().unwrap()
}

/// Returns the GPU time for each leaf frame.
fn by_leaf(done: &Done) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (mut frames, weight) in done.folded() {
        *sums.entry(frames.pop().unwrap()).or_default() += weight;
    }
    sums
}

fn folded_sum(done: &Done) -> u64 {
    done.folded().iter().map(|(_, weight)| weight).sum()
}

fn assert_parts(done: &Done, word: &str, total: u64, expected: &[(&str, u64)]) {
    let (sum, mut parts) = done.sum(word);
    parts.retain(|_, count| *count > 0);
    let expected = expected.iter().map(|(part, count)| ((*part).to_owned(), *count)).collect();
    assert_eq!((sum, parts), (total, expected), "{word}\n{}", done.stderr);
}

/// Asserts that all 110 launches and activities are present, and that the kernels `add` and `mul` took `adds` and
/// `muls` ns in total.
fn assert_whole(done: &Done, adds: u64, muls: u64) {
    let leaves = by_leaf(done);
    assert_eq!(leaves["[GPU_Kernel]add_d301"], adds, "{leaves:?}");
    assert_eq!(leaves["[GPU_Kernel]mul_d1200"], muls, "{leaves:?}");
    assert_parts(done, "launches", 110, &[("matched", 110)]);
}

// The tests below are about conditions in which gpuflame cannot record.

#[test]
fn a_missing_cupti_is_reported_with_the_name_searched_and_the_install_command() {
    let done = odd("plain").with_libraries(&stage("no-cupti", &[])).done();
    assert_refused(&done, &["no CUPTI found", "libcupti.so.13", "pip install nvidia-cuda-cupti"]);
}

#[test]
fn a_missing_cupti_named_by_the_user_is_reported_with_its_path() {
    let done = run("plain", &[("GPUFLAME_CUPTI", "/nowhere/libcupti.so.13")]);
    assert_refused(&done, &["GPUFLAME_CUPTI names", "/nowhere/libcupti.so.13"]);
}

#[test]
fn a_cupti_file_that_cannot_be_loaded_is_reported_with_its_path() {
    let file = scratch("text").join("libcupti.so.13");
    fs::write(&file, "no library at all\n").unwrap();
    let file = file.to_str().unwrap();
    assert_refused(&run("plain", &[("GPUFLAME_CUPTI", file)]), &[file, "set GPUFLAME_CUPTI="]);
}

#[test]
fn a_cupti_that_lacks_a_function_is_reported_with_the_functions_name() {
    let folder = stage("lacking", &[]);
    let library = folder.join("libcupti.so.13");
    let source = folder.join("lacking.c");
    fs::write(
        &source,
        "int cuptiGetVersion(unsigned *version) { *version = 130000; return 0; }\n\
         int cuptiGetResultString(int code, const char **text) { (void)code; *text = \"?\"; return 0; }\n",
    )
    .unwrap();
    let gcc = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(gcc.unwrap().success());
    let done = odd("plain").env("GPUFLAME_CUPTI", &library).with_libraries(&folder).done();
    assert_refused(&done, &[library.to_str().unwrap(), "it has no cupti"]);
    let done = odd("plain").with_libraries(&folder).done();
    assert_refused(&done, &["no usable CUPTI found", "it has no cupti"]);
}

#[test]
fn a_missing_gpu_is_reported() {
    assert_refused(&run("plain", &[("GPUSIM_NDEV", "0")]), &["GPU"]);
}

#[test]
fn a_driver_older_than_cupti_is_reported_with_its_version() {
    // With this old driver, the CUDA runtime fails before it loads gpuflame. Therefore the program calls the driver's
    // own interface, which loads gpuflame.
    let folder = stage("old-driver", &["libcupti.so.13"]);
    let cupti = folder.join("libcupti.so.13");
    let done = odd("driver").env("GPUSIM_DRIVER", "12020").with_libraries(&folder).done();
    assert_refused(&done, &["libcupti.so.12", "pip install nvidia-cuda-cupti-cu12"]);
    let done = odd("driver").env("GPUSIM_DRIVER", "12020").env("GPUFLAME_CUPTI", &cupti).done();
    assert_refused(&done, &["it is for CUDA 13", "the driver supports 12.2"]);
    let done = odd("driver").env("GPUSIM_DRIVER", "10020").with_libraries(&folder).done();
    assert_refused(&done, &["the NVIDIA driver is too old", "10.2", "11.8 or later"]);
}

#[test]
fn a_runtime_that_refuses_the_driver_loads_no_gpuflame_and_nothing_is_printed() {
    let done = run("plain", &[("GPUSIM_DRIVER", "12020")]);
    assert_eq!(done.ledger(""), [""; 0]);
    assert_eq!(files(&done.folder), [""; 0]);
}

#[test]
fn another_tool_that_owns_cupti_is_reported() {
    let done = run("plain", &[("GPUSIM_OTHER_SUBSCRIBER", "1")]);
    assert_refused(&done, &["another tool", "(39)", "run without"]);
}

#[test]
fn a_refused_start_leaves_no_cupti_error_for_another_client_on_the_thread() {
    let done = run("last_error", &[("GPUSIM_OTHER_SUBSCRIBER", "1")]);
    assert_refused(&done, &["another tool", "(39)"]);
    assert_eq!(done.stdout, "0\n");
}

#[test]
fn a_successful_start_leaves_no_cupti_error_for_another_client() {
    let done = run("last_error", &[]);
    assert_eq!((done.code, &*done.stdout), (Some(7), "0\n"), "{}", done.stderr);
}

#[test]
fn a_cupti_that_records_nothing_is_refused() {
    let done = with_faults("enable:10=35,enable:1=35,enable:22=35,enable:2=35");
    assert_refused(&done, &["cuptiActivityEnable"]);
}

#[test]
fn a_refused_start_is_reported_even_when_quiet() {
    let done = run("plain", &[("GPUSIM_OTHER_SUBSCRIBER", "1"), ("GPUFLAME_QUIET", "1")]);
    assert_refused(&done, &["another tool"]);
}

#[test]
fn outputs_opened_before_a_refused_start_are_removed() {
    let done = run("plain", &[("GPUSIM_OTHER_SUBSCRIBER", "1"), ("GPUFLAME_FORMATS", "activities,gfr")]);
    assert_refused(&done, &["another tool"]);
}

// The tests below are about settings.

#[test]
fn file_mode_sets_the_permissions_and_modes_without_owner_write_are_rejected() {
    let modes = |setting: &[(&str, &str)]| {
        let done =
            run("plain", &[setting, &[("GPUFLAME_FORMATS", "folded,svg,csv,activities,gfr")]].concat());
        let files = fs::read_dir(&done.folder).unwrap().map(|file| file.unwrap().path());
        let ours = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("out."));
        let mut modes: Vec<_> =
            ours.map(|path| path.metadata().unwrap().permissions().mode() & 0o7777).collect();
        modes.dedup();
        (modes, done.stderr.contains("GPUFLAME_FILE_MODE="))
    };
    assert_eq!(modes(&[]), (vec![0o600], false));
    assert_eq!(modes(&[("GPUFLAME_FILE_MODE", "640")]), (vec![0o640], false));
    for refused in ["440", "755", "1600", "9", "u+r"] {
        assert_eq!(modes(&[("GPUFLAME_FILE_MODE", refused)]), (vec![0o600], true), "{refused}");
    }
}

#[test]
fn a_malformed_setting_is_reported_once_and_the_default_is_used() {
    let done = run("plain", &[("GPUFLAME_UNIT", "hours")]);
    let lines = done.ledger("GPUFLAME_");
    assert_eq!(lines, ["UNIT=hours: `hours` is not one of ns, us, count; using the default (ns)"]);
    done.assert_exact();
}

#[test]
fn an_unknown_setting_is_reported_once_with_the_nearest_name() {
    let done = run("plain", &[("GPUFLAME_FORMAT", "svg")]);
    assert_eq!(done.ledger("GPUFLAME_"), ["FORMAT: no such setting; did you mean GPUFLAME_FORMATS?"]);
    done.assert_exact();
}

#[test]
fn a_non_utf8_setting_is_harmless() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe;\n\x1b[31m");
    let done = odd("plain").env("GPUFLAME_UNIT", bytes).env("GPUFLAME_\nODD", "1").done();
    assert_eq!(done.code, CODE);
    assert!(!done.stderr.contains('\x1b'), "{:?}", done.stderr);
    assert!(done.stderr.lines().all(|line| line.starts_with("gpuflame: ")), "{}", done.stderr);
    done.assert_exact();
}

#[test]
fn quiet_prints_nothing() {
    let done = run("plain", &[("GPUFLAME_QUIET", "1"), ("GPUFLAME_NONSENSE", "1")]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    assert_eq!(files(&done.folder), WRITTEN);
}

#[test]
fn the_unit_may_be_microseconds_or_a_count() {
    let done = run("plain", &[("GPUFLAME_UNIT", "us")]);
    // 50 kernels of 301 ns take 15.05 us in total. gpuflame rounds only this total, not the duration of each kernel.
    assert_eq!(by_leaf(&done)["[GPU_Kernel]add_d301"], 15);
    assert_eq!(by_leaf(&done)["[GPU_Kernel]mul_d1200"], 60);
    let done = run("plain", &[("GPUFLAME_UNIT", "count")]);
    let expected = [("[GPU_Kernel]add_d301", 50), ("[GPU_Kernel]mul_d1200", 50), ("[GPU_Memset]", 10)];
    assert_eq!(by_leaf(&done), expected.map(|(leaf, count)| (leaf.to_owned(), count)).into());
}

// The tests below are about paths of output files.

/// Returns the lines on stderr about failed writes. All other lines on stderr belong to the ledger.
fn refusals(done: &Done) -> Vec<&str> {
    done.ledger("cannot write ")
}

#[test]
fn an_unwritable_output_path_is_reported_in_one_line() {
    let file = scratch("file").join("file");
    fs::write(&file, "old").unwrap();
    for prefix in [format!("{}/below/out", file.display()), "/proc/nowhere/out".to_owned()] {
        let done = run("plain", &[("GPUFLAME_OUTPUT", &prefix)]);
        let lines = refusals(&done);
        let [line] = lines[..] else { panic!("one line, not\n{}", done.stderr) };
        for part in [".folded", ".svg", ".csv", &prefix, "os error", "set GPUFLAME_OUTPUT"] {
            assert!(line.contains(part), "`{part}` is not in: {line}");
        }
        assert_eq!(files(&done.folder), [""; 0]);
        assert_parts(&done, "launches", 110, &[("matched", 110)]);
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "old");
}

#[test]
fn streamed_outputs_share_the_line_about_an_unwritable_path() {
    let done =
        run("plain", &[("GPUFLAME_OUTPUT", "/proc/nowhere/out"), ("GPUFLAME_FORMATS", "svg,activities,gfr")]);
    assert_eq!(refusals(&done).len(), 1, "{}", done.stderr);
    assert!(refusals(&done)[0].contains(".gfr"), "{}", done.stderr);
}

/// Names of the files that are written by default.
const WRITTEN: [&str; 7] =
    ["out.csv", "out.folded", "out.gfr", "out.idle.folded", "out.idle.svg", "out.set.json", "out.svg"];
/// Names of the files that are written by default if files with the names in the list above already exist.
const NUMBERED: [&str; 7] = [
    "out.1.csv",
    "out.1.folded",
    "out.1.gfr",
    "out.1.idle.folded",
    "out.1.idle.svg",
    "out.1.set.json",
    "out.1.svg",
];

#[test]
fn an_existing_file_is_kept_and_the_ledger_names_the_numbered_one() {
    let folder = scratch("exists");
    fs::write(folder.join("out.csv"), "old").unwrap();
    let done = odd("plain").in_folder(&folder).done();
    assert_eq!(done.code, CODE);
    assert_eq!(fs::read_to_string(folder.join("out.csv")).unwrap(), "old");
    assert_eq!(files(&folder), [&NUMBERED[..], &["out.csv"]].concat());
    let expected = format!("gpuflame: {0}/out.csv is taken; wrote {0}/out.1.csv instead\n", folder.display());
    assert!(done.stderr.contains(&expected), "{}", done.stderr);
    assert_eq!(done.ledger("wrote ").len(), 6);
}

/// Paths are byte strings. Therefore gpuflame neither replaces nor drops bytes that are not UTF-8.
#[test]
fn non_utf8_folders_and_prefixes_get_the_files() {
    let named = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let inside = |folder: &Path| {
        let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        all.retain(|name| name != "truth.json");
        all.sort();
        all
    };
    let folder = scratch("bytes").join(named(b"caf\xe9"));
    fs::create_dir(&folder).unwrap();
    let run = odd("plain").in_folder(&folder).env("GPUFLAME_FORMATS", "folded,activities");
    let done = run.env("GPUFLAME_OUTPUT", named(b"\xff%p/o\xe9")).done();
    assert_eq!(done.code, CODE, "{}", done.stderr);
    let [deeper] = &inside(&folder)[..] else { panic!("{:?}", inside(&folder)) };
    let digits = deeper.as_bytes().strip_prefix(b"\xff").expect("the byte is unchanged");
    assert!(!digits.is_empty() && digits.iter().all(u8::is_ascii_digit), "{deeper:?}");
    let names = ["activities.csv", "folded", "set.json", "stacks.csv"];
    let expected = names.map(|suffix| named(&[b"o\xe9.", suffix.as_bytes()].concat()));
    assert_eq!(inside(&folder.join(deeper)), expected);
    assert_eq!(inside(folder.parent().unwrap()), [named(b"caf\xe9")]);
}

#[test]
fn program_and_environment_names_in_a_prefix_keep_their_bytes() {
    let named = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let folder = scratch("macros");
    let copy = folder.join(named(b"caf\xe9"));
    fs::copy(program(), &copy).unwrap();
    let run = Run::new(&copy, Way::Injected).arg("plain").in_folder(&folder).env("JOB", named(b"\xff"));
    let done = run.env("GPUFLAME_OUTPUT", "%q{JOB}-%e").env("GPUFLAME_FORMATS", "folded").done();
    assert_eq!(done.code, CODE, "{}", done.stderr);
    assert!(folder.join(named(b"\xff-caf\xe9.folded")).exists(), "{}", done.stderr);
}

#[test]
fn all_path_settings_accept_non_utf8_bytes() {
    let folder = scratch("paths");
    let named = |bytes: &[u8]| folder.join(OsStr::from_bytes(bytes));
    let (report, library) = (named(b"r\xe9"), named(b"l\xe9.so"));
    fs::create_dir(&report).unwrap();
    let simulated = stage("paths", &["libcupti.so.13"]).join("libcupti.so.13");
    std::os::unix::fs::symlink(simulated, &library).unwrap();
    let run = odd("plain").in_folder(&folder).with_libraries(&stage("no-cupti", &[]));
    let run = run.env("GPUFLAME_REPORT", &report).env("GPUFLAME_CUPTI", &library);
    let run = run.env("GPUFLAME_FLAG", named(b"f\xe9")).env("CUPTI_TRACE_OUTPUT_FILE", named(b"t\xe9"));
    let done = run.done();
    assert_eq!(done.code, CODE, "{}", done.stderr);
    // The flag file, whose existence opens a window, does not exist, so no window opens.
    assert_parts(&done, "launches", 110, &[("outside", 110)]);
    assert_eq!(fs::read_dir(&report).unwrap().count(), 1, "{}", done.stderr);
    assert!(named(b"t\xe9").exists(), "{}", done.stderr);
    let known = [report.file_name(), library.file_name(), Some(OsStr::from_bytes(b"t\xe9"))];
    let others = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let others: Vec<_> =
        others.filter(|name| name.to_str().is_none() && !known.contains(&Some(name))).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_dangling_link_counts_as_an_existing_file() {
    let folder = scratch("dangling");
    std::os::unix::fs::symlink("/nowhere/else", folder.join("out.svg")).unwrap();
    let done = odd("plain").in_folder(&folder).done();
    assert_eq!(done.code, CODE);
    assert_eq!(fs::read_link(folder.join("out.svg")).unwrap(), Path::new("/nowhere/else"));
    assert_eq!(files(&folder), [&NUMBERED[..], &["out.svg"]].concat());
}

#[test]
fn processes_that_exit_together_write_to_different_names() {
    let folder = scratch("together");
    let runs = 8;
    let all: Vec<Done> = std::thread::scope(|scope| {
        let one = || odd("plain").in_folder(&folder).env("GPUSIM_TRUTH", "").done();
        let threads: Vec<_> = (0..runs).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut wrote: Vec<_> = all.iter().flat_map(|done| done.ledger("wrote ")).collect();
    wrote.sort();
    wrote.dedup();
    assert_eq!(wrote.len(), 6 * runs, "{wrote:?}");
    assert_eq!(files(&folder).len(), 7 * runs, "{:?}", files(&folder));
}

/// A mounted file system with a size of `kib` KiB, unmounted on drop. If this machine cannot mount a file system, `new`
/// prints a sentence and returns `None`.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    pub(crate) fn new(kib: usize) -> Option<Self> {
        let folder = scratch("disk");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "gpuflame-test"]).arg(&folder);
        let mounted = mount.output();
        if mounted.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        let is_root =
            fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        skip(&match is_root {
            true => format!("root can mount no small disk here: {mounted:?}"),
            false => "only root can mount the small disk that the test fills".to_owned(),
        });
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn outputs_that_fit_on_a_small_disk_are_written_without_the_larger_ones() {
    // The disk has four pages of 4 KiB. The folded file and the CSV table need one page each, and the SVG file about
    // five.
    let Some(disk) = Disk::new(16) else { return };
    let formats = "folded,svg,csv";
    let done =
        odd("plain").env("GPUFLAME_OUTPUT", disk.0.join("out")).env("GPUFLAME_FORMATS", formats).done();
    assert_eq!(done.code, CODE);
    assert_eq!(files(&disk.0), ["out.csv", "out.folded", "out.set.json"], "{}", done.stderr);
    let lines = refusals(&done);
    let [line] = lines[..] else { panic!("one line, not\n{}", done.stderr) };
    assert!(line.contains("out.svg: No space left on device"), "{line}");
    assert_eq!(done.ledger("wrote ").len(), 2);
    let whole = run("plain", &[]);
    for name in ["out.csv", "out.folded"] {
        assert_eq!(fs::read_to_string(disk.0.join(name)).unwrap(), whole.file(name));
    }
}

#[test]
fn a_full_disk_leaves_no_partial_file() {
    let Some(disk) = Disk::new(16) else { return };
    let old = "x".repeat(16 << 10);
    fs::write(disk.0.join("out.folded"), &old).unwrap();
    for formats in ["folded,svg,csv", "activities,gfr"] {
        let run = odd("plain").env("GPUFLAME_OUTPUT", disk.0.join("out")).env("GPUFLAME_FORMATS", formats);
        let done = run.done();
        assert_eq!(done.code, CODE);
        assert_eq!(refusals(&done).len(), 1, "{}", done.stderr);
        assert!(refusals(&done)[0].contains("No space left on device"), "{}", done.stderr);
        assert_eq!(files(&disk.0), ["out.folded"]);
        assert_eq!(fs::read_to_string(disk.0.join("out.folded")).unwrap(), old);
        assert_parts(&done, "launches", 110, &[("matched", 110)]);
    }
}

#[test]
fn a_disk_that_fills_up_mid_run_costs_only_the_streamed_outputs() {
    let Some(disk) = Disk::new(64) else { return };
    let run = odd("plain").arg("20000").env("GPUFLAME_OUTPUT", disk.0.join("out"));
    let done = run.env("GPUFLAME_FORMATS", "folded,activities,gfr").done();
    assert_eq!(done.code, CODE);
    assert_eq!(files(&disk.0), ["out.folded", "out.set.json", "out.stacks.csv"], "{}", done.stderr);
    assert_eq!(refusals(&done).len(), 1, "{}", done.stderr);
    assert_parts(&done, "launches", 22_000, &[("matched", 22_000)]);
    let folded = fs::read_to_string(disk.0.join("out.folded")).unwrap();
    let weights = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(weights.sum::<u64>(), done.truth().count("total_ns"));
}

// The tests below are about wrong launches and records. Every tenth launch is a short kernel, and every eleventh kernel
// or fill is a short kernel, too. The fault "every=20" hits five kernels or fills. The last of the five is a long
// kernel, and the other four are short.

#[test]
fn launches_that_fail_are_counted() {
    let done = with_faults("launch_fail:every=10");
    assert_eq!(done.truth().count("failed_launches"), 10);
    assert_eq!(lost(&done, "launches_failed"), 10);
    assert_parts(&done, "launches", 100, &[("matched", 100)]);
    assert_parts(&done, "activities", 100, &[("matched", 100)]);
    assert_eq!(by_leaf(&done)["[GPU_Kernel]add_d301"], 40 * 301);
    assert_eq!(folded_sum(&done), done.truth().count("total_ns"));
}

#[test]
fn records_with_zero_or_reversed_times_are_counted_without_weight() {
    for fault in ["zero_ts", "reversed"] {
        let done = with_faults(&format!("{fault}:every=11"));
        assert_eq!(done.truth().fault(fault), 10);
        assert_whole(&done, ADDS - 10 * 301, MULS);
        assert_parts(&done, "activities", 110, &[("matched", 110)]);
        assert_eq!(lost(&done, "timestamp_not_collected"), 10);
        assert_eq!(folded_sum(&done), done.truth().count("total_ns") - 10 * 301);
        let untimed = |(frames, weight): &(Vec<String>, u64)| {
            frames.contains(&"[timestamp not collected]".to_owned()) && *weight == 0
        };
        assert!(done.folded().iter().any(untimed), "{:?}", done.folded());
        assert!(done.file("out.csv").contains("missing,[timestamp not collected],,10,0,"));
    }
}

/// Some records have times in 1970 or in the next year, or last a hundred years. The durations in such records count as
/// neither busy nor idle GPU time.
#[test]
fn records_with_impossible_times_are_counted_without_weight() {
    for fault in ["epoch", "next_year", "endless"] {
        let done = with_faults(&format!("{fault}:every=11"));
        assert_eq!(done.truth().fault(fault), 10);
        assert_whole(&done, ADDS - 10 * 301, MULS);
        assert_parts(&done, "activities", 110, &[("matched", 110)]);
        assert_eq!(lost(&done, "timestamp_not_collected"), 10);
        let (window, parts) = done.sum("GPU 0 window_ns");
        assert_eq!(parts["busy"], folded_sum(&done));
        assert!(window < HOUR, "{fault}: {window}");
    }
}

const HOUR: u64 = 3_600_000_000_000;

/// If the clock jumps, this makes no window longer, neither in the files of the process nor in files made from its
/// recording.
#[test]
fn a_clock_jump_of_an_hour_is_reported_and_extends_no_window() {
    let program = compile("tests/programs/clock.c", &["-O2", "-rdynamic"]);
    for (args, said, launches) in [
        (&["3600"][..], "forward by 3600.", 100),
        (&["-3600"], "back by 3600.", 100),
        (&["3600", "3600"], "forward by 3600.", 150),
        (&["-3600", "-3600"], "back by 3600.", 150),
    ] {
        let run = Run::new(&program, Way::Injected).args(args.iter().copied());
        let done = run.env("GPUFLAME_FORMATS", "folded,idle,gfr").ok();
        let clock = done.ledger("clock: ");
        assert!(clock.len() == 1 && clock[0].contains(said), "{args:?} {}", done.stderr);
        assert_eq!(done.sum("launches").0, launches, "{args:?} {}", done.stderr);
        done.assert_exact();
        let (window, parts) = done.sum("GPU 0 window_ns");
        assert_eq!(parts["busy"], launches * 700, "{args:?} {}", done.stderr);
        assert!(window < HOUR / 2, "{args:?}: {window}");
        let drawn = ["flamegraph", "out.gfr", "--idle", "-o", "again.folded"];
        command(&done.folder, drawn).ok();
        let idle = |name| done.folded_file(name).iter().map(|(_, nanos)| nanos).sum::<u64>();
        assert_eq!(
            (idle("out.idle.folded"), idle("again.folded")),
            (parts["idle"], parts["idle"]),
            "{args:?}"
        );
    }
}

#[test]
fn records_that_start_before_their_launch_still_match_it() {
    let done = with_faults("early_start:every=11");
    assert_eq!(done.truth().fault("early_start"), 10);
    done.assert_exact();
}

#[test]
fn records_of_an_unknown_kind_are_counted_and_all_other_records_are_read() {
    let done = with_faults("unknown_kind:every=11");
    assert_eq!(done.truth().fault("unknown_kind"), 10);
    assert_eq!(lost(&done, "activities_unreadable"), 10);
    assert_whole(&done, ADDS, MULS);
    assert_parts(&done, "activities", 110, &[("matched", 110)]);
    assert_eq!(folded_sum(&done), done.truth().count("total_ns"));
}

#[test]
fn records_with_an_unknown_correlation_id_are_counted_and_omitted() {
    let done = with_faults("unmatched_corr:every=20");
    assert_eq!(done.truth().fault("unmatched_corr"), 5);
    assert_eq!(
        done.ledger("CUPTI delivered 5 activities with impossible correlation ids").len(),
        1,
        "{}",
        done.stderr
    );
    assert_parts(&done, "activities", 110, &[("matched", 110)]);
    assert_whole(&done, ADDS, MULS);
}

#[test]
fn records_delivered_twice_are_reported_and_count_once() {
    let done = with_faults("dup_corr:every=20");
    assert_eq!(done.truth().fault("dup_corr"), 5);
    assert_eq!(done.ledger("CUPTI delivered 5 activities twice").len(), 1, "{}", done.stderr);
    assert_parts(&done, "activities", 110, &[("matched", 110)]);
    assert_whole(&done, ADDS, MULS);
}

/// Returns two counts of impossible input from CUPTI: the buffers that CUPTI delivered but that did not belong to
/// gpuflame, and the callbacks without data.
fn cannot_be(done: &Done) -> [u64; 2] {
    let lines = done.ledger("CUPTI returned ");
    let [line] = lines[..] else { panic!("one line, not\n{}", done.stderr) };
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    std::array::from_fn(|_| numbers.next().unwrap())
}

#[test]
fn callbacks_without_data_are_counted_and_lose_no_launch() {
    for every in [1, 3] {
        let done = with_faults(&format!("null_data:every={every}"));
        let without = done.truth().fault("null_data");
        // For each launch and each fill, the runtime and the driver both make an enter and an exit callback.
        assert!(without >= 110 * 4 / every, "{without}");
        assert_eq!(cannot_be(&done), [0, without], "{}", done.stderr);
        assert_parts(&done, "activities", 110, &[("matched", 110)]);
        assert_whole(&done, ADDS, MULS);
        done.assert_exact();
    }
    // A program with CUDA graphs causes hundreds of resource callbacks.
    let program = compile("tests/gpusim/selftest/programs/nodes.c", &["-O2"]);
    let graphs = |faults| {
        let done = Run::new(&program, Way::Injected).env("GPUSIM_FAULTS", faults).ok();
        let known = done.folded();
        (done, known)
    };
    let ((done, with), (_, without)) = (graphs("null_data:every=1"), graphs(""));
    assert_eq!(cannot_be(&done), [0, done.truth().fault("null_data")]);
    assert_eq!(with, without);
}

#[test]
fn buffers_delivered_twice_are_counted_and_their_records_count_once() {
    // With `GPUSIM_EARLY`, CUPTI delivers each record in a separate buffer.
    for (every, variable, value) in [
        (1, "GPUSIM_EARLY", "1"),
        (3, "GPUSIM_EARLY", "1"),
        (1, "GPUSIM_SHUFFLE", "5"),
        (1, "GPUSIM_CUPTI_VERSION", "13.4"),
    ] {
        let fault = format!("buffer_twice:every={every}");
        let done = run("plain", &[("GPUSIM_FAULTS", &fault), (variable, value)]);
        let twice = done.truth().fault("buffer_twice");
        assert_eq!(cannot_be(&done), [twice, 0], "{}", done.stderr);
        assert_parts(&done, "activities", 110, &[("matched", 110)]);
        assert_whole(&done, ADDS, MULS);
        done.assert_exact();
    }
    // In this run CUPTI fills its buffers completely. gpuflame returns every buffer to CUPTI, so CUPTI reuses buffers.
    let done = odd("plain").arg("100000").env("GPUSIM_FAULTS", "buffer_twice:every=1").done();
    assert_eq!(done.code, CODE, "{}", done.stderr);
    let twice = done.truth().fault("buffer_twice");
    assert!(twice > 20, "{twice}");
    assert_eq!(cannot_be(&done), [twice, 0], "{}", done.stderr);
    assert_parts(&done, "activities", 110_000, &[("matched", 110_000)]);
    done.assert_exact();
}

#[test]
fn kernels_with_missing_invalid_or_huge_names_keep_their_time() {
    for (fault, leaf) in [
        ("name_null", "[GPU_Kernel][unnamed kernel]".to_owned()),
        ("name_bad_utf8", "[GPU_Kernel]_Z\u{fffd}\u{fffd}\u{fffd}kernel".to_owned()),
        ("name_4k", format!("[GPU_Kernel]{}", "k".repeat(4096))),
    ] {
        let done = with_faults(&format!("{fault}:every=10"));
        assert_eq!(done.truth().fault(fault), 10);
        assert_whole(&done, ADDS - 10 * 301, MULS);
        assert_eq!(by_leaf(&done).get(&leaf), Some(&(10 * 301)), "{:?}", by_leaf(&done));
        assert_parts(&done, "activities", 110, &[("matched", 110)]);
        assert_eq!(folded_sum(&done), done.truth().count("total_ns"));
    }
}

#[test]
fn a_kind_refused_by_cupti_is_reported_and_its_launches_are_pending() {
    let done = with_faults("enable:2=35");
    let notes = done.ledger("CUPTI does not record ");
    assert!(notes.len() == 1 && notes[0].starts_with("fills: "), "{}", done.stderr);
    assert_parts(&done, "launches", 110, &[("matched", 100), ("launch_pending", 10)]);
    assert_parts(&done, "activities", 100, &[("matched", 100)]);
    assert_eq!(folded_sum(&done), ADDS + MULS);
    assert_eq!(by_leaf(&done)["[GPU_Launch_Pending]"], 0);
}

#[test]
fn records_delivered_before_a_fatal_cupti_error_are_kept() {
    // After CUPTI has reported a fatal error, it neither delivers buffers nor makes callbacks. gpuflame sees all
    // kernels and fills before the 100,000th one.
    let done = odd("plain").arg("100000").env("GPUSIM_FAULTS", "fatal:after=100000").done();
    assert_eq!(done.code, CODE);
    assert_eq!(done.ledger("CUPTI failed").len(), 1, "{}", done.stderr);
    assert!(!done.stderr.contains("another CUPTI client"), "{}", done.stderr);
    let (truth, (launches, parts)) = (done.truth(), done.sum("launches"));
    assert_eq!(launches, 99_999, "{}", done.stderr);
    assert!(parts["matched"] > 0);
    let matched = parts["matched"];
    assert_parts(&done, "activities", matched, &[("matched", matched)]);
    // If CUPTI had delivered a buffer that gpuflame had not read when the fatal error occurred, the buffer cannot be
    // read any more. The activities in this buffer count as unreadable.
    if matched < truth.count("delivered") {
        assert!(lost(&done, "activities_unreadable") > 0, "{}", done.stderr);
    } else {
        assert_eq!(folded_sum(&done), truth.count("delivered_ns"));
    }
}

#[test]
fn the_ledger_adds_up_with_all_record_faults_at_once() {
    let faults = "zero_ts:every=7,reversed:every=11,early_start:every=13,unknown_kind:every=17,\
                  dup_corr:every=19,name_null:every=23,name_bad_utf8:every=29,name_4k:every=31";
    for version in ["11.8", "13.4"] {
        let variables = [
            ("GPUSIM_FAULTS", faults),
            ("GPUSIM_CUPTI_VERSION", version),
            ("GPUSIM_CORR", "distinct"),
            ("GPUSIM_SHUFFLE", "3"),
            ("GPUSIM_EARLY", "1"),
        ];
        let done = run("plain", &variables);
        let truth = done.truth();
        let twice = format!("CUPTI delivered {} activities twice", truth.fault("dup_corr"));
        assert_eq!(done.ledger(&twice).len(), 1, "{}", done.stderr);
        assert_parts(&done, "launches", 110, &[("matched", 110)]);
        assert_parts(&done, "activities", 110, &[("matched", 110)]);
        assert_eq!(lost(&done, "activities_unreadable"), truth.fault("unknown_kind"));
        let untimed = truth.fault("zero_ts") + truth.fault("reversed");
        assert_eq!(lost(&done, "timestamp_not_collected"), untimed);
    }
}

#[test]
fn kernel_names_cannot_break_the_folded_file() {
    let done = run("names", &[]);
    let expected = [
        ("[GPU_Kernel]# lost 31_d300", 300),
        ("[GPU_Kernel]evil；main；fake 12_d100", 100),
        ("[GPU_Kernel]two lines 99  _d200", 200),
    ];
    assert_eq!(by_leaf(&done), expected.map(|(leaf, weight)| (leaf.to_owned(), weight)).into());
    let sites: Vec<_> = done.by_site().into_keys().map(|(site, _)| site).collect();
    assert_eq!(sites, ["main;names;lines", "main;names;number", "main;names;semicolon"]);
    assert!(done.stderr.lines().all(|line| line.starts_with("gpuflame: ")), "{}", done.stderr);
    let table = done.file("out.csv");
    let mut table = csv::Reader::from_reader(table.as_bytes());
    let names: Vec<_> = table.records().map(|row| row.unwrap()[1].to_owned()).collect();
    assert_eq!(names, ["# lost 31_d300", "two lines 99  _d200", "evil;main;fake 12_d100"]);
}

// The tests below are about ways in which a program ends.

#[test]
fn a_program_that_does_not_use_cuda_leaves_no_trace() {
    for way in [Way::Injected, Way::Preloaded] {
        let done = Run::new(program(), way).arg("no_cuda").done();
        assert_eq!((done.code, done.stderr.as_str()), (CODE, ""));
        assert_eq!(files(&done.folder), [""; 0]);
    }
}

#[test]
fn an_exit_while_another_thread_launches_writes_all_files() {
    for _ in 0..5 {
        let done = run("exit_in_mid_launch", &[]);
        let sites = done.by_site();
        let add = "[GPU_Kernel]add_d301".to_owned();
        assert_eq!(sites[&("main;exit_in_mid_launch;work".to_owned(), add.clone())], ADDS, "{}", done.stderr);
        assert!(sites[&("launch_for_ever".to_owned(), add)].is_multiple_of(301));
        assert!(done.sum("launches").0 > 110);
        done.sum("activities");
        assert_eq!(files(&done.folder), WRITTEN);
    }
}

#[test]
fn a_program_that_calls_dlclose_on_the_library_is_still_recorded() {
    let program = compile("tests/programs/closes.c", &["-O2"]);
    let done = Run::new(&program, Way::None).arg(gpuflame()).done();
    assert_eq!(done.code, CODE, "{}", done.stderr);
    assert_parts(&done, "launches", 70, &[("matched", 30), ("outside", 40)]);
    assert_eq!(folded_sum(&done), 30 * 100);
}

#[test]
fn launches_in_the_applications_exit_handlers_are_recorded() {
    let done = run("handlers", &[]);
    assert_eq!(done.stdout, "late\nlast\n");
    let late = done.by_site().into_iter().filter(|((site, _), _)| site.ends_with("late"));
    assert_eq!(late.map(|(_, weight)| weight).collect::<Vec<_>>(), [1200], "{}", done.stderr);
    assert_parts(&done, "launches", 111, &[("matched", 111)]);
    assert_eq!(folded_sum(&done), done.truth().count("total_ns"));
}

#[test]
fn activities_before_a_device_reset_are_recorded() {
    run("reset", &[]).assert_exact();
}

/// A thread of gpuflame hangs in a call to CUPTI; gpuflame waits for this thread only once.
#[test]
fn a_hanging_cupti_delays_device_resets_only_once() {
    let run = Run::new(Path::new("timeout"), Way::Injected).args(["60"]).arg(program()).arg("resets");
    let done = run.env("GPUSIM_FAULTS", "flush_hangs").env("GPUFLAME_EXIT_LIMIT", "1").done();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    assert_eq!(
        done.ledger("CUPTI did not answer within 1 s when a context was destroyed").len(),
        1,
        "{}",
        done.stderr
    );
    assert_eq!(done.sum("launches").0, 220, "{}", done.stderr);
}

#[test]
fn a_kernel_still_running_at_exit_has_no_time_and_delays_no_exit() {
    let done = run("still_running", &[("GPUSIM_CLOCK", "real")]);
    assert_parts(&done, "launches", 2, &[("matched", 2)]);
    assert_parts(&done, "activities", 2, &[("matched", 2)]);
    assert_eq!(lost(&done, "timestamp_not_collected"), 1);
    let leaves = [("[GPU_Kernel]add_d301", 301), ("[GPU_Kernel]rest_d60000000000", 0)];
    assert_eq!(by_leaf(&done), leaves.map(|(leaf, weight)| (leaf.to_owned(), weight)).into());
}

#[test]
fn a_program_that_skips_its_exit_handlers_writes_no_files() {
    let done = run("no_handlers", &[]);
    assert_eq!(done.ledger(""), [""; 0]);
    assert_eq!(files(&done.folder), [""; 0]);
}

#[test]
fn an_injection_path_to_a_missing_library_changes_nothing() {
    let copy = scratch("gone").join("libgpuflame.so");
    fs::copy(gpuflame(), &copy).unwrap();
    fs::remove_file(&copy).unwrap();
    let done = Run::new(program(), Way::None).arg("plain").env("CUDA_INJECTION64_PATH", &copy).done();
    assert_eq!((done.code, done.stderr.as_str()), (CODE, ""));
}
