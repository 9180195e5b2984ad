//! Runs this program again as a child process, and limits the size of its output.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// Path of this program's executable file. This path stays valid even if the program's file is replaced while the
/// server runs.
const MYSELF: &str = "/proc/self/exe";
/// Maximum size in bytes of a verb's standard output. An output of more bytes is an error, because such an output
/// cannot be shortened to an answer.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;
/// Maximum size in bytes of a verb's remarks and errors that are sent to the agent. Remarks and errors beyond this size
/// are read and dropped.
const MAX_REMARK_BYTES: usize = 4_000;

/// Output of a verb that succeeded.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) stdout: String,
    /// Standard error: remarks on missing or doubtful data, one line each.
    pub(super) remarks: String,
}

/// Runs `gpuflame WORDS` without standard input. The child is killed if `stop` returns a reason, or if the returned
/// future is dropped.
///
/// # Errors
/// Returns the verb's error message, or the reason why the verb has no output.
pub(super) async fn run(words: &[String], stop: impl Future<Output = String>) -> Result<Finished, String> {
    let mut command = Command::new(MYSELF);
    command.arg0("gpuflame").args(words).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("`gpuflame` did not start: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let finish = async {
        let read = tokio::try_join!(read_output(out), read_remarks(err))?;
        Ok((read, child.wait().await.map_err(|error| error.to_string())?))
    };
    let finished = tokio::select! {
        finished = finish => finished,
        reason = stop => Err(reason),
    };
    if finished.is_err() {
        // Dropping `child` would kill the process too, but the process might remain a zombie for a while.
        let _ = child.kill().await;
    }
    let ((stdout, remarks), status) = finished?;
    match status.success() {
        true => Ok(Finished { stdout: String::from_utf8_lossy(&stdout).into_owned(), remarks }),
        false if remarks.is_empty() => Err(describe(status)),
        false => Err(remarks),
    }
}

/// Describes how a child process ended if it failed without printing a reason.
fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!(
            "the verb was ended by signal {signal}, by the system or a user; 9 can mean that memory was short"
        ),
        None => format!("the verb failed without a reason: {status}"),
    }
}

async fn read_output(pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let Some(pipe) = pipe else { return Ok(bytes) };
    pipe.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
    match bytes.len() as u64 > MAX_OUTPUT_BYTES {
        true => Err(format!(
            "the answer has more than {} MB; ask for fewer rows, with `number` or a filter",
            MAX_OUTPUT_BYTES >> 20
        )),
        false => Ok(bytes),
    }
}

/// Reads a pipe until the writer closes it. Returns the first MAX_REMARK_BYTES bytes as text. If bytes were dropped,
/// the last line contains the number of dropped bytes.
async fn read_remarks(pipe: Option<impl AsyncRead + Unpin>) -> Result<String, String> {
    let (mut kept, mut part, mut dropped) = (Vec::new(), [0; 4096], 0);
    let Some(mut pipe) = pipe else { return Ok(String::new()) };
    loop {
        let count = pipe.read(&mut part).await.map_err(|error| error.to_string())?;
        if count == 0 {
            break;
        }
        let room = MAX_REMARK_BYTES.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&part[..room]);
        dropped += count - room;
    }
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    if dropped > 0 {
        text += &format!("...\n{dropped} more bytes of remarks were left out\n");
    }
    Ok(text)
}
