//! `cost/cost.py --limits` reports those costs of gpuflame that exceed the promised limits. This test passes made-up
//! costs to cost.py, because a test must not depend on measurements of the machine.

use crate::installed::{folder, run};
use crate::support::{Way, root, scratch};

/// Figures of each run: the duration of a step in ns, the time that the process takes to exit in ms, its memory in MiB,
/// and the share of a step for which it waits for the GPU.
const FIGURES: &str = "
off, null, profiler = [(900, 50, 300, 0.5)], [(1000, 50, 300, 0.5)], [(3000, 400, 500, 0.01)]
def said(loop, *gpuflame):
    found = {'off': off, 'null client': null, 'gpuflame': [gpuflame], 'torch.profiler': profiler}
    print(loop, [sentence.removeprefix(f'{loop}: ') for sentence in cost.missed(loop, found)])
said('launch-bound', 1079, 550, 340, 0)
said('launch-bound', 1081, 551, 341, 0)
said('launch-bound', 1104, 50, 300, 0)
said('launches of 4 us', 5000, 550, 340, 0)
said('GPU-bound', 5000, 550, 340, 0.05)
said('GPU-bound', 5000, 550, 340, 0.04)
";

#[test]
#[ignore = "takes a quarter of a minute; .ci/long runs it"]
fn figures_over_the_cost_limits_are_reported() {
    let Some(folder) = folder() else { return };
    let program = scratch("cost").join("limits.py");
    let cost = root().join("tests/pytorch/cost");
    let head = format!("import sys\nsys.path.insert(0, {:?})\nimport cost\n", cost.to_str().unwrap());
    std::fs::write(&program, head + FIGURES).unwrap();
    let told =
        run(folder, program.to_str().unwrap(), Way::None).env("PYTHONDONTWRITEBYTECODE", "1").ok().stdout;
    // In this example, the first limit allows gpuflame to add 80 ns, which is 8 % of the null client's 1,000 ns. The
    // second limit allows gpuflame to add 100 ns, which is 5 % of the 2,000 ns that torch.profiler adds.
    let beside = "beside the null client, %: 8.1, and not 8 at most";
    let expected = format!(
        "launch-bound []\n\
         launch-bound ['{beside}', 'end later, ms: 501.0, and not 500 at most', 'memory more, MiB: 41.0, and not 40 at most']\n\
         launch-bound ['beside the null client, %: 10.4, and not 8 at most', 'of what torch.profiler adds, %: 5.2, and not 5 at most']\n\
         launches of 4 us []\n\
         GPU-bound []\n\
         GPU-bound ['gpuflame: 4.0% of a step are waited for the GPU, and not 5% at least']\n"
    );
    assert_eq!(told, expected);
}
