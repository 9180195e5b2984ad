//! Changes the SVG that `inferno` writes, so that kernels are drawn with short names and have full names in their
//! tooltips.
//!
//! `inferno` knows only one name per frame, so it gets both names of a template kernel as one name. It then merges
//! frames by full name, and short names do not affect any sum. While the picture is written to the file, this writer
//! changes each such frame. The full name becomes the tooltip and the text for searches. The short name becomes an
//! attribute, which the picture's script draws. The text of the frame is also set to the short name, for viewers that
//! do not run the script, such as a page that shows the picture as an image.

use std::io::{self, Write};

/// Separator between the short name and the full name. Names never contain it, because cleaning replaces it by a
/// blank.
pub(super) const SEPARATOR: char = '\u{2028}';

const TITLE: &str = "<title>";
const TITLE_END: &str = "</title>";
const TEXT_END: &str = "</text>";
const SCRIPT_END: &[u8] = b"</script>";
const FRAME_END: &[u8] = b"</g>";
/// Characters at the end of a text that `inferno` truncated.
const ELLIPSIS: &str = "..";

/// Expression by which the picture's script reads the text of a frame. `READ_DRAWN_NAME` replaces it.
const READ_TITLE: &str = r#"find_child(e, "title").textContent.replace(/\([^(]*\)$/,"")"#;
const READ_DRAWN_NAME: &str = "drawn_name(e)";
/// Condition by which the script's search matches a frame. `MATCH_EITHER_NAME` replaces it.
const MATCH_TITLE: &str = "if (func.match(re)) {";
const MATCH_EITHER_NAME: &str = "if (func.match(re) || drawn_name(e).match(re)) {";
/// Text before the share that a search matches, and the text that replaces it if some frames are merged: the search does
/// not know their names.
const MATCHED: &str = r#""Matched: ""#;
const MATCHED_SHOWN: &str = r#""Matched of the frames shown: ""#;
/// Function of the script before which `DRAWN_NAME` is inserted.
const INSERT_BEFORE: &str = "function g_to_func(e) {";
/// Start of the subtitle, which `inferno` writes after the script, and the number of letters of it that fit into a
/// picture of 1,200 pixels: of a letter that is 12 high, a common monospaced font draws 7.2.
const SUBTITLE: &str = "<text id=\"subtitle\"";
const SUBTITLE_LETTERS: usize = 160;
const DRAWN_NAME: &str = r#"function drawn_name(e) {
    // A kernel of a template is drawn by its short name.
    var title = find_child(e, "title");
    return title.getAttribute("data-short") || title.textContent.replace(/\([^(]*\)$/,"");
}
"#;

/// Writer that changes `inferno`'s picture. Text that does not belong to kernels is unchanged.
/// [`ShortNameSvg::finish`] writes the rest.
pub(super) struct ShortNameSvg<'a> {
    out: &'a mut dyn Write,
    /// Bytes received since the last complete frame.
    pending: Vec<u8>,
    /// Whether the script has been written, so that frames follow.
    is_in_frames: bool,
    /// Whether the picture does not show all frames by name.
    is_partial: bool,
}

impl<'a> ShortNameSvg<'a> {
    pub(super) fn new(out: &'a mut dyn Write, is_partial: bool) -> Self {
        Self { out, pending: Vec::new(), is_in_frames: false, is_partial }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(&self.pending)?;
        self.out.flush()
    }
}

impl Write for ShortNameSvg<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The end mark may have begun in the bytes that were received before.
        let from = self.pending.len().saturating_sub(SCRIPT_END.len());
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        if !self.is_in_frames
            && let Some(end) = find_last_end(&self.pending, from, SCRIPT_END)
        {
            let mut script = rewrite_script(&String::from_utf8_lossy(&self.pending[..end]));
            if self.is_partial {
                script = script.replace(MATCHED, MATCHED_SHOWN);
            }
            self.out.write_all(script.as_bytes())?;
            (done, self.is_in_frames) = (end, true);
        }
        if self.is_in_frames
            && let Some(end) = find_last_end(&self.pending, from.max(done), FRAME_END)
        {
            let frames = narrow_subtitle(rewrite_frames(&String::from_utf8_lossy(&self.pending[done..end])));
            self.out.write_all(frames.as_bytes())?;
            done = end;
        }
        self.pending.drain(..done);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the position after the last occurrence of `end` that begins at or after `from`.
fn find_last_end(bytes: &[u8], from: usize, end: &[u8]) -> Option<usize> {
    let at = bytes[from..].windows(end.len()).rposition(|window| window == end)?;
    Some(from + at + end.len())
}

/// Returns the script with the expressions that read a frame's text replaced by calls of `drawn_name`.
fn rewrite_script(head: &str) -> String {
    let head = head.replace(READ_TITLE, READ_DRAWN_NAME).replace(MATCH_TITLE, MATCH_EITHER_NAME);
    head.replace(INSERT_BEFORE, &format!("{DRAWN_NAME}{INSERT_BEFORE}"))
}

/// Sets the width of a subtitle that is too long for the picture, so that the viewer draws narrower letters.
fn narrow_subtitle(picture: String) -> String {
    let Some((before, after)) = picture.split_once(SUBTITLE) else { return picture };
    let text = after.split_once('>').and_then(|(_, text)| text.split_once(TEXT_END));
    match text {
        Some((text, _)) if text.chars().count() > SUBTITLE_LETTERS => {
            format!("{before}{SUBTITLE} textLength=\"98%\" lengthAdjust=\"spacingAndGlyphs\"{after}")
        }
        _ => picture,
    }
}

/// Returns the frames in `text` with full names as tooltips and short names as texts.
fn rewrite_frames(text: &str) -> String {
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(SEPARATOR) {
        let title = before.rfind(TITLE).map(|at| (&before[..at], &before[at + TITLE.len()..]));
        let found = title.and_then(|(before, short)| Some((before, short, after.split_once(TITLE_END)?)));
        let Some((before, short, (whole, frame))) = found else { break };
        done.push_str(before);
        // `inferno` has already escaped the name, and escaped text is also valid in attributes.
        done.extend(["<title data-short=\"", short, "\">", whole, TITLE_END]);
        let (frame, next) = frame.split_once(TEXT_END).unwrap_or((frame, ""));
        let shown = frame.split_once(SEPARATOR).map_or(frame, |(shown, _)| shown);
        // `inferno` truncated the text because both names together did not fit into the frame, but the short name
        // alone fits.
        let fits = shown.strip_suffix(ELLIPSIS).filter(|shown| shown.ends_with(&format!(">{short}")));
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
        let mut drawn = ShortNameSvg::new(&mut out, false);
        picture.as_bytes().chunks(piece).for_each(|piece| drawn.write_all(piece).unwrap());
        drawn.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_subtitle_that_is_wider_than_the_picture_gets_narrower_letters() {
        let picture = |attributes: &str, letters: usize| {
            let text = "x".repeat(letters);
            format!("<script></script><text id=\"subtitle\"{attributes} x=\"50%\">{text}</text><g></g>")
        };
        for piece in [1, 7, 1000] {
            assert_eq!(drawn(&picture("", 160), piece), picture("", 160));
            let narrow = picture(" textLength=\"98%\" lengthAdjust=\"spacingAndGlyphs\"", 161);
            assert_eq!(drawn(&picture("", 161), piece), narrow);
        }
    }

    #[test]
    fn the_tooltip_has_the_whole_name_and_the_text_has_the_short_one() {
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
