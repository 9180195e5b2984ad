//! Cuts names, stacks and paths to a width. Texts that differ still differ after they are cut, because the part in
//! which they differ is kept. A cut stack also keeps the frames of the user's own code.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Maximum length, in characters, of a name in tables that have a maximum size.
pub(super) const MAX_NAME_CHARS: usize = 160;

/// Cuts a text to its first `most` characters, followed by `...`.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Kind of a text. The kind of a text determines which part of the text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TextKind {
    /// A name. The beginning and the end of a name are kept.
    Name,
    /// A stack, whose frames are separated by `;`. Only complete frames of the stack are kept.
    Stack,
    /// A stack in a row that can be identified by the other columns of the row. If stacks of this kind are cut, they
    /// may become equal.
    Site,
    /// A path. The end of a path is kept.
    Path,
    /// A sentence, which is wrapped at blanks instead of cut.
    Prose,
}

/// Text to cut.
#[derive(Clone, Debug)]
pub(super) struct Text<'a> {
    pub(super) whole: &'a str,
    /// The frame of a stack that is kept first when a stack is cut. The frame `own` is the innermost frame of the
    /// user's code.
    pub(super) own: Option<&'a str>,
}

const GAP: &str = "...";
/// Minimum width at which a cut name consists of three pieces instead of two.
const MIN_WIDTH_OF_THREE: usize = 45;
/// Maximum number of frames of a stack that are tried although they do not fit. After this number of frames that do not
/// fit, no further frame is tried.
const MAX_MISSES: usize = 8;

/// Returns each text as lines. A line is at most `width` wide. Texts that differ never become equal, unless their kind
/// is `Site`. Texts that cannot be distinguished within one line take several lines.
pub(super) fn fit_all(texts: &[Text<'_>], kind: TextKind, width: usize) -> Vec<Vec<String>> {
    let named: Vec<Cow<'_, str>>;
    let shorter: Vec<Text<'_>>;
    let mut texts = texts;
    if kind == TextKind::Name && texts.iter().any(|text| text.whole.width() > width) {
        named = names_without_folders(texts);
        shorter = named.iter().map(|whole| Text { whole, own: None }).collect();
        texts = &shorter;
    }
    let mut fitted = fit_in_lines(texts, kind, width, 1);
    let mut lines = 2;
    loop {
        let open: Vec<usize> = (0..fitted.len()).filter(|at| fitted[*at].is_none()).collect();
        if open.is_empty() {
            return fitted.into_iter().flatten().collect();
        }
        let texts: Vec<_> = open.iter().map(|at| texts[*at].clone()).collect();
        for (at, lines) in open.into_iter().zip(fit_in_lines(&texts, kind, width, lines)) {
            fitted[at] = lines;
        }
        lines *= 2;
    }
}

/// Returns the names without the folders of the files in them. A name keeps its folders if it would otherwise become
/// equal to another name.
fn names_without_folders<'a>(texts: &[Text<'a>]) -> Vec<Cow<'a, str>> {
    let mut owners: HashMap<Cow<'a, str>, BTreeSet<&'a str>> = HashMap::new();
    for text in texts {
        owners.entry(without_folders(text.whole)).or_default().insert(text.whole);
    }
    let short = |text: &Text<'a>| match without_folders(text.whole) {
        short if owners[&short].len() == 1 => short,
        _ => Cow::Borrowed(text.whole),
    };
    texts.iter().map(short).collect()
}

