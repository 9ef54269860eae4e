//! The process that starts the programs and outlives their owner just long enough to end them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, process};

use anyhow::{Context, anyhow, bail};

use crate::ports::random;
use crate::programs::HOME;

/// A running `supervise.sh` with a directory of its own.
///
/// The script ends its programs and removes the directory as soon as the pipe to this process closes, so that holds for
/// every way in which this process can end.
#[derive(Debug)]
pub(crate) struct Supervisor {
    directory: PathBuf,
    link: Mutex<Option<Link>>,
}

#[derive(Debug)]
struct Link {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Link {
    /// The next line; empty when the supervisor is gone.
    fn answer(&mut self) -> std::io::Result<String> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

impl Supervisor {
    /// Starts one; its directory's name begins with `deployer-guard-KIND`. `grace` is what its programs get between TERM
    /// and KILL at the end, in tenths of a second.
    pub(crate) fn start(kind: &str, grace: u32) -> anyhow::Result<Self> {
        let script = Path::new(HOME).join("supervise.sh").display().to_string();
        Self::start_by(kind, |directory| vec![script, directory, grace.to_string()])
    }

    /// Starts one by a command of its own, made of the name of the directory.
    pub(crate) fn start_by(kind: &str, command: impl FnOnce(String) -> Vec<String>) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let temp = env::temp_dir();
        let temp = fs::canonicalize(&temp).with_context(|| format!("looking up {}", temp.display()))?;
        let directory = temp.join(format!(
            "deployer-guard-{kind}-{}-{}-{:08x}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            random() >> 32,
        ));
        // A session of its own: Ctrl-C in the terminal and the loss of it reach the owner alone.
        let mut child = Command::new("setsid")
            .args(command(directory.display().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the supervisor by setsid (util-linux)")?;
        let commands = child.stdin.take().context("the pipe to the supervisor")?;
        let answers = BufReader::new(child.stdout.take().context("the pipe from the supervisor")?);
        let supervisor = Self {
            directory,
            link: Mutex::new(Some(Link {
                child,
                commands,
                answers,
            })),
        };
        let hello = supervisor.talk(Link::answer)?;
        if hello != "ok" {
            bail!("{} could not be made", supervisor.directory.display());
        }
        Ok(supervisor)
    }

    /// Where the programs' files are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the program called `name`: `words` are what is executed and its arguments.
    pub(crate) fn start_program(&self, name: &str, words: &[String]) -> anyhow::Result<()> {
        let file = self.directory.join(format!("{name}.cmd"));
        let text: String = words.iter().flat_map(|word| [word.as_str(), "\0"]).collect();
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        self.ask(&format!("start {name}")).map(drop)
    }

    /// Sends one command, returns its answer.
    pub(crate) fn ask(&self, command: &str) -> anyhow::Result<String> {
        let answer = self.talk(|link| {
            writeln!(link.commands, "{command}")?;
            link.answer()
        });
        let answer =
            answer.with_context(|| format!("asking the supervisor of {}: {command}", self.directory.display()))?;
        if answer.is_empty() {
            return Err(anyhow!("the supervisor of {} is gone", self.directory.display()));
        }
        Ok(answer)
    }

    fn talk(&self, exchange: impl FnOnce(&mut Link) -> std::io::Result<String>) -> anyhow::Result<String> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let link = link
            .as_mut()
            .with_context(|| format!("{} has ended already", self.directory.display()))?;
        Ok(exchange(link)?)
    }

    /// Lets the programs outlive this process; `down.sh` ends them.
    pub(crate) fn leave_running(&self) -> anyhow::Result<()> {
        self.ask("keep")?;
        self.link.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    /// Ends the programs and removes the directory, and returns when that is done. Nothing happens the second time.
    pub(crate) fn end(&self) {
        let Some(Link {
            mut child,
            commands,
            answers: _,
        }) = self.link.lock().unwrap_or_else(PoisonError::into_inner).take()
        else {
            return;
        };
        drop(commands);
        // Nothing better can be done about an error here than to clean up after a supervisor that was itself killed.
        let _status = child.wait();
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
    }
}
