//! The configuration file, understood.

use super::*;

#[test]
fn the_example_is_understood() {
    let text = include_str!("../../../../packaging/causewayd.toml");
    let config = Config::parse(text).unwrap();
    assert!(!config.has_tenants(), "all of it is commented out");
    // With its comments' settings taken for real ones.
    let setting = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
    let settings: Vec<&str> = text
        .lines()
        .filter(setting)
        .map(|line| &line[1..])
        .collect();
    let config = Config::parse(&settings.join("\n")).unwrap();
    assert_eq!(config.tenants[1].name, "web");
    assert_eq!(config.tenants[1].limits.bytes, 8 << 30);
    let ids: Vec<u32> = config.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [4, 8]);
    assert_eq!(config.nodes[1].addresses[0].to_string(), "10.0.0.2");
}

const WEB: &str = "[[tenant]]\nname = 'web'\nsocket = '/run/t/web.sock'\nusers = ['root']\n";

#[test]
fn what_is_not_said_has_defaults() {
    let config = Config::parse(WEB).unwrap();
    let [own, web] = &config.tenants[..] else {
        panic!("{config:?}");
    };
    assert_eq!((own.name.as_str(), &own.socket), (OWN_TENANT, &None));
    assert_eq!(own.limits, Limits::default());
    let socket = web.socket.as_ref().unwrap();
    assert_eq!((socket.mode, socket.owner), (SOCKET_MODE, None));
    assert_eq!(web.members.users, [0]);
    assert_eq!(web.userfaultfd, Members::default(), "nobody unless listed");
    assert!(!web.one_boundary);
    let told = Config::parse(&format!("{WEB}one_boundary = true")).unwrap();
    assert!(told.tenants[1].one_boundary);
    assert_eq!(Config::parse("").unwrap(), Config::without_file());
}

#[test]
fn limits_are_those_of_the_tenant_else_those_of_all() {
    let text = format!(
        "[limits]\nqps = 10\nbytes = '2 MiB'\n{WEB}userfaultfd = [7, '@root']\n\
         [tenant.limits]\nqps = 3\nsegments = 4\nblock_bytes = 18446744073709551615"
    );
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.tenants[0].limits.qps, 10);
    let web = &config.tenants[1];
    let limits = Limits {
        qps: 3,
        segments: 4,
        bytes: 2 << 20,
        block_bytes: u64::MAX,
        ..Limits::default()
    };
    assert_eq!(web.limits, limits);
    assert!(web.userfaultfd.contain(7, Vec::new));
    assert!(web.userfaultfd.contain(8, || vec![5, 0]));
    assert!(!web.userfaultfd.contain(8, || vec![5]));
}

#[test]
fn mistakes_are_named() {
    let more = |line: &str| format!("{WEB}{line}\n");
    for (text, named) in [
        ("[limit]".to_owned(), "unknown field"),
        ("[limits]\nqps = 65537".to_owned(), "qps = 65537"),
        ("[limits]\nbytes = '3 GB'".to_owned(), "3 GB"),
        ("[[tenant]]\nname = 'x'\n".to_owned(), "socket"),
        (WEB.replace("/run", "run"), "not absolute"),
        (WEB.replace("web.sock", ".."), "names no file"),
        (WEB.replace("'root'", ""), "nobody is admitted"),
        (
            WEB.replace("root", "no-such-user"),
            "no user \"no-such-user\"",
        ),
        (WEB.replace("'root'", "65534"), "nobody in particular"),
        (WEB.replace("web'", "default'"), "twice, or has the name"),
        (WEB.replace("'web'", "''"), "the name"),
        (more("mode = 660"), "in octal without quotes"),
        (
            WEB.replace("'root'", "-1"),
            "the name or the number of a user",
        ),
        (
            "[limits]\nbytes = -1".to_owned(),
            "a number of bytes or an amount",
        ),
        (more("groups = ['no-such-group']"), "no group"),
        (more("userfaultfd = ['@no-such-group']"), "no group"),
        (format!("{WEB}{WEB}"), "twice"),
        ("[[sisci.node]]\nid = 0".to_owned(), "id 0"),
        (
            "[[sisci.node]]\nid = 252".to_owned(),
            "id 252: ids are 1 to 65535 without 252",
        ),
        ("[[sisci.node]]\nid = 65536".to_owned(), "id 65536"),
        (
            "[[sisci.node]]\nid = 8\ntrust = 'all'".to_owned(),
            "unknown variant",
        ),
        (
            "[[sisci.node]]\nid = 8\n".repeat(2),
            "8 is configured twice",
        ),
        (
            "[[sisci.node]]\nid = 8\naddresses = ['10.0.0.300']".to_owned(),
            "IP",
        ),
        (
            "[[sisci.node]]\nid = 8\naddresses = ['::1']\n\
             [[sisci.node]]\nid = 12\naddresses = ['::1']"
                .to_owned(),
            "address of node 8",
        ),
        (
            format!("{WEB}{}", WEB.replace("'web'", "'b'")),
            "socket of another",
        ),
    ] {
        let why = Config::parse(&text).unwrap_err();
        assert!(why.contains(named), "{text}: {why}");
    }
}

