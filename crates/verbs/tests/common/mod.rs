//! Builds the shared libraries as the Makefile does, and finds the distribution's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with this build's `libibverbs.so.1` and `librdmacm.so.1`.
pub fn built() -> &'static Path {
    static LIB: OnceLock<PathBuf> = OnceLock::new();
    LIB.get_or_init(|| {
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = scratch.parent().expect("target directory");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let build = scratch.join(concat!("lib-", env!("CARGO_CRATE_NAME")));
        let status = Command::new("make")
            .args(["-s", "-f", "mk/abi.mk", "libs", "ABI_PROFILE=dev"])
            .arg(format!("BUILD={}", build.display()))
            .arg(format!("CARGO_TARGET_DIR={}", target.display()))
            .current_dir(root)
            .status()
            .expect("make");
        assert!(status.success(), "linking the libraries failed");
        build.join("lib")
    })
}

/// The distribution's library of that name.
pub fn distribution(name: &str) -> PathBuf {
    let output = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .expect("cc");
    let path = String::from_utf8(output.stdout).expect("a path");
    let path = PathBuf::from(path.trim());
    assert!(
        path.is_absolute(),
        "the packages libibverbs1 and librdmacm1 are needed to test"
    );
    path
}
