//! The chart on a real node: kubelet, containerd, kube-proxy, and the image that is shipped.
//!
//! The tests share one node and go one after another, in this order, since most of them change what is installed. Needs Linux, root and
//! what `tests/cluster/build.sh node` builds and installs; where no node can run, all of them are passed over, and it is said why.
//! `cargo test --test node -- upgrade` runs those with that word in their name.

#![allow(missing_docs, reason = "a test")]

mod cert_manager;
mod certificates;
mod deployers;
mod fresh;
mod leaving;
mod outages;
mod rights;
mod shapes;
mod site;
mod upgrades;
mod work;

use std::process::ExitCode;
use std::sync::LazyLock;

use deployer_guard_testkit::Node;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

use crate::site::Site;

/// Trials run on threads of their own; what they share lives on this runtime.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let can_run = RUNTIME.block_on(Node::can_run());
    if let Err(why) = &can_run {
        println!("not run: no node can run here: {why:#}");
    }
    let whole = arguments.filter.is_none() && arguments.skip.is_empty();
    let trials = vec![
        trial("a_fresh_install_refuses_a_second_deployer", fresh::refusal),
        trial("what_a_guard_does_after_minutes_is_begun", rights::begin),
        trial("a_replica_starts_without_a_shell_or_a_right_too_many", fresh::hardened),
        trial("what_is_active_is_what_the_readme_says", deployers::all),
        trial("upgrades_fail_no_create", upgrades::image_and_values),
        trial("an_eviction_fails_no_create", upgrades::eviction),
        trial(
            "a_new_certificate_and_a_new_authority_fail_no_create",
            upgrades::certificates,
        ),
        trial("a_certificate_that_is_no_good_is_not_taken", certificates::faults),
        trial("both_replicas_killed_at_once_come_back", outages::both_replicas),
        trial(
            "guards_that_are_killed_all_the_time_change_no_decision",
            outages::guards,
        ),
        trial("all_our_pods_deleted_come_back", outages::all_pods),
        trial("after_a_power_cut_all_comes_back", outages::power_cut),
        trial("no_right_is_missing_and_none_is_unused", move |site| {
            rights::used(site, whole)
        }),
        trial("another_maker_of_the_certificate_fails_no_create", upgrades::makers),
        trial(
            "what_cert_manager_makes_and_renews_fails_no_create",
            cert_manager::renewals,
        ),
        trial("every_shape_installs_and_upgrades_to_the_next", shapes::helm4),
        trial("helm_3_installs_too", shapes::helm3),
        trial("uninstalling_leaves_nothing_in_the_way", leaving::uninstall),
    ];
    let trials = trials
        .into_iter()
        .map(|trial| trial.with_ignored_flag(can_run.is_err()))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial on the shared node.
fn trial<T, F>(name: &str, test: T) -> Trial
where
    T: FnOnce(&'static Site) -> F + Send + 'static,
    F: Future<Output = anyhow::Result<()>>,
{
    Trial::test(name, move || {
        let tried = RUNTIME.block_on(async { test(Site::shared().await?).await });
        tried.map_err(|error| {
            // At once: the summary comes after all the others.
            println!("  {error:#}");
            format!("{error:#}").into()
        })
    })
}
