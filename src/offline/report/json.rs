//! Writes the data of a page as compressed JSON, with as many nodes as fit.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gpuflame_export::json::comma;
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Measure, json_string};

use super::frame_names::{NameKind, SourcePlace};
use super::reduced_view::{MERGED_NAME, NodeName, ReducedView};
use super::tracks::Track;
use super::{PAGE_VIEWS, ReportViews};

/// Maximum number of nodes in a view. Browsers draw this number of nodes without delay.
const MAX_NODES: usize = 400_000;
/// Minimum number of nodes in a view, even if their names are long.
const MIN_NODES: usize = 50;
/// Maximum length of a name in characters. Longer names are truncated.
const MAX_NAME_CHARS: usize = 2_000;

/// Returns the data of a page as a zlib-compressed JSON object. The JSON object contains the views, and the members in
/// `head`, which is a list such as `"a":1,"b":2`. The views have as many nodes as fit into `max_bytes`. If there is an
/// older run to compare with, the views of that run are in the member `against`.
///
/// # Errors
/// Does not fail in practice, because the compressor writes to memory.
pub fn write_data(
    head: &str,
    views: &ReportViews,
    against: Option<&ReportViews>,
    max_bytes: usize,
) -> Result<Vec<u8>> {
    let mut max_nodes = MAX_NODES;
    loop {
        let against = against.map(|old| format!(",\"against\":{{{}}}", views_json(old, max_nodes)));
        let text = format!("{{{head},{}{}}}", views_json(views, max_nodes), against.unwrap_or_default());
        let mut compressed = ZlibEncoder::new(Vec::new(), Compression::default());
        compressed.write_all(text.as_bytes())?;
        let compressed = compressed.finish()?;
        if compressed.len() <= max_bytes || max_nodes <= MIN_NODES {
            return Ok(compressed);
        }
        max_nodes /= 2;
    }
}

/// Returns `text` as a JSON string of at most `MAX_NAME_CHARS` characters.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_NAME_CHARS) {
        Some((end, _)) => json_string(&format!("{}…", &text[..end])).to_string(),
        None => json_string(text).to_string(),
    }
}

/// Returns the members `names`, `kinds`, `places`, `tracks` and `views` of the page's data as JSON text.
fn views_json(views: &ReportViews, max_nodes: usize) -> String {
    let mut names = UsedNames::default();
    let mut list = Vec::new();
    for ((view, word, label), tree) in PAGE_VIEWS.iter().zip(&views.trees) {
        if tree.is_empty() {
            continue;
        }
        let reduced = ReducedView::new(tree, &views.names, max_nodes);
        let unit = match view.values[0].unit {
            Measure::Nanos => "ns",
            Measure::Bytes => "bytes",
            Measure::Count => "samples",
        };
        let head = format!(
            "\"id\":\"{word}\",\"label\":\"{label}\",\"unit\":\"{unit}\",\"counts\":{}",
            json_string(view.values.get(1).map_or("samples", |value| value.words))
        );
        list.push(view_json(&head, &reduced, &mut names));
    }
    let all = views.names.list();
    let (mut texts, mut kinds, mut places) = (String::new(), String::new(), String::new());
    for (at, name) in names.order.iter().enumerate() {
        let (text, kind, place) = match name {
            NodeName::Frame(number) => {
                let name = &all[*number as usize];
                (name.text.as_str(), name.kind, &name.place)
            }
            NodeName::Root | NodeName::Merged => (MERGED_NAME, NameKind::Cause, &SourcePlace::Unknown),
        };
        let place = place.text().map_or_else(|| "null".to_owned(), |place| quoted(&place));
        let _ = write!(texts, "{}{}", comma(at), quoted(text));
        let _ = write!(kinds, "{}{}", comma(at), kind as u8);
        let _ = write!(places, "{}{place}", comma(at));
    }
    let tracks: Vec<String> = views.tracks.list().iter().map(track_json).collect();
    format!(
        "\"names\":[{texts}],\"kinds\":[{kinds}],\"places\":[{places}],\"tracks\":[{}],\"views\":[{}]",
        tracks.join(","),
        list.join(",")
    )
}

/// Names that the views use, in the order of their first use.
#[derive(Default)]
struct UsedNames {
    order: Vec<NodeName>,
    numbers: HashMap<u64, usize>,
}

impl UsedNames {
    fn number(&mut self, name: NodeName) -> i64 {
        let key = match name {
            NodeName::Root => return -1,
            NodeName::Frame(number) => u64::from(number),
            NodeName::Merged => u64::MAX,
        };
        let next = self.order.len();
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.order.push(name);
        }
        number as i64
    }
}

