//! The command lines of a node's programs. Addresses are those inside its network namespace, the same on each node.

use std::path::Path;

use anyhow::Context;

use crate::programs::NodePrograms;

/// The node's own address.
pub(crate) const ADDRESS: &str = "172.30.0.2";
/// The API server's port, inside.
const PORT: u16 = 6443;
/// Where the API server is, for the programs of the node.
pub(crate) const URL: &str = "https://127.0.0.1:6443";
/// The names and addresses by which the API server is called: the third address is that of the Service `kubernetes`.
pub(crate) const NAMES: [&str; 6] = [
    "kubernetes.default.svc",
    "kubernetes.default",
    "localhost",
    "127.0.0.1",
    ADDRESS,
    "10.96.0.1",
];
/// The addresses of Services.
const SERVICES: &str = "10.96.0.0/16";
/// The name of the node.
pub(crate) const NODE: &str = "node";
/// How long a kubelet may be silent before its node counts as gone.
const GONE: &str = "20s";

/// The programs and files of one node.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    /// Where the programs are.
    pub(crate) programs: &'a NodePrograms,
    /// Where this node's files are.
    pub(crate) directory: &'a Path,
}

impl Layout<'_> {
    /// Carries connections from the loopback port of this machine.
    pub(crate) fn reach(&self) -> anyhow::Result<Vec<String>> {
        self.program("reach", &["serve".to_owned(), format!("127.0.0.1:{PORT}")])
    }

    /// etcd, which syncs to disk as in earnest.
    pub(crate) fn etcd(&self) -> anyhow::Result<Vec<String>> {
        let flags = [
            format!("--data-dir={}", self.file("etcd")),
            "--log-level=warn".to_owned(),
        ];
        self.program("etcd", &flags)
    }

    /// kube-apiserver, with an audit log.
    pub(crate) fn api_server(&self, flags: &[String]) -> anyhow::Result<Vec<String>> {
        let mut all = vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--secure-port={PORT}"),
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={ADDRESS}"),
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
            format!("--service-cluster-ip-range={SERVICES}"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--admission-control-config-file={}", self.file("admission.yaml")),
            "--allow-privileged=true".to_owned(),
            format!("--kubelet-client-certificate={}", self.file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", self.file("kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--audit-policy-file={}", self.file("audit-policy.yaml")),
            format!("--audit-log-path={}", self.file(super::AUDIT_LOG)),
            // Without it a second file is begun after 100 MB.
            "--audit-log-maxsize=10240".to_owned(),
            "--profiling=false".to_owned(),
        ];
        all.extend_from_slice(flags);
        self.program("kube-apiserver", &all)
    }

    /// kube-controller-manager, each controller with a service account of its own.
    pub(crate) fn controller_manager(&self) -> anyhow::Result<Vec<String>> {
        let flags = [
            format!("--kubeconfig={}", self.file("kubeconfig-kube-controller-manager")),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            format!(
                "--service-account-private-key-file={}",
                self.file("service-accounts.key")
            ),
            "--use-service-account-credentials=true".to_owned(),
            format!("--root-ca-file={}", self.file("ca.crt")),
            "--flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins".to_owned(),
            format!("--node-monitor-grace-period={GONE}"),
        ];
        self.program("kube-controller-manager", &flags)
    }

    /// kube-scheduler.
    pub(crate) fn scheduler(&self) -> anyhow::Result<Vec<String>> {
        let flags = [
            format!("--kubeconfig={}", self.file("kubeconfig-kube-scheduler")),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        self.program("kube-scheduler", &flags)
    }

    /// cert-manager's controllers.
    pub(crate) fn cert_manager(&self) -> anyhow::Result<Vec<String>> {
        self.program(
            "cert-manager",
            &[format!("--kubeconfig={}", self.file("kubeconfig-cert-manager"))],
        )
    }

    /// containerd.
    pub(crate) fn containerd(&self) -> Vec<String> {
        let mut words = self.environment();
        words.extend([
            "containerd".to_owned(),
            "--config".to_owned(),
            self.file("containerd.toml"),
        ]);
        words
    }

    /// kubelet.
    pub(crate) fn kubelet(&self) -> anyhow::Result<Vec<String>> {
        let flags = [
            format!("--config={}", self.file("kubelet.yaml")),
            format!("--kubeconfig={}", self.file("kubeconfig-kubelet")),
            format!("--hostname-override={NODE}"),
            format!("--node-ip={ADDRESS}"),
            "--v=2".to_owned(),
        ];
        self.program("kubelet", &flags)
    }

    /// kube-proxy.
    pub(crate) fn proxy(&self) -> anyhow::Result<Vec<String>> {
        self.program("kube-proxy", &[format!("--config={}", self.file("kube-proxy.yaml"))])
    }

    fn program(&self, name: &str, arguments: &[String]) -> anyhow::Result<Vec<String>> {
        let mut words = self.environment();
        let path = self.programs.path(name)?;
        words.push(path.to_str().context("a path that is no text")?.to_owned());
        words.extend_from_slice(arguments);
        Ok(words)
    }

    /// One that depends on nothing outside.
    fn environment(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            "-i".to_owned(),
            format!("HOME={}", self.file("")),
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ]
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}
