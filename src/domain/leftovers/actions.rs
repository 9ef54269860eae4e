//! What is to be done about a key, each action judged on the snapshot alone.

use std::time::Duration;

use super::action::{Action, Change, Condemnation};
use super::snapshot::{FoundClaim, FoundPod, Place};
use super::terms::Now;
use super::view::{Found, Listed, Named, View, found, orphan};
use crate::api::claim::{DeployerClaimSpec, PROTOCOL, PodReference};
use crate::api::policy::{LeftoverAction, Wake};
use crate::domain::claim::{MAX_CONDEMNED, MAX_SPARED, Standing};

/// Beyond twice the time that claims are kept and this, a guard that was restarted believes the timestamps of a claim, which other
/// machines wrote.
const CLOCKS_DIFFER: Duration = Duration::from_hours(24);

/// Everything that is to be done, most urgent first.
pub(super) fn actions(view: &View<'_>, now: Now) -> Vec<Action> {
    if view.spec.protocol > PROTOCOL {
        return Vec::new();
    }
    let mut actions: Vec<_> = confirm(view, now).into_iter().collect();
    if !view.terms.leads {
        return actions;
    }
    let predating = predating(view);
    match adopt(view, &predating, now) {
        Some(adopt) => actions.push(adopt),
        None => actions.extend([spare(view, &predating), free(view, now)].into_iter().flatten()),
    }
    actions.extend(delete(view));
    actions.extend(condemn(view));
    actions.extend(spare(view, &beside(view)));
    actions.extend(forget(view, now));
    actions.extend(wake(view));
    actions.extend(remove(view, now).then_some(Action::RemoveClaim));
    actions
}

fn write(change: Change, next: Option<DeployerClaimSpec>) -> Option<Action> {
    let next = Box::new(next?);
    Some(Action::WriteClaim { change, next })
}

/// As an observer does: the same transition, on the same evidence.
fn confirm(view: &View<'_>, now: Now) -> Option<Action> {
    view.spec.pending.iter().find_map(|entry| {
        let activity = view.snapshot.sighting(&entry.name)?.of(&entry.uid)?;
        let next = view.spec.confirmed(&entry.uid, activity, now.wall);
        let pod = entry.clone();
        write(Change::Confirmed { pod, activity }, next)
    })
}

/// With it those are spared that were there before the policy: a key that is met for the first time takes one write.
fn adopt(view: &View<'_>, predating: &[PodReference], now: Now) -> Option<Action> {
    let (pod, ended) = (view.heir?.entry()?, view.ended());
    let room = room_for(view, predating);
    let (spec, spared) = match view.spec.sparing(room) {
        Some(sparing) => (sparing, room.to_vec()),
        None => (view.spec.clone(), Vec::new()),
    };
    let next = spec.adopted(pod.clone(), &ended, now.wall);
    write(Change::Adopted { pod, ended, spared }, next)
}

/// An entry that is found finished and still pending is confirmed instead, by whoever meets it first.
fn free(view: &View<'_>, now: Now) -> Option<Action> {
    let ended = view.ended();
    let next = view.spec.freed(&ended, now.wall);
    write(Change::Freed(ended), next)
}

/// Pods that were there before the policy, and that the claim does not spare yet. The holder is among them where the claim was made under
/// another policy of this name.
pub(super) fn predating(view: &View<'_>) -> Vec<PodReference> {
    let foreign = view.spec.policy.uid != view.terms.policy.uid;
    let held = view.entries.iter().filter_map(|(entry, standing)| {
        let pod = view.snapshot.pods.get(&entry.name)?.as_ref()?;
        let active = *standing == Some(Standing::Active) && !view.spec.is_pending(&entry.uid);
        let name = entry.name.as_str();
        (foreign && active).then_some(Named { name, pod })
    });
    let there = view.strangers.iter().copied().chain(held);
    let there = there.filter(|named| view.predates(named.pod));
    unspared(view, there)
}

