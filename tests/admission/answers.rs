//! The answer itself: codes, texts, audit, records; modes and failure policy; dry run.

use deployer_guard::cluster::store::Failure;
use serde_json::json;

use crate::faulty::{Fault, Op};
use crate::world::{OPENSHIFT, Replica, deployer, openshift, review, runner, runners};

fn forbidden() -> Failure {
    Failure::Forbidden("deployerclaims is forbidden".into())
}

#[tokio::test]
async fn the_review_that_an_api_server_sent_is_admitted_and_its_claim_written() {
    let replica = Replica::new();
    replica
        .store
        .memory
        .put(serde_json::from_str(include_str!("../data/openshift/replicationcontroller.json")).unwrap());
    let create = review("create");
    // The file shows the owner after the deployer was made.
    replica.ask(OPENSHIFT, &create).await.refused(403, "OwnerNotEligible");
    let mut owner = crate::world::rollout(1, "New");
    owner["metadata"]["uid"] = "43632c6e-d0ff-4a4e-9039-147cc8491fc6".into();
    replica.store.memory.put(owner);
    let answer = replica.ask(OPENSHIFT, &create).await;
    answer.admitted();
    assert_eq!(answer.audit()["policy"], "openshift-deploymentconfig@1");
    assert_eq!(answer.audit()["key"], "shop/cfg");
    let spec = replica.spec();
    let holder = spec.holder.as_ref().unwrap();
    assert_eq!((holder.name.as_str(), holder.ordinal), ("cfg-1-deploy", Some(1)));
    assert_eq!(holder.uid, create["request"]["object"]["metadata"]["uid"]);
    assert_eq!(holder.generation.as_deref(), Some("cfg-1"));
    assert_eq!(
        holder.config_uid.as_deref(),
        Some("f7e6fbec-11f3-4957-ad7f-c2b7287dce21")
    );
    assert_eq!(
        holder.requested_by.as_deref(),
        Some("system:serviceaccount:openshift-infra:deploymentconfig-controller")
    );
    assert_eq!(spec.pending, std::slice::from_ref(holder));
    assert_eq!(
        (spec.config.as_str(), spec.policy.uid.as_str()),
        ("cfg", "policy-openshift")
    );
    assert_eq!(replica.notices().len(), 1, "of the first refusal");
}

#[tokio::test]
async fn a_refusal_names_the_holder_and_is_on_record() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    replica.rollout(2, "New");
    replica.run(OPENSHIFT, &deployer(1, "u1")).await;
    let second = deployer(2, "u2");
    let answer = replica.ask(OPENSHIFT, &second).await;
    answer.refused(403, "DeployerActive");
    let status = &answer.0["status"];
    assert_eq!(
        (status["status"].as_str(), status["reason"].as_str()),
        (Some("Failure"), Some("Forbidden"))
    );
    let text = "DeployerPolicy \"openshift-deploymentconfig\" refuses pod \"cfg-2-deploy\" for \"cfg\" (DeployerActive): deployer pod \"cfg-1-deploy\" (generation \"cfg-1\") is active";
    assert!(answer.message().starts_with(text), "{}", answer.message());
    assert_eq!(status["details"]["causes"][0]["message"], answer.message());
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    assert_eq!(answer.audit()["holder"], "cfg-1-deploy u1");
    assert_eq!(answer.verdict(), "Refused: DeployerActive");
    // The same cause gives the same text.
    assert_eq!(replica.ask(OPENSHIFT, &second).await.message(), answer.message());

    let notices = replica.notices();
    assert_eq!(notices.len(), 2);
    let claim = replica.claim().unwrap();
    let regarding: Vec<_> = notices[0]
        .regarding
        .iter()
        .map(|it| (it.kind.as_deref().unwrap(), it.uid.as_deref().unwrap()))
        .collect();
    assert_eq!(
        regarding,
        [
            ("ReplicationController", "rc-2"),
            ("DeployerClaim", claim.metadata.uid.as_deref().unwrap())
        ]
    );
    assert_eq!(notices[0].related.as_ref().unwrap().uid.as_deref(), Some("u1"));
    assert_eq!(notices[0].reason, "DeployerRejected");
    assert_eq!(notices[0].note, notices[1].note);
    assert!((replica.metric("decisions_total", "reason=\"DeployerActive\"") - 2.0).abs() < 0.1);
}

