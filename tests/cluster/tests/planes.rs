//! What a control plane can do once it runs. Needs: the built programs.

use std::time::Duration;

use deployer_guard_testkit::{ControlPlane, objects, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;

#[tokio::test]
async fn two_planes_run_side_by_side_and_share_nothing() -> anyhow::Result<()> {
    let (one, two) = tokio::try_join!(ControlPlane::builder().start(), ControlPlane::builder().start())?;
    assert_ne!(one.directory(), two.directory());

    objects::make_namespace(&one.client(0), "only-here", &[], false).await?;
    let there = Api::<Namespace>::all(two.client(0)).get_opt("only-here").await?;
    assert!(there.is_none());
    Ok(())
}

#[tokio::test]
async fn api_servers_on_one_etcd_see_each_others_objects() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().api_servers(2).start().await?;
    assert_eq!((plane.api_servers(), plane.clients().len()), (2, 2));
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "shared"}, "data": {"by": "0"}}))?;
    Api::namespaced(plane.client(0), "default")
        .create(&PostParams::default(), &map)
        .await?;
    let read = Api::<ConfigMap>::namespaced(plane.client(1), "default")
        .get("shared")
        .await?;
    assert_eq!(read.data, map.data);

    let output = plane
        .kubectl(&["get", "configmap", "shared", "-o", "jsonpath={.data.by}"])
        .await?;
    assert_eq!((output.status.success(), &*output.stdout), (true, &b"0"[..]));
    Ok(())
}

#[tokio::test]
async fn rbac_is_on_and_audited() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().audit_log(true).start().await?;
    let yaml = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pods, namespace: default}
rules: [{apiGroups: [''], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pods, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pods}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
";
    let applied = objects::apply_yaml(&plane.client(0), yaml, "test").await?;
    assert_eq!(applied.len(), 3);

    let path = plane.service_account_kubeconfig(0, "default", "reader").await?;
    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?;
    let reader = Client::try_from(config)?;
    until("the role to be known", Duration::from_secs(10), || {
        let may = Api::<Pod>::default_namespaced(reader.clone());
        async move { Ok(may.list(&ListParams::default()).await?) }
    })
    .await?;
    let refused = Api::<Secret>::default_namespaced(reader.clone())
        .list(&ListParams::default())
        .await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    assert!(
        Api::<ClusterRole>::all(plane.client(0))
            .get_opt("cluster-admin")
            .await?
            .is_some()
    );

    let events = plane.audit_events()?;
    let refusal = events
        .iter()
        .find(|event| event["objectRef"]["resource"] == "secrets" && event["responseStatus"]["code"] == 403);
    assert_eq!(
        refusal.expect("the refusal is audited")["user"]["username"],
        "system:serviceaccount:default:reader"
    );
    Ok(())
}

#[tokio::test]
async fn with_a_controller_manager_namespaces_get_accounts_and_go_away() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().controller_manager(true).start().await?;
    let client = plane.client(0);
    objects::make_namespace(&client, "brief", &[("team", "a")], true).await?;
    let answer = objects::create_pod(&client, "brief", &pod("worker")).await?;
    assert!(answer.is_created(), "{answer:?}");
    let stored = answer.result.expect("created");
    assert_eq!(
        stored.spec.and_then(|spec| spec.service_account_name).as_deref(),
        Some("default")
    );

    let namespaces = Api::<Namespace>::all(client);
    namespaces.delete("brief", &DeleteParams::default()).await?;
    until("the namespace to be gone", Duration::from_mins(1), async || {
        let left = namespaces.get_opt("brief").await?;
        left.map_or(Ok(()), |left| Err(anyhow::anyhow!("{:?}", left.status)))
    })
    .await
}

#[tokio::test]
async fn answers_to_creates_are_told_apart() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().start().await?;
    let client = plane.client(0);
    let first = objects::create_pod(&client, "default", &pod("same")).await?;
    assert_eq!((first.code, first.message()), (201, ""));
    let second = objects::create_pod(&client, "default", &pod("same")).await?;
    assert_eq!(second.code, 409);
    let status = second.result.expect_err("refused");
    assert_eq!(
        (&*status.reason, status.details.map(|details| details.name).as_deref()),
        ("AlreadyExists", Some("same"))
    );

    let mut old = pod("old-fashioned");
    old["spec"]["nodeSelector"] = json!({"beta.kubernetes.io/os": "linux"});
    let warned = objects::create_pod_with(&client, "default", &old, "dryRun=All").await?;
    assert_eq!((warned.code, warned.warnings.len()), (201, 1));
    assert!(
        warned.warnings[0].starts_with("spec.nodeSelector[beta.kubernetes.io/os]: deprecated"),
        "{:?}",
        warned.warnings
    );

    let failed = objects::set_phase(&client, "default", "same", "Failed").await?;
    assert_eq!(failed.status.and_then(|status| status.phase).as_deref(), Some("Failed"));
    Ok(())
}

#[tokio::test]
async fn a_file_may_bring_a_kind_and_an_object_of_it() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().start().await?;
    let yaml = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: first}
size: 3
";
    let applied = objects::apply_yaml(&plane.client(0), yaml, "test").await?;
    assert_eq!((applied.len(), &applied[1].data["size"]), (2, &json!(3)));
    Ok(())
}

fn pod(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "none"}]}})
}
