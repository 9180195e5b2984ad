//! Converts the critical path to slices of a track, for `gpuflame convert --to perfetto --critical-path`.

use super::found_path::FoundPath;
use super::path_names::{PathNames, why_words};
use gpuflame_offline::analysis::{PathClass, PathPart, Savings, What};
use gpuflame_offline::formats::{SliceTrack, TrackSlice};

/// Returns the track that shows the critical path, with one slice per part.
pub(super) fn path_track(found: &FoundPath) -> SliceTrack<'_> {
    let (names, savings) = (found.names(), found.path.savings());
    let parts = found.path.parts();
    let slices = parts.iter().enumerate().map(move |(at, part)| {
        let before = at.checked_sub(1).map(|at| &parts[at]);
        slice(names, before, part, savings)
    });
    SliceTrack {
        group: None,
        name: "critical path".to_owned(),
        category: "critical_path",
        slices: Box::new(slices),
    }
}

fn slice(names: PathNames<'_>, before: Option<&PathPart>, part: &PathPart, savings: &Savings) -> TrackSlice {
    let mut texts = vec![
        ("class", part.class.word().to_owned()),
        ("name", names.name(part).into_owned()),
        ("reason", names.reason(before, part)),
    ];
    texts.extend(names.function(part).map(|function| ("function", function)));
    let mut numbers = vec![("saving_ns", savings.of(part))];
    numbers.extend(names.thread(part).map(|thread| ("thread", thread.0.into())));
    if let Some((device, stream)) = names.stream(part) {
        numbers.extend([("device", device.into()), ("stream", stream.into())]);
    }
    let title = title(names, part);
    TrackSlice { start: part.start, end: part.end, title, texts, numbers, ..TrackSlice::default() }
}

/// Returns the title of a slice. If a part is not the execution of the kernel or call in its title, the title begins
/// with the part's class. Therefore a search for the name of a kernel finds the times at which the kernel ran.
fn title(names: PathNames<'_>, part: &PathPart) -> String {
    let name = names.name(part);
    match part.class {
        PathClass::Kernel
        | PathClass::Memory
        | PathClass::Graph
        | PathClass::HostFunction
        | PathClass::Call => name.into_owned(),
        PathClass::Launch => format!("launch of {name}"),
        PathClass::Gap => format!("gap before {name}"),
        PathClass::Return => format!("return of {name}"),
        PathClass::Host => match part.what {
            What::Stack { .. } => name.into_owned(),
            _ => "host between two calls".to_owned(),
        },
        PathClass::HandOff => "hand-off between threads".to_owned(),
        PathClass::Unexplained(why) => format!("unexplained: {}", why_words(why)),
    }
}
