//! Translates options of `gpuflame run` into the environment variables that `libgpuflame.so` reads. If the library
//! would ignore a value with a warning, this module reports an error before the command is run.

use std::path::Path;

use crate::console::usage_error;
use crate::times::to_seconds;
use gpuflame_config::settings::{SETTINGS, parse};
use gpuflame_model::error::Result;

/// Name and value of an environment variable.
pub(super) type SettingPair = (String, String);

pub(super) const FLAG_VARIABLE: &str = "GPUFLAME_FLAG";

/// Keys in the value of `--window`, each with the environment variable that it sets.
const WINDOW_KEYS: [(&str, &str); 9] = [
    ("delay", "GPUFLAME_DELAY"),
    ("duration", "GPUFLAME_DURATION"),
    ("repeat", "GPUFLAME_REPEAT"),
    ("steps", "GPUFLAME_STEPS"),
    ("step-range", "GPUFLAME_STEP_RANGE"),
    ("launches", "GPUFLAME_MAX_LAUNCHES"),
    ("bytes", "GPUFLAME_MAX_BYTES"),
    ("flag", FLAG_VARIABLE),
    ("signal", "GPUFLAME_SIGNAL"),
];
/// Value of `--window` for programs that open recording windows themselves.
const CONTROLLED_BY_PROGRAM: &str = "off";

/// Parses a value of `--window`, such as `delay=5,duration=2`.
pub(super) fn parse_window(text: &str) -> Result<Vec<SettingPair>> {
    if text == CONTROLLED_BY_PROGRAM {
        return Ok(vec![("GPUFLAME_ENABLED".to_owned(), "0".to_owned())]);
    }
    let chosen: Result<Vec<SettingPair>> = text.split(',').map(parse_window_part).collect();
    let chosen = chosen?;
    check(&chosen)
        .and_then(|()| check_window(&chosen))
        .map_err(|why| usage_error(format!("--window {text}: {why}")))?;
    Ok(chosen)
}

/// Checks that the parts of `--window` can be combined. On failure, returns the reason why the parts of `--window`
/// cannot be combined.
fn check_window(chosen: &[SettingPair]) -> std::result::Result<(), String> {
    let word =
        |name: &str| WINDOW_KEYS.iter().find(|(_, known)| *known == name).map_or("", |(word, _)| *word);
    let has = |name: &str| chosen.iter().any(|(chosen, _)| chosen == name);
    for (at, (name, value)) in chosen.iter().enumerate() {
        if value.is_empty() {
            return Err(format!("{}= has no value", word(name)));
        }
        if chosen[..at].iter().any(|(before, _)| before == name) {
            return Err(format!("{}= is given twice", word(name)));
        }
        if name == FLAG_VARIABLE && Path::new(value).is_dir() {
            return Err(format!("{value} is a folder; name a file, which need not exist yet"));
        }
    }
    if has("GPUFLAME_REPEAT") && !has("GPUFLAME_DURATION") {
        return Err("repeat= needs duration=".to_owned());
    }
    if has(FLAG_VARIABLE) && has("GPUFLAME_SIGNAL") {
        return Err("flag= and signal= exclude each other".to_owned());
    }
    Ok(())
}

fn parse_window_part(part: &str) -> Result<SettingPair> {
    let found = part.trim().split_once('=').and_then(|(word, value)| {
        let (_, name) = WINDOW_KEYS.iter().find(|(known, _)| *known == word.trim())?;
        Some(((*name).to_owned(), value.trim().to_owned()))
    });
    let found = found.map(|(name, value)| in_seconds(&name, value)).transpose();
    let found = found.map_err(|error| error.within(format!("--window: {part}")))?;
    found.ok_or_else(|| {
        let words: Vec<_> = WINDOW_KEYS.iter().map(|(word, _)| format!("{word}=")).collect();
        usage_error(format!(
            "--window: `{part}` is neither `off` nor one of {} with a value",
            words.join(", ")
        ))
    })
}

/// Settings whose values are times in seconds.
const TIMES: [&str; 4] =
    ["GPUFLAME_DELAY", "GPUFLAME_DURATION", "GPUFLAME_EXIT_LIMIT", "GPUFLAME_CHECKPOINT"];

/// If the value of a setting is a time with a unit such as `500ms`, converts the value to the number of seconds that
/// the library reads.
pub(super) fn in_seconds(name: &str, value: String) -> Result<SettingPair> {
    let value = if TIMES.contains(&name) { to_seconds(&value)? } else { value };
    Ok((name.to_owned(), value))
}

