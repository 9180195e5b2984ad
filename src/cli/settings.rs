//! `gpuflame settings`: lists the environment variables that `libgpuflame.so` reads. The list of variables is generated
//! from the table that the library uses to parse the variables. The order and the groups of settings are defined in the
//! `gpuflame` command and not in the library, so that the library stays small.

use std::fmt::Write as _;

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::near_misses::{near_misses, quoted};
use super::page::Page;
use super::shorten::wrap;
use super::table_output::{self, Cell, ReportFlags, ReportFormat, Table};
use gpuflame_config::settings::{SETTINGS, Setting};
use gpuflame_model::error::Result;

/// The most important settings, in the order in which they are shown.
const FIRST: [&str; 10] = [
    "GPUFLAME_OUTPUT",
    "GPUFLAME_FORMATS",
    "GPUFLAME_DELAY",
    "GPUFLAME_DURATION",
    "GPUFLAME_STEPS",
    "GPUFLAME_CPU_SAMPLES",
    "GPUFLAME_OFF_CPU",
    "GPUFLAME_MAX_MEM",
    "GPUFLAME_QUIET",
    "GPUFLAME_VERBOSE",
];
/// Settings that only gpuflame's own commands and tests use.
const INTERNAL: [&str; 4] =
    ["GPUFLAME_REPORT", "GPUFLAME_VERIFY", "GPUFLAME_LAUNCH_MARKER", "GPUFLAME_CHECKPOINT_MAX"];
/// Prefix of all setting names except one. Users may omit the prefix.
const PREFIX: &str = "GPUFLAME_";

/// List the environment variables that the library reads.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame settings max-mem\n  \
    gpuflame settings --all --format json")]
pub(super) struct Settings {
    /// Settings to show, with or without GPUFLAME_ [default: the ten most important settings].
    #[arg(value_name = "NAME", conflicts_with = "all")]
    names: Vec<String>,
    /// Show all settings.
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// Group of the list to which a setting belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    First,
    More,
    Internal,
}

impl Group {
    const ALL: [Self; 3] = [Self::First, Self::More, Self::Internal];

    fn of_setting(setting: &Setting) -> Self {
        match setting.name {
            name if FIRST.contains(&name) => Self::First,
            name if INTERNAL.contains(&name) => Self::Internal,
            _ => Self::More,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::More => "more",
            Self::Internal => "internal",
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::First => "Settings that matter first",
            Self::More => "More settings",
            Self::Internal => "Internal: for gpuflame's own commands and tests",
        }
    }

    /// Returns the settings that belong to this group. The important settings are in the order of [`FIRST`].
    fn settings(self) -> Vec<&'static Setting> {
        let mut settings: Vec<_> =
            SETTINGS.iter().filter(|setting| Self::of_setting(setting) == self).collect();
        settings.sort_by_key(|setting| FIRST.iter().position(|name| *name == setting.name));
        settings
    }
}

impl Settings {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let shown = self.shown()?;
        let page = Page::of(&self.report.output, console);
        self.report.output.write(console, |out| match self.report.format {
            ReportFormat::Text => Ok(out.write_all(self.text(&shown, page).as_bytes())?),
            _ => table_output::write_tables(
                &[],
                &[settings_table(&shown)],
                self.report.format,
                Page::UNBOUNDED,
                out,
            ),
        })?;
        Ok(Outcome::Clean)
    }

    fn shown(&self) -> Result<Vec<&'static Setting>> {
        if self.all {
            return Ok(Group::ALL.into_iter().flat_map(Group::settings).collect());
        }
        if self.names.is_empty() {
            return Ok(Group::First.settings());
        }
        self.names.iter().map(|name| find_setting(name)).collect()
    }

    /// Formats the settings, one paragraph per setting. If all settings are shown, each group has a heading. On a
    /// terminal, lines are wrapped at the terminal's width.
    fn text(&self, shown: &[&Setting], page: Page) -> String {
        let wrapped = |text: &str, indent: &str| {
            let lines = match page.columns {
                Some(columns) => wrap(text, columns.saturating_sub(indent.len())),
                None => vec![text.to_owned()],
            };
            lines.into_iter().map(|line| format!("{indent}{line}\n")).collect::<String>()
        };
        let (mut text, mut last) = (String::new(), None);
        for setting in shown {
            let group = Some(Group::of_setting(setting));
            if self.all && last != group {
                let space = if last.is_some() { "\n" } else { "" };
                let _ = writeln!(text, "{space}{}:\n", group.map_or("", Group::heading));
                last = group;
            }
            let default = if setting.default.is_empty() { "unset" } else { setting.default };
            let Setting { name, values, help, .. } = setting;
            text += &wrapped(&format!("{name} ({values}; default: {default})"), "");
            text += &wrapped(help, "    ");
        }
        if !self.all && self.names.is_empty() {
            let more = SETTINGS.len() - shown.len();
            let end =
                format!("{more} more: `gpuflame settings --all`; a single one: `gpuflame settings NAME`");
            text += &format!("\n{}", wrapped(&end, ""));
        }
        text
    }
}

