//! Log lines: JSON (or text) on standard output, a panic among them.

use std::backtrace::Backtrace;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{Registry, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// How much is logged and in which form, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// What is logged: a level, or a filter as in `RUST_LOG`; a level alone is that of every library too
    #[arg(
        long,
        env = "DEPLOYER_GUARD_LOG_LEVEL",
        value_name = "FILTER",
        default_value = "info,actix_server=warn"
    )]
    pub log_level: String,
    /// The form of a log line
    #[arg(
        long,
        env = "DEPLOYER_GUARD_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "json"
    )]
    pub log_format: LogFormat,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Text for people.
    Text,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be parsed.
    #[error(
        "--log-level {filter:?} is not a level (error, warn, info, debug, trace) or a filter such as info,kube=warn: {source}"
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// What the parser said.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was set up before.
    #[error("logging was set up twice in one process: {0}")]
    Twice(#[from] TryInitError),
}

impl LogArgs {
    /// Sets up logging for the whole process, once. From then on a panic is a log line too (level ERROR, target
    /// `panic`), with its place, and with a backtrace if `RUST_BACKTRACE` asks for one.
    ///
    /// # Errors
    /// If the filter cannot be parsed or logging was set up before.
    pub fn init(&self) -> Result<(), LogError> {
        let filter = EnvFilter::builder()
            .parse(&self.log_level)
            .map_err(|source| LogError::Filter {
                filter: self.log_level.clone(),
                source,
            })?;
        let registry = Registry::default().with(filter);
        match self.log_format {
            LogFormat::Json => registry
                .with(fmt::layer().json().flatten_event(true).with_span_list(false))
                .try_init()?,
            LogFormat::Text => registry.with(fmt::layer()).try_init()?,
        }
        std::panic::set_hook(Box::new(|panic| {
            let backtrace = Backtrace::capture();
            tracing::error!(target: "panic", backtrace = %backtrace, "{panic}");
        }));
        Ok(())
    }
}
