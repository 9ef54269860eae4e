//! What the release's `ServiceAccount` may do, and what it did in the tests before this one: those in which nobody
//! takes rights away, as an upgrade does that names another Secret.

use std::collections::BTreeSet;

use anyhow::ensure;
use deployer_guard::api::DeployerClaim;
use deployer_guard_testkit::objects::{create_pod, make_namespace};
use deployer_guard_testkit::{NAMESPACE, Release, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::site::{SOON, Site, text};
use crate::work::{deployer, program};

/// Another policy for the same pods, in some namespaces.
const SOMEWHERE: &str = "
apiVersion: deployer-guard.io/v1alpha1
kind: DeployerPolicy
metadata: {name: somewhere}
spec:
  match:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: rights}}
    objectSelector: {matchExpressions: [{key: test/config, operator: Exists}]}
  config: {label: test/config}
  reruns: Always
";

/// Where what takes long, or a bypass, goes on: the policy is that of namespaces with this label.
const RARELY: &str = "rarely";
const GUARDED: &str = "test/guarded";
/// Its claims are of no more use after five minutes, the shortest time there is. A guard looks at each claim every ten.
const RARE: &str = "
apiVersion: deployer-guard.io/v1alpha1
kind: DeployerPolicy
metadata: {name: rarely}
spec:
  match:
    namespaceSelector: {matchLabels: {test/guarded: 'yes'}}
    objectSelector: {matchExpressions: [{key: test/rarely, operator: Exists}]}
  config: {label: test/rarely}
  reruns: Always
  leftovers: {duplicates: DeleteUnstarted, keepClaimsSeconds: 300}
";

/// API group, resource, verb.
type Right = (String, String, String);

/// A deployer has its day, long before the other tests end.
pub(crate) async fn begin(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    make_namespace(&site.client(), RARELY, &[(GUARDED, "yes")], true).await?;
    release.enforce(RARE).await?;
    until("a claim to be taken", SOON, async || {
        create_pod(&site.client(), RARELY, &rare("once", &["-for", "0s"])).await?;
        ensure!(
            !claims(site).list(&ListParams::default()).await?.items.is_empty(),
            "there is none"
        );
        Ok(())
    })
    .await?;
    site.wait_phase(RARELY, "once", "Succeeded").await.map(drop)
}

fn claims(site: &Site) -> Api<DeployerClaim> {
    Api::namespaced(site.client(), RARELY)
}

fn rare(name: &str, arguments: &[&str]) -> Value {
    let mut pod = program(arguments);
    pod["metadata"] = json!({ "name": name, "labels": { "test/rarely": name.split('-').next() } });
    pod
}