/// Pods beside the one that has the key that are only to be reported: the policy says so, or they have started.
pub(super) fn beside(view: &View<'_>) -> Vec<PodReference> {
    let heir = view.heir.map(|heir| heir.pod.uid.as_str());
    let others = view.strangers.iter().copied().filter(|named| {
        let doomed = view.is_doomed_orphan(*named) || view.is_doomed_duplicate(*named);
        let reported = !named.pod.unstarted || view.is_beside(*named);
        Some(named.pod.uid.as_str()) != heir && !doomed && reported && !view.predates(named.pod)
    });
    unspared(view, others)
}

fn unspared<'a>(view: &View<'_>, pods: impl Iterator<Item = Named<'a>>) -> Vec<PodReference> {
    pods.filter(|named| !view.spec.is_spared(&named.pod.uid))
        .map(Named::reference)
        .collect()
}

/// As many of them as the claim has room to spare.
fn room_for<'a>(view: &View<'_>, pods: &'a [PodReference]) -> &'a [PodReference] {
    let room = MAX_SPARED.saturating_sub(view.spec.spared.len());
    &pods[..pods.len().min(room)]
}

fn spare(view: &View<'_>, pods: &[PodReference]) -> Option<Action> {
    let pods = room_for(view, pods);
    write(Change::Spared(pods.to_vec()), view.spec.sparing(pods))
}

/// Strangers that are to be condemned, and a holder that is an orphan, with the reason.
pub(super) fn doomed(view: &View<'_>) -> Vec<(PodReference, Condemnation)> {
    let reason = |named: Named<'_>| match orphan(named.pod) {
        Some(why) if view.is_doomed_orphan(named) => Some(Condemnation::Orphan(why)),
        _ => view.is_doomed_duplicate(named).then_some(Condemnation::Duplicate),
    };
    let heir = view.heir.map(|heir| heir.pod.uid.as_str());
    let strangers = view.strangers.iter().copied();
    let strangers = strangers.filter(|named| Some(named.pod.uid.as_str()) != heir);
    let strangers = strangers.filter_map(|named| Some((named.reference(), reason(named)?)));
    orphaned_holder(view).into_iter().chain(strangers).collect()
}

fn orphaned_holder(view: &View<'_>) -> Option<(PodReference, Condemnation)> {
    let holder = view.spec.holder.as_ref()?;
    let pod = view.snapshot.pod(&holder.name, &holder.uid)?;
    let deleted = view.terms.leftovers.orphans == LeftoverAction::DeleteUnstarted;
    let named = Named {
        name: &holder.name,
        pod,
    };
    let doomed = deleted && view.may_be_condemned(pod) && !view.spec.is_condemned(&pod.uid);
    Some((named.reference(), Condemnation::Orphan(orphan(pod).filter(|_| doomed)?)))
}

fn condemn(view: &View<'_>) -> Option<Action> {
    let mut doomed = doomed(view);
    doomed.truncate(MAX_CONDEMNED.saturating_sub(view.spec.condemned.len()));
    let pods: Vec<_> = doomed.iter().map(|(pod, _)| pod.clone()).collect();
    write(Change::Condemned(doomed), view.spec.condemning(&pods))
}

/// The pod that a claim condemns may be deleted as it was read.
pub(super) fn is_deletable(view: &View<'_>, pod: &FoundPod) -> bool {
    view.terms.armed
        && pod.activity.is_active()
        && pod.unstarted
        && !pod.terminating
        && matches!(pod.place, Place::Here { .. })
        && !view.spec.is_entry(&pod.uid)
        && !view.spec.is_spared(&pod.uid)
}

fn delete(view: &View<'_>) -> Vec<Action> {
    let deletable = |listed: Listed<'_>| match listed.found {
        Found::There(pod) if is_deletable(view, pod) => Some(Action::DeletePod {
            pod: listed.reference.clone(),
            resource_version: pod.resource_version.clone(),
        }),
        _ => None,
    };
    view.condemned().filter_map(deletable).collect()
}

