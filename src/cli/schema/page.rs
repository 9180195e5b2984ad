//! Generates the tables in `docs/schema.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::look::instructions::LINES;

/// Returns the JSON type of a property in words.
fn type_words(property: &Value) -> String {
    let word = |name: &str| match name {
        "integer" => "integer".to_owned(),
        "null" => "null".to_owned(),
        other => other.to_owned(),
    };
    match &property["type"] {
        Value::String(name) => word(name),
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(word).collect::<Vec<_>>().join(" or ")
        }
        _ => "string, number or null".to_owned(),
    }
}

/// Returns the generated part of `docs/schema.md`.
pub(super) fn page(schema: &Value) -> String {
    let mut text = String::new();
    let definitions = &schema["$defs"];
    let properties =
        |object: &Value| -> Map<String, Value> { object["properties"].as_object().unwrap().clone() };
    let row_of = |table: &Value| {
        let reference = table["items"]["$ref"].as_str().unwrap();
        reference.rsplit('/').next().unwrap().to_owned()
    };
    let mut described = BTreeSet::new();
    for verb in schema["anyOf"].as_array().unwrap() {
        let name = verb["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        if LINES.contains(&name) {
            continue;
        }
        let verb = &definitions[name];
        let about = verb["description"].as_str().unwrap();
        let heading = about.split('`').nth(1).unwrap().trim_start_matches("gpuflame ");
        let _ = write!(text, "\n## {heading}\n\n{about}\n");
        let required = verb["required"].as_array().unwrap();
        for (name, table) in properties(verb).iter().filter(|(name, _)| *name != "schema") {
            let row = row_of(table);
            let about = definitions[&row]["description"].as_str().unwrap().replace('\n', " ");
            let sometimes = if required.contains(&json!(name)) { "" } else { " (not always there)" };
            let _ = write!(text, "\n**`{name}`**{sometimes}: {about}");
            if !described.insert(row.clone()) {
                text.push_str(" The same keys as above.\n");
                continue;
            }
            text.push_str(&key_table(&definitions[&row]));
        }
    }
    text.push_str("\n## instructions\n");
    for name in LINES {
        let about = definitions[name]["description"].as_str().unwrap().replace('\n', " ");
        let _ = write!(text, "\n**`{name}`**: {about}{}", key_table(&definitions[name]));
    }
    text
}

/// Returns the Markdown table that describes an object's keys.
fn key_table(object: &Value) -> String {
    let mut text = "\n\n| key | type | meaning |\n|---|---|---|\n".to_owned();
    for (key, property) in object["properties"].as_object().unwrap() {
        let meaning = property["description"].as_str().unwrap_or_else(|| panic!("no description of {key}"));
        let meaning = meaning.replace('\n', " ");
        let _ = writeln!(text, "| `{key}` | {} | {meaning} |", type_words(property));
    }
    text
}