/// Cuts all texts to `lines` lines of width `line_width`, and returns the lines of each text. Returns `None` in place
/// of the lines of a text that would become equal to another text.
fn fit_in_lines(
    texts: &[Text<'_>],
    kind: TextKind,
    line_width: usize,
    lines: usize,
) -> Vec<Option<Vec<String>>> {
    // Wrapping between words does not completely fill the lines, so less text fits into them.
    let width = if lines == 1 { line_width } else { line_width * lines - line_width / 2 };
    let in_lines = |text: &str| if lines == 1 { vec![text.to_owned()] } else { wrap(text, line_width) };
    if kind == TextKind::Prose {
        return texts.iter().map(|text| Some(wrap(text.whole, line_width))).collect();
    }
    let long: BTreeMap<&str, Option<&str>> =
        texts.iter().filter(|text| text.whole.width() > width).map(|text| (text.whole, text.own)).collect();
    let short: BTreeSet<&str> =
        texts.iter().map(|text| text.whole).filter(|whole| whole.width() <= width).collect();
    let mut cuts: HashMap<&str, String> = HashMap::new();
    let mut open: Vec<&str> = long.keys().copied().collect();
    // The ways to cut a text are tried one after another. Each way is applied only to texts that became equal when they
    // were cut by the ways before it.
    for way in [Way::Ends, Way::GroupDifference, Way::OwnDifference] {
        let groups = groups(&open, &cuts);
        let mut tried: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for group in groups {
            for (at, text) in group.iter().enumerate() {
                let place = way.place(&group, at, kind);
                let cut = match kind {
                    TextKind::Stack | TextKind::Site => cut_stack(text, long[text], place, width),
                    TextKind::Path => cut_path(text, place, width),
                    TextKind::Name | TextKind::Prose => cut_name(text, place, width),
                };
                tried.entry(cut).or_default().push(text);
            }
        }
        open.clear();
        for (cut, texts) in tried {
            let is_taken = kind != TextKind::Site && (texts.len() > 1 || short.contains(&*cut));
            open.extend(texts.iter().filter(|_| is_taken));
            cuts.extend(texts.into_iter().map(|text| (text, cut.clone())));
        }
    }
    let unclear: BTreeSet<&str> = open.into_iter().collect();
    let lines = |text: &Text<'_>| match cuts.get(text.whole) {
        Some(_) if unclear.contains(text.whole) => None,
        Some(cut) => Some(in_lines(cut)),
        None => Some(in_lines(text.whole)),
    };
    texts.iter().map(lines).collect()
}

/// Returns the groups of texts that are equal after they were cut.
fn groups<'a>(open: &[&'a str], cuts: &HashMap<&str, String>) -> Vec<Vec<&'a str>> {
    if cuts.is_empty() {
        return open.iter().map(|text| vec![*text]).collect();
    }
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for text in open {
        groups.entry(&cuts[text]).or_default().push(text);
    }
    groups.into_values().collect()
}

/// Rule that chooses which part of a text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Keeps the most informative parts of a text.
    Ends,
    /// Keeps the first place at which the texts of the group differ.
    GroupDifference,
    /// Keeps the first place at which a text differs from every other text of the group.
    OwnDifference,
}

impl Way {
    /// Returns the place that must be kept in the text at index `at` of a sorted group. A place is the index of a
    /// character, or of a frame of a stack.
    fn place(self, group: &[&str], at: usize, kind: TextKind) -> Option<usize> {
        let common = |one: &str, other: &str| match kind {
            TextKind::Stack => one.split(';').zip(other.split(';')).take_while(|(a, b)| a == b).count(),
            _ => one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count(),
        };
        let (first, last) = (group.first()?, group.last()?);
        match self {
            Self::Ends => None,
            // If the group is sorted, all its texts share the beginning that the first and the last text share.
            Self::GroupDifference => Some(common(first, last)),
            Self::OwnDifference => {
                let before = at.checked_sub(1).map_or(0, |before| common(group[before], group[at]));
                let after = group.get(at + 1).map_or(0, |after| common(group[at], after));
                Some(before.max(after))
            }
        }
    }
}

/// Cuts a name to `width`. The part of the name around the character at index `place` is kept. If `place` is `None`,
/// the middle is omitted, because the beginning and the end of a kernel's name are the most informative parts.
fn cut_name(text: &str, place: Option<usize>, width: usize) -> String {
    let room = width.saturating_sub(GAP.len());
    let Some(place) = place else {
        return format!("{}{GAP}{}", start(text, width / 2), end(text, room - width / 2));
    };
    if width < MIN_WIDTH_OF_THREE {
        let before = start(text, width / 3);
        if place <= before.chars().count() {
            return format!("{}{GAP}", start(text, room));
        }
        // All texts of the group have the same beginning, so the beginning is omitted. Omitting the beginning leaves
        // more room for the place at which the texts differ.
        let room = room - before.width();
        let from = place.saturating_sub(room / 4).max(before.chars().count());
        let rest: String = text.chars().skip(from).collect();
        return match rest.width() <= room {
            true => format!("{before}{GAP}{}", end(text, room)),
            false => format!("{before}{GAP}{}{GAP}", start(&rest, room.saturating_sub(GAP.len()))),
        };
    }
    let piece = (width - 2 * GAP.len()) / 3;
    // The middle piece begins shortly before the difference, to show the characters before and after the difference.
    let rest: String = text.chars().skip(place.saturating_sub(piece / 3)).collect();
    format!("{}{GAP}{}{GAP}{}", start(text, piece), start(&rest, piece), end(text, piece))
}

