//! Call sites: a test program's own description of the functions that it is executing. Tests compare the stacks that a
//! profiler captured with these call sites. This module never reads a stack, because call sites must be independent of
//! the profiler's way to read stacks.

use crate::sync::lock;
use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::{Mutex, OnceLock};

/// A call site as the program specified it: frames from the root, separated by semicolons. Call sites are never freed.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(String);

impl Site {
    /// The text of the site, such as `main;decode;forward`.
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Returns the call site with this text, or `None` for empty text.
    pub fn intern(text: &CStr) -> Option<&'static Site> {
        let text = text.to_string_lossy();
        static SITES: OnceLock<Mutex<HashSet<&'static Site>>> = OnceLock::new();
        let mut sites = lock(SITES.get_or_init(Mutex::default));
        let site = Site(text.into_owned());
        if site.0.is_empty() {
            return None;
        }
        Some(sites.get(&site).copied().unwrap_or_else(|| {
            let site: &'static Site = Box::leak(Box::new(site));
            sites.insert(site);
            site
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn equal_texts_are_interned_as_one_site() {
        let a = Site::intern(c"main;f").unwrap();
        assert!(std::ptr::eq(a, Site::intern(&CString::from(c"main;f")).unwrap()));
        assert_eq!(Site::intern(c""), None);
    }
}
