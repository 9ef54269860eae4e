//! Values that are wrong are refused, with the name of the value.

use crate::helm::template;

/// What is set, and what the refusal names.
const WRONG: &[(&str, &str)] = &[
    ("replicas=3", "replicas"),
    ("webhook.resource.limits.memory=1Gi", "resource"),
    ("policies.openshift.enable=true", "enable"),
    ("policies.spinnaker.enabled=true", "policies.spinnaker.podLabels"),
    (
        "policies.spinnaker.enabled=true,policies.spinnaker.podLabels=null",
        "policies.spinnaker.podLabels",
    ),
    (
        "policies.openshift.namespaceSelector.matchlabels.a=b",
        "/policies/openshift/namespaceSelector",
    ),
    (
        "policies.openshift.leftovers.stuckAfterSeconds=5",
        "/policies/openshift/leftovers/stuckAfterSeconds",
    ),
    ("certificates.mode=null", "certificates.mode"),
    ("policies.extra.mine.spec.mode=Warn", "policies.extra.mine.spec"),
    (
        "policies.openshift.enabled=true,policies.extra.openshift-deploymentconfig.mode=Warn",
        "policies.extra.openshift-deploymentconfig",
    ),
    ("logs.level=verbose", "/logs/level"),
    (
        "rbac.owners[0].resource=Jobs,rbac.owners[0].apiGroup=batch",
        "/rbac/owners/0/resource",
    ),
    (
        "rbac.owners[0].resource=jobs,rbac.owners[0].apiGroup=batch/v1",
        "/rbac/owners/0/apiGroup",
    ),
    ("policies.openshift.mode=enforce", "/policies/openshift/mode"),
    (
        "policies.openshift.leftovers.duplicates=Delete",
        "/policies/openshift/leftovers/duplicates",
    ),
    ("certificates.mode=manual", "/certificates/mode"),
    (
        "certificates.selfManaged.lifetime=1y",
        "/certificates/selfManaged/lifetime",
    ),
    ("pendingWindow=45", "/pendingWindow"),
    ("guard.leaseDuration=1m", "/guard/leaseDuration"),
    ("guard.leaseDuration=2s", "guard.leaseDuration"),
    ("guard.leaseDuration=61s", "guard.leaseDuration"),
    ("guard.relistPeriod=999.9ms", "guard.relistPeriod"),
    ("guard.gracePeriod=0s", "guard.gracePeriod"),
    ("connectTimeout=0s", "connectTimeout"),
    (
        "pendingWindow=1ms,apiServerRequestTimeout=0s",
        "apiServerRequestTimeout",
    ),
    ("pendingWindow=9999999h", "/pendingWindow"),
    ("nameOverride=Bad_Name", "/nameOverride"),
    ("tests.namespace=Bad_Name", "/tests/namespace"),
    ("pendingWindow=34s", "pendingWindow"),
    ("pendingWindow=5s,apiServerRequestTimeout=5s", "pendingWindow"),
    ("pendingWindow=34s,apiServerRequestTimeout=1m", "pendingWindow"),
    ("webhook.drainDelay=20s", "webhook.gracePeriod"),
    ("webhook.gracePeriod=40s", "terminationGracePeriodSeconds"),
    (
        "terminationGracePeriodSeconds=35",
        "guard.gracePeriod, guard.leaseDuration",
    ),
    (
        "certificates.selfManaged.lifetime=35.999s",
        "certificates.selfManaged.lifetime",
    ),
    (
        "certificates.selfManaged.caLifetime=2159h59m",
        "certificates.selfManaged.caLifetime",
    ),
    (
        "certificates.mode=cert-manager,certificates.certManager.duration=720h",
        "certificates.certManager.renewBefore",
    ),
    (
        "monitoring.serviceMonitor.enabled=true,monitoring.prometheusRule.enabled=true,certificates.selfManaged.lifetime=504h",
        "monitoring.prometheusRule.certificateDays",
    ),
    ("bindAddress=::", "/bindAddress"),
    ("bindAddress=256.0.0.1", "/bindAddress"),
    ("bindAddress=[1]", "/bindAddress"),
    ("bindAddress=localhost", "/bindAddress"),
    (
        "policies.extra.Bad_Name.mode=Warn",
        "policies.extra: no policy can be called \"Bad_Name\"",
    ),
    ("certificates.secretName=Bad_Name", "/certificates/secretName"),
    ("image.digest=latest", "/image/digest"),
    ("replicaCount=0", "/replicaCount"),
    ("fullnameOverride=Deployer_Guard", "/fullnameOverride"),
    ("rbac.owners[0].resource=jobs", "/rbac/owners/0"),
    ("certificates.mode=secret", "certificates.secretName"),
    (
        "certificates.mode=secret,certificates.secretName=deployer-guard-tls",
        "certificates.secretName",
    ),
    ("webhook.healthPort=8081", "webhook.healthPort"),
    ("guard.healthPort=8443", "guard.healthPort"),
    ("guard.enabled=false", "certificates.mode"),
    ("guard.dryRun=true", "certificates.mode"),
    ("clientAuth.enabled=true", "clientAuth.configMapName"),
    ("tests.namespace=deployer-guard", "tests.namespace"),
    ("serviceAccount.create=false", "serviceAccount.name"),
    ("rbac.create=false", "crds.serviceAccountName"),
    ("monitoring.prometheusRule.enabled=true", "monitoring.serviceMonitor"),
    ("webhook.maxBodyBytes=33554432", "webhook.maxBodiesBytes"),
    ("webhook.maxBodiesBytes=4294967296", "/webhook/maxBodiesBytes"),
];

#[test]
fn wrong_values_are_refused_by_name() {
    for program in ["helm", "helm3"] {
        for (flag, named) in WRONG {
            let refusal = template(program, &["--set", flag]).expect_err(flag);
            let pointed = refusal.contains(named) || refusal.contains(&named.trim_start_matches('/').replace('/', "."));
            assert!(pointed, "{program}, {flag}: {refusal}");
        }
    }
}

#[test]
fn durations_that_just_fit_are_taken() {
    for program in ["helm", "helm3"] {
        for flag in [
            "guard.leaseDuration=3s",
            "guard.leaseDuration=60s,terminationGracePeriodSeconds=81",
            "guard.relistPeriod=1s",
            "pendingWindow=34000.001ms",
            "pendingWindow=0.6m",
            "pendingWindow=5.1s,apiServerRequestTimeout=5s",
            "webhook.drainDelay=19s999ms",
            "terminationGracePeriodSeconds=36,webhook.gracePeriod=30s",
            "certificates.selfManaged.lifetime=36s,certificates.selfManaged.caLifetime=1m9s",
            "bindAddress=[::]",
            "policies.extra.good-name.mode=Warn",
        ] {
            if let Err(refusal) = template(program, &["--set", flag]) {
                panic!("{program}, {flag}: {refusal}");
            }
        }
    }
}

#[test]
fn the_namespaces_that_are_never_matched_are_no_place_to_install_into() {
    let refusal = template("helm", &["--namespace", "kube-system"]).unwrap_err();
    assert!(refusal.contains("kube-system"), "{refusal}");
}
