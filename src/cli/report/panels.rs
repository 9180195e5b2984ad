//! Creates the panels below the page's flame graph. If the data of a panel is missing, the panel has a sentence that
//! explains how to record the data.

use serde_json::{Value, json};

use super::comparison::{self, KernelChange};
use super::job::Job;
use super::path_panel;
use super::rank_panel;
use super::work_panels::{FunctionRow, KernelRow};
use gpuflame_export::short_kernels;
use gpuflame_offline::analysis::compare_durations;

/// Maximum number of rows of a table on the page. The page shows how many rows of the table are left out.
const MAX_ROWS: usize = 3_000;
/// Maximum length, in characters, of a name in a table.
const MAX_NAME_CHARS: usize = 1_000;

/// Returns all panels as JSON.
pub(super) fn all(job: &Job, old: Option<&Job>) -> String {
    let mut panels: Vec<Value> = old.map(|old| changes(job, old)).into_iter().collect();
    panels.extend([
        path_panel::panel(job),
        timeline(job),
        kernels(job),
        functions(job),
        steps(job),
        ranks(job),
        absent_views(job),
    ]);
    Value::from(panels).to_string()
}

/// Returns the table of kernels, copies and fills that changed since the older run, sorted by size of the change,
/// largest first.
fn changes(job: &Job, old: &Job) -> Value {
    const COLUMNS: [(&str, &str); 9] = [
        ("kernel, copy or fill", "name"),
        ("change", "change"),
        ("change in percent", "change_percent"),
        ("before", "ns"),
        ("now", "ns"),
        ("count before", "count"),
        ("count now", "count"),
        ("change of the average", "change_percent"),
        ("more than chance", "name"),
    ];
    let all = comparison::kernel_changes(job, old);
    let short = short_kernels(all.iter().map(|change| change.name));
    let row = |change: &comparison::KernelChange<'_>| {
        let KernelChange { name, before, now } = *change;
        let percent = |from: f64, to: f64| (from > 0.0).then(|| 100.0 * (to - from) / from);
        let average = (now.count > 0).then(|| percent(before.mean(), now.mean())).flatten();
        json!([
            named(name, short.get(name)),
            now.nanos as i64 - before.nanos as i64,
            percent(before.nanos as f64, now.nanos as f64),
            before.nanos,
            now.nanos,
            before.count,
            now.count,
            average,
            compare_durations(before, now).word()
        ])
    };
    let rows: Vec<Value> = all.iter().take(MAX_ROWS).map(row).collect();
    let mut panel = json!({"id": "changes", "title": "Changes", "table": table(&COLUMNS, rows, all.len())});
    if all.is_empty() {
        panel["why"] = "No kernel, copy or fill differs between the two runs.".into();
    }
    panel
}

fn table(columns: &[(&str, &str)], rows: Vec<Value>, all: usize) -> Value {
    let columns: Vec<Value> =
        columns.iter().map(|(title, unit)| json!({"title": title, "unit": unit})).collect();
    json!({"columns": columns, "more": all - rows.len(), "rows": rows})
}

/// Returns a name as JSON, together with the short form of the name if it has one.
fn named(name: &str, short: Option<&String>) -> Value {
    match short {
        Some(short) => json!([cut(short), cut(name)]),
        None => cut(name).into(),
    }
}

