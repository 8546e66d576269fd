//! The client of etcd's JSON gateway against a made-up one.
#![cfg(feature = "etcd")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_directory::{Login, Tls};
use causeway_node::directory::etcd::{Change, Compare, Etcd, Failure, Watched};
use causeway_node::limits::ENTRIES_MAX;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// How long a member is waited for that does answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ends an answer whose connection is held.
const HELD: &str = "...";
/// Begins an answer that takes longer than [`SHORT`], as bcrypt may.
const SLOW: &str = "slow:";
const SLOWNESS: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_secs(2);

/// A member: where it is, and what it was asked.
struct Member {
    url: String,
    asked: Receiver<(String, Value)>,
}

/// A member that gives these answers, one to each request, and ends the connection after each.
fn member(answers: &[(u16, &str)]) -> Member {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (told, asked) = channel();
    let answers: Vec<(u16, String)> = answers.iter().map(|(s, a)| (*s, (*a).into())).collect();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for (status, answer) in answers {
            let (stream, _) = listener.accept().unwrap();
            held.extend(serve(stream, status, &answer, &told));
        }
        // What is held, and whoever comes now, waits as long as the test lasts.
        std::thread::park();
    });
    Member { url, asked }
}

fn serve(
    stream: TcpStream,
    status: u16,
    answer: &str,
    told: &Sender<(String, Value)>,
) -> Option<TcpStream> {
    let mut reader = BufReader::new(&stream);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let path = first.split(' ').nth(1).unwrap().to_owned();
    told.send((path, serde_json::from_slice(&body).unwrap()))
        .unwrap();
    let late = answer.strip_prefix(SLOW);
    if late.is_some() {
        std::thread::sleep(SLOWNESS);
    }
    let answer = late.unwrap_or(answer);
    // The body lasts until the end of the connection.
    let head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n\r\n");
    (&stream).write_all(head.as_bytes()).unwrap();
    let text = answer.strip_suffix(HELD).unwrap_or(answer);
    // A client that is given too much leaves.
    let _ = (&stream).write_all(text.as_bytes());
    answer.ends_with(HELD).then_some(stream)
}

fn client(members: &[&Member], patience: Duration) -> Etcd {
    let urls: Vec<String> = members.iter().map(|member| member.url.clone()).collect();
    Etcd::new(&urls, &Tls::default(), patience).unwrap()
}

/// An entry below `/p/`, as the gateway writes it.
fn entry(key: &str, value: &str) -> Value {
    let key = STANDARD.encode(format!("/p/{key}"));
    json!({ "key": key, "value": STANDARD.encode(value), "mod_revision": "7" })
}

#[test]
fn a_listing_is_understood() {
    let answer = json!({
        "header": { "revision": "9" }, "kvs": [entry("ids/a", "8")], "count": "1",
    });
    let empty = r#"{"header":{"revision":"9"}}"#;
    let one = member(&[(200, &answer.to_string()), (200, empty)]);
    let etcd = client(&[&one], PATIENCE);
    let listing = etcd.list("/p/").unwrap();
    assert_eq!((listing.revision, listing.entries.len()), (9, 1));
    assert_eq!(listing.entries[0].key, "ids/a");
    assert_eq!(listing.entries[0].value.as_deref(), Some(b"8".as_slice()));
    let (path, request) = one.asked.recv().unwrap();
    assert_eq!(path, "/v3/kv/range");
    // "/p/" and "/p0", the first key after all that begin with it.
    assert_eq!(request["key"], "L3Av");
    assert_eq!(request["range_end"], "L3Aw");
    assert!(etcd.list("/p/").unwrap().entries.is_empty());
}

#[test]
fn what_is_no_answer_of_etcd_s_is_none() {
    let other = json!({ "header": { "revision": "9" }, "kvs": [{ "key": "L3Evcg==" }] });
    let many = json!({
        "header": { "revision": "9" }, "kvs": vec![entry("names/n", "8"); ENTRIES_MAX + 1],
    });
    let cases = [
        (200, "<html>".to_owned()),
        (200, "{}".to_owned()),
        (200, r#"{"header":{"revision":"x"}}"#.to_owned()),
        (
            200,
            r#"{"header":{"revision":"9"},"kvs":[{"key":"*"}]}"#.to_owned(),
        ),
        (404, "{}".to_owned()),
        (302, "{}".to_owned()),
        (200, other.to_string()),
        (200, many.to_string()),
        (200, "[".repeat(100_000)),
    ];
    for (status, text) in cases {
        let one = member(&[(status, &text)]);
        let outcome = client(&[&one], PATIENCE).list("/p/");
        let away = matches!(outcome, Err(Failure::Away(_)));
        assert!(away, "{text:.60}: {outcome:?}");
    }
}

#[test]
fn a_member_that_cannot_answer_gives_way_to_the_next() {
    let good = r#"{"header":{"revision":"9"}}"#;
    let no_leader = r#"{"error":"etcdserver: no leader","code":14}"#;
    let refused = r#"{"error":"etcdserver: permission denied","message":"no","code":7}"#;
    let silent = member(&[(200, HELD)]);
    let lost = member(&[(503, no_leader)]);
    let fine = member(&[(200, good), (200, good), (403, refused)]);
    let etcd = client(&[&silent, &lost, &fine], Duration::from_secs(2));
    assert_eq!(etcd.list("/p/").unwrap().revision, 9);
    assert_eq!(etcd.endpoint(), fine.url, "it is asked first from now on");
    assert_eq!(etcd.list("/p/").unwrap().revision, 9);
    match etcd.list("/p/") {
        Err(Failure::Refused { code: 7, message }) => {
            assert_eq!(message, "etcdserver: permission denied");
        }
        other => panic!("{other:?}"),
    }
    // Bound, and not listening: nobody answers, and no other test gets the port.
    let nobody = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&nobody, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = SocketAddrV4::try_from(getsockname(&nobody).unwrap()).unwrap();
    let url = format!("http://{at}");
    let alone = Etcd::new(&[url], &Tls::default(), PATIENCE).unwrap();
    assert!(matches!(alone.list("/p/"), Err(Failure::Away(_))));
}

/// A file with a password, which its owner alone can read.
fn password_file() -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "secret").unwrap();
    file
}

