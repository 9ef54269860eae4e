//! The balancer. Needs: sockets on loopback.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use deployer_guard_testkit::{Balancer, free_ports, http_get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const SOON: Duration = Duration::from_millis(300);

#[tokio::test]
async fn connections_go_round_and_past_a_dead_backend() -> anyhow::Result<()> {
    let (a, b) = (backend("a").await?, backend("b").await?);
    let dead = SocketAddr::from(([127, 0, 0, 1], free_ports(1)?[0]));
    let balancer = Balancer::start([a, dead, b]).await?;
    for _ in 0..6 {
        ask(&balancer).await?;
    }
    let counts = balancer.counts();
    assert_eq!(counts.values().sum::<usize>(), 6);
    assert!(
        counts[&a] >= 2 && counts[&b] >= 2 && !counts.contains_key(&dead),
        "{counts:?}"
    );

    balancer.remove(a);
    balancer.remove(dead);
    for _ in 0..3 {
        assert_eq!(ask(&balancer).await?, "b");
    }
    balancer.remove(b);
    assert!(ask(&balancer).await.is_err());
    assert_eq!(balancer.refused(), 1);
    balancer.add(a);
    assert_eq!(ask(&balancer).await?, "a");
    Ok(())
}

#[tokio::test]
async fn what_is_held_comes_later_and_whole() -> anyhow::Result<()> {
    let echo = backend("e").await?;
    let balancer = Balancer::start([echo]).await?;
    let mut stream = TcpStream::connect(balancer.address()).await?;
    stream.write_all(b"one").await?;
    assert_eq!(read(&mut stream).await?, "eone");
    balancer.hold();
    stream.write_all(b"two").await?;
    assert!(timeout(SOON, read(&mut stream)).await.is_err());
    balancer.release();
    assert_eq!(read(&mut stream).await?, "etwo");

    balancer.hold_answers();
    stream.write_all(b"three").await?;
    assert!(timeout(SOON, read(&mut stream)).await.is_err());
    balancer.release();
    assert_eq!(read(&mut stream).await?, "ethree");

    balancer.set_delay(SOON);
    let began = Instant::now();
    ask(&balancer).await?;
    assert!(began.elapsed() >= SOON);
    Ok(())
}

#[tokio::test]
async fn cutting_a_backend_closes_its_connections_alone() -> anyhow::Result<()> {
    let (a, b) = (backend("a").await?, backend("b").await?);
    let balancer = Balancer::start([a, b]).await?;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(balancer.address()).await?;
        stream.write_all(b"x").await?;
        read(&mut stream).await?;
        streams.push(stream);
    }
    balancer.cut(a);
    assert_eq!(timeout(SOON, streams[0].read(&mut [0; 8])).await?.unwrap_or(0), 0);
    streams[1].write_all(b"y").await?;
    assert_eq!(read(&mut streams[1]).await?, "by");
    let connections = balancer.connections();
    assert_eq!(ask(&balancer).await?, "a", "a later connection is not cut");
    assert_eq!(
        connections.iter().map(|it| (it.backend, it.open)).collect::<Vec<_>>(),
        [(a, false), (b, true)]
    );
    assert_eq!(connections[1].client, streams[1].local_addr()?);
    Ok(())
}

#[tokio::test]
async fn a_plain_get_tells_code_and_body() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/metrics?x=1", listener.local_addr()?);
    let server = tokio::spawn(async move {
        let (mut stream, _client) = listener.accept().await?;
        let request = read(&mut stream).await?;
        stream
            .write_all(b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy")
            .await?;
        anyhow::Ok(request)
    });
    assert_eq!(http_get(&url).await?, (503, "busy".to_owned()));
    let request = server.await??;
    assert!(request.starts_with("GET /metrics?x=1 HTTP/1.1"), "{request}");
    Ok(())
}

/// A server that answers whatever comes with its name before it.
async fn backend(name: &'static str) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _client)) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(text) = read(&mut stream).await {
                    stream.write_all(format!("{name}{text}").as_bytes()).await?;
                }
                anyhow::Ok(())
            });
        }
    });
    Ok(address)
}

/// Who answers a new connection.
async fn ask(balancer: &Balancer) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(balancer.address()).await?;
    stream.write_all(b"?").await?;
    Ok(read(&mut stream).await?.trim_end_matches('?').to_owned())
}

async fn read(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut buffer = [0; 4096];
    let count = stream.read(&mut buffer).await?;
    anyhow::ensure!(count > 0, "closed");
    Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
}
