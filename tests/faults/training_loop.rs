//! The training loop that every case runs. Each fault acts at a certain place in the loop. At its place, a fault does
//! something in the wrong way (`on`), and the loop without the fault does it in the right way. A fault's cost is the
//! difference between the duration of a run with the wrong way and the duration of a run with the right way. The runs
//! with the wrong way and with the right way have the same noise.

use crate::traces::{COPY_STREAM, DEFAULT_STREAM, Event, NCCL_STREAM, Rank, World};

pub(crate) const LOAD: &str = "train.py(57): load_batch";
pub(crate) const FORWARD: &str = "model.py(30): forward";
pub(crate) const BACKWARD: &str = "train.py(64): backward";
pub(crate) const OPTIMIZER: &str = "optimizer.py(21): step";
/// Number that the first step in the trace has.
const FIRST_STEP: usize = 5;
/// Duration of an ordinary kernel, in ns.
const KERNEL_NS: f64 = 180_000.0;

/// Sizes and features of the training loop, without faults.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    pub(crate) devices: u32,
    pub(crate) steps: usize,
    /// Number of kernels in the forward pass.
    pub(crate) layers: usize,
    pub(crate) has_backward: bool,
    pub(crate) kernel_ns: f64,
    pub(crate) batch_bytes: u64,
    pub(crate) batch_copy: BatchCopy,
    /// `all_reduce_ns` is the duration of the all-reduce in each step, in ns. `is_all_reduce_last` is true if the
    /// all-reduce follows the backward pass, and false if the all-reduce runs during that pass.
    pub(crate) all_reduce_ns: f64,
    pub(crate) is_all_reduce_last: bool,
    /// Share of the steps in which device 0 does the work of device 1.
    pub(crate) idle_share: f64,
    /// Whether the host waits in each step for the GPU work of the step before the previous one.
    pub(crate) is_throttled: bool,
    pub(crate) startup_ns: f64,
    /// Number of steps between two evaluations, or 0 for no evaluations.
    pub(crate) evaluation_interval: usize,
    pub(crate) has_graphs: bool,
    pub(crate) has_flows: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BatchCopy {
    Pinned,
    Pageable,
    Synchronous,
    Pieces(u64),
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ranks: 1,
            devices: 1,
            steps: 30,
            layers: 20,
            has_backward: true,
            kernel_ns: KERNEL_NS,
            batch_bytes: 8 << 20,
            batch_copy: BatchCopy::Pinned,
            all_reduce_ns: 800_000.0,
            is_all_reduce_last: false,
            idle_share: 0.0,
            is_throttled: true,
            startup_ns: 3e6,
            evaluation_interval: 0,
            has_graphs: false,
            has_flows: true,
        }
    }
}

/// A place in the loop at which a fault acts.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Place {
    Setup,
    Start,
    Load,
    Layer(usize),
    End,
}

/// A place in the loop, with the index of the step (from 0) and the total number of steps.
pub(crate) struct At {
    pub(crate) place: Place,
    pub(crate) step: usize,
    pub(crate) steps: usize,
}

/// A fault: its properties, and the code that plants it. A larger `amount` causes a larger cost.
pub(crate) struct Fault {
    pub(crate) id: &'static str,
    /// Name of the fault's variant, or an empty text for its usual form.
    pub(crate) variety: &'static str,
    pub(crate) culprit: Culprit,
    pub(crate) shows: Shows,
    pub(crate) amounts: Amounts,
    pub(crate) shape: fn(&mut Shape, f64, bool),
    pub(crate) act: fn(&mut Rank, &At, f64, bool),
    /// If the fault itself launches kernels, a part of the names of these kernels.
    pub(crate) own_kernels: Option<&'static str>,
    /// A second fault whose cost is larger. In the fourth case, both faults are planted.
    pub(crate) partner: &'static str,
}

/// The culprit that causes the cost of a fault. Fields that do not apply to a culprit are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Culprit {
    /// Functions on the stack, from the user's function to the innermost function. A finding is right if it names any
    /// of these functions as the culprit.
    pub(crate) functions: &'static [&'static str],
    pub(crate) rank: Option<usize>,
    pub(crate) device: Option<u32>,
    pub(crate) stream: Option<u32>,
    /// Steps that have the fault, as a share of the run or as a rule in words.
    pub(crate) steps: &'static str,
}

/// Where the cost is visible: in times of the trace, or in its records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shows {
    /// Time in which no kernel of the model runs on rank 0.
    Idle,
    /// Time in which a kernel of the model runs on rank 0.
    Busy,
    /// Time in which no kernel runs on GPU 1.
    SecondIdle,
    /// Records that are missing or wrong.
    Records,
}

#[derive(Clone, Copy)]
pub(crate) enum Amounts {
    /// The amount of a fault is between these two values. A search finds the amount with which the fault costs the
    /// required share of the run.
    Between(f64, f64),
    Fixed([f64; 3]),
}

/// Shares of the run that a fault costs in weak, middle and strong form.
pub(crate) const SHARES: [f64; 3] = [0.03, 0.12, 0.40];

