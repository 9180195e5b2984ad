//! What kind of trace begins with these bytes, and for what is none: what it looks like.

use super::Kind;
use crate::error::{Error, ErrorKind, Result};

/// Tells what `head`, the first (inflated) bytes of a file, is the beginning of.
pub(super) fn of(head: &[u8]) -> Result<Kind> {
    let first = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    match first {
        [] if head.is_empty() => Err(no_trace("is empty; was the program that wrote it stopped?")),
        [] => Err(no_trace("holds nothing but blanks")),
        [b'{', ..] => json(first),
        [b'[', rest @ ..] if is_array(rest) => json(first),
        _ if head.starts_with(b"SQLite format 3\0") => Ok(Kind::Nsys),
        _ if head.starts_with(b"SBT\0") => Ok(Kind::Sbt),
        _ if head.starts_with(b"gpuflame") => Ok(Kind::Recording),
        _ => packed(head).or_else(|| text(head)).unwrap_or_else(|| {
            Err(no_trace(
                "is no trace that gpuflame knows (Kineto or Chrome JSON, nsys sqlite, rocprofv3 JSON, \
                 CUPTI text, folded stacks, SBT, .gfr)",
            ))
        }),
    }
}

/// Whether what stands behind a `[` can be a JSON array of events. `[thread main];decode;gemm 12` is a folded stack.
fn is_array(rest: &[u8]) -> bool {
    matches!(rest.trim_ascii_start(), [] | [b'{' | b']', ..])
}

/// What a file is that only its name tells: `name` is its end.
pub(super) fn named(name: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 10] = [
        (".svg", DRAWN),
        (".csv", DRAWN),
        (
            ".set.json",
            "says which files one run has left; `gpuflame run --formats gfr` leaves a recording of it, which can be asked",
        ),
        (".nsys-rep", NSYS_REPORT),
        (".qdrep", NSYS_REPORT),
        (".qdstrm", "is raw data of Nsight Systems; make a report of it (`QdstrmImporter`), and export that"),
        (".pftrace", PERFETTO),
        (".perfetto-trace", PERFETTO),
        (".xplane.pb", XPLANE),
        (
            ".ncu-rep",
            "is a report of Nsight Compute, which has single kernels and no times of a run; profile it with `nsys`",
        ),
    ];
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    NAMES.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, what)| *what)
}

const DRAWN: &str = "is no trace but a picture or a table for people to look at; `gpuflame run --formats gfr` leaves a \
                     recording, which can be asked";
const NSYS_REPORT: &str = "is a report of Nsight Systems; export it first (`nsys export --type sqlite -o OUT.sqlite FILE`) and give that";
const PERFETTO: &str = "is a Perfetto trace, which gpuflame writes but does not read; give the JSON that it was made of \
                        (torch.profiler: export_chrome_trace), or `traceconv json FILE OUT.json`";
const XPLANE: &str = "is an XPlane of JAX or TensorFlow, which gpuflame does not read; have the profiler write \
                      `trace.json.gz` beside it, or record the run with libgpuflame.so";

fn no_trace(what: &str) -> Error {
    Error::new(ErrorKind::Format, what)
}

fn json(head: &[u8]) -> Result<Kind> {
    let has = |key: &str| head.windows(key.len()).any(|window| window == key.as_bytes());
    if has("\"traceEvents\"") || head[0] == b'[' {
        return Ok(Kind::Chrome);
    }
    if has("\"rocprofiler-sdk-tool\"") {
        return Ok(Kind::Rocprof);
    }
    if has("\"nodes\"") && has("\"schema\"") {
        return Err(no_trace(
            "is a PyTorch execution trace (ET), which has no GPU times; give the Kineto trace of the same run",
        ));
    }
    if has("\"process\"") && has("\"windows\"") && has("\"files\"") {
        // `named` knows it.
        return Err(no_trace("says which files one run of gpuflame has left; give one of those"));
    }
    if has("\"$schema\"") && has("speedscope") {
        return Err(no_trace("is a speedscope file, which gpuflame writes but does not read"));
    }
    // The events may stand behind more metadata than was looked at.
    Ok(Kind::Chrome)
}

/// The rank that torch.profiler writes before the events: `"distributedInfo": {"backend": "nccl", "rank": 3, …`.
pub(super) fn rank_of(head: &[u8]) -> Option<u32> {
    let info = behind(head, b"\"distributedInfo\"")?;
    let info = info.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"{")?;
    // Lists and objects in it, which have ranks of their own, come last.
    let flat = info.split(|byte| b"{}[".contains(byte)).next()?;
    let rank = behind(flat, b"\"rank\"")?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rank.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn behind<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(key.len()).position(|window| window == key)?;
    Some(&text[at + key.len()..])
}

/// Archives and compressions that we do not undo.
fn packed(head: &[u8]) -> Option<Result<Kind>> {
    let what = match head {
        [b'P', b'K', 3, 4, ..] => "is a zip archive; unpack it first (`unzip FILE`)",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "is compressed with zstd; unpack it first (`zstd -d FILE`)",
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "is compressed with xz; unpack it first (`xz -d FILE`)",
        [b'B', b'Z', b'h', ..] => "is compressed with bzip2; unpack it first (`bzip2 -d FILE`)",
        _ if head.starts_with(b"version https://git-lfs.github.com/spec/") => {
            "is a pointer of Git LFS and not the file itself; fetch that (`git lfs pull`)"
        }
        // A protobuf whose first field is a message, with the names of XPlane's planes in it.
        [0x0a, ..]
            if [&b"/host:CPU"[..], b"/host:metadata", b"/device:"].iter().any(|name| has(head, name)) =>
        {
            XPLANE
        }
        _ if head.get(257..262) == Some(b"ustar") => {
            "is a tar archive; unpack it first (`tar -xf FILE`) and give the files in it"
        }
        _ => return None,
    };
    Some(Err(no_trace(what)))
}

