//! Tests the search for CUPTI with invented environments, in a folder tree that contains empty files.

use super::*;

/// A temporary folder tree, which is removed when the test ends.
struct Tree(PathBuf);

impl Tree {
    fn new(test: &str, files: &[&str]) -> Self {
        let root = std::env::temp_dir().join(format!("find-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for file in files {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        Self(root)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the paths of the candidates, relative to the root of the tree.
    fn found(&self, environment: &SearchEnvironment) -> Vec<(String, CandidateSource)> {
        let candidates = environment.search().candidates;
        let short = |file: &Path| file.strip_prefix(&self.0).unwrap_or(file).display().to_string();
        candidates.iter().map(|candidate| (short(&candidate.file), candidate.source)).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn names(found: &[(String, CandidateSource)]) -> Vec<&str> {
    found.iter().map(|(file, _)| file.as_str()).collect()
}

#[test]
fn a_cupti_path_set_by_the_user_is_the_only_candidate() {
    let tree = Tree::new("setting", &["lib/libcudart.so.13", "lib/libcupti.so.13"]);
    let environment = SearchEnvironment {
        setting: Some("/mine/libcupti.so.12".into()),
        mapped: vec![tree.at("lib/libcudart.so.13"), "/torch/libcupti.so.12".into()],
        driver: Some(13_000),
        ..SearchEnvironment::default()
    };
    assert_eq!(tree.found(&environment), [("/mine/libcupti.so.12".to_owned(), CandidateSource::Setting)]);
}

#[test]
fn a_mapped_cupti_precedes_one_next_to_the_runtime() {
    let tree = Tree::new("mapped", &["nvidia/cuda_cupti/lib/libcupti.so.12"]);
    let environment = SearchEnvironment {
        mapped: vec![tree.at("nvidia/cuda_runtime/lib/libcudart.so.12"), "/torch/libcupti.so.12".into()],
        driver: Some(12_080),
        ..SearchEnvironment::default()
    };
    let expected = [
        ("/torch/libcupti.so.12".to_owned(), CandidateSource::Mapped),
        ("nvidia/cuda_cupti/lib/libcupti.so.12".to_owned(), CandidateSource::NextToRuntime),
        ("libcupti.so.12".to_owned(), CandidateSource::ByName),
        ("libcupti.so.11.8".to_owned(), CandidateSource::ByName),
    ];
    assert_eq!(tree.found(&environment), expected);
}

#[test]
fn cupti_is_found_next_to_the_runtime_in_every_nvidia_layout() {
    for (test, runtime, cupti) in [
        ("pip12", "nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cuda_cupti/lib/libcupti.so.12"),
        ("pip13", "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13"),
        ("kit", "cuda/lib64/libcudart.so.12.4.127", "cuda/extras/CUPTI/lib64/libcupti.so.12"),
        (
            "targets",
            "cuda/targets/x86_64-linux/lib/libcudart.so.13",
            "cuda/extras/CUPTI/lib64/libcupti.so.13",
        ),
        ("conda", "env/lib/libcudart.so.11.0", "env/lib/libcupti.so.11.8"),
    ] {
        let tree = Tree::new(test, &[cupti]);
        let environment = SearchEnvironment {
            mapped: vec!["/lib/libc.so.6".into(), tree.at(runtime)],
            driver: Some(13_000),
            ..SearchEnvironment::default()
        };
        assert_eq!(tree.found(&environment)[0], (cupti.to_owned(), CandidateSource::NextToRuntime), "{test}");
    }
}

#[test]
fn site_packages_are_found_from_any_file_mapped_from_there() {
    let packages = "venv/lib/python3.12/site-packages";
    let cupti = format!("{packages}/nvidia/cuda_cupti/lib/libcupti.so.12");
    let tree = Tree::new("packages", &[&cupti]);
    let environment = SearchEnvironment {
        mapped: vec![tree.at(&format!("{packages}/jaxlib/xla_extension.so"))],
        driver: Some(12_080),
        ..SearchEnvironment::default()
    };
    assert_eq!(tree.found(&environment)[0], (cupti, CandidateSource::SitePackages));
}

#[test]
fn packages_of_the_newest_python_come_first() {
    let file = |python: &str| format!("lib/{python}/site-packages/nvidia/cu13/lib/libcupti.so.13");
    let (old, new) = (file("python3.9"), file("python3.12"));
    let tree = Tree::new("pythons", &[&old, &new]);
    let environment =
        SearchEnvironment { python: vec![tree.at("")], driver: Some(13_010), ..SearchEnvironment::default() };
    assert_eq!(names(&tree.found(&environment))[..2], [new, old]);
}

#[test]
fn a_cupti_newer_than_the_driver_is_not_tried() {
    let kit = "cuda/extras/CUPTI/lib64";
    let tree = Tree::new("newer", &[&format!("{kit}/libcupti.so.13"), &format!("{kit}/libcupti.so.12")]);
    let environment = SearchEnvironment {
        toolkits: vec![tree.at("cuda")],
        driver: Some(12_040),
        ..SearchEnvironment::default()
    };
    let expected = ["libcupti.so.12", "libcupti.so.11.8", "cuda/extras/CUPTI/lib64/libcupti.so.12"];
    assert_eq!(names(&tree.found(&environment)), expected);
}

#[test]
fn the_runtimes_own_major_is_preferred_to_the_drivers() {
    let environment = |driver, runtime: &str| SearchEnvironment {
        mapped: vec![runtime.into()],
        driver,
        ..SearchEnvironment::default()
    };
    let majors =
        |environment: SearchEnvironment| environment.majors().iter().map(|m| m.0).collect::<Vec<_>>();
    assert_eq!(majors(environment(Some(13_000), "/x/libcudart.so.12")), [12, 13, 11]);
    assert_eq!(majors(environment(Some(12_000), "/x/libcudart.so.13")), [12, 11]);
    assert_eq!(majors(environment(Some(14_000), "/x/libcublas.so.12")), [14, 13, 12, 11]);
    assert_eq!(majors(environment(None, "/x/libcudart.so.11.0")), [11, 13, 12]);
    assert!(majors(environment(Some(10_020), "/x/libcudart.so.10.2")).is_empty());
}

#[test]
fn toolkits_and_system_folders_come_last_and_in_that_order() {
    let tree = Tree::new("last", &["usr/lib64/libcupti.so.12", "cuda-12.4/lib64/libcupti.so.12"]);
    let environment = SearchEnvironment {
        toolkits: vec![tree.at("cuda-12.4"), tree.at("cuda-11.8")],
        system: vec![tree.at("usr/lib64")],
        driver: Some(12_040),
        ..SearchEnvironment::default()
    };
    let expected = [
        ("libcupti.so.12".to_owned(), CandidateSource::ByName),
        ("libcupti.so.11.8".to_owned(), CandidateSource::ByName),
        ("cuda-12.4/lib64/libcupti.so.12".to_owned(), CandidateSource::Toolkit),
        ("usr/lib64/libcupti.so.12".to_owned(), CandidateSource::System),
    ];
    assert_eq!(tree.found(&environment), expected);
}

#[test]
fn files_with_similar_names_are_not_cupti_candidates() {
    let environment = SearchEnvironment {
        mapped: vec!["/x/libcupti.so.13.old/other.so".into(), "/x/libcupti_helper.so".into()],
        driver: Some(10_000),
        ..SearchEnvironment::default()
    };
    assert_eq!(environment.search().candidates, []);
}

#[test]
fn entries_are_listed_by_descending_version() {
    let tree = Tree::new("entries", &["cuda-12.9/x", "cuda-12.10/x", "cuda-11.8/x", "other/x"]);
    let found: Vec<_> =
        list_entries(&tree.0, "cuda-").iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(found, ["cuda-12.10", "cuda-12.9", "cuda-11.8"]);
}
