//! Tests findings about runs on a real GPU: `tests/pytorch/programs/faults.py` with each of its faults. The runs were
//! recorded on an H100, in the default files, which contain only sums. In these runs, the import of PyTorch's optimizer
//! took 4 to 6 s. The import took place between the first copies and the first step.

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::root;

/// Returns the findings about lost time: the id, the cost in ns, and the words that describe the culprit.
fn costs(fault: &str) -> Vec<(String, u64, String)> {
    costs_of(&format!("faults/{fault}.gfr.gz"))
}

fn costs_of(file: &str) -> Vec<(String, u64, String)> {
    let folder = root().join("tests/golden/hw/NVIDIA_H100_80GB_HBM3-580.159.04");
    let checked = gpuflame(&folder, ["check", file, "--format", "json"]);
    let checked: Value = serde_json::from_str(&checked.ok().stdout).unwrap();
    let rows = checked["findings"].as_array().unwrap().iter().filter(|row| row["result"] == "cost");
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.map(|row| (text(row, "id"), row["cost_ns"].as_u64().unwrap(), text(row, "culprit"))).collect()
}

#[test]
fn the_planted_fault_comes_first_with_its_function() {
    for (fault, id, culprit) in [
        ("loader", "data_loader_late", "in load_batch"),
        ("tiny", "tiny_kernels", "in augment"),
        ("pageable", "pageable_copies", "in upload"),
        // The recording has no samples, so the finding cannot name the garbage collection. Instead, the finding names
        // the two CUDA calls before and after the collection.
        ("collector", "host_work", "between cudaLaunchKernel in train_step"),
    ] {
        let found = costs(fault);
        assert!(found[0].0 == id && found[0].2.contains(culprit), "{fault}: {found:#?}");
    }
}

#[test]
fn time_of_the_host_is_not_charged_to_the_copies_and_kernels_around_it() {
    // The program calls the garbage collector 25 times, each time before the tiny kernels of a layer. The calls of the
    // garbage collector took 3.6 s in total.
    let tiny: u64 =
        costs("collector").iter().filter(|found| found.0 == "tiny_kernels").map(|found| found.1).sum();
    assert!(tiny < 100_000_000, "{tiny}");
    // The import takes 6 s and follows nine copies of pageable memory, which took only 33 us. Therefore the finding
    // must not blame the copies for the time of the import.
    for fault in ["none", "item", "warmup"] {
        let found = costs(fault);
        assert!(found.iter().all(|found| found.0 == "pauses"), "{fault}: {found:#?}");
        assert!(
            found[0].1 > 4_000_000_000 && found[0].2.contains("and cudaHostAlloc in train"),
            "{fault}: {found:#?}"
        );
    }
    // The function `prepare` runs in the first step, and launches no GPU work.
    let found = costs("warmup");
    assert!(found[1].1 > 1_000_000_000 && found[1].2.contains("called by train_step"), "{found:#?}");
}

#[test]
fn work_of_a_profiler_before_the_first_gpu_work_costs_nothing() {
    // In these traces, the profiler only provides a buffer, which takes 2 to 10 ms and ends 0.1 to 0.7 ms before the
    // first GPU work.
    for file in ["train", "stream", "graph"] {
        let found = costs_of(&format!("torch/{file}-kineto.json.gz"));
        assert!(
            !found.is_empty() && found.iter().all(|found| found.0 != "profiler_cost"),
            "{file}: {found:#?}"
        );
    }
}
