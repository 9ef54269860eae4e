//! The command lines of etcd, kube-apiserver and kube-controller-manager.

use std::path::Path;

/// The files and addresses that the programs of one control plane share.
#[derive(Debug, Clone)]
pub(crate) struct Layout<'a> {
    /// Where the programs are.
    pub(crate) bin: &'a Path,
    /// Where this control plane's files are.
    pub(crate) directory: &'a Path,
    /// etcd's client port.
    pub(crate) etcd_port: u16,
}

impl Layout<'_> {
    /// etcd, with its peer port (it insists on one).
    pub(crate) fn etcd(&self, peer_port: u16, fsync: bool, flags: &[String]) -> Vec<String> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{peer_port}");
        let mut words = self.program("etcd");
        words.extend([
            format!("--data-dir={}", self.file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=warn".to_owned(),
        ]);
        if !fsync {
            words.push("--unsafe-no-fsync".to_owned());
        }
        words.extend_from_slice(flags);
        words
    }

    /// One kube-apiserver. Without a controller-manager nobody makes service accounts, so pods are not asked to have one.
    pub(crate) fn api_server(
        &self,
        port: u16,
        service_accounts: bool,
        audit_log: Option<&Path>,
        flags: &[String],
    ) -> Vec<String> {
        let mut words = self.program("kube-apiserver");
        words.extend([
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            // No Service leads to these API servers, and loopback addresses may not be endpoints.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--cert-dir={}", self.file("")),
            format!("--tls-cert-file={}", self.file("tls.crt")),
            format!("--tls-private-key-file={}", self.file("tls.key")),
            format!("--client-ca-file={}", self.file("ca.crt")),
            format!("--token-auth-file={}", self.file("tokens.csv")),
            format!("--service-account-key-file={}", self.file("service-accounts.pub")),
            format!(
                "--service-account-signing-key-file={}",
                self.file("service-accounts.key")
            ),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
        ]);
        if !service_accounts {
            words.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        if let Some(path) = audit_log {
            words.push(format!("--audit-policy-file={}", self.file("audit-policy.yaml")));
            words.push(format!("--audit-log-path={}", path.display()));
            // Without it a second file is begun after 100 MB.
            words.push("--audit-log-maxsize=10240".into());
        }
        words.extend_from_slice(flags);
        words
    }

    /// kube-controller-manager, with all controllers.
    pub(crate) fn controller_manager(&self, port: u16, kubeconfig: &Path) -> Vec<String> {
        let mut words = self.program("kube-controller-manager");
        words.extend([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", self.file("tls.crt")),
            format!("--tls-private-key-file={}", self.file("tls.key")),
            "--leader-elect=false".to_owned(),
            format!(
                "--service-account-private-key-file={}",
                self.file("service-accounts.key")
            ),
            format!("--root-ca-file={}", self.file("ca.crt")),
            "--controllers=*".to_owned(),
        ]);
        words
    }

    /// The program itself, in an environment that depends on nothing outside.
    fn program(&self, name: &str) -> Vec<String> {
        vec![
            "env".to_owned(),
            "-i".to_owned(),
            format!("HOME={}", self.file("")),
            "PATH=/usr/bin:/bin".to_owned(),
            self.bin.join(name).display().to_string(),
        ]
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// Who did what, with the audit annotations of webhooks, and no bodies. The API server's calls to itself are left out.
pub(crate) const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: [\"system:apiserver\"]}
- {level: None, nonResourceURLs: [\"/readyz*\", \"/livez*\", \"/healthz*\"]}
- {level: Metadata}
";
