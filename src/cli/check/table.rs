//! A report for people: a table of the verdicts, and below it each decision with its reasons.

use std::io::{self, Write};

use tabwriter::TabWriter;

use super::report::{Decision, Report, Reviewed, Verdict};

/// Writes a report.
pub(super) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut table = TabWriter::new(&mut *out).padding(2);
    writeln!(table, "POD\tPOLICY\tVERDICT\tREASON\tCONFIG\tGENERATION\tHOLDER")?;
    for (review, decision) in decisions(report) {
        row(&mut table, review, decision)?;
    }
    table.flush()?;
    for (review, decision) in decisions(report) {
        if decision.verdict != Verdict::NotMatched {
            writeln!(out)?;
            details(out, review, decision)?;
        }
    }
    notes(out, report)?;
    writeln!(out, "\n{}", summary(report))
}

fn decisions(report: &Report) -> impl Iterator<Item = (&Reviewed, &Decision)> {
    let reviews = report.reviews.iter();
    reviews.flat_map(|review| review.decisions.iter().map(move |decision| (review, decision)))
}

fn row(table: &mut impl Write, review: &Reviewed, decision: &Decision) -> io::Result<()> {
    let identity = decision.identity.as_ref();
    let cells = [
        identity.map(|identity| identity.config.clone()),
        identity.and_then(|identity| identity.generation.clone()),
        decision.holder.as_ref().map(|holder| holder.name.clone()),
    ];
    let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".into()));
    writeln!(
        table,
        "{}/{}\t{}\t{}\t{}\t{}",
        review.namespace,
        review.pod,
        decision.policy,
        decision.verdict,
        decision.reason,
        cells.join("\t")
    )
}

fn details(out: &mut impl Write, review: &Reviewed, decision: &Decision) -> io::Result<()> {
    let Reviewed {
        operation,
        namespace,
        pod,
        uid,
        ..
    } = review;
    writeln!(
        out,
        "{operation} {namespace}/{pod} (uid {uid}) under {}:",
        decision.policy
    )?;
    let mut lines = TabWriter::new(out).padding(2);
    let verdict = match decision.reason.as_str() {
        "Free" => decision.verdict.to_string(),
        reason => format!("{} ({reason})", decision.verdict),
    };
    let fate = if decision.allowed {
        "the API server lets it pass"
    } else {
        "the API server refuses it"
    };
    let mut line = |name: &str, value: &str| writeln!(lines, "  {name}\t{}", on_one_line(value));
    line(
        "verdict",
        &format!("{verdict}; mode {:?}: {fate}, code {}", decision.mode, decision.code),
    )?;
    if let Some(identity) = &decision.identity {
        line("config", &with(&identity.config, "uid", identity.config_uid.as_deref()))?;
        if let Some(generation) = &identity.generation {
            let ordinal = identity.ordinal.map(|ordinal| ordinal.to_string());
            line("generation", &with(generation, "ordinal", ordinal.as_deref()))?;
        }
    }
    if let Some(owner) = &decision.owner {
        line(
            "owner",
            &format!("{} {} (uid {}): {:?}", owner.kind, owner.name, owner.uid, owner.state),
        )?;
    }
    if let (Some(key), Some(claim)) = (&decision.key, &decision.claim) {
        line("key", key)?;
        line("claim", claim)?;
    }
    if let Some(holder) = &decision.holder {
        let name = with(&holder.name, "generation", holder.generation.as_deref());
        line("holder", &format!("{name}: {}", holder.state))?;
    }
    match (&decision.message, decision.warnings.as_slice(), &decision.explanation) {
        (Some(message), ..) => line("message", message)?,
        (None, [], Some(explanation)) => line("not told", explanation)?,
        (None, ..) => {}
    }
    for warning in &decision.warnings {
        line("warning", warning)?;
    }
    lines.flush()
}

/// As `cfg (uid f7e6)`, without the bracket where there is nothing for it.
fn with(text: &str, name: &str, value: Option<&str>) -> String {
    value.map_or_else(|| text.to_owned(), |value| format!("{text} ({name} {value})"))
}

/// Values come from files: a tab or line break in one must not look like another line of ours.
fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn notes(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut notes: Vec<String> = report.notes.clone();
    for review in &report.reviews {
        let pod = format!("{}/{}", review.namespace, review.pod);
        if review.verdict == Verdict::NotMatched {
            let why = review
                .decisions
                .iter()
                .filter_map(|decision| Some(format!("{}: {}", decision.policy, decision.explanation.as_ref()?)));
            let why = why.collect::<Vec<_>>().join("; ");
            notes.push(format!("{pod}: no policy matches, so the webhook is not asked ({why})"));
        }
        notes.extend(review.notes.iter().map(|note| format!("{pod}: {note}")));
    }
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes
        .iter()
        .try_for_each(|note| writeln!(out, "note: {}", on_one_line(note)))
}

fn summary(report: &Report) -> String {
    let summary = report.summary;
    let counts = [
        (summary.admitted, "admitted"),
        (summary.refused, "refused"),
        (summary.name_exists, "whose name exists"),
        (summary.undecided, "undecided"),
        (summary.not_matched, "that no policy matches"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect::<Vec<_>>()
        .join(", ")
}
