//! Writes a page as one HTML file with the script, the style and the data. The page's sentences are also written as
//! text, for browsers without JavaScript.

use std::io::Write;

use sha2::{Digest as _, Sha256};

use super::first_screen::Head;
use gpuflame_export::clean_line;
use gpuflame_model::error::Result;

const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// A page.
pub(super) struct Page<'a> {
    pub(super) head: &'a Head,
    /// Data that the script shows, compressed with zlib.
    pub(super) data: &'a [u8],
    /// Slices of the timeline, compressed with zlib. This field is empty if the page has no timeline.
    pub(super) slices: &'a [u8],
}

impl Page<'_> {
    /// Writes the page. The page's content security policy allows only the page's own script and style, and no
    /// connections.
    pub(super) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let title = escaped(&self.head.title);
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
             style-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"generator\" content=\"gpuflame {}\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
            hash(SCRIPT),
            hash(STYLE),
            env!("CARGO_PKG_VERSION"),
        )?;
        self.write_plain(out)?;
        write!(out, "<script type=\"application/octet-stream+base64\" id=\"data\">")?;
        write_base64(self.data, out)?;
        if !self.slices.is_empty() {
            write!(out, "</script>\n<script type=\"application/octet-stream+base64\" id=\"slices\">")?;
            write_base64(self.slices, out)?;
        }
        writeln!(out, "</script>\n<script>{SCRIPT}</script>\n</body>\n</html>")?;
        Ok(())
    }

    /// Writes the sentences of the first screen as text. The page's script replaces this text.
    fn write_plain(&self, out: &mut dyn Write) -> Result<()> {
        let Head { first_line, culprits, changes, answers, complete, findings, none_found, .. } = self.head;
        writeln!(out, "<main id=\"app\">\n<h1>{}</h1>", escaped(&self.head.title))?;
        for line in
            std::iter::once(first_line).chain(culprits).chain(changes).chain(answers).chain([complete])
        {
            writeln!(out, "<p>{}</p>", escaped(line))?;
        }
        writeln!(out, "<ul>")?;
        for finding in findings {
            let share = finding.share.map_or_else(String::new, |share| format!("{share:.1} %, "));
            let at =
                if finding.culprit.is_empty() { String::new() } else { format!("; {}", finding.culprit) };
            let remedy =
                if finding.remedy.is_empty() { String::new() } else { format!(". {}", finding.remedy) };
            writeln!(
                out,
                "<li>{}</li>",
                escaped(&format!("{}: {share}{}{at}{remedy}", finding.id, finding.why))
            )?;
        }
        if findings.is_empty() {
            writeln!(out, "<li>{}</li>", escaped(none_found))?;
        }
        writeln!(out, "</ul>\n</main>")?;
        Ok(())
    }
}

/// Returns the hash that identifies a script or a style in a page's content security policy.
fn hash(text: &str) -> String {
    let mut encoded = Vec::new();
    write_base64(&Sha256::digest(text.as_bytes()), &mut encoded).expect("a vector accepts all bytes");
    String::from_utf8(encoded).expect("base64 is ASCII")
}

/// Escapes a text for an HTML element or a quoted attribute. The escaped text is one line, and contains no control
/// characters that would change how a browser shows the following text.
pub(in super::super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in clean_line(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Writes bytes as base64, with padding.
fn write_base64(bytes: &[u8], out: &mut dyn Write) -> Result<()> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let word = a << 16 | b << 8 | c;
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at)) as usize & 63];
            encoded.push(if at > group.len() { b'=' } else { digit });
        }
    }
    Ok(out.write_all(&encoded)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        // RFC 4648, section 10.
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            let mut encoded = Vec::new();
            write_base64(bytes.as_bytes(), &mut encoded).unwrap();
            assert_eq!(encoded, text.as_bytes());
        }
    }

    #[test]
    fn the_hash_is_that_of_the_standard() {
        // FIPS 180-4: the digest of "abc" is ba7816bf ... 20015ad.
        assert_eq!(hash("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn the_script_of_the_page_cannot_end_early() {
        assert!(!SCRIPT.to_lowercase().contains("</script"));
        assert!(!SCRIPT.contains("<!--"));
        assert!(!STYLE.to_lowercase().contains("</style"));
    }

    #[test]
    fn code_of_the_page_is_small() {
        assert!(SCRIPT.len() + STYLE.len() <= 400_000);
    }
}