/// A client that has a user and a password.
fn known_client(one: &Member, password: &NamedTempFile, patience: Duration) -> Etcd {
    let login = Login {
        user: "hosts".into(),
        password_file: password.path().to_owned(),
    };
    client(&[one], patience).logged_in(Some(login)).unwrap()
}

#[test]
fn a_login_may_take_longer_than_other_requests() {
    let token = format!(r#"{SLOW}{{"header":{{}},"token":"t"}}"#);
    let listing = r#"{"header":{"revision":"9"}}"#;
    let one = member(&[(200, &token), (200, listing)]);
    let password = password_file();
    let etcd = known_client(&one, &password, SHORT);
    assert_eq!(etcd.list("/p/").unwrap().revision, 9);
    let (path, request) = one.asked.recv().unwrap();
    assert_eq!(path, "/v3/auth/authenticate");
    assert_eq!(request, json!({ "name": "hosts", "password": "secret" }));
    let slow = member(&[(200, &format!("{SLOW}{listing}"))]);
    let outcome = client(&[&slow], SHORT).list("/p/");
    assert!(matches!(outcome, Err(Failure::Away(_))), "{outcome:?}");
}

#[test]
fn an_etcd_that_asks_nobody_is_asked_without_a_token() {
    let needless = r#"{"error":"etcdserver: authentication is not enabled","code":9}"#;
    let other = r#"{"error":"etcdserver: something else","code":9}"#;
    let listing = r#"{"header":{"revision":"9"}}"#;
    let token = r#"{"header":{},"token":"t"}"#;
    let one = member(&[
        (400, needless),
        (200, listing),
        // It has begun to ask meanwhile.
        (200, token),
        (200, listing),
        (200, listing),
    ]);
    let password = password_file();
    let etcd = known_client(&one, &password, PATIENCE);
    for _ in 0..3 {
        assert_eq!(etcd.list("/p/").unwrap().revision, 9);
    }
    let odd = member(&[(400, other)]);
    let outcome = known_client(&odd, &password, PATIENCE).list("/p/");
    assert!(
        matches!(outcome, Err(Failure::Refused { code: 9, .. })),
        "{outcome:?}"
    );
}

#[test]
fn transactions_demand_what_they_say() {
    let done = r#"{"header":{},"succeeded":true}"#;
    let one = member(&[(200, done), (200, r#"{"header":{}}"#)]);
    let etcd = client(&[&one], PATIENCE);
    let compares = [
        Compare::Changed("/p/ids/a".into(), 0),
        Compare::QuietSince("/p/ids/".into(), 9),
        Compare::Value("k".into(), "v".into()),
    ];
    let changes = [
        Change::Put("k".into(), "v".into(), 3),
        Change::Delete("k".into()),
    ];
    assert!(etcd.transact(&compares, &changes).unwrap());
    assert!(!etcd.transact(&compares, &changes).unwrap());
    let (path, request) = one.asked.recv().unwrap();
    assert_eq!(path, "/v3/kv/txn");
    let wanted = json!({
        "compare": [
            { "key": "L3AvaWRzL2E=", "target": "MOD", "result": "EQUAL", "mod_revision": "0" },
            { "key": "L3AvaWRzLw==", "range_end": "L3AvaWRzMA==", "target": "MOD",
              "result": "LESS", "mod_revision": "10" },
            { "key": "aw==", "target": "VALUE", "result": "EQUAL", "value": "dg==" },
        ],
        "success": [
            { "request_put": { "key": "aw==", "value": "dg==", "lease": "3" } },
            { "request_delete_range": { "key": "aw==" } },
        ],
    });
    assert_eq!(request, wanted);
}

#[test]
fn leases_expire() {
    let one = member(&[
        (200, r#"{"ID":"77","TTL":"10"}"#),
        (200, r#"{"result":{"ID":"77","TTL":"10"}}"#),
        (200, r#"{"result":{"ID":"77"}}"#),
        (
            404,
            r#"{"error":{"grpc_code":5,"message":"lease not found"}}"#,
        ),
    ]);
    let etcd = client(&[&one], PATIENCE);
    assert_eq!(etcd.grant(Duration::from_secs(10)).unwrap(), 77);
    assert!(etcd.renew(77).unwrap());
    assert!(!etcd.renew(77).unwrap(), "no time is left");
    assert!(!etcd.renew(77).unwrap(), "there is none");
    let (_, request) = one.asked.recv().unwrap();
    assert_eq!(request["TTL"], "10");
}

/// Too large for a signed number.
const CLUSTER: &str = "14841639068965178418";

/// How a watch of these lines ends, and the keys that it brought: stored or gone.
fn watched(lines: &str, duration: Duration) -> (Result<Watched, Failure>, Vec<(String, bool)>) {
    let one = member(&[(200, lines)]);
    let mut seen = Vec::new();
    let since = (5, CLUSTER);
    let ended = client(&[&one], PATIENCE).watch("/p/", since, duration, &mut |changes| {
        seen.extend(changes.into_iter().map(|c| (c.key, c.value.is_some())));
    });
    let (path, request) = one.asked.recv().unwrap();
    assert_eq!(path, "/v3/watch");
    assert_eq!(request["create_request"]["start_revision"], "5");
    (ended, seen)
}

#[test]
fn a_watch_brings_changes_and_says_where_to_go_on() {
    let put = json!({ "kv": entry("ids/a", "8") });
    let delete = json!({ "type": "DELETE", "kv": entry("nodes/8", "") });
    let created = json!({ "result": { "created": true, "header": { "revision": "99" } } });
    let events = json!({ "result": { "events": [put, delete] } });
    let soon = Duration::from_secs(2);
    let (ended, seen) = watched(&format!("{created}\n{events}\n{HELD}"), soon);
    // After the last change, which is of revision 7, whatever the store's is.
    assert_eq!(ended.unwrap(), Watched::Lapsed(8));
    let gone = ("nodes/8".to_owned(), false);
    assert_eq!(seen, [("ids/a".to_owned(), true), gone]);
    let (ended, _) = watched(&format!("{created}\n{HELD}"), soon);
    assert_eq!(ended.unwrap(), Watched::Lapsed(5));
    let cut = json!({ "result": { "canceled": true, "compact_revision": "9" } });
    let (ended, _) = watched(&format!("{created}\n{cut}\n"), PATIENCE);
    assert_eq!(ended.unwrap(), Watched::Compacted);
    // It would tell nothing until it has come as far again.
    let behind = json!({ "result": { "created": true, "header": { "revision": "3" } } });
    let (ended, seen) = watched(&format!("{behind}\n{HELD}"), PATIENCE);
    assert_eq!((ended.unwrap(), seen), (Watched::Behind, Vec::new()));
    let level = json!({ "result": { "created": true, "header": { "revision": "4" } } });
    let (ended, _) = watched(&format!("{level}\n{HELD}"), soon);
    assert_eq!(ended.unwrap(), Watched::Lapsed(5));
}

#[test]
fn a_watch_is_of_the_cluster_that_was_listed() {
    let entries = format!(r#"{{"header":{{"revision":"4","cluster_id":"{CLUSTER}"}}}}"#);
    let one = member(&[
        (200, entries.as_str()),
        (200, r#"{"header":{"revision":"4"}}"#),
    ]);
    let etcd = client(&[&one], PATIENCE);
    assert_eq!(etcd.list("/p/").unwrap().cluster, CLUSTER);
    assert_eq!(etcd.list("/p/").unwrap().cluster, "");
    let created = |cluster: &str| {
        let header = json!({ "revision": "99", "cluster_id": cluster });
        json!({ "result": { "created": true, "header": header } })
    };
    let put = json!({ "result": { "events": [{ "kv": entry("ids/a", "8") }] } });
    // Ahead of ours, so it would tell of what is new there, and of nothing before.
    let lines = format!("{}\n{put}\n{HELD}", created("7"));
    let (ended, seen) = watched(&lines, PATIENCE);
    assert_eq!((ended.unwrap(), seen), (Watched::Replaced, Vec::new()));
    let lines = format!("{}\n{put}\n", created(CLUSTER));
    let (_, seen) = watched(&lines, PATIENCE);
    assert_eq!(seen, [("ids/a".to_owned(), true)]);
}

#[test]
fn a_watch_that_ends_or_says_what_it_cannot_is_a_failure() {
    let whole = json!({ "result": { "events": [{ "kv": entry("ids/a", "8") }] } }).to_string();
    let foreign = json!({ "result": { "events": [{ "kv": { "key": "L3E=" } }] } });
    for lines in [
        "{}".to_owned(),
        whole[..40].to_owned(),
        "rubbish\n".to_owned(),
        format!("{foreign}\n"),
        "{\"error\":{\"grpc_code\":14,\"message\":\"no leader\"}}\n".to_owned(),
    ] {
        let (ended, seen) = watched(&lines, PATIENCE);
        assert!(matches!(ended, Err(Failure::Away(_))), "{lines}: {ended:?}");
        assert!(seen.is_empty(), "{lines}");
    }
}
