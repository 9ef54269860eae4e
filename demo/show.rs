//! How the story is shown.

use std::collections::BTreeMap;

use anyhow::Context as _;
use deployer_guard_testkit::objects::Answer;

pub(crate) fn heading(text: &str) {
    println!("\n== {text}");
}

/// How often each kind of answer came.
pub(crate) fn tally(answers: &[Answer]) -> Vec<(usize, String)> {
    let mut kinds = BTreeMap::new();
    for answer in answers {
        *kinds.entry(kind(answer)).or_insert(0) += 1;
    }
    kinds.into_iter().map(|(kind, count)| (count, kind)).collect()
}

/// Code, reason and cause of an answer, or the name of the pod that was created.
pub(crate) fn kind(answer: &Answer) -> String {
    match &answer.result {
        Ok(pod) => format!("201 Created    {}", pod.metadata.name.as_deref().unwrap_or_default()),
        Err(status) => {
            let causes = status
                .details
                .as_ref()
                .map(|details| details.causes.as_slice())
                .unwrap_or_default();
            let cause = match status.code {
                500 => "no answer of the webhook: the create had reached the replica that was killed",
                _ => causes.first().map(|cause| cause.reason.as_str()).unwrap_or_default(),
            };
            format!("{} {:<10} {cause}", answer.code, status.reason)
        }
    }
}

/// Says how what is left running is ended, and leaves it for `make cluster-down`.
pub(crate) fn say_how_it_ends(command: &str) -> anyhow::Result<()> {
    if let Some(file) = std::env::var_os("DEMO_END") {
        std::fs::write(&file, format!("{command}\n")).context("writing how it ends")?;
        println!("End it with make cluster-down, or:\n  {command}");
    } else {
        println!("End it with:\n  {command}");
    }
    Ok(())
}
