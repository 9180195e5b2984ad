//! Tests runs that are hard to judge: misleading names, ranks that take turns in being late, and an idle host. In each
//! run, a finding that seems right must not be reported, or must be reported in another way. Each right answer was
//! written down before the rule that produces it was implemented.

use std::fs;

use serde_json::Value;

use crate::list::FAULT;
use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::traces::{DEFAULT_STREAM, Rank};
use crate::training_loop::{At, Fault, Place, Plan, Planted, Shape};

/// Returns the findings that gpuflame reports about a run. Each finding has its id, its cost in percent of the run, and
/// the text with the culprit and the reason.
fn findings(shape: Shape, seed: u64, fault: &'static Fault, amount: f64) -> Vec<(String, f64, String)> {
    let planted = vec![Planted { fault, amount, on: true }];
    let folder = scratch("harder");
    let files = Plan { shape, seed, planted }.simulate(true).write(&folder);
    let args = ["summary"].into_iter().chain(files.iter().map(String::as_str)).chain(["--format", "json"]);
    let summary: Value = serde_json::from_str(&gpuflame(&folder, args).ok().stdout).unwrap();
    fs::remove_dir_all(folder).unwrap();
    let row = |row: &Value| {
        let text = |column: &str| row[column].as_str().unwrap_or_default().to_owned();
        (text("id"), row["share_percent"].as_f64().unwrap_or(0.0), text("culprit") + " " + &text("why"))
    };
    summary["findings"].as_array().unwrap().iter().map(row).collect()
}

fn ids(found: &[(String, f64, String)]) -> Vec<&str> {
    found.iter().map(|(id, ..)| &**id).collect()
}

const IN_TURN: Fault = Fault {
    act: |rank, at, factor, on| {
        if at.place == Place::Start && at.step % 3 == rank.index && on {
            rank.kernel_factor *= 1.0 + factor;
        }
    },
    ..FAULT
};

const EVEN: Fault = Fault {
    act: |rank, at, factor, on| {
        if at.place == Place::Start && on {
            rank.kernel_factor *= 1.0 + factor / 3.0;
        }
    },
    ..FAULT
};

/// On each rank, a third of the steps take 30 % longer; in each step, another one of the three ranks is slow. Therefore
/// each step of the job takes up to 30 % longer. If this additional work were divided evenly between the ranks, each
/// step would take only 10 % longer. No rank is a straggler.
#[test]
fn ranks_that_are_late_in_turn_are_no_stragglers() {
    for seed in [11, 12, 13] {
        let shape = Shape { ranks: 3, layers: 14, steps: 36, is_all_reduce_last: true, ..Shape::default() };
        let length = |fault| {
            let planted = vec![Planted { fault, amount: 0.3, on: true }];
            Plan { shape: shape.clone(), seed, planted }.length_ns() as f64
        };
        let right = 100.0 * (1.0 - length(&EVEN) / length(&IN_TURN));
        let found = findings(shape.clone(), seed, &IN_TURN, 0.3);
        let in_turn = found.iter().take(2).find(|(id, ..)| id == "imbalance");
        let (_, share, text) = in_turn.unwrap_or_else(|| panic!("{found:?}"));
        assert!(
            (0.6..1.6).contains(&(share / right)) && text.contains("late in turn"),
            "{right} %, {found:?}"
        );
        assert!(text.contains("more GPU work") && !ids(&found).contains(&"straggler"), "{found:?}");
    }
}

fn next_token(rank: &mut Rank, at: &At, ns: f64, _: bool) {
    if at.place == Place::End {
        rank.python("sampler.py(20): next_token", |rank| {
            rank.host(ns);
            rank.operator("aten::argmax", |rank| rank.launch("argmax_kernel", 0, DEFAULT_STREAM, 20_000.0));
        });
    }
}

const NEXT_TOKEN: Fault = Fault { act: next_token, ..FAULT };

/// The function's name begins with `next` and contains `token`, but the function computes: it launches kernels, and copies
/// nothing to the GPU.
#[test]
fn a_function_with_a_name_of_a_loader_that_computes_is_no_loader() {
    for seed in [21, 22] {
        let found = findings(Shape::default(), seed, &NEXT_TOKEN, 8e6);
        let (id, _, text) = &found[0];
        assert!(id == "host_work" && text.contains("next_token"), "{found:?}");
        assert!(!ids(&found).contains(&"data_loader_late"), "{found:?}");
    }
}

const MEMCPY_LIKE: Fault = Fault {
    act: |rank, at, ns, _| {
        if at.place == Place::End {
            rank.python("ops.py(9): shuffle", |rank| {
                rank.operator("mylib::memcpy_like", |rank| {
                    rank.host(ns);
                    rank.launch("memcpy_like(float const*, float*)", 0, DEFAULT_STREAM, 20_000.0);
                });
            });
        }
    },
    ..FAULT
};

/// The operator and its kernel have names like those of a copy, but the kernel copies no data.
#[test]
fn an_operator_with_a_name_of_a_copy_is_no_copy() {
    for seed in [31, 32] {
        let found = findings(Shape::default(), seed, &MEMCPY_LIKE, 8e6);
        let (id, _, text) = &found[0];
        assert!(["host_work", "pauses"].contains(&&**id) && text.contains("shuffle"), "{found:?}");
        assert!(ids(&found).iter().all(|id| !id.contains("cop")), "{found:?}");
    }
}

const ANNOTATED: Fault = Fault {
    act: |rank, at, ns, _| {
        if at.place == Place::End && [9, 22].contains(&at.step) {
            rank.slice("user_annotation", "write checkpoint", |rank| rank.host(ns));
        }
    },
    ..FAULT
};

/// The finding must name the user's range, such as one from `record_function`, as the place of the pause.
#[test]
fn a_range_of_the_user_is_the_place_of_a_finding() {
    for seed in [41, 42] {
        let found = findings(Shape::default(), seed, &ANNOTATED, 3e7);
        let (id, _, text) = &found[0];
        assert!(id == "pauses" && text.contains("write checkpoint"), "{found:?}");
    }
}

const NO_REQUESTS: Fault = Fault {
    act: |rank, at, ns, _| {
        if at.place == Place::End && at.step % 3 == 2 {
            rank.python("server.py(31): wait_for_request", |rank| {
                rank.python("selectors.py(468): select", |rank| rank.host(ns));
            });
        }
    },
    ..FAULT
};

/// A server waits while it has no requests. A trace does not show whether the host waits for requests or computes.
/// Therefore the finding must name the place of the pause, but must not name a fault that the user could repair.
#[test]
fn a_server_without_requests_has_no_fault_of_another_name() {
    for seed in [51, 52] {
        let shape = Shape { has_backward: false, steps: 60, ..Shape::default() };
        let found = findings(shape, seed, &NO_REQUESTS, 2e7);
        let (id, share, text) = &found[0];
        assert!(id == "host_work" && *share > 40.0 && text.contains("wait_for_request"), "{found:?}");
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
