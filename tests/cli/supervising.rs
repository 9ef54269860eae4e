//! `guard --supervise`, as processes: nobody is left behind, and an end that was asked for is none of anybody's failures.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A parent and the guard that it began; an API server is not there.
struct Supervised {
    parent: Child,
    kubeconfig: std::path::PathBuf,
}

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:9'}}]
users: [{name: none, user: {}}]
";

impl Supervised {
    fn begin(what: &str) -> Self {
        let name = format!("deployer-guard-{}-{what}.kubeconfig", std::process::id());
        let kubeconfig = std::env::temp_dir().join(name);
        fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let parent = Command::new(env!("CARGO_BIN_EXE_deployer-guard"))
            .args(["guard", "--supervise", "--health-listen", "127.0.0.1:0"])
            .env("KUBECONFIG", &kubeconfig)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { parent, kubeconfig }
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.parent)
    }

    /// The guard, when there is another than before.
    fn guard(&self, before: Option<Pid>) -> Pid {
        let id = self.id().as_raw_nonzero();
        eventually("the parent has no child", || {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
            let child = children
                .split_whitespace()
                .next()
                .and_then(|id| Pid::from_raw(id.parse().unwrap()));
            child.filter(|child| Some(*child) != before)
        })
    }

    /// Waits until the guard catches signals, as far as the system tells.
    fn catches(guard: Pid) {
        let catches = || {
            let status = fs::read_to_string(format!("/proc/{}/status", guard.as_raw_nonzero())).ok()?;
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim();
            let bit = 1 << (Signal::TERM.as_raw() - 1);
            (u64::from_str_radix(caught, 16).ok()? & bit != 0).then_some(())
        };
        eventually("the guard does not catch SIGTERM", catches);
    }

    fn code(&mut self) -> Option<i32> {
        eventually("the parent does not end", || self.parent.try_wait().unwrap()).code()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.parent.kill();
        let _ = self.parent.wait();
        let _ = fs::remove_file(&self.kubeconfig);
    }
}

/// Whether it is gone, or waits for nobody to ask how it ended.
fn has_ended(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
    status.map_or(true, |status| status.lines().any(|line| line.starts_with("State:\tZ")))
}

fn eventually<T>(fault: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{fault}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_guard_that_is_killed_is_begun_again_and_one_whose_parent_is_killed_ends() {
    let mut supervised = Supervised::begin("killed");
    let first = supervised.guard(None);
    kill_process(first, Signal::KILL).unwrap();
    let second = supervised.guard(Some(first));
    Supervised::catches(second);
    supervised.parent.kill().unwrap();
    supervised.parent.wait().unwrap();
    eventually("the guard outlives who supervises it", || {
        has_ended(second).then_some(())
    });
}

#[test]
fn whoever_is_asked_to_end_at_whatever_moment_ends_with_success() {
    for moment in ["at once", "later", "twice"] {
        let mut supervised = Supervised::begin(&moment.replace(' ', "-"));
        let guard = supervised.guard(None);
        if moment != "at once" {
            Supervised::catches(guard);
        }
        kill_process(supervised.id(), Signal::TERM).unwrap();
        if moment == "twice" {
            // It may have ended on the first.
            let _ = kill_process(supervised.id(), Signal::TERM);
        }
        assert_eq!(supervised.code(), Some(0), "{moment}");
        eventually("the guard is left behind", || has_ended(guard).then_some(()));
    }
}