/// An Event needs an object that is or was in the store, and the pod never was.
#[tokio::test]
async fn a_refusal_without_owner_and_claim_is_an_event_on_the_policy() {
    let replica = Replica::new();
    let mut pod = runner("r", "u1", "shop");
    pod["request"]["object"]["metadata"]["labels"] = json!({"role": "runner"});
    replica.ask("runners", &pod).await.refused(403, "IdentityInvalid");
    let [notice] = &replica.notices()[..] else {
        panic!("not one")
    };
    let [policy] = &notice.regarding[..] else {
        panic!("{notice:?}")
    };
    assert_eq!(
        (policy.kind.as_deref(), policy.name.as_deref(), policy.uid.as_deref()),
        (Some("DeployerPolicy"), Some("runners"), Some("policy-runners"))
    );
    assert_eq!(policy.namespace, None);
    let pod = notice.related.as_ref().unwrap();
    assert_eq!(
        (pod.namespace.as_deref(), pod.name.as_deref(), pod.uid.as_deref()),
        (Some("shop"), Some("r"), None)
    );
}

#[tokio::test]
async fn a_name_that_exists_is_409_and_changes_nothing() {
    let replica = Replica::new();
    for phase in ["Running", "Succeeded", "Failed"] {
        replica.store_pod(&runner("r", "u1", "shop"), phase);
        let answer = replica.ask("runners", &runner("r", "u2", "shop")).await;
        answer.refused(409, "AlreadyExists");
        assert_eq!(answer.0["status"]["reason"], "AlreadyExists");
        assert_eq!(answer.message(), "pods \"r\" already exists");
    }
    assert_eq!((replica.claim(), replica.store.writes()), (None, 0));
    assert!(replica.notices().is_empty());
}

/// Code, number of warnings, and the reason of the Event, for a refusal in each mode.
#[tokio::test]
async fn the_mode_says_what_becomes_of_a_refusal() {
    for (mode, code, warnings, event) in [
        ("Enforce", 403, 0, "DeployerRejected"),
        ("Warn", 0, 1, "DeployerWouldBeRejected"),
        ("Audit", 0, 0, "DeployerWouldBeRejected"),
    ] {
        let replica = Replica::new();
        replica.learn(runners(json!({"mode": mode})));
        let version = replica.policies.last_known("runners").unwrap();
        // The version that was known first has the same generation: a changed policy has a new one.
        assert_eq!(version.generation, 1);
        let mut policy = runners(json!({"mode": mode}));
        policy["metadata"]["generation"] = 2.into();
        replica.learn(policy);
        replica.run("runners", &runner("a", "u1", "shop")).await;
        let answer = replica.ask("runners", &runner("b", "u2", "shop")).await;
        assert_eq!((answer.code(), answer.warnings().len()), (code, warnings), "{mode}");
        assert_eq!(answer.verdict(), "Refused: DeployerActive", "{mode}");
        let notices = replica.notices();
        assert_eq!(
            notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(),
            [event],
            "{mode}"
        );
        assert_eq!(replica.spec().holder.unwrap().uid, "u1", "{mode}");
    }
}

