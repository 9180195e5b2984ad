//! Reads the settings file of `gpuflame run`. This is the file that `--config FILE` names, or otherwise `gpuflame.toml`
//! in the working folder. A key is the name of an environment variable in lower case and without the prefix (`duration
//! = 2.5`). If the library would ignore a value with a warning, this module reports an error before the command is run.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use super::setting_flags::{SettingPair, check, in_seconds};
use gpuflame_config::settings::{SETTINGS, nearest};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Name of the file in the working folder that is read if `--config` is not given.
pub(super) const DEFAULT_FILE: &str = "gpuflame.toml";
/// Prefix of all variable names except one. Keys in settings files omit this prefix.
const PREFIX: &str = "GPUFLAME_";
/// Setting that names a library to load. Only a file that the user named with `--config` may set this variable, because
/// the working folder may belong to another user.
const LOADED_LIBRARY: &str = "GPUFLAME_CUPTI";

/// Reads a settings file that the user named with `--config`.
pub(super) fn read_config(path: &Path) -> Result<Vec<SettingPair>> {
    let text = fs::read_to_string(path).map_err(|error| Error::from(error).within(path.display()))?;
    parse_config(&text).map_err(|error| error.within(path.display()))
}

/// Reads `gpuflame.toml` in `folder`, if it exists.
pub(super) fn find_config(folder: &Path) -> Result<Vec<SettingPair>> {
    if !folder.join(DEFAULT_FILE).is_file() {
        return Ok(Vec::new());
    }
    let read = || {
        let text = fs::read_to_string(folder.join(DEFAULT_FILE))?;
        let all = parse_config(&text)?;
        match all.iter().any(|(name, _)| name == LOADED_LIBRARY) {
            true => Err(setting_error(
                "cupti names a library to load, so only a file that --config names may contain it".to_owned(),
            )),
            false => Ok(all),
        }
    };
    read().map_err(|error: Error| {
        Error::new(error.kind(), format!("{DEFAULT_FILE}: {error}; --no-config ignores the file"))
    })
}

/// Returns the key that represents an environment variable in a settings file.
pub(super) fn key_of(name: &str) -> String {
    name.trim_start_matches(PREFIX).to_ascii_lowercase()
}

fn parse_config(text: &str) -> Result<Vec<SettingPair>> {
    let line_at = |offset: usize| text[..offset].matches('\n').count() + 1;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_at(span.start));
        setting_error(format!("line {line}: {}", error.message()))
    })?;
    let keys = DeTable::parse(text).map(toml::Spanned::into_inner).unwrap_or_default();
    let lines: HashMap<&str, usize> =
        keys.keys().map(|key| (key.get_ref().as_ref(), line_at(key.span().start))).collect();
    let pairs = table.iter().map(|(key, value)| {
        let line = lines.get(key.as_str()).copied().unwrap_or(1);
        parse_pair(key, value).map_err(|error| error.within(key).within(format_args!("line {line}")))
    });
    pairs.collect()
}

fn parse_pair(key: &str, value: &Value) -> Result<SettingPair> {
    let text = to_text(key, value)?;
    let chosen = in_seconds(&variable_name(key).map_err(setting_error)?, text)?;
    check(std::slice::from_ref(&chosen)).map_err(setting_error)?;
    Ok(chosen)
}

/// Returns the environment variable for a key in a settings file. A key is the name of an environment variable, with or
/// without the prefix.
fn variable_name(key: &str) -> std::result::Result<String, String> {
    let whole = key.to_ascii_uppercase().replace('-', "_");
    let is_known = |name: &str| SETTINGS.iter().any(|setting| setting.name == name);
    let is_whole = whole.starts_with(PREFIX) || is_known(&whole);
    let name = if is_whole { whole } else { format!("{PREFIX}{whole}") };
    if is_known(&name) {
        return Ok(name);
    }
    let nearest = nearest(&name).trim_start_matches(PREFIX).to_ascii_lowercase();
    Err(format!("no such setting; did you mean `{nearest}`? `gpuflame settings --all` lists all settings"))
}

/// Converts a value in a settings file to the text of an environment variable.
fn to_text(key: &str, value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(on) => u8::from(*on).to_string(),
        Value::Array(items) => {
            let items: Result<Vec<_>> = items.iter().map(|item| to_text(key, item)).collect();
            items?.join(",")
        }
        Value::Datetime(_) | Value::Table(_) => {
            return Err(setting_error(format!(
                "a setting cannot be a table or a date; write `{key} = VALUE`"
            )));
        }
    })
}

fn setting_error(message: String) -> Error {
    Error::new(ErrorKind::Setting, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(chosen: &[SettingPair]) -> Vec<(&str, &str)> {
        chosen.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn a_settings_file_accepts_short_names() {
        let text = "# For the nightly job.\noutput = 'job/%r'\nformats = ['svg', 'gfr']\nduration = 2.5\nquiet = true\nstep-range = 'step *'\n";
        let mut chosen = parse_config(text).unwrap();
        chosen.sort();
        let expected = [
            ("GPUFLAME_DURATION", "2.5"),
            ("GPUFLAME_FORMATS", "svg,gfr"),
            ("GPUFLAME_OUTPUT", "job/%r"),
            ("GPUFLAME_QUIET", "1"),
            ("GPUFLAME_STEP_RANGE", "step *"),
        ];
        assert_eq!(pairs(&chosen), expected);
        let long = parse_config("GPUFLAME_DELAY = 0\ncupti_trace_output_file = 'x'\n").unwrap();
        assert_eq!(pairs(&long), [("GPUFLAME_DELAY", "0"), ("CUPTI_TRACE_OUTPUT_FILE", "x")]);
        assert_eq!(pairs(&parse_config("duration = '1.5s'").unwrap()), [("GPUFLAME_DURATION", "1.5")]);
        for (text, words) in [
            ("quiet = true\nb = = 2\n", "line 2"),
            ("delay = 1\ndelay = 2\n", "line 2: duplicate key"),
            ("# A\n\nformats = 'png'", "line 3: formats: `png` is not one of"),
            ("quiet = true\noutputs = 'x'", "line 2: outputs: no such setting; did you mean `output`?"),
            ("GPUFLAME_DURRATION = 1", "GPUFLAME_DURRATION: no such setting; did you mean `duration`?"),
            ("output = \"a\\u0000b\"", "output: it contains a zero byte"),
            ("[window]\ndelay = 1\n", "window: a setting cannot be a table"),
        ] {
            let said = parse_config(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn every_setting_has_a_key_and_accepts_its_default() {
        for setting in SETTINGS {
            let text = format!("{} = '{}'", key_of(setting.name), setting.default);
            // Some settings have an empty default, but the check rejects an empty value.
            let is_unset = setting.default.is_empty();
            match parse_config(&text) {
                Ok(pairs) => assert_eq!(pairs, [(setting.name.to_owned(), setting.default.to_owned())]),
                Err(error) => assert!(is_unset, "{text}: {error}"),
            }
        }
    }
}
