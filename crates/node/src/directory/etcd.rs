//! etcd's JSON gateway: what the directory needs of its version 3 API, over HTTP or HTTPS.
//!
//! Each request has a connection of its own: they are few, and none that a restart of etcd has
//! broken is used again. A member that does not answer gives way to the next one of the list.
//! Where etcd wants to know the user, a token stands in each request; it is asked for when there is
//! none, and again when etcd does not take it any more. An etcd that wants to know nobody is asked
//! for one each time, so that the daemon goes on when it begins to.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_directory::{Login, Tls};
use serde_json::{Value, json};
use thiserror::Error;
use ureq::Agent;

use super::certificates::tls_config;
use super::login::{is_needless, is_stale, password};
use super::view::Stored;
use crate::limits::{ANSWER_BYTES_MAX, ENTRIES_MAX, LOGIN_PATIENCE, TOKEN_BYTES_MAX};

/// Codes of gRPC: the deadline is exceeded, or the member cannot do it now.
const TRY_ANOTHER: [i64; 2] = [4, 14];
/// Most characters of what etcd says that go into a log.
const MESSAGE_CHARS_MAX: usize = 200;
/// Code of gRPC: there is no such thing.
const NOT_FOUND: i64 = 5;

/// Why there is no answer that can be used.
#[derive(Debug, Error)]
pub enum Failure {
    /// No member answers, or none can.
    #[error("{0}")]
    Away(String),
    /// A member refused.
    #[error("etcd refused: {message}")]
    Refused {
        /// Code of gRPC.
        code: i64,
        /// What it said.
        message: String,
    },
}

/// Everything below a prefix.
#[derive(Debug)]
pub struct Listing {
    /// When it was so.
    pub revision: i64,
    /// Of which cluster of etcd that is a revision; empty if it does not say.
    pub cluster: String,
    /// The entries, their keys without the prefix.
    pub entries: Vec<Stored>,
}

/// How a watch ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Watched {
    /// Its time is over: watch again from this revision on.
    Lapsed(i64),
    /// The revision to begin at is compacted: list again.
    Compacted,
    /// The member has not come as far as the revision before: etcd has lost what it had, or was
    /// restored from a backup. It would say nothing until it has come as far again: list again.
    Behind,
    /// The member is of another cluster than the revision, which means nothing there: list again.
    Replaced,
}

/// What must hold for a transaction.
#[derive(Clone, Debug)]
pub enum Compare {
    /// The key has this value.
    Value(String, String),
    /// The key was last changed at this revision; 0: it is absent.
    Changed(String, i64),
    /// No key below the prefix was changed after this revision.
    QuietSince(String, i64),
}

/// What a transaction does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Stores a value, under a lease (0: for good).
    Put(String, String, i64),
    /// Removes a key.
    Delete(String),
}

/// A client. Thread-safe; requests do not wait for each other.
#[derive(Debug)]
pub struct Etcd {
    agent: Agent,
    endpoints: Vec<String>,
    /// The member that answered last.
    current: AtomicUsize,
    patience: Duration,
    login: Option<Login>,
    /// What etcd gave for user and password.
    token: Mutex<Option<String>>,
    /// The log says that it gave nothing since it asks nobody.
    told_needless: AtomicBool,
}

impl Etcd {
    /// A client of these members, which waits so long for one of them.
    ///
    /// # Errors
    /// What is wrong with the files that `tls` names.
    pub fn new(endpoints: &[String], tls: &Tls, patience: Duration) -> Result<Etcd, String> {
        let config = Agent::config_builder()
            .tls_config(tls_config(tls)?)
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            .max_idle_connections(0)
            .max_redirects(0)
            .proxy(None);
        Ok(Etcd {
            agent: config.build().into(),
            endpoints: endpoints.to_vec(),
            current: AtomicUsize::new(0),
            patience,
            login: None,
            token: Mutex::default(),
            told_needless: AtomicBool::new(false),
        })
    }

    /// The same, as a user of etcd's.
    ///
    /// # Errors
    /// What is wrong with the password's file.
    pub fn logged_in(mut self, login: Option<Login>) -> Result<Etcd, String> {
        login.as_ref().map(password).transpose()?;
        self.login = login;
        Ok(self)
    }

    /// The member that is asked first.
    pub fn endpoint(&self) -> &str {
        let at = self.current.load(Ordering::Relaxed) % self.endpoints.len();
        &self.endpoints[at]
    }

