//! Which pods are active for which key, event by event.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// A pod in a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A moment at which one more pod became active for a key that had an active pod already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: String,
    /// The resourceVersion of the event that made it so.
    pub resource_version: u64,
    /// All pods active for the key then, the new one last.
    pub pods: Vec<PodRef>,
}

/// When a pod was active, by the resourceVersions of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Of the event that first showed it active.
    pub began: u64,
    /// Of the event that showed it finished or gone; `None`: it is active still.
    pub ended: Option<u64>,
}

impl Life {
    /// Whether it was active when the store wrote that resourceVersion.
    #[must_use]
    pub fn covers(self, resource_version: u64) -> bool {
        self.began < resource_version && self.ended.is_none_or(|ended| ended > resource_version)
    }
}

/// What a [`StoreWatch`](crate::StoreWatch) saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many events of pods there were, pods without a key included.
    pub events: u64,
    /// For each key, the most pods ever active at once.
    pub max_active: BTreeMap<String, usize>,
    /// For each key, the pods that were ever active for it, in the order in which they first were.
    pub pods: BTreeMap<String, Vec<PodRef>>,
    /// When each pod that was ever active for a key was so, by uid. One that is active again goes on with its life.
    pub lives: BTreeMap<String, Life>,
    /// The moments at which it was more than one.
    pub violations: Vec<Violation>,
}

impl Report {
    /// The most pods ever active at once for any key.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max_active.values().copied().max().unwrap_or_default()
    }
}

/// The active pods of each key and what became of them.
#[derive(Debug, Default)]
pub(crate) struct ActivePods {
    /// The key of each active pod, by uid.
    keys: HashMap<String, String>,
    /// The active pods of each key, in the order in which they became so.
    active: HashMap<String, Vec<PodRef>>,
    pub(crate) report: Report,
}

impl ActivePods {
    /// A pod was added or changed, and `key` is what it works for now.
    pub(crate) fn changed(&mut self, pod: &Value, key: Option<String>, resource_version: u64) {
        let reference = pod_ref(pod);
        let key = key.filter(|_| is_active(pod));
        if self.keys.get(&reference.uid) == key.as_ref() {
            return;
        }
        self.gone(pod, resource_version);
        let Some(key) = key else { return };
        let life = Life {
            began: resource_version,
            ended: None,
        };
        self.report.lives.entry(reference.uid.clone()).or_insert(life).ended = None;
        self.keys.insert(reference.uid.clone(), key.clone());
        let active = self.active.entry(key.clone()).or_default();
        active.push(reference.clone());
        let most = self.report.max_active.entry(key.clone()).or_default();
        *most = active.len().max(*most);
        let seen = self.report.pods.entry(key.clone()).or_default();
        if active.len() > 1 {
            self.report.violations.push(Violation {
                key,
                resource_version,
                pods: active.clone(),
            });
        }
        if !seen.contains(&reference) {
            seen.push(reference);
        }
    }

    /// A pod is no longer in the store.
    pub(crate) fn gone(&mut self, pod: &Value, resource_version: u64) {
        let PodRef { uid, .. } = pod_ref(pod);
        if let Some(active) = self.keys.remove(&uid).and_then(|key| self.active.get_mut(&key)) {
            active.retain(|other| other.uid != uid);
            if let Some(life) = self.report.lives.get_mut(&uid) {
                life.ended = Some(resource_version);
            }
        }
    }
}

/// The project's definition: it exists, and its phase is neither Succeeded nor Failed.
fn is_active(pod: &Value) -> bool {
    !matches!(
        pod.pointer("/status/phase").and_then(Value::as_str),
        Some("Succeeded" | "Failed")
    )
}

fn pod_ref(pod: &Value) -> PodRef {
    let field = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    PodRef {
        namespace: field("namespace"),
        name: field("name"),
        uid: field("uid"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, phase: &str) -> Value {
        json!({"metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")}, "status": {"phase": phase}})
    }

    fn seen(events: &[(&str, &str)]) -> Report {
        let mut pods = ActivePods::default();
        for (version, (name, phase)) in (1..).zip(events) {
            match *phase {
                "gone" => pods.gone(&pod(name, "Running"), version),
                phase => pods.changed(&pod(name, phase), Some("key".to_owned()), version),
            }
        }
        pods.report
    }

    #[test]
    fn one_after_the_other_is_no_violation() {
        let report = seen(&[
            ("a", "Pending"),
            ("a", "Running"),
            ("a", "Succeeded"),
            ("b", "Pending"),
            ("b", "gone"),
        ]);
        assert_eq!(
            (report.max(), report.violations.len(), report.pods["key"].len()),
            (1, 0, 2)
        );
    }

    #[test]
    fn two_at_once_are_one_violation_that_names_both() {
        let report = seen(&[
            ("a", "Pending"),
            ("b", "Pending"),
            ("b", "Running"),
            ("a", "gone"),
            ("b", "Failed"),
        ]);
        assert_eq!((report.max(), report.violations.len()), (2, 1));
        assert_eq!(report.violations[0].resource_version, 2);
        assert_eq!(
            report.violations[0]
                .pods
                .iter()
                .map(|pod| &*pod.name)
                .collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn a_finished_pod_that_runs_again_counts_again() {
        let report = seen(&[("a", "Succeeded"), ("b", "Running"), ("a", "Running")]);
        assert_eq!((report.max(), report.violations.len()), (2, 1));
    }

    #[test]
    fn a_pod_lives_from_its_first_event_until_it_finished_or_is_gone() {
        let report = seen(&[
            ("a", "Pending"),
            ("b", "Running"),
            ("a", "Succeeded"),
            ("a", "gone"),
            ("b", "gone"),
            ("c", "Pending"),
        ]);
        let covered = |name: &str| {
            let life = report.lives[&format!("uid-{name}")];
            (0..=7).filter(|version| life.covers(*version)).collect::<Vec<_>>()
        };
        assert_eq!(covered("a"), [2]);
        assert_eq!(covered("b"), [3, 4]);
        assert_eq!(covered("c"), [7]);
    }

    #[test]
    fn a_pod_that_changes_its_key_leaves_the_old_one() {
        let mut pods = ActivePods::default();
        pods.changed(&pod("a", "Running"), Some("one".to_owned()), 1);
        pods.changed(&pod("a", "Running"), Some("two".to_owned()), 2);
        pods.changed(&pod("b", "Running"), Some("one".to_owned()), 3);
        pods.changed(&pod("c", "Running"), None, 4);
        assert_eq!(pods.report.max(), 1);
    }
}
