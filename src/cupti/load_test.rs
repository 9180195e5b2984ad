//! Tests two things: which refusals end a search for CUPTI, and the error message of a failed search.

use super::super::find::CandidateSource::{ByName, Mapped, Setting, SitePackages};
use super::*;

fn candidate(file: &str, source: CandidateSource) -> Candidate {
    Candidate { file: file.into(), source }
}

fn not_started(status: Status) -> SkipReason {
    SkipReason::NotStarted(Version(28), "cuptiSubscribe", status)
}

/// Returns the error message of a search in which the candidates `tried` failed, with a driver for CUDA 12.4.
fn sentence(environment: SearchEnvironment, tried: &[(Candidate, SkipReason)], has_gpu_file: bool) -> String {
    let environment = SearchEnvironment { driver: environment.driver.or(Some(12_040)), ..environment };
    let search = SearchResult { folders: ["/a", "/b"].map(PathBuf::from).into(), ..SearchResult::default() };
    failure_error(&environment, &search, tried, has_gpu_file).to_string()
}

fn refused(status: Status, mapped: &[&str], has_gpu_file: bool) -> String {
    let mapped = mapped.iter().map(PathBuf::from).collect();
    let tried = [(candidate("/x/libcupti.so.12", SitePackages), not_started(status))];
    sentence(SearchEnvironment { mapped, ..SearchEnvironment::default() }, &tried, has_gpu_file)
}

#[test]
fn after_a_cupti_that_does_not_start_an_older_one_is_tried() {
    assert!(!ends_search(&not_started(Status::NOT_INITIALIZED), SitePackages));
    assert!(!ends_search(&not_started(Status::UNKNOWN), SitePackages));
    assert!(!ends_search(&SkipReason::NewerThanDriver(Version(130_001), 12_040), Mapped));
    assert!(!ends_search(&SkipReason::TooOld(Version(17)), ByName));
}

#[test]
fn a_refusal_that_any_copy_would_repeat_ends_the_search() {
    assert!(ends_search(&not_started(Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED), SitePackages));
    assert!(ends_search(&not_started(Status::INSUFFICIENT_PRIVILEGES), SitePackages));
    assert!(ends_search(&SkipReason::TooOld(Version(17)), Mapped), "a second copy must not be loaded");
}

#[test]
fn without_a_candidate_the_message_lists_searched_places_and_the_package() {
    let missed = [(candidate("libcupti.so.12", ByName), SkipReason::NotLoaded("no such file".to_owned()))];
    assert_eq!(
        sentence(SearchEnvironment::default(), &missed, true),
        "no CUPTI found: looked for libcupti.so.12, libcupti.so.11.8 by name and in /a, /b; \
         pip install nvidia-cuda-cupti-cu12, or set GPUFLAME_CUPTI=/path/libcupti.so.12"
    );
}

#[test]
fn the_suggested_package_matches_the_drivers_cuda_version() {
    let driver = |driver| SearchEnvironment { driver: Some(driver), ..SearchEnvironment::default() };
    assert!(sentence(driver(13_000), &[], true).contains("pip install nvidia-cuda-cupti, or"));
    assert!(sentence(driver(11_080), &[], true).contains("pip install nvidia-cuda-cupti-cu11, or"));
}

#[test]
fn unusable_candidates_are_named_with_their_reasons() {
    let tried = [
        (candidate("/x/libcupti.so.13", Mapped), SkipReason::NewerThanDriver(Version(130_001), 12_040)),
        (candidate("/y/libcupti.so.12", SitePackages), SkipReason::Lacks("cuptiSubscribe")),
    ];
    assert_eq!(
        sentence(SearchEnvironment::default(), &tried, true),
        "no usable CUPTI found; /x/libcupti.so.13: it is for CUDA 13.0, the driver supports 12.4; \
         /y/libcupti.so.12: it has no cuptiSubscribe; \
         pip install nvidia-cuda-cupti-cu12, or set GPUFLAME_CUPTI=/path/libcupti.so.12"
    );
}

#[test]
fn an_unusable_cupti_setting_is_named_in_the_message() {
    let environment = SearchEnvironment { setting: Some("/mine.so".into()), ..SearchEnvironment::default() };
    let tried = [(candidate("/mine.so", Setting), SkipReason::NotLoaded("/mine.so: cannot open".to_owned()))];
    let said = sentence(environment, &tried, true);
    assert!(said.starts_with("the CUPTI that GPUFLAME_CUPTI names cannot be used; /mine.so: "), "{said}");
}

#[test]
fn another_subscriber_is_named_if_its_files_are_mapped() {
    let status = Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    assert_eq!(
        refused(status, &["/opt/nsys/libToolsInjection64.so"], true),
        "CUPTI 12.9 (/x/libcupti.so.12) refused cuptiSubscribe: another tool in this process has already \
         subscribed (39); probably Nsight Systems (nsys): run without it, or without gpuflame"
    );
    assert!(refused(status, &["/lib/libc.so.6"], true).contains("run without the other profiler"));
}

#[test]
fn a_missing_gpu_is_distinguished_from_an_unreachable_gpu() {
    for status in [Status::NOT_INITIALIZED, Status::UNKNOWN] {
        assert!(
            refused(status, &[], false)
                .ends_with("no GPU is visible on this machine or in this container (no /dev/nvidia0)")
        );
        assert!(refused(status, &[], true).contains("CUDA_VISIBLE_DEVICES"));
        assert!(refused(status, &[], true).contains("(CUDA 12.4)"));
    }
}

#[test]
fn the_message_names_the_best_failed_candidate_or_the_search_ending_one() {
    let tried = |last| {
        [
            (candidate("/best/libcupti.so.12", SitePackages), not_started(Status::NOT_INITIALIZED)),
            (candidate("libcupti.so.12", ByName), SkipReason::TriedBefore),
            (candidate("/last/libcupti.so.11.8", SitePackages), not_started(last)),
        ]
    };
    let said = |last| sentence(SearchEnvironment::default(), &tried(last), true);
    assert!(said(Status::NOT_INITIALIZED).contains("/best/"));
    assert!(said(Status::INSUFFICIENT_PRIVILEGES).contains("/last/"));
}

#[test]
fn the_message_for_missing_privileges_names_the_driver_option() {
    assert!(
        refused(Status::INSUFFICIENT_PRIVILEGES, &[], true).contains("NVreg_RestrictProfilingToAdminUsers=0")
    );
}

#[test]
fn a_driver_older_than_any_supported_cupti_is_reported() {
    let environment = SearchEnvironment { driver: Some(10_020), ..SearchEnvironment::default() };
    assert_eq!(
        sentence(environment, &[], true),
        "the NVIDIA driver is too old: it supports CUDA 10.2, gpuflame needs 11.8 or later"
    );
}
