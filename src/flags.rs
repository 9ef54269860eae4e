//! What the values of flags may be, said in a way that names the remedy.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::fmt::friendly::{Spacing, SpanPrinter};

/// The longest DNS subdomain, and with it the longest name of most objects (RFC 1123 as the API server takes it).
const LONGEST: usize = 253;
/// The longest DNS label, and with it the longest name of a namespace and of a Service; a policy's name is no longer, either.
const LONGEST_LABEL: usize = 63;

/// A duration as flags take it: `2160h`, `1m30s`.
pub(crate) fn written(duration: Duration) -> String {
    SignedDuration::try_from(duration).map_or_else(
        |_| format!("{duration:?}"),
        |duration| SpanPrinter::new().spacing(Spacing::None).duration_to_string(&duration),
    )
}

/// The name of an object.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.len() <= LONGEST && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "no object can have that name: give lower case letters, digits, '-' and '.', with a letter or digit at both ends, at most {LONGEST}"
    ))
}

/// The name of a namespace or a Service.
pub(crate) fn label(text: &str) -> Result<String, String> {
    if text.len() <= LONGEST_LABEL && is_label(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "none can have that name: give lower case letters, digits and '-', with a letter or digit at both ends, at most {LONGEST_LABEL}"
    ))
}

fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of a policy.
pub(crate) fn policy(text: &str) -> Result<String, String> {
    match name(text) {
        Ok(name) if name.len() > LONGEST_LABEL => {
            Err(format!("no policy has a name of more than {LONGEST_LABEL} characters"))
        }
        checked => checked,
    }
}

/// An address with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "give an IP address and a port, such as 0.0.0.0:8443 or [::]:8443".into())
}

/// A count of bytes.
pub(crate) fn bytes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(format!(
            "give a whole number of bytes without a unit, from 1 to {}, such as 8388608",
            u32::MAX
        )),
    }
}

/// A port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("give a port from 1 to 65535".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_an_api_server_takes() {
        let longest = "a".repeat(LONGEST);
        for good in ["a", "deployer-guard", "a.b-c.1", "0", &longest] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        let too_long = "a".repeat(LONGEST + 1);
        for bad in [
            "", "Bad", "bad_name", "-a", "a-", "a..b", ".a", "a.", "ä", "a b", &too_long,
        ] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn namespaces_and_services_have_no_dot_and_policies_no_long_name() {
        let (longest, too_long) = ("a".repeat(63), "a".repeat(64));
        assert!(label(&longest).is_ok() && policy(&longest).is_ok() && policy("a.b").is_ok());
        assert!(label(&too_long).is_err() && policy(&too_long).is_err() && policy("A").is_err());
        for bad in ["a.b", "A", "", "-a"] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_have_a_port_and_ports_are_not_0() {
        assert!(address("[::]:8443").is_ok());
        for bad in ["8081", "localhost:80", ":8080", "0.0.0.0"] {
            assert!(address(bad).unwrap_err().contains("0.0.0.0:8443"), "{bad}");
        }
        assert_eq!(port("65535"), Ok(65535));
        for bad in ["0", "65536", "https", ""] {
            assert!(port(bad).unwrap_err().contains("65535"), "{bad}");
        }
    }

    #[test]
    fn bytes_have_no_unit() {
        assert_eq!(bytes("8388608"), Ok(8_388_608));
        for bad in ["8Mi", "0", "-1", "4294967296", ""] {
            assert!(bytes(bad).unwrap_err().contains("without a unit"), "{bad}");
        }
    }

    #[test]
    fn durations_are_written_as_flags_take_them() {
        for text in ["2160h", "45s", "1m30s", "500ms", "1h0.5s"] {
            let duration = crate::webhook::timeout::parse_go_duration(text).unwrap();
            let again = crate::webhook::timeout::parse_go_duration(&written(duration));
            assert_eq!(again.as_ref(), Ok(&duration), "{}", written(duration));
        }
        assert_eq!(written(Duration::from_hours(2160)), "2160h");
    }
}