/// Cuts a path, or another text whose end is its most informative part, to `width`.
fn cut_path(text: &str, place: Option<usize>, width: usize) -> String {
    let room = width.saturating_sub(GAP.len());
    let Some(place) = place else {
        let rest = end(text, room);
        // If the file name fits, each folder is either kept completely or omitted.
        let folder =
            if text[..text.len() - rest.len()].ends_with('/') { 0 } else { rest.find('/').unwrap_or(0) };
        return format!("{GAP}{}", &rest[folder..]);
    };
    let rest: String = text.chars().skip(place).collect();
    if rest.width() <= room {
        return format!("{GAP}{}", end(text, room));
    }
    let room = room.saturating_sub(GAP.len());
    let rest: String = text.chars().skip(place.saturating_sub(room / 4)).collect();
    let head = start(&rest, room / 2);
    format!("{GAP}{head}{GAP}{}", end(text, room.saturating_sub(head.width())))
}

/// Cuts a stack to whole frames that fit into `width`. Frames are kept in this order: the frame `own`; the frame at
/// index `place`; the other frames of the user's code, innermost first; the innermost frame; all other frames,
/// innermost first.
fn cut_stack(text: &str, own: Option<&str>, place: Option<usize>, width: usize) -> String {
    let whole: Vec<&str> = text.split(';').collect();
    let own = own.and_then(|own| whole.iter().rposition(|frame| *frame == own));
    let is_users = |at: &usize| !is_foreign(whole[*at]);
    // The frame in which stacks differ keeps its folders, because the difference may be in a folder.
    let frame = |(at, frame)| match Some(at) == place {
        true => Cow::Borrowed(without_module_prefix(frame)),
        false => without_folders(without_module_prefix(frame)),
    };
    let frames: Vec<Cow<'_, str>> = whole.iter().copied().enumerate().map(frame).collect();
    let last = frames.len() - 1;
    let own = own.or_else(|| (0..=last).rev().find(is_users)).unwrap_or(last);
    let users = (0..=last).rev().filter(is_users);
    let wanted = place.filter(|place| *place <= last).into_iter().chain([own]);
    let wanted = wanted.chain(users).chain([last]).chain((0..=last).rev());
    let mut kept: BTreeSet<usize> = BTreeSet::new();
    let mut misses = 0;
    for at in wanted {
        if !kept.insert(at) {
            continue;
        }
        if joined(&frames, &kept).width() > width {
            if kept.len() == 1 {
                // In a very narrow column, not even the most important frame fits together with the gaps before and
                // after it.
                let (before, after) = (if at > 0 { "...;" } else { "" }, if at < last { ";..." } else { "" });
                let frame = &frames[at];
                if frame.width() + before.len() + GAP.len() <= width {
                    return format!("{before}{frame}{GAP}");
                }
                let room = width.saturating_sub(before.len() + after.len()).max(GAP.len() + 2);
                return format!("{before}{}{after}", cut_name(&without_folders(frame), None, room));
            }
            kept.remove(&at);
            misses += 1;
            if misses == MAX_MISSES {
                break;
            }
        }
    }
    joined(&frames, &kept)
}

/// Returns the kept frames as text, with `...` in place of omitted frames.
fn joined(frames: &[Cow<'_, str>], kept: &BTreeSet<usize>) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let mut next = 0;
    for &at in kept {
        if at > next {
            parts.push(GAP);
        }
        parts.push(&frames[at]);
        next = at + 1;
    }
    if next < frames.len() {
        parts.push(GAP);
    }
    parts.join(";")
}

/// Removes the prefix `nn.Module: ` from the frame of a PyTorch module.
fn without_module_prefix(frame: &str) -> &str {
    frame.strip_prefix("nn.Module: ").unwrap_or(frame)
}

/// Removes the folders of Python files from a text: `/srv/model.py(12): forward` becomes `model.py(12): forward`.
fn without_folders(text: &str) -> Cow<'_, str> {
    if !text.contains('/') || !text.contains(".py") {
        return text.into();
    }
    let mut short = String::with_capacity(text.len());
    for word in text.split_inclusive([' ', '[', '(']) {
        match (word.find(".py"), word.rfind('/')) {
            (Some(ending), Some(slash)) if slash < ending => short.push_str(&word[slash + 1..]),
            _ => short.push_str(word),
        }
    }
    short.into()
}

