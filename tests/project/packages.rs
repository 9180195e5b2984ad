//! Tests the packages that `dist/pack` makes for users, and the demo of an installation. In these tests the packages
//! contain small programs instead of the real binaries. `.ci/long` builds and tries the real packages.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::examples::rust_example;
use crate::support::pythons::package_builder;
use crate::support::{gpuflame, preload, root, scratch, skip};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// File names of the simulated libraries, with the names under which the demo finds them.
const SIMULATED: [(&str, &str); 3] = [
    ("libgpusim_cuda.so", "libcuda.so.1"),
    ("libgpusim_cudart.so", "libcudart.so.13"),
    ("libgpusim_cupti.so", "libcupti.so.13"),
];
/// Files in the archive's `share/doc/gpuflame`.
const LICENCES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"];

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}\n{stdout}{}", String::from_utf8_lossy(&stderr));
    stdout
}

/// Creates a folder with small files, like the one that `dist/build` makes. The command in this folder is a small
/// program that starts the real command.
fn stand_ins() -> PathBuf {
    let built = scratch("stand-ins");
    let compile = |source: &str, flags: &[&str], name: &str| {
        let file = built.join("source.c");
        fs::write(&file, source).unwrap();
        run(Command::new("gcc").args(flags).arg("-o").arg(built.join(name)).arg(&file));
        fs::remove_file(file).unwrap();
    };
    let command = format!(
        "#include <unistd.h>\nint main(int argc, char **argv) {{ (void)argc; return execv(\"{}\", argv); }}\n",
        env!("CARGO_BIN_EXE_gpuflame")
    );
    compile(&command, &[], "gpuflame");
    fs::create_dir(built.join("gpuflame-demo")).unwrap();
    compile("int main(void) { return 0; }\n", &[], "gpuflame-demo/demo");
    let libraries = SIMULATED.map(|(_, name)| format!("gpuflame-demo/{name}"));
    for name in libraries.iter().map(String::as_str).chain(["libgpuflame.so", "libgpuflame-preload.so"]) {
        compile(&format!("const char *name(void) {{ return \"{name}\"; }}\n"), &["-shared", "-fPIC"], name);
    }
    fs::write(built.join("THIRD-PARTY.txt"), "licences\n").unwrap();
    built
}

/// Packs the folder `built` into packages in a new folder, with this umask and these environment variables. The
/// interpreter `python` is in an environment that has the package for building wheels.
fn pack(python: &Path, built: &Path, umask: &str, variables: &[(&str, &str)]) -> PathBuf {
    let out = scratch("packages");
    let mut command = Command::new("sh");
    command.args(["-c", "umask \"$1\" && exec \"$2\" \"$3\" \"$4\"", "-", umask]);
    command.arg(root().join("dist/pack")).arg(built).arg(&out).envs(variables.iter().copied());
    run(command.env("PYTHON", python).env("SOURCE_DATE_EPOCH", "1790000000"));
    out
}

/// Returns two folders: that of the stand-in files, and that of the packages made from them. Returns `None` if this
/// machine cannot make the packages.
fn packages() -> Option<&'static (PathBuf, PathBuf)> {
    static PACKAGES: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let packages = PACKAGES.get_or_init(|| {
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            skip("dpkg-deb is not installed");
            return None;
        }
        let python = package_builder()?;
        let built = stand_ins();
        let out = pack(&python, &built, "022", &[]);
        Some((built, out))
    });
    packages.as_ref()
}

fn archive() -> String {
    format!("gpuflame-{VERSION}-x86_64-linux")
}

/// Returns the only file in `folder` whose name has this ending.
fn only(folder: &Path, ending: &str) -> PathBuf {
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0)
}

/// Unpacks all packages into a new folder, which gets the folders `archive`, `deb` and `wheel`.
fn unpacked(out: &Path) -> PathBuf {
    let folder = scratch("unpacked");
    run(Command::new("tar").arg("xzf").arg(out.join(archive() + ".tar.gz")).arg("-C").arg(&folder));
    fs::rename(folder.join(archive()), folder.join("archive")).unwrap();
    run(Command::new("dpkg-deb").arg("-R").arg(only(out, "_amd64.deb")).arg(folder.join("deb")));
    run(Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .arg(only(out, ".whl"))
        .arg(folder.join("wheel")));
    folder
}