#[test]
fn a_value_that_cannot_be_is_named_with_its_line() {
    for (text, named) in [
        (
            "[limits]\nqps = 65537".to_owned(),
            "line 2, column 7\n  |\n2 | qps = 65537\n  |       ^^^^^\ninvalid value: integer \
             `65537`, expected a number from 0 to 65536",
        ),
        ("limits = 3".to_owned(), "a table of limits"),
        (format!("{WEB}mode = '660'\n"), "in octal without quotes"),
        (WEB.replace("'root'", "4294967295"), "can have the number"),
        (
            WEB.replace("/run", &format!("/{}", "x".repeat(107))),
            "107 bytes at most",
        ),
        (WEB.replace("[[tenant]]", "[tenant]"), "two brackets"),
    ] {
        let why = Config::parse(&text).unwrap_err();
        assert!(why.contains("at line ") && why.contains(named), "{why}");
    }
}

#[test]
fn a_node_has_addresses_of_hosts_however_they_are_written() {
    let first = "[[sisci.node]]\nid = 8\naddresses = ['10.0.0.1']\n[[sisci.node]]\nid = 12\n";
    for (address, wanted) in [
        ("::ffff:10.0.0.1", "address of node 8"),
        ("0.0.0.0", "0.0.0.0, which no host can have"),
        ("ff02::1", "ff02::1, which no host can have"),
    ] {
        let why = Config::parse(&format!("{first}addresses = ['{address}']")).unwrap_err();
        assert!(why.contains(wanted), "{address}: {why}");
    }
}

#[test]
fn a_file_without_an_end_is_not_read_to_it() {
    let why = Config::load(Some(Path::new("/dev/zero")), Path::new("/")).unwrap_err();
    assert!(why.contains("bytes at most"), "{why}");
}

/// What the table of a directory has at least.
const ETCD: &str = "etcd = ['http://10.0.0.9:2379']\ncluster = 'lab'\n";

#[test]
fn a_mistake_in_the_node_daemons_table_is_found_here() {
    for (said, named) in [
        ("", "missing field `etcd`"),
        (
            "etcd = []\ncluster = 'lab'\n",
            "[sisci.directory]: etcd names 0 members",
        ),
        (
            &format!("{ETCD}lease_second = 3\n"),
            "unknown field `lease_second`",
        ),
        (&format!("{ETCD}lease_seconds = 0\n"), "lease_seconds = 0"),
        (&format!("{ETCD}tenant = 3\n"), "invalid type"),
        (&format!("{ETCD}tenant = 'a b'\n"), "tenant \"a b\""),
        (&format!("{ETCD}user = 'u'\n"), "belong together"),
        (
            &format!("{ETCD}tenant = 'web'\n"),
            "there is no tenant \"web\"",
        ),
        (
            &format!("{ETCD}cache = 'kept.json'\n"),
            "cache = \"kept.json\" is not an absolute path",
        ),
    ] {
        let why = Config::parse(&format!("[sisci.directory]\n{said}")).unwrap_err();
        assert!(why.contains(named), "{said}: {why}");
    }
}

#[test]
fn a_cluster_has_a_name_and_a_tenant_a_key() {
    let node = "[[sisci.node]]\nid = 8\nname = 'left'\n";
    let config = Config::parse(&format!("[sisci]\ncluster = 'alpha'\n{node}")).unwrap();
    assert_eq!(
        (config.cluster.as_str(), config.node_daemon),
        ("alpha", None)
    );
    assert_eq!(config.nodes[0].name.as_deref(), Some("left"));
    assert!(config.tenants[0].key.is_none());
    for (said, tenant) in [("", "default"), ("tenant = 'web'\n", "web")] {
        let text = format!("{WEB}[sisci]\nnode_daemon = false\n[sisci.directory]\n{ETCD}{said}");
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.node_daemon, Some(false));
        assert_eq!(config.directory_tenant.as_deref(), Some(tenant));
    }
    let key = "key = '/no/such/file'\n";
    for (text, named) in [
        ("[sisci]\ncluster = ''".to_owned(), "name of the cluster"),
        (
            format!("{node}{}", node.replace('8', "12")),
            "name of node 8",
        ),
        (node.replace("left", ""), "name of SISCI node 8"),
        (format!("[sisci]\n{key}"), "key file /no/such/file"),
        (
            format!("{WEB}{key}"),
            "tenant \"web\": key file /no/such/file",
        ),
    ] {
        let why = Config::parse(&text).unwrap_err();
        assert!(why.contains(named), "{text}: {why}");
    }
}
