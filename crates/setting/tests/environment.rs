//! What a program is told of its environment. That a set-user-id program is told nothing shows
//! `tests/cli/secure.py`.

use std::env;
use std::process::Command;

use causeway_setting::{all, is_secure, is_set, setting};

/// Set where this program runs as its own child.
const CHILD: &str = "CAUSEWAY_SETTING_TEST_CHILD";
const EMPTY: &str = "CAUSEWAY_SETTING_TEST_EMPTY";
const ABSENT: &str = "CAUSEWAY_SETTING_TEST_ABSENT";

#[test]
fn an_ordinary_program_has_the_settings_of_its_caller() {
    if is_set(CHILD) {
        assert!(!is_secure());
        assert_eq!(setting(CHILD), Some("a value".into()));
        assert_eq!((setting(EMPTY), is_set(EMPTY)), (None, true));
        assert_eq!((setting(ABSENT), is_set(ABSENT)), (None, false));
        let names = [CHILD, EMPTY, ABSENT].map(|name| all().any(|(found, _)| found == name));
        assert_eq!(names, [true, true, false]);
        return;
    }
    let done = Command::new(env::current_exe().unwrap())
        .env(CHILD, "a value")
        .env(EMPTY, "")
        .env_remove(ABSENT)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}
