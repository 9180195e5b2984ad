//! Tests recording windows that the program opens and closes; the gpuflame library is linked, injected, or both. The
//! outputs contain exactly the launches that the program made while a window was open.

use crate::support::{Done, Run, Way, compile};

fn assert_the_middle_hundred(done: &Done) {
    let inside = ("main;inside".to_owned(), "[GPU_Kernel]step_d200000".to_owned());
    assert_eq!(done.by_site(), [(inside, 100 * 200_000)].into(), "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"]), (parts["outside"] + 100, 100), "{}", done.stderr);
    let (activities, parts) = done.sum("activities");
    assert_eq!((activities, parts["matched"]), (parts["outside"] + 100, 100), "{}", done.stderr);
}

#[test]
fn a_linked_program_records_its_window() {
    let program = compile("tests/programs/window.c", &["-O2", "-DLINKED"]);
    for clock in ["virtual", "real"] {
        let done = Run::new(&program, Way::None).env("GPUSIM_CLOCK", clock).ok();
        assert_the_middle_hundred(&done);
    }
}

#[test]
fn an_injected_and_linked_program_has_one_session() {
    let program = compile("tests/programs/window.c", &["-O2", "-DLINKED"]);
    for (way, clock) in [(Way::Injected, "virtual"), (Way::Injected, "real"), (Way::Preloaded, "virtual")] {
        let run = Run::new(&program, way).env("GPUFLAME_ENABLED", "0").env("GPUSIM_CLOCK", clock);
        let done = run.ok();
        assert_the_middle_hundred(&done);
        assert_eq!(done.sum("launches").0, 300);
        assert_eq!(done.sum("activities").0, 300);
    }
}

#[test]
fn an_injected_copy_of_the_library_defers_to_the_linked_one() {
    let program = compile("tests/programs/window.c", &["-O2", "-DLINKED"]);
    let copy = crate::support::scratch("copy").join("libgpuflame-copy.so");
    std::fs::copy(crate::support::gpuflame(), &copy).unwrap();
    let run = Run::new(&program, Way::None).env("CUDA_INJECTION64_PATH", &copy).env("GPUFLAME_ENABLED", "0");
    let done = run.ok();
    assert_the_middle_hundred(&done);
    assert_eq!(done.ledger("wrote").len(), 6, "{}", done.stderr);
}
