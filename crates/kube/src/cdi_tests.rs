//! Tests of the CDI specification.

use serde_json::Value;

use super::*;

/// A folder as `make` leaves it, which goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let base = std::env::temp_dir().join(format!("causeway-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        for file in [
            "bin/causeway-kube",
            "lib/libibverbs.so.1",
            "lib/librdmacm.so.1",
        ] {
            let path = base.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        Folder(base)
    }

    fn options(&self, socket: Option<&str>) -> InjectionOptions {
        InjectionOptions {
            folder: Some(self.0.clone()),
            container_folder: "/opt/causeway".into(),
            socket: socket.map(PathBuf::from),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_specification_names_folder_socket_and_hook() {
    let folder = Folder::new("cdi");
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
fn without_a_hook_the_libraries_are_preloaded() {
    let folder = Folder::new("cdi-preload");
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
    let folder = Folder::new("cdi-missing");
    let options = folder.options(Some("/run/a b/broker.sock"));
    assert!(Injection::new(&options).unwrap_err().contains("/run/a b"));
    fs::remove_file(folder.0.join("bin/causeway-kube")).unwrap();
    let injection = Injection::new(&folder.options(None)).unwrap();
    assert!(
        injection
            .specification()
            .unwrap_err()
            .contains("bin/causeway-kube")
    );
    fs::remove_file(folder.0.join("lib/libibverbs.so.1")).unwrap();
    let error = Injection::new(&folder.options(None)).unwrap_err();
    assert!(error.contains("libibverbs.so.1"));
}

#[test]
fn the_file_is_put_in_place_at_once() {
    let folder = Folder::new("cdi-write");
    let injection = Injection::new(&folder.options(None)).unwrap();
    let dir = folder.0.join("etc/cdi");
    injection.write(&dir).unwrap();
    injection.write(&dir).unwrap();
    let names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, [FILE]);
}
