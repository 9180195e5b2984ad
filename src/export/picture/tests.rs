use super::frames::Frame;
use super::*;

fn lines(all: &[(&str, u64, u64)]) -> Vec<Line> {
    all.iter()
        .map(|&(stack, weight, before)| Line { before, ..Line::new(stack.to_owned(), weight) })
        .collect()
}

fn drawn(picture: &Picture<'_>, lines: &[Line]) -> String {
    let mut out = Vec::new();
    draw(picture, lines, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

const CHANGES: Picture<'_> = Picture {
    title: "t",
    subtitle: "s",
    weights: Weights::Nanos,
    colors: Colors::Changes,
    has_merged: false,
};

#[test]
fn stacks_that_begin_alike_share_frames() {
    let lines =
        lines(&[("main;a;x", 10, 1), ("main;a;y", 5, 2), ("main;b", 0, 4), ("main;b;y", 20, 8), ("c", 5, 0)]);
    let found = frames(&lines, 1000);
    let frame = |name, depth, start, weight, before| Frame { name, depth, start, weight, before };
    let expected = [
        frame("x", 3, 0, 10, 1),
        frame("y", 3, 10, 5, 2),
        frame("a", 2, 0, 15, 3),
        frame("y", 3, 15, 20, 8),
        frame("b", 2, 15, 20, 12),
        frame("main", 1, 0, 35, 15),
        frame("c", 1, 35, 5, 0),
        frame("all", 0, 0, 40, 15),
    ];
    assert_eq!(found, expected);
    // A tenth of the total weight is 4, and no frame has less. A fifth of the total weight is 8, and some frames have
    // less weight.
    assert_eq!(frames(&lines, 10).len(), 8);
    let wide: Vec<&str> = frames(&lines, 5).iter().map(|frame| frame.name).collect();
    assert_eq!(wide, ["x", "a", "y", "b", "main", "all"]);
}

#[test]
fn weights_that_add_up_to_more_than_a_number_holds_are_drawn() {
    let found = lines(&[("a", u64::MAX - 5, 0), ("b", 20, u64::MAX), ("c", 7, 1)]);
    let names: Vec<(&str, u64)> =
        frames(&found, 1 << 62).iter().map(|frame| (frame.name, frame.weight)).collect();
    assert_eq!(names, [("a", u64::MAX - 5), ("b", 5), ("all", u64::MAX)]);
    assert!(drawn(&CHANGES, &found).ends_with("</svg>\n"));
}

#[test]
fn a_frame_has_its_place_tooltip_and_text() {
    let picture = Picture { title: "a < b", ..CHANGES };
    let text = drawn(&picture, &lines(&[("main;f<\"x\">", 3_000, 6_000), ("main;g", 1_000, 1_000)]));
    // 1,180 pixels represent 4,000 ns, so 3,000 ns are 885 pixels wide. Rows are 16 pixels high. The first row starts
    // 66 pixels below the top.
    let expected = "<g class=\"c2\" data-at=\"0 3000\"><title>f&lt;&quot;x&quot;&gt; (3.000 us, 75.00 %; before \
                    6.000 us)</title><rect x=\"10.00\" y=\"66\" width=\"884.40\" height=\"15\"/><text x=\"13.00\" \
                    y=\"77\">f&lt;&quot;x&quot;&gt;</text></g>";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("<rect x=\"895.00\" y=\"66\" width=\"294.40\" height=\"15\"/>"), "{text}");
    assert!(text.contains(">all (4.000 us, 100.00 %; before 7.000 us)<"), "{text}");
    assert!(text.contains(">a &lt; b</text>"));
    // A frame of 11.8 pixels has no room for a text.
    let text = drawn(&picture, &lines(&[("main;f", 990, 990), ("main;g", 10, 10)]));
    assert!(text.contains("width=\"11.20\" height=\"15\"/></g>"), "{text}");
}

