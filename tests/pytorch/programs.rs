//! Runs each program under gpuflame. No record may be lost, and every stack must equal the stack that libgcc finds. All
//! sums must equal those of the truth file. The program must behave as it does without gpuflame.

use std::collections::BTreeMap;

use crate::installed::{devices, folder, packages, run, triton};
use crate::support::{Done, Way, command, gpuflame, scratch};
use serde_json::Value;

/// Number of runs and total duration in ns of GPU work of one kind. The key consists of the kind, and the symbol (for
/// kernels) or the direction (for copies).
pub(crate) type Works = BTreeMap<(String, String), (u64, u64)>;

/// Returns the GPU work that ran, according to the simulation's summary.
pub(crate) fn ran_by(done: &Done, truth: &str) -> Works {
    let mut sums = Works::new();
    for line in done.file(truth).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        if row.get("totals").is_some() {
            continue;
        }
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        let kind = match &text("kind")[..] {
            "kernel" => "kernel",
            "memset" => "set",
            _ => "copy",
        };
        let sum = sums.entry((kind.to_owned(), text("name") + &text("copy"))).or_default();
        *sum = (sum.0 + row["count"].as_u64().unwrap(), sum.1 + row["total_ns"].as_u64().unwrap());
    }
    sums
}

/// Returns the GPU work that ran, according to gpuflame's table.
pub(crate) fn told_by(done: &Done, table: &str) -> Works {
    let table = done.file(table);
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let (kind, name, symbol) = (column("kind"), column("name"), column("symbol"));
    let (count, nanos) = (column("count"), column("total_ns"));
    let mut sums = Works::new();
    for row in reader.records().map(Result::unwrap) {
        let what = match &row[kind] {
            "copy" => &row[name],
            _ => &row[symbol],
        };
        let sum = sums.entry((row[kind].to_owned(), what.to_owned())).or_default();
        *sum = (sum.0 + row[count].parse::<u64>().unwrap(), sum.1 + row[nanos].parse::<u64>().unwrap());
    }
    sums
}

/// Asserts that in `processes` processes, each stack was captured a second time with libgcc, and that both stacks were
/// the same.
pub(crate) fn assert_verified(done: &Done, processes: usize) {
    let verified = done.ledger("verified: ");
    let same = " captured again, 0 differ from a walk of every frame, 0 differ from libgcc's walk";
    assert!(verified.len() == processes && verified.iter().all(|it| it.ends_with(same)), "{}", done.stderr);
}

fn check(done: &Done, alone: &Done) {
    assert_eq!((done.code, &done.stdout), (alone.code, &alone.stdout), "{}", done.stderr);
    let truth = done.truth();
    let count = truth.count("count");
    assert!(count > 100 && truth.count("delivered") == count, "{count}");
    for what in ["launches", "activities"] {
        let (total, parts) = done.sum(what);
        assert_eq!(parts["matched"], total, "{}", done.stderr);
    }
    assert_eq!(done.sum("activities").0, count);
    let stacks = done.folded();
    assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), truth.count("total_ns"));
    assert_verified(done, 1);
    assert!(done.ledger("lost: ")[0].contains(" stacks_guessed 0, stacks_cut 0, "), "{}", done.stderr);
    assert!(done.ledger("lost: ")[0].contains(" python_dropped 0, python_unsure 0"), "{}", done.stderr);
    let mut ran = ran_by(done, "truth.json");
    // Launches that the driver refused are in a separate row of gpuflame's table.
    let failed = truth.count("failed_launches");
    (failed > 0).then(|| ran.insert(("lost".to_owned(), String::new()), (failed, 0)));
    assert_eq!(told_by(done, "out.csv"), ran);
}

/// Driver functions that programs look up but can do without. PyTorch looks up this function for memory that is mapped
/// in pieces.
const DONE_WITHOUT: [&str; 1] = ["cuMemRetainAllocationHandle"];

