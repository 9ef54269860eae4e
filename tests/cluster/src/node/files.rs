//! The files of a node: certificates, tokens and the programs' own configurations.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::commands::{ADDRESS, NAMES, NODE, URL};
use crate::commands::AUDIT_POLICY;
use crate::kubeconfig::Access;
use crate::pki::{self, Pki, write};
use crate::ports::random;

/// The users of a node, with the groups that their tokens give them.
const USERS: [(&str, &str); 6] = [
    ("admin", "system:masters"),
    ("system:kube-controller-manager", ""),
    ("system:kube-scheduler", ""),
    ("system:kube-proxy", ""),
    ("system:node:node", "system:nodes"),
    ("cert-manager", "system:masters"),
];

/// The configurations, in which `@NAME@` stands for what differs from node to node.
const TEMPLATES: [(&str, &str); 6] = [
    ("admission.yaml", include_str!("../../node/admission.yaml")),
    ("webhooks.yaml", include_str!("../../node/webhooks.yaml")),
    ("containerd.toml", include_str!("../../node/containerd.toml")),
    ("cni/10-pods.conflist", include_str!("../../node/cni.conflist")),
    ("kubelet.yaml", include_str!("../../node/kubelet.yaml")),
    ("kube-proxy.yaml", include_str!("../../node/kube-proxy.yaml")),
];

/// Where the plugins of the container network may be: as Debian has them, and as everybody else.
const CNI: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Writes all of them; gives the admin's token.
pub(crate) fn write_all(directory: &Path) -> anyhow::Result<String> {
    let pki = Pki::new("deployer-guard throw-away node")?;
    pki.write_ca(directory)?;
    pki.serving(&NAMES)?.write(directory, "tls")?;
    pki.serving(&[NODE, ADDRESS])?.write(directory, "kubelet")?;
    pki.client_certificate("kube-apiserver", "system:masters")?
        .write(directory, "kubelet-client")?;
    pki.client_certificate("webhook-client", "")?
        .write(directory, "webhook-client")?;
    let (private, public) = pki::signing_key().context("making the key of service-account tokens")?;
    write(&directory.join("service-accounts.key"), &private)?;
    write(&directory.join("service-accounts.pub"), &public)?;
    write(&directory.join("audit-policy.yaml"), AUDIT_POLICY)?;
    write(&directory.join("resolv.conf"), "nameserver 10.96.0.10\n")?;
    write_templates(directory)?;
    write_users(directory)
}

/// A token for each user; for those who run inside a kubeconfig too. Gives that of the first, who is outside.
fn write_users(directory: &Path) -> anyhow::Result<String> {
    let mut tokens = String::new();
    let mut admin = String::new();
    let ca_file = directory.join("ca.crt");
    for (user, group) in USERS {
        let token = format!("{:016x}{:016x}", random(), random());
        writeln!(tokens, "{token},{user},{user},\"{group}\"")?;
        if user == USERS[0].0 {
            admin = token;
            continue;
        }
        let program = match user.strip_prefix("system:") {
            Some("node:node") => "kubelet",
            Some(program) => program,
            None => user,
        };
        let access = Access {
            url: URL,
            ca_file: &ca_file,
            user,
            token: &token,
        };
        access.write_kubeconfig(&directory.join(format!("kubeconfig-{program}")))?;
    }
    write(&directory.join("tokens.csv"), &tokens)?;
    Ok(admin)
}

fn write_templates(directory: &Path) -> anyhow::Result<()> {
    let cni = CNI.into_iter().find(|path| Path::new(path).join("bridge").exists());
    let cni = cni.with_context(|| format!("no CNI plugins in {CNI:?}"))?;
    let group = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    fs::create_dir(directory.join("cni"))?;
    for (name, template) in TEMPLATES {
        let text = template
            .replace("@DIR@", &directory.display().to_string())
            .replace("@GROUP@", group)
            .replace("@CNI@", cni);
        ensure!(!text.contains('@'), "{name} has a placeholder that nobody fills");
        write(&PathBuf::from(directory).join(name), &text)?;
    }
    Ok(())
}
