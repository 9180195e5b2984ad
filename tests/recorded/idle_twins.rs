//! Pairs of programs whose launch calls have the same stacks. The two programs of a pair differ only in the place of
//! the pauses: in a loop inside `train_step`, or in a loop around it.
//!
//! ```text
//! inside:  train_step() { loop { update(); finish(); culprit(); } }     outer() { train_step(); }
//! around:  train_step() { update(); finish(); }                         outer() { loop { train_step(); culprit(); } }
//! ```
//!
//! `update` begins GPU work, `finish` waits for it, and the function `culprit` makes no CUDA call. If CPU time is not
//! sampled, the two idle profiles must be equal, and must not state that `train_step` was running during the pause. If
//! CPU time is sampled, `top --by idle` must name the culprit first. For one program, the idle profile must show the
//! culprit inside `train_step`, and for the other program outside.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::pythons::pythons;
use crate::support::{Done, Run, Way, cuda, scratch, skip};

/// Number of iterations that the program's loop makes.
const ITERATIONS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twin {
    Inside,
    Around,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    C,
    Cpp,
    Rust,
    Python,
}

/// A test program to generate.
#[derive(Clone, Copy, Debug)]
struct Program {
    language: Language,
    /// Name of the function that pauses.
    culprit: &'static str,
    /// Number of functions, each with a loop, between `main` and `train_step`.
    outer: usize,
    /// Whether the culprit computes during a pause. If the culprit does not compute during a pause, it sleeps.
    computes: bool,
}

const CULPRITS: [&str; 6] =
    ["load_batch", "write_checkpoint", "print_metrics", "collect_garbage", "decode_images", "wait_for_data"];
const OUTER: [&str; 3] = ["run_epochs", "run_phases", "run_batches"];

/// Returns one program in this language for each function that can be the culprit. The programs differ in the number of
/// loops.
fn programs(language: Language) -> impl Iterator<Item = Program> {
    let program = move |(at, culprit)| Program { language, culprit, outer: at % 4, computes: at % 2 == 1 };
    CULPRITS.into_iter().enumerate().map(program)
}