/// Parses the value of `--formats`.
pub(super) fn parse_formats(text: &str) -> Result<SettingPair> {
    let chosen = ("GPUFLAME_FORMATS".to_owned(), text.to_owned());
    check(std::slice::from_ref(&chosen)).map_err(|why| usage_error(format!("--formats {text}: {why}")))?;
    Ok(chosen)
}

/// Returns the formats from `chosen`, otherwise the formats from the environment, and otherwise the default formats.
/// Adds the format `gfr`, which records every call and activity.
pub(super) fn with_rows(chosen: &[SettingPair]) -> SettingPair {
    const FORMATS: &str = "GPUFLAME_FORMATS";
    let given = chosen.iter().rfind(|(name, _)| name == FORMATS).map(|(_, value)| value.clone());
    let default =
        || SETTINGS.iter().find(|setting| setting.name == FORMATS).map_or("", |it| it.default).to_owned();
    let formats = given.or_else(|| std::env::var(FORMATS).ok()).unwrap_or_else(default);
    (FORMATS.to_owned(), format!("{formats},gfr"))
}

/// Parses the value of `--cpu-samples`.
pub(super) fn parse_cpu_samples(text: &str) -> Result<SettingPair> {
    let chosen = ("GPUFLAME_CPU_SAMPLES".to_owned(), text.to_owned());
    check(std::slice::from_ref(&chosen))
        .map_err(|why| usage_error(format!("--cpu-samples {text}: {why}")))?;
    Ok(chosen)
}

/// Checks that the library accepts the values of the settings. On failure, returns the reason why the library would
/// reject a value.
pub(super) fn check(chosen: &[SettingPair]) -> std::result::Result<(), String> {
    if chosen.iter().any(|(_, value)| value.contains('\0')) {
        return Err("it contains a zero byte, which no variable can hold".to_owned());
    }
    let (_, warnings) = parse(chosen.iter().cloned());
    let Some(warning) = warnings.first() else { return Ok(()) };
    let why = warning.split("; using ").next().unwrap_or(warning);
    Err(why.split_once(": ").map_or(why, |(_, why)| why).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(chosen: &[SettingPair]) -> Vec<(&str, &str)> {
        chosen.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn rows_are_added_to_the_formats() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let chosen = [pair("GPUFLAME_FORMATS", "csv"), pair("GPUFLAME_FORMATS", "svg")];
        assert_eq!(with_rows(&chosen), pair("GPUFLAME_FORMATS", "svg,gfr"));
        assert_eq!(with_rows(&[]), pair("GPUFLAME_FORMATS", "folded,svg,csv,idle,sums,gfr"));
    }

    #[test]
    fn a_window_option_is_a_list_of_key_value_pairs() {
        let chosen = parse_window("delay=5, duration=0.5,repeat=0,steps=3..7,flag=/tmp/on").unwrap();
        let expected = [
            ("GPUFLAME_DELAY", "5"),
            ("GPUFLAME_DURATION", "0.5"),
            ("GPUFLAME_REPEAT", "0"),
            ("GPUFLAME_STEPS", "3..7"),
            ("GPUFLAME_FLAG", "/tmp/on"),
        ];
        assert_eq!(pairs(&chosen), expected);
        assert_eq!(pairs(&parse_window("off").unwrap()), [("GPUFLAME_ENABLED", "0")]);
        let timed = parse_window("delay=2min,duration=250ms").unwrap();
        assert_eq!(pairs(&timed), [("GPUFLAME_DELAY", "120"), ("GPUFLAME_DURATION", "0.25")]);
        for (text, words) in [
            ("5", "`5` is neither `off` nor one of delay=, duration="),
            ("length=5", "`length=5` is neither `off` nor one of"),
            ("duration=0", "expected a number of seconds above 0, a year at most, not `0`"),
            ("steps=9..3", "expected FROM..TO with FROM below TO"),
            ("delay=1,delay=2", "delay= is given twice"),
            ("delay=1,step-range=", "step-range= has no value"),
            ("repeat=3", "repeat= needs duration="),
            ("flag=on,signal=USR2", "exclude each other"),
            ("flag=/", "/ is a folder; name a file"),
            ("flag=a\0b", "a zero byte"),
        ] {
            let said = parse_window(text).unwrap_err().to_string();
            assert!(said.contains("--window") && said.contains(words), "{said}");
        }
    }
}
