//! Users whose deployers are refused, and what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use deployer_guard_testkit::Stage;
use deployer_guard_testkit::objects::{Answer, apply_yaml, create_pod};
use futures::future::try_join_all;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::sleep;

use crate::creators::{cause, deployer};

/// Creates under way at a time.
const AT_A_TIME: usize = 12;
/// Configs that they fight over; each is held by `<config>-holder`.
pub(super) const CONFIGS: usize = 50;
/// Names of pods that are refused for each config: equal refusals are one cause.
const NAMES: usize = 4;

/// Users with a client for each API server.
pub(super) struct Crowd {
    namespace: &'static str,
    members: Vec<Member>,
    sent: AtomicUsize,
    seen: Mutex<Seen>,
}

struct Member {
    user: String,
    client: Client,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Refusals, by user.
    pub(super) refused: BTreeMap<String, usize>,
    /// The texts of refusals, by pod.
    pub(super) texts: BTreeMap<String, BTreeSet<String>>,
    /// The webhook said that it could not decide: no refusal.
    pub(super) undecided: usize,
    /// The API server could not be reached, or did not ask: nobody decided.
    pub(super) unreached: usize,
    /// Nobody knows whether the webhook decided: the connection to it, or to the API server, broke.
    pub(super) in_doubt: usize,
}

impl Seen {
    /// In numbers.
    pub(super) fn summary(&self) -> String {
        format!(
            "refused {:?}, {} undecided, {} not asked, {} in doubt",
            self.refused, self.undecided, self.unreached, self.in_doubt
        )
    }

    pub(super) fn refusals(&self) -> usize {
        self.refused.values().sum()
    }

    fn take(&mut self, user: &str, pod: &str, answer: anyhow::Result<Answer>) -> anyhow::Result<()> {
        match answer {
            Ok(answer) if answer.code == 403 && cause(&answer) == "DeployerActive" => {
                *self.refused.entry(user.to_owned()).or_default() += 1;
                let texts = self.texts.entry(pod.to_owned()).or_default();
                texts.insert(answer.message().to_owned());
            }
            Ok(answer) if ["ReadFailed", "WriteFailed", "DeadlineExceeded"].contains(&cause(&answer)) => {
                self.undecided += 1;
            }
            // An API server that has just started does not know all rights yet.
            Ok(answer) if answer.code == 403 && answer.message().contains("cannot create resource") => {
                self.unreached += 1;
            }
            Ok(answer) if answer.code >= 500 => self.in_doubt += 1,
            Ok(answer) => bail!("{} {}", answer.code, answer.message()),
            Err(error) if format!("{error:#}").contains("Connection refused") => self.unreached += 1,
            Err(_) => self.in_doubt += 1,
        }
        Ok(())
    }
}

impl Crowd {
    /// Service accounts of the namespace that may create pods.
    pub(super) async fn gather(stage: &Stage, namespace: &'static str, users: &[&str]) -> anyhow::Result<Self> {
        let admin = stage.plane.client(0);
        apply_yaml(&admin, &rights(namespace), "test").await?;
        let mut members = Vec::new();
        for user in users {
            let account =
                format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {user}, namespace: {namespace}}}\n");
            apply_yaml(&admin, &account, "test").await?;
            for i in 0..stage.plane.api_servers() {
                let kubeconfig = stage.plane.service_account_kubeconfig(i, namespace, user).await?;
                members.push(Member {
                    user: format!("system:serviceaccount:{namespace}:{user}"),
                    client: client_of(&kubeconfig).await?,
                });
            }
        }
        Ok(Self {
            namespace,
            members,
            sent: AtomicUsize::new(0),
            seen: Mutex::default(),
        })
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends creates until so many refusals were seen, over all times.
    pub(super) async fn until_refused(&self, count: usize) -> anyhow::Result<()> {
        try_join_all((0..AT_A_TIME).map(async |_| {
            while self.seen().refusals() < count {
                self.one().await?;
            }
            anyhow::Ok(())
        }))
        .await?;
        Ok(())
    }

    /// Waits until so many were seen.
    pub(super) async fn watch(&self, count: usize) {
        while self.seen().refusals() < count {
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn one(&self) -> anyhow::Result<()> {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let member = &self.members[number % self.members.len()];
        let config = format!("cfg{}", number % CONFIGS);
        let name = format!("{config}-late-{}", number / CONFIGS % NAMES);
        let answer = create_pod(&member.client, self.namespace, &deployer(&config, "late", &name)).await;
        let failed = answer.is_err();
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(&member.user, &name, answer)?;
        if failed {
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

fn rights(namespace: &str) -> String {
    format!(
        "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {namespace}-creators}}
rules: [{{apiGroups: [''], resources: [pods], verbs: [create]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {namespace}-creators}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {namespace}-creators}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:serviceaccounts:{namespace}'}}]
"
    )
}

/// A client that repeats nothing by itself.
async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
