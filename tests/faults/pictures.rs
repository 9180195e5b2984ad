//! Tests the pictures in docs/gpu-idle.md. `gpuflame flamegraph` draws each picture from a test case. Each picture must
//! show the function that the page names.

use std::fs;

use crate::cases::{cases, healthy};
use crate::support::command::gpuflame;
use crate::support::{root, scratch};

/// Each picture is listed with its file name, its case, options of `flamegraph`, its title, and a frame. The frame must
/// be in both the newly drawn picture and the committed file.
const PICTURES: [(&str, &str, &[&str], &str, &str); 7] = [
    (
        "host-late",
        "data_loader_late-strong",
        &["--idle"],
        "Idle time: the data loader is late",
        "dataloader.py(701)",
    ),
    (
        "launches",
        "tiny_kernels-strong",
        &["--idle"],
        "Idle time: launches are the limit",
        "add_bias_per_token",
    ),
    ("copies", "pageable_copies-strong", &[], "GPU time: copies of pageable memory", "load_batch"),
    ("busy", "healthy-training", &[], "GPU time: a busy GPU", "gemm_bf16"),
    ("slow-step", "pauses-strong", &["--idle"], "Idle time: two steps with a pause", "write_log"),
    ("second-gpu", "idle_gpu-strong", &["--idle"], "Idle time: GPU 1 has less work", "GPU1_Idle host late"),
    ("ranks", "straggler-strong", &[], "GPU time by rank and launching stack", "<title>rank 1 ("),
];
/// Maximum size of all pictures together, in bytes.
const MAX_BYTES: u64 = 300_000;

/// If `GPUFLAME_RENEW_GOLDEN=1` is set, the test writes the pictures again.
#[test]
fn pictures_show_what_the_page_says() {
    let pictures = root().join("docs/pictures");
    let page = fs::read_to_string(root().join("docs/gpu-idle.md")).unwrap();
    let healthy = healthy();
    for (name, case, options, title, frame) in PICTURES {
        let case = cases().iter().chain(&healthy).find(|known| known.name == case).unwrap();
        let folder = scratch("pictures");
        let files = case.write(&folder);
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let args = match files[..] {
            [file] => [&["flamegraph", file], options, &["--title", title]].concat(),
            _ => [&["merge-ranks"], &files[..]].concat(),
        };
        gpuflame(&folder, [&args[..], &["-o", "picture.svg"]].concat()).ok();
        let drawn = fs::read_to_string(folder.join("picture.svg")).unwrap();
        let path = pictures.join(format!("{name}.svg"));
        if std::env::var_os("GPUFLAME_RENEW_GOLDEN").is_some() {
            fs::write(&path, &drawn).unwrap();
        }
        let committed = fs::read_to_string(path).unwrap();
        assert!([&drawn, &committed].iter().all(|svg| svg.contains(frame) && svg.contains(title)), "{name}");
        assert!(page.contains(&format!("(pictures/{name}.svg)")), "{name}");
    }
    let files = fs::read_dir(pictures).unwrap();
    let size: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(size < MAX_BYTES, "{size} bytes");
}