fn cut(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn kernels(job: &Job) -> Value {
    const COLUMNS: [(&str, &str); 10] = [
        ("kernel, copy or fill", "name"),
        ("total", "ns"),
        ("share of GPU work", "percent"),
        ("count", "count"),
        ("average", "ns"),
        ("p50", "ns"),
        ("p95", "ns"),
        ("max", "ns"),
        ("launch delay", "ns"),
        ("p95 delay", "ns"),
    ];
    let total = job.work.kernels.values().map(|row| row.nanos).fold(0_u64, u64::saturating_add);
    let mut all: Vec<(&String, &KernelRow)> = job.work.kernels.iter().collect();
    all.sort_by(|a, b| b.1.nanos.cmp(&a.1.nanos).then_with(|| a.0.cmp(b.0)));
    let short = short_kernels(all.iter().filter(|(_, row)| row.is_kernel).map(|(name, _)| name.as_str()));
    let row = |(name, row): &(&String, &KernelRow)| {
        let share = (total > 0).then(|| 100.0 * row.nanos as f64 / total as f64);
        let delay = (row.delay.count > 0).then(|| row.delay.nanos / row.delay.count);
        let [p50, p95] = row.percentiles.map_or([None; 2], |[p50, p95]| [Some(p50), Some(p95)]);
        let text = match row.is_kernel {
            true => named(name, short.get(name.as_str())),
            false => format!("[{}]", cut(name)).into(),
        };
        json!([
            text,
            row.nanos,
            share,
            row.count,
            row.nanos / row.count.max(1),
            p50,
            p95,
            row.max,
            delay,
            row.delay.p95
        ])
    };
    let rows: Vec<Value> = all.iter().take(MAX_ROWS).map(row).collect();
    let mut panel = json!({"id": "kernels", "title": "Kernels", "table": table(&COLUMNS, rows, all.len())});
    if all.is_empty() {
        panel["why"] = "No GPU work was recorded.".into();
    }
    panel
}

fn functions(job: &Job) -> Value {
    const COLUMNS: [(&str, &str); 5] = [
        ("function", "name"),
        ("GPU time", "ns"),
        ("launched in itself", "ns"),
        ("CPU time", "ns"),
        ("waiting", "ns"),
    ];
    let sum = |row: &FunctionRow| row.gpu.saturating_add(row.cpu).saturating_add(row.waiting);
    let mut all: Vec<(&String, &FunctionRow)> = job.work.functions.iter().collect();
    all.sort_by(|a, b| sum(b.1).cmp(&sum(a.1)).then_with(|| a.0.cmp(b.0)));
    let row = |(name, row): &(&String, &FunctionRow)| {
        let known = |is_known: bool, nanos: u64| is_known.then_some(nanos);
        json!([
            cut(name),
            row.gpu,
            row.own,
            known(job.work.has_cpu, row.cpu),
            known(job.work.has_waiting, row.waiting)
        ])
    };
    let rows: Vec<Value> = all.iter().take(MAX_ROWS).map(row).collect();
    let mut panel =
        json!({"id": "functions", "title": "Functions", "table": table(&COLUMNS, rows, all.len())});
    if all.is_empty() {
        panel["why"] = "No stack of a launch was recorded.".into();
    } else if !job.work.has_cpu && !job.work.has_waiting {
        panel["note"] = match job.is_recorded() {
            true => "CPU time and waiting were not recorded: `gpuflame run --cpu-samples 99 --off-cpu COMMAND` records them.",
            false => "This trace has no samples of the CPU.",
        }
        .into();
    }
    panel
}

fn steps(job: &Job) -> Value {
    let ranks: Vec<Value> =
        job.ranks.iter().filter(|rank| !rank.steps.is_empty()).map(|rank| rank.steps.json()).collect();
    let mut panel = json!({"id": "steps", "title": "Steps"});
    match ranks.is_empty() {
        false => panel["steps"] = ranks.into(),
        true => {
            panel["why"] = match job.is_recorded() {
                true => {
                    "The program marks no steps. Mark them with `gpuflame.step()` in Python, `gpuflame_step()` in C, or \
                     `gpuflame run --window step-range=NAME COMMAND`."
                }
                false => "The trace has no steps. In PyTorch, `profiler.step()` marks them.",
            }
            .into();
        }
    }
    panel
}

fn ranks(job: &Job) -> Value {
    const COLUMNS: [(&str, &str); 7] = [
        ("rank", "id"),
        ("busy", "ns"),
        ("of", "ns"),
        ("work", "ns"),
        ("communication", "ns"),
        ("to the median", "percent"),
        ("verdict", "name"),
    ];
    let mut panel = json!({"id": "ranks", "title": "Ranks"});
    if !job.is_job() {
        panel["why"] = "The page shows one rank. `gpuflame report rank0.gfr rank1.gfr -o job.html` compares all ranks of a \
                        job."
            .into();
        return panel;
    }
    let rows = rank_panel::rows(job);
    let all = rows.len();
    panel["table"] = table(&COLUMNS, rows, all);
    panel["heat"] =
        job.ranks.iter().filter(|rank| !rank.steps.is_empty()).map(|rank| rank.steps.json()).collect();
    panel
}

/// Returns the panel of the timeline. The timeline's data is large, so a separate field of the page's data contains it.
fn timeline(job: &Job) -> Value {
    let mut panel = json!({"id": "timeline", "title": "Timeline"});
    if job.timeline.is_empty() {
        panel["why"] = "A timeline needs every call: record with `gpuflame run --rows COMMAND`.".into();
    }
    panel
}

/// Returns the views without data, each with a sentence that explains how to record the data.
fn absent_views(job: &Job) -> Value {
    let is_recorded = job.is_recorded();
    let why = |word: &str| match (word, is_recorded) {
        ("idle", _) => "No GPU was idle, or idle time is unknown because GPU work is missing.",
        ("waits", true) => "Set `GPUFLAME_FORMATS=sums,wait` to record where the host waited for a GPU.",
        ("cpu", true) => "`gpuflame run --cpu-samples 99 COMMAND` records the CPU time of launching threads.",
        ("offcpu", true) => {
            "`gpuflame run --off-cpu COMMAND` records where launching threads slept or waited."
        }
        ("memory", true) => "Set `GPUFLAME_FORMATS=sums,alloc` to record allocations.",
        ("gpu", _) => "No GPU work was recorded.",
        _ => "This trace does not have it.",
    };
    let views = job.views.absent().into_iter();
    let views: Vec<Value> =
        views.map(|(word, label)| json!({"id": word, "label": label, "why": why(word)})).collect();
    json!({"id": "views", "title": "Other views", "absent": views})
}