impl Program {
    /// Returns the names of the functions from `main` to `train_step`.
    fn chain(&self) -> Vec<&'static str> {
        let root = if self.language == Language::Python { "<module>" } else { "main" };
        [&[root], &OUTER[..self.outer], &["train_step"]].concat()
    }

    /// Returns the names and bodies of the functions in the call chain, from `train_step` to the root.
    fn bodies(&self, twin: Twin) -> Vec<(&'static str, Vec<String>)> {
        let chain = self.chain();
        let work = ["update", "finish"].map(str::to_owned).to_vec();
        let step = match twin {
            Twin::Inside => self.repeated(ITERATIONS, &[&work[..], &[self.culprit.to_owned()]].concat()),
            Twin::Around => work.iter().map(|name| self.call(name)).collect(),
        };
        let mut bodies = vec![("train_step", step)];
        for pair in chain.windows(2).rev() {
            let [outer, inner] = [pair[0], pair[1]];
            let body = match (twin, inner) {
                (Twin::Around, "train_step") => {
                    self.repeated(ITERATIONS, &[inner.to_owned(), self.culprit.to_owned()])
                }
                _ => self.repeated(1, &[inner.to_owned()]),
            };
            bodies.push((outer, body));
        }
        bodies
    }

    fn call(&self, name: &str) -> String {
        if self.language == Language::Python { format!("{name}()") } else { format!("{name}();") }
    }

    /// Returns the statements that call these functions in a loop.
    fn repeated(&self, count: usize, names: &[String]) -> Vec<String> {
        let calls: Vec<_> = names.iter().map(|name| self.call(name)).collect();
        match self.language {
            Language::Python => {
                let calls = calls.iter().map(|call| format!("    {call}"));
                std::iter::once(format!("for _ in range({count}):")).chain(calls).collect()
            }
            Language::Rust => vec![format!("for _ in 0..black_box({count}) {{ {} }}", calls.concat())],
            _ => vec![format!("for (volatile int i = 0; i < {count}; i++) {{ {} }}", calls.concat())],
        }
    }

    /// Returns the source text of the program. Each call of its culprit takes `millis` ms.
    fn source(&self, twin: Twin, millis: u64) -> String {
        let mut text = match self.language {
            Language::Python => format!(
                "import ctypes, time\ncudart = ctypes.CDLL('libcudart.so.13')\nmemory = ctypes.c_void_p()\n\
                 cudart.cudaMalloc(ctypes.byref(memory), 64)\n\
                 def update():\n    cudart.cudaMemsetAsync(memory, 0, 64, None)\n\
                 def finish():\n    cudart.cudaDeviceSynchronize()\n\
                 def {}():\n    {}\n",
                self.culprit,
                match self.computes {
                    true => format!(
                        "end = time.monotonic() + {millis} / 1000\n    while time.monotonic() < end: pass"
                    ),
                    false => format!("time.sleep({millis} / 1000)"),
                }
            ),
            Language::Rust => format!(
                "use std::{{ffi::c_void, hint::black_box, thread::sleep, time::{{Duration, Instant}}}};\n\
                 #[link(name = \"cudart\")] unsafe extern \"C\" {{\n\
                 fn cudaMalloc(at: *mut *mut c_void, size: usize) -> i32;\n\
                 fn cudaMemsetAsync(at: *mut c_void, value: i32, size: usize, stream: *mut c_void) -> i32;\n\
                 fn cudaDeviceSynchronize() -> i32;\n}}\n\
                 static mut MEMORY: *mut c_void = std::ptr::null_mut();\n\
                 #[inline(never)] fn update() {{ unsafe {{ cudaMemsetAsync(MEMORY, 0, 64, std::ptr::null_mut()) }}; black_box(()); }}\n\
                 #[inline(never)] fn finish() {{ unsafe {{ cudaDeviceSynchronize() }}; black_box(()); }}\n\
                 #[inline(never)] fn {}() {{ let pause = Duration::from_millis({millis}); {}; black_box(()); }}\n",
                self.culprit,
                match self.computes {
                    true => "let start = Instant::now(); while start.elapsed() < pause {}",
                    false => "sleep(pause)",
                }
            ),
            Language::C | Language::Cpp => format!(
                "#include \"cuda_mini.h\"\n#include <time.h>\n#include <unistd.h>\n\
                 #define OWN __attribute__((noinline, noclone)) static\n\
                 #define KEEP __asm__ volatile(\"\" ::: \"memory\");\n\
                 static void *memory;\n\
                 OWN void update(void) {{ cudaMemsetAsync(memory, 0, 64, 0); KEEP }}\n\
                 OWN void finish(void) {{ cudaDeviceSynchronize(); KEEP }}\n\
                 OWN void {}(void) {{ {} KEEP }}\n",
                self.culprit,
                match self.computes {
                    true => format!(
                        "struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a); \
                         do clock_gettime(CLOCK_MONOTONIC, &b); \
                         while ((b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6 < {millis});"
                    ),
                    false => format!("usleep({millis} * 1000);"),
                }
            ),
        };
        for (name, body) in self.bodies(twin) {
            let body = body.iter().map(|line| format!("    {line}\n")).collect::<String>();
            match (self.language, name) {
                (Language::Python, "<module>") => body.lines().for_each(|line| {
                    writeln!(text, "{}", line.strip_prefix("    ").unwrap()).unwrap();
                }),
                (Language::Python, _) => writeln!(text, "def {name}():\n{body}").unwrap(),
                (Language::Rust, "main") => {
                    writeln!(text, "fn main() {{ unsafe {{ cudaMalloc(&raw mut MEMORY, 64) }};\n{body}}}")
                        .unwrap();
                }
                (Language::Rust, _) => {
                    writeln!(text, "#[inline(never)] fn {name}() {{\n{body}black_box(()); }}").unwrap();
                }
                (_, "main") => {
                    writeln!(text, "int main(void) {{ cudaMalloc(&memory, 64);\n{body}return 0; }}").unwrap();
                }
                _ => writeln!(text, "OWN void {name}(void) {{\n{body}KEEP }}").unwrap(),
            }
        }
        text
    }

    /// Builds the program, and returns a run of it.
    fn build(&self, twin: Twin, millis: u64, python: Option<&Path>) -> Run {
        let folder = scratch("twin");
        let (extension, compiler): (_, &[&str]) = match self.language {
            Language::C => ("c", &["gcc", "-g", "-O2"]),
            Language::Cpp => ("cpp", &["g++", "-g", "-O2"]),
            Language::Rust => ("rs", &["rustc", "-g", "-O", "--edition", "2024", "-A", "warnings"]),
            Language::Python => ("py", &[]),
        };
        let source = folder.join(format!("twin.{extension}"));
        fs::write(&source, self.source(twin, millis)).unwrap();
        if let Some(python) = python {
            return Run::new(python, Way::Injected).arg(source);
        }
        let program = folder.join("twin");
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).arg(&source).arg("-o").arg(&program).arg("-L").arg(cuda());
        match self.language {
            Language::Rust => drop(command.arg("-C").arg("link-arg=-lcuda")),
            _ => drop(
                command
                    .arg("-I")
                    .arg(crate::support::root().join("tests/gpusim/include"))
                    .args(["-lcudart", "-lcuda"]),
            ),
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
        Run::new(&program, Way::Injected)
    }
}

