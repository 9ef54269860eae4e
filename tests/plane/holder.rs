//! What holds a key, and what does not.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard::api::claim::Outcome;
use kube::api::DeleteParams;
use tokio::time::sleep;

use crate::common::run;
use crate::creators::{assert_never_two, deployer, unrelated, witness};
use crate::site::{Scene, on_a_lost_node};

#[test]
fn a_terminating_holder_counts_until_it_is_gone_and_a_failed_one_that_terminates_does_not() {
    run(async {
        let scene = Scene::shared("terminating").await?;
        let watch = witness(&scene.site.stage.plane, "terminating").await?;
        scene
            .admitted_pod("cfg", &on_a_lost_node(deployer("cfg", "one", "one")))
            .await?;
        scene.delete("one").await?;
        ensure!(scene.pods().get("one").await?.metadata.deletion_timestamp.is_some());
        scene.refused("cfg", "two", "DeployerActive", "one").await?;
        scene.exists("cfg", "one").await?;
        scene
            .pods()
            .delete("one", &DeleteParams::default().grace_period(0))
            .await?;
        scene
            .admitted_pod("cfg", &on_a_lost_node(deployer("cfg", "two", "two")))
            .await?;

        scene.delete("two").await?;
        scene.refused("cfg", "three", "DeployerActive", "two").await?;
        scene.phase("two", "Failed").await?;
        ensure!(scene.pods().get("two").await?.metadata.deletion_timestamp.is_some());
        scene.admitted("cfg", "three").await?;
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

#[test]
fn a_finished_holder_that_runs_again_holds_as_long_as_it_is_the_holder_and_changes_no_claim() {
    run(async {
        let scene = Scene::shared("again").await?;
        scene.admitted("cfg", "one").await?;
        let first = scene.claim("cfg").await?;
        scene.phase("one", "Succeeded").await?;
        scene.phase("one", "Running").await?;
        scene.refused("cfg", "two", "DeployerActive", "one").await?;
        assert_eq!(scene.claim("cfg").await?.spec, first.spec, "the claim changed");

        scene.phase("one", "Succeeded").await?;
        scene.admitted("cfg", "two").await?;
        let second = scene.claim("cfg").await?;
        assert_eq!(second.spec.outcome(None, "one"), Some(Outcome::Completed));
        scene.phase("one", "Running").await?;
        // Two are active now: a known limit, for the guard to report. The claim still names who was admitted.
        scene.refused("cfg", "three", "DeployerActive", "two").await?;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.claim("cfg").await?.spec, second.spec, "the claim changed");
        scene.phase("two", "Succeeded").await?;
        // Stock is not taken here, so the pods are listed beside the claim, which forgot this one.
        scene.refused("cfg", "three", "DeployerActive", "one").await?;
        scene.phase("one", "Succeeded").await?;
        scene.admitted("cfg", "three").await?;
        Ok(())
    });
}

#[test]
fn a_finished_holder_that_still_exists_lets_the_next_one_in_and_its_name_answers_409() {
    run(async {
        let scene = Scene::shared("finished").await?;
        let watch = witness(&scene.site.stage.plane, "finished").await?;
        for (last, next, phase) in [("one", "two", "Succeeded"), ("two", "three", "Failed")] {
            if last == "one" {
                scene.admitted("cfg", last).await?;
            }
            scene.phase(last, phase).await?;
            scene.exists("cfg", last).await?;
            scene.admitted("cfg", next).await?;
            // Both are true of the name now; who works is what a user has to know.
            scene.refused("cfg", last, "DeployerActive", next).await?;
        }
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

#[test]
fn the_holders_name_with_another_uid_is_another_pod() {
    run(async {
        let scene = Scene::shared("namesake").await?;
        let first = scene.admitted("cfg", "one").await?;
        scene.delete("one").await?;
        ensure!(scene.create(&unrelated("one")).await?.is_created());
        // The namesake holds nothing: another deployer gets in. But its name is taken.
        scene.exists("cfg", "one").await?;
        scene.admitted("cfg", "two").await?;
        scene.phase("two", "Succeeded").await?;
        scene.exists("cfg", "one").await?;
        scene.delete("one").await?;
        let again = scene.admitted("cfg", "one").await?;
        assert_ne!(first.metadata.uid, again.metadata.uid);
        scene.refused("cfg", "three", "DeployerActive", "one").await?;
        Ok(())
    });
}

/// Deleting a claim by hand forgets all that it held, and this is what that means:
/// - an active pod still refuses, since a key without a claim is decided with a list; nothing is written by that refusal;
/// - a pod that is on its way is forgotten: another one is admitted, and when the first one arrives two are active.
///   The one that was forgotten is found by a list, as long as stock is not taken under the policy.
#[test]
fn deleting_a_claim_by_hand_forgets_who_is_on_its_way_and_not_who_is_active() {
    run(async {
        let scene = Scene::shared("forgotten").await?;
        let watch = witness(&scene.site.stage.plane, "forgotten").await?;
        scene.admitted("active", "one").await?;
        scene.delete_claim("active").await?;
        scene.refused("active", "two", "DeployerActive", "one").await?;
        ensure!(scene.claim("active").await.is_err(), "a refusal wrote a claim");
        scene.phase("one", "Succeeded").await?;
        scene.admitted("active", "two").await?;

        let sent = scene.on_its_way("pending", "early", "forgotten").await?;
        scene.refused("pending", "late", "DeployerPending", "early").await?;
        scene.delete_claim("pending").await?;
        scene.admitted("pending", "late").await?;
        scene.site.open("forgotten");
        assert_eq!(sent.await??.code, 201);
        scene.refused("pending", "third", "DeployerActive", "late").await?;
        scene.phase("late", "Succeeded").await?;
        scene.refused("pending", "third", "DeployerActive", "early").await?;
        scene.phase("early", "Succeeded").await?;
        scene.admitted("pending", "third").await?;

        let report = watch.finish().await?;
        assert_eq!((report.max_active["active"], report.max_active["pending"]), (1, 2));
        Ok(())
    });
}
