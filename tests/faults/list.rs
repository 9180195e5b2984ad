//! The list of faults, each with its culprit and the change to the training loop that plants it.

use crate::traces::{COPY_STREAM, DEFAULT_STREAM, NCCL_STREAM, Rank};
use crate::training_loop::{
    Amounts, BACKWARD, BatchCopy, Culprit, FORWARD, Fault, LOAD, OPTIMIZER, Place, SHARES, Shape, Shows,
};

/// Id of a stream that a custom operator creates. The operator does not set the flag that would make this stream
/// independent of the default stream.
const SIDE_STREAM: u32 = 13;
/// Duration of a short kernel, in ns.
const SHORT_NS: f64 = 22_000.0;

const NOBODY: Culprit = Culprit { functions: &[], rank: None, device: None, stream: None, steps: "" };

const fn function(functions: &'static [&'static str]) -> Culprit {
    Culprit { functions, ..NOBODY }
}

const NS: Amounts = Amounts::Between(1e3, 1e9);
const BYTES: Amounts = Amounts::Between(1e4, 1e9);

/// A fault without effect. Faults whose fields are not all given take the default values of their fields from it.
pub(crate) const FAULT: Fault = Fault {
    id: "",
    variety: "",
    culprit: NOBODY,
    shows: Shows::Idle,
    amounts: NS,
    shape: |_, _, _| {},
    act: |_, _, _, _| {},
    own_kernels: None,
    partner: "",
};

fn short(shape: &mut Shape, _: f64, _: bool) {
    shape.kernel_ns = SHORT_NS;
}
fn three_ranks(shape: &mut Shape, _: f64, _: bool) {
    (shape.ranks, shape.layers) = (3, 14);
}

