//! Tests of the HTML report's code: unit tests in Node, the flame graph viewer in Chromium and Firefox, and the
//! accessibility checker axe. `tests/page/install` installs Node, the browsers and the npm packages. If any of these
//! programs is missing, the tests are skipped.
use std::path::Path;
use std::process::Command;

#[path = "../support/skip.rs"]
mod skip;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn is_installed(needed: &[&str]) -> bool {
    let missing = needed.iter().find(|path| !root().join(path).exists());
    if let Some(path) = missing {
        skip::skip(&format!(
            "the page's tools are not available: {path} is missing; run `tests/page/install`"
        ));
    }
    missing.is_none()
}

fn run(command: &mut Command) {
    let output = command.current_dir(root()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
}

/// Runs the tests of the flame graph viewer for one value of `GPUFLAME_BROWSER`.
fn run_browser_tests(browser: &str, program: &str) {
    let needed = [program, "page/node_modules/.bin/esbuild", "tests/page/node_modules/playwright-core"];
    if is_installed(&needed) {
        let mut command = Command::new("node");
        run(command.args(["--test", "tests/page/flame.test.mjs"]).env("GPUFLAME_BROWSER", browser));
    }
}

#[test]
fn unit_tests_in_node_pass_and_the_viewer_is_small() {
    if is_installed(&["page/node_modules/.bin/esbuild"]) {
        run(&mut Command::new("page/test"));
    }
}

#[test]
fn the_viewer_works_in_chromium() {
    run_browser_tests("chromium", "/usr/bin/chromium");
}

#[test]
fn the_viewer_works_in_firefox() {
    run_browser_tests("firefox", "/usr/bin/firefox-esr");
}

/// Runs the tests of the pages that `gpuflame report` writes, in a browser.
fn run_page_tests(browser: &str, program: &str) {
    if is_installed(&[program, "tests/page/node_modules/playwright-core"]) {
        let mut command = Command::new("node");
        command.args(["--test", "tests/page/page.test.mjs"]).env("GPUFLAME_BROWSER", browser);
        run(command.env("GPUFLAME_COMMAND", env!("CARGO_BIN_EXE_gpuflame")));
    }
}

#[test]
fn pages_of_the_command_work_in_chromium() {
    run_page_tests("chromium", "/usr/bin/chromium");
}

#[test]
#[ignore = "half a minute; .ci/long runs it"]
fn pages_of_the_command_work_in_firefox() {
    run_page_tests("firefox", "/usr/bin/firefox-esr");
}

#[test]
fn axe_finds_nothing_serious_in_light_and_dark() {
    run_browser_tests("axe", "/usr/bin/chromium");
}