/// Asserts that a run with `GPUSIM_LOG=missing` called no missing function except those in `DONE_WITHOUT`. A function
/// is missing if it is in neither the simulated CUDA stack nor a stand-in library.
pub(crate) fn assert_nothing_is_missing(done: &Done) {
    let names = done
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("gpusim: ")?.strip_suffix(" is not simulated"));
    let missing: Vec<_> = names.filter(|name| !DONE_WITHOUT.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Both ways of loading gpuflame, each with one of two CUPTI versions. In `OTHER`, the versions are swapped.
pub(crate) const ONE: [(Way, &str); 2] = [(Way::Injected, "13.2"), (Way::Preloaded, "13.0")];
pub(crate) const OTHER: [(Way, &str); 2] = [(Way::Injected, "13.0"), (Way::Preloaded, "13.2")];

/// All combinations of a way of loading gpuflame and a CUPTI version.
fn every_way() -> Vec<(Way, &'static str)> {
    [ONE, OTHER].concat()
}

/// Runs a program without gpuflame; then, for each pair of loading way and CUPTI version in `runs`, runs it with
/// gpuflame.
fn check_program(program: &str, runs: &[(Way, &str)]) -> Vec<Done> {
    check_program_with(program, runs, "")
}

/// Checks a program like `check_program`, with simulated faults.
fn check_program_with(program: &str, runs: &[(Way, &str)], faults: &str) -> Vec<Done> {
    let (Some(folder), Some(packages)) = (folder(), packages(program)) else { return Vec::new() };
    let cache = scratch("triton");
    let run = |way| {
        let run = run(folder, program, way).env("GPUSIM_NDEV", devices(program)).env("GPUSIM_FAULTS", faults);
        run.env("PYTHONPATH", packages).env("TRITON_CACHE_DIR", &cache)
    };
    let alone = run(Way::None).env("GPUSIM_LOG", "missing").ok();
    assert_nothing_is_missing(&alone);
    let observed = |(way, version): &(Way, &str)| {
        let run = run(*way).env("GPUSIM_CUPTI_VERSION", version).env("GPUFLAME_VERIFY", "1");
        let done = run.env("NVTX_INJECTION64_PATH", gpuflame()).ok();
        check(&done, &alone);
        done
    };
    runs.iter().map(observed).collect()
}

/// Triton compiles kernels and launches them through a launcher that it generates. The kernels must be under the
/// function that calls this launcher. `.ci/long` installs Triton.
#[test]
fn triton_kernels_are_under_the_functions_that_launch_them() {
    for done in check_program("triton_kernels.py", &every_way()) {
        let mut launched = 0;
        for (frames, _) in done.folded() {
            let caller = match frames.last().unwrap().as_str() {
                "[GPU_Kernel]add" => "Block.forward (triton_kernels.py:28)",
                "[GPU_Kernel]scale" => "Block.backward (triton_kernels.py:31)",
                _ => continue,
            };
            assert!(frames[0].starts_with("<module> (triton_kernels.py:"), "{frames:?}");
            assert_eq!(frames[2], caller, "{frames:?}");
            assert_eq!(frames[frames.len() - 2], "cuLaunchKernelEx", "{frames:?}");
            launched += 1;
        }
        assert_eq!(launched, 2);
    }
}

/// `.ci/long` installs Transformers.
#[test]
fn transformers_models_are_recorded_completely() {
    check_program("transformers_models.py", &every_way());
}

/// Checks the combinations of loading way and CUPTI version that the other tests do not run.
#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn every_program_is_recorded_completely_by_each_entry_with_each_cupti_version() {
    for program in ["train.py", "loader.py", "pressure.py"] {
        check_program(program, &OTHER);
    }
    for program in ["decode.py", "ranges.py", "devices.py"] {
        check_program(program, &ONE);
    }
}

