//! What is known of code that was generated while the program ran: the function at an address.

use super::Profile;

impl Profile {
    /// Takes in what the function at an address is called; of two the first one counts. An empty one says that it is not
    /// known: the address has had several.
    pub(super) fn add_generated(&mut self, address: u64, name: &str) {
        let known = self.generated.entry(address).or_insert_with(|| name.into());
        if name.is_empty() {
            *known = name.into();
        }
    }

    /// The function at an address, if whoever generated it wrote down what it is called.
    pub fn generated(&self, address: u64) -> Option<&str> {
        self.generated.get(&address).map(AsRef::as_ref).filter(|name: &&str| !name.is_empty())
    }

    /// What the names hold on the heap.
    pub(super) fn generated_bytes(&self) -> usize {
        let names: usize = self.generated.values().map(|name| name.len()).sum();
        names + self.generated.len() * size_of::<(u64, Box<str>)>()
    }
}
