//! Pages match the code: the table of settings equals the one from which the code parses settings, and the table of
//! costs is written by the benchmark. Also checks assumptions that one part of the code makes about another.

use std::fs;

use gpuflame_config::settings::SETTINGS;

const HEADER: &str = "| variable | values | default | what it does |\n|---|---|---|---|\n";

#[test]
fn the_settings_page_has_the_settings_of_the_code() {
    let path = crate::support::root().join("docs/settings.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(HEADER).expect("docs/settings.md has the table's header");
    let (table, after) = rest.split_once("\n\n").expect("an empty line ends the table");
    let expected = rows();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, format!("{before}{HEADER}{expected}\n\n{after}")).unwrap();
        return;
    }
    assert_eq!(table, expected, "UPDATE_GOLDEN=1 cargo test --test project writes it");
}

/// Cells of the rows of all tables in `text`.
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
        page.lines().find_map(|line| line.strip_prefix("Measured on: ")).expect("it names the machine");
    assert!(short.contains(&format!("({machine})")), "{machine}");
    // The page has one table per situation, with the columns: method, 16, 32 and 64 calls.
    let rows = cells(&page);
    for row in &cells(&short)[2..] {
        let on_page: Vec<_> = rows.iter().filter(|other| other[0] == row[0]).collect();
        for (cell, other) in row[1..].iter().zip(on_page) {
            assert!(other[3].starts_with(&format!("{cell} (")), "{row:?} is not {other:?}");
        }
    }
}

/// If CUPTI does not answer, gpuflame's waits must time out before the simulation's watchdog aborts the program. A wait
/// at an exit may itself wait for another wait, and each may last as long as the limit.
#[test]
fn the_simulations_default_watchdog_is_longer_than_two_exit_limits() {
    let setting = SETTINGS.iter().find(|setting| setting.name == "GPUFLAME_EXIT_LIMIT").unwrap();
    let limit: u64 = setting.default.parse().unwrap();
    let page = fs::read_to_string(crate::support::root().join("tests/gpusim/README.md")).unwrap();
    let row = cells(&page).into_iter().find(|row| row[0] == "`GPUSIM_WATCHDOG_MS`").unwrap();
    let watchdog_ms: u64 = row[1].trim_matches('`').parse().unwrap();
    assert!(watchdog_ms > 2 * limit * 1000, "{watchdog_ms} ms, and {limit} s");
}

fn rows() -> String {
    let row = |setting: &gpuflame_config::settings::Setting| {
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        format!("| `{}` | {} | {default} | {} |", setting.name, setting.values, setting.help)
    };
    SETTINGS.iter().map(row).collect::<Vec<_>>().join("\n")
}
