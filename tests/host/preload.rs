//! Preloading asks the driver and NVTX to load the library, by their variables, and harms nobody who reads the
//! environment meanwhile.

use crate::support::{Run, Way, compile, gpuflame};

#[test]
fn a_thread_that_reads_the_environment_while_the_library_is_loaded_reads_on() {
    let program = compile("tests/programs/environment.c", &["-O2"]);
    let library = std::fs::canonicalize(gpuflame()).unwrap();
    // What is freed is filled with a pattern that no address has.
    let run = Run::new(&program, Way::None).env("MALLOC_PERTURB_", "165");
    let done = run.arg(library).arg("100").done();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "read on\n"), "{}", done.stderr);
}
