//! Detects the format of a trace from its first bytes. For a format that is not supported, the error message names the
//! format that the file resembles, and explains how to convert the file.

use super::sqlite::Database;
use super::{Kind, chakra, rocpd};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Detects the format of a file whose decompressed content begins with `head`.
pub(super) fn detect_kind(head: &[u8]) -> Result<Kind> {
    if let Some(what) = describe_encoding(head) {
        return Err(not_a_trace(what));
    }
    let first = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    match first {
        [] if head.is_empty() => Err(not_a_trace("is empty; was the program that wrote it stopped?")),
        [] => Err(not_a_trace("contains only blanks")),
        [b'{', ..] => detect_json(first),
        [b'[', rest @ ..] if is_array(rest) => detect_json(first),
        _ if head.starts_with(b"SQLite format 3\0") => Ok(Kind::Nsys),
        _ if head.starts_with(b"SBT\0") => Ok(Kind::Sbt),
        _ if head.starts_with(b"gpuflame") => Ok(Kind::Recording),
        _ if chakra::is_chakra(head) => Ok(Kind::Chakra),
        _ => detect_packed(head)
            .or_else(|| detect_text(head))
            .unwrap_or_else(|| Err(not_a_trace(UNKNOWN_FORMAT))),
    }
}

/// Returns a description of the encoding, if the file is text in an encoding other than UTF-8. The encoding is detected
/// from the byte order mark, or from the zero bytes around the first bracket.
fn describe_encoding(head: &[u8]) -> Option<&'static str> {
    Some(match head {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => {
            "is UTF-32 text; convert it first (`iconv -f UTF-32 -t UTF-8 FILE > OUT`)"
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            "is UTF-16 text; convert it first (`iconv -f UTF-16 -t UTF-8 FILE > OUT`)"
        }
        [b'{' | b'[', 0, 1..=255, 0, ..] => {
            "is UTF-16 text; convert it first (`iconv -f UTF-16LE -t UTF-8 FILE > OUT`)"
        }
        [0, b'{' | b'[', 0, 1..=255, ..] => {
            "is UTF-16 text; convert it first (`iconv -f UTF-16BE -t UTF-8 FILE > OUT`)"
        }
        _ => return None,
    })
}

/// Whether the bytes after a `[` can be a JSON array of trace events. Files in other formats may also begin with `[`.
/// For example, a folded stack may look like this: `[thread main];decode;gemm 12`.
fn is_array(rest: &[u8]) -> bool {
    matches!(rest.trim_ascii_start(), [] | [b'{' | b']', ..])
}

/// Returns a description of a file whose format is recognized only by the extension of its name.
pub(super) fn describe_by_name(name: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 12] = [
        (".svg", PICTURE_OR_TABLE),
        (".csv", PICTURE_OR_TABLE),
        (".set.json", "is the list of files that one run wrote; give its recording, NAME.gfr"),
        (".nsys-rep", NSYS_REPORT),
        (".qdrep", NSYS_REPORT),
        (
            ".qdstrm",
            "is raw data of Nsight Systems; convert it to a report (`QdstrmImporter`), then export the report",
        ),
        (".pftrace", PERFETTO),
        (".perfetto-trace", PERFETTO),
        (".xplane.pb", XPLANE),
        (".hatchet", PROTON),
        (".hatchet_msgpack", PROTON),
        (
            ".ncu-rep",
            "is a report of Nsight Compute, which has single kernels but no timeline; profile the program with `nsys`",
        ),
    ];
    let name = name.to_ascii_lowercase();
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    NAMES.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, what)| *what)
}

/// Whether `error` describes the file better than `by_name`, which is the description derived from the file's
/// extension.
pub(super) fn is_described(error: &Error, by_name: &str) -> bool {
    by_name == PICTURE_OR_TABLE && error.to_string().contains("is a table of ")
}

const UNKNOWN_FORMAT: &str = "is not a trace in a known format (Kineto or Chrome JSON, nsys sqlite, rocprofv3 JSON or rocpd, \
                              .rpd, CUPTI text, folded stacks, SBT, .gfr); give a file in one of these formats, or record the \
                              program with `gpuflame run`";
const PICTURE_OR_TABLE: &str = "is a picture or a table, not a trace; if gpuflame wrote it, give the recording of the same run, \
                                NAME.gfr";
const COLUMNS: &str = "is a file of columns (Parquet or Arrow), not a trace; if gpuflame wrote it, give the recording of the same \
                       run, NAME.gfr";
const WEB_PAGE: &str = "is a web page or a picture, not a trace; if gpuflame wrote it, give the recording of the same run, \
                        NAME.gfr; if it was downloaded, the server may have sent an error page";
