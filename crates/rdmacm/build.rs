//! Makes the trampolines of the versioned symbols.

#[path = "../verbs/symbols/table.rs"]
mod table;

fn main() {
    println!("cargo::rerun-if-changed=../verbs/symbols/table.rs");
    table::generate("symbols/rdmacm.sym");
}
