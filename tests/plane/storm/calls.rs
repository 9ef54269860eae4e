//! Which replica an API server's calls went to.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::{Program, Stage, State, until};

/// To which replicas the calls of each API server went: who owns the connections that the balancer passed on.
pub(super) struct Calls {
    pids: Vec<u32>,
    owners: HashMap<SocketAddr, usize>,
    pub(super) backends: [HashSet<SocketAddr>; 2],
    /// How many connections there were in the beginning.
    before: usize,
}

impl Calls {
    /// Those whose connections are open now.
    pub(super) async fn of(stage: &Stage) -> anyhow::Result<Self> {
        let mut pids = Vec::new();
        for i in 0..2 {
            match stage.plane.process(Program::ApiServer(i)).state()? {
                State::Running { pid } => pids.push(pid),
                ended @ State::Ended { .. } => anyhow::bail!("API server {i}: {ended:?}"),
            }
        }
        let mut calls = Self {
            pids,
            owners: HashMap::new(),
            backends: Default::default(),
            before: stage.balancer.connections().len(),
        };
        // The kernel's table may leave out lines while it changes.
        until("every connection to have an owner", Duration::from_secs(5), || {
            std::future::ready(calls.look(stage).and_then(|()| {
                let mut open = stage
                    .balancer
                    .connections()
                    .into_iter()
                    .filter(|connection| connection.open);
                ensure!(
                    open.all(|connection| calls.owners.contains_key(&connection.client)),
                    "not all have"
                );
                Ok(())
            }))
        })
        .await?;
        Ok(calls)
    }

    /// Takes in the connections that were made since.
    pub(super) fn look(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let inodes = inodes(stage.balancer.address())?;
        let sockets: Vec<HashSet<u64>> = self.pids.iter().map(|pid| sockets(*pid)).collect::<Result<_, _>>()?;
        for (number, connection) in stage.balancer.connections().iter().enumerate() {
            let inode = inodes.get(&connection.client);
            let owner = inode.and_then(|inode| sockets.iter().position(|sockets| sockets.contains(inode)));
            if let Some(owner) = owner.filter(|_| connection.open) {
                self.owners.insert(connection.client, owner);
            }
            match self.owners.get(&connection.client) {
                Some(owner) => drop(self.backends[*owner].insert(connection.backend)),
                // It came and went in this round: it may have been anybody's.
                None if number >= self.before => {
                    for backends in &mut self.backends {
                        backends.insert(connection.backend);
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    pub(super) fn went(&self, api_server: usize, replica: SocketAddr) -> bool {
        self.backends[api_server].contains(&replica)
    }
}

/// The inode of each TCP socket of this machine that is connected to `remote`, by its local address.
fn inodes(remote: SocketAddr) -> anyhow::Result<HashMap<SocketAddr, u64>> {
    let table = fs::read_to_string("/proc/net/tcp")?;
    let address = |field: &str| {
        let (address, port) = field.split_once(':')?;
        let address = u32::from_str_radix(address, 16).ok()?.to_le_bytes();
        Some(SocketAddr::from((address, u16::from_str_radix(port, 16).ok()?)))
    };
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A local port may be used for several remote ones.
        let to_remote = address(fields.get(2)?)? == remote;
        let inode = fields.get(9)?.parse().ok()?;
        to_remote.then_some((address(fields.get(1)?)?, inode))
    };
    Ok(table.lines().skip(1).filter_map(socket).collect())
}

/// The inodes of the sockets that a process has open.
fn sockets(pid: u32) -> anyhow::Result<HashSet<u64>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(links
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect())
}
