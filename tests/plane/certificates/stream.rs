//! Creates that go on whatever happens, and new connections to each replica beside them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::tls::trust::certificates;
use deployer_guard_testkit::Stage;
use deployer_guard_testkit::objects::{create_pod, make_namespace};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::creators::deployer;

/// Creates that go on, and handshakes with each replica that trust what is stored.
pub(super) struct Stream {
    ended: Arc<AtomicBool>,
    pub(super) creates: Arc<AtomicUsize>,
    running: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Stream {
    pub(super) async fn start(stage: &'static Stage, namespace: &'static str) -> anyhow::Result<Self> {
        make_namespace(&stage.plane.client(0), namespace, &[], false).await?;
        let (ended, creates) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut running = Vec::new();
        for creator in 0..2 {
            let (ended, creates) = (Arc::clone(&ended), Arc::clone(&creates));
            let client = stage.plane.client(creator % stage.plane.api_servers());
            running.push(tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let i = creates.fetch_add(1, Ordering::Relaxed);
                    let config = format!("c{}", i / 3);
                    let pod = deployer(&config, "1", &format!("{config}-{}", i % 3));
                    let answer = create_pod(&client, namespace, &pod).await?;
                    let why = answer.message();
                    // A rule of ours, and nothing else.
                    let by_rule = answer.code == 403 && why.contains("DeployerPolicy \"by-label\" refuses");
                    ensure!(answer.code == 201 || by_rule, "create {i}: {} {why}", answer.code);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            }));
        }
        for replica in &stage.replicas {
            let ended = Arc::clone(&ended);
            running.push(tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let trusted = stage.ca_bundle().await?;
                    shake_hands(replica.address, &trusted)
                        .await
                        .with_context(|| format!("a new connection to {}", replica.address))?;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(())
            }));
        }
        Ok(Self {
            ended,
            creates,
            running,
        })
    }

    pub(super) async fn end(self) -> anyhow::Result<usize> {
        self.ended.store(true, Ordering::Relaxed);
        for task in self.running {
            task.await??;
        }
        Ok(self.creates.load(Ordering::Relaxed))
    }
}

/// A connection as an API server makes it that trusts these authorities alone.
pub(super) async fn shake_hands(address: SocketAddr, trusted: &[u8]) -> anyhow::Result<()> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(trusted).map_err(anyhow::Error::msg)? {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(address.ip().to_string())?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(())
}
