//! The pending window, which webhook and guard share.

use std::time::Duration;

use anyhow::ensure;

use crate::domain::pursuit::{CREATE_BOUND, DEFAULT_PENDING_WINDOW, SETTLE, Window};
use crate::flags::written;
use crate::webhook::timeout::parse_go_duration;

/// How long an admitted pod that nobody can find is believed to be on its way.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WindowArgs {
    /// How long an admitted pod that is not in the store is believed to be on its way to it; must exceed the time that
    /// an API server keeps a create
    #[arg(long, env = "DEPLOYER_GUARD_PENDING_WINDOW", value_name = "DURATION", default_value = "45s",
          value_parser = parse_go_duration)]
    pending_window: Duration,
    /// The --request-timeout of the API servers, if all of them have a lower one than 34s; allows a shorter
    /// --pending-window
    #[arg(long, env = "DEPLOYER_GUARD_API_SERVER_REQUEST_TIMEOUT", value_name = "DURATION",
          value_parser = parse_go_duration)]
    api_server_request_timeout: Option<Duration>,
}

impl WindowArgs {
    /// The window, checked.
    pub(super) fn window(&self) -> anyhow::Result<Window> {
        ensure!(
            self.api_server_request_timeout != Some(Duration::ZERO),
            "--api-server-request-timeout 0s: give what all API servers have, or leave it out"
        );
        let bound = self
            .api_server_request_timeout
            .map_or(CREATE_BOUND, |timeout| timeout.min(CREATE_BOUND));
        ensure!(
            self.pending_window > bound,
            "--pending-window {} is too short: an API server may keep a create for {}, and a pod that arrives after the \
             window is a second deployer. Give more than that (default {}), or --api-server-request-timeout if that of \
             all API servers is lower",
            written(self.pending_window),
            written(bound),
            written(DEFAULT_PENDING_WINDOW)
        );
        Ok(Window {
            pending: self.pending_window,
            settle: SETTLE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(pending: u64, request_timeout: Option<u64>) -> anyhow::Result<Window> {
        let args = WindowArgs {
            pending_window: Duration::from_secs(pending),
            api_server_request_timeout: request_timeout.map(Duration::from_secs),
        };
        args.window()
    }

    #[test]
    fn the_window_must_exceed_the_time_that_an_api_server_keeps_a_create() {
        for (pending, request_timeout, accepted) in [
            (45, None, true),
            (35, None, true),
            (34, None, false),
            (8, None, false),
            (8, Some(5), true),
            (5, Some(5), false),
            (40, Some(60), true),
            (34, Some(60), false),
            (34, Some(0), false),
            (45, Some(0), false),
        ] {
            assert_eq!(
                window(pending, request_timeout).is_ok(),
                accepted,
                "{pending} {request_timeout:?}"
            );
        }
        assert!(
            window(8, None)
                .unwrap_err()
                .to_string()
                .contains("--api-server-request-timeout")
        );
    }
}
