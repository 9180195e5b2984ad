//! Kernels in a picture: drawn by their short names, told by their whole ones.
//!
//! `inferno` draws a frame by its name, and has no other. So a kernel of a template is handed to it with both names, as one:
//! frames meet by whole names, and a short one adds nothing up. Here the picture passes on its way to the file: the whole
//! name becomes the tooltip and what a search looks at, and the short one an attribute, which the picture's script draws.
//! Without the script, as where a picture is an image of a page, the text has the short name as well.

use std::io::{self, Write};

/// Stands between the short name and the whole one. It is in no name: what is made clean has a blank in its place.
pub(super) const SEPARATOR: char = '\u{2028}';

const TITLE: &str = "<title>";
const TITLE_END: &str = "</title>";
const TEXT_END: &str = "</text>";
const SCRIPT_END: &[u8] = b"</script>";
const FRAME_END: &[u8] = b"</g>";
/// What is behind a text that `inferno` cut off.
const CUT: &str = "..";

/// What the picture's script asks for the text of a frame by, and what it asks in its place.
const ASKED: &str = r#"find_child(e, "title").textContent.replace(/\([^(]*\)$/,"")"#;
const ASKS: &str = "drawn_name(e)";
/// Whether a frame is what is looked for.
const MATCHED: &str = "if (func.match(re)) {";
const MATCHES: &str = "if (func.match(re) || drawn_name(e).match(re)) {";
/// Before which function the new one stands.
const BEFORE: &str = "function g_to_func(e) {";
const DRAWN_NAME: &str = r#"function drawn_name(e) {
    // A kernel of a template is drawn by its short name.
    var title = find_child(e, "title");
    return title.getAttribute("data-short") || title.textContent.replace(/\([^(]*\)$/,"");
}
"#;

/// Rewrites a picture of `inferno`'s on its way. What is of no kernel passes as it is; [`Drawn::finish`] hands on the rest.
pub(super) struct Drawn<'a> {
    out: &'a mut dyn Write,
    /// What came since the last whole frame.
    waiting: Vec<u8>,
    /// Whether the script has passed.
    is_in_frames: bool,
}

impl<'a> Drawn<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, waiting: Vec::new(), is_in_frames: false }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(&self.waiting)?;
        self.out.flush()
    }
}

impl Write for Drawn<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What ends in it may have begun before it.
        let from = self.waiting.len().saturating_sub(SCRIPT_END.len());
        self.waiting.extend_from_slice(bytes);
        let mut done = 0;
        if !self.is_in_frames
            && let Some(end) = last(&self.waiting, from, SCRIPT_END)
        {
            self.out.write_all(script(&String::from_utf8_lossy(&self.waiting[..end])).as_bytes())?;
            (done, self.is_in_frames) = (end, true);
        }
        if self.is_in_frames
            && let Some(end) = last(&self.waiting, from.max(done), FRAME_END)
        {
            self.out.write_all(frames(&String::from_utf8_lossy(&self.waiting[done..end])).as_bytes())?;
            done = end;
        }
        self.waiting.drain(..done);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where the last of what is looked for ends, from `from` on.
fn last(bytes: &[u8], from: usize, end: &[u8]) -> Option<usize> {
    let at = bytes[from..].windows(end.len()).rposition(|window| window == end)?;
    Some(from + at + end.len())
}

/// The script with its questions after a frame's text answered by `drawn_name`.
fn script(head: &str) -> String {
    let head = head.replace(ASKED, ASKS).replace(MATCHED, MATCHES);
    head.replace(BEFORE, &format!("{DRAWN_NAME}{BEFORE}"))
}

/// Frames with the whole name as tooltip and the short one as text.
fn frames(text: &str) -> String {
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(SEPARATOR) {
        let title = before.rfind(TITLE).map(|at| (&before[..at], &before[at + TITLE.len()..]));
        let told = title.and_then(|(before, short)| Some((before, short, behind.split_once(TITLE_END)?)));
        let Some((before, short, (whole, frame))) = told else { break };
        done.push_str(before);
        // `inferno` has escaped it as an attribute needs it.
        done.extend(["<title data-short=\"", short, "\">", whole, TITLE_END]);
        let (frame, next) = frame.split_once(TEXT_END).unwrap_or((frame, ""));
        let shown = frame.split_once(SEPARATOR).map_or(frame, |(shown, _)| shown);
        // Both names did not fit, and the short one does.
        let fits = shown.strip_suffix(CUT).filter(|shown| shown.ends_with(&format!(">{short}")));
        done.extend([fits.unwrap_or(shown), TEXT_END]);
        rest = next;
    }
    done.push_str(rest);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(picture: &str, piece: usize) -> String {
        let mut out = Vec::new();
        let mut drawn = Drawn::new(&mut out);
        picture.as_bytes().chunks(piece).for_each(|piece| drawn.write_all(piece).unwrap());
        drawn.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_tooltip_has_the_whole_name_and_the_text_the_short_one() {
        let frame = |name: &str, text: &str| {
            format!("<g><title>{name} (12 ns, 3.00%)</title><rect/><text x=\"1\">{text}</text></g>")
        };
        let short = |text: &str| {
            format!(
                "<g><title data-short=\"gemm [K]\">gemm&lt;1&gt; [K] (12 ns, 3.00%)</title><rect/>\
                 <text x=\"1\">{text}</text></g>"
            )
        };
        let both = "gemm [K]\u{2028}gemm&lt;1&gt; [K]";
        let cases = [
            (frame("main", "main"), frame("main", "main")),
            (frame(both, both), short("gemm [K]")),
            (frame(both, "gemm [K]\u{2028}gem.."), short("gemm [K]")),
            (frame(both, "gemm [K].."), short("gemm [K]")),
            (frame(both, "gem.."), short("gem..")),
            (frame(both, ""), short("")),
        ];
        let (before, after): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        let picture =
            |frames: &[String]| format!("<svg><script></script><svg>{}</svg></svg>", frames.join(""));
        for piece in [1, 7, 100_000] {
            assert_eq!(drawn(&picture(&before), piece), picture(&after), "{piece} bytes at a time");
        }
    }
}