/// Whether the name of a frame shows that the frame belongs to a library, to the interpreter or to an API.
fn is_foreign(frame: &str) -> bool {
    const STARTS: [&str; 24] = [
        "[",
        "<",
        "aten::",
        "at::",
        "c10::",
        "torch::",
        "torch/",
        "std::",
        "pybind11::",
        "autograd::",
        "cuda",
        "nccl",
        "hip",
        "_Py",
        "Py",
        "nn.Module: ",
        "ProfilerStep#",
        "ProfileStep#",
        "__libc_start",
        "_start",
        "start_thread",
        "clone",
        "runpy.py",
        "threading.py",
    ];
    const PARTS: [&str; 5] = ["-packages/", "<frozen ", "+0x", "/lib/python3", "(module.py:"];
    let is_driver_call =
        frame.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    is_driver_call
        || STARTS.iter().any(|start| frame.starts_with(start))
        || PARTS.iter().any(|part| frame.contains(part))
}

/// Wraps a text into lines of at most `width`, at blanks or semicolons if possible. The returned list has at least one
/// line.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive([' ', ';']) {
        let mut word = word;
        let line = lines.last_mut().expect("there is always a line");
        if line.width() + word.trim_end().width() > width && !line.is_empty() {
            lines.push(String::new());
        }
        // A word that is longer than a line is broken at any character.
        while word.trim_end().width() > width {
            let part = start(word, width);
            if part.is_empty() {
                break;
            }
            word = &word[part.len()..];
            *lines.last_mut().expect("there is always a line") = part;
            lines.push(String::new());
        }
        lines.last_mut().expect("there is always a line").push_str(word);
    }
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    if lines.len() > 1 && lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Returns the longest beginning of a text that is at most `width` wide.
fn start(text: &str, width: usize) -> String {
    let mut used = 0;
    text.chars().take_while(|c| add_width(&mut used, *c) <= width).collect()
}

/// Returns the longest end of a text that is at most `width` wide.
fn end(text: &str, width: usize) -> String {
    let mut used = 0;
    let reversed: Vec<char> = text.chars().rev().take_while(|c| add_width(&mut used, *c) <= width).collect();
    reversed.into_iter().rev().collect()
}

