//! Determines the name of a Python program. The name is that of the script or module, because the name of the
//! interpreter does not identify the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Maximum length of a program's name, in bytes. The name of a Python module may be longer. A name that is too long is
/// not used, because the names of output files must be short.
const MAX_NAME_BYTES: usize = 100;
/// File extensions of Python programs, which are removed from a program's name.
const ENDINGS: [&[u8]; 4] = [b".py", b".pyc", b".pyw", b".pyz"];
/// The only long option of the Python interpreter whose value is a separate argument.
const LONG_OPTION_WITH_VALUE: &[u8] = b"--check-hash-based-pycs";

/// Returns the name of the script or module that an interpreter was started with. `interpreter` is the file name of the
/// interpreter. `command_line` returns the interpreter's arguments, each with a NUL byte at its end. Returns `None` if
/// the program is not a Python interpreter, or if the interpreter runs code from its arguments or from standard input.
pub(super) fn python_program(
    interpreter: &OsStr,
    command_line: impl FnOnce() -> Vec<u8>,
) -> Option<OsString> {
    let is_python = [&b"python"[..], b"pypy"].iter().any(|name| interpreter.as_bytes().starts_with(name));
    let command_line = if is_python { command_line() } else { return None };
    let name = name_in_arguments(&command_line)?;
    let is_usable = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    is_usable.then(|| OsString::from_vec(name.to_owned()))
}

fn name_in_arguments(command_line: &[u8]) -> Option<&[u8]> {
    let mut words = command_line.split(|byte| *byte == 0).skip(1);
    loop {
        let word = words.next()?;
        match word {
            LONG_OPTION_WITH_VALUE => drop(words.next()?),
            b"--" => return script_name(words.next()?),
            _ if word.starts_with(b"--") => {}
            _ if word.starts_with(b"-") && word.len() > 1 => {
                // One word of the command line may contain several options: `-um train` means `-u -m train`.
                let with_value = word.iter().position(|letter| b"cmWXQ".contains(letter));
                let Some(at) = with_value else { continue };
                let value = match &word[at + 1..] {
                    [] => words.next()?,
                    rest => rest,
                };
                match word[at] {
                    b'm' => return Some(value),
                    b'c' => return None,
                    _ => {}
                }
            }
            b"-" => return None,
            script => return script_name(script),
        }
    }
}

/// Returns the file name of a script without its extension. The script may also be a folder or an archive. For
/// `FOLDER/__main__.py`, returns the name of the folder.
fn script_name(path: &[u8]) -> Option<&[u8]> {
    let path = Path::new(OsStr::from_bytes(path));
    let is_main = path.file_name()? == "__main__.py";
    let name = if is_main { path.parent()?.file_name()? } else { path.file_name()? }.as_bytes();
    Some(
        ENDINGS
            .iter()
            .find_map(|ending| name.strip_suffix(*ending))
            .filter(|name| !name.is_empty())
            .unwrap_or(name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(interpreter: &str, arguments: &[&str]) -> Option<String> {
        let command_line: String = arguments.iter().map(|argument| format!("{argument}\0")).collect();
        let name = python_program(OsStr::new(interpreter), || command_line.into_bytes())?;
        Some(name.into_string().unwrap())
    }

    #[test]
    fn a_python_program_has_the_name_of_its_script_or_module() {
        for (arguments, expected) in [
            (&["python", "train.py", "--steps", "3"][..], "train"),
            (&["/usr/bin/python3", "/opt/job/train.py"], "train"),
            (&["python", "-u", "./a.b/train.v2.py"], "train.v2"),
            (&["python", "/usr/bin/vllm", "serve", "model"], "vllm"),
            (&["python", "-m", "pkg.train", "-c", "x"], "pkg.train"),
            (&["python", "-um", "pytest"], "pytest"),
            (&["python", "-mpytest", "x.py"], "pytest"),
            (&["python", "-X", "importtime", "-Wignore", "-W", "error", "train.py"], "train"),
            (&["python", "-Xdev", "-IBs", "train.py"], "train"),
            (&["python", "--check-hash-based-pycs", "always", "train.pyc"], "train"),
            (&["python", "--", "-odd.py"], "-odd"),
            (&["python", "job/__main__.py"], "job"),
            (&["python", "job/"], "job"),
            (&["python", "job.pyz"], "job"),
            (&["python", ".py"], ".py"),
        ] {
            for interpreter in ["python3.11", "python", "pypy3", "python3.13t"] {
                assert_eq!(program(interpreter, arguments).as_deref(), Some(expected), "{arguments:?}");
            }
        }
    }

    #[test]
    fn programs_without_a_script_have_the_name_of_their_file() {
        let long = "m".repeat(MAX_NAME_BYTES + 1);
        for arguments in [
            &["python"][..],
            &[],
            &["python", "-c", "print(1)", "train.py"],
            &["python", "-ic", "print(1)"],
            &["python", "-", "train.py"],
            &["python", "-u"],
            &["python", "-m"],
            &["python", "-W"],
            &["python", ""],
            &["python", "."],
            &["python", "/"],
            &["python", "-m", &long],
            // A process may replace its command-line arguments by a title.
            &["VLLM::EngineCore"],
        ] {
            assert_eq!(program("python3.11", arguments), None, "{arguments:?}");
        }
        assert_eq!(program("app", &["app", "train.py"]), None);
    }
}
