use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations, WebhookClientConfig};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use tokio::time::advance;

use super::*;

const URL: &str = "https://127.0.0.1:1/admit/app/u/1";
const SAYS_SO: &str = "https://127.0.0.1:1/admit/app/u/1/stocked";

fn version(generation: i64) -> PolicyVersion {
    PolicyVersion {
        name: "app".into(),
        uid: "u".into(),
        generation,
    }
}

fn entry(url: &str) -> ValidatingWebhook {
    ValidatingWebhook {
        name: "app.policies.deployer-guard.io".into(),
        client_config: WebhookClientConfig {
            url: Some(url.into()),
            ca_bundle: Some(ByteString(b"ca".to_vec())),
            service: None,
        },
        failure_policy: Some("Fail".into()),
        match_policy: Some("Equivalent".into()),
        timeout_seconds: Some(10),
        rules: Some(vec![RuleWithOperations {
            resources: Some(vec!["pods".into()]),
            ..RuleWithOperations::default()
        }]),
        ..ValidatingWebhook::default()
    }
}

fn stored(uid: &str, generation: i64, entries: &[ValidatingWebhook]) -> ValidatingWebhookConfiguration {
    ValidatingWebhookConfiguration {
        metadata: ObjectMeta {
            uid: Some(uid.into()),
            generation: Some(generation),
            ..ObjectMeta::default()
        },
        webhooks: Some(entries.to_vec()),
    }
}

/// What one guard knows of a configuration, and the configuration. Time passes with each step.
struct Guard {
    board: Board,
    in_force: InForce,
    stored: ValidatingWebhookConfiguration,
    leads: bool,
}

impl Guard {
    fn over(stored: ValidatingWebhookConfiguration) -> Self {
        let mut guard = Self {
            board: Board::default(),
            in_force: InForce::default(),
            stored,
            leads: true,
        };
        guard.want(1, URL);
        guard
    }

    fn want(&mut self, generation: i64, url: &str) {
        self.in_force.want(vec![Forms::new(version(generation), entry(url))]);
    }

    async fn look(&mut self) {
        advance(Duration::from_secs(1)).await;
        self.in_force.look(&self.board, Some(&self.stored), self.leads);
    }

    fn target(&self) -> String {
        let target = self.in_force.targets(&self.board).remove(0);
        target.client_config.url.unwrap_or_default()
    }

    /// Writes what is to stand, as a round does.
    async fn put_right(&mut self) {
        self.look().await;
        let targets = self.in_force.targets(&self.board);
        if self.stored.webhooks.as_deref() == Some(&*targets) {
            return;
        }
        let generation = self.stored.metadata.generation.unwrap() + 1;
        let written = stored(self.stored.metadata.uid.as_deref().unwrap(), generation, &targets);
        self.in_force.wrote(&self.board, &self.stored, &written);
        self.stored = written;
        self.look().await;
    }

    /// Somebody else makes these the entries.
    fn edit(&mut self, entries: &[ValidatingWebhook]) {
        let generation = self.stored.metadata.generation.unwrap() + 1;
        self.stored = stored(self.stored.metadata.uid.as_deref().unwrap(), generation, entries);
    }

    fn since(&self) -> Option<Instant> {
        self.board.read(&version(1)).in_force_since
    }

    fn take_stock(&self) {
        assert!(self.board.note_stock(&version(1), self.since().unwrap()));
    }

    fn url(&self) -> &str {
        let entries = self.stored.webhooks.as_deref().unwrap();
        entries[0].client_config.url.as_deref().unwrap()
    }
}

/// One whose entry is in force, and says that this guard has taken stock.
async fn stocked_guard() -> Guard {
    let mut guard = Guard::over(stored("c", 1, &[]));
    guard.put_right().await;
    assert_eq!(guard.url(), URL);
    let since = guard.since();
    guard.take_stock();
    guard.put_right().await;
    assert_eq!(guard.url(), SAYS_SO);
    assert_eq!(guard.since(), since, "its own write is no break");
    assert!(guard.board.read(&version(1)).stocked);
    guard
}

