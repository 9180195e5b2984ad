//! Reads the file `NAME.set.json`. This file lists the output files that a process wrote into the same folder.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// Returns the path that an entry of the list `files` contains. The entry is a string, or a list of bytes if the path
/// is not UTF-8.
pub(super) fn parse_path(file: &serde_json::Value) -> Option<OsString> {
    let byte = |byte: &serde_json::Value| byte.as_u64()?.try_into().ok();
    match file.as_array() {
        Some(bytes) => Some(OsString::from_vec(bytes.iter().map(byte).collect::<Option<_>>()?)),
        None => file.as_str().map(OsString::from),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use gpuflame_explain::json_path;

    use super::*;

    #[test]
    fn any_path_is_the_same_after_it_was_written_and_read() {
        for path in [&b""[..], b"/a/b.svg", "/a\n\"é".as_bytes(), b"caf\xe9/\0\xff"] {
            let path = OsStr::from_bytes(path);
            assert_eq!(parse_path(&serde_json::from_str(&json_path(path)).unwrap()).as_deref(), Some(path));
        }
        for other in ["7", "null", "[256]", "[-1]", "[\"a\"]"] {
            assert_eq!(parse_path(&serde_json::from_str(other).unwrap()), None, "{other}");
        }
    }
}
