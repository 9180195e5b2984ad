//! Tests the recipes for containers, Homebrew and conda, and the workflow of a release. The syntax of the recipes must
//! be valid, and the files and commands in them must exist. The script `dist/try` runs the steps of the container
//! recipe.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::pythons::package_builder;
use crate::support::{root, scratch, skip};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn dist(name: &str) -> PathBuf {
    root().join("dist").join(name)
}

/// Reads a YAML file with the reader that `tests/python/install` installs.
fn yaml(path: PathBuf) -> Option<Value> {
    let code = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1])), default=str))";
    let read = Command::new(package_builder()?).args(["-c", code]).arg(path).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    Some(serde_json::from_slice(&read.stdout).unwrap())
}

fn steps(dockerfile: &str) -> Output {
    let file = scratch("dockerfile").join("Dockerfile");
    fs::write(&file, dockerfile).unwrap();
    Command::new(dist("container/steps")).arg(file).arg("/context").output().unwrap()
}

#[test]
fn the_steps_of_a_dockerfile_become_a_script() {
    let recipe = fs::read_to_string(dist("container/Dockerfile")).unwrap();
    let script = String::from_utf8(steps(&recipe).stdout).unwrap();
    let lines: Vec<_> = script.lines().collect();
    let [_, copied, installed, folder, command] = lines[..] else { panic!("{script}") };
    assert_eq!(copied, "cp -R /context/gpuflame_*_amd64.deb /tmp/");
    assert!(installed.starts_with("dpkg -i /tmp/gpuflame_*_amd64.deb && "), "{installed}");
    assert_eq!((folder, command), ("mkdir -p /work && cd /work", "gpuflame demo"));

    let refused = steps("FROM debian:12\nRUN true \\\n  && false\nCOPPY a b\n");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("COPPY is not understood"), "{refused:?}");
    assert!(!steps("RUN true\n").status.success());
}

#[test]
fn the_formula_is_ruby() {
    let Ok(checked) = Command::new("ruby").arg("-c").arg(dist("homebrew/gpuflame.rb")).output() else {
        return skip("ruby is not installed");
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_conda_recipe_has_the_version_and_licences_of_the_workspace() {
    let Some(recipe) = yaml(dist("conda/recipe.yaml")) else { return };
    assert_eq!(recipe["context"]["version"], VERSION);
    assert_eq!(recipe["about"]["license"], env!("CARGO_PKG_LICENSE"));
    assert_eq!(recipe["about"]["homepage"], env!("CARGO_PKG_REPOSITORY"));
    for file in recipe["about"]["license_file"].as_array().unwrap() {
        assert!(root().join(file.as_str().unwrap()).exists(), "{file}");
    }
}

#[test]
fn recipes_get_the_digest_of_the_sources() {
    let folder = scratch("recipes");
    fs::write(folder.join(format!("gpuflame-{VERSION}.tar.gz")), "abc").unwrap();
    // This call passes the path of the folder relative to the current working directory.
    let mut recipes = Command::new(dist("recipes"));
    let written = recipes.arg(".").current_dir(&folder).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    // The digest of the text "abc" is in FIPS 180-2, appendix B.1.
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    for name in ["gpuflame.rb", "recipe.yaml"] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        assert!(text.contains(digest) && !text.contains("00000000") && text.contains(VERSION), "{text}");
    }
}

#[test]
fn the_release_workflow_runs_scripts_that_exist() {
    let Some(workflow) = yaml(root().join(".github/workflows/release.yml")) else { return };
    let jobs = workflow["jobs"].as_object().unwrap().values();
    let steps: Vec<_> = jobs.flat_map(|job| job["steps"].as_array().unwrap()).collect();
    let runs: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    let scripts: Vec<_> =
        runs.iter().flat_map(|run| run.split_whitespace()).filter(|word| word.starts_with("dist/")).collect();
    assert_eq!(scripts, ["dist/build", "dist/try", "dist/recipes"]);
    assert!(scripts.iter().all(|script| root().join(script).exists()), "{scripts:?}");
}
