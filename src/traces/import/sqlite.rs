//! Reads sqlite databases that other tools wrote. Reading a database changes no file. The tables and columns differ
//! between the versions of a tool, so only existing tables and columns are queried.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};

use super::Text;
use gpuflame_model::error::{Error, ErrorKind, Result};

/// An open database, and the names of the columns in its tables.
pub(super) struct Database {
    base: Connection,
    tables: BTreeMap<String, Table>,
    bytes: u64,
    /// Whether some rows of the database are in a separate log file (`-wal`). The rows in this log file are not read.
    has_log: bool,
}

#[derive(Default)]
struct Table {
    columns: Vec<String>,
    /// Name of the column that is the primary key, if the key consists of one column.
    key: Option<String>,
}

impl Database {
    /// Opens the database at `path`. The option `immutable` is used, with which sqlite creates no lock file or journal
    /// next to the user's file. So the folder that contains the file may be read-only.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let base = Connection::open_with_flags(to_uri(path), flags).map_err(to_error)?;
        let mut database = Self {
            base,
            tables: BTreeMap::new(),
            bytes: path.metadata()?.len(),
            has_log: log_of(path).metadata().is_ok_and(|log| log.len() > 0),
        };
        let mut names = Vec::new();
        database.for_each_row("SELECT name FROM sqlite_master WHERE type = 'table'", |row| {
            names.extend(text(row, 0).map(|name| String::from_utf8_lossy(name).into_owned()));
        })?;
        for name in names {
            let (mut columns, mut keys) = (Vec::new(), Vec::new());
            database.for_each_row(&format!("PRAGMA table_info({})", quote(&name)), |row| {
                let column = text(row, 1).map(|column| String::from_utf8_lossy(column).into_owned());
                keys.extend(column.clone().filter(|_| integer(row, 5) != Some(0)));
                columns.extend(column);
            })?;
            let key = if keys.len() == 1 { keys.pop() } else { None };
            database.tables.insert(name, Table { columns, key });
        }
        Ok(database)
    }

    /// Returns the names of all tables in the database.
    pub(super) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    pub(super) fn has_table(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    pub(super) fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|table| table.columns.iter().any(|name| name == column))
    }

    /// Returns an SQL expression for a column. `of` is the prefix before the column's name. If the column does not
    /// exist in the table, the expression is `NULL`.
    pub(super) fn column(&self, table: &str, of: &str, column: &str) -> String {
        match self.has_column(table, column) {
            true => format!("{of}.{}", quote(column)),
            false => "NULL".to_owned(),
        }
    }

    /// Returns an SQL expression for `table` that can be joined by the column `key`. The expression selects each key
    /// only once, even if the table was copied and has lost its primary key. Otherwise a repeated key would duplicate
    /// rows, and a join without an index would take quadratic time.
    pub(super) fn keyed(&self, table: &str, key: &str) -> String {
        let is_key = self.tables.get(table).is_some_and(|table| table.key.as_deref() == Some(key));
        match is_key {
            true => quote(table),
            false => format!("(SELECT * FROM {} GROUP BY {})", quote(table), quote(key)),
        }
    }

    /// Returns the size of the database file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a remark if some rows of the database are in a separate log file.
    pub(super) fn log_remark(&self) -> Option<String> {
        let what = "some rows may be in the log next to the file (-wal), which is not read; merge it with \
                    `sqlite3 FILE 'PRAGMA wal_checkpoint'`";
        self.has_log.then(|| what.to_owned())
    }

    /// Calls `take` with each row that the query returns.
    pub(super) fn for_each_row(&self, query: &str, mut take: impl FnMut(&Row<'_>)) -> Result<()> {
        let mut statement = self.base.prepare(query).map_err(to_error)?;
        let mut rows = statement.query([]).map_err(to_error)?;
        while let Some(row) = rows.next().map_err(to_error)? {
            take(row);
        }
        Ok(())
    }

    /// Returns the number that the query selects. The query must return a single number.
    pub(super) fn number(&self, query: &str) -> Result<u64> {
        let mut number = 0;
        self.for_each_row(query, |row| {
            number = integer(row, 0).and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
        })?;
        Ok(number)
    }

    /// Looks up a value in a table of keys and values. Returns the value in the row whose `key_column` is equal to
    /// `key`.
    pub(super) fn value(
        &self,
        table: &str,
        [key_column, value_column]: [&str; 2],
        key: &str,
    ) -> Result<Option<String>> {
        if !self.has_column(table, key_column) || !self.has_column(table, value_column) {
            return Ok(None);
        }
        let mut value = None;
        let query = format!(
            "SELECT {} FROM {} WHERE {} = '{key}'",
            quote(value_column),
            quote(table),
            quote(key_column)
        );
        self.for_each_row(&query, |row| {
            value = match row.get_ref(0) {
                Ok(ValueRef::Text(text)) => Some(String::from_utf8_lossy(text).into_owned()),
                Ok(ValueRef::Integer(number)) => Some(number.to_string()),
                Ok(ValueRef::Real(number)) => Some(number.to_string()),
                _ => None,
            };
        })?;
        Ok(value)
    }
}

/// Returns the integer in a column. Returns `None` if the value is NULL or is not an integer.
pub(super) fn integer(row: &Row<'_>, at: usize) -> Option<i64> {
    match row.get_ref(at) {
        Ok(ValueRef::Integer(number)) => Some(number),
        Ok(ValueRef::Text(text)) => super::json::number::parse_integer(text),
        _ => None,
    }
}

/// Returns the integer in a column, if it fits into 32 bits. Returns `None` if the integer does not fit into 32 bits
/// without a sign.
pub(super) fn integer_u32(row: &Row<'_>, at: usize) -> Option<u32> {
    integer(row, at).and_then(|number| u32::try_from(number).ok())
}

/// Returns the id in a column. Returns `None` if the id is 0, because 0 means that there is no id.
pub(super) fn id(row: &Row<'_>, at: usize) -> Option<u64> {
    integer(row, at).and_then(|number| u64::try_from(number).ok()).filter(|&number| number != 0)
}

/// Returns the bytes of the text in a column; `None` if the column does not contain text.
pub(super) fn text<'a>(row: &'a Row<'_>, at: usize) -> Option<&'a [u8]> {
    match row.get_ref(at) {
        Ok(ValueRef::Text(text)) => Some(text),
        _ => None,
    }
}

/// Returns the text in a column, or `absent` if the column does not contain text.
pub(super) fn text_or<'a>(row: &'a Row<'_>, at: usize, absent: &'a str) -> Text<'a> {
    text(row, at).filter(|text| !text.is_empty()).map_or(Text::from(absent), Text::plain)
}

/// Returns the name of a table or column in the quoted form that a query needs.
pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn to_error(error: rusqlite::Error) -> Error {
    let what = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            format!("the sqlite file is damaged or truncated ({error}); copy or export it again")
        }
        _ => format!("sqlite: {error}"),
    };
    Error::new(ErrorKind::Format, what)
}

/// Returns the path of the log file that sqlite keeps next to the file at `path`.
fn log_of(path: &Path) -> std::path::PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Returns a sqlite URI with the percent-encoded path. If sqlite opens the file by this URI, sqlite does not modify the
/// file.
fn to_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}