/// Returns the bare name of the function in a frame, without its file, namespace and parameters.
fn function(frame: &str) -> String {
    let bare = frame.split(" (").next().unwrap();
    bare.rsplit("::").next().unwrap().trim_end_matches("()").to_owned()
}

/// Returns the stacks in the idle profile for pauses between a call of `finish` and a call of `update`. The functions
/// in the stacks have their bare names, without file, namespace and parameters.
fn pauses(done: &Done) -> BTreeSet<String> {
    let stacks = done.folded_file("out.idle.folded").into_iter().map(|(frames, _)| frames);
    let pauses = stacks.filter(|frames| {
        frames.iter().any(|frame| frame.starts_with("[after] ") && frame.contains("finish"))
    });
    pauses.map(|frames| frames.iter().map(|frame| bare(frame)).collect::<Vec<_>>().join(";")).collect()
}

fn bare(frame: &str) -> String {
    for mark in ["[after] ", "[before] "] {
        if let Some(rest) = frame.strip_prefix(mark) {
            return format!("{mark}{}", function(rest));
        }
    }
    match frame.strip_prefix("[in ").and_then(|rest| rest.strip_suffix(", or after it returned]")) {
        Some(inside) => format!("[in {}, or after it returned]", function(inside)),
        None if frame.starts_with('[') => frame.to_owned(),
        None => function(frame),
    }
}

fn interpreters(language: Language) -> Vec<Option<PathBuf>> {
    match language {
        Language::Python => pythons("ctypes").into_values().map(Some).collect(),
        _ => vec![None],
    }
}

/// Asserts how the idle profile shows a pause in a loop if only launches are recorded: a loop inside a function cannot
/// be distinguished from a loop around it.
fn assert_twins_are_equal_and_claim_nothing_false(language: Language) {
    for (nth, program) in programs(language).enumerate() {
        let interpreters = interpreters(language);
        // Each program runs with only one of the interpreters; the programs use the interpreters in turn.
        let python = interpreters[nth % interpreters.len()].as_deref();
        let [inside, around] = [Twin::Inside, Twin::Around]
            .map(|twin| pauses(&program.build(twin, 3, python).env("GPUFLAME_FORMATS", "idle").ok()));
        let root = program.chain()[0];
        let expected = format!(
            "{root};[in train_step, or after it returned];[after] finish;cudaDeviceSynchronize;\
             [before] update;cudaMemsetAsync;[GPU_Idle host late]"
        );
        assert_eq!(inside, BTreeSet::from([expected]), "{program:?} on {python:?}");
        assert_eq!(inside, around, "{program:?} on {python:?}");
    }
}

