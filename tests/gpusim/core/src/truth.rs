//! The truth file: a summary of the GPU work that the simulated GPU really ran. The file contains only data from the
//! simulation and the test program's own call sites. Each thread counts its GPU work separately, so that launching
//! threads do not slow each other down. Memory use does not grow with the number of launches.

use crate::faults::Fault;
use crate::kernel::Kernel;
use crate::settings;
use crate::site::Site;
use crate::sync::lock;
use crate::work::{Copy, Fate, Work, WorkKind};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

/// Key of a summary row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    site: Option<&'static Site>,
    /// Call site at which the graph node was created.
    created: Option<&'static Site>,
    kind: WorkKind,
    copy: Copy,
    name: Option<&'static CStr>,
    device: u32,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    ns: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.count += other.count;
        self.ns += other.ns;
    }
}

/// Sums for one key: for all GPU work, and for GPU work without an activity record. GPU work has no activity record if
/// no client enabled its activity kind or if its record is lost.
#[derive(Clone, Copy, Default)]
struct Row {
    all: Sum,
    dropped: Sum,
    untraced: Sum,
}

/// One thread's sums.
#[derive(Default)]
pub struct ThreadTally(Mutex<Tally>);

#[derive(Default)]
struct Tally {
    launches: u64,
    graph_launches: u64,
    failed: u64,
    rows: Vec<Row>,
    /// Cache of key indexes, because programs launch the same few kernels repeatedly. The position in the cache is a
    /// hash of the key's addresses.
    recent: [Option<(Key, u32)>; 32],
}

struct Truth {
    detail: Option<Mutex<BufWriter<File>>>,
    /// File to which a line is written when a kernel, copy or fill starts. Each line is written immediately, so it
    /// remains even if the process is killed.
    started: Option<File>,
    keys: Mutex<(HashMap<Key, u32>, Vec<Key>)>,
    tallies: Mutex<Vec<&'static ThreadTally>>,
    delivered: Mutex<Vec<Sum>>,
    faults: Mutex<HashMap<&'static str, u64>>,
    closed: AtomicBool,
}

static TRUTH: OnceLock<Option<Truth>> = OnceLock::new();

/// Returns the truth file, if the user requested it and this process is not a forked child.
fn truth() -> Option<&'static Truth> {
    let truth = TRUTH.get_or_init(|| {
        let settings = settings::get();
        let wanted =
            settings.truth.is_some() || settings.truth_summary.is_some() || settings.truth_started.is_some();
        wanted.then(|| Truth {
            detail: settings.truth.as_deref().map(|path| Mutex::new(create(path))),
            started: settings.truth_started.as_deref().map(|path| {
                let mut options = File::options();
                let file = options.append(true).create(true).open(path);
                file.unwrap_or_else(|e| crate::abort!("truth file {}: {e}", path.display()))
            }),
            keys: Mutex::default(),
            tallies: Mutex::default(),
            delivered: Mutex::default(),
            faults: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    });
    truth.as_ref().filter(|t| !t.closed.load(Relaxed))
}

fn create(path: &Path) -> BufWriter<File> {
    let file = File::create(path).unwrap_or_else(|e| crate::abort!("truth file {}: {e}", path.display()));
    BufWriter::with_capacity(1 << 20, file)
}

/// Creates the truth files. Called when the driver starts, so that the files exist even if no GPU work runs.
pub fn open() {
    if let Some(path) = settings::get().truth_summary.as_ref().filter(|_| truth().is_some()) {
        drop(create(path));
    }
}

impl ThreadTally {
    /// Returns a tally for a new thread.
    pub fn register() -> &'static ThreadTally {
        let tally: &'static ThreadTally = Box::leak(Box::default());
        if let Some(truth) = truth() {
            lock(&truth.tallies).push(tally);
        }
        tally
    }

    /// Counts a call that launches a kernel.
    pub fn count_launch(&self, failed: bool) {
        if truth().is_some() {
            let mut tally = lock(&self.0);
            tally.launches += 1;
            tally.failed += u64::from(failed);
        }
    }

    /// Counts a call that launches a graph.
    pub fn count_graph_launch(&self) {
        if truth().is_some() {
            lock(&self.0).graph_launches += 1;
        }
    }

    /// Counts GPU work that starts now, and sets `work.tally`. `traced` is true if an activity record of the work will
    /// be requested.
    pub fn count_work(&self, work: &mut Work, traced: bool) {
        let Some(truth) = truth() else { return };
        truth.write_started(work);
        let key = Key {
            site: work.site,
            created: work.graph.created,
            kind: work.kind,
            copy: work.copy,
            name: work.name(),
            device: work.place.device,
        };
        let sum = Sum { count: 1, ns: work.end - work.start };
        let mut tally = lock(&self.0);
        work.tally = tally.number_of(key, truth);
        let row = tally.row(work.tally);
        row.all.add(sum);
        if !traced {
            row.untraced.add(sum);
        }
        drop(tally);
        if let Some(fault) = work.fault {
            truth.count_fault(fault);
        }
        if !traced {
            truth.write_detail(work, Fate::Untraced);
        }
    }

    /// Counts work whose activity record found no buffer, or for which tracing ended before its record was made.
    pub fn count_lost(&self, work: &Work, fate: Fate) {
        let Some(truth) = truth() else { return };
        let mut tally = lock(&self.0);
        let row = tally.row(work.tally);
        let lost = if fate == Fate::Dropped { &mut row.dropped } else { &mut row.untraced };
        lost.add(Sum { count: 1, ns: work.end - work.start });
        drop(tally);
        truth.write_detail(work, fate);
    }
}