#[test]
#[ignore = "takes two minutes; .ci/long runs it"]
fn kernels_of_a_compiled_model_are_under_the_model() {
    let (Some(folder), Some(triton)) = (folder(), triton()) else { return };
    // The compiler of the model runs only in the first run, because later runs find its output in this cache.
    let cache = scratch("compiled");
    for mode in ["default", "reduce-overhead"] {
        let run = |way| {
            let run = run(folder, "compiled.py", way).arg(mode).env("PYTHONPATH", triton);
            let run = run.env("TORCHINDUCTOR_COMPILE_THREADS", "1").env("TORCHINDUCTOR_CACHE_DIR", &cache);
            run.env("TRITON_CACHE_DIR", cache.join("triton"))
        };
        drop(run(Way::None).ok());
        let alone = run(Way::None).ok();
        for (way, version) in every_way() {
            let run = run(way).env("GPUSIM_CUPTI_VERSION", version).env("GPUFLAME_VERIFY", "1");
            let done = run.ok();
            check(&done, &alone);
            assert_compiled(&done, mode == "reduce-overhead");
        }
    }
}

/// Asserts that the kernels of a compiled model are under the expected frames, and that all kernels in graphs are under
/// the code that captured them.
fn assert_compiled(done: &Done, has_graphs: bool) {
    let stacks = done.folded();
    let kernels: Vec<_> =
        stacks.iter().filter(|(frames, _)| frames.last().unwrap().contains("]triton_")).collect();
    let has = |frames: &[String], begin: &str| frames.iter().any(|frame| frame.starts_with(begin));
    let of =
        |mark: &str| kernels.iter().filter(|(frames, _)| frames.iter().any(|f| f.starts_with(mark))).count();
    // Inductor's code launches these kernels. The code is in the function `call` of a module that Inductor wrote.
    assert!(
        kernels.len() > 10 && kernels.iter().all(|(frames, _)| has(frames, "Runner.call (")),
        "{kernels:#?}"
    );
    assert!(
        kernels.iter().all(|(frames, _)| !has(frames, "dynamo_") && !has(frames, "[unknown]")),
        "{kernels:#?}"
    );
    // The forward pass is under the model's function, and the backward pass is on a thread of autograd.
    assert!(
        of("Gpt.forward (model.py:") > 5 && of("torch::autograd::Engine::thread_main") > 2,
        "{kernels:#?}"
    );
    assert_eq!(of("[graph]") > 5, has_graphs, "{kernels:#?}");
    for (frames, _) in &kernels {
        let Some(graph) = frames.iter().position(|frame| frame == "[graph]") else { continue };
        let (launch, capture) = frames.split_at(graph);
        assert!(
            has(launch, "at::cuda::CUDAGraph::replay") && has(capture, "CachingAutotuner.run"),
            "{frames:#?}"
        );
    }
    let (nodes, parts) = done.sum("graph activities");
    assert_eq!(parts["created"], nodes, "{}", done.stderr);
    assert_eq!(nodes > 50, has_graphs, "{nodes}");
}