/// A condemned pod stays in the claim until it is gone: a delete that somebody planned may still be on its way. A spared one that has
/// finished leaves its outcome.
fn forget(view: &View<'_>, now: Now) -> Option<Action> {
    let gone = view.condemned().filter(|listed| matches!(listed.found, Found::Gone));
    let over = view.spared().filter(|listed| match listed.found {
        Found::Unknown => false,
        Found::Gone => true,
        Found::There(pod) => !pod.activity.is_active(),
    });
    let pods: Vec<PodReference> = gone.chain(over).map(|listed| listed.reference.clone()).collect();
    let ended = found(view.snapshot).filter(|named| {
        let recorded = view.spec.outcomes.iter().any(|record| record.pod_uid == named.pod.uid);
        view.spec.is_spared(&named.pod.uid) && !recorded
    });
    let ended = ended.filter_map(|named| Some((named.entry()?, named.pod.activity.outcome()?)));
    let next = view.spec.forgetting(&pods, &ended.collect::<Vec<_>>(), now.wall);
    write(Change::Forgotten(pods), next)
}

/// Nobody has the key, nobody keeps it, and nobody stands beside it.
fn is_free(view: &View<'_>) -> bool {
    let keeps = |listed: Listed<'_>| match listed.found {
        Found::Unknown => true,
        Found::Gone => false,
        Found::There(pod) => pod.activity.is_active(),
    };
    view.entries.is_empty() && view.strangers.is_empty() && !view.condemned().chain(view.spared()).any(keeps)
}

/// An owner that was taken off the list is woken whoever has the key by now: it is listed again if it is refused.
fn wake(view: &View<'_>) -> Vec<Action> {
    if !view.terms.armed || view.terms.wake != Wake::OnRelease {
        return Vec::new();
    }
    let mut actions: Vec<_> = view.snapshot.memory.to_wake.iter().cloned().map(Action::Wake).collect();
    let waiting = view.snapshot.claim.iter().flat_map(|claim| &claim.waiting);
    // max_by_key gives the last of equals, and the list has the first to be woken in front.
    let newest = waiting.rev().max_by_key(|owner| owner.ordinal);
    actions.extend(newest.filter(|_| is_free(view)).cloned().map(Action::Unlist));
    actions
}

/// Whether the claim is free, and nobody has used it for long. It is no decision about exclusion: a free claim without marks keeps nobody
/// out, and what it remembers (G2, G3) is kept for as long as the policy says.
fn remove(view: &View<'_>, now: Now) -> bool {
    let Some(claim) = &view.snapshot.claim else {
        return false;
    };
    let spec = &claim.spec;
    if claim.terminating {
        return false;
    }
    let empty = spec.condemned.is_empty() && spec.spared.is_empty() && claim.waiting.is_empty();
    let keep = Duration::from_secs(u64::try_from(view.terms.leftovers.keep_claims_seconds).unwrap_or(u64::MAX));
    let unchanged = view.snapshot.memory.unchanged_since;
    let seen_unused = unchanged.is_some_and(|since| now.monotonic.saturating_sub(since) > keep);
    let unused = seen_unused || is_long_unused(claim, keep, now);
    empty && view.snapshot.memory.to_wake.is_empty() && is_free(view) && unused
}

/// By timestamps in the claim, so that restarts do not keep it for ever.
fn is_long_unused(claim: &FoundClaim, keep: Duration, now: Now) -> bool {
    let outcomes = claim.spec.outcomes.iter().map(|record| record.observed_at);
    let used = claim.created.map(|created| outcomes.fold(created, Ord::max));
    let age = used.and_then(|used| Duration::try_from(now.wall.duration_since(used)).ok());
    age.is_some_and(|age| age > keep.saturating_mul(2).saturating_add(CLOCKS_DIFFER))
}