impl Tally {
    fn number_of(&mut self, key: Key, truth: &Truth) -> u32 {
        let address = |site: Option<&Site>| site.map_or(0, |s| std::ptr::from_ref(s) as usize);
        let name = key.name.map_or(0, |n| n.as_ptr() as usize);
        let hash = (address(key.site)
            ^ address(key.created).rotate_left(3)
            ^ name.rotate_left(7)
            ^ key.kind as usize)
            >> 4;
        let slot = &mut self.recent[hash % 32];
        if let Some((_, number)) = slot.filter(|(k, _)| *k == key) {
            return number;
        }
        let mut keys = lock(&truth.keys);
        let (numbers, list) = &mut *keys;
        let number = *numbers.entry(key).or_insert_with(|| {
            list.push(key);
            list.len() as u32
        });
        *slot = Some((key, number));
        number
    }

    fn row(&mut self, number: u32) -> &mut Row {
        let wanted = number as usize + 1;
        if self.rows.len() < wanted {
            self.rows.resize(wanted, Row::default());
        }
        &mut self.rows[number as usize]
    }
}

/// Counts what happened to activity records that were in a buffer: [`Fate::Delivered`] or [`Fate::Pending`].
pub fn settle(works: &[Work], fate: Fate) {
    let Some(truth) = truth() else { return };
    if fate == Fate::Delivered {
        let mut delivered = lock(&truth.delivered);
        for work in works {
            let wanted = work.tally as usize + 1;
            if delivered.len() < wanted {
                delivered.resize(wanted, Sum::default());
            }
            delivered[work.tally as usize].add(Sum { count: 1, ns: work.end - work.start });
        }
    }
    for work in works {
        truth.write_detail(work, fate);
    }
}

/// Counts a fault that is not related to any GPU work.
pub fn count_fault(fault: Fault) {
    if let Some(truth) = truth() {
        truth.count_fault(fault);
    }
}

/// Writes the current sums, for a program that is about to call `_exit`.
pub fn flush(corr_ids: u64) {
    if let Some(truth) = truth() {
        truth.write_out(corr_ids);
    }
}

/// Writes the sums to the truth file for the last time. The truth file does not count GPU work that starts later.
pub fn close(corr_ids: u64) {
    if let Some(truth) = truth() {
        truth.closed.store(true, Relaxed);
        truth.write_out(corr_ids);
    }
}

impl Truth {
    fn count_fault(&self, fault: Fault) {
        *lock(&self.faults).entry(fault.name()).or_default() += 1;
    }

    /// Writes each line with a single call, so that lines of different threads do not mix.
    fn write_started(&self, work: &Work) {
        if let Some(mut file) = self.started.as_ref() {
            let line = detail_line(work, Fate::Pending);
            file.write_all(line.as_bytes()).unwrap_or_else(|e| crate::abort!("truth file: {e}"));
        }
    }

    fn write_detail(&self, work: &Work, fate: Fate) {
        if let Some(detail) = &self.detail {
            let line = detail_line(work, fate);
            lock(detail).write_all(line.as_bytes()).unwrap_or_else(|e| crate::abort!("truth file: {e}"));
        }
    }

    fn write_out(&self, corr_ids: u64) {
        if let Some(detail) = &self.detail {
            lock(detail).flush().unwrap_or_else(|e| crate::abort!("truth file: {e}"));
        }
        if let Some(path) = &settings::get().truth_summary {
            let written = create(path).write_all(self.summary(corr_ids).as_bytes());
            written.unwrap_or_else(|e| crate::abort!("truth file {}: {e}", path.display()));
        }
    }