const NSYS_REPORT: &str = "is a report of Nsight Systems; export it first (`nsys export --type sqlite -o OUT.sqlite FILE`) and give that";
const NSYS_TABLE: &str = "is a table of `nsys stats`; export the report of the run and give that (`nsys export --type sqlite -o \
                          OUT.sqlite REPORT.nsys-rep`)";
const PERFETTO: &str = "is a Perfetto trace, which gpuflame writes but does not read; give the JSON that it was made from \
                        (torch.profiler: export_chrome_trace), or convert it with `traceconv json FILE OUT.json`";
const XPLANE: &str = "is an XPlane of JAX or TensorFlow, which gpuflame does not read; let the profiler write \
                      `trace.json.gz` as well, or record the run with libgpuflame.so";
const PROTON: &str = "is a profile of Triton's Proton, which has sums per call path but no timeline; let Proton write a \
                      timeline (`proton.start(data=\"trace\")`), or record the program with `gpuflame run`";

const ROCPROF_1_TRACE: &str = "is a trace of rocprof 1, whose events do not tell calls from GPU work; record the program with \
                               `rocprofv3 --sys-trace -- COMMAND` and give its database";

fn not_a_trace(what: &str) -> Error {
    Error::new(ErrorKind::Format, what)
}

fn detect_json(head: &[u8]) -> Result<Kind> {
    let has = |key: &str| head.windows(key.len()).any(|window| window == key.as_bytes());
    let has_all = |keys: &[&str]| keys.iter().all(|key| has(key));
    if has("\"traceEvents\"") && (has("\"CPU HIP API\"") || has_all(&["\"BeginNs\"", "\"DurationNs\""])) {
        return Err(not_a_trace(ROCPROF_1_TRACE));
    }
    if has("\"traceEvents\"") || (head[0] == b'[' && has("\"ph\"")) {
        return Ok(Kind::Chrome);
    }
    if has("\"rocprofiler-sdk-tool\"") {
        return Ok(Kind::Rocprof);
    }
    let first_key = head[1..].trim_ascii_start();
    let what = match () {
        () if head[0] == b'[' && has_all(&["\"children\"", "\"frame\"", "\"metrics\""]) => PROTON,
        () if has("\"averageMs\"")
            || has("\"startComputeMs\"")
            || has_all(&["\"Layers\"", "\"Bindings\""]) =>
        {
            "is a profile of trtexec, which has sums or host times but no GPU timeline; profile the command with \
             `nsys profile -t cuda,nvtx trtexec ...` and export that (`nsys export --type sqlite`)"
        }
        // At this point, a file that begins with `[` must be an array of trace events.
        () if head[0] == b'[' => return Ok(Kind::Chrome),
        () if has_all(&["\"pg_config\"", "\"entries\""]) || has("\"collective_seq_id\"") => FLIGHT_RECORDER,
        () if has_all(&["\"nodes\"", "\"schema\""]) => return Ok(Kind::ExecutionTrace),
        // `describe_by_name` returns the same message for files that are recognized by name.
        () if has_all(&["\"process\"", "\"windows\"", "\"files\""]) => {
            "is the list of files that one run of gpuflame wrote; give its recording, NAME.gfr"
        }
        () if has("\"$schema\"") && has("speedscope") => {
            "is a speedscope file, which gpuflame writes but does not read"
        }
        () if has("\"preprocessedProfileVersion\"")
            || first_key.starts_with(b"\"meta\"") && (has("\"libs\"") || has("\"interval\"")) =>
        {
            "is a profile for the Firefox Profiler (samply), which has CPU samples but no GPU work; record the program \
             with `gpuflame run --cpu-samples 99`"
        }
        // Trace events may follow later in the file, after metadata that is longer than `head`.
        () => return Ok(Kind::Chrome),
    };
    Err(not_a_trace(what))
}

const FLIGHT_RECORDER: &str = "is a dump of PyTorch's NCCL flight recorder, which has collectives but no GPU timeline; \
                               analyse it with `torchfrtrace`, and give the torch.profiler trace of the run";

