//! Runs the C examples under the sanitizers, and the demo under valgrind. With gpuflame, the sanitizers and valgrind
//! must report the same as without gpuflame, and each program must end in the same way.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::examples::{example, rust_example};
use crate::support::{Done, Run, Way, gpuflame, root, scratch, skip};

/// Returns the path of gcc's runtime for a sanitizer. If gcc has no such runtime, prints a sentence and returns `None`.
fn runtime(name: &str) -> Option<PathBuf> {
    let found = Command::new("gcc").arg(format!("-print-file-name=lib{name}.so")).output().unwrap();
    let found = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
    if found.is_absolute() {
        return Some(found);
    }
    skip(&format!("gcc comes without lib{name}"));
    None
}

/// Returns the reports of a sanitizer, without addresses and process ids.
fn reports(done: &Done) -> Vec<&str> {
    let lines = done.stderr.lines();
    lines.filter(|line| line.contains("Sanitizer") && !line.starts_with("==")).collect()
}

fn assert_clean(sanitizer: &str, options: (&str, &str), first: Option<&Path>) {
    let sanitized = format!("-fsanitize={sanitizer}");
    let programs = [
        (example("examples/graph_decode.c", &["-std=c99", "-O1", &sanitized]), false),
        (example("examples/llm_inference.c", &["-std=c99", "-O1", &sanitized]), false),
        (example("examples/embed.c", &["-std=c99", "-O1", "-DGPUSIM", "-DLINKED", &sanitized]), true),
    ];
    for (program, is_linked) in programs {
        let run = |way| {
            let run = Run::new(&program, way).env(options.0, options.1);
            run.env("GPUFLAME_FORMATS", "folded,svg,activities,gfr")
        };
        let without = run(Way::None).done();
        if without.stderr.contains("FATAL: ") {
            return skip(&format!("the sanitizer does not start here: {}", without.stderr));
        }
        let list = first.map(Path::to_owned).into_iter().chain([gpuflame()]);
        let preloaded = run(Way::Preloaded).env("LD_PRELOAD", std::env::join_paths(list).unwrap());
        for done in [run(Way::Injected).done(), preloaded.done()] {
            assert_eq!((done.code, reports(&done)), (without.code, reports(&without)), "{}", done.stderr);
            assert!(done.sum("launches").1["matched"] > 0, "{}", done.stderr);
        }
        // If a program is linked to gpuflame, it uses gpuflame even without injection. Therefore the sanitizer must
        // print no reports at all.
        assert!(!is_linked || reports(&without).is_empty(), "{}", without.stderr);
    }
}

#[test]
fn the_address_sanitizer_finds_nothing_in_the_c_examples() {
    if let Some(runtime) = runtime("asan") {
        // The sanitizer's library must be loaded before all other libraries.
        assert_clean("address", ("ASAN_OPTIONS", "detect_leaks=1"), Some(&runtime));
    }
}

/// The thread sanitizer sees some memory accesses by libraries that were not built for it. However, the sanitizer does
/// not see the synchronization that orders these accesses.
#[test]
fn the_thread_sanitizer_finds_nothing_in_the_c_examples() {
    if runtime("tsan").is_some() {
        assert_clean("thread", ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1"), None);
    }
}

/// Valgrind reports only one thing: a loop that reads the stack slots of the previous walk again. Some stack slots of
/// the previous walk are no longer initialized.
#[test]
fn valgrind_reports_only_the_one_suppressed_loop_in_the_demo() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("there is no valgrind; apt-get install valgrind");
    }
    let suppressions = root().join("capi/valgrind.supp");
    let text = std::fs::read_to_string(&suppressions).unwrap();
    assert_eq!(text.matches("Memcheck:").count(), 1, "{text}");
    let checked = |options: &[&str]| {
        let mut command = Command::new("valgrind");
        command.args(["-q", "--trace-children=yes", "--error-exitcode=33"]).args(options);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GPU")) {
            command.env_remove(name);
        }
        let ran = command.arg(rust_example("demo")).current_dir(scratch("valgrind")).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (code, said) = checked(&[&format!("--suppressions={}", suppressions.display())]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("=="), "{said}");
    assert!(said.contains("gpuflame: complete: "), "{said}");
}