/// Finds a setting by the name that a user typed, such as `GPUFLAME_MAX_MEM`, `max_mem` or `max-mem`.
fn find_setting(wanted: &str) -> Result<&'static Setting> {
    let name = wanted.trim().to_ascii_uppercase().replace('-', "_");
    let short = name.strip_prefix(PREFIX).unwrap_or(&name);
    let short_of = |setting: &Setting| setting.name.strip_prefix(PREFIX).unwrap_or(setting.name);
    if let Some(setting) = SETTINGS.iter().find(|setting| short_of(setting) == short) {
        return Ok(setting);
    }
    let near = near_misses(short, SETTINGS.iter().map(short_of));
    let near: Vec<_> = SETTINGS.iter().filter(|it| near.contains(&short_of(it))).map(|it| it.name).collect();
    let advice = match near.is_empty() {
        true => "`gpuflame settings --all` lists all".to_owned(),
        false => format!("did you mean {}?", quoted(&near)),
    };
    Err(usage_error(format!("`{wanted}`: no such setting; {advice}")))
}

fn settings_table(shown: &[&Setting]) -> Table {
    let mut table = Table::new("settings", &["name", "values", "default", "group", "help"]);
    for setting in shown {
        let group = Group::of_setting(setting).word();
        let Setting { name, values, default, help, .. } = *setting;
        table.add_row([*name, *values, *default, group, *help].map(Cell::from));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_names_settings_that_exist() {
        for name in FIRST.iter().chain(&INTERNAL) {
            assert_eq!(SETTINGS.iter().filter(|setting| setting.name == *name).count(), 1, "{name}");
        }
        let counts = Group::ALL.map(|group| group.settings().len());
        assert_eq!(counts[..2], [10, SETTINGS.len() - 14]);
        let first: Vec<_> = Group::First.settings().iter().map(|setting| setting.name).collect();
        assert_eq!(first, FIRST);
    }

    #[test]
    fn a_setting_is_found_by_any_spelling_and_a_misspelt_one_is_suggested() {
        for name in ["GPUFLAME_MAX_MEM", "max_mem", "MAX-MEM", " max-mem "] {
            assert_eq!(find_setting(name).unwrap().name, "GPUFLAME_MAX_MEM", "{name}");
        }
        assert_eq!(find_setting("cupti_trace_output_file").unwrap().name, "CUPTI_TRACE_OUTPUT_FILE");
        for (name, advice) in [
            ("max_men", "did you mean `GPUFLAME_MAX_MEM"),
            ("GPUFLAME_FORMAT", "`GPUFLAME_FORMATS`"),
            ("bytes", "did you mean `GPUFLAME_MAX_BYTES`?"),
            ("zzzzzz", "`gpuflame settings --all` lists all"),
        ] {
            let why = find_setting(name).unwrap_err().to_string();
            assert!(why.contains(&format!("`{name}`: no such setting")) && why.contains(advice), "{why}");
        }
    }
}
