//! Free loopback ports.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::bail;

/// Below this live the ports that people configure by hand.
const LOWEST: u16 = 15_000;

/// `count` different loopback ports that nobody listens on at the moment.
///
/// They lie below the range from which the kernel takes ports for outgoing connections, so that a program which is
/// killed and started again finds its port still free.
///
/// # Errors
/// If no free ports are found.
pub fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    let highest = first_ephemeral().max(LOWEST + 5_000);
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..1_000 {
        if listeners.len() == count {
            break;
        }
        let port = LOWEST + random_below(highest - LOWEST);
        // Held until all are found, so that none is given twice.
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            listeners.push((port, listener));
        }
    }
    if listeners.len() < count {
        bail!("found no {count} free loopback ports between {LOWEST} and {highest}");
    }
    Ok(listeners.into_iter().map(|(port, _listener)| port).collect())
}

/// The first port of the kernel's range for outgoing connections.
fn first_ephemeral() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

/// A number below `bound`, different in each process and call: the standard library seeds its hashers randomly.
fn random_below(bound: u16) -> u16 {
    u16::try_from(random() % u64::from(bound)).unwrap_or_default()
}

/// 64 random bits: good for names, ports and the tokens of a throw-away control plane.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