/// Returns the paths of all files and links in `folder` and its subfolders.
fn files(folder: &Path) -> BTreeSet<String> {
    let listed =
        run(Command::new("find").current_dir(folder).args([".", "!", "-type", "d", "-printf", "%P\\n"]));
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn archive_deb_and_wheel_have_the_binaries_the_demo_and_all_licences() {
    let Some((built, out)) = packages() else { return };
    let folder = unpacked(out);
    let real = format!("lib/libgpuflame.so.{VERSION}");
    let demo = ["demo"].into_iter().chain(SIMULATED.map(|(_, name)| name));
    let mut pairs: Vec<_> = demo.map(|name| format!("gpuflame-demo/{name}")).collect();
    pairs.extend(["libgpuflame-preload.so".to_owned()]);
    for prefix in ["archive", "deb/usr"].map(|prefix| folder.join(prefix)) {
        let same = |name: &str, source: &str| {
            let (packed, source) = (prefix.join(name), built.join(source));
            assert_eq!(fs::read(&packed).unwrap(), fs::read(source).unwrap(), "{packed:?}");
            assert_eq!(packed.metadata().unwrap().permissions().mode() & 0o777, 0o755, "{packed:?}");
        };
        pairs.iter().for_each(|name| same(&format!("lib/{name}"), name));
        same("bin/gpuflame", "gpuflame");
        same(&real, "libgpuflame.so");
        assert_eq!(prefix.join("lib/libgpuflame.so").canonicalize().unwrap(), prefix.join(&real));
        let names = files(&prefix);
        for name in [
            "include/gpuflame.h",
            "lib/pkgconfig/gpuflame.pc",
            "lib/cmake/gpuflame/gpuflame-config.cmake",
            "share/bash-completion/completions/gpuflame",
            "share/fish/vendor_completions.d/gpuflame.fish",
        ] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        for name in LICENCES {
            assert!(names.contains(&format!("share/doc/gpuflame/{name}")), "{name}: {names:?}");
        }
        assert!(names.iter().any(|name| name.starts_with("share/man/man1/gpuflame-run.1")), "{names:?}");
        assert!(names.iter().any(|name| name.ends_with("/_gpuflame")), "{names:?}");
    }
    let names = files(&folder.join("wheel"));
    for name in pairs.iter().map(String::as_str).chain(["gpuflame", "libgpuflame.so"]) {
        assert!(names.contains(&format!("gpuflame/_bin/{name}")), "{name}: {names:?}");
    }
    for name in ["licenses/LICENSE-APACHE", "licenses/LICENSE-MIT", "extra_metadata/THIRD-PARTY.txt"] {
        assert!(names.contains(&format!("gpuflame-{VERSION}.dist-info/{name}")), "{name}: {names:?}");
    }
    assert!(
        names.contains("gpuflame/py.typed") && names.contains("gpuflame/include/gpuflame.h"),
        "{names:?}"
    );
}

/// Python program that checks the list of files in a wheel. Each row of the list of files is NAME, sha256=DIGEST, SIZE.
const CHECK_RECORD: &str = "
import base64, csv, hashlib, io, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = set(wheel.namelist())
record, = (name for name in names if name.endswith('.dist-info/RECORD'))
rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
assert sorted(row[0] for row in rows) == sorted(names), (rows, names)
for name, digest, size in rows:
    content = wheel.read(name)
    expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()
    assert (digest, size) == (('', '') if name == record else ('sha256=' + expected, str(len(content)))), name
print(len(rows))
";

#[test]
fn the_wheel_lists_the_digest_and_size_of_each_of_its_files() {
    let Some((_, out)) = packages() else { return };
    let rows = run(Command::new("python3").args(["-c", CHECK_RECORD]).arg(only(out, ".whl")));
    assert_eq!(rows.trim(), files(&unpacked(out).join("wheel")).len().to_string());
}

/// Unpacks the source package for pip into a new folder.
fn sources(out: &Path) -> PathBuf {
    let folder = scratch("sources");
    let archive = out.join(format!("gpuflame-{VERSION}.tar.gz"));
    run(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(&folder));
    folder.join(format!("gpuflame-{VERSION}"))
}

#[test]
fn the_sources_for_pip_make_the_same_wheel_and_have_every_manifest() {
    let Some((built, out)) = packages() else { return };
    let (folder, again) = (sources(out), scratch("again"));
    let mut build = Command::new(package_builder().unwrap());
    build.args(["-m", "hatchling", "build", "-t", "wheel", "-d"]).arg(&again).current_dir(&folder);
    build.env("PREBUILT_GPUFLAME", built).env("SOURCE_DATE_EPOCH", "1790000000");
    run(build.env("PREBUILT_GPUFLAME_PLATFORM", "manylinux_2_17_x86_64.manylinux2014_x86_64"));
    assert!(fs::read(only(&again, ".whl")).unwrap() == fs::read(only(out, ".whl")).unwrap());
    // `cargo metadata` reads the manifest of each package in the workspace, and the dependencies between the packages.
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform"]);
    metadata.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH)).current_dir(&folder);
    let read = run(&mut metadata);
    assert!(read.contains("gpuflame-cli") && read.contains("gpusim-selftest"));
}