/// A planted fault, with the choice whether it is done in the wrong way or in the right way.
#[derive(Clone, Copy)]
pub(crate) struct Planted {
    pub(crate) fault: &'static Fault,
    pub(crate) amount: f64,
    pub(crate) on: bool,
}

/// A run: the loop, the noise and the planted faults.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    pub(crate) planted: Vec<Planted>,
}

impl Plan {
    /// Returns the same run without one fault: at the place of the fault with index `number`, the loop does everything
    /// in the right way.
    pub(crate) fn without(&self, number: usize) -> Self {
        let mut plan = self.clone();
        plan.planted[number].on = false;
        plan
    }

    pub(crate) fn length_ns(&self) -> i64 {
        self.simulate(false).length_ns()
    }

    /// Returns the cost of the fault with index `number`, in ns.
    pub(crate) fn cost_ns(&self, number: usize) -> i64 {
        self.length_ns() - self.without(number).length_ns()
    }

    pub(crate) fn simulate(&self, is_recorded: bool) -> World {
        let mut shape = self.shape.clone();
        for Planted { fault, amount, on } in &self.planted {
            (fault.shape)(&mut shape, *amount, *on);
        }
        let mut world = World::new(self.seed, shape.ranks, is_recorded);
        let mut events = vec![[Event::default(); 2]; shape.ranks];
        for rank in &mut world.ranks {
            rank.has_flows = shape.has_flows;
            self.act(rank, Place::Setup, 0, &shape);
            start_up(rank, &shape);
        }
        for step in 0..shape.steps {
            self.step(&mut world, &shape, step, &mut events);
        }
        for rank in &mut world.ranks {
            (0..shape.devices).for_each(|device| rank.synchronize_device(device));
            rank.close();
            rank.close();
        }
        world
    }

    fn act(&self, rank: &mut Rank, place: Place, step: usize, shape: &Shape) {
        for (number, Planted { fault, amount, on }) in self.planted.iter().enumerate() {
            let at = At { place, step, steps: shape.steps };
            rank.with_generator(number + 1, |rank| (fault.act)(rank, &at, *amount, *on));
        }
    }

    fn step(&self, world: &mut World, shape: &Shape, step: usize, events: &mut [[Event; 2]]) {
        for rank in &mut world.ranks {
            rank.kernel_factor = 1.0;
            rank.open("user_annotation", &format!("ProfilerStep#{}", FIRST_STEP + step));
            self.act(rank, Place::Start, step, shape);
            if shape.is_throttled && step >= 2 {
                rank.synchronize_event(events[rank.index][step % 2]);
            }
            rank.python(LOAD, |rank| {
                rank.host(120_000.0);
                self.act(rank, Place::Load, step, shape);
                (0..shape.devices).for_each(|device| copy_batch(rank, shape, device));
            });
            rank.python(FORWARD, |rank| {
                if shape.has_graphs {
                    return replay(rank, shape);
                }
                for layer in 0..shape.layers {
                    self.act(rank, Place::Layer(layer), step, shape);
                    compute(rank, shape, step, FORWARD_KERNELS, layer);
                }
            });
        }
        if shape.has_backward {
            backward(world, shape, step);
        }
        let is_evaluated =
            shape.evaluation_interval > 0 && (step + 1).is_multiple_of(shape.evaluation_interval);
        for rank in &mut world.ranks {
            if shape.has_backward {
                rank.python(OPTIMIZER, |rank| {
                    (0..3).for_each(|at| compute(rank, shape, step, OPTIMIZER_KERNELS, at));
                });
            }
            if is_evaluated {
                rank.python("train.py(110): evaluate", |rank| {
                    (0..shape.layers).for_each(|layer| compute(rank, shape, step, FORWARD_KERNELS, layer));
                });
            }
            events[rank.index][step % 2] = rank.record_event(0, DEFAULT_STREAM);
            self.act(rank, Place::End, step, shape);
            rank.close();
        }
    }
}

/// An operator, its kernel, and the duration of the kernel as a multiple of the loop's usual kernel duration.
type Kernel = (&'static str, &'static str, f64);

const FORWARD_KERNELS: &[Kernel] = &[
    ("aten::layer_norm", "void layer_norm_kernel<float>(int, float, float const*, float*)", 0.5),
    ("aten::addmm", "gemm_bf16_128x128_tn", 1.5),
    ("aten::gelu", "void elementwise_kernel<4, Gelu>(int, float*)", 0.6),
    ("aten::addmm", "gemm_bf16_128x64_tn", 1.3),
    ("aten::scaled_dot_product_attention", "flash_attention_forward_kernel(Attention)", 1.2),
];
const BACKWARD_KERNELS: &[Kernel] = &[
    ("aten::mm", "gemm_bf16_128x128_nt", 1.5),
    ("aten::gelu_backward", "void elementwise_kernel<4, GeluBackward>(int, float*)", 0.7),
    ("aten::mm", "gemm_bf16_128x128_nn", 1.4),
    ("aten::native_layer_norm_backward", "void layer_norm_backward_kernel<float>(int, float*)", 0.6),
];
const OPTIMIZER_KERNELS: &[Kernel] = &[
    ("aten::_foreach_mul_", "void multi_tensor_apply_kernel<Mul>(float**)", 0.5),
    ("aten::_foreach_addcdiv_", "void multi_tensor_apply_kernel<AddDiv>(float**)", 0.8),
    ("aten::_foreach_add_", "void multi_tensor_apply_kernel<Add>(float**)", 0.5),
];

