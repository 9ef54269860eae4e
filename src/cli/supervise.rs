//! `deployer-guard guard --supervise`: a guard that is begun again within its container.
//!
//! A Pod is ready only while all its containers run. A guard whose process ends must not take the webhook beside it out of
//! the Service for as long as kubelet backs off, so a small parent stays, and begins it again.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
#[cfg(target_os = "linux")]
use rustix::process::set_parent_process_death_signal;
use rustix::process::{Pid, Signal, getppid, kill_process};
use tokio::process::{Child, Command};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The flag that makes the parent, and its environment twin: neither is the child's.
const FLAG: &str = "--supervise";
pub(super) const ENV: &str = "DEPLOYER_GUARD_SUPERVISE";
/// Tells a child which process is its parent.
const PARENT: &str = "DEPLOYER_GUARD_SUPERVISED_BY";

/// First and longest pause before the child is begun again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// A child that ends by itself sooner than this was never able to run: its flags are wrong, say.
const ABLE: Duration = Duration::from_secs(10);

/// What is to be done when the child has ended.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// End with this code.
    End(u8),
    /// Begin it again, after a pause.
    Again(Duration),
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Killed(Signal),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        let signal = status.signal().and_then(Signal::from_named_raw);
        signal.map_or_else(|| Self::Code(status.code().unwrap_or(1)), Self::Killed)
    }
}

fn as_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(1)
}

/// What is known of the children that there were.
#[derive(Debug)]
struct History {
    able: bool,
    pause: Duration,
}

impl History {
    fn new() -> Self {
        Self {
            able: false,
            pause: FIRST_PAUSE,
        }
    }

    /// A child that was asked to end, ends all; it is no failure if that killed it before it could heed it. One that ended by itself before any was able to run, too, so that wrong flags are
    /// seen as a Pod that does not start. Any other is begun again.
    fn next(&mut self, asked: bool, ended: Ended, ran: Duration) -> Next {
        self.able |= ran >= ABLE || matches!(ended, Ended::Killed(_));
        match ended {
            Ended::Killed(signal) if asked && [Signal::TERM, Signal::INT].contains(&signal) => return Next::End(0),
            Ended::Killed(signal) if asked => return Next::End(as_code(128 + signal.as_raw())),
            Ended::Code(code) if asked || !self.able => return Next::End(as_code(code)),
            _ => {}
        }
        if ran > LONGEST_PAUSE * 2 {
            self.pause = FIRST_PAUSE;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Next::Again(pause)
    }
}

/// In a child: asks the kernel to end this process as SIGTERM does, should its parent end without a word (SIGKILL). A guard that nobody
/// supervises would go on as a stranger beside the next one. Elsewhere nothing is done.
///
/// # Errors
/// If the parent has ended already.
pub(super) fn follow_parent() -> anyhow::Result<()> {
    let parent = std::env::var(PARENT)
        .ok()
        .and_then(|parent| parent.parse().ok())
        .and_then(Pid::from_raw);
    let Some(parent) = parent else { return Ok(()) };
    #[cfg(target_os = "linux")]
    set_parent_process_death_signal(Some(Signal::TERM)).context("the end of the parent cannot be followed")?;
    ensure!(
        getppid() == Some(parent),
        "the process that supervised this one has ended"
    );
    Ok(())
}

/// Runs this program again without the flag, and begins it anew whenever it ends, until it is asked to end. SIGTERM and SIGINT go
/// on to the child.
///
/// # Errors
/// If the first child cannot be begun, or each so far ended at once.
pub(super) fn run() -> anyhow::Result<ExitCode> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?
        .block_on(supervise())
}

async fn supervise() -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be caught")?;
    let mut history = History::new();
    let mut asked = false;
    loop {
        let begun = Instant::now();
        let (ended, what) = match begin() {
            Ok(mut child) => {
                let status = loop {
                    tokio::select! {
                        ended = child.wait() => break ended.context("the guard cannot be waited for")?,
                        Some(()) = terminate.recv() => pass_on(&child, Signal::TERM),
                        Some(()) = interrupt.recv() => pass_on(&child, Signal::INT),
                    }
                    asked = true;
                };
                (Ended::from(status), status.to_string())
            }
            // Memory or processes ran out, perhaps: that passes, and the webhook beside us is well.
            Err(error) if history.able => (Ended::Code(1), format!("{error:#}")),
            Err(error) => return Err(error),
        };
        let pause = match history.next(asked, ended, begun.elapsed()) {
            Next::End(code) => return Ok(ExitCode::from(code)),
            Next::Again(pause) => pause,
        };
        tracing::error!(
            what,
            ?pause,
            "the guard's process ended, or could not be begun; beginning it again"
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Some(()) = terminate.recv() => return Ok(ExitCode::SUCCESS),
            Some(()) = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn begin() -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("this program's own file cannot be found")?;
    let args = without_flag(std::env::args_os().skip(1));
    Command::new(program)
        .args(args)
        .env_remove(ENV)
        .env(PARENT, std::process::id().to_string())
        // What a terminal sends to all of its processes reaches the parent alone, which passes it on: a second signal cuts an end short.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("the guard cannot be begun")
}

fn without_flag(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    args.filter(|arg| {
        arg.to_str()
            .is_none_or(|arg| arg != FLAG && !arg.starts_with("--supervise="))
    })
    .collect()
}

fn pass_on(child: &Child, signal: Signal) {
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) else {
        return;
    };
    if let Err(error) = kill_process(pid, signal) {
        tracing::warn!(%error, "the guard could not be told to end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Ended = Ended::Killed(Signal::KILL);

    #[test]
    fn one_that_was_killed_is_begun_again_with_growing_pauses() {
        let mut history = History::new();
        let pauses: Vec<_> = (0..6).map(|_| history.next(false, KILLED, Duration::ZERO)).collect();
        let seconds = [1, 2, 4, 8, 15, 15].map(|s| Next::Again(Duration::from_secs(s)));
        assert_eq!(pauses, seconds);
        assert_eq!(
            history.next(false, KILLED, Duration::from_mins(1)),
            Next::Again(FIRST_PAUSE)
        );
    }

    #[test]
    fn one_that_never_ran_ends_all_with_its_code() {
        assert_eq!(History::new().next(false, Ended::Code(2), Duration::ZERO), Next::End(2));
        let mut history = History::new();
        assert_eq!(history.next(false, Ended::Code(1), ABLE), Next::Again(FIRST_PAUSE));
        assert!(matches!(
            history.next(false, Ended::Code(1), Duration::ZERO),
            Next::Again(_)
        ));
    }

    #[test]
    fn one_that_was_asked_ends_all() {
        for (ended, code) in [
            (Ended::Code(0), 0),
            (Ended::Code(3), 3),
            (Ended::Killed(Signal::TERM), 0),
            (Ended::Killed(Signal::INT), 0),
            (KILLED, 137),
        ] {
            assert_eq!(History::new().next(true, ended, ABLE), Next::End(code), "{ended:?}");
        }
    }

    #[test]
    fn the_child_has_all_other_flags() {
        let args = ["guard", "--supervise", "--dry-run", "--supervise=true"].map(OsString::from);
        assert_eq!(without_flag(args.into_iter()), ["guard", "--dry-run"]);
    }
}