    /// The address from which this host reaches etcd, if there is a way.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.endpoints.iter().find_map(|endpoint| {
            let uri: ureq::http::Uri = endpoint.parse().ok()?;
            let host = uri.host()?.trim_matches(['[', ']']);
            let mut to = (host, uri.port_u16()?).to_socket_addrs().ok()?;
            let to = to.next()?;
            let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
            let socket = UdpSocket::bind((any, 0)).ok()?;
            // Sends nothing: the kernel chooses the way.
            socket.connect(to).ok()?;
            Some(socket.local_addr().ok()?.ip().to_canonical())
        })
    }

    /// Everything below a prefix, as a majority of the members has it.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn list(&self, prefix: &str) -> Result<Listing, Failure> {
        let request = json!({
            "key": encode(prefix), "range_end": encode(&after(prefix)),
            "limit": (ENTRIES_MAX + 1).to_string(),
        });
        let answer = self.call("/v3/kv/range", &request)?;
        let revision = int(&answer["header"]["revision"]).ok_or_else(|| odd("no revision"))?;
        let kvs = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
        let entries = kvs.iter().map(|kv| entry(kv, prefix));
        let entries = entries.collect::<Option<Vec<_>>>();
        let entries = entries.ok_or_else(|| odd("bad entries"))?;
        if entries.len() > ENTRIES_MAX || answer["more"] == true {
            return Err(odd("more entries than a directory may have"));
        }
        Ok(Listing {
            revision,
            cluster: cluster(&answer).unwrap_or_default().to_owned(),
            entries,
        })
    }

    /// One key: value, revision of its last change (0: absent), lease.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn get(&self, key: &str) -> Result<(Option<Vec<u8>>, i64, i64), Failure> {
        let answer = self.call("/v3/kv/range", &json!({ "key": encode(key) }))?;
        let Some(kv) = answer["kvs"].get(0) else {
            return Ok((None, 0, 0));
        };
        let found = entry(kv, "").ok_or_else(|| odd("bad entry"))?;
        let changed = int(&kv["mod_revision"]).ok_or_else(|| odd("no revision"))?;
        Ok((found.value, changed, int(&kv["lease"]).unwrap_or(0)))
    }

    /// Makes changes if everything holds. False: it does not.
    ///
    /// # Errors
    /// [`Failure`]; the changes may have been made then.
    pub fn transact(&self, compares: &[Compare], changes: &[Change]) -> Result<bool, Failure> {
        let compare: Vec<Value> = compares.iter().map(comparison).collect();
        let success: Vec<Value> = changes.iter().map(change).collect();
        let request = json!({ "compare": compare, "success": success });
        let answer = self.call("/v3/kv/txn", &request)?;
        Ok(answer["succeeded"] == true)
    }

    /// Begins a lease.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn grant(&self, duration: Duration) -> Result<i64, Failure> {
        let request = json!({ "TTL": duration.as_secs().to_string() });
        let answer = self.call("/v3/lease/grant", &request)?;
        int(&answer["ID"]).ok_or_else(|| odd("no lease"))
    }

    /// Renews a lease. False: it has expired.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn renew(&self, lease: i64) -> Result<bool, Failure> {
        let request = json!({ "ID": lease.to_string() });
        match self.call("/v3/lease/keepalive", &request) {
            Ok(answer) => Ok(int(&answer["result"]["TTL"]).is_some_and(|left| left > 0)),
            Err(Failure::Refused { code, .. }) if code == NOT_FOUND => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Watches everything below a prefix for a time, from a revision of a cluster on
    /// ([`Listing::cluster`]). `took` is given the changes of each message, their keys without the
    /// prefix.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn watch(
        &self,
        prefix: &str,
        (mut from, cluster): (i64, &str),
        duration: Duration,
        took: &mut dyn FnMut(Vec<Stored>),
    ) -> Result<Watched, Failure> {
        let request = json!({ "create_request": {
            "key": encode(prefix), "range_end": encode(&after(prefix)),
            "start_revision": from.to_string(),
        }});
        let at = self.current.load(Ordering::Relaxed);
        let away = |why: String| {
            self.pass_over(at);
            Failure::Away(why)
        };
        let token = self.token()?;
        let url = format!("{}/v3/watch", self.endpoint());
        let mut sent = self.agent.post(&url);
        if let Some(token) = &token {
            sent = sent.header("Authorization", token);
        }
        let sent = sent.config().timeout_global(Some(duration)).build();
        let sent = sent.send(request.to_string());
        let body = match sent {
            Ok(answer) => answer.into_body(),
            Err(why) => return Err(away(why.to_string())),
        };
        let mut lines = BufReader::new(body.into_reader());
        loop {
            let mut line = Vec::new();
            let read = lines
                .by_ref()
                .take(ANSWER_BYTES_MAX)
                .read_until(b'\n', &mut line);
            match read {
                Err(why) if has_lapsed(&why) => return Ok(Watched::Lapsed(from)),
                Err(why) => return Err(away(why.to_string())),
                Ok(_) if line.last() != Some(&b'\n') => return Err(away("watch ended".to_owned())),
                Ok(_) => {}
            }
            let message: Value =
                serde_json::from_slice(&line).map_err(|why| odd(&why.to_string()))?;
            if let Some(why) = refusal(&message) {
                self.forget(token.as_deref());
                return Err(why);
            }
            let result = &message["result"];
            if result["canceled"] == true && result["compact_revision"].is_null() {
                // Of a token that etcd does not know it says that there is no permission.
                self.forget(token.as_deref());
                let why = result["cancel_reason"].as_str().unwrap_or("no reason");
                return Err(Failure::Away(format!(
                    "the watch was ended: {}",
                    plain(why)
                )));
            }
            if let Some(why) = is_to_list(result, from, cluster) {
                return Ok(why);
            }
            let events = result["events"].as_array().map_or(&[][..], Vec::as_slice);
            let changes = events.iter().map(|event| changed(event, prefix));
            let changes = changes.collect::<Option<Vec<_>>>();
            let changes = changes.ok_or_else(|| odd("bad events"))?;
            let last = changes.iter().map(|(revision, _)| *revision).max();
            from = last.map_or(from, |last| from.max(last.saturating_add(1)));
            took(changes.into_iter().map(|(_, stored)| stored).collect());
        }
    }

    /// Asks the members one after the other until one answers, each once.
    fn call(&self, path: &str, request: &Value) -> Result<Value, Failure> {
        let mut last = odd("no members");
        for _ in &self.endpoints {
            let at = self.current.load(Ordering::Relaxed);
            match self.ask_as_user(path, request) {
                Err(Failure::Away(why)) => {
                    last = Failure::Away(format!("{}: {why}", self.endpoint()));
                    self.pass_over(at);
                }
                outcome => return outcome,
            }
        }
        Err(last)
    }

    /// Asks one member; once more with another token if it does not take the one that there is.
    fn ask_as_user(&self, path: &str, request: &Value) -> Result<Value, Failure> {
        let token = self.token()?;
        match self.ask(path, request, token.as_deref()) {
            Err(Failure::Refused { code, message })
                if token.is_some() && is_stale(code, &message) =>
            {
                self.forget(token.as_deref());
                self.ask(path, request, self.token()?.as_deref())
            }
            outcome => outcome,
        }
    }

    /// What shows etcd who this host is; `None` if it need not know.
    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        let held = || self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = held().clone() {
            return Ok(Some(token));
        }
        let password = password(login).map_err(Failure::Away)?;
        let request = json!({ "name": login.user, "password": password });
        let patience = self.patience.max(LOGIN_PATIENCE);
        let answer = match self.ask_for("/v3/auth/authenticate", &request, None, patience) {
            Err(Failure::Refused { code, message }) if is_needless(code, &message) => {
                if !self.told_needless.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "etcd asks nobody for a user, so anybody who reaches it may write there"
                    );
                }
                return Ok(None);
            }
            outcome => outcome?,
        };
        let token = answer["token"].as_str().ok_or_else(|| odd("no token"))?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(odd("a token that is too long"));
        }
        self.told_needless.store(false, Ordering::Relaxed);
        *held() = Some(token.to_owned());
        Ok(Some(token.to_owned()))
    }

    /// A token is of no use any more. Another thread may have got a new one already.
    fn forget(&self, token: Option<&str>) {
        let mut held = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_deref() == token {
            *held = None;
        }
    }

    fn ask(&self, path: &str, request: &Value, token: Option<&str>) -> Result<Value, Failure> {
        self.ask_for(path, request, token, self.patience)
    }

    /// The same, with patience of its own for the answer.
    fn ask_for(
        &self,
        path: &str,
        request: &Value,
        token: Option<&str>,
        patience: Duration,
    ) -> Result<Value, Failure> {
        let away = |why: &dyn std::fmt::Display| Failure::Away(why.to_string());
        let mut sent = self.agent.post(format!("{}{path}", self.endpoint()));
        if let Some(token) = token {
            sent = sent.header("Authorization", token);
        }
        let sent = sent
            .config()
            .timeout_global(Some(patience))
            .timeout_connect(Some(self.patience));
        let sent = sent.build().send(request.to_string());
        let mut answer = sent.map_err(|why| away(&why))?;
        let status = answer.status();
        let limited = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = limited.read_to_vec().map_err(|why| away(&why))?;
        let answer = serde_json::from_slice::<Value>(&text);
        let refused = answer.as_ref().ok().and_then(refusal);
        match (answer, refused) {
            (_, Some(why)) => Err(why),
            (Ok(answer), None) if status.is_success() => Ok(answer),
            _ => Err(away(&format!(
                "HTTP status {status}, without an answer of etcd's"
            ))),
        }
    }

    /// The member at this place is not asked first any more, unless another thread saw to that.
    fn pass_over(&self, at: usize) {
        let next = at.wrapping_add(1);
        let relaxed = Ordering::Relaxed;
        // Another thread may have done it: that is as good.
        let _ = self.current.compare_exchange(at, next, relaxed, relaxed);
    }

    /// How long one member is waited for.
    pub fn patience(&self) -> Duration {
        self.patience
    }
}

