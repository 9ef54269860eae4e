//! What the project promised itself, beside what was measured.

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) measured: f64,
    pub(crate) met: bool,
}

/// A bound from above.
pub(crate) fn at_most(what: impl Into<String>, measured: f64, bound: f64) -> Target {
    Target {
        what: what.into(),
        wanted: format!("at most {bound}"),
        measured,
        met: measured <= bound,
    }
}

/// Prints them for people.
pub(crate) fn print(targets: &[Target]) {
    println!("\n== targets");
    for target in targets {
        println!(
            "{:<8}{:>7.2}  {:<13}  {}",
            if target.met { "met" } else { "MISSED" },
            target.measured,
            target.wanted,
            target.what
        );
    }
}
