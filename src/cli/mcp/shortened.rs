//! Limits an answer to the size that an agent can read. Omits the last rows of the answer's tables, and counts the
//! omitted rows.

use serde_json::{Map, Value};

/// Maximum size in bytes of an answer.
const MAX_BYTES: usize = 60_000;
/// Maximum number of rows of a table. More rows cannot fit into an answer, because each row has at least 6 bytes.
const MAX_ROWS: usize = MAX_BYTES / 6;

/// Shortens the output of a verb if the output is too long. Returns the output, and a remark on omitted rows if there
/// are any.
pub(super) fn shorten(text: String, is_json: bool) -> (String, Option<String>) {
    if text.len() <= MAX_BYTES {
        return (text, None);
    }
    match is_json.then(|| serde_json::from_str(&text)) {
        Some(Ok(tables)) => shorten_tables(tables),
        _ => shorten_lines(text),
    }
}

/// Omits the last rows of the longest tables. All tables have the same maximum number of rows. The maximum number of
/// rows is the largest number with which the answer is short enough.
fn shorten_tables(mut tables: Map<String, Value>) -> (String, Option<String>) {
    let before = row_counts(&tables);
    limit_rows(&mut tables, MAX_ROWS);
    let write = |tables: &Map<String, Value>| serde_json::to_string_pretty(tables).unwrap_or_default() + "\n";
    // The maximum number of rows is at least `low` and less than `high`.
    let (mut low, mut high) = (0, MAX_ROWS + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let mut fewer = tables.clone();
        limit_rows(&mut fewer, middle);
        match write(&fewer).len() <= MAX_BYTES {
            true => low = middle,
            false => {
                high = middle;
                tables = fewer;
            }
        }
    }
    limit_rows(&mut tables, low);
    let after = row_counts(&tables);
    let left_out = before.iter().zip(&after).filter(|(before, after)| before.1 > after.1);
    let left_out: Vec<_> = left_out
        .map(|((table, before), (_, after))| format!("{} of {before} rows of `{table}`", before - after))
        .collect();
    let remark = format!(
        "gpuflame: left out {}, because an answer has at most {MAX_BYTES} bytes\n",
        left_out.join(", ")
    );
    (write(&tables), Some(remark))
}

fn row_counts(tables: &Map<String, Value>) -> Vec<(String, usize)> {
    let rows = |table: &Value| table.as_array().map_or(0, Vec::len);
    tables.iter().map(|(name, table)| (name.clone(), rows(table))).collect()
}

fn limit_rows(tables: &mut Map<String, Value>, most: usize) {
    tables.values_mut().filter_map(Value::as_array_mut).for_each(|rows| rows.truncate(most));
}

fn shorten_lines(mut text: String) -> (String, Option<String>) {
    let end = text.as_bytes()[..MAX_BYTES].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let left_out = text[end..].lines().count();
    text.truncate(end);
    let remark = format!(
        "gpuflame: left out the last {left_out} lines, because an answer has at most {MAX_BYTES} bytes\n"
    );
    (text, Some(remark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, name: &str) -> Value {
        (0..count).map(|at| serde_json::json!({"at": at, "name": name})).collect()
    }

    fn written(tables: &Value) -> String {
        serde_json::to_string_pretty(tables).unwrap() + "\n"
    }

    #[test]
    fn short_answers_are_unchanged() {
        for text in ["", "{}\n", "not JSON"] {
            assert_eq!(shorten(text.to_owned(), true), (text.to_owned(), None));
        }
    }

    #[test]
    fn the_last_rows_of_the_longest_tables_are_left_out_and_counted() {
        // In this test, a row has 6 + 17 + 20 + 1,000 + ... bytes, so 50 to 60 rows have 60,000 bytes.
        let tables =
            serde_json::json!({"few": rows(3, "x"), "many": rows(100, &"y".repeat(1000)), "schema": 1});
        let (text, remark) = shorten(written(&tables), true);
        let short: Value = serde_json::from_str(&text).unwrap();
        let kept = short["many"].as_array().unwrap().len();
        assert!(text.len() <= 60_000 && text.ends_with("}\n") && (50..60).contains(&kept), "{kept}");
        assert_eq!((&short["few"], &short["schema"]), (&tables["few"], &tables["schema"]));
        assert_eq!(short["many"][kept - 1]["at"], kept - 1);
        let expected = format!("left out {} of 100 rows of `many`, because", 100 - kept);
        assert!(remark.unwrap().contains(&expected), "{expected}");
        // With one more row, the answer would be longer than the maximum size.
        let mut more = short.clone();
        more["many"] = rows(kept + 1, &"y".repeat(1000));
        assert!(written(&more).len() > 60_000);
    }

    #[test]
    fn a_row_that_does_not_fit_is_left_out_and_nothing_panics() {
        let tables = serde_json::json!({"one": rows(1, &"ü".repeat(40_000)), "schema": 1});
        let (text, remark) = shorten(written(&tables), true);
        assert_eq!(text, "{\n  \"one\": [],\n  \"schema\": 1\n}\n");
        assert!(remark.unwrap().contains("left out 1 of 1 rows of `one`"));
        let small = serde_json::json!({"many": vec![0; 30_000]});
        let (text, remark) = shorten(written(&small), true);
        assert!(text.len() <= 60_000 && remark.unwrap().contains("of 30000 rows"), "{}", text.len());
    }

    #[test]
    fn lines_are_cut_between_two_lines() {
        let line = "a,b,ü\n";
        let (text, remark) = shorten(line.repeat(10_000), false);
        assert!(text.len() <= 60_000 && text.ends_with('\n'));
        let left_out = 10_000 - text.lines().count();
        assert!(remark.unwrap().contains(&format!("left out the last {left_out} lines")));
        assert_eq!(shorten("x".repeat(70_000), false).0, "");
    }
}