#[test]
fn the_sources_for_pip_name_cargo_if_it_is_missing() {
    let Some((_, out)) = packages() else { return };
    let mut build = Command::new(package_builder().unwrap());
    build.args(["-m", "hatchling", "build", "-t", "wheel"]).current_dir(sources(out));
    let refused = build.env_remove("CARGO").env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.lines().count() == 1, "{said}");
    assert!(said.contains("cargo, which builds gpuflame, is not on PATH: install Rust"), "{said}");
}

/// Both manifests contain the address of the project, because hatchling takes nothing but the version from Cargo's
/// manifest.
#[test]
fn the_python_package_names_the_repository_of_the_workspace() {
    let project = fs::read_to_string(root().join("pyproject.toml")).unwrap();
    assert!(project.contains(&format!("Source = \"{}\"\n", env!("CARGO_PKG_REPOSITORY"))), "{project}");
    assert!(project.contains(&format!("license = \"{}\"\n", env!("CARGO_PKG_LICENSE"))), "{project}");
}

#[test]
fn the_debian_package_lists_its_files_and_needs_the_c_library_only() {
    let Some((_, out)) = packages() else { return };
    let deb = unpacked(out).join("deb");
    let control = fs::read_to_string(deb.join("DEBIAN/control")).unwrap();
    for line in
        ["Package: gpuflame", &format!("Version: {VERSION}"), "Depends: libc6 (>= 2.17), libgcc-s1 | libgcc1"]
    {
        assert!(control.lines().any(|other| other == line), "{line}\n{control}");
    }
    // In the list, the links libgpuflame.so and libgpuflame.so.0 have no digest.
    let checked = run(Command::new("md5sum").args(["-c", "DEBIAN/md5sums"]).current_dir(&deb));
    assert_eq!(checked.lines().count(), files(&deb.join("usr")).len() - 2, "{checked}");
}

#[test]
fn packages_contain_no_path_of_this_machine_outside_programs() {
    let Some((_, out)) = packages() else { return };
    let folder = unpacked(out);
    let home = std::env::var("HOME").unwrap_or_default() + "/";
    for name in files(&folder) {
        let path = folder.join(&name);
        let bytes = if path.is_symlink() { continue } else { fs::read(&path).unwrap() };
        if bytes.starts_with(b"\x7fELF") {
            continue;
        }
        for machine in [root().to_str().unwrap(), env!("CARGO_BIN_EXE_gpuflame"), &home] {
            let found = bytes.windows(machine.len().max(2)).any(|window| window == machine.as_bytes());
            assert!(!found, "{machine} in {name}");
        }
    }
}

#[test]
fn packages_are_the_same_bytes_whatever_the_umask_locale_time_zone_and_dates_of_files() {
    let Some((built, out)) = packages() else { return };
    let copy = scratch("copy").join("built");
    run(Command::new("cp").arg("-R").arg(built).arg(&copy));
    run(Command::new("find").arg(&copy).args(["-exec", "touch", "-d", "2001-01-01", "{}", "+"]));
    let python = package_builder().unwrap();
    let again =
        pack(&python, &copy, "077", &[("LC_ALL", "C.UTF-8"), ("TZ", "Asia/Tokyo"), ("COLUMNS", "50")]);
    let names = files(out);
    assert_eq!(names, files(&again));
    assert_eq!(names.len(), 5, "archive, package, wheel, sources and sums: {names:?}");
    for name in names {
        assert!(fs::read(out.join(&name)).unwrap() == fs::read(again.join(&name)).unwrap(), "{name} differs");
    }
    run(Command::new("sha256sum").args(["--quiet", "-c", "SHA256SUMS"]).current_dir(&again));
}

