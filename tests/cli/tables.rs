//! Tests what tables look like on terminals of several widths and in a pipe, with and without colours. The files in
//! `tests/golden/tables` contain the expected texts. `GPUFLAME_RENEW_GOLDEN=1 cargo test -p gpuflame-cli --test cli
//! tables::` rewrites these files. After that, check each rewritten file by eye.

use std::fs;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use crate::support::command::gpuflame;
use crate::support::traces::Trace;
use crate::support::{handmade, rank_traces, root, scratch};

/// Runs `gpuflame ARGS` with a terminal as standard output, and returns the text that the terminal received.
pub(crate) fn at_terminal(folder: &Path, args: &[&str], environment: &[(&str, &str)]) -> String {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: openpty has room for the two descriptors that it returns. With null pointers, the system chooses the
    // terminal's name and settings.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, null_mut(), null_mut(), null_mut()) };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: openpty has just opened both descriptors, and no other code owns them.
    let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    command.args(args).current_dir(folder).stdin(Stdio::null()).stdout(theirs).stderr(Stdio::null());
    command.env_remove("NO_COLOR").env_remove("COLUMNS").env("TERM", "xterm");
    let mut child = command.envs(environment.iter().copied()).spawn().unwrap();
    drop(command);
    let mut bytes = Vec::new();
    // When the command has ended, its end of the terminal is closed. After that, a read from the test's end of the
    // terminal fails or returns no bytes.
    let _ = fs::File::from(ours).read_to_end(&mut bytes);
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
}

/// Writes a trace of a training step, with names like those of PyTorch.
pub(crate) fn training(folder: &Path, name: &str, slower: u64) {
    let elementwise = |functor: &str| {
        format!(
            "void at::native::vectorized_elementwise_kernel<4, at::native::{functor}<float>, std::array<char*, 3ul> \
             >(int, at::native::{functor}<float>, std::array<char*, 3ul>)"
        )
    };
    let gemm = |shape: &str| {
        format!("ampere_sgemm_{shape}_tn_with_a_long_tail_of_letters_that_no_terminal_has_room_for_v2")
    };
    let reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
    let kernels: [(&str, String, u64); 6] = [
        ("linear", gemm("128x64"), 90 + slower),
        ("linear", gemm("128x32"), 60),
        ("relu", elementwise("CUDAFunctor_add"), 20),
        ("relu", elementwise("CUDAFunctor_mul"), 12),
        ("relu", elementwise("GeluCUDAKernelImpl"), 3),
        ("all_reduce", reduce.to_owned(), 40),
    ];
    let mut trace = Trace::default();
    let (mut id, mut time) = (0, 1_000);
    for step in 0..12_u64 {
        let begin = time;
        for (operator, kernel, micros) in &kernels {
            id += 1;
            let end = time + 30 + micros;
            let line = if *operator == "linear" { 41 } else { 57 };
            trace.python("/srv/experiments/large/train.py(12): main", 1, time, end);
            trace.python(&format!("/srv/experiments/large/model.py({line}): forward"), 1, time, end);
            trace.python("torch/nn/modules/module.py(1773): _call_impl", 1, time, end);
            trace.slice("cpu_op", &format!("aten::{operator}"), 1, time, end);
            trace.launch(id, kernel, 1, time + 1, time + 10, time + 10 + micros);
            time = end + 50 * u64::from(id % 3 == 0);
        }
        id += 1;
        trace.slice("cuda_runtime", "cudaMemcpyAsync", 1, time, time + 3);
        trace.0.last_mut().unwrap()["args"] = serde_json::json!({ "correlation": id });
        trace.work("gpu_memcpy", id, "Memcpy HtoD (Pageable -> Device)", 9, time + 5, time + 25);
        trace.0.last_mut().unwrap()["args"]["bytes"] = (4_194_304).into();
        time += 40;
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 1, begin, time);
    }
    trace.write(&folder.join(name));
}

/// Creates a folder with the input files of all cases.
fn inputs() -> PathBuf {
    let folder = scratch("tables");
    handmade::recording(&folder);
    training(&folder, "train.json", 0);
    training(&folder, "slower.json", 25);
    fs::create_dir(folder.join("job")).unwrap();
    for rank in 0..3 {
        training(&folder, &format!("job/rank{rank}.json"), rank * 15);
    }
    fs::create_dir(folder.join("two")).unwrap();
    rank_traces::two_ranks(&folder.join("two"));
    folder
}

/// Name of the golden file and command line of each case.
const CASES: [(&str, &[&str]); 25] = [
    ("top", &["top", "train.json"]),
    ("top-recording", &["top", "hand.gfr"]),
    ("top-few", &["top", "train.json", "-n", "2"]),
    ("top-line", &["top", "train.json", "--by", "line,function"]),
    ("top-idle", &["top", "train.json", "--by", "idle"]),
    ("top-copies", &["top", "train.json", "--by", "copies"]),
    ("top-copies-recording", &["top", "hand.gfr", "--by", "copies"]),
    ("top-delay-comm", &["top", "train.json", "--by", "delay,comm"]),
    ("summary", &["summary", "train.json"]),
    ("info", &["info", "train.json"]),
    ("info-recording", &["info", "hand.gfr"]),
    ("check", &["check", "hand.gfr"]),
    ("diff", &["diff", "train.json", "slower.json"]),
    ("view", &["view", "train.json", "-n", "8"]),
    ("view-stats", &["view", "train.json", "--stats"]),
    ("timeline", &["timeline", "train.json"]),
    ("critical-path", &["critical-path", "train.json", "-n", "6", "--list"]),
    ("critical-path-range", &["critical-path", "train.json", "-n", "6", "--range", "ProfilerStep"]),
    ("top-slack", &["top", "train.json", "--by", "slack"]),
    ("replay", &["replay", "train.json", "--check"]),
    ("what-if", &["what-if", "train.json", "--scale", ".=0.5", "-n", "3"]),
    ("causal", &["causal", "train.json", "-n", "4"]),
    ("merge-ranks", &["merge-ranks", "job"]),
    ("stragglers", &["stragglers", "two"]),
    ("critical-path-job", &["critical-path", "two", "-n", "6", "--list"]),
];

