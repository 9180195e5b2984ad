//! Writes the table of stacks. The columns `stack` and `created_stack` of the activity table contain the ids of these
//! stacks.

use std::collections::BTreeMap;
use std::io::Write;

use super::clean;
use super::compose::{call, stack};
use super::options::{GraphStacks, NameFolding};
use super::source::source_line;
use super::table;
use gpuflame_model::error::Result;
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{Leaf, Profile, SampleSite, add_to};
use gpuflame_model::record::{ContextId, Created};

const HEADER: [&str; 11] = [
    "stack",
    "thread",
    "thread_name",
    "call",
    "frames",
    "activities",
    "created",
    "pending",
    "language",
    "file",
    "line",
];

/// Writes a row for each stack. A row contains the thread, the API call, the frames, three counts, and the source line
/// of the call if known. The column `activities` counts the activities whose `stack` is the stack of the row. The
/// column `created` counts the activities whose `created_stack` is the stack of the row. The column `pending` counts
/// the launches that have the stack of the row and no activity.
///
/// # Errors
/// Errors of `out`.
pub fn write_stacks_csv(profile: &Profile, out: &mut impl Write) -> Result<()> {
    let mut counts: BTreeMap<ContextId, [u64; 3]> = BTreeMap::new();
    for sample in profile.samples(&GPU) {
        let mut count = |context, column: usize| {
            add_to(&mut counts.entry(context).or_default()[column], sample.count());
        };
        if let Ok(context) = sample.site.launch() {
            count(context, if sample.leaf == Leaf::PENDING { 2 } else { 0 });
        }
        if let SampleSite::Node { created: Created::Context(context), .. } = sample.site {
            count(context, 1);
        }
    }
    let mut table = csv::Writer::from_writer(out);
    table.write_record(HEADER).map_err(table::error)?;
    for (id, counts) in counts {
        let thread = profile.context(id).map(|context| context.thread);
        let thread_name = thread.and_then(|thread| profile.thread(thread)).filter(|name| !name.is_empty());
        let frames = stack(profile, SampleSite::Context(id), GraphStacks::Both, NameFolding::Kept);
        let frames: Vec<_> = frames.iter().map(|frame| clean::frame(&frame.text)).collect();
        let row = [
            id.0.to_string(),
            thread.map_or(0, |thread| thread.0).to_string(),
            thread_name.map_or_else(String::new, |name| clean::cell(name).into_owned()),
            clean::cell(call(profile, id)).into_owned(),
            clean::cell(&frames.join(";")).into_owned(),
        ];
        let counts = counts.map(|count| count.to_string());
        let source = source_line(profile, SampleSite::Context(id), NameFolding::Kept);
        let source = source.map_or_else(Default::default, |it| {
            [it.language.to_owned(), clean::cell(it.file).into_owned(), it.line.to_string()]
        });
        table.write_record(row.into_iter().chain(counts).chain(source)).map_err(table::error)?;
    }
    table.flush()?;
    Ok(())
}