/// Runs an operator and its kernel on each device. In some steps (`idle_share`), device 0 also runs the work of device
/// 1, which is then idle.
fn compute(rank: &mut Rank, shape: &Shape, step: usize, kernels: &[Kernel], at: usize) {
    let (operator, kernel, length) = kernels[at % kernels.len()];
    let first_idle = shape.steps - (shape.idle_share * shape.steps as f64).round() as usize;
    for device in 0..shape.devices {
        let device = if step >= first_idle { 0 } else { device };
        rank.operator(operator, |rank| rank.launch(kernel, device, DEFAULT_STREAM, shape.kernel_ns * length));
    }
}

/// Simulates imports, allocations and the copy of the weights, before the first step.
fn start_up(rank: &mut Rank, shape: &Shape) {
    rank.open("python_function", "train.py(12): main");
    rank.host(shape.startup_ns);
    for device in 0..shape.devices {
        for _ in 0..4 {
            rank.call("cudaMalloc", 180_000.0, 0);
        }
        rank.copy("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", device, DEFAULT_STREAM, 4 << 20);
        rank.fill(device, DEFAULT_STREAM, 1 << 20);
    }
    rank.open("python_function", "train.py(40): train_epoch");
}

fn copy_batch(rank: &mut Rank, shape: &Shape, device: u32) {
    let pinned = "Memcpy HtoD (Pinned -> Device)";
    rank.operator("aten::copy_", |rank| match shape.batch_copy {
        BatchCopy::Pinned => {
            rank.copy("cudaMemcpyAsync", pinned, device, COPY_STREAM, shape.batch_bytes);
            let event = rank.record_event(device, COPY_STREAM);
            rank.stream_waits(device, DEFAULT_STREAM, event);
        }
        BatchCopy::Pageable => {
            let name = "Memcpy HtoD (Pageable -> Device)";
            rank.copy("cudaMemcpyAsync", name, device, DEFAULT_STREAM, shape.batch_bytes);
            rank.synchronize_stream(device, DEFAULT_STREAM);
        }
        BatchCopy::Synchronous => {
            rank.copy("cudaMemcpy", pinned, device, DEFAULT_STREAM, shape.batch_bytes);
        }
        BatchCopy::Pieces(count) => {
            for _ in 0..count {
                rank.host(12_000.0);
                rank.copy("cudaMemcpyAsync", pinned, device, DEFAULT_STREAM, shape.batch_bytes / count);
            }
        }
    });
}

/// Runs the backward pass on the thread of PyTorch's autograd. If there are several ranks, they add up their gradients:
/// in two parts during the backward pass, or all at its end.
fn backward(world: &mut World, shape: &Shape, step: usize) {
    let run = |rank: &mut Rank, kernels: std::ops::Range<usize>| {
        rank.python(BACKWARD, |rank| {
            rank.on_thread(1, |rank| {
                kernels.for_each(|at| compute(rank, shape, step, BACKWARD_KERNELS, at));
            });
        });
    };
    let parts = if shape.ranks == 1 || shape.is_all_reduce_last { 1 } else { 3 };
    for part in 0..parts {
        let kernels = shape.layers * part / parts..shape.layers * (part + 1) / parts;
        world.ranks.iter_mut().for_each(|rank| run(rank, kernels.clone()));
        let is_reduced = shape.ranks > 1 && (parts == 1 || part + 1 < parts);
        if is_reduced {
            let ns = shape.all_reduce_ns / (parts.max(2) - 1) as f64;
            world
                .ranks
                .iter_mut()
                .for_each(|rank| rank.open("python_function", "train.py(66): reduce_gradients"));
            world.collective(
                "nccl:all_reduce",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
                ns,
            );
            world.ranks.iter_mut().for_each(Rank::close);
        }
    }
    // The optimizer needs the sums of the gradients, so it waits for the all-reduce.
    if shape.ranks > 1 {
        for rank in &mut world.ranks {
            let event = rank.record_event(0, NCCL_STREAM);
            rank.stream_waits(0, DEFAULT_STREAM, event);
        }
    }
}

/// Launches a CUDA graph that contains the layers' kernels.
fn replay(rank: &mut Rank, shape: &Shape) {
    let work: Vec<_> =
        (0..shape.layers).map(|layer| FORWARD_KERNELS[layer % FORWARD_KERNELS.len()]).collect();
    rank.launch_graph(DEFAULT_STREAM, work.iter().map(|(_, name, length)| (*name, shape.kernel_ns * length)));
}