fn view_json(head: &str, view: &ReducedView, names: &mut UsedNames) -> String {
    let mut text = format!("{{{head}");
    let (frames, nanos) = view.merged;
    if frames > 0 {
        let _ = write!(text, ",\"merged\":{{\"frames\":{frames},\"value\":{nanos}}}");
    }
    let name_numbers: Vec<i64> = view.nodes.iter().map(|(_, name)| names.number(*name)).collect();
    // Nodes are in preorder, so nearly every parent comes directly before its first child. Therefore the distance to
    // the parent is stored instead of the parent's index, because the distance needs only a tenth of the bytes.
    push_list(&mut text, "up", (0_i64..).zip(&view.nodes).map(|(at, (parent, _))| at - parent));
    push_list(&mut text, "name", name_numbers.into_iter());
    let nodes = || view.values.keys().map(|(node, _)| i64::from(*node));
    push_list(
        &mut text,
        "ahead",
        nodes().zip(std::iter::once(0).chain(nodes())).map(|(node, last)| node - last),
    );
    push_list(&mut text, "track", view.values.keys().map(|(_, track)| *track));
    push_list(&mut text, "value", view.values.values().map(|sums| sums[0]));
    push_list(&mut text, "count", view.values.values().map(|sums| sums[1]));
    text + "}"
}

pub(super) fn push_list<T: std::fmt::Display>(
    text: &mut String,
    name: &str,
    numbers: impl Iterator<Item = T>,
) {
    let _ = write!(text, ",\"{name}\":[");
    for (at, number) in numbers.enumerate() {
        let _ = write!(text, "{}{number}", comma(at));
    }
    text.push(']');
}

fn track_json(track: &Track) -> String {
    let text = |part: &Option<String>| part.as_deref().map_or_else(|| "null".to_owned(), quoted);
    let Track { rank, gpu, stream, thread } = track;
    let [rank, gpu, stream, thread] = [rank, gpu, stream, thread].map(text);
    format!("{{\"rank\":{rank},\"gpu\":{gpu},\"stream\":{stream},\"thread\":{thread}}}")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::ZlibDecoder;

    use super::super::frame_names::FrameName;
    use super::super::tracks::Track;
    use super::*;

    /// Returns a view with 3,000 functions below one root node. The functions take 1, 2, 3 ... ns, and run alternately
    /// on two threads.
    fn views() -> ReportViews {
        let mut views = ReportViews::default();
        let mut name = |text: String| {
            let kind = NameKind::Native;
            views.names.add(FrameName { text, kind, place: SourcePlace::Unknown })
        };
        let names: Vec<u32> = (0..=3000).map(|at| name(format!("f{}", at * at))).collect();
        let tracks = ["one", "other"]
            .map(|thread| views.tracks.number(Track { thread: Some(thread.to_owned()), ..Track::default() }));
        let tree = &mut views.trees[0];
        let root = tree.child(0, names[0]);
        for (at, name) in names.iter().enumerate().skip(1) {
            let node = tree.child(root, *name);
            tree.add(node, tracks[at % 2], [at as u64, 1]);
        }
        views
    }

    fn text(max_bytes: usize) -> (usize, String) {
        let data = write_data("\"version\":1", &views(), None, max_bytes).unwrap();
        let mut text = String::new();
        ZlibDecoder::new(&data[..]).read_to_string(&mut text).unwrap();
        (data.len(), text)
    }

    fn sum(text: &str, list: &str) -> u64 {
        let from = text.find(&format!("\"{list}\":[")).unwrap() + list.len() + 4;
        let numbers = text[from..].split(']').next().unwrap();
        numbers.split(',').map(|number| number.parse::<u64>().unwrap()).sum()
    }

    #[test]
    fn small_nodes_are_merged_until_the_data_fits_and_sums_stay() {
        let (whole_bytes, whole) = text(usize::MAX);
        let (bytes, reduced) = text(5_000);
        assert!(bytes <= 5_000 && whole_bytes > 10_000, "{bytes} of {whole_bytes} bytes");
        assert!(!whole.contains(MERGED_NAME) && reduced.contains(MERGED_NAME));
        for text in [&whole, &reduced] {
            assert_eq!(sum(text, "value"), 3000 * 3001 / 2);
            assert_eq!(sum(text, "count"), 3000);
        }
        // The function with the most time keeps its node, and the function with the least time does not.
        assert!(reduced.contains("\"f9000000\"") && !reduced.contains("\"f1\""));
        assert!(whole.contains("\"f1\""));
        assert_eq!(text(5_000).1, reduced, "the same input gives the same bytes");
    }
}
