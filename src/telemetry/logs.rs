//! Log lines: JSON (or text) on standard output, a panic among them.

use std::backtrace::Backtrace;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{Registry, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// How much is logged and in which form, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// What is logged: a level, or a filter as in `RUST_LOG`; a level alone is that of every library too, but for `kube_client::client`,
    /// which logs whole answers of the API server, Secrets among them, and each call that failed, of which we say more: neither is, unless the
    /// filter names it
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
    /// It is a word that is no level.
    #[error(
        "--log-level {0:?} is not a level: give off, error, warn, info, debug or trace, or a filter such as info,kube=warn"
    )]
    Level(String),
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
        let filter = filter(&self.log_level)?;
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

/// What logs a whole answer that it cannot read, at a level that is on by default. It may be a Secret.
const INDISCREET: &str = "kube_client::client";
/// What logs each call that fails, without saying which: whoever called says more.
const TALKATIVE: &str = "kube_client::client::builder";

/// A word alone is a level. The parser would take any other for the name of a module, and log nothing else.
fn filter(given: &str) -> Result<EnvFilter, LogError> {
    let is_word = given.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_word && !given.is_empty() {
        given
            .parse::<LevelFilter>()
            .map_err(|_| LogError::Level(given.to_owned()))?;
    }
    let text = if given.trim().is_empty() || given.contains("kube_client") {
        given.to_owned()
    } else {
        format!("{given},{INDISCREET}=error,{TALKATIVE}=off")
    };
    EnvFilter::builder().parse(text).map_err(|source| LogError::Filter {
        filter: given.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(given: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = fmt::layer().with_writer(move || writer.clone()).without_time();
        let subscriber = Registry::default().with(filter(given).unwrap()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: INDISCREET, "secret");
            tracing::error!(target: INDISCREET, "loud");
            tracing::error!(target: TALKATIVE, "again");
            tracing::warn!(target: "deployer_guard::guard", "ours");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_word_that_is_no_level_is_no_filter_either() {
        for given in ["warning", "waring", "verbose", "deployer_guard"] {
            let error = filter(given).unwrap_err().to_string();
            assert!(error.contains("--log-level") && error.contains(given), "{error}");
        }
        for given in ["off", "warn", "INFO", "info,kube=warn", "deployer_guard=debug", ""] {
            assert!(filter(given).is_ok(), "{given}");
        }
    }

    #[test]
    fn answers_of_the_api_server_are_logged_only_where_the_filter_names_who_does() {
        for given in [
            "info,actix_server=warn",
            "debug",
            "trace",
            "deployer_guard=info,kube=warn",
        ] {
            let lines = logged(given);
            assert!(lines.contains("ours") && lines.contains("loud"), "{given}: {lines}");
            assert!(
                !lines.contains("secret") && !lines.contains("again"),
                "{given}: {lines}"
            );
        }
        assert!(logged("info,kube_client=warn").contains("secret"));
        assert!(filter("no/level=x").is_err());
    }
}