/// Detects the format of a sqlite database from the names of its tables.
pub(super) fn detect_database(base: &Database) -> Result<Kind> {
    let starts_with = |prefix: &str| base.tables().any(|name| name.starts_with(prefix));
    let has = |table: &str| base.has_table(table);
    let what = match () {
        () if starts_with("CUPTI_ACTIVITY_KIND_") || has("NVTX_EVENTS") => return Ok(Kind::Nsys),
        () if !rocpd::find_sets(base).is_empty() => return Ok(Kind::Rocpd),
        () if has("rocpd_op") && has("rocpd_api") => return Ok(Kind::Rpd),
        () if starts_with("compute_") => {
            "is a database of rocprof-compute, which has counters per kernel but no timeline; record one with \
             `rocprofv3 --sys-trace -- COMMAND` and give its database"
        }
        () if has("causal_chains") && has("stack_traces") && has("events") => {
            "is a database of ingero, which has calls but no GPU times; record the program with `gpuflame run` or \
             `nsys profile -t cuda`"
        }
        () if has("StringIds") || has("META_DATA_EXPORT") => {
            "is an Nsight Systems export without CUDA data; record it with `nsys profile -t cuda,nvtx` and export it \
             again (`nsys export --type sqlite`)"
        }
        () => {
            "is an sqlite file, but not an Nsight Systems export (`nsys export --type sqlite`), not a rocpd database \
             of rocprofv3 and not an .rpd of rocmProfileData"
        }
    };
    Err(not_a_trace(what))
}

/// Detects archives, compressed files and other binary files that gpuflame cannot read.
fn detect_packed(head: &[u8]) -> Option<Result<Kind>> {
    let what = match head {
        [b'P', b'K', 3, 4, ..] => "is a zip archive; unpack it first (`unzip FILE`)",
        [0x80, 2..=5, ..] if has(head, b"pg_config") || has(head, b"collective_seq_id") => FLIGHT_RECORDER,
        [0x80, 2..=5, ..] if has(head, b"device_traces") || has(head, b"segments") => {
            "is a snapshot of PyTorch's memory, which has allocations but no GPU timeline; give the torch.profiler \
             trace of the run"
        }
        [0x80, 2..=5, ..] => "is a Python pickle, which gpuflame does not read; give the trace as JSON",
        [b'<', ..] if has(head, b"<trace-query-result") || has(head, b"<trace-toc") => {
            "is an XML export of xctrace, whose Metal work gpuflame does not read; open the .trace in Instruments, or \
             convert the intervals to Chrome JSON events of the category `kernel`"
        }
        [b'<', ..] if starts_with_any(head, &["<!doctype html", "<html", "<svg", "<?xml"]) => WEB_PAGE,
        [b'P', b'A', b'R', b'1', ..] | [b'A', b'R', b'R', b'O', b'W', b'1', ..] => COLUMNS,
        [b'P', b'E', b'R', b'F', b'I', b'L', b'E', b'2', ..] => {
            "is a recording of Linux perf, which has CPU samples but no GPU work; record the program with \
             `gpuflame run --cpu-samples 99`"
        }
        [b'm', b'e', b'm', b'r', b'a', b'y', 0, ..] => {
            "is a recording of memray, which has allocations but no GPU work; record the program with `gpuflame run`"
        }
        [0x04, 0x22, 0x4d, 0x18, ..] => "is compressed with lz4; unpack it first (`lz4 -d FILE`)",
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "is compressed with xz; unpack it first (`xz -d FILE`)",
        [b'B', b'Z', b'h', ..] => "is compressed with bzip2; unpack it first (`bzip2 -d FILE`)",
        _ if head.starts_with(b"version https://git-lfs.github.com/spec/") => {
            "is a Git LFS pointer, not the file itself; fetch the file (`git lfs pull`)"
        }
        // XPlane is a protobuf file whose first field is a message that contains the name of a plane.
        [0x0a, ..]
            if [&b"/host:CPU"[..], b"/host:metadata", b"/device:"].iter().any(|name| has(head, name)) =>
        {
            XPLANE
        }
        _ if head.get(257..262) == Some(b"ustar") => {
            "is a tar archive; unpack it first (`tar -xf FILE`) and give the files inside"
        }
        _ => return None,
    };
    Some(Err(not_a_trace(what)))
}

fn has(head: &[u8], text: &[u8]) -> bool {
    head.windows(text.len()).any(|window| window == text)
}

/// Whether `head` begins with one of `texts`, in upper or lower case.
fn starts_with_any(head: &[u8], texts: &[&str]) -> bool {
    let starts =
        |text: &&str| head.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text.as_bytes()));
    texts.iter().any(starts)
}

