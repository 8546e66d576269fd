//! The dynamic symbols of the two libraries against the distribution's: every name at every
//! version, with the same default.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Symbols and versioned names of rdma-core up to 65, with both private nodes.
const IBVERBS_SYMBOLS: usize = 188;
const IBVERBS_VERSIONED: usize = 312;
/// Under this version our own librdmacm.so.1 finds what rdma-core has not.
const OWN_VERSION: &str = "CAUSEWAY_PRIVATE_1";
const OWN_NAMES: [&str; 1] = ["causeway_trace_cm"];

/// A defined dynamic symbol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    name: String,
    version: String,
    default: bool,
    kind: String,
}

/// The versioned names that a library defines.
fn symbols(library: &Path) -> BTreeSet<Symbol> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "-W"])
        .arg(library)
        .output()
        .expect("readelf");
    assert!(output.status.success(), "readelf {}", library.display());
    let text = String::from_utf8(output.stdout).expect("readelf's output");
    text.lines().filter_map(symbol).collect()
}

/// A line of `readelf --dyn-syms`: number, value, size, type, binding, visibility, section, name.
fn symbol(line: &str) -> Option<Symbol> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, kind, _, _, section, name, ..] = fields.as_slice() else {
        return None;
    };
    // The nodes themselves are symbols too, in the absolute section.
    if *section == "UND" || *section == "ABS" {
        return None;
    }
    let (name, version) = name.split_once('@')?;
    let default = version.starts_with('@');
    Some(Symbol {
        name: name.to_owned(),
        version: version.trim_start_matches('@').to_owned(),
        default,
        kind: (*kind).to_owned(),
    })
}

/// Fails with the names that the distribution has and we lack.
fn assert_covers(name: &str) -> BTreeSet<Symbol> {
    let ours = symbols(&common::built().join(name));
    let theirs = symbols(&common::distribution(name));
    assert!(
        theirs.len() > 60,
        "{name}: the distribution's library has symbols"
    );
    let missing: Vec<&Symbol> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{name} lacks {missing:#?}");
    ours
}

#[test]
fn libibverbs_has_every_versioned_symbol_of_the_distribution() {
    let all = assert_covers("libibverbs.so.1");
    let (own, ours): (BTreeSet<_>, BTreeSet<_>) =
        all.into_iter().partition(|s| s.version == OWN_VERSION);
    let own: Vec<&str> = own.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(own, OWN_NAMES);
    assert_eq!(ours.len(), IBVERBS_VERSIONED);
    let names: BTreeSet<&str> = ours.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names.len(), IBVERBS_SYMBOLS);
    let defaults = ours.iter().filter(|s| s.default).count();
    // Only ibv_register_driver, which nobody should link with any more, may lack a default.
    assert_eq!(
        defaults,
        IBVERBS_SYMBOLS - 1,
        "each name has one default version"
    );
}

#[test]
fn librdmacm_has_every_versioned_symbol_of_the_distribution() {
    assert_covers("librdmacm.so.1");
}

#[test]
fn the_libraries_export_nothing_else_and_bear_the_right_name() {
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let library = common::built().join(name);
        let output = Command::new("readelf")
            .args(["-d", "--dyn-syms", "-W"])
            .arg(&library)
            .output();
        let text = String::from_utf8(output.expect("readelf").stdout).expect("readelf's output");
        assert!(
            text.contains(&format!("soname: [{name}]")),
            "{name}: DT_SONAME"
        );
        for line in text
            .lines()
            .filter(|l| l.contains(" GLOBAL ") && !l.contains(" UND "))
        {
            assert!(
                line.contains('@') || line.contains(" ABS "),
                "unversioned symbol: {line}"
            );
        }
    }
}