fn add_width(used: &mut usize, c: char) -> usize {
    *used += c.width().unwrap_or(0);
    *used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(texts: &[&str], kind: TextKind, width: usize) -> Vec<Vec<String>> {
        let texts: Vec<_> = texts.iter().map(|whole| Text { whole, own: None }).collect();
        let fitted = fit_all(&texts, kind, width);
        assert!(fitted.iter().flatten().all(|line| line.width() <= width), "{fitted:#?}");
        fitted
    }

    fn one_line(texts: &[&str], kind: TextKind, width: usize) -> Vec<String> {
        fit(texts, kind, width).into_iter().map(|mut lines| lines.remove(0)).collect()
    }

    #[test]
    fn names_keep_both_ends_or_the_part_in_which_they_differ() {
        let name = |middle: &str| format!("{}{middle}{}", "b".repeat(90), "e".repeat(90));
        let (float, half) = (name("<float>"), name("<half>"));
        assert_eq!(
            one_line(&[&float], TextKind::Name, 110),
            [format!("{}...{}", "b".repeat(55), "e".repeat(52))]
        );
        // The two gaps take 6 of 110 characters, so each of the three pieces has 34 characters. Both names have `<` as
        // character 91 and differ in the next character. The middle piece begins eleven characters before this
        // difference.
        let cut = |middle: &str| {
            let around = format!("{}{middle}{}", "b".repeat(10), "e".repeat(24 - middle.len()));
            format!("{}...{around}...{}", "b".repeat(34), "e".repeat(34))
        };
        assert_eq!(
            one_line(&[&float, &half, "short"], TextKind::Name, 110),
            [cut("<float>"), cut("<half>"), "short".to_owned()]
        );
        // In a narrow column, a cut name has two pieces. The first piece has a third of the 30 characters, and the
        // second piece begins shortly before the difference.
        let narrow = one_line(&[&float, &half], TextKind::Name, 30);
        assert_eq!(narrow, ["bbbbbbbbbb...bbb<float>eeee...", "bbbbbbbbbb...bbb<half>eeeee..."]);
    }

    #[test]
    fn names_that_a_width_cannot_tell_apart_continue_in_further_lines() {
        // The names differ in two places, which are too far apart to show both in one line.
        let name = |one: &str, other: &str| {
            format!("{}{one}{}{other}{}", "b".repeat(50), "m".repeat(60), "e".repeat(50))
        };
        let all = [name("1", "1"), name("1", "2"), name("2", "1"), name("2", "2")];
        let shown = fit(&all.each_ref().map(String::as_str), TextKind::Name, 40);
        assert_eq!(shown.iter().collect::<BTreeSet<_>>().len(), 4, "{shown:#?}");
        assert!(shown.iter().any(|lines| lines.len() > 1), "{shown:#?}");
    }

    #[test]
    fn stacks_keep_the_users_frames_and_the_frame_in_which_they_differ() {
        let stack = "main;<module> (train.py:3);_call_impl (module.py:1773);forward (net.py:12);aten::linear;\
                     aten::addmm;cudaLaunchKernel";
        assert_eq!(
            one_line(&[stack], TextKind::Stack, 60),
            ["main;...;forward (net.py:12);...;cudaLaunchKernel"]
        );
        assert_eq!(one_line(&[stack], TextKind::Stack, 30), ["...;forward (net.py:12);..."]);
        let other = stack.replace("aten::linear", "aten::matmul");
        assert_eq!(
            one_line(&[stack, &other], TextKind::Stack, 45),
            [
                "main;...;forward (net.py:12);aten::linear;...",
                "main;...;forward (net.py:12);aten::matmul;..."
            ]
        );
        assert_eq!(one_line(&[stack, &other], TextKind::Site, 30), ["...;forward (net.py:12);..."; 2]);
        // The field `own` marks this frame as the user's own, so it is kept although its name looks like the name of a
        // library function.
        let text = Text { whole: stack, own: Some("aten::linear") };
        assert_eq!(fit_all(&[text], TextKind::Stack, 20), [["...;aten::linear;..."]]);
    }

    #[test]
    fn folders_are_cut_before_names_unless_files_of_two_folders_have_the_same_name() {
        let forward = |path: &str| format!("{path}(252): forward");
        let names = ["a/models/vit/modeling.py", "a/models/vit/output.py"].map(forward);
        let shown = one_line(&names.each_ref().map(String::as_str), TextKind::Name, 28);
        assert_eq!(shown, ["modeling.py(252): forward", "output.py(252): forward"]);
        let twins = ["a/models/vit/modeling.py", "a/models/bert/modeling.py"].map(forward);
        let shown = one_line(&twins.each_ref().map(String::as_str), TextKind::Name, 28);
        assert!(shown[0].contains("vit") && shown[1].contains("bert"), "{shown:?}");
        let layer =
            |number: u32| format!("train.py(1): main;nn.Module: Layer_{number};x.py(3): forward;aten::mm");
        let layers = [layer(1), layer(2)];
        let shown = one_line(&layers.each_ref().map(String::as_str), TextKind::Stack, 19);
        assert_eq!(shown, ["...;Layer_1;...", "...;Layer_2;..."]);
    }

    #[test]
    fn paths_keep_their_end() {
        assert_eq!(one_line(&["/srv/application/model.py:12"], TextKind::Path, 15), [".../model.py:12"]);
    }

    #[test]
    fn wide_characters_count_twice() {
        let lines = fit(&["漢字漢字漢字漢字", "漢字漢字漢字漢x"], TextKind::Name, 9);
        assert_ne!(lines[0], lines[1]);
    }

    #[test]
    fn prose_is_wrapped_at_blanks_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn texts_of_any_kind_fit_every_width_and_stay_different() {
        let texts = [
            "",
            "a",
            "a;b;c;d;e;f;g;h;i;j;k;l;m;n;o;p",
            "a;b;c;d;e;f;g;h;i;j;k;l;m;n;o;q",
            "漢漢漢漢漢漢漢漢漢漢漢漢漢",
            "x::very_long_name<with, many, parts>(int, float, double)",
            ";;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;",
            "                                 ",
        ];
        for width in 8..70 {
            for kind in [TextKind::Name, TextKind::Stack, TextKind::Path, TextKind::Prose] {
                let shown = fit(&texts, kind, width);
                let different: BTreeSet<_> = shown.iter().map(|lines| lines.join("\n")).collect();
                assert!(different.len() >= texts.len() - 1, "{kind:?} {width} {shown:#?}");
            }
        }
    }
}
