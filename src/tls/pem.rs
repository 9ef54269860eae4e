//! PEM, and what is wrong with it, in words of our own: the parser's errors quote the line that they stumble over, and that may be a whole key.

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Reads all certificates, and nothing else that the content holds.
///
/// # Errors
/// If it holds none, or is broken. The text quotes nothing of the content.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| what_is_wrong(&error))?;
    if found.is_empty() {
        return Err("it has no CERTIFICATE section");
    }
    Ok(found)
}

/// Reads the first private key.
///
/// # Errors
/// If there is none, or the content is broken. The text quotes nothing of the content.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        Error::NoItemsFound => "it has no PRIVATE KEY section",
        error => what_is_wrong(&error),
    })
}

fn what_is_wrong(error: &Error) -> &'static str {
    match error {
        Error::MissingSectionEnd { .. } | Error::IllegalSectionStart { .. } => {
            "it is not PEM: a BEGIN or END line is broken; are its line breaks intact?"
        }
        Error::Base64Decode(_) => "it is not PEM: what stands between a BEGIN and an END line is not base64",
        _ => "it is not PEM",
    }
}

/// Contents from which a parser quotes a key in its errors, and what of the key must not be found in any text.
#[cfg(test)]
pub(crate) mod leaks {
    use crate::guard::certificates::authority::{Life, authority};

    /// A key in ways in which it is stored by mistake.
    pub(crate) fn broken_keys() -> Vec<(&'static str, Vec<u8>)> {
        let key = authority(Life::from(1_800_000_000, 1000)).unwrap().key;
        let key = key.trim().replace("\r\n", "\n");
        let end = key.find("-----END").unwrap();
        [
            ("literal \\n", key.replace('\n', "\\n")),
            ("one line", key.replace('\n', "")),
            ("one line with spaces", key.replace('\n', " ")),
            ("no end", key[..end].to_owned()),
            ("no base64", key.replacen('\n', "\n!!!!", 1)),
        ]
        .into_iter()
        .map(|(what, key)| (what, key.into_bytes()))
        .collect()
    }

    /// Whether a text quotes a part of the key, as text or as a list of bytes.
    pub(crate) fn quotes(text: &str, key: &[u8]) -> bool {
        let mut parts = key.windows(16).map(String::from_utf8_lossy);
        let is_text = |part: &str| part.chars().all(|char| char.is_ascii_alphanumeric());
        text.contains("45, 45") || parts.any(|part| is_text(&part) && text.contains(&*part))
    }

    pub(crate) fn assert_quotes_nothing(what: &str, text: &str, key: &[u8]) {
        assert!(!quotes(text, key), "{what}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::leaks::{assert_quotes_nothing, broken_keys, quotes};
    use super::*;

    #[test]
    fn what_is_wrong_is_said_without_a_word_of_the_content() {
        for (what, key) in broken_keys() {
            let parsers = PrivateKeyDer::from_pem_slice(&key).unwrap_err().to_string();
            let is_quoted = !matches!(what, "no end" | "no base64");
            assert_eq!(quotes(&parsers, &key), is_quoted, "{what}: {parsers}");
            let why = private_key(&key).unwrap_err();
            assert_quotes_nothing(what, why, &key);
            assert_quotes_nothing(what, certificates(&key).unwrap_err(), &key);
        }
        assert!(private_key(b"").unwrap_err().contains("PRIVATE KEY"));
        assert!(certificates(b"").unwrap_err().contains("CERTIFICATE"));
    }
}