/// Returns a description of the text, if the text is a table that a known profiler wrote. Such a table is recognized by
/// the names of its columns.
fn describe_table(text: &str) -> Option<&'static str> {
    const TABLES: [(&[&str], &str); 6] = [
        (&["Time (%)", "Total Time (ns)"], NSYS_TABLE),
        (&["Start (ns)", "Duration (ns)"], NSYS_TABLE),
        (
            &["Process ID", "Kernel Name", "Metric"],
            "is a table of Nsight Compute, which has single kernels but no timeline; profile the program with `nsys`",
        ),
        (
            &["Time(%)", "Calls", "Avg"],
            "is a table of nvprof, which has sums but no timeline; record the program with `gpuflame run` or \
             `nsys profile -t cuda`",
        ),
        (
            &["KernelName", "BeginNs", "EndNs"],
            "is a table of rocprof, which has kernels but no launches; record the program with \
             `rocprofv3 --sys-trace -- COMMAND` and give its database",
        ),
        (
            &["Agent_Id", "Start_Timestamp", "End_Timestamp"],
            "is a table of rocprofv3; let it write its database or JSON (`--output-format rocpd json`) and give that",
        ),
    ];
    /// Maximum number of lines that may come before the names of the columns.
    const MAX_LINES: usize = 20;
    let mut lines = text.lines().take(MAX_LINES).filter(|line| line.contains(','));
    lines.find_map(|line| {
        let has_all = |columns: &[&str]| columns.iter().all(|column| line.contains(column));
        TABLES.iter().find(|(columns, _)| has_all(columns)).map(|(_, what)| *what)
    })
}

fn detect_text(head: &[u8]) -> Option<Result<Kind>> {
    let whole = &head[..head.iter().rposition(|&byte| byte == b'\n').map_or(head.len(), |at| at + 1)];
    let text = String::from_utf8_lossy(whole);
    let mut lines =
        text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let first = lines.clone().next()?;
    if let Some(what) = describe_table(&text) {
        return Some(Err(not_a_trace(what)));
    }
    if text.lines().any(is_cupti_line) {
        return Some(Ok(Kind::CuptiText));
    }
    if is_extended_line(first) {
        return Some(Ok(Kind::ExtendedFolded));
    }
    if lines.clone().take(100).all(is_folded_line) {
        // A file with a single line is not rejected, because the first of the two numbers in the line may belong to the
        // frame's name.
        let has_two = |line| super::folded::split_two_counts(line).is_some();
        if lines.clone().nth(1).is_some() && lines.all(|line| has_two(line.as_bytes())) {
            return Some(Err(not_a_trace(
                "has two counts per line, as difffolded.pl writes them; give the two files that it compared to \
                 `gpuflame flamegraph --diff BEFORE AFTER`",
            )));
        }
        return Some(Ok(Kind::Folded));
    }
    if lines.any(|line| line.starts_with("packet {") || line.starts_with("packet{")) {
        return Some(Err(not_a_trace(
            "is a Perfetto trace in text form, which gpuflame does not read; convert it with `traceconv json FILE OUT.json`",
        )));
    }
    find_line_without_weight(&text).map(|number| {
        let what = format!(
            "line {number} is no folded stack (`FRAME;FRAME COUNT`), unlike most lines of the file; correct or delete \
             the line"
        );
        Err(Error::new(ErrorKind::Format, what))
    })
}

/// Returns the line number, counted from 1, of the first line that is not a folded stack. Returns `None` if the text
/// does not resemble folded stacks: a line must have several frames, and at least half of the lines must have a weight.
fn find_line_without_weight(text: &str) -> Option<usize> {
    const MAX_LINES: usize = 100;
    let lines = text.lines().map(str::trim_end).enumerate().take(MAX_LINES);
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let (folded, others): (Vec<_>, Vec<_>) = lines.partition(|(_, line)| is_folded_line(line));
    let resembles = folded.len() >= others.len() && folded.iter().any(|(_, line)| line.contains(';'));
    others.first().filter(|_| resembles).map(|(at, _)| at + 1)
}

