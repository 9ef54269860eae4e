//! What is out of order with a key, whether or not something is done about it.

use std::time::Duration;

use super::actions::{beside, doomed, is_deletable, predating};
use super::finding::{CondemnedStays, Finding};
use super::snapshot::{FoundPod, OwnerState, Place};
use super::terms::Now;
use super::view::{Found, Named, View, first_among, found, orphan};
use crate::api::claim::{PROTOCOL, PodReference};
use crate::domain::claim::{MAX_CONDEMNED, MAX_SPARED};

/// Everything that is out of order.
pub(super) fn findings(view: &View<'_>, now: Now) -> Vec<Finding> {
    let mut findings = Vec::new();
    if view.spec.protocol > PROTOCOL {
        let protocol = view.spec.protocol;
        findings.push(Finding::NewerProtocol { protocol });
    }
    findings.extend(unreadable(view));
    let active: Vec<Named<'_>> = found(view.snapshot)
        .filter(|named| works_here(view, named.pod))
        .collect();
    for named in &active {
        findings.extend(of_pod(view, *named, now));
    }
    findings.extend(duplicates(view, &active));
    findings.extend(condemned(view));
    findings.extend(crowded(view));
    findings
}

/// Active for this key: the claim names it by uid, or its identity says so.
fn works_here(view: &View<'_>, pod: &FoundPod) -> bool {
    pod.activity.is_active() && (is_named(view, &pod.uid) || matches!(pod.place, Place::Here { .. }))
}

fn is_named(view: &View<'_>, uid: &str) -> bool {
    view.spec.is_entry(uid) || view.spec.is_condemned(uid) || view.spec.is_spared(uid)
}

fn unreadable(view: &View<'_>) -> impl Iterator<Item = Finding> {
    found(view.snapshot).filter_map(|named| match &named.pod.place {
        Place::Unreadable(why) if named.pod.activity.is_active() => Some(Finding::IdentityUnreadable {
            pod: named.reference(),
            why: why.clone(),
        }),
        _ => None,
    })
}

fn of_pod(view: &View<'_>, named: Named<'_>, now: Now) -> Vec<Finding> {
    let (uid, pod, memory) = (&named.pod.uid, named.reference(), &view.snapshot.memory);
    let moved_on = view.spec.outcomes.iter().any(|record| record.pod_uid == *uid) && !view.spec.is_entry(uid);
    let active_for = memory
        .active_since
        .get(uid)
        .map(|since| now.monotonic.saturating_sub(*since));
    let patience = Duration::from_secs(u64::try_from(view.terms.leftovers.stuck_after_seconds).unwrap_or(u64::MAX));
    let mut findings = Vec::new();
    if moved_on || memory.ended_before.contains(uid) {
        findings.push(Finding::Revived(pod.clone()));
    }
    if memory.given_up.contains(uid) && !view.spec.is_pending(uid) {
        findings.push(Finding::LateArrival(pod.clone()));
    }
    if let Some(active_for) = active_for.filter(|active_for| *active_for > patience) {
        let pod = pod.clone();
        findings.push(Finding::Stuck { pod, active_for });
    }
    if let Some(why) = orphan(named.pod) {
        let pod = pod.clone();
        findings.push(Finding::Orphan { pod, why });
    }
    if let OwnerState::Unread(why) = &named.pod.owner {
        let (pod, why) = (pod.clone(), why.clone());
        findings.push(Finding::OwnerUnread { pod, why });
    }
    if named.pod.place == Place::Elsewhere {
        findings.push(Finding::IdentityChanged(pod));
    }
    findings
}

/// All that are active but the one that stays: the holder, a pending one that has arrived, the one to be adopted, or whichever would be if
/// nobody were condemned.
fn duplicates(view: &View<'_>, active: &[Named<'_>]) -> Vec<Finding> {
    let is = |uid: &str| active.iter().copied().find(|named| named.pod.uid == uid);
    let entry = view.spec.entries().find_map(|entry| is(&entry.uid));
    let stays = entry.or(view.heir).or_else(|| first_among(active.iter().copied()));
    let Some(stays) = stays else { return Vec::new() };
    let others = active.iter().filter(|named| named.pod.uid != stays.pod.uid);
    let duplicate = |named: &Named<'_>| Finding::Duplicate {
        pod: named.reference(),
        beside: stays.reference(),
    };
    others.map(duplicate).collect()
}

fn condemned<'a>(view: &'a View<'_>) -> impl Iterator<Item = Finding> + 'a {
    view.condemned().filter_map(|listed| {
        let Found::There(pod) = listed.found else { return None };
        let why = match pod {
            pod if !pod.activity.is_active() || is_deletable(view, pod) => return None,
            pod if view.spec.is_entry(&pod.uid) || view.spec.is_spared(&pod.uid) => CondemnedStays::HoldsTheClaim,
            pod if !pod.unstarted => CondemnedStays::Started,
            pod if pod.terminating => CondemnedStays::Terminating,
            _ if !view.terms.armed => CondemnedStays::Disarmed,
            _ => CondemnedStays::IdentityChanged,
        };
        let pod = listed.reference.clone();
        Some(Finding::CondemnedStays { pod, why })
    })
}

fn crowded(view: &View<'_>) -> Option<Finding> {
    let spared: Vec<PodReference> = predating(view).into_iter().chain(beside(view)).collect();
    let condemned = doomed(view).into_iter().map(|(pod, _)| pod);
    let spared_room = MAX_SPARED.saturating_sub(view.spec.spared.len());
    let condemned_room = MAX_CONDEMNED.saturating_sub(view.spec.condemned.len());
    let left_out: Vec<_> = spared
        .into_iter()
        .skip(spared_room)
        .chain(condemned.skip(condemned_room))
        .collect();
    (!left_out.is_empty()).then_some(Finding::Crowded(left_out))
}
