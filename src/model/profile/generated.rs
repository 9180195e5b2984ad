//! Functions generated while the program ran, by address.

use super::Profile;

impl Profile {
    /// Adds the name of the function at an address. If an address has two names, the first name wins. An empty name
    /// always wins and marks the function as unknown, because several functions have used the address.
    pub(super) fn add_generated(&mut self, address: u64, name: &str) {
        let known = self.generated.entry(address).or_insert_with(|| name.into());
        if name.is_empty() {
            *known = name.into();
        }
    }

    /// Returns the name of the function at an address, if its code generator published one.
    pub fn generated(&self, address: u64) -> Option<&str> {
        self.generated.get(&address).map(AsRef::as_ref).filter(|name: &&str| !name.is_empty())
    }

    /// Returns the heap size of the names of generated functions.
    pub(super) fn generated_bytes(&self) -> usize {
        let names: usize = self.generated.values().map(|name| name.len()).sum();
        names + self.generated.len() * size_of::<(u64, Box<str>)>()
    }
}
