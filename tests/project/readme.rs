//! Checks that pages match the code. The table of settings must equal the table from which the code parses settings,
//! and the benchmark must have written the table of costs. The remaining tests check assumptions that one part of the
//! code makes about another part.

use std::fs;

use crate::support::command::gpuflame;
use gpuflame_config::settings::SETTINGS;
use serde_json::Value;

const HEADER: &str = "| variable | key | values | default | what it does |\n|---|---|---|---|---|\n";

#[test]
fn the_settings_page_has_the_settings_of_the_code_in_the_groups_of_the_command() {
    let path = crate::support::root().join("docs/settings.md");
    let listed =
        gpuflame(&crate::support::scratch("settings"), ["settings", "--all", "--format", "json"]).ok();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let in_group = |setting: &&Value, group: &str| setting["group"] == group;
    let groups = ["first", "more", "internal"].map(|group| {
        let settings = listed["settings"].as_array().unwrap().iter().filter(|one| in_group(one, group));
        rows(settings.map(|setting| setting["name"].as_str().unwrap()))
    });
    let mut page = fs::read_to_string(&path).unwrap();
    if std::env::var_os("GPUFLAME_RENEW_GOLDEN").is_some() {
        let mut parts = page.split(HEADER);
        let mut text = parts.next().unwrap().to_owned();
        for (part, expected) in parts.zip(&groups) {
            let after = part.split_once("\n\n").map_or(String::new(), |(_, after)| format!("\n{after}"));
            text += &format!("{HEADER}{expected}\n{after}");
        }
        fs::write(&path, &text).unwrap();
        page = text;
    }
    let tables: Vec<_> =
        page.split(HEADER).skip(1).map(|rest| rest.split("\n\n").next().unwrap().trim_end()).collect();
    assert_eq!(tables, groups, "GPUFLAME_RENEW_GOLDEN=1 writes them");
    assert_eq!(groups.join("\n").lines().count(), SETTINGS.len());
}

/// Returns the cells of each row of all tables in `text`.
fn cells(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn the_cost_table_agrees_with_the_performance_page() {
    let between = |file: &str| {
        let text = fs::read_to_string(crate::support::root().join(file)).unwrap();
        let (_, rest) = text.split_once("<!-- `cargo bench` writes this table. -->").expect(file);
        rest.split_once("<!-- End of the table. -->").expect(file).0.to_owned()
    };
    let (short, page) = (between("docs/cost.md"), between("tests/bench/performance.md"));
    let machine =
        page.lines().find_map(|line| line.strip_prefix("Measured on: ")).expect("the page names the machine");
    assert!(short.contains(&format!("({machine})")), "{machine}");
    // The page has one table for each situation in which launches are measured. The columns of each table are the
    // method, 16, 32 and 64 calls.
    let rows = cells(&page);
    for row in &cells(&short)[2..] {
        let on_page: Vec<_> = rows.iter().filter(|other| other[0] == row[0]).collect();
        for (cell, other) in row[1..].iter().zip(on_page) {
            assert!(other[3].starts_with(&format!("{cell} (")), "{row:?} is not {other:?}");
        }
    }
}

/// If CUPTI does not answer, gpuflame's waits must time out before the watchdog of the simulation aborts the program. A
/// wait at the exit may begin only when another wait has ended, and each of the two waits may last as long as the
/// limit.
#[test]
fn the_simulations_default_watchdog_is_longer_than_two_exit_limits() {
    let setting = SETTINGS.iter().find(|setting| setting.name == "GPUFLAME_EXIT_LIMIT").unwrap();
    let limit: u64 = setting.default.parse().unwrap();
    let page = fs::read_to_string(crate::support::root().join("tests/gpusim/README.md")).unwrap();
    let row = cells(&page).into_iter().find(|row| row[0] == "`GPUSIM_WATCHDOG_MS`").unwrap();
    let watchdog_ms: u64 = row[1].trim_matches('`').parse().unwrap();
    assert!(watchdog_ms > 2 * limit * 1000, "{watchdog_ms} ms, and {limit} s");
}

/// Returns the rows of the table of settings for these names.
fn rows<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let row = |name: &str| {
        let setting = SETTINGS.iter().find(|setting| setting.name == name).unwrap();
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let key = name.trim_start_matches("GPUFLAME_").to_lowercase();
        format!("| `{name}` | `{key}` | {} | {default} | {} |", setting.values, setting.help)
    };
    names.map(row).collect::<Vec<_>>().join("\n")
}
