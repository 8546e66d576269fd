//! Makes the constants, and the variables by which programs know them, from the table of symbols.

use std::fmt::Write as _;
use std::{env, fs, path::PathBuf};

const TABLE: &str = "symbols/sisci.sym";

fn main() {
    println!("cargo::rerun-if-changed={TABLE}");
    let table = fs::read_to_string(TABLE).expect("symbol table");
    let mut out = String::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [] | ["#", ..] | ["func" | "copy", _] => {}
            ["const", name, value] => {
                writeln!(
                    out,
                    "#[doc = \"`{name}`\"]\npub const {name}: c_uint = {value};\n\
                     #[unsafe(export_name = \"_SISCI_PUBLIC_CONST_{name}\")]\n\
                     static _EXPORT_{name}: c_uint = {name};"
                )
                .expect("writing to a string");
            }
            _ => panic!("{TABLE}: malformed line: {line}"),
        }
    }
    let dir = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR"));
    fs::write(dir.join("constants.rs"), out).expect("write constants");
}
