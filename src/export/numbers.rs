//! Folds numbers in names: replaces numbers that are only counters or ids. For example, `ProfilerStep#5` and
//! `ProfilerStep#6` are two runs of the same step, and addresses of objects do not matter. Without folding, each number
//! would create a separate frame, and the frames of one run would not match the frames of another run.
//!
//! A number that is only a counter or an id is replaced by `N` when a view is drawn. Folding applies to names that
//! people write (NVTX ranges, annotations, thread labels) and to Python's text representation of objects. Folding never
//! applies to names of GPU work, code symbols, operators, files and lines, GPUs and streams. In these names, digits are
//! part of the name (`AddBackward0`). In rows and recordings, names are unchanged.

use std::borrow::Cow;

use super::options::NameFolding;
use gpuflame_model::profile::ShownFrameKind;

/// Words that identify the number after them as a counter.
const COUNTER_WORDS: [&str; 12] = [
    "step",
    "iter",
    "iteration",
    "batch",
    "epoch",
    "micro_batch",
    "seq",
    "op_id",
    "request",
    "pid",
    "tid",
    "thread",
];
/// Characters allowed between a counter word and its number.
const COUNTER_SEPARATORS: &[u8] = b" _#:=";
/// Minimum number of digits of an address.
const MIN_ADDRESS_DIGITS: usize = 6;
/// Minimum number of digits of an id. This minimum applies to numbers that are not part of a word.
const MIN_ID_DIGITS: usize = 5;
/// Prefix that torch.profiler puts before the class name of a module.
const MODULE_PREFIX: &str = "nn.Module: ";
/// Text that replaces a folded number.
const FOLDED_NUMBER: &str = "N";

/// Returns the name of a frame, with numbers folded as required by `names` and the frame's kind.
pub(super) fn fold_name(kind: ShownFrameKind, name: Cow<'_, str>, names: NameFolding) -> Cow<'_, str> {
    let fold_part = |name, part| match name {
        Cow::Borrowed(name) => fold_numbers(name, part),
        Cow::Owned(name) => Cow::Owned(fold_numbers(&name, part).into_owned()),
    };
    match (kind, names) {
        (_, NameFolding::Kept) => name,
        (ShownFrameKind::Range, _) => fold_part(name, 0),
        (ShownFrameKind::Python, NameFolding::Modules) if name.starts_with(MODULE_PREFIX) => {
            fold_instance(name)
        }
        (ShownFrameKind::Python, _) => match find_repr(&name) {
            Some(part) => fold_part(name, part),
            None => name,
        },
        _ => name,
    }
}

/// Returns the offset of an object's text representation, such as `<built-in method f of X object at 0x7f...>`, in the
/// name of a Python frame. The representation is at the beginning of the name, or after a file and line.
fn find_repr(name: &str) -> Option<usize> {
    let after = name.find("): ").map_or(0, |at| at + 3);
    name[after..].starts_with('<').then_some(after)
}

/// Folds `nn.Module: Layer_17` to `nn.Module: Layer_N`.
fn fold_instance(name: Cow<'_, str>) -> Cow<'_, str> {
    let class = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match class.len() < name.len() && class.ends_with('_') {
        true => Cow::Owned(format!("{class}{FOLDED_NUMBER}")),
        false => name,
    }
}

/// Folds the numbers in `name` that are at or after byte `from`.
pub(super) fn fold_numbers(name: &str, from: usize) -> Cow<'_, str> {
    let bytes = name.as_bytes();
    let mut folded = String::new();
    // `done` is the number of bytes that have already been copied to `folded`.
    let mut done = 0;
    let mut at = from;
    while let Some(digits) = bytes[at..].iter().position(u8::is_ascii_digit).map(|ahead| at + ahead) {
        let end = end_of_run(bytes, digits, u8::is_ascii_digit);
        let (first, end) = match address_end(bytes, digits) {
            Some(end) => (digits + 2, end),
            None if is_counter(name, from, digits, end) => (digits, end),
            None => {
                at = end;
                continue;
            }
        };
        folded.push_str(&name[done..first]);
        folded.push_str(FOLDED_NUMBER);
        (done, at) = (end, end);
    }
    if done == 0 {
        return Cow::Borrowed(name);
    }
    folded.push_str(&name[done..]);
    Cow::Owned(folded)
}

/// Returns the end of the address that begins at `at` (such as `0x7f19a0c3d2e0`); `None` if no address begins there.
fn address_end(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = at + 2;
    let end = bytes[at..].starts_with(b"0x").then(|| end_of_run(bytes, digits, u8::is_ascii_hexdigit))?;
    (end - digits >= MIN_ADDRESS_DIGITS).then_some(end)
}

/// Whether the digits between the offsets `digits` and `end` are a counter or an id.
fn is_counter(name: &str, from: usize, digits: usize, end: usize) -> bool {
    let before = &name[from..digits];
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphabetic() || c == '_');
    let is_id = end - digits >= MIN_ID_DIGITS
        && !is_part(before.chars().next_back())
        && !is_part(name[end..].chars().next());
    is_id || before.ends_with('#') || ends_with_counter_word(before)
}

