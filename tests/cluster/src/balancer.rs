//! What a Service does before webhook replicas: each new connection goes to the next backend.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long a backend may take to accept a connection before the next one is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A TCP proxy on a loopback port that gives each new connection to the next of its backends, and to the one after it
/// if that one refuses. A backend that is paused still accepts: the kernel does it for it.
///
/// Connections stay with their backend until one side closes, as they do behind a Service. Dropping the balancer closes
/// its port and its connections.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// One connection that a backend accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Who connected.
    pub client: SocketAddr,
    /// Which backend it went to.
    pub backend: SocketAddr,
    /// Whether it is open still.
    pub open: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Balance>,
    /// What is held.
    held: watch::Sender<Held>,
    /// How often the connections of a backend were cut.
    cuts: watch::Sender<HashMap<SocketAddr, u64>>,
}

/// What does not pass.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// New connections, and bytes to the backends.
    there: bool,
    /// Bytes from the backends.
    back: bool,
}

#[derive(Debug, Default)]
struct Balance {
    backends: Vec<SocketAddr>,
    next: usize,
    delay: Duration,
    connections: Vec<Connection>,
    refused: usize,
}

impl Balancer {
    /// Starts one on a free loopback port.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn start(backends: impl IntoIterator<Item = SocketAddr>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("a port for the balancer")?;
        let address = listener.local_addr()?;
        let state = Balance {
            backends: backends.into_iter().collect(),
            ..Balance::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            held: watch::Sender::new(Held::default()),
            cuts: watch::Sender::new(HashMap::new()),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a backend.
    pub fn add(&self, backend: SocketAddr) {
        self.shared.state().backends.push(backend);
    }

    /// Gives a backend no new connection. Those it has stay open; see [`Balancer::cut`].
    pub fn remove(&self, backend: SocketAddr) {
        self.shared.state().backends.retain(|other| *other != backend);
    }

    /// Closes the open connections of a backend.
    pub fn cut(&self, backend: SocketAddr) {
        self.shared
            .cuts
            .send_modify(|cuts| *cuts.entry(backend).or_default() += 1);
    }

    /// Stops everything that passes, in both directions, until [`Balancer::release`]: no byte is lost. New connections
    /// are accepted and wait.
    pub fn hold(&self) {
        self.shared.held.send_replace(Held {
            there: true,
            back: true,
        });
    }

    /// Stops what the backends answer until [`Balancer::release`]: no byte is lost. What they are asked passes, and so do the handshakes of
    /// TLS 1.3, without which nothing would be asked on a new connection.
    pub fn hold_answers(&self) {
        self.shared.held.send_replace(Held {
            there: false,
            back: true,
        });
    }

    /// Ends what [`Balancer::hold`] or [`Balancer::hold_answers`] began.
    pub fn release(&self) {
        self.shared.held.send_replace(Held::default());
    }

    /// Lets each new connection wait this long before it is given to a backend.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }

    /// All connections that a backend accepted, in order.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        self.shared.state().connections.clone()
    }