/// The cluster that an answer is of, by its number. etcd computes that from the peers' URLs and
/// `--initial-cluster-token`: one that has lost its data and begun again with the same options has
/// the same.
fn cluster(answer: &Value) -> Option<&str> {
    answer["header"]["cluster_id"].as_str()
}

/// Why a watch from this revision of a cluster on is of no use, if it says so.
fn is_to_list(result: &Value, from: i64, of: &str) -> Option<Watched> {
    if !of.is_empty() && cluster(result).is_some_and(|now| now != of) {
        return Some(Watched::Replaced);
    }
    if result["canceled"] == true {
        return Some(Watched::Compacted);
    }
    let revision = int(&result["header"]["revision"]);
    let is_behind = result["created"] == true && revision.is_some_and(|now| now < from - 1);
    is_behind.then_some(Watched::Behind)
}

/// What must hold, in JSON.
fn comparison(compare: &Compare) -> Value {
    match compare {
        Compare::Value(key, value) => json!({
            "key": encode(key), "target": "VALUE", "result": "EQUAL", "value": encode(value),
        }),
        Compare::Changed(key, revision) => json!({
            "key": encode(key), "target": "MOD", "result": "EQUAL",
            "mod_revision": revision.to_string(),
        }),
        Compare::QuietSince(prefix, revision) => json!({
            "key": encode(prefix), "range_end": encode(&after(prefix)),
            "target": "MOD", "result": "LESS",
            "mod_revision": revision.saturating_add(1).to_string(),
        }),
    }
}