#[tokio::test(start_paused = true)]
async fn the_word_comes_with_the_stock_and_stays() {
    let mut guard = stocked_guard().await;
    for _ in 0..3 {
        guard.put_right().await;
        assert_eq!(guard.url(), SAYS_SO);
    }
    let mut restarted = Guard::over(guard.stored.clone());
    restarted.put_right().await;
    assert_eq!(restarted.url(), SAYS_SO, "no memory is needed to keep it");
    assert!(restarted.board.read(&version(1)).stocked);
}

#[tokio::test(start_paused = true)]
async fn whatever_differs_in_an_entry_takes_the_word_away_even_from_a_guard_that_was_just_started() {
    type Edit = fn(&mut ValidatingWebhook);
    let edits: [(&str, Edit); 12] = [
        ("a condition", |entry| {
            entry.match_conditions = Some(vec![MatchCondition {
                name: "never".into(),
                expression: "false".into(),
            }]);
        }),
        ("the object selector", |entry| {
            entry.object_selector = Some(LabelSelector {
                match_labels: Some([("a".into(), "b".into())].into()),
                match_expressions: None,
            });
        }),
        ("the namespace selector", |entry| {
            entry.namespace_selector = Some(LabelSelector {
                match_labels: Some([("a".into(), "b".into())].into()),
                match_expressions: None,
            });
        }),
        ("the rules", |entry| entry.rules = None),
        ("the failure policy", |entry| {
            entry.failure_policy = Some("Ignore".into());
        }),
        ("the match policy", |entry| entry.match_policy = Some("Exact".into())),
        ("the timeout", |entry| entry.timeout_seconds = Some(1)),
        ("the CA bundle", |entry| {
            entry.client_config.ca_bundle = Some(ByteString(b"other".to_vec()));
        }),
        ("no CA bundle", |entry| entry.client_config.ca_bundle = None),
        ("the address", |entry| {
            entry.client_config.url = Some(SAYS_SO.replace(":1/", ":2/"));
        }),
        ("the generation", |entry| {
            entry.client_config.url = Some(SAYS_SO.replace("/1/", "/2/"));
        }),
        ("the policy's uid", |entry| {
            entry.client_config.url = Some(SAYS_SO.replace("/u/", "/other/"));
        }),
    ];
    for (what, edit) in edits {
        let mut edited = entry(SAYS_SO);
        edit(&mut edited);
        let mut guard = stocked_guard().await;
        guard.edit(std::slice::from_ref(&edited));
        guard.look().await;
        assert_eq!((guard.target().as_str(), guard.since()), (URL, None), "{what}");
        guard.put_right().await;
        assert_eq!(guard.url(), URL, "{what}: put right");
        assert!(
            guard.since().is_some() && !guard.board.read(&version(1)).stocked,
            "{what}"
        );

        let mut started = Guard::over(stored("c", 9, &[edited]));
        started.look().await;
        assert_eq!(started.target(), URL, "{what}: just started");
    }
    let mut empty = Guard::over(stored("c", 9, &[]));
    empty.look().await;
    assert_eq!(empty.target(), URL, "missing");
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_writes_in_another_way_is_no_difference() {
    let mut guard = stocked_guard().await;
    let mut other = entry(SAYS_SO);
    other.match_conditions = Some(Vec::new());
    guard.stored.webhooks = Some(vec![other]);
    guard.look().await;
    assert_eq!(guard.target(), SAYS_SO);
}

#[tokio::test(start_paused = true)]
async fn another_generation_of_the_policy_has_no_stock() {
    let mut guard = stocked_guard().await;
    let next = "https://127.0.0.1:1/admit/app/u/2";
    guard.want(2, next);
    guard.look().await;
    assert_eq!(guard.target(), next);
    guard.put_right().await;
    assert_eq!(guard.url(), next);
}

/// A watch missed it, or this guard was cut off: the entry stands again as if nothing had been.
#[tokio::test(start_paused = true)]
async fn a_gap_in_generations_begins_time_in_force_anew_and_the_stock_of_before_is_worth_nothing() {
    let mut guard = Guard::over(stored("c", 1, &[]));
    guard.put_right().await;
    let before = guard.since();
    guard.take_stock();
    guard.edit(&[]);
    guard.edit(&[entry(URL)]);
    guard.look().await;
    assert_eq!(guard.target(), URL);
    assert!(guard.since().is_some() && guard.since() != before);
    assert!(!guard.board.note_stock(&version(1), before.unwrap()));
    guard.put_right().await;
    assert_eq!(guard.url(), URL);
    guard.take_stock();
    guard.put_right().await;
    assert_eq!(guard.url(), SAYS_SO);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_was_made_anew_has_no_stock_whatever_it_says() {
    let mut guard = stocked_guard().await;
    guard.stored = stored("another", 1, &[entry(SAYS_SO)]);
    guard.put_right().await;
    assert_eq!(guard.url(), URL);

    let mut guard = stocked_guard().await;
    guard.in_force.look(&guard.board, None, true);
    assert_eq!(guard.since(), None);
    guard.stored = stored("another", 1, &[entry(SAYS_SO)]);
    guard.put_right().await;
    assert_eq!(guard.url(), URL, "one that was away in between");
}

/// Somebody takes an entry away and puts it back, word and all.
#[tokio::test(start_paused = true)]
async fn a_leader_does_not_believe_a_word_that_somebody_else_wrote() {
    let mut guard = stocked_guard().await;
    guard.edit(&[entry(SAYS_SO)]);
    guard.put_right().await;
    assert_eq!(guard.url(), URL, "by a gap in generations");

    let mut guard = stocked_guard().await;
    let without = stored("c", 3, &[]);
    guard.in_force.heard(&guard.board, Some(&without));
    assert_eq!(guard.since(), None);
    guard.put_right().await;
    assert_eq!(guard.url(), URL, "by a watch");
    guard.take_stock();
    guard.put_right().await;
    assert_eq!(guard.url(), SAYS_SO, "taken anew");
}

/// It led and took stock, was cut off before it wrote so, and leads again. Meanwhile another guard led, and put an entry right.
#[tokio::test(start_paused = true)]
async fn what_a_guard_found_when_it_led_before_brings_no_word_back() {
    let mut guard = Guard::over(stored("c", 1, &[]));
    guard.put_right().await;
    guard.take_stock();
    guard.edit(&[]);
    guard.edit(&[entry(URL)]);
    guard.put_right().await;
    assert_eq!(guard.url(), URL, "it knew nothing of the other one");

    let mut guard = Guard::over(stored("c", 1, &[]));
    guard.put_right().await;
    let since = guard.since();
    guard.take_stock();
    guard.leads = false;
    guard.look().await;
    guard.leads = true;
    guard.put_right().await;
    assert_eq!(guard.url(), URL, "a leader takes stock by itself");
    assert_eq!(guard.since(), since, "nothing changed");
}

#[tokio::test(start_paused = true)]
async fn one_that_did_not_lead_believes_what_the_leader_wrote() {
    let mut standby = Guard::over(stored("c", 1, &[entry(URL)]));
    standby.leads = false;
    standby.look().await;
    let before = standby.since();
    standby.edit(&[entry(SAYS_SO)]);
    standby.look().await;
    assert!(standby.since() != before, "of its own it is not sure");
    standby.leads = true;
    standby.put_right().await;
    assert_eq!(standby.url(), SAYS_SO);
}

/// The write was based on another version than this guard looked at.
#[tokio::test(start_paused = true)]
async fn a_conflict_is_looked_at_anew() {
    let mut guard = Guard::over(stored("c", 1, &[]));
    guard.put_right().await;
    guard.take_stock();
    guard.look().await;
    assert_eq!(guard.target(), SAYS_SO);
    // The write fails: it was another version by then, with the entry as it was.
    guard.edit(&[entry(URL)]);
    guard.look().await;
    assert_eq!(guard.target(), URL);

    // A write that was not based on what was looked at vouches for nothing.
    let mut guard = stocked_guard().await;
    let (skipped, written) = (stored("c", 7, &[entry(SAYS_SO)]), stored("c", 8, &[entry(SAYS_SO)]));
    guard.in_force.wrote(&guard.board, &skipped, &written);
    guard.stored = written;
    guard.put_right().await;
    assert_eq!(guard.url(), URL);
}
