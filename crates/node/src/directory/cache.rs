//! The last view, kept in a file for when etcd is away: entries as etcd has them, so that they are
//! validated by the same code when they are read.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::entry::Key;
use super::view::{Stored, View};
use crate::limits::ANSWER_BYTES_MAX;

/// Version of the file's format.
const FORMAT: u32 = 1;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: u32,
    cluster: String,
    host: String,
    /// Keys and values.
    entries: Vec<(String, String)>,
    /// Nodes whose lease had expired.
    suspect: Vec<u32>,
}

/// Reads the view that a host kept of a cluster; `None` if it has kept none.
///
/// # Errors
/// Why there is none that can be used.
pub fn load(path: &Path, cluster: &str, host: &str) -> Result<Option<View>, String> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let file = match File::open(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        outcome => outcome.map_err(|why| at(&why))?,
    };
    let mut text = Vec::new();
    let mut limited = file.take(ANSWER_BYTES_MAX);
    limited.read_to_end(&mut text).map_err(|why| at(&why))?;
    let kept: Kept = serde_json::from_slice(&text).map_err(|why| at(&why))?;
    if kept.format != FORMAT {
        return Err(at(&format!(
            "format {}, where this release has {FORMAT}",
            kept.format
        )));
    }
    if kept.cluster != cluster || kept.host != host {
        return Err(at(&format!(
            "of host {:?} in cluster {:?}",
            kept.host, kept.cluster
        )));
    }
    let entries = kept.entries.into_iter().map(|(key, value)| Stored {
        key,
        value: Some(value.into_bytes()),
    });
    let entries: Vec<Stored> = entries.collect();
    let (mut view, odd) = View::default().relisted(&entries);
    if let Some(why) = odd.first() {
        return Err(at(why));
    }
    for id in kept.suspect {
        if let Some(presence) = view.nodes.get_mut(&id) {
            presence.suspect = true;
        }
    }
    Ok(Some(view))
}

/// Writes a view. A reader finds the last one or this, whole, whatever ends the writer.
///
/// # Errors
/// The system's, in words.
pub fn save(path: &Path, cluster: &str, host: &str, view: &View) -> Result<(), String> {
    let kept = Kept {
        format: FORMAT,
        cluster: cluster.to_owned(),
        host: host.to_owned(),
        entries: entries(view),
        suspect: suspects(view),
    };
    let text = serde_json::to_vec(&kept).map_err(|why| why.to_string())?;
    let written = write(path, &text);
    written.map_err(|why| format!("{}: {why}", path.display()))
}

fn suspects(view: &View) -> Vec<u32> {
    let suspects = view.nodes.iter().filter(|(_, presence)| presence.suspect);
    suspects.map(|(id, _)| *id).collect()
}

fn entries(view: &View) -> Vec<(String, String)> {
    let ids = view.ids.iter();
    let ids = ids.map(|(host, id)| (Key::Id(host.clone()), id.to_string()));
    let names = view.names.iter();
    let names = names.map(|(name, id)| (Key::Name(name.clone()), id.to_string()));
    let nodes = view.nodes.iter();
    let nodes = nodes.map(|(id, presence)| (Key::Node(*id), presence.record.text()));
    let tenants = view.tenants.iter();
    let tenants = tenants.map(|(name, record)| (Key::Tenant(name.clone()), record.text()));
    let all = ids.chain(names).chain(nodes).chain(tenants);
    all.map(|(key, value)| (key.text(), value)).collect()
}

fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        // Whatever the umask is: who can write there can put another file in the cache's place.
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(dir)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_kept_and_validated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/view.json");
        assert_eq!(load(&path, "lab", "a"), Ok(None));
        let record = r#"{"addresses":["10.0.0.1"],"port":1,"version":"1","protocol":11,
            "tenants":[],"connections":5}"#;
        let stored = |key: &str, value: &str| Stored {
            key: key.to_owned(),
            value: Some(value.as_bytes().to_vec()),
        };
        let entries = [
            stored("ids/a", "8"),
            stored("ids/b", "12"),
            stored("nodes/8", record),
            stored("nodes/12", record),
            stored("names/n", "8"),
            stored("tenants/t", r#"{"nodes":[8]}"#),
        ];
        let (mut view, _) = View::default().relisted(&entries);
        view.nodes.get_mut(&12).unwrap().suspect = true;
        save(&path, "lab", "a", &view).unwrap();
        assert_eq!(load(&path, "lab", "a"), Ok(Some(view)));
        assert!(load(&path, "other", "a").is_err() && load(&path, "lab", "b").is_err());
        let good = std::fs::read_to_string(&path).unwrap();
        for (old, new) in [
            ("\"format\":1", "\"format\":2"),
            ("\"8\"", "\"252\""),
            ("10.0.0.1", "0.0.0.0"),
            ("tenants/t", "segments/t"),
            ("]}", "]"),
        ] {
            std::fs::write(&path, good.replace(old, new)).unwrap();
            let outcome = load(&path, "lab", "a");
            assert!(outcome.is_err(), "{new}: {outcome:?}");
        }
    }
}
