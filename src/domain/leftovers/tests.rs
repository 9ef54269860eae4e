//! Plans as tables: what was read, and what follows.

mod actions;
mod findings;
mod properties;
mod reading;
mod upkeep;

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::api::claim::{ClaimEntry, DeployerClaimSpec, PROTOCOL, PodReference, PolicyReference};
use crate::api::policy::{LeftoverAction, Leftovers, Wake};
use crate::domain::sighting::Activity;

const NOW: Now = Now {
    monotonic: Duration::from_secs(10_000_000),
    wall: Timestamp::UNIX_EPOCH,
};

/// Every guard rail is open: it leads, is armed, and deletes whatever may be deleted.
fn terms() -> Terms {
    Terms {
        policy: PolicyReference {
            name: "policy".into(),
            uid: "policy-uid".into(),
            generation: Some(3),
            ..PolicyReference::default()
        },
        armed: true,
        leads: true,
        first_stock: false,
        policy_created: Some(at(-1000)),
        leftovers: Leftovers {
            duplicates: LeftoverAction::DeleteUnstarted,
            orphans: LeftoverAction::DeleteUnstarted,
            ..Leftovers::default()
        },
        wake: Wake::OnRelease,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An active pod of this key that has not started. Its uid is `u` and its name.
fn pod(name: &str, change: impl FnOnce(&mut FoundPod)) -> (String, Option<FoundPod>) {
    let mut pod = FoundPod {
        uid: format!("u{name}"),
        activity: Activity::Active,
        unstarted: true,
        terminating: false,
        resource_version: format!("rv-{name}"),
        created: Some(at(0)),
        place: here(None, None),
        owner: OwnerState::Fine,
    };
    change(&mut pod);
    (name.to_owned(), Some(pod))
}

fn as_is(_: &mut FoundPod) {}

fn started(pod: &mut FoundPod) {
    pod.unstarted = false;
}

fn finished(pod: &mut FoundPod) {
    pod.activity = Activity::Succeeded;
}

fn orphaned(pod: &mut FoundPod) {
    pod.owner = OwnerState::Gone;
}

fn elsewhere(pod: &mut FoundPod) {
    pod.place = Place::Elsewhere;
}

fn here(ordinal: Option<i64>, config_uid: Option<&str>) -> Place {
    Place::Here {
        generation: ordinal.map(|ordinal| format!("g{ordinal}")),
        ordinal,
        config_uid: config_uid.map(Into::into),
    }
}

fn absent(name: &str) -> (String, Option<FoundPod>) {
    (name.to_owned(), None)
}

fn reference(name: &str) -> PodReference {
    PodReference {
        name: name.into(),
        uid: format!("u{name}"),
        ..PodReference::default()
    }
}

fn entry(name: &str) -> ClaimEntry {
    ClaimEntry {
        name: name.into(),
        uid: format!("u{name}"),
        ..ClaimEntry::default()
    }
}

fn free() -> DeployerClaimSpec {
    DeployerClaimSpec {
        protocol: PROTOCOL,
        policy: PolicyReference {
            generation: None,
            ..terms().policy
        },
        config: "cfg".into(),
        ..DeployerClaimSpec::default()
    }
}

fn held(name: &str) -> DeployerClaimSpec {
    DeployerClaimSpec {
        holder: Some(entry(name)),
        ..free()
    }
}

fn pending(name: &str) -> DeployerClaimSpec {
    DeployerClaimSpec {
        pending: vec![entry(name)],
        ..held(name)
    }
}

fn condemning(claim: DeployerClaimSpec, name: &str) -> DeployerClaimSpec {
    DeployerClaimSpec {
        condemned: vec![reference(name)],
        ..claim
    }
}

fn sparing(claim: DeployerClaimSpec, name: &str) -> DeployerClaimSpec {
    DeployerClaimSpec {
        spared: vec![reference(name)],
        ..claim
    }
}

/// What was read. Every name that the claim names and that is not said is absent.
fn read(
    claim: impl Into<Option<DeployerClaimSpec>>,
    pods: impl IntoIterator<Item = (String, Option<FoundPod>)>,
) -> Snapshot {
    let claim = claim.into();
    let named = claim.iter().flat_map(DeployerClaimSpec::names).map(absent);
    Snapshot {
        config: "cfg".into(),
        pods: named.chain(pods).collect(),
        claim: claim.map(|spec| FoundClaim {
            spec,
            created: Some(at(0)),
            ..FoundClaim::default()
        }),
        ..Snapshot::default()
    }
}

/// Actions as words, most urgent first.
fn words(snapshot: &Snapshot, terms: &Terms) -> Vec<String> {
    plan(snapshot, terms, NOW).actions.iter().map(word).collect()
}

fn word(action: &Action) -> String {
    let names = |pods: &[PodReference]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>().join(" ");
    match action {
        Action::WriteClaim { change, .. } => match change {
            Change::Confirmed { pod, .. } => format!("confirm {}", pod.name),
            Change::Freed(ended) => {
                let ended: Vec<_> = ended
                    .iter()
                    .map(|(pod, end)| format!("free {} {end:?}", pod.name))
                    .collect();
                ended.join(" ")
            }
            Change::Adopted { pod, spared, .. } if spared.is_empty() => format!("adopt {}", pod.name),
            Change::Adopted { pod, spared, .. } => format!("adopt {}, spare {}", pod.name, names(spared)),
            Change::Spared(pods) => format!("spare {}", names(pods)),
            Change::Condemned(pods) => {
                let pods: Vec<_> = pods.iter().map(|(pod, _)| pod.clone()).collect();
                format!("condemn {}", names(&pods))
            }
            Change::Forgotten(pods) => format!("forget {}", names(pods)),
        },
        Action::DeletePod { pod, .. } => format!("delete {}", pod.name),
        Action::Wake(owner) => format!("wake {}", owner.name),
        Action::Unlist(owner) => format!("unlist {}", owner.name),
        Action::RemoveClaim => "remove".into(),
    }
}

/// The claim after the first action that writes it.
fn written(snapshot: &Snapshot, terms: &Terms) -> DeployerClaimSpec {
    let written = plan(snapshot, terms, NOW)
        .actions
        .into_iter()
        .find_map(|action| match action {
            Action::WriteClaim { next, .. } => Some(*next),
            _ => None,
        });
    written.expect("the claim is written")
}
