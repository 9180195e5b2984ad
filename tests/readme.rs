//! The README says what the code does: its table of settings is made from the one that is parsed.

mod support;

use std::fs;

use gpuflame::control::SETTINGS;

const HEADER: &str = "| variable | values | default | what it does |\n|---|---|---|---|\n";

#[test]
fn the_table_of_settings_is_that_of_the_code() {
    let path = support::root().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(HEADER).expect("README.md has the table's header");
    let (table, after) = rest.split_once("\n\n").expect("an empty line ends the table");
    let expected = rows();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, format!("{before}{HEADER}{expected}\n\n{after}")).unwrap();
        return;
    }
    assert_eq!(table, expected, "UPDATE_GOLDEN=1 cargo test --test readme writes it");
}

fn rows() -> String {
    let row = |setting: &gpuflame::control::Setting| {
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        format!("| `{}` | {} | {default} | {} |", setting.name, setting.values, setting.help)
    };
    SETTINGS.iter().map(row).collect::<Vec<_>>().join("\n")
}
