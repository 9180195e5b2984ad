//! Tests `gpuflame devices` on the simulated CUDA libraries, on fake drivers that the test compiles, and without a
//! driver.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{cuda, scratch, stage};

/// Runs the command in an empty folder, with only the given libraries and environment variables.
fn devices(libraries: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let own = ["GPUFLAME_", "GPUSIM_", "CUDA_", "NVTX_", "VIRTUAL_ENV", "CONDA"];
        if own.iter().any(|own| name.starts_with(own)) {
            command.env_remove(name);
        }
    }
    command.arg("devices").args(args).current_dir(scratch("devices"));
    command.env("LD_LIBRARY_PATH", libraries).envs(variables.iter().copied()).output().unwrap()
}

/// Runs the command, and returns its exit code, its JSON and its messages.
fn answer(libraries: &Path, variables: &[(&str, &str)]) -> (i32, Value, String) {
    let ran = devices(libraries, variables, &["--format", "json"]);
    let said = String::from_utf8(ran.stderr).unwrap();
    let answer = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (ran.status.code().unwrap(), answer, said)
}

#[test]
fn devices_lists_the_gpus_the_driver_and_cupti() {
    let variables = [("GPUSIM_NDEV", "2"), ("GPUSIM_CUPTI_VERSION", "13.4")];
    let (code, found, said) = answer(cuda(), &variables);
    assert_eq!((code, said.as_str()), (0, ""), "{found}");
    // Each simulated GPU has 80 GiB of memory, and the bytes of its UUID are ASCII text.
    let gpu = |number: u64, pci: &str, uuid: &str| {
        json!({
            "gpu": number, "name": format!("Simulated GPU {number}"), "memory_bytes": 85_899_345_920_u64,
            "capability": "9.0", "multiprocessors": 132, "pci": pci, "uuid": uuid,
        })
    };
    let expected = json!([
        gpu(0, "0000:1e:00.0", "GPU-67707573-696d-2d64-6576-6963652d3000"),
        gpu(1, "0000:1f:00.0", "GPU-67707573-696d-2d64-6576-6963652d3001"),
    ]);
    assert_eq!(found["found_gpus"], expected);
    let driver = &found["driver"][0];
    assert_eq!((&driver["cuda"], found["driver"].as_array().unwrap().len()), (&json!("13.0"), 1));
    assert!(driver["file"].as_str().unwrap().ends_with("/libcuda.so.1"), "{driver}");
    let cupti = &found["cupti"][0];
    assert_eq!((&cupti["state"], &cupti["version"]), (&json!("used"), &json!("13.4")), "{found}");
    assert!(cupti["file"].as_str().unwrap().ends_with("libcupti.so.13"), "{cupti}");

    let text = String::from_utf8(devices(cuda(), &variables, &[]).stdout).unwrap();
    assert!(
        text.contains("Simulated GPU 1\n") && text.contains("found by name by the dynamic linker\n"),
        "{text}"
    );
    let csv = String::from_utf8(devices(cuda(), &variables, &["--format", "csv"]).stdout).unwrap();
    assert!(csv.contains("\n1,85899345920,9.0,132,0000:1f:00.0,"), "{csv}");
}

#[test]
fn devices_without_a_driver_or_a_gpu_exits_with_1_and_a_reason() {
    let (code, found, said) = answer(Path::new("/nowhere"), &[]);
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(
        said.contains("no GPU: libcuda.so.1 cannot be loaded") && said.contains("gpuflame doctor"),
        "{said}"
    );
    assert_eq!((&found["found_gpus"], &found["driver"]), (&json!([]), &json!([])));
    // If a user names a library, it is listed, but it is not loaded if there is no driver.
    let (_, found, _) = answer(Path::new("/nowhere"), &[("GPUFLAME_CUPTI", "/opt/libcupti.so.13")]);
    let expected = json!([{
        "state": "not loaded", "version": null, "file": "/opt/libcupti.so.13", "why": "named by GPUFLAME_CUPTI",
    }]);
    assert_eq!(found["cupti"], expected);

    let (code, found, said) = answer(cuda(), &[("GPUSIM_NDEV", "0")]);
    assert!(
        code == 1 && said.contains("no GPU: cuInit or a later call of the driver returned 100"),
        "{said}"
    );
    assert_eq!(found["driver"][0]["cuda"], "13.0");
}

#[test]
fn an_unusable_cupti_is_listed_with_the_reason() {
    let (code, found, _) = answer(cuda(), &[("GPUSIM_DRIVER", "12040"), ("GPUSIM_CUPTI_VERSION", "13.0")]);
    let cupti = &found["cupti"][0];
    assert_eq!(
        (code, &cupti["state"], &cupti["version"]),
        (0, &json!("unusable"), &json!("13.0")),
        "{found}"
    );
    assert_eq!(cupti["why"], "it is for CUDA 13.0, the driver supports 12.4");
    let none = stage("no-cupti", &[]);
    let (code, found, _) = answer(&none, &[("GPUFLAME_CUPTI", "/nowhere/libcupti.so.12")]);
    let cupti = &found["cupti"][0];
    assert_eq!((code, &cupti["state"], &cupti["version"]), (0, &json!("unusable"), &Value::Null));
    assert!(cupti["why"].as_str().unwrap().contains("cannot open shared object file"), "{cupti}");
}

/// C source of a fake driver with one GPU. The fake driver ends the process if a CUDA context is created. Like old
/// drivers, the fake driver lacks the functions that return the GPU's UUID, memory size and PCI address. `INIT` is
/// replaced by the body of `cuInit`.
const DRIVER: &str = "
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { INIT; return flags; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetName(char *name, int room, int device) { memset(name, 0, room); strcpy(name, \"Old GPU\"); return device; }
int cuCtxCreate_v2(void) { abort(); }
int cuCtxCreate_v3(void) { abort(); }
int cuCtxCreate_v4(void) { abort(); }
int cuDevicePrimaryCtxRetain(void) { abort(); }
int cuCtxSetCurrent(void) { abort(); }
";

/// Creates a folder with a fake `libcuda.so.1` whose function `cuInit` has the body `init`.
fn driver(init: &str) -> std::path::PathBuf {
    let folder = scratch("driver");
    fs::write(folder.join("driver.c"), DRIVER).unwrap();
    let mut compile = Command::new("gcc");
    compile.args(["-shared", "-fPIC", &format!("-DINIT={init}"), "-o", "libcuda.so.1", "driver.c"]);
    assert!(compile.current_dir(&folder).status().unwrap().success());
    folder
}

#[test]
fn an_old_driver_creates_no_context_and_leaves_unknown_facts_empty() {
    let (code, found, said) = answer(&driver("0"), &[]);
    let expected = json!([{
        "gpu": 0, "name": "Old GPU", "memory_bytes": null, "capability": null, "multiprocessors": null, "pci": null,
        "uuid": null,
    }]);
    assert_eq!(
        (code, &found["found_gpus"], &found["driver"][0]["cuda"]),
        (0, &expected, &json!("12.4")),
        "{said}"
    );
}

#[test]
fn a_driver_that_crashes_is_one_line() {
    let ran = devices(&driver("abort()"), &[], &[]);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!((ran.status.code(), said.lines().count(), ran.stdout.len()), (Some(1), 1, 0), "{said}");
    assert!(said.contains("the process that probes the driver ended with signal: 6"), "{said}");
}
