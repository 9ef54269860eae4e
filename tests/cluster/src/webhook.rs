//! A webhook binary as a process of its own.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::http_get::http_get;
use crate::plane::{ControlPlane, LeftRunning, left_running};
use crate::process::Process;
use crate::supervisor::Supervisor;
use crate::wait::until;

/// What a webhook of its own gets between TERM and KILL at the end, in tenths of a second.
const GRACE: u32 = 10;

/// Says how a webhook is to be run; [`WebhookBuilder::start`] runs it.
#[derive(Debug, Clone)]
pub struct WebhookBuilder {
    name: String,
    words: Vec<String>,
    environment: Vec<String>,
    supervisor: Option<Arc<Supervisor>>,
}

/// A running webhook. Dropping it ends it; so does the end of this process, whatever ends it.
#[derive(Debug)]
pub struct WebhookProcess {
    process: Process,
    supervisor: Arc<Supervisor>,
    /// It runs among the programs of a control plane.
    shared: bool,
    left: bool,
}

impl WebhookProcess {
    /// Begins to say how to run `program`. The name is for logs and files, and must be unique where several run under
    /// one control plane; letters, digits and `-` only.
    #[must_use]
    pub fn builder(name: &str, program: impl Into<PathBuf>) -> WebhookBuilder {
        WebhookBuilder {
            name: name.to_owned(),
            words: vec![program.into().display().to_string()],
            environment: Vec::new(),
            supervisor: None,
        }
    }

    /// The process, to pause, resume, kill, terminate and restart it.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until a GET of `url` (`http` or `https`, any certificate) is answered by a code below 400.
    ///
    /// # Errors
    /// After 30 s, or as soon as the webhook has ended: with the end of its log.
    pub async fn wait_ready(&self, url: &str) -> anyhow::Result<()> {
        let limit = Duration::from_secs(30);
        let what = format!("{} to answer at {url}", self.process.name());
        let ready = until(&what, limit, async || match http_get(url).await? {
            (..400, _) => Ok(()),
            (code, body) => bail!("answered {code}: {body}"),
        });
        self.process.while_running(ready).await
    }

    /// What it wrote to standard output so far, line by line: JSON where a line is JSON, else the line as a string.
    /// A last line that is not complete yet is left out. A restarted webhook goes on in the same file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn log_lines(&self) -> anyhow::Result<Vec<Value>> {
        let path = self.process.output_file();
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(complete
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_owned())))
            .collect())
    }

    /// Waits until a log line satisfies `wanted`; returns the first that does.
    ///
    /// # Errors
    /// If there is none within `limit`: with the end of the log.
    pub async fn wait_log(
        &self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let mut find = || {
            let lines = self.log_lines()?;
            let count = lines.len();
            lines
                .into_iter()
                .find(|line| wanted(line))
                .with_context(|| format!("{count} lines, none of them it"))
        };
        let what = format!("{} to log {what}", self.process.name());
        let found = until(&what, limit, || std::future::ready(find())).await;
        found.map_err(|error| self.process.blame(error))
    }

    /// Leaves it running when this process ends. Under a control plane, that one has to be left running too, and ends
    /// it.
    ///
    /// # Errors
    /// If its control plane has ended already.
    pub fn leave_running(mut self) -> anyhow::Result<LeftRunning> {
        if !self.shared {
            self.supervisor.leave_running()?;
        }
        self.left = true;
        Ok(left_running(self.supervisor.directory()))
    }
}

impl Drop for WebhookProcess {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if self.shared {
            // It may have ended by itself, and so may its control plane.
            let _result = self.process.kill();
        } else {
            self.supervisor.end();
        }
    }
}

impl WebhookBuilder {
    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.words.push(arg.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<String>>(mut self, args: I) -> Self {
        self.words.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable of its environment, which is otherwise that of this process.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Runs it among the programs of a control plane: its files are in that one's directory, and whatever ends the
    /// control plane ends it, also when that was left running.
    #[must_use]
    pub fn under(mut self, plane: &ControlPlane) -> Self {
        self.supervisor = Some(Arc::clone(&plane.supervisor));
        self
    }

    /// Starts it; does not wait until it is ready ([`WebhookProcess::wait_ready`]).
    ///
    /// # Errors
    /// If the name is none, or the supervisor cannot be started. A program that is not there ends with code 127, as a shell says it.
    pub fn start(self) -> anyhow::Result<WebhookProcess> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        ensure!(
            self.name.chars().all(plain),
            "a webhook's name has letters, digits and - only, not {:?}",
            self.name
        );
        let shared = self.supervisor.is_some();
        let supervisor = match self.supervisor {
            Some(supervisor) => supervisor,
            None => Arc::new(Supervisor::start(&self.name, GRACE)?),
        };
        let mut words = vec!["env".to_owned()];
        words.extend(self.environment);
        words.extend(self.words);
        let process = Process::start_new(&supervisor, &self.name, words)?;
        Ok(WebhookProcess {
            process,
            supervisor,
            shared,
            left: false,
        })
    }
}
