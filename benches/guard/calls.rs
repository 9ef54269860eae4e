//! The guard's calls, as the API server's audit log has them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// What is looked after by lists.
const LISTED: [&str; 2] = ["list pods", "list deployerclaims"];

/// Calls over a time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Calls {
    /// How many a minute, by verb and resource.
    pub(crate) per_minute: BTreeMap<String, f64>,
    /// Lists of pods and of claims that were begun; their further pages are calls, too.
    pub(crate) lists: usize,
    /// The most of them within one minute.
    pub(crate) most_lists_in_a_minute: usize,
}

/// Reads on from where it was at.
pub(crate) struct Audit(File);

impl Audit {
    /// From now on.
    pub(crate) fn from_now(log: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(log).with_context(|| format!("opening {}", log.display()))?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// What the guard called since. It is told from the replica, which has its service account, by its token: only a guard
    /// touches Leases.
    pub(crate) fn calls(mut self, minutes: f64) -> anyhow::Result<Calls> {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let guard = events.iter().find(|event| event["objectRef"]["resource"] == "leases");
        let token = token(guard.context("no call for a Lease: the guard does not work")?);
        let mut counts: BTreeMap<String, f64> = BTreeMap::new();
        let mut lists = Vec::new();
        for event in events.iter().filter(|event| self::token(event) == token) {
            let Some(call) = call(event) else { continue };
            if LISTED.contains(&call.as_str()) && !text_of(event, "/requestURI").contains("continue=") {
                lists.push(text_of(event, "/requestReceivedTimestamp").parse::<Timestamp>()?);
            }
            *counts.entry(call).or_default() += 1.0;
        }
        Ok(Calls {
            per_minute: counts
                .into_iter()
                .map(|(call, count)| (call, count / minutes))
                .collect(),
            lists: lists.len(),
            most_lists_in_a_minute: most_in_a_minute(lists),
        })
    }
}

/// As `get pods`; a watch counts when it begins.
fn call(event: &Value) -> Option<String> {
    let verb = text_of(event, "/verb");
    let counts = if verb == "watch" {
        "ResponseStarted"
    } else {
        "ResponseComplete"
    };
    let resource = text_of(event, "/objectRef/resource");
    let part = match text_of(event, "/objectRef/subresource") {
        "" => String::new(),
        part => format!("/{part}"),
    };
    (text_of(event, "/stage") == counts).then(|| format!("{verb} {resource}{part}"))
}

fn token(event: &Value) -> Option<&Value> {
    event.pointer("/user/extra/authentication.kubernetes.io~1credential-id")
}

fn text_of<'a>(event: &'a Value, pointer: &str) -> &'a str {
    event.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn most_in_a_minute(mut at: Vec<Timestamp>) -> usize {
    at.sort_unstable();
    let within = |first: &Timestamp| {
        let after = |other: &&Timestamp| (0.0..60.0).contains(&other.duration_since(*first).as_secs_f64());
        at.iter().filter(after).count()
    };
    at.iter().map(within).max().unwrap_or_default()
}
