//! What a policy's expressions cost on a pod that is larger than most.

use super::Policy;
use super::identity::Source;
use crate::domain::expression::{Keys, Scope};
use serde_json::{Map, Value, json};

/// Containers of the pod, and variables of each.
const CONTAINERS: usize = 16;
const VARIABLES: usize = 32;

/// The API server allows 256 KiB of annotations together.
const ANNOTATION: usize = 200 * 1024;

impl Policy {
    /// What each expression costs on a large pod, with the field that it stands in: some 300 KB, with all labels and annotations that
    /// the policy reads. The owner is as large as the pod.
    #[must_use]
    pub fn costs(&self) -> Vec<(String, u64)> {
        let pod = self.large_pod();
        let scope = Scope::new(&[("object", Some(&pod)), ("oldObject", Some(&pod)), ("owner", Some(&pod))]);
        let identity = [Some(&self.config), self.generation_source.as_ref()];
        let identity = identity.into_iter().flatten().filter_map(|source| match source {
            Source::Expression(expression) => Some(expression),
            Source::Label(_) | Source::Annotation(_) => None,
        });
        let owner = self.owner.as_ref().and_then(|owner| owner.expression.as_ref());
        let others = [self.config_uid.as_ref(), self.ordinal.as_ref(), owner];
        let conditions = self.conditions.iter().map(|condition| &condition.expression);
        let all = conditions.chain(identity).chain(others.into_iter().flatten());
        all.map(|expression| (expression.field().to_owned(), expression.cost(&scope)))
            .collect()
    }

    fn large_pod(&self) -> Value {
        let map = |keys: &Keys| {
            let mut map: Map<String, Value> = (0..32)
                .map(|n| (format!("example.com/key-{n}"), json!("value")))
                .collect();
            if let Keys::Some(keys) = keys {
                map.extend(keys.iter().map(|key| (key.clone(), json!("7"))));
            }
            map
        };
        let mut annotations = map(&self.watched.annotations);
        annotations.insert("example.com/large".into(), json!("x".repeat(ANNOTATION)));
        let variable = |n| json!({"name": format!("VARIABLE_{n}"), "value": "some value of a variable"});
        let container = |n| {
            json!({
                "name": format!("container-{n}"),
                "image": "registry.example.com/team/project/image:v1.2.3",
                "args": ["--one=1", "--two=2", "--three=3"],
                "env": (0..VARIABLES).map(variable).collect::<Vec<_>>(),
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            })
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "a-deployer-pod-with-a-long-name", "namespace": "a-namespace", "uid": "00000000-0000-0000-0000-000000000000",
                "labels": map(&self.watched.labels), "annotations": annotations,
            },
            "spec": {"containers": (0..CONTAINERS).map(container).collect::<Vec<_>>(), "nodeName": "a-node"},
            "status": {"phase": "Running"},
        })
    }
}
