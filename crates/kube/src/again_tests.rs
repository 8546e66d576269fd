//! Tests of specifications that are written again.

use tempfile::TempDir;

use super::*;

/// A folder that goes when the test ends.
struct Scratch(TempDir);

impl Scratch {
    fn new(files: &[&str]) -> Scratch {
        let scratch = Scratch(tempfile::tempdir().unwrap());
        for file in files {
            scratch.add(file);
        }
        scratch
    }

    fn add(&self, file: &str) {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn cdi(&self) -> PathBuf {
        self.0.path().join("etc/cdi")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.cdi().join(FILE)).unwrap()
    }

    /// Writes a specification as `cdi` does with these options.
    fn write(&self, prefix: &str, container_folder: &str, socket: Option<&str>) {
        let options = InjectionOptions {
            folder: Some(self.0.path().join(prefix)),
            container_folder: container_folder.into(),
            socket: socket.map(PathBuf::from),
        };
        Injection::new(&options)
            .unwrap()
            .write(&self.cdi())
            .unwrap();
    }

    fn again(&self, prefix: &str) -> Outcome {
        again(&self.0.path().join(prefix), &self.cdi()).unwrap()
    }
}

/// As Debian's packages have it.
const PACKAGES: [&str; 4] = [
    "usr/bin/causeway-kube",
    "usr/bin/causeway",
    "usr/lib/causeway/libibverbs.so.1",
    "usr/lib/causeway/librdmacm.so.1",
];
const SOCKET_FILE: &str = "/run/causeway-tenants/jobs/broker.sock";

#[test]
fn what_is_installed_or_removed_comes_in_or_goes_with_the_options_of_then() {
    for (folder, socket) in [("/opt/causeway", None), ("/elsewhere", Some(SOCKET_FILE))] {
        let scratch = Scratch::new(&PACKAGES);
        scratch.write("usr", folder, socket);
        let before = scratch.text();
        assert_eq!(scratch.again("usr"), Outcome::Same);
        let library = "usr/lib/causeway/libsisci.so";
        scratch.add(library);
        assert_eq!(scratch.again("usr"), Outcome::Written);
        let text = scratch.text();
        assert!(text.contains(&format!("\"--library={folder}/lib/libsisci.so\"")));
        assert_eq!(text.contains(SOCKET_FILE), socket.is_some());
        scratch.write("usr", folder, socket);
        assert_eq!(scratch.text(), text, "as `cdi` with the same options");
        fs::remove_file(scratch.0.path().join(library)).unwrap();
        assert_eq!(scratch.again("usr"), Outcome::Written);
        assert_eq!(scratch.text(), before);
    }
}

#[test]
fn of_a_folder_that_containers_see_whole_the_libraries_follow() {
    let files = ["bin/causeway-kube", "lib/libibverbs.so.1"];
    let scratch = Scratch::new(&files);
    scratch.write("", "/opt/causeway", Some(SOCKET_FILE));
    scratch.add("lib/librdmacm.so.1");
    assert_eq!(scratch.again(""), Outcome::Written);
    assert!(
        scratch
            .text()
            .contains("--library=/opt/causeway/lib/librdmacm.so.1")
    );
    assert_eq!(scratch.again(""), Outcome::Same);
}

#[test]
fn where_there_is_none_none_is_written() {
    let scratch = Scratch::new(&PACKAGES);
    assert_eq!(scratch.again("usr"), Outcome::Absent);
    assert!(!scratch.cdi().exists());
}

#[test]
fn what_another_program_has_written_or_somebody_has_changed_is_left_alone() {
    let scratch = Scratch::new(&PACKAGES);
    scratch.write("usr", "/opt/causeway", Some(SOCKET_FILE));
    let text = scratch.text();
    scratch.add("usr/lib/causeway/libsisci.so");
    let path = scratch.cdi().join(FILE);
    let changes = [
        ("\"ro\"", "\"rw\"", Outcome::Changed),
        ("\"env\": [", "\"env\": [ \"A=B\",", Outcome::Changed),
        ("CAUSEWAY_SOCKET=", "CAUSEWAY_WIRE=udp,", Outcome::Changed),
        (
            "\"createContainer\"",
            "\"startContainer\"",
            Outcome::Changed,
        ),
        ("\"all\"", "\"some\"", Outcome::Changed),
        ("0.5.0", "0.6.0", Outcome::Changed),
        (
            "usr/bin/causeway-kube\"",
            "opt/bin/causeway-kube\"",
            Outcome::Foreign,
        ),
        ("{", "[", Outcome::Changed),
    ];
    for (from, to, outcome) in changes {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        fs::write(&path, &changed).unwrap();
        assert_eq!(scratch.again("usr"), outcome, "{from}");
        assert_eq!(scratch.text(), changed);
    }
    let target = scratch.0.path().join("target");
    fs::write(&target, &text).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert_eq!(scratch.again("usr"), Outcome::Changed, "a link");
    assert_eq!(fs::read_to_string(&target).unwrap(), text);
}
