//! Makes the trampolines of the versioned symbols.

#[path = "symbols/table.rs"]
mod table;

fn main() {
    table::generate("symbols/ibverbs.sym");
}