#[test]
fn a_training_step_is_recorded_completely() {
    for done in check_program("train.py", &ONE) {
        // The backward pass runs on a thread of autograd. The stacks of that thread begin at the thread's start
        // function.
        let backward =
            |frames: &[String]| frames.iter().any(|frame| frame.contains("autograd::Engine::thread_main"));
        let gemms = |frames: &[String]| frames.last().unwrap().starts_with("[GPU_Kernel]sm90_xmma_gemm_bf16");
        let stacks = done.folded();
        assert!(stacks.iter().any(|(frames, _)| backward(frames) && gemms(frames)));
        // In the backward pass, kernels are under the node that computes the gradient, and under the operators that the
        // node calls. The frames of autograd's engine are not shown.
        let has = |frames: &[String], name: &str| frames.iter().any(|frame| frame == name);
        let node = |frames: &&(Vec<String>, u64)| has(&frames.0, "AddmmBackward0") && gemms(&frames.0);
        assert!(stacks.iter().any(|it| node(&it)), "{stacks:#?}");
        for (frames, _) in stacks.iter().filter(|(frames, _)| backward(frames)) {
            let node =
                frames.iter().position(|frame| frame.contains("autograd::Engine::thread_main")).unwrap() + 1;
            let name = frames[node].as_str();
            // In the functions of these namespaces, autograd's engine adds gradients and converts them to the required
            // type.
            let is_engine = ["torch::autograd::InputBuffer::", "torch::autograd::validate_outputs"];
            let is_engine = is_engine.iter().any(|begin| name.starts_with(begin));
            assert!(name.ends_with("Backward0") || name == "AccumulateGrad" || is_engine, "{frames:#?}");
        }
        // The stack must consist of the functions that the program's author knows, from a line that the author wrote to
        // the kernel.
        let line = [
            "<module> (train.py:1)",
            "main (train.py:29)",
            "step (train.py:17)",
            "Block.forward (model.py:40)",
            "LayerNorm.forward (normalization.py:",
            "aten::layer_norm",
            "cudaLaunchKernel",
            "[GPU_Kernel]vectorized_layer_norm_kernel",
        ];
        let reads = |(frames, _): &(Vec<String>, u64)| {
            let mut left = frames.iter();
            let are_next = |parts: &[&str]| {
                let is_it = |(frame, part): (&String, &&str)| frame.starts_with(*part);
                frames.windows(parts.len()).any(|some| some.iter().zip(parts).all(is_it))
            };
            are_next(&line[3..6]) && line.iter().all(|part| left.any(|frame| frame.starts_with(part)))
        };
        assert!(stacks.iter().any(reads), "{stacks:#?}");
        // The stack must not show frames of an operator's implementation, except frames of a library that the operator
        // calls. The stack must also not show a C++ function that has the operator's name and calls the operator.
        for (frames, _) in &stacks {
            assert_eq!(native_in_operator(frames), None, "{frames:#?}");
            assert!(
                !frames.iter().any(|frame| frame.starts_with("cross_entropy (functional.py:")),
                "{frames:#?}"
            );
        }
        let loss = ["loss_of (train.py:", "aten::cross_entropy_loss"];
        let is_loss = |(frames, _): &(Vec<String>, u64)| {
            frames.windows(2).any(|two| two[0].starts_with(loss[0]) && two[1] == loss[1])
        };
        assert!(stacks.iter().any(is_loss), "{stacks:#?}");
        // All stacks outside the backward pass begin at the program's module.
        for (frames, _) in stacks.iter().filter(|(frames, _)| !backward(frames)) {
            assert!(frames[0].starts_with("<module> (train.py:"), "{frames:?}");
        }
        // cuBLAS has no symbols. The functions that call cuBLAS must be shown nevertheless.
        let callers = stacks.iter().filter(|(frames, _)| gemms(frames));
        callers.for_each(|(frames, _)| {
            assert!(frames.iter().any(|frame| frame.starts_with("at::cuda::blas::")), "{frames:?}")
        });
    }
}

/// Returns the first frame of ATen's implementation inside an operator. Such a frame should be hidden, because it adds
/// nothing to the operator's name.
fn native_in_operator(frames: &[String]) -> Option<&String> {
    let operator = frames.iter().position(|frame| frame.starts_with("aten::"))?;
    frames[operator..].iter().find(|frame| frame.starts_with("at::native::"))
}

#[test]
fn captured_graphs_are_under_the_stacks_of_their_capture() {
    for done in check_program("decode.py", &OTHER) {
        let (nodes, parts) = done.sum("graph activities");
        assert_eq!(parts["created"], nodes, "{}", done.stderr);
        assert!(nodes > 1000, "{nodes}");
        let captured =
            done.folded().into_iter().filter(|(frames, _)| frames.iter().any(|frame| frame == "[graph]"));
        for (frames, _) in captured {
            let graph = frames.iter().position(|frame| frame == "[graph]").unwrap();
            let (launch, capture) = frames.split_at(graph);
            assert!(launch.iter().any(|frame| frame == "at::cuda::CUDAGraph::replay"), "{frames:?}");
            // Every graph node is under the line that captured it, with function name and line number.
            let site = ["Decoder.capture (decode.py:", "Decoder.forward_once (decode.py:"];
            assert!(capture[1..].iter().zip(site).all(|(frame, site)| frame.starts_with(site)), "{frames:?}");
            // The graph node is from an operator of the model, or it sets up the random numbers of the graph.
            assert!(capture.iter().any(|frame| frame.starts_with("aten::")), "{frames:?}");
        }
    }
}