#[tokio::test]
async fn without_a_decision_the_failure_policy_decides() {
    type Break = fn(&Replica);
    let broken: [(&str, Break, &str); 5] = [
        (
            "claim forbidden",
            |r| r.store.fail(Op::Claim, forbidden()),
            "ReadFailed",
        ),
        ("list forbidden", |r| r.store.fail(Op::Pods, forbidden()), "ReadFailed"),
        (
            "pod times out",
            |r| r.store.fail(Op::Pod, Failure::TimedOut),
            "ReadFailed",
        ),
        (
            "write refused",
            |r| r.store.fail(Op::Create, forbidden()),
            "WriteFailed",
        ),
        (
            "unreadable",
            |r| r.store.fail(Op::Claim, Failure::Unreadable("?".into())),
            "ClaimUnreadable",
        ),
    ];
    for (case, broken, cause) in broken {
        for (failure_policy, mode, code, warnings) in [
            ("Fail", "Enforce", 503, 0),
            ("Ignore", "Enforce", 0, 1),
            ("Fail", "Warn", 0, 1),
            ("Fail", "Audit", 0, 0),
        ] {
            let replica = Replica::over(std::sync::Arc::default());
            let mut policy = runners(json!({"mode": mode, "failurePolicy": failure_policy}));
            policy["metadata"]["generation"] = 2.into();
            replica.learn(policy);
            broken(&replica);
            let answer = replica.ask("runners", &runner("a", "u1", "shop")).await;
            assert_eq!(
                (answer.code(), answer.warnings().len()),
                (code, warnings),
                "{case} {mode} {failure_policy}"
            );
            assert_eq!(answer.verdict(), format!("Undecided: {cause}"), "{case}");
            if code == 503 {
                answer.refused(503, cause);
                assert_eq!(answer.0["status"]["reason"], "ServiceUnavailable");
            }
            assert!(replica.claim().is_none() && replica.notices().is_empty(), "{case}");
            // What was broken is mended, and the next one is decided.
            replica.store.heal();
            replica.ask("runners", &runner("a", "u1", "shop")).await.admitted();
        }
    }
}

#[tokio::test]
async fn a_transient_failure_is_tried_again() {
    let replica = Replica::new();
    let busy = || {
        Fault::Fail(Failure::Answered {
            code: 429,
            reason: "TooManyRequests".into(),
            message: String::new(),
        })
    };
    replica
        .store
        .plan(Op::Claim, 2, Fault::Fail(Failure::Unreachable("refused".into())));
    replica.store.plan(Op::Pods, 1, busy());
    replica.store.plan(Op::Pod, 1, busy());
    replica.ask("runners", &runner("a", "u1", "shop")).await.admitted();
}

#[tokio::test]
async fn a_dry_run_has_the_same_verdict_and_no_side_effect() {
    let replica = Replica::new();
    let dry = |mut review: serde_json::Value| {
        review["request"]["dryRun"] = true.into();
        review
    };
    replica.ask("runners", &dry(runner("a", "u1", "shop"))).await.admitted();
    assert_eq!(replica.store.writes(), 0);
    replica.run("runners", &runner("a", "u1", "shop")).await;
    let (written, version) = (replica.store.writes(), replica.claim());
    let answer = replica.ask("runners", &dry(runner("b", "u2", "shop"))).await;
    answer.refused(403, "DeployerActive");
    replica
        .ask("runners", &dry(runner("a", "u3", "shop")))
        .await
        .refused(409, "AlreadyExists");
    assert_eq!((replica.store.writes(), replica.claim()), (written, version));
    assert!(replica.notices().is_empty());
    assert!((replica.metric("decisions_total", "dry_run=\"true\"") - 3.0).abs() < 0.1);
    let sent = review("create-dry-run");
    assert_eq!(sent["request"]["dryRun"], true);
    replica.ask(OPENSHIFT, &sent).await.refused(403, "OwnerGone");
    assert!(replica.notices().is_empty());
}

#[tokio::test]
async fn a_policy_that_cannot_be_used_decides_nothing() {
    for (failure_policy, code) in [("Fail", 503), ("Ignore", 0)] {
        let replica = Replica::new();
        let mut policy = openshift(json!({"config": {"expression": "object."}, "failurePolicy": failure_policy}));
        policy["metadata"]["generation"] = 2.into();
        replica.learn(policy);
        let answer = replica.ask(OPENSHIFT, &deployer(1, "u1")).await;
        assert_eq!(
            (answer.code(), answer.verdict().as_str()),
            (code, "Undecided: PolicyUnusable")
        );
        let text = if code == 0 {
            answer.warnings().remove(0)
        } else {
            answer.message().to_owned()
        };
        assert!(text.contains("spec.config.expression"), "{text}");
        assert!(replica.store.began().is_empty());
    }
}