#[test]
fn notices_have_the_licence_of_each_linked_crate_once() {
    let zig = scratch("zig");
    fs::create_dir_all(zig.join("lib/libunwind")).unwrap();
    fs::write(zig.join("lib/libunwind/LICENSE.TXT"), "The LLVM Project\n").unwrap();
    let notices =
        run(Command::new("python3").arg(root().join("dist/notices.py")).arg(&zig).current_dir(root()));
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    // These crates are linked into the library, the command, or both.
    for name in ["framehop", "clap", "rusqlite", "libc"] {
        let version = lock.split_once(&format!("name = \"{name}\"\nversion = \"")).unwrap().1;
        let heading = format!("\n{name} {}: ", version.split('"').next().unwrap());
        assert_eq!(notices.matches(&heading).count(), 1, "{heading}");
    }
    // Only tests use the crate jsonschema.
    assert!(!notices.contains("\njsonschema "), "a development dependency is not linked");
    assert!(notices.contains("The LLVM Project"));
    let texts = notices.split("\n-- ").skip(1).filter_map(|text| text.split_once("\n\n")).map(|text| text.1);
    let texts: Vec<_> = texts.map(|text| text.split("\n====").next().unwrap().trim()).collect();
    let distinct: BTreeSet<_> = texts.iter().filter(|text| text.len() > 200).collect();
    assert_eq!(distinct.len(), texts.iter().filter(|text| text.len() > 200).count(), "a text is repeated");
}

/// Installs the command, the library and the demo, all of which were built together with the tests.
fn installed_demo() -> PathBuf {
    let built = scratch("built-demo");
    let demo = built.join("gpuflame-demo");
    fs::create_dir(&demo).unwrap();
    let put = |source: &Path, target: PathBuf| {
        fs::copy(source, target).unwrap();
    };
    put(Path::new(env!("CARGO_BIN_EXE_gpuflame")), built.join("gpuflame"));
    put(&gpuflame(), built.join("libgpuflame.so"));
    put(&preload(), built.join("libgpuflame-preload.so"));
    put(&rust_example("demo"), demo.join("demo"));
    for (library, soname) in SIMULATED {
        put(&gpuflame().with_file_name(library), demo.join(soname));
    }
    let prefix = scratch("installed-demo").join("prefix");
    run(Command::new(root().join("capi/install.sh")).arg(&prefix).arg(&built));
    fs::remove_dir_all(built).unwrap();
    prefix
}

#[test]
fn the_installed_command_records_its_demo_and_names_what_is_missing() {
    let prefix = installed_demo();
    let folder = scratch("demo-run");
    let demo = || {
        let mut command = Command::new(prefix.join("bin/gpuflame"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GPU")) {
            command.env_remove(name);
        }
        command.arg("demo").current_dir(&folder);
        command
    };
    let stderr = folder.join("stderr");
    let ran = demo().stderr(fs::File::create(&stderr).unwrap()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), fs::read_to_string(&stderr).unwrap());
    assert!(ran.status.success(), "{stdout}{stderr}");
    let is_simulated = stdout.contains("on the simulated CUDA stack, whose times are made up");
    assert_eq!(is_simulated, stdout.contains("The GPU was simulated"), "{stdout}");
    assert!(is_simulated || Path::new("/dev/nvidiactl").exists(), "{stdout}{stderr}");
    // In this run, stderr is a file. gpuflame writes messages to a file only if it knows that the file is stderr.
    assert!(stderr.contains("gpuflame: complete: "), "{stdout}{stderr}");
    let table = fs::read_to_string(only(&folder, ".csv")).unwrap();
    // The demo decodes 52 tokens with 4 layers, each of which has 4 matrix products.
    assert!(table.lines().any(|row| row.starts_with("kernel,matmul_kernel,0,832,")), "{table}");

    fs::remove_dir_all(prefix.join("lib/gpuflame-demo")).unwrap();
    let refused = demo().output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.lines().count() == 1, "{said}");
    assert!(
        said.contains("no gpuflame-demo in") && said.contains("cargo run --release --example demo"),
        "{said}"
    );
}