    /// How many connections each backend was given.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<SocketAddr, usize> {
        let mut counts = BTreeMap::new();
        for connection in &self.shared.state().connections {
            *counts.entry(connection.backend).or_default() += 1;
        }
        counts
    }

    /// How many connections no backend accepted; they were closed.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.shared.state().refused
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Balance> {
        lock(&self.state)
    }

    /// The backends in the order in which to try them for the next connection.
    fn turn(&self) -> Vec<SocketAddr> {
        let mut state = self.state();
        let mut order = state.backends.clone();
        if !order.is_empty() {
            let first = state.next % order.len();
            order.rotate_left(first);
            state.next = first + 1;
        }
        order
    }

    async fn wait_released(&self, way: fn(&Held) -> bool) {
        // The sender is in `self`, so this cannot fail.
        let mut held = self.held.subscribe();
        let _released = held.wait_for(|held| !way(held)).await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and with it all connections.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => drop(connections.spawn(serve(stream, client, Arc::clone(&shared)))),
                Err(_out_of_files) => sleep(Duration::from_millis(20)).await,
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, client: SocketAddr, shared: Arc<Shared>) {
    let delay = shared.state().delay;
    sleep(delay).await;
    shared.wait_released(|held| held.there).await;
    let mut cuts = shared.cuts.subscribe();
    for backend in shared.turn() {
        let Ok(Ok(onward)) = timeout(CONNECT_LIMIT, TcpStream::connect(backend)).await else {
            continue;
        };
        let cuts_before = cuts.borrow().get(&backend).copied();
        let number = {
            let mut state = shared.state();
            state.connections.push(Connection {
                client,
                backend,
                open: true,
            });
            state.connections.len() - 1
        };
        let _delays = (stream.set_nodelay(true), onward.set_nodelay(true));
        let (from_client, to_client) = stream.into_split();
        let (from_backend, to_backend) = onward.into_split();
        let both = async {
            let asked = Mutex::new(Asked::default());
            tokio::join!(
                copy(from_client, to_backend, &shared, |bytes| {
                    lock(&asked).reads(bytes);
                    |held| held.there
                }),
                copy(from_backend, to_client, &shared, |_| {
                    if lock(&asked).is_more_than_a_handshake() {
                        |held| held.back
                    } else {
                        |_| false
                    }
                })
            );
        };
        tokio::select! {
            () = both => {}
            _ = cuts.wait_for(|cuts| cuts.get(&backend).copied() != cuts_before) => {}
        }
        shared.state().connections[number].open = false;
        return;
    }
    shared.state().refused += 1;
}

/// Passes on what comes until one side is done; a reset of one half ends that half alone, and soon the other. `way` says by what the bytes
/// are held.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    way: impl Fn(&[u8]) -> fn(&Held) -> bool,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..count];
        shared.wait_released(way(bytes)).await;
        if to.write_all(bytes).await.is_err() {
            break;
        }
    }
    let _closed = to.shutdown().await;
}

/// What a client has sent on a connection, as far as it can be seen from outside.
#[derive(Debug, Default)]
struct Asked {
    /// Whether it speaks TLS, once it has spoken.
    tls: Option<bool>,
    /// Of the record that is being read: its header so far, and how much of it is still to come.
    header: Vec<u8>,
    rest: usize,
    /// Records of application data. In TLS 1.3 the first is the end of the handshake.
    records: usize,
}

impl Asked {
    /// Types of TLS records (RFC 8446, section 5.1).
    const HANDSHAKE: u8 = 22;
    const APPLICATION_DATA: u8 = 23;

    fn reads(&mut self, mut bytes: &[u8]) {
        let first = bytes.first().copied();
        if !*self.tls.get_or_insert(first == Some(Self::HANDSHAKE)) {
            return;
        }
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                self.rest -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let [kind, _, _, high, low] = self.header[..] {
                self.records += usize::from(kind == Self::APPLICATION_DATA);
                self.rest = usize::from(u16::from_be_bytes([high, low]));
                self.header.clear();
            }
        }
    }

    fn is_more_than_a_handshake(&self) -> bool {
        match self.tls {
            Some(true) => self.records > 1,
            Some(false) => true,
            None => false,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_ends_with_the_first_record_of_application_data_however_the_bytes_are_cut() {
        let record = |kind: u8, length: u16| {
            let mut record = vec![kind, 3, 3];
            record.extend(length.to_be_bytes());
            record.resize(usize::from(length) + 5, 23);
            record
        };
        let handshake = [record(22, 300), record(20, 1), record(23, 53)].concat();
        let request = record(23, 700);
        for cut in [1, 2, 5, 7, 64, 4096] {
            let mut asked = Asked::default();
            assert!(!asked.is_more_than_a_handshake());
            handshake.chunks(cut).for_each(|bytes| asked.reads(bytes));
            assert!(!asked.is_more_than_a_handshake(), "{cut}");
            request.chunks(cut).for_each(|bytes| asked.reads(bytes));
            assert!(asked.is_more_than_a_handshake(), "{cut}");
        }
        let mut plain = Asked::default();
        plain.reads(b"GET / HTTP/1.1");
        assert!(plain.is_more_than_a_handshake());
    }
}
