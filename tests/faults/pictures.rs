//! Pictures of docs/gpu-idle.md: each is made by the command from a case, and shows the function that its sentence names.

use std::fs;

use crate::cases::{cases, healthy};
use crate::support::command::gpuflame;
use crate::support::{root, scratch};

/// A picture, its case, options of `flamegraph`, its title, and a frame that must be in the picture and in the committed file.
const PICTURES: [(&str, &str, &[&str], &str, &str); 6] = [
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
];
/// Maximum size of all pictures in bytes.
const MAX_BYTES: u64 = 300_000;

/// With `GPUFLAME_RENEW_GOLDEN=1`, the pictures are written again.
#[test]
fn pictures_show_what_the_page_says() {
    let pictures = root().join("docs/pictures");
    let page = fs::read_to_string(root().join("docs/gpu-idle.md")).unwrap();
    let healthy = healthy();
    for (name, case, options, title, frame) in PICTURES {
        let case = cases().iter().chain(&healthy).find(|known| known.name == case).unwrap();
        let folder = scratch("pictures");
        let file = &case.write(&folder)[0];
        let args = [&["flamegraph", file], options, &["--title", title, "-o", "picture.svg"]].concat();
        gpuflame(&folder, args).ok();
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
