//! Tests of the CDI specification.

use serde_json::Value;
use tempfile::TempDir;

use super::*;

/// A folder that goes when the test ends.
struct Scratch(TempDir);

impl Scratch {
    /// As `make` leaves it.
    fn new() -> Scratch {
        let files = [
            "bin/causeway-kube",
            "lib/libibverbs.so.1",
            "lib/librdmacm.so.1",
        ];
        Scratch::of(&files)
    }

    fn of(files: &[&str]) -> Scratch {
        let base = tempfile::tempdir().unwrap();
        for file in files {
            let path = base.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        Scratch(base)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn options(&self, socket: Option<&str>) -> InjectionOptions {
        InjectionOptions {
            folder: Some(self.path().to_owned()),
            container_folder: "/opt/causeway".into(),
            socket: socket.map(PathBuf::from),
        }
    }
}

#[test]
fn the_specification_names_folder_socket_and_hook() {
    let folder = Scratch::new();
    let injection = Injection::new(&folder.options(Some("/run/tenants/jobs/broker.sock"))).unwrap();
    let spec: Value = serde_json::from_str(&injection.specification().unwrap()).unwrap();
    assert_eq!(spec["cdiVersion"], "0.5.0");
    assert_eq!(spec["kind"], "causeway.dev/rdma");
    let edits = &spec["devices"][0]["containerEdits"];
    assert_eq!(
        edits["env"][0],
        "CAUSEWAY_SOCKET=/run/tenants/jobs/broker.sock"
    );
    let mounts = edits["mounts"].as_array().unwrap();
    let seen: Vec<_> = mounts
        .iter()
        .map(|mount| mount["containerPath"].as_str().unwrap())
        .collect();
    assert_eq!(
        seen,
        [
            "/opt/causeway/bin",
            "/opt/causeway/lib",
            "/run/tenants/jobs"
        ]
    );
    assert!(mounts.iter().all(|mount| mount["options"][0] == "ro"));
    let hook = &edits["hooks"][0];
    assert_eq!(hook["hookName"], "createContainer");
    let args: Vec<_> = hook["args"].as_array().unwrap()[2..].iter().collect();
    let libraries = ["libibverbs.so.1", "librdmacm.so.1"];
    assert_eq!(
        args,
        libraries
            .map(|name| format!("--library=/opt/causeway/lib/{name}"))
            .each_ref()
    );
}

#[test]
fn of_a_prefix_containers_get_our_files_alone() {
    let private = "usr/lib/causeway";
    let files = [
        "usr/bin/causeway-kube",
        "usr/bin/causeway",
        "usr/bin/causewayd",
        "usr/bin/sh",
        "usr/lib/causeway/libibverbs.so.1",
        "usr/lib/causeway/libcauseway-paths.so",
        "usr/lib/libcauseway.so.0",
        // Others', of the same name as ours.
        "usr/lib/librdmacm.so.1",
        "usr/lib/libibverbs.so.1",
    ];
    let scratch = Scratch::of(&files);
    let mut options = scratch.options(None);
    options.folder = Some(scratch.path().join("usr"));
    let injection = Injection::new(&options).unwrap();
    let mounts: Vec<_> = injection
        .mounts()
        .into_iter()
        .map(|mount| {
            let host = Path::new(&mount.host).strip_prefix(scratch.path()).unwrap();
            let container = Path::new(&mount.container).strip_prefix("/opt/causeway");
            (host.to_owned(), container.unwrap().to_owned())
        })
        .collect();
    let expected = [
        ("usr/bin/causeway".to_owned(), "bin/causeway"),
        ("usr/bin/causewayd".to_owned(), "bin/causewayd"),
        (format!("{private}/libibverbs.so.1"), "lib/libibverbs.so.1"),
        (
            "usr/lib/libcauseway.so.0".to_owned(),
            "lib/libcauseway.so.0",
        ),
        (
            format!("{private}/libcauseway-paths.so"),
            "lib/libcauseway-paths.so",
        ),
    ];
    assert_eq!(
        mounts,
        expected.map(|(host, part)| (PathBuf::from(host), PathBuf::from(part)))
    );
    let spec: Value = serde_json::from_str(&injection.specification().unwrap()).unwrap();
    let hook = &spec["devices"][0]["containerEdits"]["hooks"][0];
    let path = scratch.path().join("usr/bin/causeway-kube");
    assert_eq!(hook["path"], path.to_str().unwrap());
    let args: Vec<_> = hook["args"].as_array().unwrap()[2..].iter().collect();
    assert_eq!(
        args,
        [
            "--library=/opt/causeway/lib/libibverbs.so.1",
            "--library=/opt/causeway/lib/libcauseway.so.0"
        ]
    );
}

#[test]
fn without_a_hook_the_libraries_are_preloaded() {
    let folder = Scratch::new();
    let injection = Injection::new(&folder.options(None)).unwrap();
    assert!(injection.environment().is_empty());
    let [(name, value)] = &injection.preloading()[..] else {
        panic!("one variable");
    };
    assert_eq!(name, "LD_PRELOAD");
    assert!(value.starts_with("/opt/causeway/lib/libibverbs.so.1:"));
}

#[test]
fn what_is_missing_is_named() {
    let folder = Scratch::new();
    let options = folder.options(Some("/run/a b/broker.sock"));
    assert!(Injection::new(&options).unwrap_err().contains("/run/a b"));
    fs::remove_file(folder.path().join("bin/causeway-kube")).unwrap();
    let injection = Injection::new(&folder.options(None)).unwrap();
    assert!(
        injection
            .specification()
            .unwrap_err()
            .contains("bin/causeway-kube")
    );
    fs::remove_file(folder.path().join("lib/libibverbs.so.1")).unwrap();
    let error = Injection::new(&folder.options(None)).unwrap_err();
    assert!(error.contains("libibverbs.so.1"));
}

#[test]
fn the_file_is_put_in_place_at_once() {
    let folder = Scratch::new();
    let injection = Injection::new(&folder.options(None)).unwrap();
    let dir = folder.path().join("etc/cdi");
    injection.write(&dir).unwrap();
    injection.write(&dir).unwrap();
    let names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, [FILE]);
}

#[test]
fn what_cannot_be_written_is_named_with_what_mends_it() {
    let path = Path::new("/var/run/cdi").join(FILE);
    let denied = unwritable(&path, &io::Error::from(io::ErrorKind::PermissionDenied));
    for word in ["/var/run/cdi/", "as root", "--cdi-dir"] {
        assert!(denied.contains(word), "{denied}");
    }
    let folder = Scratch::new();
    let injection = Injection::new(&folder.options(None)).unwrap();
    let file = folder.path().join("bin/causeway-kube");
    let error = injection.write(&file).unwrap_err();
    assert!(error.contains(&file.display().to_string()), "{error}");
}

#[test]
fn a_socket_without_its_directory_is_warned_of() {
    let folder = Scratch::new();
    let warning = |socket: Option<&str>| Injection::new(&folder.options(socket)).unwrap().warning();
    assert_eq!(warning(None), None);
    let socket = folder.path().join("jobs/broker.sock");
    let dir = socket.parent().unwrap();
    let said = warning(socket.to_str()).unwrap();
    assert!(said.contains(dir.to_str().unwrap()), "{said}");
    fs::create_dir(dir).unwrap();
    assert_eq!(warning(socket.to_str()), None);
}
