//! The test cases, each with the right answer. Each fault is planted in three strengths. In a fourth case the fault is
//! planted together with a second fault, whose cost is larger. For a healthy run, the right answer is that there is no
//! fault.

use std::path::Path;
use std::sync::OnceLock;

use crate::list::{FAULTS, VARIETIES, fault};
use crate::training_loop::{Amounts, BatchCopy, Culprit, Fault, Plan, Planted, SHARES, Shape};

/// A simulated run, and the faults that gpuflame must find in it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) plan: Plan,
    /// The planted faults, sorted by cost, largest first. Faults in the trace's data have no cost and are last.
    pub(crate) truth: Vec<Truth>,
}

/// A fault in a run, and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub(crate) id: &'static str,
    pub(crate) culprit: Culprit,
    /// Time by which the run would be shorter without the fault.
    pub(crate) cost_ns: i64,
    /// Cost of the fault as a share of the duration of the run.
    pub(crate) share: f64,
}

impl Case {
    fn new(name: String, plan: Plan) -> Self {
        let length_ns = plan.length_ns();
        let truth = |number: usize| {
            let Fault { id, culprit, .. } = *plan.planted[number].fault;
            let cost_ns = plan.cost_ns(number);
            Truth { id, culprit, cost_ns, share: cost_ns as f64 / length_ns as f64 }
        };
        let mut truth: Vec<_> = (0..plan.planted.len()).map(truth).collect();
        truth.sort_by_key(|truth| -truth.cost_ns);
        Self { name, plan, truth }
    }

    /// Returns another run of the same program, in which the noise is different.
    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        Self::new(self.name.clone(), Plan { seed, ..self.plan.clone() })
    }

    /// Writes one trace per rank, and returns the names of the trace files.
    pub(crate) fn write(&self, folder: &Path) -> Vec<String> {
        self.plan.simulate(true).write(folder)
    }
}

/// Returns all cases with planted faults.
pub(crate) fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let half = FAULTS.len() / 2;
        let build = |faults: &'static [Fault]| faults.iter().flat_map(cases_of).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| build(&FAULTS[..half]));
            let mut second = build(&FAULTS[half..]);
            let mut all = first.join().unwrap();
            all.append(&mut second);
            let name = |fault: &Fault| format!("{}-{}", fault.id, fault.variety);
            all.extend(VARIETIES.iter().map(|fault| Case::new(name(fault), alone(fault, 1))));
            all
        })
    })
}

fn cases_of(fault: &'static Fault) -> Vec<Case> {
    let mut cases = Vec::new();
    for (strength, name) in ["weak", "middle", "strong"].into_iter().enumerate() {
        cases.push(Case::new(format!("{}-{name}", fault.id), alone(fault, strength)));
    }
    cases.push(Case::new(format!("{}-after-{}", fault.id, fault.partner), combined(fault)));
    cases
}

/// Returns the seed for the noise, which is different for each fault.
fn seed(fault: &Fault) -> u64 {
    fault.id.bytes().fold(1, |seed, byte| (seed * 31 + u64::from(byte)) % 1_000_003)
}

/// Sizes of training loops: number of steps, number of layers, and duration of a kernel in ns.
const SHAPES: [(usize, usize, f64); 3] = [(34, 17, 150_000.0), (30, 20, 180_000.0), (40, 14, 240_000.0)];

fn alone(fault: &'static Fault, strength: usize) -> Plan {
    let planted = vec![Planted { fault, amount: 0.0, on: true }];
    let (steps, layers, kernel_ns) = SHAPES[(strength + fault.id.len()) % SHAPES.len()];
    let shape = Shape { steps, layers, kernel_ns, ..Shape::default() };
    let mut plan = Plan { shape, seed: seed(fault) + strength as u64, planted };
    set_amount(&mut plan, 0, strength);
    plan
}

/// Returns a plan with two faults: the planted fault in middle strength, and its partner in full strength.
fn combined(planted: &'static Fault) -> Plan {
    let mut plan = alone(planted, 1);
    plan.seed += 10;
    plan.planted[0].on = false;
    plan.planted.push(Planted { fault: fault(planted.partner), amount: 0.0, on: true });
    set_amount(&mut plan, 1, 2);
    plan.planted[0].on = true;
    set_amount(&mut plan, 0, 1);
    plan
}

/// Sets the amount of the planted fault with index `number` so that the cost of the fault is `SHARES[strength]` of the
/// run's duration. Doubles the amount until the fault costs this share, and then finds the exact amount by bisection.
fn set_amount(plan: &mut Plan, number: usize, strength: usize) {
    let (mut low, most) = match plan.planted[number].fault.amounts {
        Amounts::Fixed(amounts) => return plan.planted[number].amount = amounts[strength],
        Amounts::Between(low, high) => (low, high),
    };
    let mut share_of = |amount: f64| {
        plan.planted[number].amount = amount;
        plan.cost_ns(number) as f64 / plan.length_ns() as f64
    };
    let mut high = low;
    while high < most && share_of(high) < SHARES[strength] {
        (low, high) = (high, (high * 2.0).min(most));
    }
    for _ in 0..10 {
        let amount = f64::midpoint(low, high);
        let share = share_of(amount);
        if (share / SHARES[strength] - 1.0).abs() < 0.02 {
            return;
        }
        *if share < SHARES[strength] { &mut low } else { &mut high } = amount;
    }
}

/// Returns cases in which no fault is planted.
pub(crate) fn healthy() -> Vec<Case> {
    let shape = Shape::default;
    [
        ("training", shape()),
        ("training-unthrottled", Shape { is_throttled: false, ..shape() }),
        ("training-many-short-steps", Shape { steps: 120, layers: 5, ..shape() }),
        ("training-many-layers", Shape { layers: 60, steps: 12, ..shape() }),
        ("inference", Shape { has_backward: false, steps: 60, ..shape() }),
        (
            "inference-large-batches",
            Shape { has_backward: false, steps: 40, batch_bytes: 48 << 20, ..shape() },
        ),
        ("graphs", Shape { has_backward: false, has_graphs: true, steps: 60, ..shape() }),
        ("two-gpus", Shape { devices: 2, layers: 10, ..shape() }),
        ("two-ranks", Shape { ranks: 2, ..shape() }),
        ("four-ranks-little-communication", Shape { ranks: 4, layers: 12, all_reduce_ns: 3e5, ..shape() }),
        ("rare-evaluation", Shape { evaluation_interval: 10, ..shape() }),
        ("long-start-up", Shape { startup_ns: 4e9, ..shape() }),
        ("long-kernels", Shape { kernel_ns: 900_000.0, batch_copy: BatchCopy::Pinned, ..shape() }),
    ]
    .into_iter()
    .enumerate()
    .map(|(number, (name, shape))| {
        let plan = Plan { shape, seed: 500 + number as u64, planted: Vec::new() };
        Case::new(format!("healthy-{name}"), plan)
    })
    .collect()
}