#[test]
fn pauses_in_c_programs_claim_nothing_that_the_launches_do_not_prove() {
    assert_twins_are_equal_and_claim_nothing_false(Language::C);
}

#[test]
fn pauses_in_cpp_programs_claim_nothing_that_the_launches_do_not_prove() {
    assert_twins_are_equal_and_claim_nothing_false(Language::Cpp);
}

#[test]
fn pauses_in_rust_programs_claim_nothing_that_the_launches_do_not_prove() {
    assert_twins_are_equal_and_claim_nothing_false(Language::Rust);
}

#[test]
fn pauses_in_python_programs_claim_nothing_that_the_launches_do_not_prove() {
    assert_twins_are_equal_and_claim_nothing_false(Language::Python);
}

/// Runs the program, and samples its CPU time and its waits. The pauses of the program take 1.25 s in total. Returns
/// `None` if the Linux kernel does not allow gpuflame to sample.
fn sampled(program: &Program, twin: Twin, python: Option<&Path>) -> Option<Done> {
    let run = program.build(twin, 250, python).env("GPUFLAME_FORMATS", "idle,gfr");
    let done = run.env("GPUFLAME_CPU_SAMPLES", "99").env("GPUFLAME_OFF_CPU", "1").ok();
    for setting in ["GPUFLAME_CPU_SAMPLES: ", "GPUFLAME_OFF_CPU: "] {
        if let Some(why) = done.ledger(setting).first() {
            skip(&format!("the kernel refuses samples: {why}"));
            return None;
        }
    }
    Some(done)
}

/// Asserts that with samples the culprit is the first idle function, and that its frame is inside or outside
/// `train_step`, as in the program.
fn assert_the_culprit_is_named(programs: impl Iterator<Item = Program>) {
    for (nth, program) in programs.enumerate() {
        let interpreters = interpreters(program.language);
        let python = interpreters[nth % interpreters.len()].as_deref();
        for twin in [Twin::Inside, Twin::Around] {
            let Some(done) = sampled(&program, twin, python) else { return };
            let top =
                gpuflame(&done.folder, ["top", "out.gfr", "--by", "idle", "-n", "3", "-f", "json"]).ok();
            let tables: Value = serde_json::from_str(&top.stdout).unwrap();
            let functions = tables["idle_functions"].as_array().unwrap().iter();
            let mut functions = functions.filter_map(|row| row["function"].as_str());
            // While other programs have the processor, the program gets no samples. Four of the five pauses end when
            // the next launch begins. If samples cover 0.75 s of the culprit's 1.25 s, the culprit has at least half of
            // the time of these four pauses, so it must be first.
            let of_culprit =
                |frames: &[String]| frames.iter().any(|frame| function(frame) == program.culprit);
            let sampled = done.folded_file("out.cpu.folded");
            let sampled: u64 =
                sampled.iter().filter(|(frames, _)| of_culprit(frames)).map(|(_, nanos)| nanos).sum();
            let lacked_processor = program.computes && sampled < 750_000_000;
            // In Python frames, the names of functions are followed by file and line.
            let is_named = |name: &&str| !lacked_processor || !name.starts_with("[between finish");
            let first = functions.find(is_named).unwrap_or_default();
            assert_eq!(function(first), program.culprit, "{program:?} {twin:?} {python:?}\n{tables:#}");
            let stacks = done.folded_file("out.idle.folded");
            let is_culprit = |frame: &String| function(frame) == program.culprit;
            let (frames, _) = stacks
                .iter()
                .filter(|(frames, _)| frames.iter().any(is_culprit))
                .max_by_key(|(_, nanos)| *nanos)
                .unwrap();
            // The stack also contains functions of the interpreter and of the C library, around and between the
            // functions that the test expects.
            let chain = program.chain();
            let around = match twin {
                Twin::Inside => &chain[..],
                Twin::Around => &chain[..chain.len() - 1],
            };
            let expected: Vec<_> = around.iter().chain([&program.culprit]).copied().collect();
            let known = |name: &String| chain.contains(&&**name) || *name == program.culprit;
            let found: Vec<_> = frames.iter().map(|frame| function(frame)).filter(known).collect();
            assert_eq!(found, expected, "{program:?} {twin:?} {python:?}\n{frames:?}");
        }
    }
}

