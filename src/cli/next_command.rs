//! Suggests the `gpuflame` command line that shows more about a finding or a run.

use super::ranks::RankFlags;

/// Returns the command that shows more about the finding with the id `id`. Returns `None` if a picture or table of idle
/// time shows more. `file` is the file of the run, or of the rank that the finding is about. `files` are all files of
/// the job. `file` and `files` are already quoted for a shell. `has_rows` states whether the files contain a row for
/// every call. `ranks` determines which ranks the files of a job get.
pub(super) fn command_for(
    id: &str,
    is_bad: bool,
    file: &str,
    files: &[String],
    has_rows: bool,
    ranks: RankFlags,
) -> Option<String> {
    if matches!(id, "straggler" | "imbalance" | "clocks_of_ranks") {
        return Some(match id == "clocks_of_ranks" || !has_rows {
            true => merge_command(files, ranks),
            false => format!("gpuflame stragglers {}{}", files.join(" "), ranks.as_text()),
        });
    }
    let arguments = match id {
        _ if is_bad => "check FILE",
        "pageable_copies"
        | "sync_copies"
        | "fragmented_copies"
        | "copies_not_overlapped"
        | "managed_memory" => "top FILE --by copies,stacks",
        "tiny_kernels" => "top FILE --by kernels,function",
        "launch_bound" if has_rows => "what-if FILE --graphs",
        "launch_bound" => "top FILE --by idle,delay",
        "slow_steps" | "late_slowdown" | "warm_up" => "info FILE",
        "default_stream" => "states FILE",
        "idle_gpu" => "top FILE --by kernels",
        "exposed_communication" => "top FILE --by comm",
        "starved_thread" | "profiler_cost" => "check FILE",
        _ => return None,
    };
    Some(format!("gpuflame {}", arguments.replace("FILE", file)))
}

/// Returns the command that compares the ranks of a job and draws a flame graph of the job.
pub(super) fn merge_command(files: &[String], ranks: RankFlags) -> String {
    format!("gpuflame merge-ranks {} -o job.svg{}", files.join(" "), ranks.as_text())
}

/// Quotes a file name for a shell if the name needs quotes. Standard input cannot be read twice, so the name `standard
/// input` is replaced by the placeholder `FILE`.
pub(super) fn quoted_for_shell(file: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    match file {
        "standard input" => "FILE".to_owned(),
        file if file.chars().all(is_plain) && !file.starts_with('-') => file.to_owned(),
        file => format!("'{}'", file.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_and_a_run_have_commands_with_all_or_one_of_their_files() {
        let files = ["rank0.gfr".to_owned(), "'rank 1.gfr'".to_owned()];
        let command =
            |id, has_rows| command_for(id, false, &files[0], &files, has_rows, RankFlags::default());
        assert_eq!(command("straggler", true).unwrap(), "gpuflame stragglers rank0.gfr 'rank 1.gfr'");
        assert_eq!(
            command("straggler", false).unwrap(),
            "gpuflame merge-ranks rank0.gfr 'rank 1.gfr' -o job.svg"
        );
        let in_order = RankFlags { assume_order: true };
        let command_in_order = |id, has_rows| command_for(id, false, &files[0], &files, has_rows, in_order);
        assert_eq!(
            command_in_order("straggler", true).unwrap(),
            "gpuflame stragglers rank0.gfr 'rank 1.gfr' --assume-order"
        );
        assert_eq!(
            command_in_order("imbalance", false).unwrap(),
            "gpuflame merge-ranks rank0.gfr 'rank 1.gfr' -o job.svg --assume-order"
        );
        assert_eq!(command("launch_bound", true).unwrap(), "gpuflame what-if rank0.gfr --graphs");
        assert_eq!(command("data_loader_late", true), None);
        assert_eq!(
            command_for("launch_bound", true, &files[1], &files, true, RankFlags::default()).unwrap(),
            "gpuflame check 'rank 1.gfr'"
        );
    }
}