fn change(change: &Change) -> Value {
    match change {
        Change::Put(key, value, lease) => json!({ "request_put": {
            "key": encode(key), "value": encode(value), "lease": lease.to_string(),
        }}),
        Change::Delete(key) => json!({ "request_delete_range": { "key": encode(key) } }),
    }
}

/// What an answer says has gone wrong. Older gateways put it in a field of its own.
fn refusal(answer: &Value) -> Option<Failure> {
    let error = answer.get("error")?;
    let (inner, message) = match error {
        Value::String(text) => (answer, text.as_str()),
        error => (error, error["message"].as_str().unwrap_or_default()),
    };
    let code = int(&inner["code"])
        .or_else(|| int(&inner["grpc_code"]))
        .unwrap_or(2);
    let message = plain(message);
    Some(match code {
        code if TRY_ANOTHER.contains(&code) => Failure::Away(message),
        code => Failure::Refused { code, message },
    })
}

/// What etcd says, for a log.
fn plain(message: &str) -> String {
    let shown = message.chars().filter(|c| !c.is_control());
    shown.take(MESSAGE_CHARS_MAX).collect()
}

/// An entry; one whose value is empty has none in JSON.
fn entry(kv: &Value, prefix: &str) -> Option<Stored> {
    let key = decode(&kv["key"])?;
    let key = String::from_utf8_lossy(&key).into_owned();
    let key = key.strip_prefix(prefix)?.to_owned();
    let value = match &kv["value"] {
        Value::Null => Vec::new(),
        value => decode(value)?,
    };
    Some(Stored {
        key,
        value: Some(value),
    })
}

/// A change, and its revision.
fn changed(event: &Value, prefix: &str) -> Option<(i64, Stored)> {
    let mut stored = entry(&event["kv"], prefix)?;
    // PUT, the default, is left out.
    if event["type"] == "DELETE" {
        stored.value = None;
    }
    Some((int(&event["kv"]["mod_revision"])?, stored))
}

fn has_lapsed(why: &std::io::Error) -> bool {
    let of_ureq = why.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(of_ureq, Some(ureq::Error::Timeout(_))) || why.kind() == std::io::ErrorKind::TimedOut
}

fn odd(what: &str) -> Failure {
    Failure::Away(format!("this is not an answer of etcd's: {what}"))
}

/// The gateway writes 64-bit numbers as strings.
fn int(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_i64(),
    }
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode(value: &Value) -> Option<Vec<u8>> {
    STANDARD.decode(value.as_str()?).ok()
}

/// The first key after all that begin with a prefix, which ends in a slash.
fn after(prefix: &str) -> String {
    let mut end = prefix.trim_end_matches('/').to_owned();
    end.push('0');
    end
}