/// With GPUSIM_MATH=1, the simulated GPU computes results. The program computes the same results itself, with integers,
/// and compares them.
#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn matrix_products_are_computed_if_gpusim_math_is_set() {
    let Some(folder) = folder() else { return };
    for way in [Way::None, Way::Injected] {
        let done = run(folder, "words.py", way).env("GPUSIM_MATH", "1").ok();
        let lines: Vec<&str> = done.stdout.lines().collect();
        let [host, one, two, others @ ..] = &lines[..] else { panic!("{lines:?}") };
        let words = host.strip_prefix("host ").unwrap();
        assert_eq!([one, two].map(|gpu| gpu.strip_prefix("gpu ")), [Some(words); 2]);
        assert_eq!(others, ["all True", "layer True", "vector True", "vector True"]);
        if way == Way::Injected {
            assert_eq!(told_by(&done, "out.csv"), ran_by(&done, "truth.json"));
        }
    }
}

/// Workers of a DataLoader are child processes. gpuflame ignores forked workers. In spawned workers gpuflame is loaded,
/// but these workers do not use the GPU.
#[test]
fn a_data_loader_with_workers_is_recorded_completely() {
    check_program("loader.py", &ONE);
}

#[test]
fn nvtx_ranges_of_the_program_and_of_operators_are_frames() {
    for done in check_program("ranges.py", &OTHER) {
        let stacks = done.folded();
        let share = |range: &str| {
            let is_it = |frame: &String| frame.starts_with("[range") && frame.contains(range);
            let within = stacks.iter().filter(|(frames, _)| frames.iter().any(is_it));
            within.map(|(_, nanos)| nanos).sum::<u64>()
        };
        // Each of the program's own NVTX ranges occurs 4 times. The truth file has these ranges too, because the
        // program reports them to the simulation.
        let sites = done.truth().sums;
        let ran =
            |site: &str| sites.iter().filter(|((at, _), _)| at == site).map(|(_, nanos)| nanos).sum::<u64>();
        for range in ["prefill", "decode"] {
            assert!(ran(range) > 0);
            assert_eq!(share(range), ran(range), "{range}");
        }
        // The NVTX ranges for operators also occur 4 times each, and the functions of these operators are in the stack
        // as well. If GPU work was launched outside all ranges, it is not under any range.
        assert!(ran("operators") > 0);
        assert_eq!(share("aten::"), ran("operators"));
        for operator in
            ["aten::linear", "aten::layer_norm", "aten::gelu", "aten::scaled_dot_product_attention"]
        {
            let of_range =
                |frame: &String| frame.starts_with("[range") && frame.contains(&format!("{operator},"));
            let within = |frames: &[String]| frames.iter().any(of_range);
            let both =
                stacks.iter().filter(|(frames, _)| within(frames) || is_of_operators(frames, operator));
            for (frames, nanos) in both.clone() {
                assert!(
                    *nanos > 0 && within(frames) && frames.iter().any(|frame| frame == operator),
                    "{frames:?}"
                );
            }
            assert!(both.count() > 0, "{operator}");
        }
    }
}