/// Whether `line` looks like output of CUPTI's sample program `activity_trace`.
fn is_cupti_line(line: &str) -> bool {
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

/// Whether `line` has the form `TIME COMM PID TID CPU FRAMES`. COMM is the name of the program, which may contain
/// blanks.
fn is_extended_line(line: &str) -> bool {
    super::folded::parse_extended(line.as_bytes()).is_some()
}

/// Whether `line` has the form `FRAMES WEIGHT`. Lines with a negative or fractional weight have this form too. The
/// reader reports such lines as errors later.
fn is_folded_line(line: &str) -> bool {
    super::folded::split_weight(line.as_bytes()).is_some()
        || super::folded::describe_weight(line.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_detected_by_content() {
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
            ("main;a 5 7\n", Kind::Folded),
            ("main;a 5 7\nmain;b 6\n", Kind::Folded),
            ("main;a 5\nmain;b -3\n", Kind::Folded),
            ("[{\"name\": \"averageMs of frame, children and metrics\", \"ph\": \"X\"}]", Kind::Chrome),
            ("hello\nMEMSET [ 1, 2 ] duration 1, value 0\n", Kind::CuptiText),
        ] {
            assert_eq!(detect_kind(head.as_bytes()).unwrap(), kind, "{head}");
        }
    }

    #[test]
    fn the_error_for_other_files_names_their_format() {
        for (head, word) in [
            (&b""[..], "empty"),
            (b" \n", "blanks"),
            (b"PK\x03\x04", "zip"),
            (b"packet {\n clock_snapshot {}\n}\n", "Perfetto"),
            (b"kernel_name,start_time_us\nfoo,12.5\n", "not a trace"),
            (b"\xff\xfe{\0\"\0", "UTF-16"),
            (b"{\0\"\0t\0", "UTF-16LE"),
            (b"\0[\0{\0\"", "UTF-16BE"),
            (b"\xff\xfe\0\0{\0\0\0", "UTF-32"),
            (b"\x80\x02}q\0(X\x09\0\0\0pg_config", "torchfrtrace"),
            (b"{\"version\": \"2.9\", \"pg_config\": {}, \"entries\": [", "flight recorder"),
            (b"\x80\x04\x95\x10}\x8c\x08segments", "memory"),
            (b"\x80\x04\x95\x10}\x8c\x03abc", "pickle"),
            (b"[{\"frame\": {\"name\": \"ROOT\"}, \"metrics\": {}, \"children\": []}]", "Proton"),
            (
                b"[\n  { \"count\" : 9 }\n, { \"name\" : \"conv\", \"timeMs\" : 1, \"averageMs\" : 0.1 }",
                "trtexec",
            ),
            (b"[{ \"startInMs\" : 0, \"startComputeMs\" : 1 }]", "trtexec"),
            (b"<?xml version=\"1.0\"?>\n<trace-query-result><node>", "xctrace"),
            (b"{\"meta\":{\"interval\":1.0,\"product\":\"a\"},\"libs\":[],\"threads\":[]}", "samply"),
            (b"main;a 5 7\nmain;b 6 9\n", "--diff BEFORE AFTER"),
            (b"Time (%),Total Time (ns),Instances,Avg (ns),Name\n1,2,3,4,k\n", "nsys stats"),
            (b"Start (ns),Duration (ns),CorrId,Name\n1,2,3,k\n", "nsys stats"),
            (
                b"\"ID\",\"Process ID\",\"Kernel Name\",\"Metric Name\"\n\"0\",\"1\",\"k\",\"d\"\n",
                "Nsight Compute",
            ),
            (b"==1== NVPROF\n\"Type\",\"Time(%)\",\"Time\",\"Calls\",\"Avg\"\n", "nvprof"),
            (b"\"Index\",\"KernelName\",\"BeginNs\",\"EndNs\"\n0,\"k\",1,2\n", "table of rocprof,"),
            (
                b"{\"traceEvents\":[{},{\"args\":{\"name\":\"CPU HIP API\"},\"ph\":\"M\",\"pid\":2}",
                "trace of rocprof 1",
            ),
            (
                b"{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"k\",\"args\":{\"BeginNs\":\"1\",\"DurationNs\":\"2\"}}",
                "trace of rocprof 1",
            ),
            (b"\"Kind\",\"Agent_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n", "rocprofv3"),
            (b"\x0a\x12\x08\x01\xff\xfe", "not a trace"),
            (b"<!DOCTYPE html>\n<html>", "web page"),
            (b"<?xml version=\"1.0\"?><svg>", "picture"),
            (b"PAR1\x15\x04", "Parquet"),
            (b"ARROW1\0\0", "Arrow"),
            (b"PERFILE2\x68\0", "Linux perf"),
            (b"memray\0\x0b", "memray"),
            (b"\x04\x22\x4d\x18\x64", "lz4 -d"),
            (b"# host\nmain;a 5\n\nmain;b\nmain;c 6\n", "line 4 is no folded stack"),
            (b"main;a;b\nmain;c\n", "not a trace"),
            (b"main;a 5\n# lost\n7\nmain;c 3\n", "line 3 is no folded stack"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
            (b"\x0a\x8c\x05\x08\x01\x12\x0d/device:GPU:0", "XPlane"),
        ] {
            let message = detect_kind(head).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        let execution_trace = b"{\"schema\": \"1.0.1\", \"nodes\": []}";
        assert_eq!(detect_kind(execution_trace).unwrap(), Kind::ExecutionTrace);
    }
}
