//! Finds the rank of a process in its job, and the number of ranks of the job, in a trace.

/// Rank of the process that wrote a trace, and number of ranks in its job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobPlace {
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
}

/// Environment variables for the rank of a process and for the number of ranks. The launchers torchrun, Open MPI, MPICH
/// and Slurm set these variables.
const VARIABLES: [(&[u8], &[u8]); 4] = [
    (b"RANK", b"WORLD_SIZE"),
    (b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_SIZE"),
    (b"PMI_RANK", b"PMI_SIZE"),
    (b"SLURM_PROCID", b"SLURM_NTASKS"),
];

impl JobPlace {
    /// Reads the rank from the object that torch.profiler writes before the trace events: `"distributedInfo":
    /// {"backend": "nccl", "rank": 3, "world_size": 8, …`. This object also contains process groups with their own
    /// ranks and sizes, which are ignored.
    pub(super) fn from_head(head: &[u8]) -> Self {
        let info = text_after(head, b"\"distributedInfo\"").map(<[u8]>::trim_ascii_start);
        let object = info.and_then(|info| info.strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"{"));
        let number = |key: &[u8]| parse_number(find_member(object?, key)?);
        Self { rank: number(b"rank"), world_size: number(b"world_size").filter(|size| *size > 0) }
    }

    /// Reads the rank from the environment of a process. The environment is given as an object whose members are the
    /// variables.
    pub(super) fn from_environment(object: &[u8]) -> Self {
        let Some(object) = object.trim_ascii_start().strip_prefix(b"{") else { return Self::default() };
        let number = |key: &[u8]| parse_number(find_member(object, key)?);
        let places = VARIABLES.iter().map(|(rank, size)| Self {
            rank: number(rank),
            world_size: number(size).filter(|size| *size > 0),
        });
        places.into_iter().find(|place| place.rank.is_some()).unwrap_or_default()
    }
}

fn text_after<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(key.len()).position(|window| window == key)?;
    Some(&text[at + key.len()..])
}

/// Finds the member `key` of a JSON object, and returns the text that begins with this member's value. `object` is the
/// text after the opening brace of the object, and it may be truncated.
fn find_member<'a>(object: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let (mut depth, mut at) = (1_usize, 0);
    while let Some(&byte) = object.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                let begin = at;
                while *object.get(at)? != b'"' {
                    at += if object[at] == b'\\' { 2 } else { 1 };
                }
                let text = &object[begin..at];
                at += 1;
                if depth == 1
                    && text == key
                    && let Some(value) = object[at..].trim_ascii_start().strip_prefix(b":")
                {
                    return Some(value.trim_ascii_start());
                }
            }
            _ => {}
        }
        if depth == 0 {
            return None;
        }
    }
    None
}

/// Parses the number at the start of `text`. The number may be written in quotes. Returns `None` if the number extends
/// to the end of the text, because the number may be truncated.
fn parse_number(text: &[u8]) -> Option<u32> {
    let text = text.strip_prefix(b"\"").unwrap_or(text);
    let end = text.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: impl Into<Option<u32>>, world_size: impl Into<Option<u32>>) -> JobPlace {
        JobPlace { rank: rank.into(), world_size: world_size.into() }
    }

    #[test]
    fn rank_and_size_are_those_of_the_job_and_not_of_a_process_group() {
        for (head, expected) in [
            (
                r#"{"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "traceEvents": ["#,
                place(3, 8),
            ),
            (
                r#"{"distributedInfo":{"pg_config":[{"rank":7,"world_size":2}],"rank":0,"world_size":16}}"#,
                place(0, 16),
            ),
            (r#"{"distributedInfo": {"backend": "nccl", "pg_config": [{"rank": 7}]}}"#, place(None, None)),
            (r#"{"distributedInfo": {"backend": "nccl"}, "rank": 5"#, place(None, None)),
            (r#"{"distributedInfo": {"rank": 5, "world_size": "8"} "#, place(5, 8)),
            (r#"{"distributedInfo": {"rank": 5, "world_size": 0} "#, place(5, None)),
            (r#"{"distributedInfo": {"a\"b": "rank", "rank": 5, "world_size": 1"#, place(5, None)),
            (r#"{"distributedInfo": {"rank": "#, place(None, None)),
            (r#"{"distributedInfo": {"rank": -1}"#, place(None, None)),
            (r#"{"rank": 3, "traceEvents": ["#, place(None, None)),
        ] {
            assert_eq!(JobPlace::from_head(head.as_bytes()), expected, "{head}");
        }
    }

    #[test]
    fn the_environment_gives_the_place_by_one_launcher() {
        for (environment, expected) in [
            (r#"{"SLURM_NTASKS": "4", "SLURM_PROCID": "1", "PATH": "/x"}"#, place(1, 4)),
            (r#"{"SLURM_NTASKS":"1","SLURM_PROCID":"0","RANK":"6","WORLD_SIZE":"8"}"#, place(6, 8)),
            (r#"{"WORLD_SIZE":"8"}"#, place(None, None)),
            ("", place(None, None)),
            ("{}", place(None, None)),
        ] {
            assert_eq!(JobPlace::from_environment(environment.as_bytes()), expected, "{environment}");
        }
    }
}