/// Under `emit_nvtx`, each NVTX range of the backward pass contains the sequence number of its forward operator.
#[test]
fn the_backward_pass_is_placed_under_the_functions_that_called_its_operators() {
    let Some(folder) = folder() else { return };
    let run = run(folder, "train.py", Way::Injected).arg("nvtx").env("GPUFLAME_FORMATS", "gfr,folded");
    let run = run.env("GPUFLAME_BACKWARD", "forward").env("GPUFLAME_PYTHON", "only");
    let done = run.env("NVTX_INJECTION64_PATH", gpuflame()).ok();
    let folded = |flags: &[&str]| {
        let command = [&["flamegraph", "out.gfr", "--format", "folded"], flags].concat();
        let ran = command::gpuflame(&done.folder, command).ok();
        let stacks: Vec<(Vec<String>, u64)> = ran
            .stdout
            .lines()
            .filter(|line| !line.starts_with("# "))
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(stack, nanos)| (stack.split(';').map(str::to_owned).collect(), nanos.parse().unwrap()))
            .collect();
        (stacks, ran.stderr)
    };
    let (plain, _) = folded(&["--keep-numbers"]);
    let (hung, said) = folded(&["--keep-numbers", "--backward", "forward"]);
    let sum = |stacks: &[(Vec<String>, u64)], is: &dyn Fn(&[String]) -> bool| -> u64 {
        stacks.iter().filter(|(frames, _)| is(frames)).map(|(_, nanos)| nanos).sum()
    };
    let is_engine = |frames: &[String]| frames[0].contains("autograd::Engine::thread_main");
    let is_tied = |frames: &[String]| frames.iter().any(|frame| frame == "[backward]");
    let (all, tied) = (sum(&plain, &is_engine), sum(&hung, &is_tied));
    assert_eq!(sum(&plain, &|_| true), sum(&hung, &|_| true), "no time is lost from the flame graph");
    assert_eq!(tied + sum(&hung, &is_engine), all);
    let share = 100.0 * tied as f64 / all as f64;
    assert!(share > 50.0, "{share}: {said}");
    assert!(
        said.contains(&format!(
            "{share:.1} % of the GPU time of backward operators is drawn under forward operators"
        )),
        "{said}"
    );
    // With `--all-frames`, all frames are shown, and the time of each kernel stays the same.
    let (whole, _) = folded(&["--keep-numbers", "--all-frames"]);
    let by_kernel = |stacks: &[(Vec<String>, u64)]| {
        let mut sums = BTreeMap::<String, u64>::new();
        stacks.iter().for_each(|(frames, ns)| *sums.entry(frames.last().unwrap().clone()).or_default() += ns);
        sums
    };
    assert_eq!(by_kernel(&plain), by_kernel(&whole));
    for begin in ["at::native::", "layer_norm (functional.py:", "Module._call_impl (module.py:"] {
        let count = |stacks: &[(Vec<String>, u64)]| {
            stacks.iter().filter(|(frames, _)| frames.iter().any(|frame| frame.starts_with(begin))).count()
        };
        assert!(count(&whole) > 10 && count(&plain) == 0, "{begin} {} {}", count(&whole), count(&plain));
    }
    // The expected functions are in the stack in `plain` of the operator that has the same name and sequence number as
    // the node.
    let numbered = |frame: &str, before: &str| -> Option<String> {
        let text = frame.strip_prefix("[range]")?.strip_prefix(before)?;
        Some(text.split_once(", op_id").map_or(text, |(text, _)| text).to_owned())
    };
    let mut compared = 0;
    for (frames, _) in hung.iter().filter(|(frames, _)| is_tied(frames)) {
        let mark = frames.iter().position(|frame| frame == "[backward]").unwrap();
        assert!(frames[0].starts_with("<module> (train.py:"), "{frames:#?}");
        if frames[mark + 1] == "AddmmBackward0" {
            let number = frames.iter().find_map(|frame| numbered(frame, "AddmmBackward0, ")).unwrap();
            let mut operators = plain.iter().filter(|(frames, _)| {
                !is_engine(frames)
                    && frames.iter().any(|frame| numbered(frame, "aten::addmm, ").as_ref() == Some(&number))
            });
            let is_caller = |(caller, _): &(Vec<String>, u64)| caller.starts_with(&frames[..mark]);
            assert!(operators.any(is_caller), "{number} {frames:#?}");
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
    // The same functions must have the same time in the file of each exporter if native frames are left out.
    let (only, said_of_only) = folded(&["--keep-numbers", "--python", "only", "--backward", "forward"]);
    let share_of =
        |text: &str| text.lines().find(|line| line.contains(" is drawn under ")).map(str::to_owned);
    assert_eq!(share_of(&said_of_only), share_of(&said));
    for (drawn, by) in [(only, "the command"), (done.folded(), "the process itself")] {
        assert_eq!(sum(&drawn, &is_tied), tied, "drawn by {by}");
        for (frames, _) in drawn.iter().filter(|(frames, _)| is_tied(frames)) {
            let is_seen =
                |frame: &String| frame.starts_with('[') || frame.starts_with("cu") || frame.contains(".py:");
            assert!(frames.iter().all(is_seen), "{by}: {frames:#?}");
            let mark = frames.iter().position(|frame| frame == "[backward]").unwrap();
            assert!(frames[mark - 1].contains(".py:"), "{by}: {frames:#?}");
        }
    }
    assert!(
        hung.iter()
            .any(|(frames, _)| is_tied(frames) && frames.iter().any(|frame| frame == "AddmmBackward0"))
    );
}

/// Returns whether a stack is from that part of the program in which every operator has an NVTX range, and whether it
/// contains the function of this operator.
fn is_of_operators(frames: &[String], operator: &str) -> bool {
    let range = |frame: &String| frame.starts_with("[range") && frame.contains("aten::");
    frames.iter().any(range) && frames.iter().any(|frame| frame == operator)
}

/// In this program, exceptions propagate through launches, memory runs out, and a forked child ends with `_exit`.
#[test]
#[ignore = "takes half a minute; .ci/long runs it"]
fn a_program_that_raises_exceptions_and_exhausts_memory_is_recorded_completely() {
    check_program("pressure.py", &ONE);
}

/// Failed launches make PyTorch throw exceptions inside operators, in matrix products and on autograd's threads. Each
/// exception unwinds the stack of its launch.
#[test]
fn launches_that_fail_inside_pytorch_raise_its_errors_and_are_counted() {
    for done in check_program_with("refused.py", &ONE, "launch_fail:every=97") {
        let failed = done.truth().count("failed_launches");
        let refused = done.stdout.lines().filter(|line| !line.ends_with("went well")).count();
        let words = [
            "forward CUDA error: the launch",
            "forward went well",
            "step CUDA error: the launch",
            "step CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
            "step went well",
        ];
        assert!(words.iter().all(|word| done.stdout.contains(word)), "{}", done.stdout);
        assert!(failed > 10 && refused > 10, "{failed} {}", done.stdout);
        let said = format!("launches_failed {failed}, ");
        assert!(done.ledger("lost: ")[0].contains(&said), "{said}{}", done.stderr);
    }
}

#[test]
#[ignore = "takes half a minute; .ci/long runs it"]
fn two_devices_in_one_process_are_reported_separately() {
    for done in check_program("devices.py", &OTHER) {
        for device in ["GPU 0:", "GPU 1:"] {
            assert_eq!(done.ledger(device).len(), 1, "{}", done.stderr);
        }
        assert!(done.folded().iter().any(|(frames, _)| frames.last().unwrap() == "[GPU1_Memcpy PtoP]"));
    }
}

/// PyTorch reads the properties of the simulated H100 from `cudaDeviceProp`, with the wheel's layout. The expected
/// numbers are those of `tests/gpusim/selftest/tests/devices.rs`, which names NVIDIA's documents. If the GPU had no
/// opt-in shared memory, PyTorch would not use its own attention kernels.
#[test]
fn pytorch_finds_an_h100_and_a_kernel_for_attention() {
    let Some(folder) = folder() else { return };
    let h100 = "major 9\nminor 0\nmulti_processor_count 132\ntotal_memory 85899345920\nwarp_size 32\nmax_threads_per_block 1024\n\
                max_threads_per_multi_processor 2048\nregs_per_multiprocessor 65536\nshared_memory_per_block 49152\n\
                shared_memory_per_block_optin 232448\nshared_memory_per_multiprocessor 233472\nL2_cache_size 52428800\n\
                memory_bus_width 5120\nis_integrated 0\nis_multi_gpu_board 0\ncapability 9 0\nbfloat16 1\n";
    let done = run(folder, "properties.py", Way::Injected).ok();
    assert_eq!(done.stdout, h100);
    let kernels = ran_by(&done, "truth.json");
    assert!(kernels.keys().any(|(_, name)| name.contains("flash_fwd_kernel")), "{kernels:?}");
}
