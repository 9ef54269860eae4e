//! What the API server makes of CEL expressions: whether it compiles them, and their values on a request.
//!
//! A `ValidatingAdmissionPolicy` evaluates them with the variables of matchConditions; the values, as strings, are its audit
//! annotations. One whose evaluation fails has none.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, ensure};
use deployer_guard_testkit::until;
use kube::Client;
use kube::api::PostParams;
use kube::core::Request;
use serde_json::{Value, json};

use crate::scene::{SOON, Scene};

/// As many annotations as a policy may have, less the one that tells that the policy is in force.
const AT_ONCE: usize = 19;
/// The annotation that every evaluation has.
const IN_FORCE: &str = "in-force";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// Expressions that the API server evaluates on each pod that is created or changed in a namespace.
pub(crate) struct Evaluation<'s> {
    scene: &'s Scene,
    /// Why the API server does not compile an expression, by its place.
    pub(crate) refused: BTreeMap<usize, String>,
    policies: usize,
    requests: usize,
}

impl<'s> Evaluation<'s> {
    /// Has these expressions evaluated in the scene's namespace: any whose value `string()` takes.
    pub(crate) async fn of(scene: &'s Scene, expressions: &[String]) -> anyhow::Result<Self> {
        let mut refused = BTreeMap::new();
        let mut policies = 0;
        for (batch, expressions) in expressions.chunks(AT_ONCE).enumerate() {
            let all: Vec<_> = (batch * AT_ONCE..).zip(expressions).collect();
            let complaints = make(scene, batch, &all).await?;
            if !complaints.is_empty() {
                let good: Vec<_> = all
                    .into_iter()
                    .filter(|(place, _)| !complaints.contains_key(place))
                    .collect();
                let left = make(scene, batch, &good).await?;
                ensure!(left.is_empty(), "complaints only at the second try: {left:?}");
                refused.extend(complaints);
            }
            let binding = json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": { "name": name(scene, batch) },
                "spec": { "policyName": name(scene, batch), "validationActions": ["Audit"] },
            });
            create(&scene.client, BINDINGS, &PostParams::default(), &binding).await?;
            policies += 1;
        }
        let mut evaluation = Self {
            scene,
            refused,
            policies,
            requests: 0,
        };
        evaluation.wait_in_force().await?;
        Ok(evaluation)
    }

    async fn wait_in_force(&mut self) -> anyhow::Result<()> {
        let pod = json!({ "metadata": { "name": "probe" }, "spec": { "containers": [{ "name": "a", "image": "a" }] } });
        let since = Instant::now();
        loop {
            let (_, values) = self.create(&pod).await?;
            if values.in_force == self.policies {
                return Ok(());
            }
            ensure!(
                since.elapsed() < SOON,
                "{} of {} policies are in force",
                values.in_force,
                self.policies
            );
        }
    }

    /// The pod as it would be stored, and the values on its creation.
    pub(crate) async fn create(&mut self, pod: &Value) -> anyhow::Result<(Value, Values)> {
        let (params, mark) = self.next();
        let stored = create(&self.scene.client, &self.pods(), &params, pod).await?;
        Ok((stored, self.values(&mark).await?))
    }

    /// The pod as it would be stored, and the values when it is replaced by this one.
    pub(crate) async fn replace(&mut self, pod: &Value) -> anyhow::Result<(Value, Values)> {
        let (params, mark) = self.next();
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let request = Request::new(self.pods()).replace(name, &params, pod.to_string().into_bytes())?;
        let stored = self.scene.client.request(request).await?;
        Ok((stored, self.values(&mark).await?))
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.scene.namespace)
    }

    /// Parameters of a request that stores nothing, and what its event is found by.
    fn next(&mut self) -> (PostParams, String) {
        self.requests += 1;
        let mark = format!("{}-{}-", self.scene.namespace, self.requests);
        let params = PostParams {
            dry_run: true,
            field_manager: Some(mark.clone()),
        };
        (params, mark)
    }

    async fn values(&self, mark: &str) -> anyhow::Result<Values> {
        let event = until("the audit event", SOON, async || {
            let events = self.scene.stage.plane.audit_events()?;
            let of_it = events.into_iter().find(|event| {
                event["requestURI"].as_str().is_some_and(|uri| uri.contains(mark))
                    && event["stage"] == "ResponseComplete"
            });
            of_it.context("not in the audit log")
        })
        .await?;
        let mut values = Values::default();
        for (key, value) in event["annotations"].as_object().into_iter().flatten() {
            let Some((_, key)) = key
                .split_once('/')
                .filter(|(policy, _)| policy.starts_with(&self.scene.namespace))
            else {
                continue;
            };
            if key == IN_FORCE {
                values.in_force += 1;
            } else if let Some(place) = key.strip_prefix("e-") {
                values
                    .values
                    .insert(place.parse()?, value.as_str().unwrap_or_default().to_owned());
            }
        }
        Ok(values)
    }
}

/// The values of expressions on one request.
#[derive(Default)]
pub(crate) struct Values {
    in_force: usize,
    values: BTreeMap<usize, String>,
}

impl Values {
    /// The value of the expression at this place; `None` if its evaluation fails.
    pub(crate) fn at(&self, place: usize) -> Option<&str> {
        self.values.get(&place).map(String::as_str)
    }
}

fn name(scene: &Scene, batch: usize) -> String {
    format!("{}-{batch}", scene.namespace)
}

/// Makes the policy of a batch; what the API server says of each expression that it refuses, if it refuses any.
async fn make(
    scene: &Scene,
    batch: usize,
    expressions: &[(usize, &String)],
) -> anyhow::Result<BTreeMap<usize, String>> {
    let mut annotations = vec![json!({ "key": IN_FORCE, "valueExpression": "'yes'" })];
    annotations.extend(expressions.iter().map(|(place, expression)| {
        json!({ "key": format!("e-{place}"), "valueExpression": format!("'<' + string(\n{expression}\n) + '>'") })
    }));
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name(scene, batch) },
        "spec": {
            // A failed evaluation leaves its annotation out, and refuses nothing.
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scene.namespace } },
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"],
                }],
            },
            "auditAnnotations": annotations,
        },
    });
    let status = match create(&scene.client, POLICIES, &PostParams::default(), &policy).await {
        Ok(_) => return Ok(BTreeMap::new()),
        Err(error) => match error.downcast::<kube::Error>()? {
            kube::Error::Api(status) if status.code == 422 => status,
            error => return Err(error.into()),
        },
    };
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    let mut complaints = BTreeMap::new();
    for cause in causes {
        let place = cause
            .field
            .strip_prefix("spec.auditAnnotations[")
            .and_then(|rest| rest.split(']').next());
        let place: usize = place.with_context(|| cause.field.clone())?.parse()?;
        complaints.insert(expressions[place - 1].0, cause.message);
    }
    ensure!(!complaints.is_empty(), "{}", status.message);
    Ok(complaints)
}

async fn create(client: &Client, path: &str, params: &PostParams, object: &Value) -> anyhow::Result<Value> {
    let request = Request::new(path).create(params, object.to_string().into_bytes())?;
    Ok(client.request(request).await?)
}
