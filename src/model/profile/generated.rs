//! Stores the names of functions that were generated while the program ran (for example by a JIT compiler), by address.

use super::Profile;

impl Profile {
    /// Adds the name of the function at an address. If several names are added for one address, the first name is used.
    /// An empty name means that several functions have used the address, so the name would be ambiguous. An empty name
    /// replaces the name that was added before.
    pub(super) fn add_generated(&mut self, address: u64, name: &str) {
        let known = self.generated.entry(address).or_insert_with(|| name.into());
        if name.is_empty() {
            *known = name.into();
        }
    }

    /// Returns the name of the generated function at an address. Returns `None` if the code generator published no
    /// name, or if several functions have used the address.
    pub fn generated(&self, address: u64) -> Option<&str> {
        self.generated.get(&address).map(AsRef::as_ref).filter(|name: &&str| !name.is_empty())
    }

    /// Returns all names of generated functions with their addresses. A name is empty if several functions have used
    /// the address.
    pub fn generated_names(&self) -> impl Iterator<Item = (u64, &str)> {
        self.generated.iter().map(|(address, name)| (*address, &**name))
    }

    /// Returns the size in bytes of the heap memory that the names of generated functions use.
    pub(super) fn generated_bytes(&self) -> usize {
        let names: usize = self.generated.values().map(|name| name.len()).sum();
        names + self.generated.len() * size_of::<(u64, Box<str>)>()
    }
}
