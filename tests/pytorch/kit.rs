//! Tests `tests/gpu/steps/85-programs.sh`, which runs PyTorch programs on a real GPU. In this test, the script runs the
//! programs on the simulated CUDA stack.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::installed::{folder, transformers, triton};
use crate::support::{gpuflame, root, scratch};

/// Runs the script with these programs and two GPUs. Returns its report, or `None` if PyTorch is not installed.
fn step(programs: &str, packages: &[&str]) -> Option<Value> {
    let folder = folder()?;
    // The script searches for a Python with PyTorch. This test gives the script a Python that uses the libraries which
    // replace NVIDIA's libraries, and the libraries of the test kit.
    let python = scratch("kit-python").join("python");
    let (stand_ins, program) = (folder.join("stand-ins"), folder.join("bin/python"));
    let text = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={}:$LD_LIBRARY_PATH PYTHONPATH={} exec {} \"$@\"\n",
        stand_ins.display(),
        packages.join(":"),
        program.display()
    );
    fs::write(&python, text).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let report = scratch("kit");
    let mut command = Command::new(root().join("tests/gpu/run.sh"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GPU") || name.starts_with("KIT_"))
    {
        command.env_remove(name);
    }
    command.args(["--simulated", "--quick", "--only", "programs", "--gpuflame"]).arg(gpuflame());
    command.arg("--python").arg(&python).arg(&report).env("GPUSIM_BUILD", "0").env("GPUSIM_LIBS", libraries);
    let output = command.env("GPUSIM_NDEV", "2").env("KIT_PROGRAMS", programs).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_str(&fs::read_to_string(report.join("report.json")).unwrap()).unwrap();
    let step = report["steps"].as_array().unwrap().iter().find(|step| step["name"] == "programs");
    let step = step.unwrap_or_else(|| panic!("{report:#}\n{said}")).clone();
    assert_eq!((step["status"].as_str(), output.status.code()), (Some("done"), Some(0)), "{step:#}\n{said}");
    Some(step)
}

/// Asserts that each program ran twice and ended in the same way. If the report has a ledger for a program, the ledger
/// must add up and agree with the truth file.
fn assert_held(step: &Value, programs: &str) {
    let checks = step["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["ok"] == true), "{checks:#?}");
    assert_eq!(step["missing"].as_array().map_or(0, Vec::len), 0, "{step:#}");
    let has = |sentence: &str| checks.iter().any(|check| check["check"] == sentence);
    for program in programs.split(' ') {
        assert!(has(&format!("{program}.py: the exit code is the same")), "{program} {checks:#?}");
        let has_ledger = !["share", "ddp"].contains(&program);
        for said in [
            "all launches are matched",
            "all activities are matched",
            "stacks that differ from libgcc's walk",
        ] {
            assert_eq!(has(&format!("{program}.py: {said}")), has_ledger, "{program}: {said} {checks:#?}");
        }
    }
}

#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn the_kits_programs_step_runs_programs_with_and_without_gpuflame() {
    let programs = "ranges devices";
    let Some(step) = step(programs, &[]) else { return };
    assert_held(&step, programs);
}

/// Checks the remaining programs. Two of the remaining programs need packages that `.ci/long` installs.
#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn the_kits_programs_step_runs_the_remaining_programs() {
    let (Some(triton), Some(transformers)) = (triton(), transformers()) else { return };
    let packages = [triton, transformers].map(|path| path.to_str().unwrap());
    for programs in ["train decode pressure loader share", "ddp", "transformers_models compiled"] {
        let Some(step) = step(programs, &packages) else { return };
        assert_held(&step, programs);
    }
}