/// Reads a four-byte number from the GPU, as `tensor.item()` does.
fn read(rank: &mut Rank) {
    rank.operator("aten::item", |rank| {
        rank.operator("aten::_local_scalar_dense", |rank| {
            rank.copy("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 0, DEFAULT_STREAM, 4);
            rank.synchronize_stream(0, DEFAULT_STREAM);
        });
    });
}

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        id: "data_loader_late",
        culprit: function(&[LOAD, "torch/utils/data/dataloader.py(701): __next__", "queue.py(154): get"]),
        act: |rank, at, ns, on| {
            if at.place == Place::Load && on {
                rank.python("torch/utils/data/dataloader.py(701): __next__", |rank| {
                    rank.python("queue.py(154): get", |rank| rank.host(ns));
                });
            }
        },
        partner: "lock_wait",
        ..FAULT
    },
    // After the read of a value from the GPU, the host computes for a while. Without the read, the GPU would be busy
    // while the host computes. If the host computes for less than 1 ms, it reads a value in every third step. If the
    // host computes for longer, it reads a value in every second step.
    Fault {
        id: "sync_read",
        culprit: function(&["train.py(71): log_metrics"]),
        act: |rank, at, ns, on| {
            let period = if ns < 1e6 { 3 } else { 2 };
            if at.place == Place::End && at.step % period == 1 {
                rank.python("train.py(71): log_metrics", |rank| {
                    if on {
                        read(rank);
                    }
                    rank.host(ns);
                });
            }
        },
        partner: "slow_steps",
        ..FAULT
    },
    Fault {
        id: "tiny_kernels",
        culprit: function(&["model.py(112): add_bias_per_token"]),
        amounts: Amounts::Between(1.0, 400.0),
        shape: |shape, _, _| (shape.kernel_ns, shape.has_flows) = (SHORT_NS, false),
        act: |rank, at, count, on| {
            if at.place == Place::Layer(10) {
                rank.python("model.py(112): add_bias_per_token", |rank| {
                    for _ in 0..if on { count as usize } else { 1 } {
                        rank.host(24_000.0);
                        rank.operator("aten::add_", |rank| {
                            rank.launch(
                                "void add_bias_kernel<float>(float*, int)",
                                0,
                                DEFAULT_STREAM,
                                1_800.0,
                            );
                        });
                    }
                });
            }
        },
        own_kernels: Some("add_bias_kernel"),
        partner: "data_loader_late",
        ..FAULT
    },
    Fault {
        id: "launch_bound",
        culprit: function(&[FORWARD, BACKWARD, OPTIMIZER]),
        shape: short,
        act: |rank, at, ns, on| {
            if at.place == Place::Setup && on {
                rank.operator_ns = ns;
            }
        },
        partner: "pageable_copies",
        ..FAULT
    },
    Fault {
        id: "pageable_copies",
        culprit: function(&[LOAD]),
        amounts: BYTES,
        shape: |shape, bytes, on| {
            shape.batch_bytes = bytes as u64;
            shape.batch_copy = if on { BatchCopy::Pageable } else { BatchCopy::Pinned };
        },
        partner: "late_slowdown",
        ..FAULT
    },
    Fault {
        id: "sync_copies",
        culprit: function(&[LOAD]),
        amounts: BYTES,
        shape: |shape, bytes, on| {
            shape.batch_bytes = bytes as u64;
            shape.batch_copy = if on { BatchCopy::Synchronous } else { BatchCopy::Pinned };
        },
        partner: "recompilation",
        ..FAULT
    },
    Fault {
        id: "fragmented_copies",
        culprit: function(&[LOAD]),
        amounts: Amounts::Between(2.0, 600.0),
        shape: |shape, count, on| {
            (shape.kernel_ns, shape.has_flows) = (SHORT_NS, false);
            shape.batch_bytes = 4096 * count as u64;
            shape.batch_copy = if on { BatchCopy::Pieces(count as u64) } else { BatchCopy::Pinned };
        },
        partner: "allocation_in_loop",
        ..FAULT
    },
    Fault {
        id: "default_stream",
        culprit: Culprit { stream: Some(DEFAULT_STREAM), ..function(&["custom_op.py(19): side_branch"]) },
        shows: Shows::Busy,
        act: |rank, at, ns, on| match at.place {
            Place::Setup if on => drop(rank.blocking_streams.insert(SIDE_STREAM)),
            Place::Layer(layer) if layer % 2 == 0 => rank.python("custom_op.py(19): side_branch", |rank| {
                rank.launch("side_branch_kernel(float const*, float*, int)", 0, SIDE_STREAM, ns);
            }),
            _ => {}
        },
        partner: "slow_steps",
        ..FAULT
    },
    Fault {
        id: "allocation_in_loop",
        culprit: function(&["model.py(140): with_workspace"]),
        act: |rank, at, ns, on| {
            if at.place == Place::Layer(5) {
                rank.python("model.py(140): with_workspace", |rank| {
                    if on {
                        rank.call("cudaMalloc", ns / 2.0, 0);
                    }
                    rank.launch("workspace_kernel(float*)", 0, DEFAULT_STREAM, 20_000.0);
                    if on {
                        rank.free(0, ns / 2.0);
                    }
                });
            }
        },
        partner: "straggler",
        ..FAULT
    },
    Fault {
        id: "gc_pauses",
        culprit: function(&["train.py(83): tidy", "<built-in function collect>"]),
        act: |rank, at, ns, on| {
            if at.place == Place::End && at.step % 6 == 4 && on {
                rank.python("train.py(83): tidy", |rank| {
                    rank.python("<built-in function collect>", |rank| rank.host(ns));
                });
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
    Fault {
        id: "recompilation",
        culprit: function(&[FORWARD, "torch/_dynamo/convert_frame.py(610): compile_inner"]),
        act: |rank, at, ns, on| {
            if at.place == Place::Layer(0) {
                let version = [7, 12, 13, 21, 26].iter().filter(|step| **step <= at.step).count();
                if [7, 12, 13, 21, 26].contains(&at.step) && on {
                    rank.slice("user_annotation", "_compile.compile_inner (dynamo_timed)", |rank| {
                        rank.python("torch/_dynamo/convert_frame.py(610): compile_inner", |rank| {
                            rank.host(ns);
                            rank.call("cuModuleLoadData", 150_000.0, 0);
                        });
                    });
                }
                let version = if on { version } else { 0 };
                let name = format!("triton_poi_fused_add_mul_{version}");
                rank.launch(&name, 0, DEFAULT_STREAM, 20_000.0);
            }
        },
        partner: "exposed_communication",
        ..FAULT
    },
    Fault {
        id: "warm_up",
        culprit: Culprit {
            steps: "the first 3",
            ..function(&[FORWARD, "torch/nn/modules/conv.py(549): forward"])
        },
        act: |rank, at, ns, on| {
            if at.place == Place::Layer(1) && at.step < 3 && on {
                rank.python("torch/nn/modules/conv.py(549): forward", |rank| {
                    rank.call("cuLibraryLoadData", ns * (3 - at.step) as f64 / 12.0, 0);
                    rank.host(ns * (3 - at.step) as f64 / 4.0);
                });
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
    Fault {
        id: "slow_steps",
        culprit: Culprit { steps: "every fifth, from the fourth on", ..NOBODY },
        shows: Shows::Busy,
        amounts: Amounts::Between(0.01, 50.0),
        act: |rank, at, factor, on| {
            if at.place == Place::Start && at.step % 5 == 3 && on {
                rank.kernel_factor *= 1.0 + factor;
            }
        },
        partner: "allocation_in_loop",
        ..FAULT
    },
    Fault {
        id: "pauses",
        culprit: Culprit { steps: "the 10th and the 23rd", ..function(&["train.py(95): write_log"]) },
        act: |rank, at, ns, on| {
            if at.place == Place::End {
                let is_long = on && [9, 22].contains(&at.step);
                rank.python("train.py(95): write_log", |rank| rank.host(if is_long { ns } else { 60_000.0 }));
            }
        },
        partner: "late_slowdown",
        ..FAULT
    },
    Fault {
        id: "exposed_communication",
        culprit: Culprit { stream: Some(NCCL_STREAM), ..function(&["train.py(66): reduce_gradients"]) },
        shape: |shape, ns, on| {
            shape.ranks = shape.ranks.max(2);
            if on {
                (shape.all_reduce_ns, shape.is_all_reduce_last) = (ns, true);
            }
        },
        partner: "late_slowdown",
        ..FAULT
    },
    Fault {
        id: "straggler",
        culprit: Culprit { rank: Some(1), device: Some(0), ..NOBODY },
        amounts: Amounts::Between(0.005, 20.0),
        shape: three_ranks,
        act: |rank, at, factor, on| {
            if at.place == Place::Start && rank.index == 1 && on {
                rank.kernel_factor *= 1.0 + factor;
            }
        },
        partner: "late_slowdown",
        ..FAULT
    },
    // In the run without the fault, the tokens are divided evenly among the three ranks.
    Fault {
        id: "imbalance",
        culprit: Culprit { rank: Some(2), ..function(&["moe.py(44): experts"]) },
        shape: three_ranks,
        act: |rank, at, ns, on| {
            if matches!(at.place, Place::Layer(layer) if layer % 4 == 2) {
                let share = if !on {
                    1.0 / 3.0
                } else if rank.index == 2 {
                    0.8
                } else {
                    0.1
                };
                rank.python("moe.py(44): experts", |rank| {
                    rank.operator("aten::_grouped_mm", |rank| {
                        rank.launch("grouped_gemm_kernel(GroupedProblem)", 0, DEFAULT_STREAM, ns * share);
                    });
                });
            }
        },
        own_kernels: Some("grouped_gemm"),
        partner: "pageable_copies",
        ..FAULT
    },
    Fault {
        id: "idle_gpu",
        culprit: Culprit { device: Some(1), ..NOBODY },
        shows: Shows::SecondIdle,
        amounts: Amounts::Between(0.01, 1.0),
        shape: |shape, share, on| {
            (shape.devices, shape.layers) = (2, 10);
            shape.idle_share = if on { share } else { 0.0 };
        },
        partner: "allocation_in_loop",
        ..FAULT
    },
    Fault {
        id: "lock_wait",
        culprit: function(&[
            "train.py(62): report",
            "<built-in method acquire of _thread.lock object at 0x7f1e4c0d2a40>",
        ]),
        act: |rank, at, ns, on| {
            if at.place == Place::Load && on {
                rank.background("metrics.py(20): flush", ns as i64);
                rank.python("train.py(62): report", |rank| {
                    rank.python(
                        "<built-in method acquire of _thread.lock object at 0x7f1e4c0d2a40>",
                        |rank| {
                            rank.host(ns);
                        },
                    );
                });
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
    Fault {
        id: "late_slowdown",
        culprit: Culprit { device: Some(0), steps: "from 60 % of the run on", ..NOBODY },
        shows: Shows::Busy,
        amounts: Amounts::Between(0.01, 20.0),
        act: |rank, at, factor, on| {
            if at.place == Place::Start && at.step * 10 >= at.steps * 6 && on {
                rank.kernel_factor *= 1.0 + factor;
            }
        },
        partner: "sync_read",
        ..FAULT
    },
    Fault {
        id: "profiler_cost",
        shape: short,
        act: |rank, at, ns, on| {
            if at.place == Place::Setup && on {
                rank.profiler_ns = ns;
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
    Fault {
        id: "launches_without_activity",
        shows: Shows::Records,
        amounts: Amounts::Fixed(SHARES),
        act: |rank, at, share, on| {
            if at.place == Place::Setup && on {
                rank.lost_share = share;
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
    Fault {
        id: "impossible_times",
        shows: Shows::Records,
        amounts: Amounts::Fixed([0.005, 0.03, 0.2]),
        act: |rank, at, share, on| {
            if at.place == Place::Setup && on {
                rank.impossible_share = share;
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
    // The GPU's clock is behind the host's clock, so kernels seem to start before they are launched.
    Fault {
        id: "clocks_disagree",
        culprit: Culprit { device: Some(0), ..NOBODY },
        shows: Shows::Records,
        amounts: Amounts::Fixed([50e3, 1e6, 50e6]),
        act: |rank, at, ns, on| {
            if at.place == Place::Setup && on {
                rank.gpu_clock_ns = -(ns as i64);
            }
        },
        partner: "data_loader_late",
        ..FAULT
    },
];

/// Variants of some of the faults. Each variant is planted once, in middle strength.
pub(crate) const VARIETIES: &[Fault] = &[
    // In this variant, the training process itself reads the training data.
    Fault {
        id: "data_loader_late",
        variety: "in-process",
        culprit: function(&[LOAD, "dataset.py(31): __getitem__"]),
        act: |rank, at, ns, on| {
            if at.place == Place::Load && on {
                rank.python("dataset.py(31): __getitem__", |rank| rank.host(ns));
            }
        },
        ..FAULT
    },
    Fault {
        id: "sync_read",
        variety: "cpu",
        culprit: function(&[
            "train.py(73): print_samples",
            "<built-in method cpu of Tensor object at 0x7f1e4c0d5b80>",
        ]),
        act: |rank, at, ns, on| {
            if at.place == Place::End {
                rank.python("train.py(73): print_samples", |rank| {
                    if on {
                        rank.python("<built-in method cpu of Tensor object at 0x7f1e4c0d5b80>", |rank| {
                            rank.operator("aten::_to_copy", |rank| {
                                let name = "Memcpy DtoH (Device -> Pageable)";
                                rank.copy("cudaMemcpyAsync", name, 0, DEFAULT_STREAM, 40_960);
                                rank.synchronize_stream(0, DEFAULT_STREAM);
                            });
                        });
                    }
                    rank.host(ns);
                });
            }
        },
        ..FAULT
    },
    // The main thread reads a value from the GPU. After the read, another thread computes on the host and launches
    // kernels.
    Fault {
        id: "sync_read",
        variety: "before-another-thread",
        culprit: function(&["train.py(71): log_metrics"]),
        act: |rank, at, ns, on| {
            if at.place == Place::End && at.step % 2 == 1 {
                rank.python("train.py(71): log_metrics", |rank| {
                    if on {
                        read(rank);
                    }
                });
                rank.on_thread(1, |rank| {
                    rank.operator("autograd::engine::evaluate_function: AccumulateGrad", |rank| {
                        rank.host(ns);
                        rank.launch("void add_kernel<float>(float*)", 0, DEFAULT_STREAM, 20_000.0);
                    });
                });
            }
        },
        ..FAULT
    },
    // Each layer reads a value from the GPU. After each read, the GPU is idle for less than 50 us.
    Fault {
        id: "sync_read",
        variety: "many-short",
        culprit: function(&["model.py(88): clip"]),
        amounts: Amounts::Between(1.0, 1e6),
        act: |rank, at, ns, on| {
            if matches!(at.place, Place::Layer(_)) {
                rank.python("model.py(88): clip", |rank| {
                    if on {
                        read(rank);
                    }
                    rank.host(ns);
                });
            }
        },
        ..FAULT
    },
    Fault {
        id: "pageable_copies",
        variety: "to-host",
        culprit: function(&["train.py(77): keep_predictions"]),
        amounts: BYTES,
        act: |rank, at, bytes, on| {
            if at.place == Place::End {
                rank.python("train.py(77): keep_predictions", |rank| {
                    let (name, stream) = match on {
                        true => ("Memcpy DtoH (Device -> Pageable)", DEFAULT_STREAM),
                        false => ("Memcpy DtoH (Device -> Pinned)", COPY_STREAM),
                    };
                    rank.copy("cudaMemcpyAsync", name, 0, stream, bytes as u64);
                });
            }
        },
        ..FAULT
    },
    // If the interpreter itself starts the garbage collection, the trace has no event for the collection. A function
    // takes longer, without any special reason.
    Fault {
        id: "gc_pauses",
        variety: "automatic",
        culprit: function(&[FORWARD]),
        act: |rank, at, ns, on| {
            if at.place == Place::Layer(7) && at.step % 7 == 3 && on {
                rank.host(ns);
            }
        },
        ..FAULT
    },
    Fault {
        id: "warm_up",
        variety: "kernels",
        culprit: Culprit { steps: "the first 4", ..NOBODY },
        shows: Shows::Busy,
        amounts: Amounts::Between(0.01, 50.0),
        act: |rank, at, factor, on| {
            if at.place == Place::Start && at.step < 4 && on {
                rank.kernel_factor *= 1.0 + factor;
            }
        },
        ..FAULT
    },
    Fault {
        id: "straggler",
        variety: "host",
        culprit: Culprit { rank: Some(1), ..function(&[LOAD, "dataset.py(31): __getitem__"]) },
        shape: three_ranks,
        act: |rank, at, ns, on| {
            if at.place == Place::Load && rank.index == 1 && on {
                rank.python("dataset.py(31): __getitem__", |rank| rank.host(ns));
            }
        },
        ..FAULT
    },
    Fault {
        id: "lock_wait",
        variety: "queue",
        culprit: function(&["train.py(62): report", "queue.py(122): put", "threading.py(355): wait"]),
        act: |rank, at, ns, on| {
            if at.place == Place::Layer(3) && on {
                rank.background("metrics.py(20): flush", ns as i64);
                rank.python("train.py(62): report", |rank| {
                    rank.python("queue.py(122): put", |rank| {
                        rank.python("threading.py(355): wait", |rank| rank.host(ns));
                    });
                });
            }
        },
        ..FAULT
    },
    Fault {
        id: "late_slowdown",
        variety: "gradual",
        culprit: Culprit { device: Some(0), steps: "from 30 % of the run on, more and more", ..NOBODY },
        shows: Shows::Busy,
        amounts: Amounts::Between(0.01, 20.0),
        act: |rank, at, factor, on| {
            let late = (at.step as f64 / at.steps as f64 - 0.3).max(0.0);
            if at.place == Place::Start && on {
                rank.kernel_factor *= 1.0 + factor * late;
            }
        },
        ..FAULT
    },
    // The clock of one machine is ahead of the other machines' clocks.
    Fault {
        id: "clocks_disagree",
        variety: "ranks",
        culprit: Culprit { rank: Some(1), ..NOBODY },
        shows: Shows::Records,
        amounts: Amounts::Fixed([50e3, 5e6, 50e6]),
        shape: |shape, _, _| shape.ranks = 2,
        act: |rank, at, ns, on| {
            if at.place == Place::Setup && rank.index == 1 && on {
                rank.clock_ns = ns as i64;
            }
        },
        ..FAULT
    },
];

pub(crate) fn fault(id: &str) -> &'static Fault {
    FAULTS.iter().find(|fault| fault.id == id).expect("a fault of the list")
}
