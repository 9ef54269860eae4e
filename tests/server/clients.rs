//! Callers with and without a client certificate.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard::tls::clients::ClientArgs;
use deployer_guard::tls::{Tls, TlsFiles};
use deployer_guard_testkit::{Issued, Pki};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, SupportedProtocolVersion};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Answer, Pair, Site, directory, post};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    clients: ClientArgs,
}

const LOOK: Duration = Duration::from_millis(20);

fn serve(dir: &Path, flags: &[&str]) -> Site {
    let pair = Pair::until(2090);
    std::fs::write(dir.join("tls.crt"), &pair.cert).unwrap();
    std::fs::write(dir.join("tls.key"), &pair.key).unwrap();
    let ca = dir.join("ca.crt").display().to_string();
    let args = ["test", "--client-ca-file", &ca];
    let metrics = Arc::new(Metrics::new());
    let clients = Cli::parse_from(args.iter().chain(flags)).clients;
    let clients = clients.load(LOOK, metrics.client_refusals()).unwrap().unwrap();
    let tls = TlsFiles::load(dir.join("tls.crt"), dir.join("tls.key")).unwrap();
    let tls = Tls::from(Arc::new(tls)).checking(Arc::new(clients));
    Site::counting(tls, vec![pair.der], metrics)
}

/// One call as this client; `None`: it is not served.
async fn call(site: &Site, version: &'static SupportedProtocolVersion, client: Option<&Issued>) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(site.trusted[0].clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let stream = TcpStream::connect(site.addresses[0]).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    // With TLS 1.3 a client learns of its refusal when it reads.
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    stream.write_all(&post("/a", b"{}")).await.ok()?;
    stream.flush().await.ok()?;
    Answer::read(&mut stream).await.ok().map(|answer| answer.status)
}

fn refusals(site: &Site, reason: &str) -> u64 {
    let text = site.metrics.encode();
    let line = format!("deployer_guard_client_refusals_total{{reason=\"{reason}\"}} ");
    let count = text.lines().find_map(|one| one.strip_prefix(&line));
    count.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_caller_with_a_certificate_of_the_authority_and_a_name_is_served_whatever_version_it_speaks() {
    let dir = directory("clients");
    let (ours, others) = (Pki::client("ours").unwrap(), Pki::client("others").unwrap());
    ours.write_ca(&dir).unwrap();
    let site = serve(&dir, &["--client-name", "kube-apiserver,api.example"]);
    let named = ours.serving(&["kube-apiserver"]).unwrap();
    let alternative = ours.serving(&["first.example", "api.example"]).unwrap();
    let other_name = ours.serving(&["somebody"]).unwrap();
    let stranger = others.serving(&["kube-apiserver"]).unwrap();
    for (round, version) in [(1, &TLS12), (2, &TLS13)] {
        assert_eq!(call(&site, version, None).await, None, "{version:?}");
        assert_eq!(call(&site, version, Some(&stranger)).await, None, "{version:?}");
        assert_eq!(call(&site, version, Some(&other_name)).await, None, "{version:?}");
        assert_eq!(call(&site, version, Some(&named)).await, Some(200), "{version:?}");
        assert_eq!(call(&site, version, Some(&alternative)).await, Some(200), "{version:?}");
        for reason in ["no_certificate", "not_trusted", "other_name"] {
            assert_eq!(refusals(&site, reason), round, "{reason}, {version:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authorities_of_callers_are_those_of_the_file_and_a_broken_one_changes_nothing() {
    let dir = directory("client-authorities");
    let (old, new) = (Pki::client("old").unwrap(), Pki::client("new").unwrap());
    old.write_ca(&dir).unwrap();
    let site = serve(&dir, &[]);
    let (before, after) = (old.serving(&["a"]).unwrap(), new.serving(&["a"]).unwrap());
    assert_eq!(call(&site, &TLS13, Some(&before)).await, Some(200));
    std::fs::write(dir.join("ca.crt"), "nonsense").unwrap();
    tokio::time::sleep(LOOK * 10).await;
    assert_eq!(call(&site, &TLS13, Some(&before)).await, Some(200));
    new.write_ca(&dir).unwrap();
    for _ in 0..500 {
        if call(&site, &TLS13, Some(&after)).await == Some(200) {
            assert_eq!(call(&site, &TLS13, Some(&before)).await, None);
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("the new authority is never heeded");
}

#[test]
fn what_is_no_authority_is_refused_with_the_flag_to_mend() {
    let dir = directory("no-client-authority");
    let path = dir.join("ca.crt").display().to_string();
    let load = || {
        let args = Cli::parse_from(["test", "--client-ca-file", &path]).clients;
        args.load(LOOK, &Arc::default()).unwrap_err().to_string()
    };
    assert!(load().contains("--client-ca-file"));
    std::fs::write(&path, "nonsense").unwrap();
    assert!(load().contains("must hold one or more PEM certificates"));
}