/// What a guard deletes: a claim that nobody used for long, and a duplicate that came in while its namespace was labelled out.
async fn deleted(site: &Site) -> anyhow::Result<()> {
    until(
        "the claim of one that ended long ago to be deleted",
        16 * SOON,
        async || {
            let left = claims(site).list(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "{:?}", left.first().map(|claim| &claim.spec));
            Ok(())
        },
    )
    .await?;
    let label = async |value: Option<&str>| {
        let patch = json!({ "metadata": { "labels": { GUARDED: value } } });
        let namespaces: Api<Namespace> = Api::all(site.client());
        namespaces
            .patch(RARELY, &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    label(None).await?;
    let names = ["twice-1", "twice-2"];
    for name in names {
        let mut unstarted = rare(name, &[]);
        unstarted["spec"]["schedulerName"] = json!("nobody");
        // API servers hear of the label in a moment.
        site.admitted_soon(RARELY, &unstarted).await?;
    }
    label(Some("yes")).await?;
    let pods: Api<Pod> = Api::namespaced(site.client(), RARELY);
    // That a namespace is in a policy's selector again is found when a key with an active pod is read anew, every five minutes.
    until("one of two to be deleted", 7 * SOON, async || {
        let all = pods.list(&ListParams::default()).await?.items;
        let left = all
            .iter()
            .filter(|pod| names.contains(&pod.name_any().as_str()))
            .count();
        ensure!(left == 1, "{left} are left");
        Ok(())
    })
    .await?;
    site.kubectl(&["delete", "deployerpolicy", RARELY]).await?;
    site.delete_namespace(RARELY).await
}

/// No request of ours was forbidden, and where all the tests before were run, each right was used.
pub(crate) async fn used(site: &Site, whole: bool) -> anyhow::Result<()> {
    let release = site.usual().await?;
    rarely(site, &release).await?;
    if whole {
        deleted(site).await?;
    }
    let account = format!("system:serviceaccount:{NAMESPACE}:");
    let events = site.node.audit_events()?;
    let ours: Vec<&Value> = events
        .iter()
        .filter(|event| text(event, "/user/username").starts_with(&account))
        .collect();
    let forbidden: Vec<String> = ours
        .iter()
        .filter(|event| text(event, "/annotations/authorization.k8s.io~1decision") == "forbid")
        .map(|event| format!("{} {}", text(event, "/user/username"), text(event, "/requestURI")))
        .collect();
    println!(
        "  {} requests of ours, {} of them forbidden",
        ours.len(),
        forbidden.len()
    );
    ensure!(forbidden.is_empty(), "forbidden: {forbidden:?}");
    ensure!(!ours.is_empty(), "no request of ours is in the audit log");
    if !whole {
        println!("  not looked for: rights that nothing used, since some of these tests were not run");
        return Ok(());
    }
    let used: BTreeSet<Right> = ours.iter().map(|event| right(event)).collect();
    let granted = granted(site).await?;
    let unused: Vec<&Right> = granted.difference(&used).collect();
    ensure!(unused.is_empty(), "granted and not used: {unused:?}");
    Ok(())
}

/// What happens rarely: two policies match a pod, and somebody deletes the Lease.
async fn rarely(site: &Site, release: &Release<'_>) -> anyhow::Result<()> {
    let namespace = "rights";
    site.namespace(namespace).await?;
    release.enforce(SOMEWHERE).await?;
    site.admitted(namespace, &deployer("cfg", "first", &[])).await?;
    let leases: Api<Lease> = Api::namespaced(site.client(), NAMESPACE);
    leases.delete(NAMESPACE, &DeleteParams::default()).await?;
    until("a guard to lead again", SOON, async || {
        let holder = leases.get(NAMESPACE).await?.spec.and_then(|spec| spec.holder_identity);
        ensure!(holder.is_some_and(|holder| !holder.is_empty()), "nobody does");
        Ok(())
    })
    .await?;
    site.kubectl(&["delete", "deployerpolicy", "somewhere"]).await?;
    site.delete_namespace(namespace).await
}

fn right(event: &Value) -> Right {
    let of = |field: &str| text(event, &format!("/objectRef/{field}")).to_owned();
    let resource = match of("subresource") {
        subresource if subresource.is_empty() => of("resource"),
        subresource => format!("{}/{subresource}", of("resource")),
    };
    (of("apiGroup"), resource, text(event, "/verb").to_owned())
}

/// What the roles say that are bound to the account under which webhook and guard run.
async fn granted(site: &Site) -> anyhow::Result<BTreeSet<Right>> {
    let all = ListParams::default();
    let mut rights = BTreeSet::new();
    let cluster_roles: Api<ClusterRole> = Api::all(site.client());
    for binding in Api::<ClusterRoleBinding>::all(site.client()).list(&all).await? {
        if is_ours(binding.subjects.as_deref()) {
            add(&mut rights, cluster_roles.get(&binding.role_ref.name).await?.rules);
        }
    }
    for binding in Api::<RoleBinding>::all(site.client()).list(&all).await? {
        if is_ours(binding.subjects.as_deref()) {
            let RoleRef { kind, name, .. } = &binding.role_ref;
            let namespace = binding.namespace().unwrap_or_default();
            let rules = match kind.as_str() {
                "Role" => {
                    Api::<Role>::namespaced(site.client(), &namespace)
                        .get(name)
                        .await?
                        .rules
                }
                _ => cluster_roles.get(name).await?.rules,
            };
            add(&mut rights, rules);
        }
    }
    ensure!(!rights.is_empty(), "nothing is granted");
    Ok(rights)
}

fn is_ours(subjects: Option<&[Subject]>) -> bool {
    let ours = |subject: &Subject| {
        subject.kind == "ServiceAccount" && subject.name == NAMESPACE && subject.namespace.as_deref() == Some(NAMESPACE)
    };
    subjects.unwrap_or_default().iter().any(ours)
}

fn add(rights: &mut BTreeSet<Right>, rules: Option<Vec<PolicyRule>>) {
    for rule in rules.unwrap_or_default() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.insert((group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
}
