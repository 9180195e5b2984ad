//! Checks that `causal` finds the same function names in a gpuflame recording as in the program. The host times in the
//! recording are real, so the test does not compare them.

use crate::causal;
use crate::programs::{Change, Finished, Program, SHAPES};
use crate::support::Way;

#[test]
fn functions_of_a_recording_have_the_names_of_the_program() {
    // This program shape is bound by the host: the host's time decides when the program ends, even if a busy machine
    // delays the host.
    let shape = SHAPES.iter().find(|shape| shape.name == "launch_bound").unwrap();
    let program = Program { shape, steps: 4, scale: 50 };
    let run = program.prepare(Way::Injected, Change::None).env("GPUSIM_PACE", "1");
    let recorded = Finished::new(run.env("GPUFLAME_FORMATS", "gfr").env("GPUFLAME_DEPS", "1").ok());
    let table = causal(recorded.folder(), "out.gfr");
    for (name, ..) in shape.functions {
        let row = table["causal"].as_array().unwrap().iter().find(|row| row["name"] == *name);
        assert_eq!(row.map(|row| &row["kind"]), Some(&"function".into()), "{name}: {table:#}");
    }
}