fn has(head: &[u8], text: &[u8]) -> bool {
    head.windows(text.len()).any(|window| window == text)
}

fn text(head: &[u8]) -> Option<Result<Kind>> {
    let whole = &head[..head.iter().rposition(|&byte| byte == b'\n').map_or(head.len(), |at| at + 1)];
    let text = String::from_utf8_lossy(whole);
    let mut lines =
        text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let first = lines.clone().next()?;
    if text.lines().any(is_cupti) {
        return Some(Ok(Kind::CuptiText));
    }
    if is_extended(first) {
        return Some(Ok(Kind::ExtendedFolded));
    }
    if lines.clone().take(100).all(is_folded) {
        return Some(Ok(Kind::Folded));
    }
    if lines.any(|line| line.starts_with("packet {") || line.starts_with("packet{")) {
        return Some(Err(no_trace("is a Perfetto trace as text, which gpuflame does not read")));
    }
    None
}

/// A line as CUPTI's `activity_trace` samples print it.
fn is_cupti(line: &str) -> bool {
    const WORDS: [&str; 9] = [
        "RUNTIME",
        "DRIVER",
        "CONCURRENT_KERNEL",
        "KERNEL",
        "MEMCPY",
        "MEMCPY2",
        "MEMSET",
        "OVERHEAD",
        "SYNCHRONIZATION",
    ];
    let first = line.split_ascii_whitespace().next().unwrap_or_default();
    WORDS.contains(&first) && line.contains(" [ ") && line.contains("duration")
}

/// `TIME COMM PID TID CPU FRAMES`, where the program's name may have blanks in it.
fn is_extended(line: &str) -> bool {
    super::folded::extended(line.as_bytes()).is_some()
}

/// `FRAMES WEIGHT`.
fn is_folded(line: &str) -> bool {
    super::folded::weight(line.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_told_by_content() {
        for (head, kind) in [
            ("{\"schemaVersion\": 1, \"traceEvents\": [", Kind::Chrome),
            ("\u{feff} \n [{\"ph\": \"X\"}]", Kind::Chrome),
            ("{\"rocprofiler-sdk-tool\": [{", Kind::Rocprof),
            ("SQLite format 3\0....", Kind::Nsys),
            ("SBT\0\0\0", Kind::Sbt),
            ("gpuflame\u{1}\0\0\0", Kind::Recording),
            ("main;decode;gemm 12\nmain 3\n", Kind::Folded),
            ("# lost: 3 launches\nmain;my function 12\n", Kind::Folded),
            ("[thread main];decode;gemm 12\n[thread main] 3\n", Kind::Folded),
            ("[launched before recording];[GPU_Kernel]gemm 12\n", Kind::Folded),
            ("[ \n", Kind::Chrome),
            ("[]", Kind::Chrome),
            ("123456 python 12 13 -1 main;run;cudaLaunchKernel\n", Kind::ExtendedFolded),
            ("123456 pt_main thread 12 13 1 main;run\n", Kind::ExtendedFolded),
            ("RUNTIME [ 10, 20 ] duration 10, \"cudaLaunchKernel\", cbid 211\n", Kind::CuptiText),
            ("hello\nMEMSET [ 1, 2 ] duration 1, value 0\n", Kind::CuptiText),
        ] {
            assert_eq!(of(head.as_bytes()).unwrap(), kind, "{head}");
        }
    }

    #[test]
    fn a_rank_is_what_the_job_gave_and_no_group_in_it() {
        for (head, rank) in [
            (
                r#"{"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "traceEvents": ["#,
                Some(3),
            ),
            (r#"{"distributedInfo":{"rank":0,"pg_config":[{"rank":7}]}}"#, Some(0)),
            (r#"{"distributedInfo": {"backend": "nccl", "pg_config": [{"rank": 7}]}}"#, None),
            (r#"{"distributedInfo": {"backend": "nccl"}, "rank": 5"#, None),
            (r#"{"distributedInfo": {"rank": "#, None),
            (r#"{"rank": 3, "traceEvents": ["#, None),
        ] {
            assert_eq!(rank_of(head.as_bytes()), rank, "{head}");
        }
    }

    #[test]
    fn what_is_no_trace_is_told_by_what_it_looks_like() {
        for (head, word) in [
            (&b""[..], "empty"),
            (b" \n", "blanks"),
            (b"PK\x03\x04", "zip"),
            (b"\x28\xb5\x2f\xfd", "zstd"),
            (b"{\"schema\": \"1.0.1\", \"nodes\": []}", "execution trace"),
            (b"packet {\n clock_snapshot {}\n}\n", "Perfetto"),
            (b"kernel_name,start_time_us\nfoo,12.5\n", "no trace"),
            (b"\x0a\x12\x08\x01\xff\xfe", "no trace"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
            (b"\x0a\x8c\x05\x08\x01\x12\x0d/device:GPU:0", "XPlane"),
        ] {
            let message = of(head).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
