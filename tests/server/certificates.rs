//! Certificates that change while they are served with.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use deployer_guard::tls::TlsFiles;
use rustls::pki_types::CertificateDer;

use crate::support::{Pair, Site, directory};

const LOOK: Duration = Duration::from_millis(20);

fn write(dir: &Path, pair: &Pair) {
    std::fs::write(dir.join("tls.crt"), &pair.cert).unwrap();
    std::fs::write(dir.join("tls.key"), &pair.key).unwrap();
}

/// A directory as kubelet mounts a Secret: `tls.crt -> ..data/tls.crt`, `..data -> ..<n>`.
fn mount(dir: &Path, version: &str, pair: &Pair) {
    let data: PathBuf = dir.join(format!("..{version}"));
    std::fs::create_dir(&data).unwrap();
    write(&data, pair);
    symlink(format!("..{version}"), dir.join("..data_tmp")).unwrap();
    std::fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        if !dir.join(name).exists() {
            symlink(format!("..data/{name}"), dir.join(name)).unwrap();
        }
    }
}

fn serve(dir: &Path, pairs: &[&Pair]) -> Site {
    let tls = TlsFiles::load(dir.join("tls.crt"), dir.join("tls.key"))
        .unwrap()
        .reread_every(LOOK);
    Site::start_with(&[], tls, pairs.iter().map(|pair| pair.der.clone()).collect())
}

async fn served(site: &Site) -> CertificateDer<'static> {
    let stream = site.connect().await;
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

async fn becomes(site: &Site, pair: &Pair) {
    for _ in 0..500 {
        if served(site).await == pair.der {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("the new certificate is never served");
}

async fn several_looks() {
    tokio::time::sleep(LOOK * 15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_symlink_swap_as_kubelet_does_it_is_seen_each_time() {
    let (one, two, three) = (Pair::until(2090), Pair::until(2091), Pair::until(2092));
    let dir = directory("kubelet");
    mount(&dir, "1", &one);
    let site = serve(&dir, &[&one, &two, &three]);
    assert_eq!(served(&site).await, one.der);
    assert!(
        site.metrics
            .encode()
            .contains("deployer_guard_certificate_not_after_seconds 3786912000")
    );
    for (version, pair, not_after) in [("2", &two, "3818448000"), ("3", &three, "3849984000")] {
        mount(&dir, version, pair);
        becomes(&site, pair).await;
        let metrics = site.metrics.encode();
        assert!(
            metrics.contains(&format!("deployer_guard_certificate_not_after_seconds {not_after}")),
            "{metrics}"
        );
    }
    assert!(
        site.metrics
            .encode()
            .contains("deployer_guard_certificate_reload_failures_total 0")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_pair_is_reported_once_and_the_last_good_one_stays() {
    let (one, two, expired) = (Pair::until(2090), Pair::until(2091), Pair::until(2001));
    let dir = directory("broken");
    write(&dir, &one);
    let site = serve(&dir, &[&one, &two]);
    let mut failures = 0;
    let half = &two.cert[..two.cert.len() / 2];
    for (what, cert, key) in [
        ("half a certificate", half, one.key.as_str()),
        ("no certificate", "", one.key.as_str()),
        ("another certificate's key", two.cert.as_str(), one.key.as_str()),
        ("half a key", two.cert.as_str(), &two.key[..60]),
        ("one that expired", expired.cert.as_str(), expired.key.as_str()),
    ] {
        std::fs::write(dir.join("tls.key"), key).unwrap();
        std::fs::write(dir.join("tls.crt"), cert).unwrap();
        several_looks().await;
        assert_eq!(served(&site).await, one.der, "{what}");
        failures += 1;
        let metrics = site.metrics.encode();
        assert!(
            metrics.contains(&format!("certificate_reload_failures_total {failures}\n")),
            "{what}: {metrics}"
        );
    }
    std::fs::remove_file(dir.join("tls.crt")).unwrap();
    several_looks().await;
    assert_eq!(served(&site).await, one.der, "no file");
    write(&dir, &two);
    becomes(&site, &two).await;
}

#[test]
fn what_cannot_be_loaded_is_refused_with_the_flag_to_mend() {
    let (one, two) = (Pair::until(2090), Pair::until(2091));
    let dir = directory("load");
    let (cert, key) = (dir.join("tls.crt"), dir.join("tls.key"));
    let refusal = || TlsFiles::load(&cert, &key).unwrap_err().to_string();
    assert!(refusal().contains("--tls-cert-file"));
    std::fs::write(&cert, &one.cert).unwrap();
    assert!(refusal().contains("--tls-key-file"));
    std::fs::write(&key, "nothing").unwrap();
    assert!(refusal().contains("no private key in"));
    std::fs::write(&key, &two.key).unwrap();
    assert!(refusal().contains("do not go together"));
    std::fs::write(&cert, "nothing").unwrap();
    assert!(refusal().contains("no certificate in"));
    write(&dir, &one);
    assert_eq!(TlsFiles::load(&cert, &key).unwrap().not_after(), 3_786_912_000);
}
