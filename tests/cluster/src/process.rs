//! One program under a supervisor: its state, its faults, its log.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::time::sleep;

use crate::supervisor::Supervisor;
use crate::wait::until;

/// A handle to one program. Clones are handles to the same program; dropping one ends nothing.
#[derive(Debug, Clone)]
pub struct Process {
    supervisor: Arc<Supervisor>,
    name: String,
    words: Vec<String>,
}

/// What a program is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs (or is paused).
    Running {
        /// Its process id.
        pid: u32,
    },
    /// It has ended.
    Ended {
        /// Its exit code; 128 plus the number of the signal that ended it.
        code: i32,
    },
}

impl Process {
    /// A handle to the program called `name`, started with `words`.
    pub(crate) fn start_new(supervisor: &Arc<Supervisor>, name: &str, words: Vec<String>) -> anyhow::Result<Self> {
        supervisor.start_program(name, &words)?;
        Ok(Self {
            supervisor: Arc::clone(supervisor),
            name: name.to_owned(),
            words,
        })
    }

    /// The program's name, as in its log file's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// If the control plane or webhook has been stopped.
    pub fn state(&self) -> anyhow::Result<State> {
        let answer = self.supervisor.ask(&format!("status {}", self.name))?;
        match answer.split_once(' ') {
            Some(("running", pid)) => Ok(State::Running { pid: pid.parse()? }),
            Some(("ended", code)) => Ok(State::Ended { code: code.parse()? }),
            _ => bail!("the supervisor said {answer} of {}", self.name),
        }
    }

    /// Stops it in its tracks (SIGSTOP): connections stay open, the kernel goes on accepting new ones.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal("STOP")
    }

    /// Lets a paused one go on (SIGCONT).
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal("CONT")
    }

    /// Kills it (SIGKILL), paused or not; it is gone and its port free when this returns.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.signal("KILL")
    }

    /// Asks it to end (SIGTERM); [`Process::wait_end`] waits until it has.
    ///
    /// # Errors
    /// If it is not running.
    pub fn terminate(&self) -> anyhow::Result<()> {
        self.signal("TERM")
    }

    /// Starts it again with the same arguments, after killing it if it runs. Does not wait until it is ready.
    ///
    /// # Errors
    /// If the control plane or webhook has been stopped.
    pub fn restart(&self) -> anyhow::Result<()> {
        if let State::Running { .. } = self.state()? {
            self.kill()?;
        }
        self.supervisor.start_program(&self.name, &self.words)
    }

    /// Starts it again under a supervisor that knows nothing of it any more.
    pub(crate) fn start_again(&self) -> anyhow::Result<()> {
        self.supervisor.start_program(&self.name, &self.words)
    }

    /// Waits until it has ended; its exit code, as in [`State::Ended`].
    ///
    /// # Errors
    /// If it still runs after `limit`, with the end of its log.
    pub async fn wait_end(&self, limit: Duration) -> anyhow::Result<i32> {
        until(&format!("{} to end", self.name), limit, async || {
            match self.state()? {
                State::Ended { code } => Ok(code),
                running @ State::Running { .. } => bail!("{running:?}"),
            }
        })
        .await
        .map_err(|error| self.blame(error))
    }

    /// Its standard output.
    #[must_use]
    pub fn output_file(&self) -> PathBuf {
        self.supervisor.directory().join(format!("{}.out", self.name))
    }

    /// Its standard error.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.supervisor.directory().join(format!("{}.log", self.name))
    }

    /// The last `lines` lines of its standard error, or of its output if it wrote nothing there.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let read = |path: PathBuf| fs::read(path).unwrap_or_default();
        let mut log = read(self.log_file());
        if log.is_empty() {
            log = read(self.output_file());
        }
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().rev().take(lines).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// `wait`, or an error as soon as this program has ended. Errors come with the end of its log.
    pub(crate) async fn while_running<T>(&self, wait: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let ended = async {
            loop {
                match self.state() {
                    Ok(State::Running { .. }) => sleep(Duration::from_millis(50)).await,
                    Ok(State::Ended { code }) => break anyhow!("{} ended with code {code}", self.name),
                    Err(error) => break error,
                }
            }
        };
        let result = tokio::select! {
            result = wait => result,
            error = ended => Err(error),
        };
        result.map_err(|error| self.blame(error))
    }

    /// `error` with the end of the program's log.
    pub(crate) fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        error.context(format!("{}, whose log ends with:\n{}\n", self.name, self.log_tail(12)))
    }

    fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let answer = self
            .supervisor
            .ask(&format!("signal {} {signal}", self.name))
            .with_context(|| format!("sending SIG{signal} to {}", self.name))?;
        if answer != "ok" {
            return Err(self.blame(anyhow!("SIG{signal} found no running {}", self.name)));
        }
        Ok(())
    }
}