#[test]
fn changes_have_nine_steps() {
    let class = kinds::change_class;
    assert_eq!(
        [class(0, 9), class(3, 9), class(4, 9), class(6, 9), class(8, 9), class(9, 9)],
        ["c1", "c2", "c2", "c3", "c3", "c4"]
    );
    assert_eq!(
        [class(9, 8), class(9, 4), class(9, 2), class(9, 0), class(0, 0)],
        ["c5", "c6", "c7", "c8", "c4"]
    );
    assert_eq!(class(u64::MAX, 1), "c7");
}

#[test]
fn a_text_is_cut_to_its_room_and_a_subtitle_is_broken() {
    assert_eq!(
        [fitted("gemm", 4), fitted("gemm", 3), fitted("gemm", 2), fitted("gé", 2)],
        ["gemm", "ge…", "", "gé"]
    );
    let function = "models/model.py(12): forward";
    assert_eq!([28, 27, 7, 6].map(|room| fitted(function, room)), [function, "forward", "forward", "forwa…"]);
    assert_eq!(fitted("std::pair: first.py(1)", 9), "std::pai…");
    assert_eq!(wrapped("one line"), ["one line"]);
    // With the blanks between them, 32 words of 4 letters are 159 characters.
    let text = vec!["word"; 70].join(" ");
    assert_eq!(wrapped(&text).iter().map(String::len).collect::<Vec<_>>(), [159, 159, 29]);
    assert_eq!(wrapped(&text.repeat(10)).len(), MAX_SUBTITLE_LINES);
}

/// Returns the contrast of two colours, with relative luminance and contrast as WCAG 2 defines them.
fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |color: &str| {
        let part = |at: usize| {
            let share = f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn text_contrasts_with_what_is_behind_it() {
    let fill = |line: &str| line.split_once("fill: ").map(|(_, color)| color[..7].to_owned());
    let rows = |what: &'static str| STYLE.lines().filter(move |line| line.contains(what)).filter_map(fill);
    let fills: Vec<String> = rows(" rect {").collect();
    assert_eq!(fills.len(), 20);
    assert_eq!(rows(".frames text {").collect::<Vec<_>>(), ["#000000"]);
    for fill in &fills {
        assert!(contrast("#000000", fill) >= 4.5, "{fill}");
    }
    let pages =
        rows(".back {").zip(STYLE.lines().filter(|line| line.contains("flame text {")).filter_map(fill));
    let pages: Vec<_> = pages.collect();
    assert_eq!(pages.len(), 2, "a light and a dark one");
    for (back, text) in pages {
        assert!(contrast(&back, &text) >= 4.5, "{back} {text}");
    }
}

#[test]
fn the_legend_names_the_kinds_that_occur() {
    let kinds: FrameKinds<'_> =
        [("main".into(), ShownFrameKind::Code), ("gemm".into(), ShownFrameKind::Kernel)].into();
    let picture = Picture { colors: Colors::Kinds(&kinds), weights: Weights::Counted("gaps"), ..CHANGES };
    let text = drawn(
        &picture,
        &lines(&[("main;gemm", 30_000, 0), ("main;[7 more frames, too small to show]", 10, 0)]),
    );
    let words: Vec<&str> = text.lines().filter(|line| line.starts_with("<g class=\"legend")).collect();
    assert_eq!(words.len(), 3);
    for (line, (class, word)) in words.iter().zip([
        ("code", ">host function<"),
        ("kernel", ">kernel<"),
        ("lost", ">unknown or left out<"),
    ]) {
        assert!(line.contains(&format!("legend {class}\"")) && line.contains(word), "{line}");
    }
    assert!(
        text.contains("<g class=\"kernel\" data-at=\"0 30000\"><title>gemm (30,000 gaps, 99.97 %)</title>")
    );
}

#[test]
fn a_name_of_two_kinds_has_the_same_kind_in_each_order() {
    let labels = [ShownFrameKind::Code, ShownFrameKind::Call].map(|kind| Label::new(kind, "cudaMalloc", 0));
    let [code, call] = labels;
    for labels in [[code, call], [call, code]] {
        assert_eq!(frame_kinds(labels)["cudaMalloc"], ShownFrameKind::Call);
    }
}