#[test]
fn samples_name_the_culprit_of_a_pause_in_each_language() {
    let languages = [Language::C, Language::Cpp, Language::Rust, Language::Python];
    assert_the_culprit_is_named(
        languages.into_iter().enumerate().filter_map(|(nth, one)| programs(one).nth(nth)),
    );
}

#[test]
#[ignore = "takes two minutes; .ci/long runs it"]
fn samples_name_the_culprit_of_a_pause_in_each_of_thirty_programs() {
    // The Python programs run twice, so that each version of Python runs both a culprit that computes and a culprit
    // that sleeps.
    let languages = [Language::C, Language::Cpp, Language::Rust, Language::Python];
    let other = programs(Language::Python).map(|program| Program { computes: !program.computes, ..program });
    assert_the_culprit_is_named(languages.into_iter().flat_map(programs).chain(other));
}

/// Source of a program in which a thread runs several coroutines, one after the other. Each coroutine begins with
/// `work`, which starts GPU work, waits for it and returns. Between two coroutines, the thread pauses in the function
/// `main`.
const COROUTINES: &str = r#"
#include "cuda_mini.h"
#include <ucontext.h>
#include <unistd.h>
static char stacks[5][1 << 16];
static ucontext_t outer, inner;
static void *memory;
__attribute__((noinline)) static void update(void) { cudaMemsetAsync(memory, 0, 64, 0); __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) static void finish(void) { cudaDeviceSynchronize(); __asm__ volatile("" ::: "memory"); }
static void work(void) { update(); finish(); __asm__ volatile("" ::: "memory"); }
int main(void)
{
    cudaMalloc(&memory, 64);
    for (volatile int i = 0; i < 5; i++) {
        getcontext(&inner);
        inner.uc_stack.ss_sp = stacks[i];
        inner.uc_stack.ss_size = sizeof stacks[i];
        inner.uc_link = &outer;
        makecontext(&inner, work, 0);
        swapcontext(&outer, &inner);
        usleep(3000);
    }
    return 0;
}
"#;

#[test]
fn the_first_function_of_a_coroutine_is_not_shown_as_running_between_two_coroutines() {
    let folder = scratch("coroutines");
    let (source, program) = (folder.join("coroutines.c"), folder.join("coroutines"));
    fs::write(&source, COROUTINES).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-g", "-O2", "-fno-optimize-sibling-calls"]).arg(&source).arg("-o").arg(&program);
    command.arg("-I").arg(crate::support::root().join("tests/gpusim/include"));
    command.arg("-L").arg(cuda()).args(["-lcudart", "-lcuda"]);
    assert!(command.status().unwrap().success());
    let done = Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", "idle").ok();
    let pauses = pauses(&done);
    assert!(!pauses.is_empty(), "{}", done.file("out.idle.folded"));
    for pause in pauses {
        let certain = pause.split(";[").next().unwrap();
        assert!(!certain.split(';').any(|frame| frame == "work"), "{pause}");
    }
}