fn without_colors(text: &str) -> String {
    let mut plain = String::new();
    for (at, part) in text.split('\x1b').enumerate() {
        plain.push_str(if at == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    plain
}

#[test]
fn tables_look_as_in_the_golden_files() {
    let folder = inputs();
    let mut wrong = Vec::new();
    for (name, args) in CASES {
        let mut text = String::new();
        for columns in ["40", "80", "200"] {
            let shown = at_terminal(&folder, args, &[("COLUMNS", columns), ("NO_COLOR", "1")]);
            let width: usize = columns.parse().unwrap();
            // If the command suggests a command, this is printed on one line even if it is too wide, so that a user can
            // copy it.
            for line in shown.lines().filter(|line| !line.starts_with("next: ")) {
                assert!(line.chars().count() <= width, "{name} {columns}: {line}");
            }
            assert!(!shown.contains('\x1b'), "{name}: {shown}");
            text += &format!("=== {columns} columns, NO_COLOR\n{shown}");
            let colored = at_terminal(&folder, args, &[("COLUMNS", columns)]);
            assert_eq!(without_colors(&colored), shown, "{name} {columns}");
            if columns == "80" {
                text += &format!("=== 80 columns\n{}", colored.replace('\x1b', "^"));
            }
        }
        text += &format!("=== pipe\n{}", gpuflame(&folder, args).stdout);
        let file = root().join("tests/golden/tables").join(format!("{name}.txt"));
        if std::env::var_os("GPUFLAME_RENEW_GOLDEN").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &text).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_width_is_that_of_columns_then_the_terminals_and_a_pipe_has_none() {
    let folder = inputs();
    let top = ["top", "train.json"];
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    // A terminal that reports no size counts as 80 characters wide.
    let unsized_terminal = at_terminal(&folder, &top, &[("NO_COLOR", "1")]);
    assert_eq!(unsized_terminal, at_terminal(&folder, &top, &[("NO_COLOR", "1"), ("COLUMNS", "80")]));
    for odd in ["", "0", "-5", "many", "99999999999999999999999"] {
        assert_eq!(
            at_terminal(&folder, &top, &[("NO_COLOR", "1"), ("COLUMNS", odd)]),
            unsized_terminal,
            "{odd}"
        );
    }
    let narrowest = at_terminal(&folder, &top, &[("NO_COLOR", "1"), ("COLUMNS", "1")]);
    assert!(widest(&narrowest) <= 24, "{narrowest}");
    let settings = at_terminal(&folder, &["settings", "--all"], &[("COLUMNS", "60")]);
    assert!(settings.lines().count() > 150 && widest(&settings) <= 60, "{settings}");
    let piped = gpuflame(&folder, top).ok().stdout;
    assert!(piped.starts_with("     total   share  count"), "a pipe has no heading: {piped}");
    assert!(widest(&piped) > 200 && !piped.contains("..."), "{piped}");
}

#[test]
fn colors_follow_the_flag_then_no_color_then_the_terminal() {
    let folder = inputs();
    let top = ["top", "train.json"];
    let is_colored = |args: &[&str], environment: &[(&str, &str)]| {
        at_terminal(&folder, &[&top[..], args].concat(), environment).contains('\x1b')
    };
    assert!(is_colored(&[], &[]));
    assert!(!is_colored(&[], &[("NO_COLOR", "1")]));
    assert!(is_colored(&[], &[("NO_COLOR", "")]), "an empty NO_COLOR counts as unset");
    assert!(!is_colored(&[], &[("TERM", "dumb")]));
    assert!(!is_colored(&["--color", "never"], &[]));
    assert!(is_colored(&["--color", "always"], &[("NO_COLOR", "1")]));
    let piped = |args: &[&str]| gpuflame(&folder, [&top[..], args].concat()).ok().stdout;
    let plain = piped(&[]);
    assert!(!plain.contains('\x1b'));
    assert_eq!(without_colors(&piped(&["--color", "always"])), plain);
    assert!(!piped(&["--color", "always", "--format", "csv"]).contains('\x1b'));
    gpuflame(&folder, [&top[..], &["--color", "always", "-o", "top.txt"]].concat()).ok();
    assert_eq!(without_colors(&fs::read_to_string(folder.join("top.txt")).unwrap()), plain);
}

#[test]
fn the_report_of_doctor_fits_the_terminal() {
    let folder = scratch("doctor");
    for columns in ["40", "80"] {
        let shown = at_terminal(&folder, &["doctor"], &[("COLUMNS", columns)]);
        assert!(shown.contains("\x1b[32mok\x1b[0m    glibc"), "{shown}");
        // A printed path is not broken in the middle of a name, unless the name is longer than a line.
        for line in without_colors(&shown).lines() {
            assert!(line.chars().count() <= columns.parse().unwrap(), "{columns}: {line}");
        }
    }
}