/// Whether `text` ends with a counter word, optionally followed by separator characters.
fn ends_with_counter_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let gap = bytes.iter().rev().take_while(|byte| COUNTER_SEPARATORS.contains(byte)).count();
    let text = &text[..text.len() - gap];
    gap > 0
        && COUNTER_WORDS.iter().any(|word| {
            let Some(start) = text.len().checked_sub(word.len()).filter(|&at| text.is_char_boundary(at))
            else {
                return false;
            };
            let before = text[..start].chars().next_back();
            text[start..].eq_ignore_ascii_case(word)
                && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
}

/// Returns the position of the first byte, at or after the offset `from`, for which `is` returns false.
fn end_of_run(bytes: &[u8], from: usize, is: impl Fn(&u8) -> bool) -> usize {
    from + bytes[from..].iter().take_while(|byte| is(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str) -> String {
        fold_name(ShownFrameKind::Range, name.into(), NameFolding::Folded).into_owned()
    }

    #[test]
    fn numbers_that_count_or_identify_are_folded() {
        for (name, folded) in [
            ("ProfilerStep#5", "ProfilerStep#N"),
            ("op_id =_995009", "op_id =_N"),
            ("seq = 46588", "seq = N"),
            ("aten::add, seq = 12, op_id = 3", "aten::add, seq = N, op_id = N"),
            ("<Stream object at 0x7f19a0c3d2e0>", "<Stream object at 0xN>"),
            ("0x00ABCDEF", "0xN"),
            ("step 17", "step N"),
            ("[range]step 17", "[range]step N"),
            ("[range train]Step 17 of 20", "[range train]Step N of 20"),
            ("step_17", "step_N"),
            ("step: 17", "step: N"),
            ("iter=3;iteration=3;batch=3", "iter=N;iteration=N;batch=N"),
            ("epoch 1/micro_batch 2", "epoch N/micro_batch N"),
            ("request:7", "request:N"),
            ("pid 1 tid 2 thread 3", "pid N tid N thread N"),
            ("worker 14508", "worker N"),
            ("14508", "N"),
            ("1.23456", "1.N"),
            ("ProfileStep#7[15.2 ms]", "ProfileStep#N[15.2 ms]"),
            ("größe 12345é", "größe 12345é"),
            ("größe step 4", "größe step N"),
        ] {
            assert_eq!(range(name), folded, "{name}");
            assert_eq!(range(folded), folded, "folding twice changes nothing");
        }
    }

    #[test]
    fn numbers_that_are_part_of_a_name_are_kept() {
        for name in [
            "1F1B",
            "fp8",
            "AddBackward0",
            "max_pool2d",
            "Qwen2Attention_0",
            "step[DECODE bs=32]",
            "file.py(123)",
            "bs=32",
            "footstep 5",
            "my_step 5",
            "step17",
            "steps 5",
            "step-5",
            "step",
            "0x7f19",
            "layer 3",
            "ids 1234",
            "conv12345",
            "12345_a",
            "_12345",
            "ä12345",
            "ä 5",
            "",
        ] {
            assert_eq!(range(name), name);
        }
    }

    #[test]
    fn only_ranges_and_python_objects_are_folded() {
        let python =
            |name: &str| fold_name(ShownFrameKind::Python, name.into(), NameFolding::Folded).into_owned();
        assert_eq!(
            python("<built-in method run_backward of torch._C._EngineBase object at 0x7f19a0c3d2e0>"),
            "<built-in method run_backward of torch._C._EngineBase object at 0xN>"
        );
        for name in [
            "train_12345/step_7.py(123): step_7",
            "<eval_with_key>.17(6): forward",
            "nn.Module: Layer_17",
            "step 17",
        ] {
            assert_eq!(python(name), name);
        }
        assert_eq!(python("<string>(1): <f at 0x7f19a0c3d2e0>"), "<string>(1): <f at 0xN>");
        for kind in [
            ShownFrameKind::Code,
            ShownFrameKind::Call,
            ShownFrameKind::Kernel,
            ShownFrameKind::Root,
            ShownFrameKind::Loss,
        ] {
            assert_eq!(
                fold_name(kind, "step 17 #5 0x123456 12345".into(), NameFolding::Folded),
                "step 17 #5 0x123456 12345"
            );
        }
    }

    #[test]
    fn module_instances_are_folded_on_request_and_kept_names_are_unchanged() {
        let fold =
            |name: &'static str, names| fold_name(ShownFrameKind::Python, name.into(), names).into_owned();
        assert_eq!(fold("nn.Module: Layer_17", NameFolding::Modules), "nn.Module: Layer_N");
        assert_eq!(fold("nn.Module: Conv2d", NameFolding::Modules), "nn.Module: Conv2d");
        assert_eq!(fold("<f at 0x123456>", NameFolding::Modules), "<f at 0xN>");
        assert_eq!(fold("<f at 0x123456>", NameFolding::Kept), "<f at 0x123456>");
    }
}
