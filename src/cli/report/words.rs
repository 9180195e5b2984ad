//! Adds to the sentences of the page what the percentages in them refer to. Also cuts long texts.

/// Adds to a sentence about idle time or GPU work what the sentence's percentages refer to: `idle 3 ms: 70.0 % host
/// late` becomes `idle 3 ms, of which 70.0 % host late`. `part` is the part of the run to which shares of time refer.
pub(super) fn with_base(sentence: &str, part: &str) -> String {
    match sentence.split_once(": ") {
        Some((before, shares))
            if before.starts_with("idle ") && shares.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            format!("{before}, of which {shares}")
        }
        Some((before, shares)) => match before.strip_prefix("GPU work ") {
            Some(nanos) => {
                format!("GPU work of the whole run, added up over all streams: {nanos}, of which {shares}")
            }
            None => sentence.to_owned(),
        },
        None => sentence.replace(" of the time on GPU", &format!(" of {part} on GPU")),
    }
}

/// Cuts a text to `most` characters by omitting its middle. Texts of the same kind usually differ at their ends, so two
/// thirds of the kept characters come from the end.
pub(super) fn cut_middle(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let begin = most / 3;
    let end = most - begin - 1;
    let at = |char: usize| text.char_indices().nth(char).map_or(text.len(), |(at, _)| at);
    format!("{}…{}", &text[..at(begin)], &text[at(count - end)..])
}

/// Returns the text with its first letter in upper case.
pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_a_base() {
        assert_eq!(
            with_base("idle 76.007 ms: 71.5 % host late (10.5 % at aten::mm)", "the steady part"),
            "idle 76.007 ms, of which 71.5 % host late (10.5 % at aten::mm)"
        );
        assert_eq!(
            with_base("GPU work 5.000 ms: 26.0 % gemm (42 x 3.111 ms)", "the steady part"),
            "GPU work of the whole run, added up over all streams: 5.000 ms, of which 26.0 % gemm (42 x 3.111 ms)"
        );
        for part in ["the steady part", "the whole run"] {
            assert_eq!(
                with_base("kernels ran for 41.4 % of the time on GPU 0; copies count as busy, too", part),
                format!("kernels ran for 41.4 % of {part} on GPU 0; copies count as busy, too")
            );
        }
        for other in ["idle: none in this part", "idle time is unknown: work was lost", "idle 3 ms"] {
            assert_eq!(with_base(other, "the steady part"), other);
        }
    }

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        assert_eq!(cut_middle("abcdefghij", 10), "abcdefghij");
        assert_eq!(cut_middle("abcdefghijk", 10), "abc…fghijk");
        assert_eq!(cut_middle("äöüßäöüßäöü", 4), "ä…öü");
        assert_eq!(capitalized("many tiny kernels"), "Many tiny kernels");
    }
}