    fn summary(&self, corr_ids: u64) -> String {
        let keys = lock(&self.keys).1.clone();
        let mut rows = vec![Row::default(); keys.len() + 1];
        let (mut launches, mut graph_launches, mut failed) = (0, 0, 0);
        for tally in lock(&self.tallies).iter() {
            let tally = lock(&tally.0);
            launches += tally.launches;
            graph_launches += tally.graph_launches;
            failed += tally.failed;
            for (total, row) in rows.iter_mut().zip(&tally.rows) {
                total.all.add(row.all);
                total.dropped.add(row.dropped);
                total.untraced.add(row.untraced);
            }
        }
        let mut delivered = lock(&self.delivered).clone();
        delivered.resize(keys.len() + 1, Sum::default());

        let mut lines = Vec::new();
        let mut totals = (Row::default(), Sum::default());
        for (i, key) in keys.iter().enumerate() {
            let (row, delivered) = (rows[i + 1], delivered[i + 1]);
            totals.0.all.add(row.all);
            totals.0.dropped.add(row.dropped);
            totals.0.untraced.add(row.untraced);
            totals.1.add(delivered);
            lines.push(format!(
                "{{{},\"count\":{},\"total_ns\":{},\"delivered\":{},\"delivered_ns\":{}}}\n",
                key.json(),
                row.all.count,
                row.all.ns,
                delivered.count,
                delivered.ns
            ));
        }
        lines.sort_unstable();
        let (row, delivered) = totals;
        let pending = row.all.count - row.dropped.count - row.untraced.count - delivered.count;
        let mut faults: Vec<String> =
            lock(&self.faults).iter().map(|(f, n)| format!("\"{f}\":{n}")).collect();
        faults.sort_unstable();
        lines.push(format!(
            "{{\"totals\":{{\"launch_calls\":{launches},\"graph_launches\":{graph_launches},\"failed_launches\":{failed},\"count\":{},\"total_ns\":{},\
             \"delivered\":{},\"delivered_ns\":{},\"dropped\":{},\"untraced\":{},\"pending\":{pending},\
             \"corr_ids\":{corr_ids},\"faults\":{{{}}}}}}}\n",
            row.all.count,
            row.all.ns,
            delivered.count,
            delivered.ns,
            row.dropped.count,
            row.untraced.count,
            faults.join(","),
        ));
        lines.concat()
    }
}

impl Key {
    fn json(&self) -> String {
        let created = self.created.map(|site| format!("\"created\":{},", quoted(Some(site.path()))));
        format!(
            "\"site\":{},{}\"kind\":\"{}\",\"name\":{},\"copy\":{},\"device\":{}",
            quoted(self.site.map(Site::path)),
            created.unwrap_or_default(),
            self.kind.name(),
            quoted(self.name.map(CStr::to_string_lossy).as_deref()),
            quoted(self.copy.name()),
            self.device
        )
    }
}

fn detail_line(work: &Work, fate: Fate) -> String {
    let api = if work.api.is_null() {
        None
    } else {
        // SAFETY: the name of an API call is a string literal.
        Some(unsafe { CStr::from_ptr(work.api) }.to_string_lossy())
    };
    let nested = match work.nested_correlation {
        0 => String::new(),
        id => format!("\"nested_corr\":{id},"),
    };
    let graph = match work.graph.graph {
        0 => String::new(),
        id => format!(
            "\"created\":{},\"graph\":{id},\"graph_node\":{},\"source_graph\":{},\"source_node\":{},",
            quoted(work.graph.created.map(Site::path)),
            work.graph.node,
            work.graph.source_graph,
            work.graph.source_node,
        ),
    };
    format!(
        "{{\"corr\":{},{nested}\"tid\":{},\"site\":{},{graph}\"api\":{},\"kind\":\"{}\",\"copy\":{},\"name\":{},\
         \"device\":{},\"context\":{},\"stream\":{},\"bytes\":{},\"start\":{},\"end\":{},\"enter\":{},\
         \"fault\":{},\"delivered\":\"{}\"}}\n",
        work.correlation,
        work.tid,
        quoted(work.site.map(Site::path)),
        quoted(api.as_deref()),
        work.kind.name(),
        quoted(work.copy.name()),
        quoted(work.kernel.map(|k: &Kernel| k.name.to_string_lossy()).as_deref()),
        work.place.device,
        work.place.context,
        work.stream,
        work.bytes,
        work.start,
        work.end,
        work.enter,
        quoted(work.fault.map(|f| f.name())),
        fate.name(),
    )
}

/// Formats a text as a JSON string, or as null.
pub(crate) fn quoted(text: Option<&str>) -> String {
    let Some(text) = text else { return "null".to_owned() };
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => json.push_str(&format!("\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_json() {
        assert_eq!(quoted(None), "null");
        assert_eq!(quoted(Some("a\"b\\c\n")), "\"a\\\"b\\\\c\\u000a\"");
    }
}
